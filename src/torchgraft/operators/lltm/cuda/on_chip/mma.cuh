// What the recurrences on tensor cores share.
//
// A number of float that goes into a product is two halves (split.cuh), side by side as two columns of
// the product. Both are multiplied with weight_hh, exactly, and summed in float; a lane holds the two sums
// next to each other and adds them. What the host made of weight_hh a thread keeps as fragments.
#pragma once

#include <torchgraft/dispatch.h>
#include <torchgraft/cuda.cuh>
#include <torchgraft/ptx.cuh>

#include <optional>
#include <type_traits>

#include "../groups.cuh"
#include "../kernels.h"
#include "../mma_weight.h"
#include "../split.cuh"

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

// Launches a kernel for which groups on the grid have memory, of so many bytes, to exchange numbers in.
template <typename S, typename Pass, typename T, typename Exchanged>
void launch_mma(void (*kernel)(Pass, FactorView<T>, int, int, uint32_t*, Exchanged*), const Pass& pass,
                const WeightFactor& factor, const Groups& groups, int64_t exchanged_bytes,
                cudaStream_t stream) {
  uint32_t* arrived = nullptr;
  Exchanged* memory = nullptr;
  std::optional<Tensor> workspace;
  if (S::kWay == Way::grid) {
    const int64_t bytes = kArrivedBytes * groups.count + exchanged_bytes;
    workspace = empty_workspace<float>(ceil_divide<int64_t>(bytes, sizeof(float)), factor.matrix);
    arrived = static_cast<uint32_t*>(workspace->mutable_data_ptr());
    memory = reinterpret_cast<Exchanged*>(arrived + kArrivedBytes / 4 * groups.count);
    const auto cleared = static_cast<size_t>(kArrivedBytes * groups.count);
    TORCHGRAFT_CHECK(cudaMemsetAsync(arrived, 0, cleared, stream) == cudaSuccess,
                     "lltm: memory could not be cleared");
  }
  launch_groups<S>(reinterpret_cast<const void*>(kernel), groups, stream,
                   [&](const cudaLaunchConfig_t& config) {
                     cudaLaunchKernelEx(&config, kernel, pass, FactorView<T>(factor), groups.blocks,
                                        groups.rows, arrived, memory);
                   });
}

}  // namespace torchgraft::lltm::cuda
