// What both directions share where a step is a product of PyTorch's and a kernel.
#pragma once

#include <torchgraft/dispatch.h>
#include <torchgraft/cuda.cuh>
#include <torchgraft/device.cuh>

#include <type_traits>

#include "../kernels.h"
#include "../mma_weight.h"
#include "../split.cuh"
#include "../unit.cuh"

namespace torchgraft::lltm::cuda {

constexpr int kThreads = 256;

// Threads of a block for so many units, such that all its turns but for a warp's rest are full.
inline unsigned threads_for(int64_t units, int64_t most) {
  return static_cast<unsigned>(ceil_divide<int64_t>(ceil_divide(units, ceil_divide(units, most)), 32) * 32);
}

// As many threads as units, rows by rows.
inline dim3 grid_of_units(int64_t rows, int64_t units, unsigned threads) {
  return dim3(grid_of(rows, "lltm"), static_cast<unsigned>(ceil_divide<int64_t>(units, threads)));
}

// What a step reads and writes beside its results.
template <typename Pass, typename Factor>
struct Steps {
  Pass pass;
  int64_t padded;              // units and what fills them up
  Factor* halves;              // (2 batch, padded) of h or (2 batch, 3 padded) of gradients of gates
  const float* sums;           // (2 batch, 3 padded) or (parts, 2 batch, padded): the product with those
  const float* weight_scales;  // (3 padded) or (padded), or null where weight_hh is as it was
  float* row_scales;           // (batch) of h0, or (2, ranges, batch): of gradients of gates, by turns
};

// The kernel of a step, but for the first, is launched while the product before it ends, where the device
// can, and waits here before it reads what a step wrote. (Of 64 rows and 2048 units, forward, a call took 466
// us instead of 528.)
__device__ __forceinline__ void wait_for_kernels_before() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

template <typename S>
void launch_step(void (*kernel)(S, int64_t), dim3 grid, unsigned threads, cudaStream_t stream, const S& steps,
                 int64_t step) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.stream = stream;
  config.attrs = &attribute;
  // A kernel that is compiled for less does not wait there.
  const bool waits = architecture_of(reinterpret_cast<const void*>(kernel)) >= 900;
  config.numAttrs = step > 0 && waits ? 1 : 0;
  cudaLaunchKernelEx(&config, kernel, steps, step);
  check_launch("lltm");
}

}  // namespace torchgraft::lltm::cuda
