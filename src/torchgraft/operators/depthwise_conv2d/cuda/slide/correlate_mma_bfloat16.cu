// NHWC images of bfloat16 on tensor cores.

#include "correlate_mma.cuh"

namespace torchgraft::depthwise::cuda {

template void launch_slide_correlate_mma(const Correlation<BFloat16>&);

}  // namespace torchgraft::depthwise::cuda
