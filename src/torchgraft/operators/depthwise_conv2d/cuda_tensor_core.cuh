// Forward and input gradient of halves on tensor cores: stride 1, dilation 1, one output channel an input
// channel. What the kernels do is told in cuda_tensor_core.cu.
#pragma once

#include "cuda_stencil.cuh"

namespace torchgraft::depthwise::cuda {

// Whether the kernels below take this geometry. `aligned`: images lie on sixteen-byte boundaries.
bool serves_tensor_core(const Geometry& geometry, Layout layout, bool transposed, bool aligned);

// T is Half or BFloat16. transposed: source is the output gradient and result the input gradient.
template <typename T>
void launch_tensor_core(const T* source, const T* weight, const T* bias, T* result, const Geometry& geometry,
                        Layout layout, bool transposed, cudaStream_t stream);

// Of NCHW planes.
template <typename T>
void launch_tensor_core_planes(const T* source, const T* weight, const T* bias, T* result,
                               const Geometry& geometry, bool transposed, cudaStream_t stream);

}  // namespace torchgraft::depthwise::cuda
