// What the kernels of tiles can compute at all: float32 and halves in NCHW with stride 1, from tiles in
// shared memory. The sizes that these kernels and their limits share are here too.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../problem.h"

namespace torchgraft::depthwise::cuda {

// Rows of tiles in shared memory are an odd number of four elements long (cut_rows), so that accesses to four
// elements at the same place of neighbouring rows lie in different banks.
constexpr int64_t tile_pitch(int64_t columns) { return std::max<int64_t>(columns - 4 + 7, 0) / 8 * 8 + 4; }

constexpr int64_t kLargeKernelElements = 48 * 1024 / sizeof(float);  // that fit shared memory
constexpr int kStrip = 8;                                            // results of a thread, along a row
constexpr int kTapGroup = 4;                                         // taps that it uses at a time
constexpr int kTapsOfThread = 8;  // in one row of the kernel, in the weight gradient
constexpr int kPixelsAtATime = 4;

inline bool supports_tiles(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  return !problem.channels_last && !problem.is_float64() && is_unit_step(geometry) &&
         positions_fit_32(geometry) && geometry.taps() <= kLargeKernelElements;
}

// All taps fit shared memory beside the sources of the smallest tile, one strip of results.
inline bool supports_tiles_correlate(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  const int64_t row_taps = round_up(geometry.width.kernel, kTapGroup);
  return supports_tiles(problem) &&
         geometry.height.kernel * (tile_pitch(kStrip + row_taps) + row_taps) <= kLargeKernelElements;
}

// The smallest tile of the input and that of the output gradient fit shared memory.
inline bool supports_tiles_weight_grad(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  const int64_t row_taps = round_up(geometry.width.kernel, kTapsOfThread);
  return supports_tiles(problem) &&
         geometry.height.kernel * tile_pitch(kPixelsAtATime + row_taps) + kPixelsAtATime <=
             kLargeKernelElements;
}

}  // namespace torchgraft::depthwise::cuda
