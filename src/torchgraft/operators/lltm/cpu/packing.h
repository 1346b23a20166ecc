// How a matrix becomes panels of vectors, in the order in which a product on CPU reads it.
#pragma once

#include <torchgraft/cpu_transpose.h>

#include "kernels.h"
#include "unit_math.h"

namespace torchgraft::lltm::cpu {

// packed[k][0][l] = matrix[k][l] for a vector of columns, where packed[k] is three vectors; behind the last
// column are zeros. Columns that lie in memory one after the other, each whole, are turned in registers: one
// element at a time takes as long as some ten steps of a sequence of few rows.
template <typename T, int kBytes>
TORCHGRAFT_INLINE void pack_vector(const Columns<T>& matrix, int64_t count, int64_t depth, T* packed) {
  using M = Math<T, kBytes>;
  using V = typename M::V;
  constexpr int64_t kStep = 3 * M::kLanes;
  int64_t k = 0;
  if (matrix.column_step == 1) {
    for (; k < depth; ++k) {
      V some;
      M::load_some(some, matrix.first + k * matrix.depth_step, count);
      store(some, packed + k * kStep);
    }
  } else if (count >= M::kLanes) {
    for (; k + M::kLanes <= depth; k += M::kLanes) {
      V square[M::kLanes];
      TORCHGRAFT_UNROLL
      for (int l = 0; l < M::kLanes; ++l) load(square[l], matrix.first + l * matrix.column_step + k);
      transpose(square);
      TORCHGRAFT_UNROLL
      for (int l = 0; l < M::kLanes; ++l) store(square[l], packed + (k + l) * kStep);
    }
  }
  for (; k < depth; ++k) {
    for (int64_t l = 0; l < M::kLanes; ++l) {
      packed[k * kStep + l] = l < count ? matrix.first[k + l * matrix.column_step] : T(0);
    }
  }
}

}  // namespace torchgraft::lltm::cpu
