// How the kernels of strips cut rows into stretches, and strips into chunks. Host code alone, so that every
// limit is tested without a GPU.
#pragma once

#include <torchgraft/numbers.h>

#include <algorithm>
#include <cstdint>

#include "../../sizes.h"

namespace torchgraft::depthwise::cuda {

constexpr int kStripThreads = 128;
constexpr int kLanes = 32;  // of a warp

// Rows of results of a stretch, if there are `warps_of_stretch` warps in each stretch of whole rows. A
// stretch reads kernel - 1 rows that another one reads too. It should be long for that, but not so long that
// warps are too few to keep the device busy, or all of them end at once.
inline int strip_rows(int rows, int kernel, int64_t warps_of_stretch, int multiprocessors) {
  constexpr int64_t kBusyWarps = 12, kManyWarps = 128;  // of a multiprocessor
  const int64_t busy =
      std::min<int64_t>(ceil_divide(multiprocessors * kBusyWarps, warps_of_stretch), std::max(rows / 4, 1));
  const int64_t many = std::min<int64_t>(ceil_divide(multiprocessors * kManyWarps, warps_of_stretch),
                                         std::max(rows / (8 * (kernel - 1)), 1));
  return ceil_divide(rows, static_cast<int>(std::max(busy, many)));
}

struct StripsWeightGradPlan {
  int rows;           // of results of a stretch
  int64_t stretches;  // of an image's rows
  int64_t chunks;     // blocks that share the strips of a channel
};

// `strips` strips of whole height a channel, and at most `most_chunks` chunks. One chunk saves the second
// pass, which takes longer than a few dozen rows of a warp.
inline StripsWeightGradPlan plan_strips_weight_grad(const Geometry& geometry, int64_t strips,
                                                    int strips_of_warp, int64_t most_chunks,
                                                    int multiprocessors) {
  constexpr int64_t kWarps = kStripThreads / kLanes;
  constexpr int64_t kFewRows = 24;
  constexpr int64_t kBlocksOfMultiprocessor = 16;
  const int rows = static_cast<int>(geometry.height.output);
  const auto rows_for = [&](int64_t groups) {
    const int64_t stretches = std::clamp<int64_t>(groups * strips_of_warp / strips, 1, std::max(rows / 4, 1));
    return ceil_divide(rows, static_cast<int>(stretches));
  };
  const int64_t rows_of_warp = ceil_divide<int64_t>(strips * rows, strips_of_warp * kWarps);
  StripsWeightGradPlan plan = {rows, 1, 1};
  if (rows_of_warp <= kFewRows) {
    plan.rows = rows_for(kWarps);
  } else {
    const int64_t wanted =
        ceil_divide<int64_t>(multiprocessors * kBlocksOfMultiprocessor, geometry.output_channels());
    plan.rows = rows_for(wanted * kWarps);
    plan.chunks = std::min(wanted, most_chunks);
  }
  plan.stretches = ceil_divide(rows, plan.rows);
  plan.chunks =
      std::clamp<int64_t>(ceil_divide(strips * plan.stretches, kWarps * strips_of_warp), 1, plan.chunks);
  return plan;
}

}  // namespace torchgraft::depthwise::cuda
