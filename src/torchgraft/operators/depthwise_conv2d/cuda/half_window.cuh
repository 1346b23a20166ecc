// One result of halves, tap by tap: what a product of matrices makes NaN, because it multiplies zeros with
// what lies outside a window, is computed again so. Stride and dilation 1.
#pragma once

#include "half_math.cuh"
#include "problem.h"
#include "rounded.cuh"

namespace torchgraft::depthwise::cuda {

struct HalfWindow {
  int source_height, source_width, result_height, result_width;
  int padding_y, padding_x;
  int kernel_height, kernel_width;
  bool flipped;  // the kernel is turned around
};

inline HalfWindow half_window(const Geometry& geometry, bool transposed) {
  const PassAxis height(geometry.height, transposed);
  const PassAxis width(geometry.width, transposed);
  return {height.source, width.source,  height.result, width.result, height.padding,
          width.padding, height.kernel, width.kernel,  transposed};
}

// `plane` is of the sources and `taps` of the result's channel.
template <typename T>
__device__ __forceinline__ float sum_inside_window(const HalfBits* plane, const Rounded<T>& taps, float start,
                                                   int y, int x, const HalfWindow& window) {
  using Math = HalfMath<T>;
  float sum = start;
  for (int row = 0; row < window.kernel_height; ++row) {
    const int source_y = y - window.padding_y + row;
    if (source_y < 0 || source_y >= window.source_height) continue;
    for (int column = 0; column < window.kernel_width; ++column) {
      const int source_x = x - window.padding_x + column;
      if (source_x < 0 || source_x >= window.source_width) continue;
      const int tap = row * window.kernel_width + column;
      const int last = window.kernel_height * window.kernel_width - 1;
      sum += taps[window.flipped ? last - tap : tap] *
             Math::to_float(plane[source_y * window.source_width + source_x]);
    }
  }
  return sum;
}

// The same, not inlined.
template <typename T>
__device__ __noinline__ float sum_of_window(const HalfBits* plane, Rounded<T> taps, float start, int y, int x,
                                            HalfWindow window) {
  return sum_inside_window<T>(plane, taps, start, y, x, window);
}

}  // namespace torchgraft::depthwise::cuda
