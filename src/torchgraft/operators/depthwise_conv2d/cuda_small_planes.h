// NCHW planes of 7 x 7, 14 x 14 and 28 x 28, k = 3, 5, 7, stride 1: cuda_small_planes.cuh and
// cuda_weight_grad_small_planes.cuh.
#pragma once

#include <cuda_runtime.h>

#include "geometry.h"

namespace torchgraft::depthwise::cuda {

// T is one of float, Half, BFloat16; bias may be null. Flipped: the input gradient.
template <typename T>
void launch_small_planes(const T* source, const T* weight, const T* bias, T* result, const Geometry& geometry,
                         bool flipped, cudaStream_t stream);

// Both passes of the weight gradient; the workspace has room for most_chunks.
template <typename T>
void launch_weight_grad_small_planes(const T* output_grad, const T* input, T* weight_grad, float* workspace,
                                     const Geometry& geometry, cudaStream_t stream);

}  // namespace torchgraft::depthwise::cuda
