// How slide_columns and slide_columns_weight_grad share out rows and channels: host code alone, so that tests
// ask it on any machine.
#pragma once

#include "../supports.h"

namespace torchgraft::depthwise::cuda {

constexpr int kColumnThreads = 128;
constexpr int kColumnTaps = 3;  // of a side

// As many rows as make least work of all: threads take units in turns, of which each takes as long as its
// rows, those that it reads beside them, and its beginning.
inline int column_rows_of_range(int64_t units_per_range, int rows, int64_t at_once) {
  constexpr int kMostTurns = 4;
  constexpr int kRowsToBegin = 3;
  int best = rows;
  int64_t best_cost = 0;
  const int64_t fewest = ceil_divide(units_per_range, at_once);
  for (int64_t turns = fewest; turns < fewest + kMostTurns; ++turns) {
    const int64_t ranges = std::min<int64_t>(rows, at_once * turns / units_per_range);
    const int of_range = static_cast<int>(ceil_divide<int64_t>(rows, ranges));
    const int64_t cost = turns * (of_range + kColumnTaps - 1 + kRowsToBegin);
    if (best_cost == 0 || cost < best_cost) {
      best = of_range;
      best_cost = cost;
    }
  }
  return best;
}

// How a block's threads are dealt: lanes along the channels, of which several blocks have a slice each, and
// so many units at a time.
struct ColumnBlock {
  int lanes, slices, strips;

  int warps() const { return ceil_divide(lanes * strips, 32); }
};

// The widest whose threads almost all have work: slices may differ in length, and warps may not be whole.
inline ColumnBlock column_block(int groups) {
  constexpr int kLeastLanes = 16;  // of several slices: so that a pixel is read in long runs
  constexpr double kGain = 1.03;   // of narrower slices
  ColumnBlock best = {};
  double best_share = 0;
  for (int slices = ceil_divide(groups, kColumnThreads); slices <= groups; ++slices) {
    const int lanes = ceil_divide(groups, slices);
    if (lanes < kLeastLanes && best.lanes > 0) break;
    const ColumnBlock block = {lanes, ceil_divide(groups, lanes), kColumnThreads / lanes};
    const double share = static_cast<double>(groups * block.strips) / (block.slices * block.warps() * 32);
    if (best.lanes == 0 || share > kGain * best_share) {
      best = block;
      best_share = share;
    }
  }
  return best;
}

}  // namespace torchgraft::depthwise::cuda
