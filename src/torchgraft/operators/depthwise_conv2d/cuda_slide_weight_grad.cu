// The sliding weight gradient on NHWC images for every dtype, and what it serves.

#include "cuda_slide_weight_grad.cuh"

namespace torchgraft::depthwise::cuda {

bool serves_slide_weight_grad(const Geometry& geometry, int element_bytes, int alignment) {
  constexpr int64_t kMost = int64_t{1} << 30;
  if (geometry.multiplier != 1 || !positions_fit_32(geometry)) return false;
  const int64_t kernel = geometry.height.kernel;
  if (geometry.channels % (kernel == 3 ? 4 : kernel == 5 ? 2 : 1) != 0) return false;
  // Rows of either image, and those of all images, are counted in 32 bits.
  if (geometry.channels * std::max(geometry.width.input, geometry.width.output) >= kMost) return false;
  if (geometry.batch * std::max(geometry.height.input, geometry.height.output) >= kMost) return false;
  if (slide_piece(geometry.channels, element_bytes, alignment) == 0) return false;
  return with_small_kernel(geometry, [](auto, auto) {});
}

template void launch_slide_weight_grad<float>(const float*, const float*, float*, float*, const Geometry&,
                                              cudaStream_t);
template void launch_slide_weight_grad<Half>(const Half*, const Half*, Half*, float*, const Geometry&,
                                             cudaStream_t);
template void launch_slide_weight_grad<BFloat16>(const BFloat16*, const BFloat16*, BFloat16*, float*,
                                                 const Geometry&, cudaStream_t);

}  // namespace torchgraft::depthwise::cuda
