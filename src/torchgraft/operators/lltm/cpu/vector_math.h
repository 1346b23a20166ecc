// The unit's arithmetic on vector registers: sigmoid, elu, tanh, and a step forward and back.
//
// All three functions stand on one reduction, x = n ln 2 + r with |r| <= ln 2 / 2, from which both exp(x) and
// exp(x) - 1 follow without cancellation: exp(x) = 2^n (1 + p) with p = exp(r) - 1 as a polynomial. There are
// no branches; NaN goes through, as every comparison with it chooses the side that holds it.
//
// Each step of such a chain waits for the one before, so several vectors go through it abreast: a unit alone
// would take its latency, four times what its instructions take.
#pragma once

#include <torchgraft/cpu.h>

#include <cstdint>
#include <type_traits>

namespace torchgraft::lltm::cpu {

template <typename T>
struct Constants;

template <>
struct Constants<float> {
  using Bits = uint32_t;
  static constexpr float kRounding = 12582912.0f;  // 1.5 * 2**23: adding it leaves an integer
  static constexpr float kLn2High = 0.693359375f;
  static constexpr float kLn2Low = -2.12194440e-4f;
  static constexpr float kLog2E = 1.44269504f;
  static constexpr float kLeast = -87.0f;  // exp of less is no normal number
  static constexpr float kFlat = -40.0f;
  static constexpr int kMantissaBits = 23;
  static constexpr Bits kExponentBias = 127;
  static constexpr int kTerms = 7;
};

template <>
struct Constants<double> {
  using Bits = uint64_t;
  static constexpr double kRounding = 6755399441055744.0;  // 1.5 * 2**52
  static constexpr double kLn2High = 6.93147180369123816490e-01;
  static constexpr double kLn2Low = 1.90821492927058770002e-10;
  static constexpr double kLog2E = 1.44269504088896340736;
  static constexpr double kLeast = -708.0;
  static constexpr double kFlat = -350.0;
  static constexpr int kMantissaBits = 52;
  static constexpr Bits kExponentBias = 1023;
  static constexpr int kTerms = 14;
};

template <typename T, int kBytes>
struct Math {
  using V = Vector<T, kBytes>;
  using C = Constants<T>;
  using Bits = Vector<typename C::Bits, kBytes>;

  static constexpr T inverse_factorial(int n) {
    double factorial = 1;
    for (int k = 2; k <= n; ++k) factorial *= k;
    return static_cast<T>(1 / factorial);
  }

  // exp(x) = scale * (1 + fraction), for x <= 0; x becomes at least kLeast.
  template <int kCount>
  static TORCHGRAFT_INLINE void reduce(V (&x)[kCount], V (&scale)[kCount], V (&fraction)[kCount]) {
    V rest[kCount], sum[kCount];
    TORCHGRAFT_UNROLL
    for (int n = 0; n < kCount; ++n) {
      x[n] = x[n] < C::kLeast ? V{} + C::kLeast : x[n];
      scale[n] = x[n] * C::kLog2E + C::kRounding;
    }
    TORCHGRAFT_UNROLL
    for (int n = 0; n < kCount; ++n) {
      const V whole = scale[n] - C::kRounding;
      rest[n] = x[n] - whole * C::kLn2High - whole * C::kLn2Low;
      // rest + rest**2 * (1/2! + rest/3! + ...): the first term is exact.
      sum[n] = rest[n] * inverse_factorial(C::kTerms) + inverse_factorial(C::kTerms - 1);
    }
    TORCHGRAFT_UNROLL
    for (int k = C::kTerms - 2; k >= 2; --k) {
      TORCHGRAFT_UNROLL
      for (int n = 0; n < kCount; ++n) sum[n] = sum[n] * rest[n] + inverse_factorial(k);
    }
    TORCHGRAFT_UNROLL
    for (int n = 0; n < kCount; ++n) {
      fraction[n] = sum[n] * (rest[n] * rest[n]) + rest[n];
      scale[n] = reinterpret_cast<V>((reinterpret_cast<Bits>(scale[n]) << C::kMantissaBits) +
                                     (C::kExponentBias << C::kMantissaBits));
    }
  }

  // From the reduction of -|x|, of which `bounded` is left.
  static TORCHGRAFT_INLINE void sigmoid(V& x, const V& bounded, const V& scale, const V& fraction) {
    V power = scale + scale * fraction;
    power = bounded <= C::kLeast ? V{} : power;
    const V share = T(1) / (T(1) + power);
    x = x < T(0) ? power * share : share;
  }

  // From the reduction of the negative part of x.
  static TORCHGRAFT_INLINE void elu(V& x, const V& scale, const V& fraction) {
    x = x > T(0) ? x : scale * fraction + (scale - T(1));
  }

