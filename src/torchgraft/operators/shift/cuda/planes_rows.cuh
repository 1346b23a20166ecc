// Rows of a tile of the kernel planes in shared memory: reads of neighbours in a row, writes of results, and
// the stores of all results of a tile.
#pragma once

#include <torchgraft/cuda.cuh>
#include <torchgraft/ptx.cuh>

#include <cstdint>
#include <type_traits>

#include "supports.h"
#include "taps.cuh"

namespace torchgraft::shift::cuda {

// A mask that keeps a value or makes it zero, without a branch. Multiplying by zero would turn infinity into
// NaN.
__device__ inline uint32_t mask_of(bool is_read) {
  uint32_t mask = is_read ? 0xffffffffU : 0U;
  ptx::keep(mask);
  return mask;
}
__device__ inline float take(float value, uint32_t mask) {
  return __uint_as_float(__float_as_uint(value) & mask);
}
__device__ inline double take(double value, uint32_t mask) { return mask != 0 ? value : 0.0; }

// Reads kCount neighbours in a row of a stage; columns beside the row are zero.
template <typename T, int kCount>
class ElementReader {
 public:
  using A = accumulate_t<T>;

  // The first neighbour lies at `index` of the stage, in column `column`.
  __device__ ElementReader(const T* stage, int index, int column, int width) : from_(stage + index) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) masks_[i] = mask_of(is_inside(column + i, width));
  }

  __device__ void read(A (&values)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = take(static_cast<A>(from_[i]), masks_[i]);
  }

  __device__ void advance(int elements) { from_ += elements; }

 private:
  const T* from_;
  uint32_t masks_[kCount];
};

// The same for types of two bytes: it reads two a word, whether the first lies in the lower or the upper
// half.
template <typename T, int kCount>
class PairReader {
 public:
  __device__ PairReader(const T* stage, int index, int column, int width)
      : stage_(reinterpret_cast<const char*>(stage)), bytes_(index * 2) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      masks_[i] = (is_inside(column + 2 * i, width) ? 0x0000ffffU : 0U) |
                  (2 * i + 1 < kCount && is_inside(column + 2 * i + 1, width) ? 0xffff0000U : 0U);
    }
  }

  __device__ void read(float (&values)[kCount]) const {
    constexpr int kWords = kCount / 2 + 1;
    const uint32_t* const from = reinterpret_cast<const uint32_t*>(stage_ + (bytes_ & ~3));
    const unsigned shift = (bytes_ & 2) * 8;
    uint32_t words[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = from[i];
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const uint32_t pair = __funnelshift_r(words[i], words[min(i + 1, kWords - 1)], shift) & masks_[i];
      float both[2];
      widen<T>(reinterpret_cast<const Word<T>&>(pair), both);
      values[2 * i] = both[0];
      if (2 * i + 1 < kCount) values[2 * i + 1] = both[1];
    }
  }

  __device__ void advance(int elements) { bytes_ += elements * 2; }

 private:
  static constexpr int kPairs = (kCount + 1) / 2;
  const char* stage_;
  int bytes_;  // from the stage's beginning
  uint32_t masks_[kPairs];
};

template <typename T, int kCount>
using PlanesRowReader = std::conditional_t<sizeof(T) == 2, PairReader<T, kCount>, ElementReader<T, kCount>>;

// Writes the first `columns` of kColumns neighbours.
template <typename T>
__device__ void write_row(T* stage, int index, const accumulate_t<T> (&values)[kColumns], int columns) {
  if constexpr (sizeof(T) == 2) {
    if (columns >= kColumns) {
      // Two whole words, and half a word before or behind them.
      static_assert(kColumns == 5);
      uint32_t pairs[3];
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        const float both[2] = {values[2 * i], i < 2 ? values[2 * i + 1] : 0.0F};
        reinterpret_cast<Word<T>&>(pairs[i]) = round<T>(both);
      }
      const bool is_odd = index % 2 != 0;
      const unsigned shift = is_odd ? 16 : 0;
      uint32_t* const words = reinterpret_cast<uint32_t*>(stage + index + (is_odd ? 1 : 0));
      words[0] = __funnelshift_r(pairs[0], pairs[1], shift);
      words[1] = __funnelshift_r(pairs[1], pairs[2], shift);
      const uint32_t single = is_odd ? pairs[0] : pairs[2];
      stage[index + (is_odd ? 0 : 4)] = reinterpret_cast<const Word<T>&>(single)[0];
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    if (i < columns) stage[index + i] = static_cast<T>(values[i]);
  }
}

// Stores a run of results from shared memory, where it has the same place modulo sixteen bytes as in device
// memory.
template <int kThreads, typename T>
__device__ void store_results(T* result, const T* stage, int lead, int results) {
  constexpr int kPiece = kVectorElements<T>;
  constexpr int kAtOnce = 4;
  const int thread = static_cast<int>(threadIdx.x);
  result -= lead;
  const int end = lead + results;
  const int first_whole = lead > 0 ? kPiece : 0;
  const int end_whole = end & -kPiece;
  const int first = first_whole + thread * kPiece;
  const T* from = stage + first;
  T* to = result + first;
#pragma unroll 1
  for (int left = end_whole - first; left > 0; left -= kAtOnce * kThreads * kPiece) {
    Vector<T> pieces[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int distance = i * kThreads * kPiece;
      if (left > distance) pieces[i] = *reinterpret_cast<const Vector<T>*>(from + distance);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int distance = i * kThreads * kPiece;
      if (left > distance) *reinterpret_cast<Vector<T>*>(to + distance) = pieces[i];
    }
    from += kAtOnce * kThreads * kPiece;
    to += kAtOnce * kThreads * kPiece;
  }
  // Of the pieces at both ends a part belongs to other tiles.
  if (thread < kPiece) {
    if (thread >= lead && thread < min(first_whole, end)) result[thread] = stage[thread];
    const int last = max(end_whole, first_whole) + thread;
    if (last < end) result[last] = stage[last];
  }
}

}  // namespace torchgraft::shift::cuda
