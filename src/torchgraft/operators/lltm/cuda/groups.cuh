// What the recurrences of a whole sequence share in which groups of blocks own rows of the batch: how blocks
// of a group meet, and how groups are launched.
#pragma once

#include <torchgraft/cuda.cuh>
#include <torchgraft/ptx.cuh>

#include <map>
#include <mutex>
#include <tuple>

#include "kernels.h"
#include "supports.h"

namespace torchgraft::lltm::cuda {

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

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

// What a launch of groups of so many blocks of the shape S is, but for the number of blocks.
template <typename S>
class GroupsConfig {
 public:
  GroupsConfig(int64_t blocks, int64_t shared_bytes, cudaStream_t stream = nullptr) {
    if constexpr (S::kWay == Way::cluster) {
      attribute_.id = cudaLaunchAttributeClusterDimension;
      attribute_.val.clusterDim.x = static_cast<unsigned>(blocks);
      attribute_.val.clusterDim.y = 1;
      attribute_.val.clusterDim.z = 1;
    } else if constexpr (S::kWay == Way::grid) {
      attribute_.id = cudaLaunchAttributeCooperative;
      attribute_.val.cooperative = 1;
    }
    config_.gridDim = dim3(static_cast<unsigned>(blocks));
    config_.blockDim = dim3(S::kBlock);
    config_.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
    config_.stream = stream;
    config_.attrs = &attribute_;
    config_.numAttrs = S::kWay == Way::block ? 0 : 1;
  }
  GroupsConfig(const GroupsConfig&) = delete;
  GroupsConfig& operator=(const GroupsConfig&) = delete;

  cudaLaunchConfig_t& operator*() { return config_; }
  cudaLaunchConfig_t* operator->() { return &config_; }

 private:
  cudaLaunchAttribute attribute_ = {};
  cudaLaunchConfig_t config_ = {};
};

// Whether the current device takes a kernel with groups of so many blocks, and so much shared memory in each.
template <typename S>
bool allow_groups(const void* function, int64_t blocks, int64_t shared_bytes) {
  constexpr int64_t kPortableBlocks = 8;
  if (S::kWay == Way::cluster && blocks > kPortableBlocks &&
      !set_attribute(function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1)) {
    return false;
  }
  return allow_shared_memory(function, shared_bytes);
}

// What Problem::resident tells, of the shape S; asked of the device once.
template <typename S>
int resident_groups(const void* function, int64_t blocks, int64_t shared_bytes) {
  static std::map<std::tuple<int, const void*, int64_t, int64_t>, int> known;
  static std::mutex mutex;
  const std::tuple key = {internal::current_device_index(), function, blocks, shared_bytes};
  return internal::made_once(known, mutex, key, [&] {
    if (!allow_groups<S>(function, blocks, shared_bytes)) return 0;
    // Of a grid as large as any that is asked for.
    GroupsConfig<S> config(blocks, shared_bytes);
    config->gridDim.x *= static_cast<unsigned>(current_device().multiprocessors / blocks);
    int resident = 0;
    cudaError_t error = cudaSuccess;
    if constexpr (S::kWay == Way::cluster) {
      error = cudaOccupancyMaxActiveClusters(&resident, function, &*config);
    } else {
      error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, function, S::kBlock,
                                                            static_cast<size_t>(shared_bytes));
    }
    if (error == cudaSuccess) return resident;
    cudaGetLastError();
    return 0;
  });
}

// Launches the kernel `function`, as `launch(config)` does.
template <typename S, typename Launch>
void launch_groups(const void* function, const Groups& groups, cudaStream_t stream, const Launch& launch) {
  const int64_t shared_bytes = S::shared_bytes(groups.rows, groups.blocks);
  TORCHGRAFT_CHECK(allow_groups<S>(function, groups.blocks, shared_bytes),
                   "lltm: a kernel was chosen that this device does not take");
  GroupsConfig<S> config(groups.blocks, shared_bytes, stream);
  config->gridDim = dim3(static_cast<unsigned>(groups.count * groups.blocks));
  launch(*config);
  check_launch("lltm");
}

}  // namespace torchgraft::lltm::cuda
