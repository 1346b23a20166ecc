// The functions that a printed cell calls on CUDA. Those of float that nearly all cells call have no
// branches, so that the gates of a unit are computed side by side.
#pragma once

#include <torchgraft/ptx.cuh>

#include <cmath>
#include <type_traits>

namespace torchgraft::recurrence {

// e**x, within three units of the last place, or zero where that is less than the least normal number. `x` is
// multiplied by log2(e) first, and what that rounds is made up for while the exponential is on its way.
__device__ __forceinline__ float quick_exp(float x) {
  constexpr float kLog2E = 1.44269504f, kLog2ELow = 1.92596299e-8f, kLn2 = 0.693147181f;
  const float exponent = x * kLog2E;
  const float rest = kLn2 * fmaf(x, kLog2ELow, fmaf(x, kLog2E, -exponent));
  const float power = ptx::ex2_approx_ftz(exponent);
  // The rest of infinity is NaN, and an infinite power or one of zero has nothing to make up for.
  return fabsf(x) < 88.0f ? fmaf(power, rest, power) : power;
}

// tanh, of little by a polynomial.
__device__ __forceinline__ float quick_tanh(float x) {
  const float size = fabsf(x);
  const float square = x * x;
  float small = fmaf(square, 1.57394409e-2f, -5.23025580e-2f);
  small = fmaf(small, square, 1.33152470e-1f);
  small = fmaf(small, square, -3.33327681e-1f);
  small = fmaf(small * square, size, size);
  const float large = fmaf(-2.0f, ptx::rcp_approx_ftz(1.0f + quick_exp(2.0f * size)), 1.0f);
  return copysignf(size < 0.55f ? small : large, x);
}

struct CudaMath {
#define TORCHGRAFT_CELL_CALLS(NAME)               \
  template <typename T>                           \
  static __device__ __forceinline__ T NAME(T x) { \
    return ::NAME(x);                             \
  }
  TORCHGRAFT_CELL_CALLS(expm1)
  TORCHGRAFT_CELL_CALLS(log)
  TORCHGRAFT_CELL_CALLS(log1p)
  TORCHGRAFT_CELL_CALLS(erf)
  TORCHGRAFT_CELL_CALLS(sqrt)
  TORCHGRAFT_CELL_CALLS(sin)
  TORCHGRAFT_CELL_CALLS(cos)
  TORCHGRAFT_CELL_CALLS(atan)
#undef TORCHGRAFT_CELL_CALLS
  template <typename T>
  static __device__ __forceinline__ T abs(T x) {
    return ::fabs(x);
  }
  // Subnormal results are there too: times infinity they are infinite, and zero would be NaN.
  static __device__ __forceinline__ float exp_of_far_below(float x) {
    constexpr float kLog2E = 1.44269504f;
    return ptx::ex2_approx_ftz(fmaf(x, kLog2E, 24.0f)) * 0x1p-24f;
  }
  static constexpr float kFarBelow = -87.0f;
  template <typename T>
  static __device__ __forceinline__ T exp(T x) {
    if constexpr (std::is_same_v<T, float>) {
      const float far_below = exp_of_far_below(x);
      return x < kFarBelow ? far_below : quick_exp(x);
    } else {
      return ::exp(x);
    }
  }
  template <typename T>
  static __device__ __forceinline__ T tanh(T x) {
    if constexpr (std::is_same_v<T, float>) {
      return quick_tanh(x);
    } else {
      return ::tanh(x);
    }
  }
  // Of a number between one and infinity.
  template <typename T>
  static __device__ __forceinline__ T reciprocal(T x) {
    if constexpr (std::is_same_v<T, float>) {
      return ptx::rcp_approx_ftz(x);
    } else {
      return T(1) / x;
    }
  }
  template <typename T>
  static __device__ __forceinline__ T sigmoid(T x) {
    if constexpr (std::is_same_v<T, float>) {
      const float far_below = exp_of_far_below(x);
      return x < kFarBelow ? far_below : reciprocal(1.0f + quick_exp(-x));
    } else {
      return T(1) / (T(1) + ::exp(-x));
    }
  }
  template <typename T>
  static __device__ __forceinline__ T pow(T x, T y) {
    return ::pow(x, y);
  }
};

}  // namespace torchgraft::recurrence
