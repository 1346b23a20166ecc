// The sliding kernels on NHWC images for every dtype, and what they serve.

#include "cuda_slide_channels_last.cuh"

namespace torchgraft::depthwise::cuda {

bool serves_slide_channels_last(const Geometry& geometry, int element_bytes, int alignment) {
  constexpr int64_t kMost = int64_t{1} << 30;
  if (geometry.multiplier != 1 || !positions_fit_32(geometry)) return false;
  const int64_t kernel = geometry.height.kernel;
  if (geometry.channels % (kernel == 3 ? 4 : 2) != 0) return false;
  // Rows of either image, and those of all images, are counted in 32 bits.
  if (geometry.channels * std::max(geometry.width.input, geometry.width.output) >= kMost) return false;
  if (geometry.batch * std::max(geometry.height.input, geometry.height.output) >= kMost) return false;
  if (slide_piece(geometry.channels, element_bytes, alignment) == 0) return false;
  return with_small_kernel(geometry, [](auto, auto) {});
}

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
