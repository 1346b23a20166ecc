// What the recurrences on tensor cores share: numbers in two halves, and the fragments of weight_hh that a
// thread keeps.
//
// A number of float that goes into a product is the sum of two of T, `high` and `low`: 22 bits of it in
// float16 and 16 in bfloat16. Side by side as two columns of one product, both are multiplied with weight_hh
// in T, exactly, and summed in float; a lane holds the two sums next to each other and adds them.
#pragma once

#include <torchgraft/dispatch.h>
#include <torchgraft/cuda.cuh>
#include <torchgraft/ptx.cuh>

#include <optional>
#include <type_traits>

#include "cuda_exchange.cuh"
#include "cuda_recurrence.h"

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

// How large a number is; zero of one that is not finite.
__device__ __forceinline__ float finite_size(float value) {
  const float size = fabsf(value);
  return size <= 3.4e38f ? size : 0.0f;
}

// The largest finite number of those of a row that a thread sees: `first` and each `stride` on.
template <typename T>
__device__ __forceinline__ float largest_finite(const T* row, int64_t count, int first, int stride) {
  float largest = 0.0f;
  for (int64_t k = first; k < count; k += stride) {
    largest = fmaxf(largest, finite_size(static_cast<float>(row[k])));
  }
  return largest;
}

__device__ __forceinline__ float largest_of_warp(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  return value;
}

// The power of two that brings a number, not a negative one, to 2**14 and above, as far as there is such a
// power: the products of what is scaled so lie in the middle of what float16 holds.
__device__ __forceinline__ float power_to_fill_half(float number) {
  return __uint_as_float((268u - max(__float_as_uint(number) >> 23, 15u)) << 23);
}

// sums += a * b, 16 x 16 with 16 x 8.
template <typename T>
__device__ __forceinline__ void multiply_add(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<T, Half>) {
    ptx::mma_m16n8k16_f16(sums, a, b0, b1, sums);
  } else {
    ptx::mma_m16n8k16_bf16(sums, a, b0, b1, sums);
  }
#endif
}

// Two numbers of T as a register of a fragment.
template <typename T>
__device__ __forceinline__ uint32_t pair_of(T first, T second) {
  return uint32_t{second.x} << 16 | first.x;
}

// A barrier of the blocks of a group on the grid, in which `arrived`, zero at first, counts arrivals.
__device__ __forceinline__ void meet_on_grid(uint32_t* arrived, uint32_t expected) {
  __syncthreads();
  if (threadIdx.x == 0) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700
    ptx::fence_gpu();
    atomicAdd(arrived, 1u);
    while (static_cast<int32_t>(ptx::load_relaxed(arrived) - expected) < 0) {
    }
    ptx::fence_gpu();
#endif
  }
  __syncthreads();
}

// Of device memory for a group's arrivals: a line of its own.
constexpr int64_t kArrivedBytes = 128;

// As launch_fitting_groups, of a kernel for which groups on the grid have memory to exchange numbers in.
template <typename S, typename Pass, typename Exchanged, typename Bytes>
bool launch_groups(void (*kernel)(Pass, int, int, uint32_t*, Exchanged*), const Pass& pass,
                   const Tensor& like, cudaStream_t stream, const Bytes& exchanged_bytes,
                   int64_t most_rows = INT64_MAX) {
  const auto launch = [&](const cudaLaunchConfig_t& config, const Groups& groups) {
    uint32_t* arrived = nullptr;
    Exchanged* memory = nullptr;
    std::optional<Tensor> workspace;
    if (S::kWay == Way::grid) {
      const int64_t bytes = kArrivedBytes * groups.count + exchanged_bytes(groups);
      workspace = empty_workspace<float>(ceil_divide<int64_t>(bytes, sizeof(float)), like);
      arrived = static_cast<uint32_t*>(workspace->mutable_data_ptr());
      memory = reinterpret_cast<Exchanged*>(arrived + kArrivedBytes / 4 * groups.count);
      const auto cleared = static_cast<size_t>(kArrivedBytes * groups.count);
      TORCHGRAFT_CHECK(cudaMemsetAsync(arrived, 0, cleared, stream) == cudaSuccess,
                       "lltm: memory could not be cleared");
    }
    cudaLaunchKernelEx(&config, kernel, pass, groups.blocks, groups.rows, arrived, memory);
  };
  return launch_fitting_groups<S>(reinterpret_cast<const void*>(kernel), pass.batch, pass.units, stream,
                                  launch, most_rows);
}

}  // namespace torchgraft::lltm::cuda
