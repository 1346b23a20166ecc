// What the kernels of rows can compute at all: float32 and halves of sequences, images of one row in NCHW,
// with one kernel a channel.
#pragma once

#include "plan.h"

namespace torchgraft::depthwise::cuda {

// Rows of the whole tensor follow each other in memory.
inline bool supports_rows(const Problem& problem) {
  constexpr int64_t kMostTaps = 256;
  const Geometry& geometry = problem.geometry;
  const Extent& height = geometry.height;
  const bool is_row = height.input == 1 && height.output == 1 && height.kernel == 1 && height.padding == 0;
  return is_row && !problem.channels_last && !problem.is_float64() && geometry.multiplier == 1 &&
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

}  // namespace torchgraft::depthwise::cuda
