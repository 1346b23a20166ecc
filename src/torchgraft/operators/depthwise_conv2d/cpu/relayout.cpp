// Images from one layout into the other on CPU: the transpose of a matrix of channels and pixels, for each
// image.
//
// A thread owns some columns of an image's matrix, 64 bytes or more of each row, and goes down all its rows:
// so each row of the result is written in order. Squares of lanes by lanes are transposed in registers.
// Elements are moved as integers of their size. PyTorch's copy takes an element at a time: ten times as long
// for large images.

#include <torchgraft/cpu.h>
#include <torchgraft/cpu_transpose.h>

#include <algorithm>
#include <cstdint>

#include "kernels.h"

namespace torchgraft::depthwise::cpu {
namespace {

// Elements that are worth a thread.
constexpr int64_t kGrain = 1 << 15;
// Columns that a thread takes along.
constexpr int64_t kColumns = 64;

template <typename V, typename T>
TORCHGRAFT_INLINE void transpose_columns(const T* from, T* to, const Matrices& matrices, int64_t column,
                                         int64_t columns) {
  constexpr int kLanes = sizeof(V) / sizeof(T);
  const int64_t rows = matrices.rows, step = matrices.row_step;
  if (rows < kLanes || columns < kLanes) {
    for (int64_t c = column; c < column + columns; ++c) {
      for (int64_t r = 0; r < rows; ++r) to[c * rows + r] = from[r * step + c];
    }
    return;
  }
  // The last square overlaps the one before where there is no whole number of them.
  for (int64_t r = 0; r < rows; r += kLanes) {
    const int64_t row = std::min(r, rows - kLanes);
    for (int64_t c = 0; c < columns; c += kLanes) {
      const int64_t first = column + std::min(c, columns - kLanes);
      V square[kLanes];
      TORCHGRAFT_UNROLL for (int l = 0; l < kLanes; ++l) { load(square[l], from + (row + l) * step + first); }
      transpose(square);
      TORCHGRAFT_UNROLL for (int l = 0; l < kLanes; ++l) store(square[l], to + (first + l) * rows + row);
    }
  }
}

// Squares of two-byte elements are of 16 lanes at most: of 32 they would not fit the registers.
TORCHGRAFT_VECTOR_CLONES(void move_columns(const uint16_t* from, uint16_t* to, const Matrices& matrices,
                                           int64_t column, int64_t columns),
                         transpose_columns<Vector<uint16_t, std::min(kVectorBytes, 32)>>(from, to, matrices,
                                                                                         column, columns);)
TORCHGRAFT_VECTOR_CLONES(void move_columns(const uint32_t* from, uint32_t* to, const Matrices& matrices,
                                           int64_t column, int64_t columns),
                         transpose_columns<Vector<uint32_t, kVectorBytes>>(from, to, matrices, column,
                                                                           columns);)
TORCHGRAFT_VECTOR_CLONES(void move_columns(const uint64_t* from, uint64_t* to, const Matrices& matrices,
                                           int64_t column, int64_t columns),
                         transpose_columns<Vector<uint64_t, kVectorBytes>>(from, to, matrices, column,
                                                                           columns);)

template <typename T>
void move(const T* from, T* to, const Matrices& matrices) {
  const int64_t blocks = std::max<int64_t>(matrices.columns / kColumns, 1);
  const int64_t of_block = std::max<int64_t>(matrices.rows * std::min(matrices.columns, kColumns), 1);
  parallel_for(0, matrices.count * blocks, std::max<int64_t>(kGrain / of_block, 1),
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   const int64_t image = i / blocks, block = i % blocks;
                   const int64_t column = block * kColumns;
                   const int64_t last = block + 1 == blocks ? matrices.columns : column + kColumns;
                   move_columns(from + image * matrices.step, to + image * matrices.rows * matrices.columns,
                                matrices, column, last - column);
                 }
               });
}

}  // namespace

void transpose_each(const void* from, void* to, int64_t element_bytes, const Matrices& matrices) {
  const auto move_as = [&]<typename T>(T) {
    move(static_cast<const T*>(from), static_cast<T*>(to), matrices);
  };
  if (element_bytes == 2) return move_as(uint16_t());
  if (element_bytes == 4) return move_as(uint32_t());
  move_as(uint64_t());
}

}  // namespace torchgraft::depthwise::cpu
