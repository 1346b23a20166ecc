// Copies into shared memory ahead of their use, and what kernels need to know of a device.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <torchgraft/cuda.cuh>
#include <torchgraft/ptx.cuh>

#include <algorithm>

namespace torchgraft::shift::cuda {

// Begins a copy of 4, 8 or 16 bytes; before compute capability 8.0 it takes effect at once.
template <int kBytes>
__device__ __forceinline__ void copy_ahead(void* shared, const void* global) {
#if __CUDA_ARCH__ >= 800
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  if constexpr (kBytes == 16) {
    ptx::cp_async_cg(address, global);
  } else {
    ptx::cp_async_ca<kBytes>(address, global);
  }
#else
  using Piece = Vector<uint32_t, kBytes / 4>;
  *static_cast<Piece*>(shared) = *static_cast<const Piece*>(global);
#endif
}

// Ends a group of this thread's copies.
__device__ __forceinline__ void end_copies() {
#if __CUDA_ARCH__ >= 800
  ptx::cp_async_commit_group();
#endif
}

// Waits for all of this thread's groups but the latest kGroups.
template <int kGroups>
__device__ __forceinline__ void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  ptx::cp_async_wait_group<kGroups>();
#endif
}

// What the current device has.
struct Device {
  int processors = 0;
  int shared_of_processor = 0;
  int shared_of_block = 0;  // at most, for who asks

  Device() {
    int device = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    cudaDeviceGetAttribute(&shared_of_processor, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
    cudaDeviceGetAttribute(&shared_of_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  }

  // Blocks that are resident at once, of kernels whose registers let so many threads be.
  int resident_blocks(int threads, int64_t shared_bytes, int most_threads) const {
    constexpr int kReservedBytes = 1024;
    constexpr int kMostBlocks = 32;
    const int64_t blocks = std::min({int64_t{kMostBlocks}, int64_t{most_threads / threads},
                                     shared_of_processor / (shared_bytes + kReservedBytes)});
    return processors * static_cast<int>(std::max<int64_t>(blocks, 1));
  }
};

}  // namespace torchgraft::shift::cuda
