// NHWC images of bfloat16 on tensor cores.

#include "cuda_slide_tensor_core.cuh"

namespace torchgraft::depthwise::cuda {

template void launch_slide_tensor_core(const BFloat16*, const BFloat16*, const BFloat16*, BFloat16*,
                                       const Geometry&, bool, cudaStream_t);

}  // namespace torchgraft::depthwise::cuda
