// CPU kernels: vectors of what sums are kept in, to and from memory in any dtype.
#pragma once

#include "cpu.h"
#include "dispatch.h"

namespace torchgraft {

// Between float and the bits of two-byte types in whole vectors, as the conversions of PyTorch's scalar types
// do not become vectors. `U` holds 32 bits a lane.
template <typename To, typename From>
TORCHGRAFT_INLINE void reinterpret(To& to, const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  std::memcpy(&to, &from, sizeof(To));
}

// From the bits of two-byte numbers to float, exactly.
template <typename V, typename U>
TORCHGRAFT_INLINE void widen(V& value, const U& bits, Tag<BFloat16>) {
  reinterpret(value, U(bits << 16));
}

template <typename V, typename U>
TORCHGRAFT_INLINE void widen(V& value, const U& bits, Tag<Half>) {
  const U magnitude = bits & 0x7fff;
  // The exponent's bias is 127 and not 15; above the largest exponent lie infinity and NaN.
  const U rebased = (magnitude << 13) + (112u << 23);
  V subnormal = __builtin_convertvector(magnitude, V) * 0x1p-24f;
  U result;
  reinterpret(result, subnormal);
  result = magnitude < 0x400 ? result : (magnitude < 0x7c00 ? rebased : rebased + (112u << 23));
  reinterpret(value, U(result | (bits & 0x8000) << 16));
}

// From float to the bits of two-byte numbers: rounded to nearest, ties to even.
template <typename V, typename U>
TORCHGRAFT_INLINE void narrow(const V& value, U& bits, Tag<BFloat16>) {
  reinterpret(bits, value);
  const U rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  bits = value != value ? U{} + 0x7fc0 : rounded;
}

template <typename V, typename U>
TORCHGRAFT_INLINE void narrow(const V& value, U& bits, Tag<Half>) {
  reinterpret(bits, value);
  const U magnitude = bits & 0x7fffffff;
  const U sign = bits >> 16 & 0x8000;
  // Adding a power of two whose last bit is the result's rounds it; what is too large becomes infinity on the
  // way.
  V scaled;
  reinterpret(scaled, magnitude);
  scaled = scaled * 0x1p112f * 0x1p-110f;
  const U exponent = magnitude & 0x7f800000;
  V power;
  reinterpret(power, U((exponent > 0x38800000 ? exponent : U{} + 0x38800000) + 0x07800000));
  U sum;
  reinterpret(sum, V(power + scaled));
  const U rounded = (sum >> 13 & 0x7c00) + (sum & 0xfff);
  bits = sign | (magnitude > 0x7f800000 ? U{} + 0x7e00 : rounded);
}

// Processors with AVX2 have instructions for float16, which GCC does not choose for vectors.
#if defined(__x86_64__)
template <typename T, typename V>
inline constexpr bool kConverts = std::is_same_v<T, Half> && sizeof(V) >= 32;
#else
template <typename T, typename V>
inline constexpr bool kConverts = false;
#endif

namespace internal {

// Loads sixteen bfloat16 into the upper halves of a vector's lanes in one instruction. To extend them and
// then to move them up takes two, which compete with multiply-adds for their ports. Clang takes no registers
// of 64 bytes in a function that is compiled for their instruction set only once it is inlined.
#if defined(__x86_64__) && !defined(__clang__)
template <typename T, typename V>
inline constexpr bool kShuffles = std::is_same_v<T, BFloat16> && sizeof(V) == 64;

template <typename V>
TORCHGRAFT_INLINE void load_shuffled(V& vector, const BFloat16* from) {
  typedef uint16_t Words __attribute__((vector_size(32), aligned(2), may_alias));
  // The load sets the upper half of the register to zero: its last word goes into the lower halves of lanes.
  Vector<uint32_t, 64> places;
  for (int lane = 0; lane < 16; ++lane) places[lane] = static_cast<uint32_t>(lane) << 16 | 31;
  asm("vmovdqu64 %1, %t0\n\tvpermw %0, %2, %0"
      : "=&v"(vector)
      : "m"(*reinterpret_cast<const Words*>(from)), "v"(places));
}
#else
template <typename T, typename V>
inline constexpr bool kShuffles = false;

template <typename V>
void load_shuffled(V& vector, const BFloat16* from);
#endif

}  // namespace internal

// Loads as many elements of T as V has lanes, and converts them to A, the type of V's lanes.
template <typename V, typename A, typename T>
TORCHGRAFT_INLINE void load_converted(V& vector, const T* from) {
  if constexpr (std::is_same_v<T, A>) {
    load(vector, from);
  } else {
    if constexpr (internal::kShuffles<T, V>) {
      internal::load_shuffled(vector, from);
      return;
    }
    Vector<uint16_t, sizeof(V) / 2> bits;
    load(bits, from);
    if constexpr (kConverts<T, V>) {
#if defined(__clang__)
      vector = __builtin_convertvector(reinterpret_cast<Vector<_Float16, sizeof(V) / 2>&>(bits), V);
#else
      asm("vcvtph2ps %1, %0" : "=v"(vector) : "v"(bits));
#endif
      return;
    }
    widen(vector, __builtin_convertvector(bits, Vector<uint32_t, sizeof(V)>), Tag<T>{});
  }
}

// Converts a vector of A to elements of T, rounded to nearest, and stores them.
template <typename A, typename V, typename T>
TORCHGRAFT_INLINE void store_converted(const V& vector, T* to) {
  if constexpr (std::is_same_v<T, A>) {
    store(vector, to);
  } else if constexpr (kConverts<T, V>) {
#if defined(__clang__)
    const auto bits = __builtin_convertvector(vector, Vector<_Float16, sizeof(V) / 2>);
#else
    Vector<uint16_t, sizeof(V) / 2> bits;
    asm("vcvtps2ph $0, %1, %0" : "=v"(bits) : "v"(vector));
#endif
    store(bits, to);
  } else {
    Vector<uint32_t, sizeof(V)> bits;
    narrow(vector, bits, Tag<T>{});
    store(__builtin_convertvector(bits, Vector<uint16_t, sizeof(V) / 2>), to);
  }
}

}  // namespace torchgraft
