// Forward and input gradient of small problems on NHWC images by kernels of 3, 5 and 7; see
// cuda_window_channels_last.cu.
#pragma once

#include "cuda_kernels.cuh"

namespace torchgraft::depthwise::cuda {

// kTransposed: the input gradient. bias may be null.
template <typename T, bool kTransposed>
void launch_window_channels_last(const T* source, const T* weight, const T* bias, T* result,
                                 const Geometry& geometry, cudaStream_t stream);

}  // namespace torchgraft::depthwise::cuda
