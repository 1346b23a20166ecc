// What lltm computes on CUDA: each function chooses a kernel (policy.h) and launches it. Nothing waits for
// the host.
#pragma once

#include "kernels.h"

namespace torchgraft::lltm::cuda {

// The recurrence over all steps; there are rows. In `forward` the tensor of the output may be replaced by one
// in the dtype of sums.
void forward(ForwardTensors& tensors, bool allow_tf32);
void backward(BackwardTensors& tensors, bool allow_tf32);

// Whether a cell's step pays as one kernel.
bool is_small_cell(const Sizes& sizes, ScalarType dtype);

// The gradients, from those of gates. T is the dtype of the call.
template <typename T>
Grads multiply_grads(const GradTensors& tensors);

}  // namespace torchgraft::lltm::cuda
