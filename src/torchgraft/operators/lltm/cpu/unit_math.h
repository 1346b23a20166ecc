// The unit's arithmetic on vector registers: sigmoid, elu, tanh, and a step forward and back.
//
// All three functions use the reduction of torchgraft/vector_math.h, exp(x) = scale * (1 + fraction), once
// for each gate. They differ from the functions there in what a cell needs: several vectors abreast, tanh
// together with its slope, and zero in place of subnormal numbers, which are slow. There are no branches; NaN
// goes through, as every comparison with it chooses the side that holds it.
//
// Each step of such a chain waits for the one before, so several vectors go through it abreast: a unit alone
// would take its latency, four times what its instructions take.
#pragma once

#include <torchgraft/detail/cpu_products.h>
#include <torchgraft/vector_math.h>

#include <cstdint>

namespace torchgraft::lltm::cpu {

// Below `kLeast`, exp is taken as zero: it is no normal number, or 1 - tanh(x)^2 is none.
template <typename T>
struct Constants;

template <>
struct Constants<float> {
  static constexpr float kLeast = -87.0f;
  static constexpr float kFlat = -40.0f;
};

template <>
struct Constants<double> {
  static constexpr double kLeast = -708.0;
  static constexpr double kFlat = -350.0;
};

template <typename T, int kBytes>
struct Math : cpu_products::Lanes<T, kBytes> {
  using V = Vector<T, kBytes>;
  using C = Constants<T>;

  // exp(x) = scale * (1 + fraction), for x <= 0; x becomes at least kLeast.
  template <int kCount>
  static TORCHGRAFT_INLINE void reduce(V (&x)[kCount], V (&scale)[kCount], V (&fraction)[kCount]) {
    TORCHGRAFT_UNROLL
    for (int n = 0; n < kCount; ++n) x[n] = x[n] < C::kLeast ? V{} + C::kLeast : x[n];
    vector_math::reduce_exp(x, scale, fraction);
    TORCHGRAFT_UNROLL
    for (int n = 0; n < kCount; ++n) vector_math::power_of_two(scale[n], scale[n]);
  }

  // From the reduction of -|x|, of which `bounded` is left.
  static TORCHGRAFT_INLINE void sigmoid(V& x, const V& bounded, const V& scale, const V& fraction) {
    V power = scale + scale * fraction;
    power = bounded <= C::kLeast ? V{} : power;
    x = (x < T(0) ? power : V{} + T(1)) / (T(1) + power);
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
    for (int n = 0; n < kCount; ++n) {
      vector_math::magnitude(twice[n], x[n]);
      twice[n] *= T(-2);
    }
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
      vector_math::give_sign(x[n], size);
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

  // Vectors of units that go abreast, forward, where each has three gates, and back.
  static constexpr int kForward = kBytes == 64 ? 2 : 1;
  static constexpr int kBackward = kBytes == 64 ? 4 : 2;
};

}  // namespace torchgraft::lltm::cpu
