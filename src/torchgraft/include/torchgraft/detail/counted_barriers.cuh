// How a block of a cluster waits for what the cluster's blocks write into its shared memory.
#pragma once

#include <torchgraft/ptx.cuh>

#include <cstdint>

namespace torchgraft::recurrence {

// The two barriers of a block in a cluster, which count the bytes that the cluster's blocks write into its
// shared memory. A step waits at the barrier `step % 2`.
struct CountedBarriers {
  uint32_t address;  // in shared memory

  // By a whole warp, before the blocks of the cluster meet for the first time.
  __device__ __forceinline__ void start([[maybe_unused]] uint32_t bytes) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    const bool tells = threadIdx.x % 32 == 0;
    for (uint32_t i = 0; i < 2; ++i) {
      if (tells) ptx::mbarrier_init(address + 8 * i, 1);
      __syncwarp();
      if (tells) ptx::mbarrier_arrive_expect_tx(address + 8 * i, bytes);
    }
    if (tells) ptx::fence_mbarrier_init();
#else
    __trap();  // never called: GPUs before 9.0 have no clusters, and no such kernel is chosen there
#endif
  }

  // Waits for what was written in the step before. One thread then tells the barrier how many bytes the step
  // after this one brings: none of them come before this block has written its own of this step.
  __device__ __forceinline__ void wait([[maybe_unused]] int64_t step, [[maybe_unused]] uint32_t bytes,
                                       [[maybe_unused]] bool tells) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    const uint32_t barrier = address + 8 * (static_cast<uint32_t>(step) % 2);
    ptx::mbarrier_wait(barrier, static_cast<uint32_t>(step - 1) / 2 % 2);
    if (tells) ptx::mbarrier_arrive_expect_tx(barrier, bytes);
#else
    __trap();
#endif
  }
  __device__ __forceinline__ void wait(int64_t step, uint32_t bytes) const {
    wait(step, bytes, threadIdx.x == 0);
  }
};

}  // namespace torchgraft::recurrence
