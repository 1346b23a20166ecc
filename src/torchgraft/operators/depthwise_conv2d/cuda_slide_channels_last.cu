// The sliding kernels on NHWC images for every dtype.

#include "cuda_slide_channels_last.cuh"

namespace torchgraft::depthwise::cuda {

template void launch_slide_channels_last<float, false>(const float*, const float*, const float*, float*,
                                                       const Geometry&, cudaStream_t);
template void launch_slide_channels_last<float, true>(const float*, const float*, const float*, float*,
                                                      const Geometry&, cudaStream_t);
template void launch_slide_channels_last<Half, false>(const Half*, const Half*, const Half*, Half*,
                                                      const Geometry&, cudaStream_t);
template void launch_slide_channels_last<Half, true>(const Half*, const Half*, const Half*, Half*,
                                                     const Geometry&, cudaStream_t);
template void launch_slide_channels_last<BFloat16, false>(const BFloat16*, const BFloat16*, const BFloat16*,
                                                          BFloat16*, const Geometry&, cudaStream_t);
template void launch_slide_channels_last<BFloat16, true>(const BFloat16*, const BFloat16*, const BFloat16*,
                                                         BFloat16*, const Geometry&, cudaStream_t);

}  // namespace torchgraft::depthwise::cuda
