// Forward and input gradient of large kernels of halves on tensor cores, narrow NCHW planes of many images,
// stride and dilation 1: cuda_tensor_core_batch.cu.
#pragma once

#include <cuda_runtime.h>

#include "geometry.h"

namespace torchgraft::depthwise::cuda {

// T is Half or BFloat16; bias may be null. Transposed: the input gradient.
template <typename T>
void launch_tensor_core_batch(const T* source, const T* weight, const T* bias, T* result,
                              const Geometry& geometry, bool transposed, cudaStream_t stream);

}  // namespace torchgraft::depthwise::cuda
