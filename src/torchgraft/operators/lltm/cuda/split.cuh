// A number of float as the sum of two of T, float16 or bfloat16, which tensor cores multiply.
//
// `high` is a number rounded to T, and `low` the rest rounded to T: together 22 bits of it in float16 and 16
// in bfloat16. float16 cannot hold numbers of any size, so numbers are multiplied by a power of two first,
// and products divided by it.
#pragma once

#include <torchgraft/dispatch.h>

namespace torchgraft::lltm::cuda {

template <typename T>
struct Split {
  __device__ explicit Split(float value) : high(static_cast<T>(value)) {
    const float rounded = static_cast<float>(high);
    low = static_cast<T>(isinf(rounded) ? 0.0f : value - rounded);
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

}  // namespace torchgraft::lltm::cuda
