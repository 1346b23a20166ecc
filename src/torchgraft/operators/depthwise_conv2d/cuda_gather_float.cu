// The kernels of cuda_gather.cuh for float32 and float64.

#include "cuda_gather.cuh"

namespace torchgraft::depthwise::cuda {

bool serves_gather(const Geometry& geometry, bool transposed) {
  constexpr int64_t kLimit = int64_t{1} << 31;
  if (!positions_fit_32(geometry)) return false;
  // In any layout, an offset from the first element of an image to a source, be it in the padding.
  const auto span = [](const Extent& extent) {
    constexpr int64_t kMoreTaps = 8;  // than the kernel has, of unrolled loops
    return std::max(extent.input, extent.output * extent.stride) + extent.padding +
           (extent.kernel + kMoreTaps) * extent.dilation;
  };
  const int64_t rows = span(geometry.height);
  const int64_t columns = span(geometry.width);
  if (rows >= kLimit || columns >= kLimit ||
      rows * columns >= kLimit / std::max(geometry.output_channels(), int64_t{1})) {
    return false;
  }
  // The phases of positions.
  constexpr int64_t kLargestStep = int64_t{1} << 15;
  const auto is_small = [](const Extent& extent) {
    return extent.stride < kLargestStep && extent.dilation < kLargestStep;
  };
  if (transposed && !(is_small(geometry.height) && is_small(geometry.width))) return false;
  return gather_shared_taps(geometry, transposed) * int64_t{sizeof(double)} <= kGatherSharedBytes;
}

template void launch_gather(const double*, const double*, const double*, double*, const Geometry&, Layout,
                            bool, cudaStream_t);
template void launch_gather(const float*, const float*, const float*, float*, const Geometry&, Layout, bool,
                            cudaStream_t);

}  // namespace torchgraft::depthwise::cuda
