// How the blocks of a cluster write into each other's shared memory, how a thread adds up what they wrote,
// and how it copies ahead what the next steps need.
#pragma once

#include <torchgraft/async_copy.cuh>
#include <torchgraft/cuda.cuh>
#include <torchgraft/detail/counted_barriers.cuh>
#include <torchgraft/ptx.cuh>

namespace torchgraft::lltm::cuda {

using recurrence::CountedBarriers;

// load(0) + ... + load(count - 1), with kAtOnce loads in flight. In a plain loop the compiler would unroll
// only whole turns of kAtOnce: each load of the rest would wait for the one before, 0.2 us from L2. (On an
// H200 a step back on the grid took 3 us longer with 31 blocks than with 32.)
template <int kAtOnce, typename Load>
__device__ __forceinline__ float sum_of_loads(int count, const Load& load) {
  float sum = 0;
#pragma unroll 1
  for (int first = 0; first < count; first += kAtOnce) {
    float values[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) values[i] = first + i < count ? load(first + i) : 0.0f;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) sum += values[i];
  }
  return sum;
}

}  // namespace torchgraft::lltm::cuda
