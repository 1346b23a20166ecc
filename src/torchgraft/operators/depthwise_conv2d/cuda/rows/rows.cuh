// Shared by the kernels of rows: a part of some rows in shared memory, as it lies in device memory.
//
// Shared memory holds chunks of sixteen bytes that begin where a kernel wants them to, and rows may begin
// anywhere, even at an odd half. A thread loads the two vectors of device memory in which its chunk lies, and
// shifts it out of them. Vectors may be partly of the rows before and behind: what is outside of the row
// becomes zero. Only at the ends of the whole tensor are elements loaded one by one. All vectors of a batch
// are loaded before the first chunk is stored.
#pragma once

#include <torchgraft/cuda.cuh>
#include <torchgraft/packed.cuh>

#include "../kernels.h"
#include "plan.h"

namespace torchgraft::depthwise::cuda {

// Where a chunk lies in a row of shared memory. A thread owns kOwn chunks side by side: they are permuted so
// that the threads of a quarter of a warp, which access one chunk each, meet all banks.
template <int kOwn>
__device__ __forceinline__ int place_of(int chunk) {
  static_assert(kOwn == 1 || kOwn == 2 || kOwn == kPermutedChunks);
  return static_cast<int>(static_cast<unsigned>(chunk) ^ (static_cast<unsigned>(chunk) / 8 & (kOwn - 1)));
}

// The elements of a chunk of such a row.
template <int kOwn, typename T>
__device__ __forceinline__ void load_chunk(float* values, const T* row, int chunk) {
  Packed<T> packed;
  packed.load(row + place_of<kOwn>(chunk) * kVectorElements<T>);
#pragma unroll
  for (int i = 0; i < kVectorElements<T>; ++i) values[i] = packed[i];
}

// A vector from a position of a row on, of which elements outside of the row become zero.
template <typename T>
__device__ __forceinline__ uint4 masked(const uint4& vector, int position, int length) {
  uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int first = position + i * static_cast<int>(4 / sizeof(T));
    if constexpr (sizeof(T) == 2) {
      words[i] &=
          (is_inside(first, length) ? 0x0000ffffu : 0) | (is_inside(first + 1, length) ? 0xffff0000u : 0);
    } else {
      words[i] = is_inside(first, length) ? words[i] : 0;
    }
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// The same vector, loaded element by element.
template <typename T>
__device__ uint4 load_singly(const T* row, int position, int length) {
  float values[kVectorElements<T>];
#pragma unroll
  for (int i = 0; i < kVectorElements<T>; ++i) {
    values[i] = is_inside(position + i, length) ? static_cast<float>(row[position + i]) : 0.0f;
  }
  const Packed<T> packed(values);
  uint4 vector;
  memcpy(&vector, &packed, sizeof(packed));
  return vector;
}

// All rows of a tensor, one behind the other.
template <typename T>
struct Rows {
  const T* begin;
  int64_t count;
  int length;

  __device__ const T* row(int64_t index) const { return begin + index * length; }
  __device__ const T* end() const { return row(count); }
};

// A row and the position from which on it is staged.
struct RowPart {
  int64_t row;
  int begin;
};

// The chunks that one thread has in flight.
template <typename T, int kOwn, int kBatch>
class RowBatch {
 public:
  // `part_of(r)`: the RowPart of row r of those staged. Chunks are counted from `first` on, in steps of the
  // block's threads.
  template <typename PartOf>
  __device__ __forceinline__ void load(int first, int rows, const FastDivisor& chunks, const Rows<T>& from,
                                       const PartOf& part_of) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int index = first + i * static_cast<int>(blockDim.x);
      const int row = chunks.divide(index);
      const int chunk = index - row * chunks.divisor();
      place_[i] = row < rows ? row * chunks.divisor() + place_of<kOwn>(chunk) : -1;
      low_[i] = high_[i] = make_uint4(0, 0, 0, 0);
      shift_[i] = 0;
      if (place_[i] < 0) continue;
      const RowPart part = part_of(row);
      position_[i] = part.begin + chunk * kVector;
      if (position_[i] + kVector > 0 && position_[i] < from.length) load(i, from, from.row(part.row));
    }
  }

  __device__ __forceinline__ void store(T* shared, int length) const {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (place_[i] < 0) continue;
      uint4 chunk = shifted(low_[i], high_[i], shift_[i]);
      if (position_[i] < 0 || position_[i] + kVector > length) chunk = masked<T>(chunk, position_[i], length);
      reinterpret_cast<uint4*>(shared)[place_[i]] = chunk;
    }
  }

 private:
  static constexpr int kVector = kVectorElements<T>;

  __device__ __forceinline__ void load(int i, const Rows<T>& from, const T* row) {
    const auto address = reinterpret_cast<uintptr_t>(row + position_[i]);
    const unsigned shift = address % kRowVectorBytes;
    const auto* const vectors = reinterpret_cast<const uint4*>(address - shift);
    const bool is_in_tensor =
        reinterpret_cast<uintptr_t>(vectors) >= reinterpret_cast<uintptr_t>(from.begin) &&
        reinterpret_cast<uintptr_t>(vectors + (shift == 0 ? 1 : 2)) <=
            reinterpret_cast<uintptr_t>(from.end());
    if (is_in_tensor) {
      shift_[i] = shift;
      low_[i] = vectors[0];
      if (shift != 0) high_[i] = vectors[1];
    } else {
      low_[i] = load_singly(row, position_[i], from.length);
    }
  }

  // Sixteen bytes from byte `shift` of two vectors on.
  __device__ static __forceinline__ uint4 shifted(const uint4& low, const uint4& high, unsigned shift) {
    uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 6; ++i) words[i] = (shift & 8) != 0 ? words[i + 2] : words[i];
#pragma unroll
    for (int i = 0; i < 5; ++i) words[i] = (shift & 4) != 0 ? words[i + 1] : words[i];
    if constexpr (sizeof(T) == 2) {
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i] = __funnelshift_r(words[i], words[i + 1], (shift & 2) * 8);
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
  }

  uint4 low_[kBatch], high_[kBatch];
  unsigned shift_[kBatch];  // bytes
  int place_[kBatch], position_[kBatch];
};

// Stages `rows` rows of `chunks` chunks each. `meanwhile` is called once, when the first are in flight.
template <int kOwn, int kBatch, typename T, typename PartOf, typename Meanwhile>
__device__ __forceinline__ void stage_rows(T* shared, int rows, const FastDivisor& chunks,
                                           const Rows<T>& from, const PartOf& part_of,
                                           const Meanwhile& meanwhile) {
  const int count = rows * chunks.divisor();
  const int step = kBatch * static_cast<int>(blockDim.x);
  RowBatch<T, kOwn, kBatch> batch;
  int first = static_cast<int>(threadIdx.x);
  batch.load(first, rows, chunks, from, part_of);
  meanwhile();
  batch.store(shared, from.length);
  for (first += step; first < count; first += step) {
    batch.load(first, rows, chunks, from, part_of);
    batch.store(shared, from.length);
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
