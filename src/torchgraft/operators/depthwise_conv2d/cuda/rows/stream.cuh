// Rows as streams: what a thread holds of a row, and what its neighbours in the warp hold of it.
//
// A thread owns a chunk of a row that begins at a boundary of sixteen bytes, so that rows of any length are
// read in vectors. Those at the ends of a row may be partly of the rows beside it, and what is outside
// becomes zero; only at the ends of the whole tensor are elements read one by one. What a chunk needs of the
// ones beside it comes from the neighbours in the warp; the first and the last lane load eight elements more.
#pragma once

#include <type_traits>

#include "rows.cuh"

namespace torchgraft::depthwise::cuda {

constexpr unsigned kWholeWarp = 0xffffffffu;

// Calls use(number) with a number in [0, kCount) as a compile-time constant.
template <int kCount, int kNumber = 0, typename Use>
__device__ __forceinline__ void with_constant_below(int number, const Use& use) {
  if constexpr (kNumber + 1 < kCount) {
    if (number != kNumber) return with_constant_below<kCount, kNumber + 1>(number, use);
  }
  use(std::integral_constant<int, kNumber>{});
}

// Where a chunk lies in its row.
struct ChunkPlace {
  int first, length;
  int before, behind;  // elements of the tensor before and behind the row, at least those of a vector

  // `row`: the row's first element in the tensor.
  __device__ ChunkPlace(int first, int length, int64_t row, int64_t tensor)
      : first(first),
        length(length),
        before(row >= kVectorLimit ? kVectorLimit : static_cast<int>(row)),
        behind(tensor - row - length >= kVectorLimit ? kVectorLimit
                                                     : static_cast<int>(tensor - row - length)) {}
  ChunkPlace() = default;

  // Whether so many elements are all in the row, from an offset in the chunk on.
  __device__ bool has(int offset, int count) const {
    return first + offset >= 0 && first + offset + count <= length;
  }
  // Whether some are in the row, and all in the tensor.
  __device__ bool can_load(int offset, int count) const {
    const int begin = first + offset, end = begin + count;
    return end > 0 && begin < length && begin >= -before && end <= length + behind;
  }

 private:
  static constexpr int kVectorLimit = kRowVectorBytes;  // in elements that are larger than a byte
};

template <typename T, int kOwn>
class StreamedChunk {
 public:
  __device__ __forceinline__ void load(const T* row, const ChunkPlace& place) {
    load_pieces(own_, row, place, 0);
  }
  // The same, and for the lanes at the ends of a warp what lies beside it, if results read that.
  __device__ __forceinline__ void load(const T* row, const ChunkPlace& place, bool is_before_read,
                                       bool is_behind_read) {
    load(row, place);
    if (lane() == 0 && is_before_read) load_pieces(beside_, row, place, -kBeside);
    if (lane() == kRowWarp - 1 && is_behind_read) load_pieces(beside_, row, place, kOwn);
  }

  // Zeros stand for what is outside of the row.
  __device__ __forceinline__ void unpack(float* values, const T* row, const ChunkPlace& place) const {
    unpack_pieces<0, kOwn>(values, own_, row, place, 0);
  }

  // The chunk behind kBefore elements before it, and in front of kBehind behind it. All threads of a warp
  // call it together.
  template <int kBefore, int kBehind>
  __device__ __forceinline__ void unpack_with_halo(float (&values)[kBefore + kOwn + kBehind], const T* row,
                                                   const ChunkPlace& place) const {
    static_assert(kBefore <= kBeside && kBehind <= kBeside && kBefore <= kOwn && kBehind <= kOwn);
    float* const own = values + kBefore;
    unpack(own, row, place);
#pragma unroll
    for (int k = 0; k < kBefore; ++k) {
      values[k] = __shfl_up_sync(kWholeWarp, own[kOwn - kBefore + k], 1);
    }
#pragma unroll
    for (int k = 0; k < kBehind; ++k) own[kOwn + k] = __shfl_down_sync(kWholeWarp, own[k], 1);
    if (kBefore > 0 && lane() == 0) {
      unpack_pieces<kBeside - kBefore, kBefore>(values, beside_, row, place, -kBeside);
    }
    if (kBehind > 0 && lane() == kRowWarp - 1) {
      unpack_pieces<0, kBehind>(own + kOwn, beside_, row, place, kOwn);
    }
    // A neighbour's chunk may be of another row.
#pragma unroll
    for (int k = 0; k < kBefore; ++k) values[k] = place.first - kBefore + k < 0 ? 0.0f : values[k];
#pragma unroll
    for (int k = 0; k < kBehind; ++k) {
      own[kOwn + k] = place.first + kOwn + k >= place.length ? 0.0f : own[kOwn + k];
    }
  }

 private:
  static constexpr int kBeside = 8;
  static constexpr int kVector = kVectorElements<T>;
  static_assert(kOwn % kVector == 0 && kBeside % kVector == 0);

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kRowWarp; }

  template <int kPieces>
  __device__ static void load_pieces(Packed<T> (&pieces)[kPieces], const T* row, const ChunkPlace& place,
                                     int offset) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int from = offset + i * kVector;
      if (place.can_load(from, kVector)) pieces[i].load(row + place.first + from);
    }
  }

  // Elements [kSkip, kSkip + kCount) of the pieces from an offset on.
  template <int kSkip, int kCount, int kPieces>
  __device__ static void unpack_pieces(float* values, const Packed<T> (&pieces)[kPieces], const T* row,
                                       const ChunkPlace& place, int offset) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int from = offset + i * kVector;
      Packed<T> piece = pieces[i];
      if (!place.has(from, kVector)) piece = partial(piece, row, place, from);
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        const int element = i * kVector + k - kSkip;
        if (element >= 0 && element < kCount) values[element] = piece[k];
      }
    }
  }

  // A piece that is partly, or wholly, outside of its row.
  __device__ static Packed<T> partial(Packed<T> piece, const T* row, const ChunkPlace& place, int from) {
    uint4 vector;
    memcpy(&vector, &piece, sizeof(vector));
    const int first = place.first + from;
    vector = place.can_load(from, kVector) ? masked<T>(vector, first, place.length)
                                           : load_singly(row, first, place.length);
    memcpy(&piece, &vector, sizeof(vector));
    return piece;
  }

  Packed<T> own_[kOwn / kVector];
  Packed<T> beside_[kBeside / kVector];
};

// Calls use(taps) with the taps of a kernel, 1 to kStreamTaps, as a compile-time constant.
template <int kTaps = 1, typename Use>
void with_stream_taps(int64_t taps, const Use& use) {
  if constexpr (kTaps < kStreamTaps) {
    if (taps != kTaps) return with_stream_taps<kTaps + 1>(taps, use);
  }
  use(std::integral_constant<int, kTaps>{});
}

}  // namespace torchgraft::depthwise::cuda
