// depthwise_conv2d, forward: which kernel serves which geometry. The kernels, with what a block and a thread
// own and what they are predicted to reach, are in cuda_planes.cuh (NCHW), cuda_channels_last.cuh (NHWC) and
// cuda_direct.cuh (all else); the input gradient shares them.

#include "cuda_channels_last.cuh"
#include "cuda_direct.cuh"
#include "cuda_kernels.cuh"
#include "cuda_planes.cuh"
#include "cuda_tensor_core.cuh"

namespace torchgraft::depthwise::cuda {

template <typename T>
void forward(const T* input, const T* weight, const T* bias, T* output, const Geometry& geometry,
             Layout layout, cudaStream_t stream) {
  constexpr bool kTransposed = false;
  if constexpr (sizeof(T) == 2) {
    const bool aligned = is_aligned(input, 16) && is_aligned(output, 16);
    if (serves_tensor_core(geometry, layout, kTransposed, aligned)) {
      launch_tensor_core(input, weight, bias, output, geometry, layout, kTransposed, stream);
      return;
    }
  }
  // float64 is for checking gradients, not for speed.
  if constexpr (!std::is_same_v<T, double>) {
    if (positions_fit_32(geometry)) {
      if (layout == Layout::contiguous) {
        if (with_small_kernel(geometry, [&](auto kernel, auto stride) {
              using Patch = Stencil<kernel, stride, kTransposed, 4>;
              launch_small_kernel_planes<T, Patch>(input, weight, bias, output, geometry, stream);
            })) {
          return;
        }
        if (is_unit_step(geometry) &&
            launch_large_kernel_planes<T, kTransposed>(input, weight, bias, output, geometry, stream)) {
          return;
        }
      } else if (can_take_four_channels<T>(geometry, input, output)) {
        if (with_small_kernel(geometry, [&](auto kernel, auto stride) {
              using Rows = Stencil<kernel, stride, kTransposed, 2>;
              using Columns = Stencil<kernel, stride, kTransposed, 4>;
              launch_small_kernel_channels_last<T, Rows, Columns>(input, weight, bias, output, geometry,
                                                                  stream);
            })) {
          return;
        }
        if (is_unit_step(geometry) && geometry.width.kernel <= kLargestKernelRow) {
          launch_large_kernel_channels_last<T, kTransposed>(input, weight, bias, output, geometry, stream);
          return;
        }
      }
    }
  }
  launch_direct<T, kTransposed>(input, weight, bias, output, geometry, layout, stream);
}

template void forward(const double*, const double*, const double*, double*, const Geometry&, Layout,
                      cudaStream_t);
template void forward(const float*, const float*, const float*, float*, const Geometry&, Layout,
                      cudaStream_t);
template void forward(const Half*, const Half*, const Half*, Half*, const Geometry&, Layout, cudaStream_t);
template void forward(const BFloat16*, const BFloat16*, const BFloat16*, BFloat16*, const Geometry&, Layout,
                      cudaStream_t);

}  // namespace torchgraft::depthwise::cuda
