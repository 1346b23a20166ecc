// __half and __nv_bfloat16, and pairs of them: computed wider and rounded once to nearest, as devices do.
#pragma once

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include "cuda_runtime.h"

namespace emulation {

// A half is the bits of PyTorch's, which rounds to nearest even.
template <typename Stored>
struct alignas(2) HalfOf {
  uint16_t bits;

  HalfOf() = default;
  HalfOf(float value) : bits(Stored(value).x) {}
  static HalfOf from_bits(uint16_t bits) {
    HalfOf half;
    half.bits = bits;
    return half;
  }
  // With no more magnitude than the value has.
  static HalfOf towards_zero(float value) {
    HalfOf half(value);
    if (::fabsf(half) > ::fabsf(value)) --half.bits;
    return half;
  }
  operator float() const { return static_cast<float>(Stored(bits, Stored::from_bits())); }
};

template <typename Half>
struct alignas(4) PairOf {
  Half x, y;
};

}  // namespace emulation

#define EMULATED_HALF(HALF, PAIR, STORED, NAME, SUFFIX)                                          \
  using HALF = emulation::HalfOf<STORED>;                                                        \
  using PAIR = emulation::PairOf<HALF>;                                                          \
  inline HALF __float2##NAME##_rn(float value) { return HALF(value); }                           \
  inline HALF __float2##NAME(float value) { return HALF(value); }                                \
  inline HALF __float2##NAME##_rz(float value) { return HALF::towards_zero(value); }             \
  inline float __##NAME##2float(HALF value) { return value; }                                    \
  inline HALF __ushort_as_##NAME(uint16_t bits) { return HALF::from_bits(bits); }                \
  inline uint16_t __##NAME##_as_ushort(HALF value) { return value.bits; }                        \
  inline PAIR __floats2##SUFFIX##_rn(float x, float y) { return {HALF(x), HALF(y)}; }            \
  inline PAIR __float22##SUFFIX##_rn(float2 values) { return {HALF(values.x), HALF(values.y)}; } \
  inline PAIR __halves2##SUFFIX(HALF x, HALF y) { return {x, y}; }                               \
  inline float __low2float(PAIR values) { return values.x; }                                     \
  inline float __high2float(PAIR values) { return values.y; }                                    \
  inline HALF __low2##NAME(PAIR values) { return values.x; }                                     \
  inline HALF __high2##NAME(PAIR values) { return values.y; }                                    \
  inline HALF __hadd(HALF a, HALF b) { return HALF(float(a) + float(b)); }                       \
  inline HALF __hsub(HALF a, HALF b) { return HALF(float(a) - float(b)); }                       \
  inline HALF __hmul(HALF a, HALF b) { return HALF(float(a) * float(b)); }                       \
  inline HALF __hfma(HALF a, HALF b, HALF c) { return HALF(::fmaf(a, b, c)); }                   \
  inline PAIR __hadd2(PAIR a, PAIR b) { return {__hadd(a.x, b.x), __hadd(a.y, b.y)}; }           \
  inline PAIR __hsub2(PAIR a, PAIR b) { return {__hsub(a.x, b.x), __hsub(a.y, b.y)}; }           \
  inline PAIR __hmul2(PAIR a, PAIR b) { return {__hmul(a.x, b.x), __hmul(a.y, b.y)}; }           \
  inline PAIR __hfma2(PAIR a, PAIR b, PAIR c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }
