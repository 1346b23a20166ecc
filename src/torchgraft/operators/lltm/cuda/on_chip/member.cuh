// Who a thread is in its block and in its group of blocks, on chip.
#pragma once

#include "../groups.cuh"
#include "exchange.cuh"

namespace torchgraft::lltm::cuda {

// A warp computes the same units of some rows of the batch. Indices within a step fit 32 bits.
class GroupMember {
 protected:
  // `is_reverse`: whether the recurrence begins with the last step. A block has `block_units` units.
  template <typename Pass>
  __device__ __forceinline__ GroupMember(const Pass& pass, bool is_reverse, int group_blocks, int group_rows,
                                         int block_units)
      : units_(static_cast<int>(pass.units)),
        first_(is_reverse ? (pass.steps - 1) * pass.batch * pass.units : 0),
        stride_((is_reverse ? -1 : 1) * pass.batch * pass.units),
        group_blocks_(group_blocks),
        group_rows_(group_rows),
        rank_(static_cast<int>(blockIdx.x) % group_blocks),
        first_row_(static_cast<int>(blockIdx.x) / group_blocks * group_rows),
        rows_(min(group_rows, static_cast<int>(pass.batch) - first_row_)),
        lane_(static_cast<int>(threadIdx.x) % 32),
        warp_(static_cast<int>(threadIdx.x) / 32),
        own_row_(warp_ / (block_units / kWarpUnits)),
        column_(warp_ % (block_units / kWarpUnits) * kWarpUnits + lane_),
        unit_(rank_ * block_units + column_) {}

  __device__ __forceinline__ bool has_unit() const { return unit_ < units_; }
  // The index of this thread's unit of a row in a tensor of one number a unit, from the step's first number
  // on.
  __device__ __forceinline__ int state_of(int row) const { return (first_row_ + row) * units_ + unit_; }
  // The index of its first gate in a tensor of three gates a unit.
  __device__ __forceinline__ int gate_of(int row) const { return 3 * state_of(row) - 2 * unit_; }

  // Copies the three gates of a row to shared memory, `pitch` apart; `first` is the first number of a step.
  __device__ __forceinline__ void copy_gates_async(float* to, int pitch, const float* gates, int64_t first,
                                                   int row) const {
    const float* from = gates + 3 * first + gate_of(row);
#pragma unroll
    for (int g = 0; g < 3; ++g) copy_async<4>(to + g * pitch, from + g * units_);
  }
  __device__ __forceinline__ void store_gates(float* gates, int64_t first, int row,
                                              const float (&values)[3]) const {
    float* to = gates + 3 * first + gate_of(row);
#pragma unroll
    for (int g = 0; g < 3; ++g) to[g * units_] = values[g];
  }

  int units_;
  int64_t first_;   // the index of the first step's first number in a tensor of one number a unit
  int64_t stride_;  // from a step's to the next one's
  int group_blocks_;
  int group_rows_;
  int rank_;  // of this block in the group
  int first_row_;
  int rows_;  // of this group
  int lane_;
  int warp_;
  int own_row_;  // the first of those whose units this warp computes
  int column_;   // of this thread's unit among the block's
  int unit_;
};

}  // namespace torchgraft::lltm::cuda
