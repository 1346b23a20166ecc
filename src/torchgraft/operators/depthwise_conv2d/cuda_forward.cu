// depthwise_conv2d, forward: which kernel serves which geometry. The kernels, with what a block and a thread
// own and what they are predicted to reach, are in cuda_strips.cuh, cuda_small_planes.cuh and cuda_planes.cuh
// (NCHW), cuda_channels_last.cuh (NHWC) and cuda_direct.cuh (all else); the input gradient shares them.

#include "cuda_channels_last.cuh"
#include "cuda_direct.cuh"
#include "cuda_kernels.cuh"
#include "cuda_planes.cuh"
#include "cuda_small_planes.h"
#include "cuda_strips.h"

namespace torchgraft::depthwise::cuda {

template <typename T>
void forward(const T* input, const T* weight, const T* bias, T* output, const Geometry& geometry,
             Layout layout, cudaStream_t stream) {
  constexpr bool kTransposed = false;
  // float64 is for checking gradients, not for speed.
  if constexpr (!std::is_same_v<T, double>) {
    if (positions_fit_32(geometry)) {
      if (layout == Layout::contiguous) {
        if (serves_small_planes(geometry, is_aligned(input, 16) && is_aligned(output, 16))) {
          launch_small_planes(input, weight, bias, output, geometry, kTransposed, stream);
          return;
        }
        if (serves_strips(geometry, kTransposed)) {
          launch_strips(input, weight, bias, output, geometry, kTransposed, stream);
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
