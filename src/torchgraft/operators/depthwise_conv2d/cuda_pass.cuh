// What the choice of kernels is told of a call: its sizes, its images, and what the current device can do.
#pragma once

#include <torchgraft/device.cuh>

#include "cuda_choice.h"
#include "cuda_slide_stream.cuh"

namespace torchgraft::depthwise::cuda {

// A pass over two images, of results and sources or, in the weight gradient, of both sources.
template <typename T>
Pass make_pass(const Geometry& geometry, bool transposed, Layout layout, const T* image, const T* other) {
  // mma.sync of halves and cp.async are there where kernels are compiled for them, on whatever device.
  constexpr int kHalfTensorCores = 800;
  const Device& device = current_device();
  return {geometry,
          transposed,
          layout == Layout::channels_last,
          static_cast<int>(sizeof(T)),
          common_alignment(image, other),
          sizeof(T) == 2 && architecture_of_kernels() >= kHalfTensorCores,
          device.shared_of_block,
          device.multiprocessors};
}

// A choice that nothing launches is a mistake of ours.
[[noreturn]] inline void fail_without_launcher(Kernel kernel, int element_bytes) {
  fail("depthwise_conv2d: nothing launches kernel ", static_cast<int>(kernel), " for elements of ",
       element_bytes, " bytes");
}

}  // namespace torchgraft::depthwise::cuda
