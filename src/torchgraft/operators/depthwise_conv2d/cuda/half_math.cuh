// Halves on tensor cores: conversions, products and the matrices that feed them, for float16 and bfloat16.
// Device code of compute capability 8.0 and later; compiled for earlier ones it ends the launch with an
// error, which host functions do not let happen: they choose by what kernels are compiled for.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <torchgraft/dispatch.h>
#include <torchgraft/async_copy.cuh>
#include <torchgraft/mma.cuh>

namespace torchgraft::depthwise::cuda {

// Kernels that move halves take float16 and bfloat16 alike.
using HalfBits = uint16_t;

// Clears shared memory; `elements` is a multiple of eight.
__device__ inline void clear_halves(HalfBits* shared, int elements) {
#pragma unroll 4
  for (int i = threadIdx.x * 8; i < elements; i += blockDim.x * 8) {
    *reinterpret_cast<uint4*>(shared + i) = make_uint4(0, 0, 0, 0);
  }
}

// Conversions of both kinds of halves.
template <typename T>
struct HalfMath {
  static constexpr bool kIsBFloat16 = std::is_same_v<T, BFloat16>;

  static __device__ float to_float(HalfBits value) {
    if constexpr (kIsBFloat16) {
      return __uint_as_float(uint32_t{value} << 16);
    } else {
      return __half2float(__ushort_as_half(value));
    }
  }
  static __device__ HalfBits from_float(float value) {
    if constexpr (kIsBFloat16) {
      return __bfloat16_as_ushort(__float2bfloat16_rn(value));
    } else {
      return __half_as_ushort(__float2half_rn(value));
    }
  }
  static __device__ bool is_nan(HalfBits value) { return (value & 0x7fff) > (kIsBFloat16 ? 0x7f80 : 0x7c00); }
  static __device__ uint32_t pack(float low, float high) {
    if constexpr (kIsBFloat16) {
      const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
      return reinterpret_cast<const uint32_t&>(both);
    } else {
      const __half2 both = __floats2half2_rn(low, high);
      return reinterpret_cast<const uint32_t&>(both);
    }
  }
  // The larger of each half, NaN if either is.
  static __device__ uint32_t max_nan(uint32_t a, uint32_t b) {
    uint32_t result = 0;
#if __CUDA_ARCH__ >= 800
    result = kIsBFloat16 ? ptx::max_nan_bf16x2(a, b) : ptx::max_nan_f16x2(a, b);
#else
    __trap();
#endif
    return result;
  }
};

// A half as kernels move it.
template <typename T>
__device__ HalfBits bits_of(T number) {
  return reinterpret_cast<const HalfBits&>(number);
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
