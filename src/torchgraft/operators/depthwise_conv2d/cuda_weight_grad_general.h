// Weight gradient of any geometry: what the kernels for small squares and for tiles do not serve. The kernel
// is in cuda_weight_grad_general.cu.
#pragma once

#include <cuda_runtime.h>

#include <torchgraft/dispatch.h>
#include <torchgraft/layout.h>

#include "geometry.h"

namespace torchgraft::depthwise::cuda {

// Both passes, or one where one will do; `partial` is the workspace of weight_grad.
template <typename T>
void launch_weight_grad_general(const T* output_grad, const T* input, T* weight_grad,
                                accumulate_t<T>* partial, const Geometry& geometry, Layout layout,
                                cudaStream_t stream);

}  // namespace torchgraft::depthwise::cuda
