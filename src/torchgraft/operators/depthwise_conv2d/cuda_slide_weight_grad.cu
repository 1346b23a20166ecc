// The sliding weight gradient on NHWC images for every dtype.

#include "cuda_slide_weight_grad.cuh"

namespace torchgraft::depthwise::cuda {

template bool launch_slide_weight_grad<float>(const float*, const float*, float*, float*, const Geometry&,
                                              cudaStream_t);
template bool launch_slide_weight_grad<Half>(const Half*, const Half*, Half*, float*, const Geometry&,
                                             cudaStream_t);
template bool launch_slide_weight_grad<BFloat16>(const BFloat16*, const BFloat16*, BFloat16*, float*,
                                                 const Geometry&, cudaStream_t);

}  // namespace torchgraft::depthwise::cuda
