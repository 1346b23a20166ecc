// How groups of blocks that own rows of the batch are launched, and how many of them can be resident.
#pragma once

#include <torchgraft/dispatch.h>
#include <torchgraft/cuda.cuh>
#include <torchgraft/device.cuh>

#include <map>
#include <mutex>
#include <tuple>

#include "kernels.h"
#include "supports.h"

namespace torchgraft::lltm::cuda {

// Calls `function(Tag<S>{})` with the shape S of a kernel, which is in the list.
template <typename S, typename... More, typename Function>
auto with_shape(ShapeList<S, More...>, Kernel kernel, const Function& function) {
  if (kernel == S::kKernel) return function(Tag<S>{});
  if constexpr (sizeof...(More) > 0) {
    return with_shape(ShapeList<More...>{}, kernel, function);
  } else {
    fail("lltm: a kernel was chosen that its technique does not have");
  }
}

// The configuration of a launch of one group of blocks of the shape S.
template <typename S>
class GroupsConfig {
 public:
  GroupsConfig(int64_t blocks, int64_t shared_bytes, cudaStream_t stream = nullptr) {
    if constexpr (S::kGroup == Group::cluster) {
      attribute_.id = cudaLaunchAttributeClusterDimension;
      attribute_.val.clusterDim.x = static_cast<unsigned>(blocks);
      attribute_.val.clusterDim.y = 1;
      attribute_.val.clusterDim.z = 1;
    } else if constexpr (S::kGroup == Group::grid) {
      attribute_.id = cudaLaunchAttributeCooperative;
      attribute_.val.cooperative = 1;
    }
    config_.gridDim = dim3(static_cast<unsigned>(blocks));
    config_.blockDim = dim3(S::kBlock);
    config_.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
    config_.stream = stream;
    config_.attrs = &attribute_;
    config_.numAttrs = S::kGroup == Group::block ? 0 : 1;
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
  if (S::kGroup == Group::cluster && blocks > kPortableBlocks &&
      !set_attribute(function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1)) {
    return false;
  }
  return allow_shared_memory(function, shared_bytes);
}

// What Problem::resident tells, of the shape S, by the current device.
template <typename S>
int ask_resident_groups(const void* function, int64_t blocks, int64_t shared_bytes) {
  if (!allow_groups<S>(function, blocks, shared_bytes)) return 0;
  // Of a grid as large as any that is asked for.
  GroupsConfig<S> config(blocks, shared_bytes);
  config->gridDim.x *= static_cast<unsigned>(current_device().multiprocessors / blocks);
  int resident = 0;
  cudaError_t error = cudaSuccess;
  if constexpr (S::kGroup == Group::cluster) {
    error = cudaOccupancyMaxActiveClusters(&resident, function, &*config);
  } else {
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, function, S::kBlock,
                                                          static_cast<size_t>(shared_bytes));
  }
  if (error == cudaSuccess) return resident;
  cudaGetLastError();
  return 0;
}

// The same; asked of each device once.
template <typename S>
int resident_groups(const void* function, int64_t blocks, int64_t shared_bytes) {
  static std::map<std::tuple<int, const void*, int64_t, int64_t>, int> known;
  static std::mutex mutex;
  const std::tuple key = {internal::current_device_index(), function, blocks, shared_bytes};
  return internal::made_once(known, mutex, key,
                             [&] { return ask_resident_groups<S>(function, blocks, shared_bytes); });
}

// Launches a kernel with groups of the shape S.
template <typename S, typename... Parameters, typename... Arguments>
void launch_groups(void (*kernel)(Parameters...), const Groups& groups, cudaStream_t stream,
                   const Arguments&... arguments) {
  const int64_t shared_bytes = S::shared_bytes(groups.rows, groups.blocks);
  TORCHGRAFT_CHECK(allow_groups<S>(reinterpret_cast<const void*>(kernel), groups.blocks, shared_bytes),
                   "lltm: a kernel was chosen that this device does not take");
  GroupsConfig<S> config(groups.blocks, shared_bytes, stream);
  config->gridDim = dim3(static_cast<unsigned>(groups.count * groups.blocks));
  cudaLaunchKernelEx(&*config, kernel, arguments...);
  check_launch("lltm");
}

}  // namespace torchgraft::lltm::cuda
