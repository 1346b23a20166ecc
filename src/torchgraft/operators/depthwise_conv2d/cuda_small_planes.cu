// Small NCHW planes: the launch. The kernel is in cuda_small_planes.cuh.

#include "cuda_small_planes.h"

#include "cuda_small_planes.cuh"
#include "cuda_weight_grad_small_planes.cuh"

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

template <typename Shape>
void launch_weight_grad(const typename Shape::T* output_grad, const typename Shape::T* input,
                        typename Shape::T* weight_grad, float* workspace, const Geometry& geometry,
                        cudaStream_t stream) {
  using T = typename Shape::T;
  using Sizes = SmallPlanesWeightGrad<Shape>;
  static_assert(Sizes::kBytes <= 48 * 1024);
  const int64_t groups = ceil_divide<int64_t>(geometry.channels, Shape::kPlanes);
  // One wave of a large device, each warp at least two images.
  constexpr int64_t kBlocks = 132 * Sizes::kBlocks;
  const int64_t wanted = std::min(
      {kBlocks / groups, geometry.batch / (2 * Sizes::kWarps), most_chunks(geometry, Layout::contiguous)});
  const int images_of_chunk =
      static_cast<int>(ceil_divide<int64_t>(geometry.batch, std::max<int64_t>(wanted, 1)));
  const int chunks = ceil_divide(static_cast<int>(geometry.batch), images_of_chunk);
  const SmallPlanesWeightGradParameters parameters = {static_cast<int>(geometry.batch),
                                                      static_cast<int>(geometry.channels), images_of_chunk,
                                                      static_cast<int>(groups)};
  const char* name = "depthwise_conv2d_weight_grad";
  const unsigned grid = grid_of(groups * chunks, name);
  if (chunks == 1) {
    small_planes_weight_grad<Shape, T>
        <<<grid, Sizes::kWarps * 32, Sizes::kBytes, stream>>>(output_grad, input, weight_grad, parameters);
    check_launch(name);
  } else {
    small_planes_weight_grad<Shape, float>
        <<<grid, Sizes::kWarps * 32, Sizes::kBytes, stream>>>(output_grad, input, workspace, parameters);
    check_launch(name);
    launch_sum_chunks(workspace, weight_grad, geometry, chunks, stream);
  }
}

// Calls `function` with the kernel size and the tiles of a side.
template <typename Function>
void with_small_planes(const Geometry& geometry, const Function& function) {
  with_small_kernel(geometry, [&](auto kernel, auto) {
    switch (geometry.width.input) {
      case 7:
        return function(kernel, std::integral_constant<int, 1>{});
      case 14:
        return function(kernel, std::integral_constant<int, 2>{});
      default:
        return function(kernel, std::integral_constant<int, 4>{});
    }
  });
}

}  // namespace

template <typename T>
void launch_small_planes(const T* source, const T* weight, const T* bias, T* result, const Geometry& geometry,
                         bool flipped, cudaStream_t stream) {
  with_small_planes(geometry, [&](auto kernel, auto tiles) {
    launch<SmallPlanes<T, kernel, tiles>>(source, weight, bias, result, geometry, flipped, stream);
  });
}

template <typename T>
void launch_weight_grad_small_planes(const T* output_grad, const T* input, T* weight_grad, float* workspace,
                                     const Geometry& geometry, cudaStream_t stream) {
  with_small_planes(geometry, [&](auto kernel, auto tiles) {
    launch_weight_grad<SmallPlanes<T, kernel, tiles>>(output_grad, input, weight_grad, workspace, geometry,
                                                      stream);
  });
}

template void launch_small_planes(const float*, const float*, const float*, float*, const Geometry&, bool,
                                  cudaStream_t);
template void launch_small_planes(const Half*, const Half*, const Half*, Half*, const Geometry&, bool,
                                  cudaStream_t);
template void launch_small_planes(const BFloat16*, const BFloat16*, const BFloat16*, BFloat16*,
                                  const Geometry&, bool, cudaStream_t);
template void launch_weight_grad_small_planes(const float*, const float*, float*, float*, const Geometry&,
                                              cudaStream_t);
template void launch_weight_grad_small_planes(const Half*, const Half*, Half*, float*, const Geometry&,
                                              cudaStream_t);
template void launch_weight_grad_small_planes(const BFloat16*, const BFloat16*, BFloat16*, float*,
                                              const Geometry&, cudaStream_t);

}  // namespace torchgraft::depthwise::cuda
