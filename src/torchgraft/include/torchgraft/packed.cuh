// CUDA kernels: a vector in registers. Its elements are converted when they are used.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <torchgraft/ptx.cuh>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cuda.cuh"
#include "dispatch.h"

namespace torchgraft {

// The elements of one vector access. Those of two bytes are in pairs, a word each: where a load or a store is
// conditional the compiler takes the pairs of a Vector apart and puts them together again, some six
// instructions each, or stores each element by itself. Packed<T, kElements>{} is zero.
template <typename T, int kElements = kVectorElements<T>>
class Packed {
 public:
  Packed() = default;
  // Numbers of the type of sums, rounded to T.
  __device__ explicit Packed(const accumulate_t<T> (&values)[kElements]) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if constexpr (!kPairs) {
        words_[i] = static_cast<T>(values[i]);
      } else if constexpr (std::is_same_v<T, BFloat16>) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(values[2 * i], values[2 * i + 1]);
        std::memcpy(&words_[i], &pair, sizeof(pair));
      } else {
        const __half2 pair = __floats2half2_rn(values[2 * i], values[2 * i + 1]);
        std::memcpy(&words_[i], &pair, sizeof(pair));
      }
    }
  }

  // Whoever calls these has checked that the address is aligned for all of the vector (`is_aligned`).
  __device__ void load(const T* from) { words_ = *reinterpret_cast<const Words*>(from); }
  __device__ void store(T* to) const {
    if constexpr (sizeof(Words) % sizeof(uint2) == 0) {
      using Piece = std::conditional_t<sizeof(Words) % sizeof(uint4) == 0, uint4, uint2>;
#pragma unroll
      for (unsigned i = 0; i < sizeof(Words) / sizeof(Piece); ++i) {
        Piece piece;
        std::memcpy(&piece, reinterpret_cast<const char*>(&words_) + i * sizeof(Piece), sizeof(Piece));
        ptx::store_global(reinterpret_cast<Piece*>(to) + i, piece);
      }
    } else {
      *reinterpret_cast<Words*>(to) = words_;
    }
  }

  __device__ accumulate_t<T> operator[](int index) const {
    if constexpr (!kPairs) {
      return static_cast<accumulate_t<T>>(words_[index]);
    } else if constexpr (std::is_same_v<T, BFloat16>) {
      const uint32_t word = words_[index / 2];
      return __uint_as_float(index % 2 == 0 ? word << 16 : word & 0xffff0000u);
    } else {
      const uint32_t word = words_[index / 2];
      return static_cast<float>(T(static_cast<uint16_t>(index % 2 == 0 ? word : word >> 16), T::from_bits()));
    }
  }

 private:
  static constexpr bool kPairs = sizeof(T) == 2 && kElements % 2 == 0;
  static constexpr int kWords = kPairs ? kElements / 2 : kElements;
  using Words = Vector<std::conditional_t<kPairs, uint32_t, T>, kWords>;
  Words words_;
};

}  // namespace torchgraft
