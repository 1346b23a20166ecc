// How the sliding kernels share out a pass among blocks: host code alone, so that tests ask it on any
// machine.
#pragma once

#include "../supports.h"

namespace torchgraft::depthwise::cuda {

// The properties of a device that plans depend on; shared memory in bytes.
struct SlideDevice {
  int multiprocessors;
  int64_t shared_of_block, shared_of_multiprocessor;
};

// The number of blocks that are resident at once on a device.
inline int resident_blocks(const SlideDevice& device, int threads, int64_t shared_bytes,
                           int most_threads_resident) {
  constexpr int kReservedBytes = 1024;
  constexpr int kMostBlocks = 16;
  const int64_t blocks =
      std::min({int64_t{kMostBlocks}, int64_t{most_threads_resident / (ceil_divide(threads, 32) * 32)},
                device.shared_of_multiprocessor / (shared_bytes + kReservedBytes)});
  return device.multiprocessors * static_cast<int>(std::max<int64_t>(blocks, 1));
}

}  // namespace torchgraft::depthwise::cuda
