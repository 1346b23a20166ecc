// NHWC images of float16 on tensor cores.

#include "cuda_slide_tensor_core.cuh"

namespace torchgraft::depthwise::cuda {

template void launch_slide_tensor_core(const Half*, const Half*, const Half*, Half*, const Geometry&, bool,
                                       cudaStream_t);

}  // namespace torchgraft::depthwise::cuda
