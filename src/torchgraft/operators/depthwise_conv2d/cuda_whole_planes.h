// Forward and input gradient of kernels so large that every result meets every source, float32, NCHW planes
// of 7 x 7 and 14 x 14: cuda_whole_planes.cu.
#pragma once

#include <cuda_runtime.h>

#include "geometry.h"

namespace torchgraft::depthwise::cuda {

// bias may be null. Transposed: the input gradient.
void launch_whole_planes(const float* source, const float* weight, const float* bias, float* result,
                         const Geometry& geometry, bool transposed, cudaStream_t stream);

}  // namespace torchgraft::depthwise::cuda
