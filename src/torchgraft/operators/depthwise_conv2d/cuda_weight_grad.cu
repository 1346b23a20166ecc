// depthwise_conv2d, weight gradient: which kernel serves which geometry. Two passes
// (cuda_weight_grad_sums.cuh): blocks sum chunks of the batch into the workspace, then the chunks of each
// weight are added up, in a fixed order. The first passes, with what a block and a thread own and what they
// are predicted to reach, are in cuda_weight_grad_planes.cuh (NCHW), cuda_weight_grad_channels_last.cuh
// (NHWC) and, of sizes that do not fit 32 bits, cuda_weight_grad_direct.cuh. What these leave is done by
// cuda_weight_grad_general.cu.

#include "cuda_kernels.cuh"
#include "cuda_weight_grad_channels_last.cuh"
#include "cuda_weight_grad_direct.cuh"
#include "cuda_weight_grad_general.h"
#include "cuda_weight_grad_planes.cuh"

namespace torchgraft::depthwise::cuda {
namespace {

// Runs the first pass and returns the number of chunks that it wrote; zero where no specialised kernel
// serves.
template <typename T>
int partial_sums(const T* output_grad, const T* input, accumulate_t<T>* partial, const Geometry& geometry,
                 Layout layout, cudaStream_t stream) {
  // float64 is for checking gradients, not for speed.
  if constexpr (!std::is_same_v<T, double>) {
    if (positions_fit_32(geometry)) {
      int chunks = 0;
      if (layout == Layout::contiguous) {
        if (with_small_kernel(geometry, [&](auto kernel, auto stride) {
              using Patch = Stencil<kernel, stride, false, 4>;
              chunks =
                  launch_small_weight_grad_planes<T, Patch>(output_grad, input, partial, geometry, stream);
            })) {
          return chunks;
        }
        if (is_unit_step(geometry)) {
          chunks = launch_large_weight_grad_planes(output_grad, input, partial, geometry, stream);
          if (chunks > 0) return chunks;
        }
      } else if (can_take_four_channels<T>(geometry, output_grad, input)) {
        if (with_small_kernel(geometry, [&](auto kernel, auto stride) {
              constexpr int kTapRows = kernel == 3 ? 3 : 1;
              using Patch = TapPatch<kTapRows, kernel, stride, kChannels>;
              chunks = launch_weight_grad_channels_last<T, int, Patch>(output_grad, input, partial, geometry,
                                                                       stream);
            })) {
          return chunks;
        }
        if (is_unit_step(geometry)) {
          using Patch = TapPatch<1, 8, 1, kChannels>;
          return launch_weight_grad_channels_last<T, int, Patch>(output_grad, input, partial, geometry,
                                                                 stream);
        }
      }
    }
  }
  return 0;
}

}  // namespace

int64_t weight_grad_workspace(const Geometry& geometry, Layout layout) {
  return most_chunks(geometry, layout) * geometry.output_channels() * geometry.taps();
}

template <typename T>
void weight_grad(const T* output_grad, const T* input, T* weight_grad, accumulate_t<T>* workspace,
                 const Geometry& geometry, Layout layout, cudaStream_t stream) {
  int chunks = partial_sums(output_grad, input, workspace, geometry, layout, stream);
  if (chunks == 0 && serves_weight_grad_general(geometry)) {
    launch_weight_grad_general(output_grad, input, weight_grad, workspace, geometry, layout, stream);
    return;
  }
  if (chunks == 0) {
    chunks = launch_weight_grad_direct(output_grad, input, workspace, geometry, layout, stream);
  }
  launch_sum_chunks(workspace, weight_grad, geometry, chunks, stream);
}

template void weight_grad(const double*, const double*, double*, double*, const Geometry&, Layout,
                          cudaStream_t);
template void weight_grad(const float*, const float*, float*, float*, const Geometry&, Layout, cudaStream_t);
template void weight_grad(const Half*, const Half*, Half*, float*, const Geometry&, Layout, cudaStream_t);
template void weight_grad(const BFloat16*, const BFloat16*, BFloat16*, float*, const Geometry&, Layout,
                          cudaStream_t);

}  // namespace torchgraft::depthwise::cuda
