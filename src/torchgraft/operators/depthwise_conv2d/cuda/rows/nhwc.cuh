// What the kernels of rows in NHWC share: how many channels a thread owns.
#pragma once

#include <torchgraft/cuda.cuh>

#include "supports.h"

namespace torchgraft::depthwise::cuda {

// Calls `launch` with the number of channels that a thread owns: as many as lie in one piece in both images,
// which are aligned to `alignment`.
template <typename T, typename Launch>
void with_pixel_channels(int64_t channels, int alignment, const Launch& launch) {
  const auto fits = [&](int count) {
    return channels % count == 0 && alignment % (count * static_cast<int>(sizeof(T))) == 0;
  };
  if (fits(4)) return launch.template operator()<4>();
  if (fits(2)) return launch.template operator()<2>();
  launch.template operator()<1>();
}

}  // namespace torchgraft::depthwise::cuda
