// CPU kernels: products of small matrices inside a kernel, on the calling thread.
//
// A call of PyTorch's matrix product costs microseconds, allocates its result, and may start threads. Inside
// a loop over heads or groups that is more than a product of a few dozen rows takes. A tile of the result
// stays in vector registers over the whole depth. The right matrix is read in place where its rows lie in one
// piece and have the type of the sums, and is otherwise copied to panels first, which converts it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cpu.h"
#include "dispatch.h"

namespace torchgraft {

// A matrix in memory, of any strides: element (row, column) is data[row * row_stride + column *
// column_stride]. Strides count elements.
template <typename T>
struct Matrix {
  T* data;
  int64_t rows, columns;
  int64_t row_stride, column_stride = 1;
};

// The same elements with rows and columns exchanged.
template <typename T>
Matrix<T> transposed(const Matrix<T>& matrix) {
  return {matrix.data, matrix.columns, matrix.rows, matrix.column_stride, matrix.row_stride};
}

namespace internal {

// Rows of a tile. Eight vectors of sums hide the time that an addition takes.
constexpr int kProductRows = 4;
// A panel of the right matrix is copied in pieces of so many rows: 16 KiB of float fit into the first cache.
constexpr int64_t kPanelDepth = 128;

// Adds the products of kRows rows of the left matrix with a panel of kVectors vectors of columns, `depth`
// deep, to a tile of the result. `count` columns are there; the panel has all of them.
template <int kRows, int kVectors, int kVectorBytes, typename L, typename A>
TORCHGRAFT_INLINE void add_tile(const L* left, int64_t row_stride, int64_t depth_stride, int64_t depth,
                                const A* panel, int64_t panel_stride, A* result, int64_t result_row_stride,
                                int64_t result_column_stride, int64_t count) {
  using V = Vector<A, kVectorBytes>;
  constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(A)), kColumns = kVectors * kLanes;
  const bool is_whole = count == kColumns && result_column_stride == 1;
  V sums[kRows][kVectors];
  A tile[kRows][kColumns];
  TORCHGRAFT_UNROLL
  for (int i = 0; i < kRows; ++i) {
    if (!is_whole) {
      std::fill_n(tile[i], kColumns, A(0));
      for (int64_t j = 0; j < count; ++j)
        tile[i][j] = result[i * result_row_stride + j * result_column_stride];
    }
    TORCHGRAFT_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      load(sums[i][v], is_whole ? result + i * result_row_stride + v * kLanes : tile[i] + v * kLanes);
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    V columns[kVectors];
    TORCHGRAFT_UNROLL
    for (int v = 0; v < kVectors; ++v) load(columns[v], panel + k * panel_stride + v * kLanes);
    TORCHGRAFT_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const A factor = static_cast<A>(left[i * row_stride + k * depth_stride]);
      TORCHGRAFT_UNROLL
      for (int v = 0; v < kVectors; ++v) sums[i][v] += factor * columns[v];
    }
  }
  TORCHGRAFT_UNROLL
  for (int i = 0; i < kRows; ++i) {
    TORCHGRAFT_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      store(sums[i][v], is_whole ? result + i * result_row_stride + v * kLanes : tile[i] + v * kLanes);
    }
    if (!is_whole) {
      for (int64_t j = 0; j < count; ++j)
        result[i * result_row_stride + j * result_column_stride] = tile[i][j];
    }
  }
}

// Copies `count` columns of a matrix to rows of kColumns, and zeros behind them.
template <int64_t kColumns, typename R, typename A>
TORCHGRAFT_INLINE void pack(const R* from, int64_t row_stride, int64_t column_stride, int64_t depth,
                            int64_t count, A* __restrict__ packed) {
  if (count < kColumns) std::fill_n(packed, depth * kColumns, A(0));
  if (column_stride == 1) {
    for (int64_t k = 0; k < depth; ++k) {
      for (int64_t j = 0; j < count; ++j) packed[k * kColumns + j] = static_cast<A>(from[k * row_stride + j]);
    }
    return;
  }
  for (int64_t j = 0; j < count; ++j) {
    const R* const column = from + j * column_stride;
    for (int64_t k = 0; k < depth; ++k) packed[k * kColumns + j] = static_cast<A>(column[k * row_stride]);
  }
}

