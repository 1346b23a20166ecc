// What the kernels of rows share: a part of some rows in shared memory, as floats.
//
// Threads load words of four bytes side by side, so that rows may begin anywhere, even at an odd half. A word
// that is partly outside of its row is loaded element by element. All words of a batch are loaded before the
// first is stored.
#pragma once

#include <torchgraft/cuda.cuh>
#include <torchgraft/packed.cuh>

#include "../kernels.h"
#include "plan.h"

namespace torchgraft::depthwise::cuda {

// Where an element lies in a row of shared memory. Threads that own kOwn elements each read four of them at a
// time: chunks of four are permuted so that the threads of a quarter of a warp meet all banks. kOwn = 1:
// elements lie in order.
template <int kOwn>
__device__ __forceinline__ int place_of(int element) {
  if constexpr (kOwn == 1) {
    return element;
  } else {
    static_assert(kOwn == 8 || kOwn == kPermuted);
    const unsigned chunk = static_cast<unsigned>(element) / 4;
    return static_cast<int>(4 * (chunk ^ (chunk / 8 & (kOwn / 4 - 1))) + static_cast<unsigned>(element) % 4);
  }
}

// Four neighbouring elements of such a row; `element` is a multiple of four.
template <int kOwn>
__device__ __forceinline__ void load_four(float* values, const float* row, int element) {
  const float4 four = *reinterpret_cast<const float4*>(row + place_of<kOwn>(element));
  values[0] = four.x;
  values[1] = four.y;
  values[2] = four.z;
  values[3] = four.w;
}

// A row and the position from which on it is staged; without a row, zeros are.
template <typename T>
struct RowPart {
  const T* row;  // may be null
  int begin, length;

  __device__ bool has(int position) const { return row != nullptr && is_inside(position, length); }
};

template <typename T>
inline constexpr int kRowWord = sizeof(T) == 2 ? 2 : 1;

// Words that one thread has in flight.
template <typename T, int kOwn, int kBatch>
class RowBatch {
 public:
  // `part_of(r)`: the RowPart of row r. Words are counted from `first` on, in steps of the block's threads.
  template <typename PartOf>
  __device__ __forceinline__ void load(int first, int rows, const FastDivisor& words_of_row,
                                       const PartOf& part_of) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int word = first + i * static_cast<int>(blockDim.x);
      row_[i] = words_of_row.divide(word);
      words_[i] = {};
      if (row_[i] >= rows) continue;
      const RowPart<T> part = part_of(row_[i]);
      element_[i] = kRowWord<T> * (word - row_[i] * words_of_row.divisor()) - odd(part);
      const int position = part.begin + element_[i];
      if (part.has(position) && part.has(position + kRowWord<T> - 1)) {
        words_[i].load(part.row + position);
      } else if (kRowWord<T> > 1 && (part.has(position) || part.has(position + 1))) {
        float values[kRowWord<T>];
#pragma unroll
        for (int k = 0; k < kRowWord<T>; ++k) {
          values[k] = part.has(position + k) ? static_cast<float>(part.row[position + k]) : 0.0f;
        }
        words_[i] = Packed<T, kRowWord<T>>(values);
      }
    }
  }

  __device__ __forceinline__ void store(float* shared, int rows, int pitch) const {
    // Half of the lanes store the elements of a word in the other order, so that a warp meets all banks.
    const int turned = static_cast<int>(threadIdx.x) / 16 % kRowWord<T>;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (row_[i] >= rows) continue;
      float* row = shared + row_[i] * pitch;
#pragma unroll
      for (int k = 0; k < kRowWord<T>; ++k) {
        const int element = element_[i] + (k ^ turned);
        const float value = kRowWord<T> == 1 || turned == 0 ? words_[i][k] : words_[i][kRowWord<T> - 1 - k];
        if (is_inside(element, pitch)) row[place_of<kOwn>(element)] = value;
      }
    }
  }

 private:
  // Whether the first staged element of a row is the second half of a word.
  __device__ static int odd(const RowPart<T>& part) {
    const auto number = static_cast<int>(reinterpret_cast<uintptr_t>(part.row) / sizeof(T)) + part.begin;
    return number & (kRowWord<T> - 1);
  }

  Packed<T, kRowWord<T>> words_[kBatch];
  int row_[kBatch], element_[kBatch];
};

// The words of a row of so many elements in shared memory, whichever half it begins with.
template <typename T>
FastDivisor words_of_row(int pitch) {
  return FastDivisor(pitch / kRowWord<T> + kRowWord<T> - 1);
}

// Stages `rows` rows. `meanwhile` is called once, when the first words are in flight.
template <int kOwn, int kBatch, typename T, typename PartOf, typename Meanwhile>
__device__ __forceinline__ void stage_rows(float* shared, int rows, int pitch,
                                           const FastDivisor& words_of_row, const PartOf& part_of,
                                           const Meanwhile& meanwhile) {
  const int words = rows * words_of_row.divisor();
  const int step = kBatch * static_cast<int>(blockDim.x);
  RowBatch<T, kOwn, kBatch> batch;
  int first = static_cast<int>(threadIdx.x);
  batch.load(first, rows, words_of_row, part_of);
  meanwhile();
  batch.store(shared, rows, pitch);
  for (first += step; first < words; first += step) {
    batch.load(first, rows, words_of_row, part_of);
    batch.store(shared, rows, pitch);
  }
}

// The distance of an address from a boundary of sixteen bytes, in elements.
template <typename T>
__device__ __forceinline__ int misalignment(const T* address) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(address) % kRowVectorBytes / sizeof(T));
}

// Stores neighbouring results from `first` on, of those that are in the row; row + first is aligned.
template <int kOwn, typename T>
__device__ __forceinline__ void store_results(T* row, int first, int length, const float (&results)[kOwn]) {
  constexpr int kVector = kVectorElements<T>;
#pragma unroll
  for (int piece = 0; piece < kOwn; piece += kVector) {
    const int begin = first + piece;
    if (begin >= 0 && begin + kVector <= length) {
      float values[kVector];
#pragma unroll
      for (int k = 0; k < kVector; ++k) values[k] = results[piece + k];
      Packed<T>(values).store(row + begin);
    } else {
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        if (is_inside(begin + k, length)) row[begin + k] = static_cast<T>(results[piece + k]);
      }
    }
  }
}

}  // namespace torchgraft::depthwise::cuda
