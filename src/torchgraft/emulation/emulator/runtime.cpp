// The functions of the CUDA runtime that host functions call, for the emulated device.
//
// A kernel has run when its launch returns, so that streams have nothing to do, and events are times of the
// host.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <optional>

#include "machine.h"

namespace {

using namespace emulation;

cudaError_t failed(cudaError_t error) { return machine().error = error; }

std::optional<size_t> find_attribute(cudaDeviceAttr attribute) {
  const Architecture& device = architecture();
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      return 1024;
    case cudaDevAttrWarpSize:
      return kWarp;
    case cudaDevAttrMultiProcessorCount:
      return multiprocessors();
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      return device.threads;
    case cudaDevAttrComputeCapabilityMajor:
      return device.capability / 10;
    case cudaDevAttrComputeCapabilityMinor:
      return device.capability % 10;
    case cudaDevAttrL2CacheSize:
      return 50 << 20;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      return kMostSharedUnasked;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      return device.shared_in_all;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return device.shared_of_block;
    case cudaDevAttrReservedSharedMemoryPerBlock:
      return device.shared_reserved;
    case cudaDevAttrCooperativeLaunch:
      return 1;
    case cudaDevAttrClusterLaunch:
      return device.capability >= 90 ? 1 : 0;
  }
  return std::nullopt;
}

}  // namespace

cudaError_t cudaGetLastError() { return std::exchange(machine().error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return machine().error; }

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorNoKernelImageForDevice:
      return "no kernel image is available for execution on the device";
    case cudaErrorLaunchOutOfResources:
      return "too many resources requested for launch";
    case cudaErrorCooperativeLaunchTooLarge:
      return "too many blocks in cooperative launch";
    case cudaErrorInvalidClusterSize:
      return "cluster misconfiguration";
    default:
      return "unknown error";
  }
}

// There is one device for each compute capability, so that what host functions remember of one is not taken
// for another one's.
cudaError_t cudaGetDevice(int* device) {
  *device = architecture().capability;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  const std::optional<size_t> found = find_attribute(attribute);
  if (!found) return failed(cudaErrorInvalidValue);
  *value = static_cast<int>(*found);
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  const Architecture& device = architecture();
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    if (value < 0 || static_cast<size_t>(value) > device.shared_of_block)
      return failed(cudaErrorInvalidValue);
    machine().allowed_shared[{device.capability, function}] = value;
  }
  if (attribute == cudaFuncAttributeNonPortableClusterSizeAllowed) {
    if (device.capability < 90 || most_of_cluster() < kMostOfCluster) return failed(cudaErrorInvalidValue);
    machine().allowed_large_clusters.insert({device.capability, function});
  }
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  const int capability = architecture().capability;
  if (compiled_for() > capability) return failed(cudaErrorNoKernelImageForDevice);
  *attributes = {compiled_for(), capability};
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int threads,
                                                          size_t shared) {
  const Architecture& device = architecture();
  const size_t of_threads = device.threads / static_cast<size_t>((threads + 31) / 32 * 32);
  const size_t taken = std::max<size_t>(shared + device.shared_reserved, 1);
  *blocks = static_cast<int>(std::min({of_threads, device.shared_in_all / taken, device.blocks}));
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void* function,
                                           const cudaLaunchConfig_t* config) {
  int resident = 0;
  const int threads = static_cast<int>(count_of(config->blockDim));
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, function, threads, config->dynamicSmemBytes);
  const int blocks = static_cast<int>(count_of(make_launch("", *config).cluster));
  if (blocks > most_of_cluster()) return failed(cudaErrorInvalidClusterSize);
  *clusters = resident * multiprocessors() / blocks;
  return cudaSuccess;
}

// A stream is captured while the variable TORCHGRAFT_EMULATED_CAPTURE is set. Then nobody can wait for it.
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  const bool captured = std::getenv("TORCHGRAFT_EMULATED_CAPTURE") != nullptr;
  *status = captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  static thread_local cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
  std::swap(*mode, current);
  return cudaSuccess;
}

// An event is the time that processors have spent in this process, so that other programs do not count.
struct EmulatedEvent {
  double milliseconds;
};

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new EmulatedEvent;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  event->milliseconds = static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaStreamIsCapturing(nullptr, &status);
  return status == cudaStreamCaptureStatusNone ? cudaSuccess : cudaErrorStreamCaptureUnsupported;
}

cudaError_t cudaEventQuery(cudaEvent_t) { return cudaErrorNotReady; }

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  *milliseconds = static_cast<float>(end->milliseconds - begin->milliseconds);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t) {
  if (!runs_launches()) return cudaSuccess;
  std::memset(memory, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
  if (!runs_launches()) return cudaSuccess;
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
