// The kernels of cuda_gather.cuh for float16 and bfloat16.

#include "cuda_gather.cuh"

namespace torchgraft::depthwise::cuda {

template void launch_gather(Kernel, const Half*, const Half*, const Half*, Half*, const Geometry&, Layout,
                            bool, cudaStream_t);
template void launch_gather(Kernel, const BFloat16*, const BFloat16*, const BFloat16*, BFloat16*,
                            const Geometry&, Layout, bool, cudaStream_t);

}  // namespace torchgraft::depthwise::cuda
