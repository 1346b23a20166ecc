// The emulated GPU: what one of its compute capability has, and which launches it refuses.
//
// The GPU is the one that kernels are compiled for, unless the environment names another one.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "emulation.h"

namespace emulation {

// The limits of a compute capability, from the CUDA programming guide.
struct Architecture {
  int capability;          // as 75 or 90
  size_t shared_of_block;  // bytes that a block may have if it asks for them
  size_t shared_reserved;  // bytes of the multiprocessor that each block takes besides
  size_t shared_in_all;    // bytes of a multiprocessor
  size_t threads, blocks;  // that are resident on a multiprocessor at once
};

// The most shared memory that a block may have on any device, in bytes.
constexpr size_t kMostShared = 227 << 10;
// The most shared memory that a block may have if it does not ask for more.
constexpr size_t kMostSharedUnasked = 48 << 10;
// The most blocks of a cluster on any device, and those that a kernel may have if it does not ask for more.
constexpr int kMostOfCluster = 16;
constexpr int kMostOfClusterUnasked = 8;

// The declarations in the body of a kernel, known once its first thread has passed them.
struct Declarations {
  int most_threads = 1024;
  size_t static_shared = 0;
};

// An environment variable as a number.
int from_environment(const char* name, int otherwise);

const Architecture& architecture();

// The compute capability that kernels are compiled for. Where launches are only written down, kernels need
// not run, so that an older device takes them as a build for that device.
int compiled_for();

// The file to which launches are written, one a line, instead of being run; null: they are run. So the
// launches of calls of any size are seen, for any device.
const char* launches_only();

// The most blocks of a cluster: fewer where TORCHGRAFT_EMULATED_CLUSTER says so, as on a slice of a device.
int most_of_cluster();

// The most dynamic shared memory that blocks of a kernel may have, as far as cudaFuncSetAttribute was called.
size_t allowed_shared(const void* function);
// The most dynamic and static shared memory together.
size_t allowed_shared_in_all(const void* function);

// Why a device refuses a launch, or cudaSuccess: by what the launch itself says, and by what the kernel
// declares.
cudaError_t refuse_launch(const Launch& launch, const void* function);
cudaError_t refuse_declared(const Launch& launch, const void* function, const Declarations& declared);

inline size_t count_of(const dim3& size) { return size_t{size.x} * size.y * size.z; }

}  // namespace emulation
