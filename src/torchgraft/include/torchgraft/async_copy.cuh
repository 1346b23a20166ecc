// Copies from device to shared memory that go on while a thread computes. Before compute capability 8.0 a
// copy takes effect at once.
#pragma once

#include <torchgraft/ptx.cuh>

#include <cstdint>

#include "cuda.cuh"

namespace torchgraft {

// An address as instructions on shared memory take it.
__device__ inline uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// Begins a copy of 4, 8 or 16 bytes, to an address of shared memory. Only 16 can bypass the first-level
// cache.
template <int kBytes, bool kBypassL1 = false>
__device__ __forceinline__ void copy_async(uint32_t shared, const void* global) {
#if __CUDA_ARCH__ >= 800
  if constexpr (kBypassL1 && kBytes == 16) {
    ptx::cp_async_cg(shared, global);
  } else {
    ptx::cp_async_ca<kBytes>(shared, global);
  }
#else
  __trap();
#endif
}

// The same by pointers. They keep their type: the compiler makes more code of strips_correlate where they do
// not.
template <int kBytes, bool kBypassL1 = false, typename T>
__device__ __forceinline__ void copy_async(T* shared, const T* global) {
#if __CUDA_ARCH__ >= 800
  copy_async<kBytes, kBypassL1>(static_cast<uint32_t>(__cvta_generic_to_shared(shared)), global);
#else
  using Piece = Vector<uint32_t, kBytes / 4>;
  *reinterpret_cast<Piece*>(shared) = *reinterpret_cast<const Piece*>(global);
#endif
}

// Ends a group of this thread's copies.
__device__ __forceinline__ void commit_copies() {
#if __CUDA_ARCH__ >= 800
  ptx::cp_async_commit_group();
#endif
}

// Waits for all of this thread's groups of copies but the latest kPending.
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  ptx::cp_async_wait_group<kPending>();
#endif
}

// Waits for all of this thread's copies, also those of no group yet.
__device__ __forceinline__ void wait_for_all_copies() {
#if __CUDA_ARCH__ >= 800
  ptx::cp_async_wait_all();
#endif
}

}  // namespace torchgraft
