// CUDA kernels: a vector in registers, whose elements are converted where they are used.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda.cuh"
#include "dispatch.h"

namespace torchgraft {

// The elements of one vector access. Those of two bytes stay in pairs, a word each, until they are used:
// where a load is conditional the compiler takes the pairs of a Vector apart at once and puts them together
// again, some six instructions each. Packed<T, kElements>{} is zero.
template <typename T, int kElements = kVectorElements<T>>
class Packed {
 public:
  // Whoever calls it has checked that the address is aligned for all of the vector (`is_aligned`).
  __device__ void load(const T* from) { words_ = *reinterpret_cast<const Words*>(from); }

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
  using Words = Vector<std::conditional_t<kPairs, uint32_t, T>, kPairs ? kElements / 2 : kElements>;
  Words words_;
};

}  // namespace torchgraft
