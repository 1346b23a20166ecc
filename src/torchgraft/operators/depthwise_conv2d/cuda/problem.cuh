// The problem of a pass on the current device.
#pragma once

#include <torchgraft/cuda.cuh>
#include <torchgraft/device.cuh>

#include "kernels.h"
#include "problem.h"

namespace torchgraft::depthwise::cuda {

template <typename T>
Problem make_problem(const Geometry& geometry, bool transposed, Layout layout, int alignment) {
  // mma.sync of halves and cp.async are there where kernels are compiled for them, on whatever device.
  constexpr int kHalfTensorCores = 800;
  const Device& device = current_device();
  return {geometry,
          transposed,
          layout == Layout::channels_last,
          static_cast<int>(sizeof(T)),
          alignment,
          sizeof(T) == 2 && architecture_of_kernels() >= kHalfTensorCores,
          device.shared_of_block,
          device.multiprocessors};
}

template <typename T>
Problem make_problem(const Correlation<T>& pass) {
  return make_problem<T>(pass.geometry, pass.transposed, pass.layout,
                         common_alignment(pass.source, pass.result));
}

}  // namespace torchgraft::depthwise::cuda
