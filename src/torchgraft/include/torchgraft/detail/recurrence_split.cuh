// A number of float as the sum of two of T, float16 or bfloat16, which tensor cores multiply.
//
// `high` is a number rounded towards zero to T, and `low` the rest rounded to T: together 21 bits of it in
// float16 and 15 in bfloat16. float16 cannot hold numbers of any size, so numbers are multiplied by a power
// of two first, and products divided by it.
//
// Both have the sign of the number, and neither is zero where it is not: infinity times both adds up to
// infinity then, as infinity times the number does, and not to the NaN of inf - inf or inf * 0.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "../dispatch.h"

namespace torchgraft::recurrence {

// Half of a number, or where that is zero and the number is not, one of its sign that is next to nothing.
template <typename T>
__device__ __forceinline__ T unless_zero(T half, float number) {
  // Of bfloat16 the least that is not subnormal.
  constexpr unsigned kNextToNothing = std::is_same_v<T, Half> ? 1 : 0x80;
  const unsigned sign = __float_as_uint(number) >> 16 & 0x8000u;
  const bool is_lost = (half.x & 0x7fff) == 0 && number != 0.0f;
  return is_lost ? T(static_cast<uint16_t>(sign | kNextToNothing), T::from_bits()) : half;
}

template <typename T>
__device__ __forceinline__ T rounded_towards_zero(float number) {
  if constexpr (std::is_same_v<T, Half>) {
    return Half(__half_as_ushort(__float2half_rz(number)), Half::from_bits());
  } else {
    // By cutting bits off, as a conversion of one number takes many times as long. Some NaN turn infinite by
    // it; the rest of those is NaN.
    return BFloat16(static_cast<uint16_t>(__float_as_uint(number) >> 16), BFloat16::from_bits());
  }
}

// A number rounded to nearest, but to no zero.
template <typename T>
__device__ __forceinline__ T rounded_to_no_zero(float number) {
  return unless_zero(static_cast<T>(number), number);
}

template <typename T>
struct Split {
  __device__ explicit Split(float number) : high(rounded_towards_zero<T>(number)) {
    const float rest = isinf(number) ? number : number - static_cast<float>(high);
    low = unless_zero(static_cast<T>(rest), number);
    high = unless_zero(high, number);
  }

  T high;
  T low;
};

// The magnitude of a number, or zero where it is not finite.
__device__ __forceinline__ float finite_magnitude(float value) {
  const float size = fabsf(value);
  return size <= 3.4e38f ? size : 0.0f;
}

__device__ __forceinline__ float largest_of_warp(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  return value;
}

// For a block of whole warps.
__device__ __forceinline__ float largest_of_block(float value) {
  __shared__ float of_warps[32];
  const unsigned lane = threadIdx.x % 32;
  value = largest_of_warp(value);
  if (lane == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  return largest_of_warp(lane < blockDim.x / 32 ? of_warps[lane] : 0.0f);
}

// The power of two that brings a number, which is not negative, to between 2**14 and 2**15, as far as there
// is such a power: products of numbers scaled so lie in the middle of the range of float16.
__device__ __forceinline__ float power_to_fill_half(float number) {
  return __uint_as_float((268u - max(__float_as_uint(number) >> 23, 15u)) << 23);
}

}  // namespace torchgraft::recurrence
