// The kernels of gather.cuh for float32 and float64.

#include "gather.cuh"

namespace torchgraft::depthwise::cuda {

template void launch_gather_columns(const Correlation<float>&);
template void launch_gather_columns_nhwc(const Correlation<float>&);
template void launch_gather_small(const Correlation<double>&);
template void launch_gather_small(const Correlation<float>&);
template void launch_gather_large(const Correlation<double>&);
template void launch_gather_large(const Correlation<float>&);

}  // namespace torchgraft::depthwise::cuda
