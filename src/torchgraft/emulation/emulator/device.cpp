// The limits of every compute capability, and the launches that exceed them: device.h.

#include "device.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "machine.h"

namespace emulation {
namespace {

constexpr Architecture kArchitectures[] = {
    {75, 64 << 10, 0, 64 << 10, 1024, 16},       {80, 163 << 10, 1024, 164 << 10, 2048, 32},
    {86, 99 << 10, 1024, 100 << 10, 1536, 16},   {87, 163 << 10, 1024, 164 << 10, 1536, 16},
    {89, 99 << 10, 1024, 100 << 10, 1536, 24},   {90, 227 << 10, 1024, 228 << 10, 2048, 32},
    {100, 227 << 10, 1024, 228 << 10, 2048, 32}, {103, 227 << 10, 1024, 228 << 10, 2048, 32},
    {120, 99 << 10, 1024, 100 << 10, 1536, 24},  {121, 99 << 10, 1024, 100 << 10, 1536, 24},
};
constexpr int kCompiledFor = EMULATED_CUDA_ARCH / 10;

// The permission is per device: a kernel that has it on one device does not have it on another.
std::pair<int, const void*> on_this_device(const void* function) {
  return {architecture().capability, function};
}

bool is_empty(const dim3& size) { return size.x == 0 || size.y == 0 || size.z == 0; }

cudaError_t refuse_sizes(const Launch& launch) {
  const dim3& grid = launch.grid;
  const dim3& block = launch.block;
  if (is_empty(grid) || is_empty(block)) return cudaErrorInvalidConfiguration;
  const bool is_too_large = grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535 || block.x > 1024 ||
                            block.y > 1024 || block.z > 64 || count_of(block) > 1024;
  return is_too_large ? cudaErrorInvalidConfiguration : cudaSuccess;
}

cudaError_t refuse_cluster(const Launch& launch, const void* function) {
  const dim3& cluster = launch.cluster;
  if (is_empty(cluster)) return cudaErrorInvalidClusterSize;
  const int blocks = static_cast<int>(count_of(cluster));
  if (blocks > 1 && architecture().capability < 90) return cudaErrorInvalidValue;
  const bool may_be_large = machine().allowed_large_clusters.contains(on_this_device(function));
  if (blocks > most_of_cluster() || (blocks > kMostOfClusterUnasked && !may_be_large)) {
    return cudaErrorInvalidClusterSize;
  }
  const bool divides =
      launch.grid.x % cluster.x == 0 && launch.grid.y % cluster.y == 0 && launch.grid.z % cluster.z == 0;
  return divides ? cudaSuccess : cudaErrorInvalidClusterSize;
}

// All blocks of a cooperative launch must be resident at once.
cudaError_t refuse_cooperative(const Launch& launch, const void* function) {
  int resident = 0;
  const int threads = static_cast<int>(count_of(launch.block));
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, function, threads, launch.dynamic_shared);
  const bool fits = count_of(launch.grid) <= static_cast<uint64_t>(resident) * multiprocessors();
  return fits ? cudaSuccess : cudaErrorCooperativeLaunchTooLarge;
}

}  // namespace

int from_environment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

const Architecture& architecture() {
  const int capability = from_environment("TORCHGRAFT_EMULATED_ARCHITECTURE", kCompiledFor);
  for (const Architecture& each : kArchitectures) {
    if (each.capability == capability) return each;
  }
  throw std::runtime_error("emulation: no device of compute capability " + std::to_string(capability) +
                           " is known");
}

const char* launches_only() { return std::getenv("TORCHGRAFT_EMULATED_LAUNCHES"); }

bool runs_launches() { return launches_only() == nullptr; }

int compiled_for() {
  return runs_launches() ? kCompiledFor : std::min(kCompiledFor, architecture().capability);
}

int multiprocessors() { return from_environment("TORCHGRAFT_EMULATED_MULTIPROCESSORS", 4); }

int most_of_cluster() { return from_environment("TORCHGRAFT_EMULATED_CLUSTER", kMostOfCluster); }

size_t allowed_shared(const void* function) {
  const auto& allowed = machine().allowed_shared;
  const auto found = allowed.find(on_this_device(function));
  return found == allowed.end() ? kMostSharedUnasked
                                : std::max(kMostSharedUnasked, static_cast<size_t>(found->second));
}

size_t allowed_shared_in_all(const void* function) {
  const bool asked = machine().allowed_shared.contains(on_this_device(function));
  return asked ? architecture().shared_of_block : kMostSharedUnasked;
}

cudaError_t refuse_launch(const Launch& launch, const void* function) {
  if (compiled_for() > architecture().capability) return cudaErrorNoKernelImageForDevice;
  if (const cudaError_t refused = refuse_sizes(launch); refused != cudaSuccess) return refused;
  if (launch.dynamic_shared > allowed_shared(function)) return cudaErrorInvalidValue;
  if (const cudaError_t refused = refuse_cluster(launch, function); refused != cudaSuccess) return refused;
  return launch.cooperative ? refuse_cooperative(launch, function) : cudaSuccess;
}

cudaError_t refuse_declared(const Launch& launch, const void* function, const Declarations& declared) {
  const uint64_t threads = count_of(launch.block);
  if (threads > static_cast<uint64_t>(declared.most_threads)) return cudaErrorLaunchOutOfResources;
  const size_t shared = launch.dynamic_shared + declared.static_shared;
  return shared > allowed_shared_in_all(function) ? cudaErrorInvalidValue : cudaSuccess;
}

}  // namespace emulation
