// Halves on tensor cores: conversions, products and the matrices that feed them, for float16 and bfloat16.
// Device code of compute capability 8.0 and later; compiled for earlier ones it ends the launch with an
// error, which host functions do not let happen: they choose by what kernels are compiled for.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <torchgraft/dispatch.h>
#include <torchgraft/cuda.cuh>
#include <torchgraft/ptx.cuh>

#include "half_tile.cuh"

namespace torchgraft::depthwise::cuda {

// Device code of products and conversions, for both kinds of halves.
template <typename T>
struct HalfMath;

template <>
struct HalfMath<Half> {
  static __device__ float to_float(HalfBits value) { return __half2float(__ushort_as_half(value)); }
  static __device__ HalfBits from_float(float value) { return __half_as_ushort(__float2half_rn(value)); }
  static __device__ bool is_nan(HalfBits value) { return (value & 0x7fff) > 0x7c00; }
  static __device__ uint32_t pack(float low, float high) {
    const __half2 both = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(both);
  }
  // The larger of each half, NaN if either is.
  static __device__ uint32_t max_nan(uint32_t a, uint32_t b) {
    uint32_t result = 0;
#if __CUDA_ARCH__ >= 800
    result = ptx::max_nan_f16x2(a, b);
#else
    __trap();
#endif
    return result;
  }
  // sums = a * b + start
  static __device__ void multiply_add(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                      const float* start) {
#if __CUDA_ARCH__ >= 800
    ptx::mma_m16n8k16_f16(sums, a, b0, b1, start);
#else
    __trap();
#endif
  }
  // sums += a * b, of half the depth
  static __device__ void multiply_add(float (&sums)[4], const uint32_t (&a)[2], uint32_t b) {
#if __CUDA_ARCH__ >= 800
    ptx::mma_m16n8k8_f16(sums, a[0], a[1], b);
#else
    __trap();
#endif
  }
};

template <>
struct HalfMath<BFloat16> {
  static __device__ float to_float(HalfBits value) { return __uint_as_float(uint32_t{value} << 16); }
  static __device__ HalfBits from_float(float value) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
  }
  static __device__ bool is_nan(HalfBits value) { return (value & 0x7fff) > 0x7f80; }
  static __device__ uint32_t pack(float low, float high) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(both);
  }
  static __device__ uint32_t max_nan(uint32_t a, uint32_t b) {
    uint32_t result = 0;
#if __CUDA_ARCH__ >= 800
    result = ptx::max_nan_bf16x2(a, b);
#else
    __trap();
#endif
    return result;
  }
  // sums = a * b + start
  static __device__ void multiply_add(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                      const float* start) {
#if __CUDA_ARCH__ >= 800
    ptx::mma_m16n8k16_bf16(sums, a, b0, b1, start);
#else
    __trap();
#endif
  }
  // sums += a * b, of half the depth
  static __device__ void multiply_add(float (&sums)[4], const uint32_t (&a)[2], uint32_t b) {
#if __CUDA_ARCH__ >= 800
    ptx::mma_m16n8k8_bf16(sums, a[0], a[1], b);
#else
    __trap();
#endif
  }
};

// sums += a * b, of half the depth.
template <typename T>
__device__ void multiply_add_narrow(float (&sums)[4], uint32_t a0, uint32_t a1, uint32_t b) {
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

__device__ inline uint32_t shared_address(const HalfBits* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Stores kCount 8 x 8 matrices (2 or 4), transposed: what a lane holds of a matrix are two elements of a
// column. The address of a lane is that of row lane % 8 of matrix lane / 8.
template <int kCount>
__device__ void store_transposed(const uint32_t (&matrices)[4], uint32_t address) {
#if __CUDA_ARCH__ >= 900
  ptx::stmatrix_trans<kCount>(address, matrices);
#else
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const uint32_t row = __shfl_sync(0xffffffff, address, 8 * i + lane / 4);
    ptx::store_shared(row + lane % 4 * 4, ptx::movmatrix_trans(matrices[i]));
  }
#endif
}

}  // namespace torchgraft::depthwise::cuda
