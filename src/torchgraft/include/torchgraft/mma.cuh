// Products of matrices of 16-bit numbers on tensor cores, with sums in float. T is Half or BFloat16. From
// compute capability 8.0 on; compiled for less, a product ends the launch with an error.
#pragma once

#include <torchgraft/ptx.cuh>

#include <cstdint>
#include <type_traits>

#include "dispatch.h"

namespace torchgraft {

// sums = a * b + start; a is 16 x 16, b 16 x 8.
template <typename T>
__device__ __forceinline__ void multiply_add(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1, const float* start) {
#if __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<T, Half>) {
    ptx::mma_m16n8k16_f16(sums, a, b0, b1, start);
  } else {
    ptx::mma_m16n8k16_bf16(sums, a, b0, b1, start);
  }
#else
  __trap();
#endif
}

// sums += a * b.
template <typename T>
__device__ __forceinline__ void multiply_add(float (&sums)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                             uint32_t a3, uint32_t b0, uint32_t b1) {
  const uint32_t a[4] = {a0, a1, a2, a3};
  multiply_add<T>(sums, a, b0, b1, sums);
}

// sums += a * b, of half the depth: a is 16 x 8, b 8 x 8.
template <typename T>
__device__ __forceinline__ void multiply_add(float (&sums)[4], uint32_t a0, uint32_t a1, uint32_t b) {
#if __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<T, Half>) {
    ptx::mma_m16n8k8_f16(sums, a0, a1, b);
  } else {
    ptx::mma_m16n8k8_bf16(sums, a0, a1, b);
  }
#else
  __trap();
#endif
}

}  // namespace torchgraft
