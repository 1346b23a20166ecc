// What the kernels of strips can compute at all: float32 and halves in NCHW, in strips that slide down the
// image in registers.
#pragma once

#include <cstdint>

#include "../problem.h"

namespace torchgraft::depthwise::cuda {

// Whether 32 bits count the rows of all strips, which are at least kLeastStrip results wide.
inline bool strips_fit_32(int64_t planes, int64_t rows, int64_t columns) {
  constexpr int64_t kLimit = int64_t{1} << 30;
  constexpr int64_t kLeastStrip = 16;
  return planes * (columns / kLeastStrip + 1) < kLimit / (rows + 1);
}

inline bool supports_strips_correlate(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  return !problem.channels_last && !problem.is_float64() && positions_fit_32(geometry) &&
         has_small_kernel(geometry) && !(problem.transposed && geometry.multiplier > 1) &&
         strips_fit_32(geometry.batch * geometry.output_channels(), problem.result(geometry.height),
                       problem.result(geometry.width));
}

inline bool supports_strips_weight_grad(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  return !problem.channels_last && !problem.is_float64() && positions_fit_32(geometry) &&
         has_small_kernel(geometry) &&
         strips_fit_32(geometry.batch, geometry.height.output, geometry.width.output);
}

}  // namespace torchgraft::depthwise::cuda
