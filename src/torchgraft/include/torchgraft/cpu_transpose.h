// CPU kernels: the transpose of a square of vectors, in registers.
#pragma once

#include <utility>

#include "cpu.h"

namespace torchgraft {

template <typename V, int... kLane>
TORCHGRAFT_INLINE void interleave(const V& left, const V& right, V& low, V& high,
                                  std::integer_sequence<int, kLane...>) {
  constexpr int kLanes = sizeof...(kLane);
  low = __builtin_shufflevector(left, right, (kLane / 2 + kLane % 2 * kLanes)...);
  high = __builtin_shufflevector(left, right, (kLanes / 2 + kLane / 2 + kLane % 2 * kLanes)...);
}

// Lane j of vector i becomes lane i of vector j, in log2(lanes) shuffles a vector.
template <int kLanes, typename V>
TORCHGRAFT_INLINE void transpose(V (&square)[kLanes]) {
  TORCHGRAFT_UNROLL for (int stage = 1; stage < kLanes; stage *= 2) {
    V next[kLanes];
    TORCHGRAFT_UNROLL for (int i = 0; i < kLanes / 2; ++i) {
      interleave(square[i], square[i + kLanes / 2], next[2 * i], next[2 * i + 1],
                 std::make_integer_sequence<int, kLanes>());
    }
    TORCHGRAFT_UNROLL for (int i = 0; i < kLanes; ++i) square[i] = next[i];
  }
}

}  // namespace torchgraft