// Adds the products with `count` columns of the right matrix, from `column` on: at most kVectors vectors.
template <int kVectors, int kVectorBytes, typename L, typename R, typename A>
TORCHGRAFT_INLINE void add_panel(const Matrix<const L>& left, const Matrix<const R>& right,
                                 const Matrix<A>& result, int64_t column, int64_t count) {
  constexpr int64_t kColumns = kVectors * kVectorBytes / static_cast<int64_t>(sizeof(A));
  alignas(64) A packed[kPanelDepth * kColumns];
  for (int64_t first = 0; first < left.columns; first += kPanelDepth) {
    const int64_t depth = std::min(kPanelDepth, left.columns - first);
    const R* const from = right.data + first * right.row_stride + column * right.column_stride;
    const A* panel = packed;
    int64_t panel_stride = kColumns;
    if constexpr (std::is_same_v<R, A>) {
      if (right.column_stride == 1 && count == kColumns) panel = from, panel_stride = right.row_stride;
    }
    if (panel == packed) pack<kColumns>(from, right.row_stride, right.column_stride, depth, count, packed);
    const auto add = [&](auto rows, int64_t row) {
      add_tile<decltype(rows)::value, kVectors, kVectorBytes>(
          left.data + row * left.row_stride + first * left.column_stride, left.row_stride, left.column_stride,
          depth, panel, panel_stride, result.data + row * result.row_stride + column * result.column_stride,
          result.row_stride, result.column_stride, count);
    };
    int64_t row = 0;
    for (; row + kProductRows <= result.rows; row += kProductRows) {
      add(std::integral_constant<int, kProductRows>{}, row);
    }
    for (; row < result.rows; ++row) add(std::integral_constant<int, 1>{}, row);
  }
}

template <int kVectorBytes, typename L, typename R, typename A>
TORCHGRAFT_INLINE void add_product(const Matrix<const L>& left, const Matrix<const R>& right,
                                   const Matrix<A>& result) {
  constexpr int64_t kLanes = kVectorBytes / static_cast<int64_t>(sizeof(A));
  int64_t column = 0;
  for (; result.columns - column > kLanes; column += 2 * kLanes) {
    const int64_t count = std::min(2 * kLanes, result.columns - column);
    add_panel<2, kVectorBytes>(left, right, result, column, count);
  }
  if (column < result.columns) {
    add_panel<1, kVectorBytes>(left, right, result, column, result.columns - column);
  }
}

template <int kVectorBytes>
struct SmallProduct;

// flatten: all of it is inlined, as only then it is compiled for the instruction set.
#define TORCHGRAFT_SMALL_PRODUCT(BYTES, ...)                                                     \
  template <>                                                                                    \
  struct SmallProduct<BYTES> {                                                                   \
    template <typename L, typename R, typename A>                                                \
    __attribute__((noinline, flatten __VA_ARGS__)) static void run(const Matrix<const L>& left,  \
                                                                   const Matrix<const R>& right, \
                                                                   const Matrix<A>& result) {    \
      add_product<BYTES>(left, right, result);                                                   \
    }                                                                                            \
  };
TORCHGRAFT_SMALL_PRODUCT(16)
#ifdef TORCHGRAFT_HAS_TARGETS
TORCHGRAFT_SMALL_PRODUCT(32, , target("arch=x86-64-v3"))
TORCHGRAFT_SMALL_PRODUCT(64, , target("arch=x86-64-v4"))
#endif
#undef TORCHGRAFT_SMALL_PRODUCT

}  // namespace internal

// result += left @ right, on the calling thread. The matrices may have any strides; `transposed` exchanges
// rows and columns of each. Their elements are of any floating dtype, and the result is of the type of the
// sums, `accumulate_t`: float, or double for double. Its memory overlaps with no other. left.rows ==
// result.rows, left.columns == right.rows and right.columns == result.columns, which nobody checks.
//
// It is fastest if the columns of `right` and `result` lie side by side. Each element adds its products one
// after the other, so it has the same bits wherever it lies in the result, and however large the result is.
// Between processors with and without fused multiply-adds the bits may differ.
template <FloatingType L, FloatingType R, typename A>
  requires(std::is_same_v<A, accumulate_t<L>> && std::is_same_v<A, accumulate_t<R>>)
void add_product(const Matrix<const L>& left, const Matrix<const R>& right, const Matrix<A>& result) {
#if !defined(TORCHGRAFT_HAS_TARGETS)
  internal::SmallProduct<16>::run(left, right, result);
#elif defined(TORCHGRAFT_X86_64_LEVEL)
  internal::SmallProduct<TORCHGRAFT_X86_64_LEVEL == 4 ? 64 : 32>::run(left, right, result);
#else
  if (__builtin_cpu_supports("x86-64-v4")) {
    internal::SmallProduct<64>::run(left, right, result);
  } else if (__builtin_cpu_supports("x86-64-v3")) {
    internal::SmallProduct<32>::run(left, right, result);
  } else {
    internal::SmallProduct<16>::run(left, right, result);
  }
#endif
}

}  // namespace torchgraft
