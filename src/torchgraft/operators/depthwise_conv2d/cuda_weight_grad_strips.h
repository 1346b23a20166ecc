// Weight gradient on NCHW planes, k = 3, 5, 7, stride 1 and 2, both passes: cuda_weight_grad_strips.cuh.
#pragma once

#include <cuda_runtime.h>

#include <torchgraft/dispatch.h>

#include "geometry.h"

namespace torchgraft::depthwise::cuda {

// T is one of float, Half, BFloat16; the workspace has room for most_chunks.
template <typename T>
void launch_weight_grad_strips(const T* output_grad, const T* input, T* weight_grad, float* workspace,
                               const Geometry& geometry, cudaStream_t stream);

}  // namespace torchgraft::depthwise::cuda
