// What the kernels on tensor cores share.
//
// A number of float that goes into a product is two halves (split.cuh), side by side as two columns of the
// product. Both are multiplied with weight_hh, exactly, and summed in float; a lane holds the two sums next
// to each other and adds them. A thread keeps its part of weight_hh as fragments.
#pragma once

#include <cooperative_groups.h>
#include <torchgraft/dispatch.h>
#include <torchgraft/cuda.cuh>
#include <torchgraft/ptx.cuh>

#include <optional>
#include <type_traits>

#include "../groups.cuh"
#include "../mma_weight.h"
#include "../split.cuh"
#include "../unit.cuh"
#include "exchange.cuh"

namespace torchgraft::lltm::cuda {

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
#else
  __trap();  // not chosen where this is compiled for less
#endif
}

// Two numbers of T as a register of a fragment.
template <typename T>
__device__ __forceinline__ uint32_t pair_of(T first, T second) {
  return uint32_t{second.x} << 16 | first.x;
}

// Two numbers next to each other; zeros where they are not there.
template <typename T>
__device__ __forceinline__ uint32_t load_pair(const T* from, bool is_there) {
  return is_there ? *reinterpret_cast<const uint32_t*>(from) : 0u;
}

// A barrier of the blocks of a group on the grid, in which `arrivals`, zero at first, counts arrivals.
__device__ __forceinline__ void sync_group_of_grid(uint32_t* arrivals, uint32_t expected) {
  __syncthreads();
  if (threadIdx.x == 0) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700
    ptx::fence_gpu();
    atomicAdd(arrivals, 1u);
    while (static_cast<int32_t>(ptx::load_relaxed(arrivals) - expected) < 0) {
    }
    ptx::fence_gpu();
#endif
  }
  __syncthreads();
}

// Of device memory for a group's arrivals: a line of its own.
constexpr int64_t kArrivalBytes = 128;

// Launches a kernel; groups on the grid get so many bytes of device memory to exchange numbers in.
template <typename S, typename Pass, typename T, typename Exchanged>
void launch_mma(void (*kernel)(Pass, MmaWeightView<T>, int, int, uint32_t*, Exchanged*), const Pass& pass,
                const MmaWeight& weight, const Groups& groups, int64_t exchanged_bytes, cudaStream_t stream) {
  uint32_t* arrivals = nullptr;
  Exchanged* memory = nullptr;
  std::optional<Tensor> workspace;
  if (S::kGroup == Group::grid) {
    const int64_t bytes = kArrivalBytes * groups.count + exchanged_bytes;
    workspace = empty_workspace<float>(ceil_divide<int64_t>(bytes, sizeof(float)), weight.matrix);
    arrivals = static_cast<uint32_t*>(workspace->mutable_data_ptr());
    memory = reinterpret_cast<Exchanged*>(arrivals + kArrivalBytes / 4 * groups.count);
    const auto cleared = static_cast<size_t>(kArrivalBytes * groups.count);
    TORCHGRAFT_CHECK(cudaMemsetAsync(arrivals, 0, cleared, stream) == cudaSuccess,
                     "lltm: memory could not be cleared");
  }
  launch_groups<S>(kernel, groups, stream, pass, MmaWeightView<T>(weight), groups.blocks, groups.rows,
                   arrivals, memory);
}

}  // namespace torchgraft::lltm::cuda
