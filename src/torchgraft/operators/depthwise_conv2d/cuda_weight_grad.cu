// depthwise_conv2d, weight gradient: which kernel serves which geometry. Two passes
// (cuda_weight_grad_sums.cuh): blocks sum chunks of the batch into the workspace, then the chunks of each
// weight are added up, in a fixed order. The first passes, with what a block and a thread own and what they
// are predicted to reach, are in cuda_weight_grad_planes.cuh (NCHW), cuda_weight_grad_channels_last.cuh
// (NHWC) and cuda_weight_grad_direct.cuh (what is left of NCHW).

#include "cuda_kernels.cuh"
#include "cuda_small_planes.h"
#include "cuda_weight_grad_channels_last.cuh"
#include "cuda_weight_grad_direct.cuh"
#include "cuda_weight_grad_planes.cuh"
#include "cuda_weight_grad_strips.h"

namespace torchgraft::depthwise::cuda {
namespace {

// Runs the first pass and returns the number of chunks that it wrote.
template <typename T>
int partial_sums(const T* output_grad, const T* input, accumulate_t<T>* partial, const Geometry& geometry,
                 Layout layout, cudaStream_t stream) {
  const bool fits_32 = positions_fit_32(geometry);
  // float64 is for checking gradients, not for speed.
  if constexpr (!std::is_same_v<T, double>) {
    if (fits_32) {
      int chunks = 0;
      if (layout == Layout::contiguous) {
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
  constexpr int64_t kMostPixels = int64_t{1} << 30;
  const bool pixels_fit_32 = fits_32 && geometry.batch * geometry.output_pixels() < kMostPixels &&
                             geometry.input_pixels() < kMostPixels;
  if (layout == Layout::contiguous) {
    if (pixels_fit_32)
      return launch_weight_grad_direct<T, int>(output_grad, input, partial, geometry, stream);
    return launch_weight_grad_direct<T, int64_t>(output_grad, input, partial, geometry, stream);
  }
  using Patch = TapPatch<1, 4, 0, 1>;
  if (pixels_fit_32) {
    return launch_weight_grad_channels_last<T, int, Patch>(output_grad, input, partial, geometry, stream);
  }
  return launch_weight_grad_channels_last<T, int64_t, Patch>(output_grad, input, partial, geometry, stream);
}

}  // namespace

int64_t weight_grad_workspace(const Geometry& geometry, Layout layout) {
  return most_chunks(geometry, layout) * geometry.output_channels() * geometry.taps();
}

template <typename T>
void weight_grad(const T* output_grad, const T* input, T* weight_grad, accumulate_t<T>* workspace,
                 const Geometry& geometry, Layout layout, cudaStream_t stream) {
  if constexpr (!std::is_same_v<T, double>) {
    const bool aligned = is_aligned(output_grad, 16) && is_aligned(input, 16);
    if (layout == Layout::contiguous && serves_weight_grad_small_planes(geometry, aligned, sizeof(T))) {
      launch_weight_grad_small_planes(output_grad, input, weight_grad, workspace, geometry, stream);
      return;
    }
    if (layout == Layout::contiguous && serves_weight_grad_strips(geometry)) {
      launch_weight_grad_strips(output_grad, input, weight_grad, workspace, geometry, stream);
      return;
    }
  }
  const int chunks = partial_sums(output_grad, input, workspace, geometry, layout, stream);
  launch_sum_chunks(workspace, weight_grad, geometry, chunks, stream);
}

template void weight_grad(const double*, const double*, double*, double*, const Geometry&, Layout,
                          cudaStream_t);
template void weight_grad(const float*, const float*, float*, float*, const Geometry&, Layout, cudaStream_t);
template void weight_grad(const Half*, const Half*, Half*, float*, const Geometry&, Layout, cudaStream_t);
template void weight_grad(const BFloat16*, const BFloat16*, BFloat16*, float*, const Geometry&, Layout,
                          cudaStream_t);

}  // namespace torchgraft::depthwise::cuda
