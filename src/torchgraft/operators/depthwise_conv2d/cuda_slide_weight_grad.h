// Weight gradient on NHWC images for kernels of 3, 5 and 7 by kernels that slide down the image; see
// cuda_slide_weight_grad.cuh.
#pragma once

#include "cuda_kernels.cuh"

namespace torchgraft::depthwise::cuda {

// Both passes. `workspace`: weight_grad_workspace elements. Whether it is launched: not where a row of the
// output gradient takes more blocks than the workspace has chunks.
template <typename T>
bool launch_slide_weight_grad(const T* output_grad, const T* input, T* weight_grad, float* workspace,
                              const Geometry& geometry, cudaStream_t stream);

}  // namespace torchgraft::depthwise::cuda
