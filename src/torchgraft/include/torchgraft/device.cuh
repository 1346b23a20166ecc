// Properties of the current device and of compiled kernels, and dynamic shared memory: what a host function
// needs before it chooses a kernel and divides its work.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "checks.h"

namespace torchgraft {

// Shared memory in bytes. What a device does not tell is zero.
struct Device {
  int architecture = 0;  // as __CUDA_ARCH__ of what is compiled for it alone: 800 of compute capability 8.0
  int multiprocessors = 0;
  int shared_of_block = 0;  // at most, for a kernel that asks
  int shared_of_multiprocessor = 0;
  bool has_clusters = false;
  bool has_cooperative_launches = false;
};

namespace internal {

inline int current_device_index() {
  int index = 0;
  if (cudaGetDevice(&index) != cudaSuccess) fail("there is no current CUDA device");
  return index;
}

inline int device_attribute(cudaDeviceAttr attribute, int index) {
  int value = 0;
  if (cudaDeviceGetAttribute(&value, attribute, index) == cudaSuccess) return value;
  cudaGetLastError();
  return 0;
}

// The value of a key, which is made once; it stays where it is.
template <typename Key, typename Value, typename Make>
const Value& made_once(std::map<Key, Value>& values, std::mutex& mutex, const Key& key, const Make& make) {
  const std::lock_guard lock(mutex);
  const auto found = values.find(key);
  return found != values.end() ? found->second : values.emplace(key, make()).first->second;
}

}  // namespace internal

// The properties of the current device. CUDA is asked once for each device.
inline const Device& current_device() {
  static std::map<int, Device> devices;
  static std::mutex mutex;
  const int index = internal::current_device_index();
  return internal::made_once(devices, mutex, index, [&] {
    const auto attribute = [&](cudaDeviceAttr name) { return internal::device_attribute(name, index); };
    return Device{100 * attribute(cudaDevAttrComputeCapabilityMajor) +
                      10 * attribute(cudaDevAttrComputeCapabilityMinor),
                  attribute(cudaDevAttrMultiProcessorCount),
                  attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin),
                  attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor),
                  attribute(cudaDevAttrClusterLaunch) != 0,
                  attribute(cudaDevAttrCooperativeLaunch) != 0};
  });
}

// __CUDA_ARCH__ of the code of `kernel` that the current device runs, as 800; 0 where there is none that it
// can run. A device may be newer: it runs what was compiled for its generation's first, or compiles older PTX
// anew. So a kernel with instructions of one architecture is chosen by this, never by what the device is.
inline int architecture_of(const void* kernel) {
  static std::map<std::pair<int, const void*>, int> architectures;
  static std::mutex mutex;
  const std::pair<int, const void*> key = {internal::current_device_index(), kernel};
  return internal::made_once(architectures, mutex, key, [&] {
    cudaFuncAttributes attributes = {};
    if (cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess) return 10 * attributes.ptxVersion;
    cudaGetLastError();
    return 0;
  });
}

// How many blocks of a kernel, of `threads` threads and without dynamic shared memory, the current device
// runs at once; at least one.
template <typename... Arguments>
int64_t resident_blocks(void (*kernel)(Arguments...), int threads) {
  static std::map<std::pair<int, const void*>, int64_t> resident;
  static std::mutex mutex;
  const auto function = reinterpret_cast<const void*>(kernel);
  return internal::made_once(resident, mutex, {internal::current_device_index(), function}, [&] {
    int blocks = 0;
    if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, threads, 0) != cudaSuccess) {
      cudaGetLastError();
    }
    return int64_t{std::max(blocks, 1)} * current_device().multiprocessors;
  });
}

namespace {

// Never launched.
template <int = 0>
__global__ void compiled_as_this_file() {}

// architecture_of all kernels of the source file that calls this, and of others that are compiled with the
// same options.
template <int = 0>
int architecture_of_kernels() {
  return architecture_of(reinterpret_cast<const void*>(compiled_as_this_file<0>));
}

}  // namespace

// Sets an attribute of a kernel, and returns whether the device accepts it. A refusal leaves no error for the
// next launch.
[[nodiscard]] inline bool set_attribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (cudaFuncSetAttribute(kernel, attribute, value) == cudaSuccess) return true;
  cudaGetLastError();
  return false;
}

// Allows the blocks of a kernel this many bytes of dynamic shared memory, beside the `declared` ones. Returns
// whether the current device has so much.
[[nodiscard]] inline bool allow_shared_memory(const void* kernel, int64_t bytes, int64_t declared = 0) {
  constexpr int64_t kWithoutAsking = 48 << 10;
  if (bytes + declared <= kWithoutAsking) return true;
  return bytes <= INT32_MAX &&
         set_attribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
}

// The same, but throws if the device does not have so much. For plans that have checked it before.
inline void require_shared_memory(const void* kernel, int64_t bytes, const char* name, int64_t declared = 0) {
  if (!allow_shared_memory(kernel, bytes, declared)) {
    fail(name, ": ", bytes + declared, " bytes of shared memory a block are more than this device has");
  }
}
template <typename... Parameters>
void require_shared_memory(void (*kernel)(Parameters...), int64_t bytes, const char* name) {
  require_shared_memory(reinterpret_cast<const void*>(kernel), bytes, name);
}

}  // namespace torchgraft
