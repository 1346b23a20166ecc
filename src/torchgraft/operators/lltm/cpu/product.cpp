// A product of matrices on CPU, in float and double: what a sequence or a cell multiplies besides its states.
//
// One factor is packed into panels, in the order in which it is read, a part of its depth at a time: a part
// lies in the second-level cache while all rows are multiplied by it, and nothing is allocated.

#include <algorithm>

#include "kernels.h"
#include "packing.h"
#include "tiles.h"

namespace torchgraft::lltm::cpu {
namespace {

// As deep is a part of a panel at most.
constexpr int64_t kDepth = 512;

// packed[k][l] = matrix[k][l] for the columns of one panel; behind the last column are zeros.
template <typename T, int kBytes>
TORCHGRAFT_INLINE void pack_panel(const Columns<T>& matrix, int64_t count, int64_t depth, T* packed) {
  constexpr int64_t kLanes = Math<T, kBytes>::kLanes;
  for (int64_t first = 0; first < 3 * kLanes; first += kLanes) {
    const Columns<T> some = {matrix.first + first * matrix.column_step, matrix.depth_step,
                             matrix.column_step};
    pack_vector<T, kBytes>(some, count - first, depth, packed + first);
  }
}

// packed[column / width][k][column % width] = matrix[k][column].
template <typename T, int kBytes>
TORCHGRAFT_INLINE void pack_panels(const Columns<T>& matrix, int64_t count, int64_t depth, T* packed) {
  constexpr int64_t kWidth = 3 * Math<T, kBytes>::kLanes;
  for (int64_t column = 0; column < count; column += kWidth) {
    pack_panel<T, kBytes>({matrix.first + column * matrix.column_step, matrix.depth_step, matrix.column_step},
                          count - column, depth, packed + column * depth);
  }
}

// Adds what lies in memory to the sums of a row, if it is to be added, and writes them there.
template <typename T, int kBytes>
TORCHGRAFT_INLINE void store_sums(typename Math<T, kBytes>::V (&sums)[3], T* to, int64_t count, bool adds) {
  using M = Math<T, kBytes>;
  for (int v = 0; v < 3; ++v) {
    if (adds) {
      typename M::V before;
      M::load_some(before, to + v * M::kLanes, count - v * M::kLanes);
      sums[v] += before;
    }
    M::store_some(sums[v], to + v * M::kLanes, count - v * M::kLanes);
  }
}

template <typename T, int kBytes>
TORCHGRAFT_INLINE void multiply_share(const Product<T>& product, const Share& share) {
  constexpr int64_t kWidth = 3 * Math<T, kBytes>::kLanes;
  alignas(64) T packed[kDepth * kWidth];
  const int64_t parts = (product.depth + kDepth - 1) / kDepth;
  const int64_t length = (product.depth + parts - 1) / parts;
  // Of little depth, several panels are packed: then what is written of a row lies together.
  const int64_t width = kDepth / length * kWidth;
  for (int64_t begin = share.first_unit; begin < share.end_unit; begin += width) {
    const int64_t end = std::min(share.end_unit, begin + width);
    for (int64_t first = 0; first < product.depth; first += length) {
      const int64_t depth = std::min(length, product.depth - first);
      const Columns<T>& right = product.right;
      pack_panels<T, kBytes>({right.first + first * right.depth_step + begin * right.column_step,
                              right.depth_step, right.column_step},
                             end - begin, depth, packed);
      for (int64_t row = share.first_row; row < share.end_row; row += kBlock) {
        const int64_t count = std::min(kBlock, share.end_row - row);
        const Rows<T>& left = product.left;
        for (int64_t column = begin; column < end; column += kWidth) {
          Sums<T, kBytes> sums;
          multiply<T, kBytes>(
              {left.first + row * left.row_step + first * left.depth_step, left.row_step, left.depth_step},
              count, packed + (column - begin) * depth, depth, sums);
          for (int64_t r = 0; r < count; ++r) {
            T* to = product.result + (row + r) * product.columns + column;
            store_sums<T, kBytes>(sums[r], to, end - column, first > 0);
          }
        }
      }
    }
  }
}

}  // namespace

LLTM_CLONES(multiply, float, multiply_share, (const Product<float>& product, const Share& share), product,
            share)
LLTM_CLONES(multiply, double, multiply_share, (const Product<double>& product, const Share& share), product,
            share)
LLTM_CLONES(pack, float, pack_panels,
            (const Columns<float>& matrix, int64_t count, int64_t depth, float* packed), matrix, count, depth,
            packed)
LLTM_CLONES(pack, double, pack_panels,
            (const Columns<double>& matrix, int64_t count, int64_t depth, double* packed), matrix, count,
            depth, packed)

}  // namespace torchgraft::lltm::cpu
