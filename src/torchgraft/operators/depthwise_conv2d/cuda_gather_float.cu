// The kernels of cuda_gather.cuh for float32 and float64.

#include "cuda_gather.cuh"

namespace torchgraft::depthwise::cuda {

template void launch_gather(Kernel, const double*, const double*, const double*, double*, const Geometry&,
                            Layout, bool, cudaStream_t);
template void launch_gather(Kernel, const float*, const float*, const float*, float*, const Geometry&, Layout,
                            bool, cudaStream_t);

}  // namespace torchgraft::depthwise::cuda
