// The arithmetic of a unit on CUDA, in the type of sums.
#pragma once

#include <cuda_runtime.h>

#include <torchgraft/detail/recurrence_cuda_math.cuh>
#include <torchgraft/ptx.cuh>

namespace torchgraft::lltm::cuda {

// Gates become activations, and c becomes c'; h' is returned.
template <typename T>
__device__ __forceinline__ T step_forward(T& i, T& o, T& z, T& c) {
  i = T(1) / (T(1) + exp(-i));
  o = T(1) / (T(1) + exp(-o));
  z = z > T(0) ? z : expm1(z);
  c += z * i;
  return tanh(c) * o;
}

using recurrence::quick_exp;
using recurrence::quick_tanh;
__device__ __forceinline__ double quick_tanh(double x) { return tanh(x); }

// As step_forward in float, without branches, so that gates are computed side by side: within some five units
// of the last place.
__device__ __forceinline__ float step_forward_quick(float& i, float& o, float& z, float& c) {
  i = ptx::rcp_approx_ftz(1.0f + quick_exp(-i));
  o = ptx::rcp_approx_ftz(1.0f + quick_exp(-o));
  // expm1, of little by its series.
  float series = fmaf(z, 1.0f / 5040, 1.0f / 720);
  series = fmaf(series, z, 1.0f / 120);
  series = fmaf(series, z, 1.0f / 24);
  series = fmaf(series, z, 1.0f / 6);
  series = fmaf(series, z, 0.5f);
  series = fmaf(series * z, z, z);
  // The compiler would put a branch around it.
  float power = quick_exp(z);
  ptx::keep(power);
  const float below = z > -0.35f ? series : power - 1.0f;
  z = z > 0.0f ? z : below;
  c = fmaf(z, i, c);
  return quick_tanh(c) * o;
}

// What a unit's step back can compute before any gradient is known: the factors between the gradients of h
// and c and those of the gates.
template <typename T>
struct Slopes {
  T c_of_h;
  T i_of_c;
  T o_of_h;
  T z_of_c;

  Slopes() = default;
  __device__ __forceinline__ Slopes(T i, T o, T z, T c_after) {
    const T squashed = quick_tanh(c_after);
    c_of_h = o * (T(1) - squashed * squashed);
    i_of_c = z * i * (T(1) - i);
    o_of_h = squashed * o * (T(1) - o);
    z_of_c = i * (z > T(0) ? T(1) : z + T(1));
  }

  // The gradients of gates, and c_grad becomes that of the c before.
  __device__ __forceinline__ void step_back(T& i, T& o, T& z, T h_grad, T& c_grad) const {
    c_grad += h_grad * c_of_h;
    i = c_grad * i_of_c;
    o = h_grad * o_of_h;
    z = c_grad * z_of_c;
  }
};

// Activations become the gradients of gates, and c_grad that of the c before.
template <typename T>
__device__ __forceinline__ void step_back(T& i, T& o, T& z, T c_after, T h_grad, T& c_grad) {
  Slopes<T>(i, o, z, c_after).step_back(i, o, z, h_grad, c_grad);
}

}  // namespace torchgraft::lltm::cuda
