// How a patch of neighbouring results and the window of sources under it belong together, along one
// direction, where kernel size and stride are known to the compiler and dilation is one.
//
// The forward pass gathers:         result[r] = sum over taps of weight[tap] * source[r * stride - padding +
// tap]. The input gradient is transposed: result[s * stride - padding + tap] += weight[tap] * source[s]. It
// is gathered too: a thread owns the results and adds each source of its window to those that the source
// reaches. To know at compile time which ones, patches begin where result + padding is a multiple of the
// stride, so that the first patch may begin before the image.
#pragma once

#include <torchgraft/dispatch.h>
#include <torchgraft/cuda.cuh>

#include <algorithm>
#include <type_traits>

#include "../geometry.h"

namespace torchgraft::depthwise::cuda {

template <int kKernelSize, int kStrideSize, bool kIsTransposed, int kPatchSize>
struct Stencil {
  static constexpr int kKernel = kKernelSize;
  static constexpr int kStride = kStrideSize;
  static constexpr bool kTransposed = kIsTransposed;
  static constexpr int kPatch = kPatchSize;  // neighbouring results of a thread
  static_assert(!kTransposed || kPatch % kStride == 0,
                "the sources of every patch must begin at the same phase");

  // Sources in front of the one that the first result's tap 0 belongs to.
  static constexpr int kBack = kTransposed ? (kKernel - 1) / kStride : 0;
  // Sources that a patch reads, and how far apart two patches' windows begin.
  static constexpr int kWindow =
      kTransposed ? kBack + (kPatch - 1) / kStride + 1 : (kPatch - 1) * kStride + kKernel;
  static constexpr int kStep = kTransposed ? kPatch / kStride : kPatch * kStride;

  // The tap that joins a result of the patch with a source of the window; outside [0, kKernel) they do not
  // meet.
  static constexpr int tap(int result, int source) {
    return kTransposed ? result - (source - kBack) * kStride : source - result * kStride;
  }

  static constexpr int patches(int results, int padding) {
    return ceil_divide(results + (kTransposed ? padding % kStride : 0), kPatch);
  }
  // Where the first patch begins among the results, and its window among the sources.
  static constexpr int first_result(int padding) { return kTransposed ? -(padding % kStride) : 0; }
  static constexpr int first_source(int padding) {
    return kTransposed ? padding / kStride - kBack : -padding;
  }
};

// Calls `function` with kernel size and stride as compile-time constants; has_small_kernel(geometry).
template <typename Function>
void with_small_kernel(const Geometry& geometry, Function&& function) {
  const auto with_stride = [&](auto kernel) {
    if (geometry.height.stride == 1) {
      function(kernel, std::integral_constant<int, 1>{});
    } else {
      function(kernel, std::integral_constant<int, 2>{});
    }
  };
  switch (geometry.height.kernel) {
    case 3:
      return with_stride(std::integral_constant<int, 3>{});
    case 5:
      return with_stride(std::integral_constant<int, 5>{});
    default:
      return with_stride(std::integral_constant<int, 7>{});
  }
}

}  // namespace torchgraft::depthwise::cuda
