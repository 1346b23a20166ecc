// SiLU and its slope on vector registers.
#pragma once

#include <torchgraft/cpu_convert.h>

#include <limits>

namespace torchgraft::causal_conv1d {

template <typename A>
struct Exponent;

template <>
struct Exponent<float> {
  using Bits = uint32_t;
  static constexpr float kRounding = 0x1.8p23f;  // adding it leaves a whole number in the last bits
  static constexpr float kMost = 88;
  static constexpr int kMantissaBits = 23;
  static constexpr int kBias = 127;
  static constexpr int kTerms = 7;
};

template <>
struct Exponent<double> {
  using Bits = uint64_t;
  static constexpr double kRounding = 0x1.8p52;
  static constexpr double kMost = 708;
  static constexpr int kMantissaBits = 52;
  static constexpr int kBias = 1023;
  static constexpr int kTerms = 13;
};

template <typename A, int kBytes>
struct Silu {
  using V = Vector<A, kBytes>;
  using Bits = Vector<typename Exponent<A>::Bits, kBytes>;
  using E = Exponent<A>;
  static constexpr int64_t kLanes = kBytes / static_cast<int64_t>(sizeof(A));

  static constexpr A inverse_factorial(int n) {
    double factorial = 1;
    for (int k = 2; k <= n; ++k) factorial *= k;
    return static_cast<A>(1 / factorial);
  }

  // x becomes 1 + exp(-x): infinite where exp is beyond the numbers; NaN stays NaN.
  static TORCHGRAFT_INLINE void one_and_exponential(V& x) {
    const V power = -x;
    V bounded = power < -E::kMost ? V{} - E::kMost : power;
    bounded = bounded > E::kMost ? V{} + E::kMost : bounded;
    // exp(n ln 2 + rest) = 2**n exp(rest), with |rest| <= ln 2 / 2, where a Taylor series is short. ln 2 is
    // taken in two parts, of which n times the first is exact.
    V scale = bounded * A(1.4426950408889634) + E::kRounding;
    const V whole = scale - E::kRounding;
    const V rest = bounded - whole * A(0x1.62ep-1) - whole * A(0x1.0bfbe8e7bcd5ep-15);
    V series = V{} + inverse_factorial(E::kTerms);
    TORCHGRAFT_UNROLL
    for (int k = E::kTerms - 1; k >= 0; --k) series = series * rest + inverse_factorial(k);
    scale = reinterpret_cast<V>((reinterpret_cast<Bits>(scale) << E::kMantissaBits) +
                                (typename E::Bits{E::kBias} << E::kMantissaBits));
    x = power > E::kMost ? V{} + std::numeric_limits<A>::infinity() : series * scale;
    x += A(1);
  }

  static TORCHGRAFT_INLINE void silu(V& x) {
    V divisor = x;
    one_and_exponential(divisor);
    x /= divisor;
  }

  // x becomes how SiLU changes with it.
  static TORCHGRAFT_INLINE void silu_slope(V& x) {
    V share = x;
    one_and_exponential(share);
    share = A(1) / share;
    x = share * (A(1) + x * (A(1) - share));
  }
};

}  // namespace torchgraft::causal_conv1d
