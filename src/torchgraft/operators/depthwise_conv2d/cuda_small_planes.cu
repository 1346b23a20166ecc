// Small NCHW planes: the launch. The kernel is in cuda_small_planes.cuh.

#include "cuda_small_planes.h"

#include "cuda_small_planes.cuh"

namespace torchgraft::depthwise::cuda {
namespace {

template <typename Shape>
void launch(const typename Shape::T* source, const typename Shape::T* weight, const typename Shape::T* bias,
            typename Shape::T* result, const Geometry& geometry, bool flipped, cudaStream_t stream) {
  static_assert(Shape::kBytes <= 48 * 1024);
  const SmallPlanesParameters parameters = {static_cast<int>(geometry.batch * geometry.channels),
                                            static_cast<int>(geometry.channels), flipped,
                                            is_aligned(weight, 16)};
  const char* name = flipped ? "depthwise_conv2d_input_grad" : "depthwise_conv2d";
  const int warps = ceil_divide(parameters.planes, Shape::kPlanes);
  small_planes<Shape><<<ceil_divide(warps, Shape::kWarps), Shape::kWarps * 32, Shape::kBytes, stream>>>(
      source, weight, bias, result, parameters);
  check_launch(name);
}

}  // namespace

bool serves_small_planes(const Geometry& geometry, bool aligned) {
  const auto fits = [](const Extent& extent) {
    return (extent.input == 7 || extent.input == 14 || extent.input == 28) &&
           (extent.kernel == 3 || extent.kernel == 5 || extent.kernel == 7) && extent.stride == 1 &&
           extent.dilation == 1 && extent.padding == extent.kernel / 2 && extent.output == extent.input;
  };
  constexpr int64_t kLimit = int64_t{1} << 29;
  // Warps enough to fill a large device: one takes whole planes, and a launch of few takes long.
  constexpr int64_t kWarps = 132 * 4;
  return aligned && geometry.multiplier == 1 && fits(geometry.height) && fits(geometry.width) &&
         geometry.height.input == geometry.width.input && geometry.height.kernel == geometry.width.kernel &&
         geometry.batch * geometry.channels < kLimit && geometry.channels < kLimit / 64 &&
         geometry.channels * geometry.input_pixels() >= 32 * 49 &&
         geometry.batch * geometry.channels * geometry.input_pixels() >= kWarps * 32 * 49;
}

template <typename T>
void launch_small_planes(const T* source, const T* weight, const T* bias, T* result, const Geometry& geometry,
                         bool flipped, cudaStream_t stream) {
  with_small_kernel(geometry, [&](auto kernel, auto) {
    switch (geometry.width.input) {
      case 7:
        return launch<SmallPlanes<T, kernel, 1>>(source, weight, bias, result, geometry, flipped, stream);
      case 14:
        return launch<SmallPlanes<T, kernel, 2>>(source, weight, bias, result, geometry, flipped, stream);
      default:
        return launch<SmallPlanes<T, kernel, 4>>(source, weight, bias, result, geometry, flipped, stream);
    }
  });
}

template void launch_small_planes(const float*, const float*, const float*, float*, const Geometry&, bool,
                                  cudaStream_t);
template void launch_small_planes(const Half*, const Half*, const Half*, Half*, const Geometry&, bool,
                                  cudaStream_t);
template void launch_small_planes(const BFloat16*, const BFloat16*, const BFloat16*, BFloat16*,
                                  const Geometry&, bool, cudaStream_t);

}  // namespace torchgraft::depthwise::cuda
