// Who a thread is where a block has some rows of the batch, and all of weight_hh in its registers.
//
// A row has as many threads as units, times kParts: neighbours share out the depth of a unit's products, and
// add up what they have by shuffles. Of so many rows as there are parts each of them then has one, whose
// units it computes; of one row all compute the same. A step has one barrier, since what threads give each
// other lies in shared memory twice.
#pragma once

#include <torchgraft/cuda.cuh>

#include <type_traits>

#include "../kernels.h"
#include "../unit.cuh"
#include "../weights.cuh"

namespace torchgraft::lltm::cuda {

template <typename S, int kRows>
class FewUnitsMember {
 protected:
  // Rows whose units a thread computes.
  static constexpr int kOwn = kRows < S::kParts ? 1 : kRows / S::kParts;
  static constexpr bool kAlike = kRows < S::kParts;
  static_assert(kAlike ? kRows == 1 : kRows % S::kParts == 0, "all threads have as many rows, or all of one");

  // `is_reverse`: whether the recurrence begins with the last step.
  template <typename Pass>
  __device__ __forceinline__ FewUnitsMember(const Pass& pass, bool is_reverse)
      : steps_(static_cast<int>(pass.steps)),
        units_(static_cast<int>(pass.units)),
        first_(is_reverse ? (pass.steps - 1) * pass.batch * pass.units : 0),
        stride_((is_reverse ? -1 : 1) * pass.batch * pass.units),
        part_(static_cast<int>(threadIdx.x) % S::kParts),
        unit_(static_cast<int>(threadIdx.x) / S::kParts),
        first_row_(static_cast<int>(blockIdx.x) * kRows),
        rows_(min(kRows, static_cast<int>(pass.batch) - first_row_)) {}

  // A row of the block that this thread computes.
  static __device__ __forceinline__ int row_of(int part, int own) {
    return kAlike ? 0 : own * S::kParts + part;
  }
  __device__ __forceinline__ int row_of(int own) const { return row_of(part_, own); }
  __device__ __forceinline__ bool has_unit() const { return unit_ < units_; }
  __device__ __forceinline__ bool has(int own) const { return has_unit() && row_of(own) < rows_; }
  // Whether this thread is the one that stores it.
  __device__ __forceinline__ bool stores(int own) const { return has(own) && (!kAlike || part_ == 0); }

  // The index of this thread's unit of a row in a tensor of one number a unit, from the step's first number
  // on; and that of its first gate in a tensor of three gates a unit. A thread without a unit or a row reads
  // another's, so that loads need no branch.
  __device__ __forceinline__ int state_of(int own) const {
    return (first_row_ + min(row_of(own), rows_ - 1)) * units_ + near_unit();
  }
  __device__ __forceinline__ int gate_of(int own) const { return 3 * state_of(own) - 2 * near_unit(); }
  __device__ __forceinline__ int near_unit() const { return min(unit_, units_ - 1); }
  // How far a row of this thread's is from its first one, in a tensor of one number a unit.
  __device__ __forceinline__ int next_row(int own) const {
    return own == 0 ? 0 : state_of(own) - state_of(0);
  }

  // Where a unit's number lies among those of all units, in bytes.
  static __device__ __forceinline__ uint32_t place_of(int unit) {
    return static_cast<uint32_t>(unit + unit / S::kPart * 4) * 4;
  }

  static __device__ __forceinline__ void meet() {
    if constexpr (S::kBlock == 32) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }

  // What all parts have for the rows that this thread computes.
  template <int kSums>
  __device__ __forceinline__ void add_up(float (&own)[kOwn][kSums], const float (&sums)[kRows][kSums]) const {
    static_assert(S::kParts <= 2);
#pragma unroll
    for (int o = 0; o < kOwn; ++o) {
#pragma unroll
      for (int g = 0; g < kSums; ++g) {
        if constexpr (S::kParts == 1) {
          own[o][g] = sums[o][g];
        } else if constexpr (kAlike) {
          own[o][g] = sums[0][g] + __shfl_xor_sync(0xffffffffu, sums[0][g], 1);
        } else {
          const float even = sums[row_of(0, o)][g];
          const float odd = sums[row_of(1, o)][g];
          own[o][g] = (part_ == 0 ? even : odd) + __shfl_xor_sync(0xffffffffu, part_ == 0 ? odd : even, 1);
        }
      }
    }
  }

  int steps_;
  int units_;
  int64_t first_;   // the index of the first step's first number in a tensor of one number a unit
  int64_t stride_;  // from a step's to the next one's
  int part_;
  int unit_;
  int first_row_;
  int rows_;  // of this block
};

// Calls `function` with the rows of a block, as a type.
template <typename S, typename Function>
void with_few_units_rows(const Problem& problem, const Function& function) {
  if (few_units_rows<S>(problem) == 1) {
    function(std::integral_constant<int, 1>{});
  } else {
    function(std::integral_constant<int, S::kMostRowsOfBlock>{});
  }
}

}  // namespace torchgraft::lltm::cuda
