// Large kernels on NCHW planes, stride and dilation 1, all three passes: cuda_planes.cuh and
// cuda_weight_grad_planes.cuh.
#pragma once

#include <cuda_runtime.h>

#include "geometry.h"

namespace torchgraft::depthwise::cuda {

// T is one of float, Half, BFloat16; bias may be null. Transposed: the input gradient.
template <typename T>
void launch_large_planes(const T* source, const T* weight, const T* bias, T* result, const Geometry& geometry,
                         bool transposed, cudaStream_t stream);

// The first pass; returns the number of chunks that it wrote.
template <typename T>
int launch_large_weight_grad_planes(const T* output_grad, const T* input, float* partial,
                                    const Geometry& geometry, cudaStream_t stream);

}  // namespace torchgraft::depthwise::cuda
