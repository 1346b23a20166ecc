// The kernels of gather.cuh for float16 and bfloat16.

#include "gather.cuh"

namespace torchgraft::depthwise::cuda {

template void launch_gather_columns(const Correlation<Half>&);
template void launch_gather_columns(const Correlation<BFloat16>&);
template void launch_gather_columns_nhwc(const Correlation<Half>&);
template void launch_gather_columns_nhwc(const Correlation<BFloat16>&);
template void launch_gather_small(const Correlation<Half>&);
template void launch_gather_small(const Correlation<BFloat16>&);
template void launch_gather_large(const Correlation<Half>&);
template void launch_gather_large(const Correlation<BFloat16>&);

}  // namespace torchgraft::depthwise::cuda
