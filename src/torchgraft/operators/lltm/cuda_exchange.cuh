// What the recurrences of a whole sequence share in which groups of blocks own rows of the batch: how blocks
// of a group meet, and how groups are launched.
#pragma once

#include <torchgraft/cuda.cuh>
#include <torchgraft/ptx.cuh>

#include <algorithm>

#include "cuda_recurrence.h"

namespace torchgraft::lltm::cuda {

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// What a group of blocks is, and how its blocks meet: one block that meets nobody; a cluster, through shared
// memory; some blocks of a cooperative grid, through device memory.
enum class Way { block, cluster, grid };

// The two barriers of a block in a cluster, which count the bytes that all of its blocks write into its
// memory: those that a step waits for, in turn. A step's barrier is `step % 2`.
struct StepBarriers {
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
    __trap();  // not chosen where this is compiled for less
#endif
  }

  // Waits for what was written in the step before. The barrier then waits for the step after this one, which
  // one thread tells it: nothing of that comes before this block has written what belongs to this step.
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

// Numbers of device memory come into shared memory two steps before they are needed, since registers hold
// weight_hh: a thread fetches what it uses.
constexpr int kSlots = 2;

__device__ __forceinline__ void fetch_four_bytes([[maybe_unused]] float* to,
                                                 [[maybe_unused]] const float* from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  ptx::cp_async_ca<4>(shared_address(to), from);
#else
  __trap();
#endif
}

__device__ __forceinline__ void end_fetch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  ptx::cp_async_commit_group();
#endif
}

// All of this thread's fetches but the latest have come.
__device__ __forceinline__ void wait_for_fetch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  ptx::cp_async_wait_group<1>();
#endif
}

__device__ __forceinline__ void wait_for_all_fetches() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  ptx::cp_async_wait_all();
#endif
}

// How the blocks of a launch share out units and rows: a group has all units of its rows.
struct Groups {
  int blocks;  // of a group, S::kUnits units each
  int rows;    // of a group
  int64_t count;
};

inline bool may_be_grouped(int64_t batch, int64_t units) {
  return batch > 0 && batch < 65536 && units <= 1024;
}

// Launches the kernel `function`, as `launch` does, with as few rows a group as there is room for all groups
// at once; whether any number of rows fits, up to `most_rows`. S says how many units and threads a block has,
// what a group is, and the shared memory for so many rows. All blocks that meet are resident at once: a
// cluster is launched as one and waits for no other, a grid is launched cooperatively.
template <typename S, typename Launch>
bool launch_fitting_groups(const void* function, int64_t batch, int64_t units, cudaStream_t stream,
                           const Launch& launch, int64_t most_rows = INT64_MAX) {
  constexpr bool kCluster = S::kWay == Way::cluster;
  constexpr bool kGrid = S::kWay == Way::grid;
  const int blocks = static_cast<int>(ceil_divide<int64_t>(units, S::kUnits));
  const Device& device = current_device();
  const int64_t most_groups = device.multiprocessors / blocks;
  // Tensor cores and cp.async, and what the blocks of a cluster send each other.
  const int needed = kCluster ? 900 : 800;
  if (most_groups == 0 || architecture_of(function) < needed || (kCluster && !device.has_clusters) ||
      (kGrid && !device.has_cooperative_launches)) {
    return false;
  }
  if (kCluster && blocks > 8 && !set_attribute(function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1)) {
    return false;
  }

  cudaLaunchAttribute attribute = {};
  if (kCluster) {
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = static_cast<unsigned>(blocks);
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
  } else if (kGrid) {
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
  }
  cudaLaunchConfig_t config = {};
  config.blockDim = dim3(S::kBlock);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = kCluster || kGrid ? 1 : 0;
  const int64_t most_bytes = device.shared_of_block;
  // A block that meets no other may wait until there is room for it.
  constexpr int64_t kMostRowsOfBlock = 32;
  const int64_t even = ceil_divide(batch, most_groups);
  const int64_t least = kCluster || kGrid ? even : std::min(even, kMostRowsOfBlock);
  // Multiprocessors come in groups of the hardware, and those of one that are too few for a cluster stay
  // idle, so a few rows more than `least` may be needed.
  const int64_t most = std::min(2 * least + 2, most_rows);
  for (int64_t rows = least; rows <= most && S::shared_bytes(rows, blocks) <= most_bytes; ++rows) {
    const Groups groups = {blocks, static_cast<int>(rows), ceil_divide(batch, rows)};
    config.gridDim = dim3(static_cast<unsigned>(groups.count * blocks));
    config.dynamicSmemBytes = static_cast<size_t>(S::shared_bytes(rows, blocks));
    int resident = 0;
    if (!allow_shared_memory(function, S::shared_bytes(rows, blocks))) return false;
    bool is_known = false;
    if (kCluster) {
      is_known = cudaOccupancyMaxActiveClusters(&resident, function, &config) == cudaSuccess;
    } else {
      is_known = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, function, S::kBlock,
                                                               config.dynamicSmemBytes) == cudaSuccess;
      resident *= static_cast<int>(most_groups);
    }
    if (!is_known) {
      cudaGetLastError();
      return false;
    }
    if (resident < (kCluster || kGrid ? groups.count : 1)) continue;
    launch(config, groups);
    check_launch("lltm");
    return true;
  }
  return false;
}

}  // namespace torchgraft::lltm::cuda
