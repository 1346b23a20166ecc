// Halves on tensor cores: conversions, products and the matrices that feed them, for float16 and bfloat16. Device
// code of compute capability 8.0 and later; earlier it compiles to nothing, for launchers that do not choose it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <torchgraft/dispatch.h>
#include <torchgraft/cuda.cuh>

#include "cuda_half_tile.cuh"

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
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
#endif
    return result;
  }
  // sums = a * b + start
  static __device__ void multiply_add(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                      const float* start) {
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%10, %11, %12, %13};"
        : "=f"(sums[0]), "=f"(sums[1]), "=f"(sums[2]), "=f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(start[0]), "f"(start[1]), "f"(start[2]),
          "f"(start[3]));
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
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
#endif
    return result;
  }
  // sums = a * b + start
  static __device__ void multiply_add(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                      const float* start) {
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%10, %11, %12, %13};"
        : "=f"(sums[0]), "=f"(sums[1]), "=f"(sums[2]), "=f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(start[0]), "f"(start[1]), "f"(start[2]),
          "f"(start[3]));
#endif
  }
};

__device__ inline uint32_t shared_address(const HalfBits* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ inline uint32_t load_volatile(uint32_t address) {
  uint32_t value;
  asm volatile("ld.volatile.shared.b32 %0, [%1];" : "=r"(value) : "r"(address));
  return value;
}

// Four 8 x 8 matrices of halves; the address of a lane is that of row lane % 8 of matrix lane / 8.
__device__ inline void load_matrices(uint32_t (&matrices)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(address));
}

// The other way, kCount of them (2 or 4), transposed: what a lane holds of a matrix are two elements of a column.
template <int kCount>
__device__ void store_transposed(const uint32_t (&matrices)[4], uint32_t address) {
#if __CUDA_ARCH__ >= 900
  if constexpr (kCount == 4) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                 "r"(matrices[0]), "r"(matrices[1]), "r"(matrices[2]), "r"(matrices[3])
                 : "memory");
  } else {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address),
                 "r"(matrices[0]), "r"(matrices[1])
                 : "memory");
  }
#else
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const uint32_t row = __shfl_sync(0xffffffff, address, 8 * i + lane / 4);
    uint32_t values;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(values) : "r"(matrices[i]));
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(row + lane % 4 * 4), "r"(values) : "memory");
  }
#endif
}

}  // namespace torchgraft::depthwise::cuda
