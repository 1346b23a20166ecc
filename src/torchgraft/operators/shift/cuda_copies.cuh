// Copies into shared memory ahead of their use.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <torchgraft/cuda.cuh>
#include <torchgraft/ptx.cuh>

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

}  // namespace torchgraft::shift::cuda
