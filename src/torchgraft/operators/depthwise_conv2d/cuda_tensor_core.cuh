// Forward and input gradient of halves on tensor cores: stride 1, dilation 1, one output channel an input
// channel.
#pragma once

#include "cuda_stencil.cuh"

namespace torchgraft::depthwise::cuda {

// T is Half or BFloat16; bias may be null. transposed: source is the output gradient and result the input
// gradient. Of NCHW planes (cuda_tensor_core_planes.cu), and of NHWC images (cuda_tensor_core.cu).
template <typename T>
void launch_tensor_core_planes(const T* source, const T* weight, const T* bias, T* result,
                               const Geometry& geometry, bool transposed, cudaStream_t stream);
template <typename T>
void launch_tensor_core_channels_last(const T* source, const T* weight, const T* bias, T* result,
                                      const Geometry& geometry, bool transposed, cudaStream_t stream);

}  // namespace torchgraft::depthwise::cuda
