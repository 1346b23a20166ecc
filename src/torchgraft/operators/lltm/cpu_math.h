// The unit's arithmetic on vector registers: sigmoid, elu, tanh, and a step forward and back.
//
// All three functions stand on one reduction, x = n ln 2 + r with |r| <= ln 2 / 2, from which both exp(x) and
// exp(x) - 1 follow without cancellation: exp(x) = 2^n (1 + p) with p = exp(r) - 1 as a polynomial. There are
// no branches; NaN goes through, as every comparison with it chooses the side that holds it.
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

  // exp(x) = scale * (1 + fraction), for kLeast <= x <= 0.
  static TORCHGRAFT_INLINE void reduce(const V& x, V& scale, V& fraction) {
    const V shifted = x * C::kLog2E + C::kRounding;
    const V whole = shifted - C::kRounding;
    const V rest = x - whole * C::kLn2High - whole * C::kLn2Low;
    // rest + rest**2 * (1/2! + rest/3! + ...): the first term is exact.
    V sum = rest * inverse_factorial(C::kTerms) + inverse_factorial(C::kTerms - 1);
    TORCHGRAFT_UNROLL
    for (int k = C::kTerms - 2; k >= 2; --k) sum = sum * rest + inverse_factorial(k);
    fraction = sum * (rest * rest) + rest;
    scale = reinterpret_cast<V>((reinterpret_cast<Bits>(shifted) << C::kMantissaBits) +
                                (C::kExponentBias << C::kMantissaBits));
  }

  static TORCHGRAFT_INLINE void clamp(V& x) { x = x < C::kLeast ? V{} + C::kLeast : x; }

  static TORCHGRAFT_INLINE void sigmoid(V& x) {
    const V below = x < T(0) ? x : -x;
    V bounded = below;
    clamp(bounded);
    V scale, fraction;
    reduce(bounded, scale, fraction);
    V power = scale + scale * fraction;
    power = below < C::kLeast ? V{} : power;
    const V share = T(1) / (T(1) + power);
    x = x < T(0) ? power * share : share;
  }

  static TORCHGRAFT_INLINE void elu(V& x) {
    V bounded = x > T(0) ? V{} : x;
    clamp(bounded);
    V scale, fraction;
    reduce(bounded, scale, fraction);
    x = x > T(0) ? x : scale * fraction + (scale - T(1));
  }

  // x becomes tanh(x), and slope what that is differentiated: 1 - tanh(x)**2, where it is small without
  // cancellation.
  static TORCHGRAFT_INLINE void tanh(V& x, V& slope) {
    const V twice = x < T(0) ? x + x : -(x + x);
    V bounded = twice;
    clamp(bounded);
    V scale, fraction;
    reduce(bounded, scale, fraction);
    const V less = scale * fraction + (scale - T(1));
    const V more = less + T(2);
    const V size = -less / more;
    const V tail = T(4) * (scale + scale * fraction) / (more * more);
    slope = size < T(0.75) ? T(1) - size * size : tail;
    slope = twice < C::kLeast ? V{} : slope;
    x = x < T(0) ? -size : size;
  }

  // Gates become activations, and c becomes c'; h' comes out.
  static TORCHGRAFT_INLINE void forward(V& i, V& o, V& z, V& c, V& h) {
    sigmoid(i);
    sigmoid(o);
    elu(z);
    c += z * i;
    h = c;
    V slope;
    tanh(h, slope);
    h *= o;
  }

  // Activations become the gradients of gates, and c_grad that of the c before.
  static TORCHGRAFT_INLINE void backward(V& i, V& o, V& z, const V& c_after, const V& h_grad, V& c_grad) {
    V squashed = c_after, slope;
    tanh(squashed, slope);
    c_grad += h_grad * o * slope;
    const V of_i = c_grad * z * i * (T(1) - i);
    const V of_o = h_grad * squashed * o * (T(1) - o);
    const V rise = z > T(0) ? V{} + T(1) : z + T(1);
    z = c_grad * i * rise;
    i = of_i;
    o = of_o;
  }

  // The first `count` elements; the others are zero, and are not touched in memory.
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
};

}  // namespace torchgraft::lltm::cpu
