// CPU kernels: elementary functions without branches or tables, which a compiler vectorizes in a loop.
//
// `std::tanh` in a loop is a call for each element. `vector_math::tanh` is inlined arithmetic, so in a
// function that is compiled for several instruction sets (`for_each_element`, TORCHGRAFT_CLONES) sixteen
// floats are computed at once. Half types convert to float, and the result is a float.
//
// Each function states a bound of its error, in units in the last place of the exact result, with and without
// fused multiply-adds. No error that was measured is larger; docs/kernels.md says on how many numbers, and
// benchmarks/vector_math.py measures. NaN gives NaN, subnormal numbers are neither read nor written as zero,
// an odd function keeps the sign of zero, and a function with a limit reaches it and never passes it.
//
// exp, expm1, tanh, sigmoid and erf share one reduction: x = n ln 2 + r with |r| <= ln 2 / 2, so that
// exp(x) = 2^n (1 + f), where f = exp(r) - 1 is a polynomial in r. Both exp(x) and exp(x) - 1 follow without
// cancellation. Polynomials are minimax, weighted by the relative error of the function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "cpu_convert.h"

namespace torchgraft::vector_math {

namespace internal {

// What follows takes numbers, and vector registers of numbers, as V.
template <typename V>
struct Parts {
  using Element = std::remove_cvref_t<decltype(std::declval<V&>()[0])>;
  using Bits = Vector<std::conditional_t<sizeof(Element) == 4, uint32_t, uint64_t>, sizeof(V)>;
};
template <>
struct Parts<float> {
  using Element = float;
  using Bits = uint32_t;
};
template <>
struct Parts<double> {
  using Element = double;
  using Bits = uint64_t;
};

template <typename T>
struct Constants;

template <>
struct Constants<float> {
  static constexpr int kMantissaBits = 23;
  static constexpr uint32_t kBias = 127;
  static constexpr float kWhole = 0x1.8p23f;  // adding it leaves a whole number, in the last bits
  static constexpr float kLog2E = 0x1.715476p+0f;
  static constexpr float kLn2High = 0x1.62ep-1f;  // times a whole number of up to 11 bits it is exact
  static constexpr float kLn2Low = 0x1.0bfbe8p-15f;
  static constexpr float kExpLeast = -104, kExpMost = 89;  // exp is 0 below, and infinity above
  static constexpr float kNearOne = 20;                    // exp(-20) is nothing beside 1
  static constexpr float kErfMost = 3.95f;                 // erf is 1 above
  static constexpr float kTiny = 0x1p-25f;                 // a square of less is nothing beside the number
  // (exp(r) - 1 - r) / r^2
  static constexpr float kExp[] = {0.5f,           0x1.555554p-3f,  0x1.5554b2p-5f,
                                   0x1.11118ap-7f, 0x1.6d71f8p-10f, 0x1.a032b0p-13f};
  // (2 atanh(s) - 2 s) / s^3, in s^2
  static constexpr float kLog[] = {0x1.55557ap-1f, 0x1.995eb6p-2f, 0x1.31e358p-2f};
  // erf(t) / t - 1 in t^2, for t < 1
  static constexpr float kErf[] = {0x1.06eba8p-3f, -0x1.81273ep-2f,  0x1.ce2cf8p-4f, -0x1.b7f90cp-6f,
                                   0x1.5405b0p-8f, -0x1.a3f6f6p-11f, 0x1.496a16p-14f};
  // -log(1 - erf(t)), for 1 <= t <= kErfMost
  static constexpr float kErfTail[] = {-0x1.1dd268p-15f, 0x1.20fef6p+0f, 0x1.44ddfcp-1f,   0x1.b6c05cp-4f,
                                       -0x1.906adep-6f,  0x1.02357ep-8f, -0x1.9b4c50p-12f, 0x1.2c5a24p-16f};
};

template <>
struct Constants<double> {
  static constexpr int kMantissaBits = 52;
  static constexpr uint64_t kBias = 1023;
  static constexpr double kWhole = 0x1.8p52;
  static constexpr double kLog2E = 0x1.71547652b82fep+0;
  static constexpr double kLn2High = 0x1.62e42feep-1;
  static constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  static constexpr double kExpLeast = -746, kExpMost = 710;
  static constexpr double kNearOne = 40;
  static constexpr double kErfMost = 5.95;
  static constexpr double kTiny = 0x1p-54;
  static constexpr double kExp[] = {0.5,
                                    0x1.5555555555559p-3,
                                    0x1.555555555553fp-5,
                                    0x1.111111110f6dap-7,
                                    0x1.6c16c16c1f081p-10,
                                    0x1.a01a01afd3e3fp-13,
                                    0x1.a01a017bc432dp-16,
                                    0x1.71ddf87eb6af6p-19,
                                    0x1.27e53630b4399p-22,
                                    0x1.af5e7508fdc32p-26,
                                    0x1.1ee88117d12f2p-29};
  static constexpr double kLog[] = {0x1.5555555555592p-1, 0x1.999999997fd79p-2, 0x1.24924941f4eecp-2,
                                    0x1.c71c5206101c8p-3, 0x1.74663fa0afedap-3, 0x1.39a1a718cb4a8p-3,
                                    0x1.2f06335e7a59fp-3};
  static constexpr double kErf[] = {0x1.06eba8214db69p-3,   -0x1.812746b0379e6p-2,  0x1.ce2f21a042b20p-4,
                                    -0x1.b82ce3128499cp-6,  0x1.565bcd0db02dfp-8,   -0x1.c02db3d8ed0c1p-11,
                                    0x1.f9a321a11a600p-14,  -0x1.f4d1df390133ap-17, 0x1.b9def199fd13ep-20,
                                    -0x1.5f1d369f69977p-23, 0x1.f7a410af277f7p-27,  -0x1.386abc1647205p-30,
                                    0x1.05799df6f771bp-34};
  static constexpr double kErfTail[] = {
      0x1.22ae4717dfe11p-25,  0x1.20dd70d5699ecp+0,   0x1.45f31b90bf876p-1,   0x1.a4f53d0ce1fd5p-4,
      -0x1.3981eb441bcd2p-6,  -0x1.88d131c6248edp-13, 0x1.b0ed7a17b1525p-10,  -0x1.12f7b10c5e6a3p-11,
      -0x1.91d6b77fb4365p-15, 0x1.10658ba7785b4p-13,  -0x1.3f275f59f014cp-14, 0x1.f28e35cb42918p-16,
      -0x1.2a945c26ef2a4p-17, 0x1.1e9d90ae0a788p-19,  -0x1.bfc7cd875568fp-22, 0x1.1d31f30bd1fb7p-24,
      -0x1.263e5ed3a0fedp-27, 0x1.e4c5fb197be34p-31,  -0x1.376ff88857254p-34, 0x1.2cb2c8df45a9bp-38,
      -0x1.9a4efbc431222p-43, 0x1.6094cea396f8fp-48,  -0x1.1edc06c0efee3p-54};
};

template <typename V>
using ConstantsOf = Constants<typename Parts<V>::Element>;

// sum = coefficients[0] + coefficients[1] x + ..., for several x abreast: each step waits for the one before.
template <typename V, int kCount, typename T, size_t kTerms>
TORCHGRAFT_INLINE void polynomial(const V (&x)[kCount], const T (&coefficients)[kTerms], V (&sum)[kCount]) {
  TORCHGRAFT_UNROLL
  for (int n = 0; n < kCount; ++n) sum[n] = x[n] * coefficients[kTerms - 1] + coefficients[kTerms - 2];
  TORCHGRAFT_UNROLL
  for (int k = static_cast<int>(kTerms) - 3; k >= 0; --k) {
    TORCHGRAFT_UNROLL
    for (int n = 0; n < kCount; ++n) sum[n] = sum[n] * x[n] + coefficients[k];
  }
}

}  // namespace internal

// exp(x) = 2^n (1 + fraction). The last bits of `power` hold n + 2 kBias, for power_of_two.
template <typename V, int kCount>
TORCHGRAFT_INLINE void reduce_exp(const V (&x)[kCount], V (&power)[kCount], V (&fraction)[kCount]) {
  using C = internal::ConstantsOf<V>;
  constexpr auto kShift = C::kWhole + 2 * C::kBias;
  V rest[kCount], sum[kCount];
  TORCHGRAFT_UNROLL
  for (int n = 0; n < kCount; ++n) {
    power[n] = x[n] * C::kLog2E + kShift;
    const V whole = power[n] - kShift;
    rest[n] = x[n] - whole * C::kLn2High - whole * C::kLn2Low;
  }
  internal::polynomial(rest, C::kExp, sum);
  TORCHGRAFT_UNROLL
  for (int n = 0; n < kCount; ++n) fraction[n] = sum[n] * (rest[n] * rest[n]) + rest[n];
}

// scale = 2^(n + more), which must be a normal number.
template <typename V>
TORCHGRAFT_INLINE void power_of_two(V& scale, const V& power, int more = 0) {
  using C = internal::ConstantsOf<V>;
  typename internal::Parts<V>::Bits bits;
  reinterpret(bits, power);
  const auto bias = C::kBias - static_cast<decltype(C::kBias)>(more);
  reinterpret(scale,
              typename internal::Parts<V>::Bits((bits << C::kMantissaBits) - (bias << C::kMantissaBits)));
}

// size = |x|.
template <typename V>
TORCHGRAFT_INLINE void magnitude(V& size, const V& x) {
  typename internal::Parts<V>::Bits bits;
  reinterpret(bits, x);
  reinterpret(size, typename internal::Parts<V>::Bits(bits << 1 >> 1));
}

// x becomes the magnitude of `size` with the sign of x.
template <typename V>
TORCHGRAFT_INLINE void give_sign(V& x, const V& size) {
  using Bits = typename internal::Parts<V>::Bits;
  constexpr int kLast = static_cast<int>(sizeof(typename internal::Parts<V>::Element)) * 8 - 1;
  Bits sign, bits;
  reinterpret(sign, x);
  reinterpret(bits, size);
  reinterpret(x, Bits((bits << 1 >> 1) | (sign >> kLast << kLast)));
}

namespace internal {

template <typename V>
TORCHGRAFT_INLINE void exp(V& x) {
  using C = ConstantsOf<V>;
  using Bits = typename Parts<V>::Bits;
  V bounded[1], power[1], fraction[1];
  bounded[0] = x < C::kExpLeast ? V{} + C::kExpLeast : x;
  bounded[0] = bounded[0] > C::kExpMost ? V{} + C::kExpMost : bounded[0];
  reduce_exp(bounded, power, fraction);
  // 2^n is the product of two numbers that are normal, also where exp is subnormal or just below infinity.
  Bits bits;
  reinterpret(bits, power[0]);
  V first, second;
  reinterpret(first, Bits(bits >> 1 << C::kMantissaBits));
  reinterpret(second, Bits((bits - (bits >> 1)) << C::kMantissaBits));
  x = (first + first * fraction[0]) * second;
}

template <typename V>
TORCHGRAFT_INLINE void expm1(V& x) {
  using C = ConstantsOf<V>;
  V bounded[1], power[1], fraction[1], half;
  bounded[0] = x < -C::kNearOne ? V{} - C::kNearOne : x;
  bounded[0] = bounded[0] > C::kExpMost ? V{} + C::kExpMost : bounded[0];
  reduce_exp(bounded, power, fraction);
  power_of_two(half, power[0], -1);
  const V result = (half * fraction[0] + (half - typename Parts<V>::Element(0.5))) * 2;
  V size;
  magnitude(size, x);
  x = size < C::kTiny ? x : result;
}

template <typename V>
TORCHGRAFT_INLINE void tanh(V& x) {
  using C = ConstantsOf<V>;
  V size, twice[1], power[1], fraction[1], scale;
  magnitude(size, x);
  size = size > C::kNearOne ? V{} + C::kNearOne : size;
  twice[0] = size * -2;
  reduce_exp(twice, power, fraction);
  power_of_two(scale, power[0]);
  // (1 - exp(-2|x|)) / (1 + exp(-2|x|)), each rounded once.
  const V above = (1 - scale) - scale * fraction[0], below = (1 + scale) + scale * fraction[0];
  give_sign(x, V(above / below));
}

template <typename V>
TORCHGRAFT_INLINE void sigmoid(V& x) {
  V size, power;
  magnitude(size, x);
  power = -size;
  exp(power);
  x = (x < 0 ? power : V{} + 1) / (power + 1);
}

template <typename V>
TORCHGRAFT_INLINE void erf(V& x) {
  using C = ConstantsOf<V>;
  V size[1], square[1], sum[1], power[1], fraction[1], scale;
  magnitude(size[0], x);
  square[0] = size[0] * size[0];
  polynomial(square, C::kErf, sum);
  const V near = size[0] + size[0] * sum[0];
  const V is_near = size[0];
  size[0] = size[0] > C::kErfMost ? V{} + C::kErfMost : size[0];
  polynomial(size, C::kErfTail, sum);
  sum[0] = -sum[0];
  reduce_exp(sum, power, fraction);
  power_of_two(scale, power[0]);
  const V far = (1 - scale) - scale * fraction[0];
  give_sign(x, V(is_near < 1 ? near : far));
}

// log(2^n m) for m = 1 + rest between sqrt(1/2) and sqrt(2).
template <typename V>
TORCHGRAFT_INLINE void log_of_parts(V& result, const V& n, const V& rest) {
  using C = ConstantsOf<V>;
  const V s = rest / (rest + 2);
  V square[1], sum[1];
  square[0] = s * s;
  polynomial(square, C::kLog, sum);
  const V half_square = rest * typename Parts<V>::Element(0.5) * rest;
  const V correction = s * (half_square + square[0] * sum[0]) + n * C::kLn2Low;
  result = n * C::kLn2High - ((half_square - correction) - rest);
}

// x = 2^n m for a positive normal x, with 2^(1 - n): 2^-n itself can be too small.
template <typename V>
TORCHGRAFT_INLINE void split(const V& x, V& n, V& m, V& inverse) {
  using C = ConstantsOf<V>;
  using Element = typename Parts<V>::Element;
  using Bits = typename Parts<V>::Bits;
  using Bit = std::remove_const_t<decltype(C::kBias)>;
  constexpr Bit kOne = C::kBias << C::kMantissaBits;
  // The bits of sqrt(1/2).
  constexpr Bit kLeast = sizeof(Element) == 4 ? Bit{0x3f3504f3} : static_cast<Bit>(0x3fe6a09e667f3bcd);
  constexpr Bit kMantissa = (Bit{1} << C::kMantissaBits) - 1;
  Bits bits, whole;
  reinterpret(bits, x);
  bits = bits + (kOne - kLeast);
  reinterpret(whole, V(V{} + C::kWhole));
  reinterpret(n, Bits(whole + (bits >> C::kMantissaBits)));
  n = n - (C::kWhole + C::kBias);
  reinterpret(m, Bits((bits & kMantissa) + kLeast));
  reinterpret(inverse, Bits(((2 * C::kBias + 1) << C::kMantissaBits) - (bits & ~kMantissa)));
}

template <typename V>
TORCHGRAFT_INLINE void log(V& x) {
  using Limits = std::numeric_limits<typename Parts<V>::Element>;
  using C = ConstantsOf<V>;
  constexpr typename Parts<V>::Element kRaise = 1 / Limits::epsilon();
  const V normal = x < Limits::min() ? x * kRaise : x;
  V n, m, inverse, result;
  split(normal, n, m, inverse);
  n = x < Limits::min() ? n - C::kMantissaBits : n;
  log_of_parts(result, n, V(m - 1));
  result = x < Limits::infinity() ? result : x;
  result = x == 0 ? V{} - Limits::infinity() : result;
  x = x < 0 ? V{} + Limits::quiet_NaN() : result;
}

template <typename V>
TORCHGRAFT_INLINE void log1p(V& x) {
  using Limits = std::numeric_limits<typename Parts<V>::Element>;
  const V sum = x + 1;
  V n, m, inverse, result;
  split(sum, n, m, inverse);
  // What the sum lost in rounding.
  const V lost = x - (sum - 1);
  log_of_parts(result, n, V((m - 1) + lost * inverse * typename Parts<V>::Element(0.5)));
  result = x + x == x ? x : result;  // zero of either sign, infinity
  result = x == -1 ? V{} - Limits::infinity() : result;
  x = x < -1 ? V{} + Limits::quiet_NaN() : result;
}

}  // namespace internal

// The exponential of x.
// Error in ulp: 0.99 float, 0.98 double.
template <FloatingType T>
TORCHGRAFT_INLINE accumulate_t<T> exp(T x) {
  accumulate_t<T> value = x;
  internal::exp(value);
  return value;
}

// exp(x) - 1, without cancellation where x is small.
// Error in ulp: 1.48 float, 1.98 double.
template <FloatingType T>
TORCHGRAFT_INLINE accumulate_t<T> expm1(T x) {
  accumulate_t<T> value = x;
  internal::expm1(value);
  return value;
}

// The natural logarithm of x: -inf for a zero of either sign, NaN for what is negative.
// Error in ulp: 0.85 float, 0.86 double.
template <FloatingType T>
TORCHGRAFT_INLINE accumulate_t<T> log(T x) {
  accumulate_t<T> value = x;
  internal::log(value);
  return value;
}

// log(1 + x), without cancellation where x is small: -inf for -1, NaN below.
// Error in ulp: 1.50 float, 1.50 double.
template <FloatingType T>
TORCHGRAFT_INLINE accumulate_t<T> log1p(T x) {
  accumulate_t<T> value = x;
  internal::log1p(value);
  return value;
}

// The hyperbolic tangent of x.
// Error in ulp: 2.00 float, 2.20 double.
template <FloatingType T>
TORCHGRAFT_INLINE accumulate_t<T> tanh(T x) {
  accumulate_t<T> value = x;
  internal::tanh(value);
  return value;
}

// 1 / (1 + exp(-x)), with the full precision of small results too.
// Error in ulp: 2.20 float, 2.40 double.
template <FloatingType T>
TORCHGRAFT_INLINE accumulate_t<T> sigmoid(T x) {
  accumulate_t<T> value = x;
  internal::sigmoid(value);
  return value;
}

// The error function of x, as of the exact GELU.
// Error in ulp: 1.30 float, 1.50 double.
template <FloatingType T>
TORCHGRAFT_INLINE accumulate_t<T> erf(T x) {
  accumulate_t<T> value = x;
  internal::erf(value);
  return value;
}

}  // namespace torchgraft::vector_math
