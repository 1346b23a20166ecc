// Forward and input gradient of NHWC halves by tensor cores that slide down the image; see
// cuda_slide_tensor_core.cuh.
#pragma once

#include "cuda_kernels.cuh"

namespace torchgraft::depthwise::cuda {

// T is Half or BFloat16; bias may be null. transposed: source is the output gradient and result the input
// gradient, of stride 1.
template <typename T>
void launch_slide_tensor_core(const T* source, const T* weight, const T* bias, T* result,
                              const Geometry& geometry, bool transposed, cudaStream_t stream);

}  // namespace torchgraft::depthwise::cuda
