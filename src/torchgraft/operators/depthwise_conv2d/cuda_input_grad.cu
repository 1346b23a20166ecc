// depthwise_conv2d, input gradient: which kernel serves which geometry. It gathers: each input position adds
// up the output gradients that it had a part in, so that nothing is written twice and no sum depends on
// timing. The kernels are those of the forward pass, transposed (cuda_stencil.cuh); with stride 1 and a large
// kernel, the forward pass with the kernel turned around. A sum over several output channels of one input
// channel is left to cuda_direct.cuh.

#include "cuda_channels_last.cuh"
#include "cuda_direct.cuh"
#include "cuda_kernels.cuh"
#include "cuda_planes.cuh"
#include "cuda_small_planes.h"
#include "cuda_strips.h"

namespace torchgraft::depthwise::cuda {

template <typename T>
void input_grad(const T* output_grad, const T* weight, T* input_grad, const Geometry& geometry, Layout layout,
                cudaStream_t stream) {
  constexpr bool kTransposed = true;
  constexpr const T* kNoBias = nullptr;
  // float64 is for checking gradients, not for speed.
  if constexpr (!std::is_same_v<T, double>) {
    if (positions_fit_32(geometry)) {
      if (layout == Layout::contiguous && geometry.multiplier == 1) {
        if (serves_small_planes(geometry, is_aligned(output_grad, 16) && is_aligned(input_grad, 16))) {
          launch_small_planes(output_grad, weight, kNoBias, input_grad, geometry, kTransposed, stream);
          return;
        }
        if (serves_strips(geometry, kTransposed)) {
          launch_strips(output_grad, weight, kNoBias, input_grad, geometry, kTransposed, stream);
          return;
        }
        if (is_unit_step(geometry) && launch_large_kernel_planes<T, kTransposed>(
                                          output_grad, weight, kNoBias, input_grad, geometry, stream)) {
          return;
        }
      } else if (layout == Layout::channels_last &&
                 can_take_four_channels<T>(geometry, output_grad, input_grad)) {
        if (with_small_kernel(geometry, [&](auto kernel, auto stride) {
              using Rows = Stencil<kernel, stride, kTransposed, 2>;
              using Columns = Stencil<kernel, stride, kTransposed, 4>;
              launch_small_kernel_channels_last<T, Rows, Columns>(output_grad, weight, kNoBias, input_grad,
                                                                  geometry, stream);
            })) {
          return;
        }
        if (is_unit_step(geometry) && geometry.width.kernel <= kLargestKernelRow) {
          launch_large_kernel_channels_last<T, kTransposed>(output_grad, weight, kNoBias, input_grad,
                                                            geometry, stream);
          return;
        }
      }
    }
  }
  launch_direct<T, kTransposed>(output_grad, weight, kNoBias, input_grad, geometry, layout, stream);
}

template void input_grad(const double*, const double*, double*, const Geometry&, Layout, cudaStream_t);
template void input_grad(const float*, const float*, float*, const Geometry&, Layout, cudaStream_t);
template void input_grad(const Half*, const Half*, Half*, const Geometry&, Layout, cudaStream_t);
template void input_grad(const BFloat16*, const BFloat16*, BFloat16*, const Geometry&, Layout, cudaStream_t);

}  // namespace torchgraft::depthwise::cuda
