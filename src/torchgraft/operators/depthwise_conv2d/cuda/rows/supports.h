// What the kernels of rows can compute at all: float32 and halves of sequences, images of one row, with one
// kernel a channel.
#pragma once

#include "nhwc_plan.h"
#include "plan.h"

namespace torchgraft::depthwise::cuda {

inline bool is_row(const Geometry& geometry) {
  const Extent& height = geometry.height;
  return height.input == 1 && height.output == 1 && height.kernel == 1 && height.padding == 0;
}

// Rows of the whole tensor follow each other in memory.
inline bool supports_rows(const Problem& problem) {
  constexpr int64_t kMostTaps = 256;
  const Geometry& geometry = problem.geometry;
  return is_row(geometry) && !problem.channels_last && !problem.is_float64() && geometry.multiplier == 1 &&
         geometry.width.kernel <= kMostTaps && positions_fit_32(geometry);
}

inline bool is_row_of_unit_step(const Geometry& geometry) {
  return geometry.width.stride == 1 && geometry.width.dilation == 1;
}

// Rows of sources and of results begin equally far behind a boundary of sixteen bytes, and a result reads no
// further than its neighbours' chunks.
inline bool supports_rows_stream(const Problem& problem) {
  constexpr int64_t kMostChunks = int64_t{1} << 30;
  const Geometry& geometry = problem.geometry;
  const Extent& width = geometry.width;
  if (!supports_rows(problem) || !is_row_of_unit_step(geometry)) return false;
  const int64_t chunks =
      stream_chunks(static_cast<int>(width.input), kStreamOwnLeast, kRowVectorBytes / problem.element_bytes);
  return width.kernel <= kStreamTaps && width.input == width.output && width.padding < width.kernel &&
         problem.alignment == kRowVectorBytes && geometry.batch * geometry.channels * chunks <= kMostChunks;
}

inline bool supports_rows_window(const Problem& problem) {
  return supports_rows(problem) && is_row_of_unit_step(problem.geometry);
}

// An input gradient with a stride and a dilation would ask of every tap whether it meets a source.
inline bool supports_rows_spread(const Problem& problem) {
  const Extent& width = problem.geometry.width;
  return supports_rows(problem) && !is_row_of_unit_step(problem.geometry) &&
         width.stride <= kSpreadMostStride &&
         !(problem.transposed && width.stride > 1 && width.dilation > 1) &&
         plan_rows_spread(width, problem.transposed, problem.element_bytes).shared_bytes <=
             kSpreadSharedBytes;
}

inline bool supports_rows_weight_grad(const Problem& problem) {
  const Extent& width = problem.geometry.width;
  return supports_rows(problem) && width.stride <= kSpreadMostStride &&
         plan_rows_weight_grad(width, problem.geometry.batch, problem.element_bytes).shared_bytes <=
             kSpreadSharedBytes;
}

// In NHWC: one kernel for any stride and any dilation, as far as 32 bits count the sources of a thread.
inline bool supports_rows_nhwc(const Problem& problem) {
  constexpr int64_t kMoreTaps = 8, kMostStride = 1 << 10, kMostDilation = 1 << 13;
  const Geometry& geometry = problem.geometry;
  return problem.channels_last && is_row(geometry) && !problem.is_float64() && geometry.multiplier == 1 &&
         geometry.taps() <= kPixelMostTaps && geometry.width.stride <= kMostStride &&
         geometry.width.dilation <= kMostDilation && offsets_fit_32(geometry, kMoreTaps);
}

inline bool supports_rows_nhwc_weight_grad(const Problem& problem) {
  constexpr int64_t kMostPixels = int64_t{1} << 30;
  return supports_rows_nhwc(problem) &&
         problem.geometry.batch * problem.geometry.output_pixels() < kMostPixels;
}

}  // namespace torchgraft::depthwise::cuda