  // x becomes tanh(x), and slope what that is differentiated: 1 - tanh(x)**2, where it is small without
  // cancellation.
  template <int kCount>
  static TORCHGRAFT_INLINE void tanh(V (&x)[kCount], V (&slope)[kCount]) {
    V twice[kCount], scale[kCount], fraction[kCount];
    TORCHGRAFT_UNROLL
    for (int n = 0; n < kCount; ++n) twice[n] = x[n] < T(0) ? x[n] + x[n] : -(x[n] + x[n]);
    reduce(twice, scale, fraction);
    TORCHGRAFT_UNROLL
    for (int n = 0; n < kCount; ++n) {
      const V less = scale[n] * fraction[n] + (scale[n] - T(1));
      const V more = less + T(2);
      const V size = -less / more;
      const V tail = T(4) * (scale[n] + scale[n] * fraction[n]) / (more * more);
      slope[n] = size < T(0.75) ? T(1) - size * size : tail;
      // What is multiplied by less becomes a denormal number, with which a processor takes a hundred times as
      // long; a cell without a gate to forget by comes here in a few dozen steps.
      slope[n] = twice[n] <= C::kFlat ? V{} : slope[n];
      x[n] = x[n] < T(0) ? -size : size;
    }
  }

  // Gates become activations, and c becomes c'; h' comes out.
  template <int kCount>
  static TORCHGRAFT_INLINE void forward(V (&gates)[3][kCount], V (&c)[kCount], V (&h)[kCount]) {
    V bounded[3 * kCount], scale[3 * kCount], fraction[3 * kCount], slope[kCount];
    TORCHGRAFT_UNROLL
    for (int n = 0; n < kCount; ++n) {
      bounded[n] = gates[0][n] < T(0) ? gates[0][n] : -gates[0][n];
      bounded[kCount + n] = gates[1][n] < T(0) ? gates[1][n] : -gates[1][n];
      bounded[2 * kCount + n] = gates[2][n] > T(0) ? V{} : gates[2][n];
    }
    reduce(bounded, scale, fraction);
    TORCHGRAFT_UNROLL
    for (int n = 0; n < kCount; ++n) {
      sigmoid(gates[0][n], bounded[n], scale[n], fraction[n]);
      elu(gates[2][n], scale[2 * kCount + n], fraction[2 * kCount + n]);
      c[n] += gates[2][n] * gates[0][n];
      h[n] = c[n];
    }
    TORCHGRAFT_UNROLL
    for (int n = 0; n < kCount; ++n) {
      const int o = kCount + n;
      sigmoid(gates[1][n], bounded[o], scale[o], fraction[o]);
    }
    tanh(h, slope);
    TORCHGRAFT_UNROLL
    for (int n = 0; n < kCount; ++n) h[n] *= gates[1][n];
  }

  // Activations become the gradients of gates, c_grad that of the c before, and c' becomes h'.
  template <int kCount>
  static TORCHGRAFT_INLINE void backward(V (&gates)[3][kCount], V (&after)[kCount], const V (&h_grad)[kCount],
                                         V (&c_grad)[kCount]) {
    V slope[kCount];
    tanh(after, slope);
    TORCHGRAFT_UNROLL
    for (int n = 0; n < kCount; ++n) {
      const V i = gates[0][n], o = gates[1][n], z = gates[2][n];
      c_grad[n] += h_grad[n] * o * slope[n];
      const V rise = z > T(0) ? V{} + T(1) : z + T(1);
      gates[0][n] = c_grad[n] * z * i * (T(1) - i);
      gates[1][n] = h_grad[n] * after[n] * o * (T(1) - o);
      gates[2][n] = c_grad[n] * i * rise;
      after[n] *= o;
    }
  }

  // The first `count` elements, none where that is negative; the others are zero, and are not touched in
  // memory.
  static TORCHGRAFT_INLINE void load_some(V& vector, const T* from, int64_t count) {
    if (count >= kLanes) {
      load(vector, from);
    } else {
      T elements[kLanes] = {};
      for (int64_t l = 0; l < count; ++l) elements[l] = from[l];
      load(vector, elements);
    }
  }

  static TORCHGRAFT_INLINE void store_some(const V& vector, T* to, int64_t count) {
    if (count >= kLanes) {
      store(vector, to);
    } else {
      T elements[kLanes];
      store(vector, elements);
      for (int64_t l = 0; l < count; ++l) to[l] = elements[l];
    }
  }

  static constexpr int kLanes = kBytes / static_cast<int>(sizeof(T));
  // Vectors of units that go abreast, forward, where each has three gates, and back.
  static constexpr int kForward = kBytes == 64 ? 2 : 1;
  static constexpr int kBackward = kBytes == 64 ? 4 : 2;
};

}  // namespace torchgraft::lltm::cpu
