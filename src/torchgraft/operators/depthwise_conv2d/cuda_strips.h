// Forward and input gradient on NCHW planes, k = 3, 5, 7, stride 1 and 2: cuda_strips.cuh.
#pragma once

#include <cuda_runtime.h>

#include "geometry.h"

namespace torchgraft::depthwise::cuda {

// T is one of float, Half, BFloat16; bias may be null.
template <typename T>
void launch_strips(const T* source, const T* weight, const T* bias, T* result, const Geometry& geometry,
                   bool transposed, cudaStream_t stream);

}  // namespace torchgraft::depthwise::cuda
