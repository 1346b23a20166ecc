// The recurrence of a whole sequence by steps, on tensor cores.
#pragma once

#include "cuda_recurrence.h"

namespace torchgraft::lltm::cuda {

// Each launches all steps of a pass, and says whether it did: not where kernels in float take less time, or
// the device has no such products. `weight` is the tensor of weight_hh.
bool launch_steps(const ForwardPass& pass, const Tensor& weight, cudaStream_t stream);
bool launch_steps(const BackwardPass& pass, const Tensor& weight, cudaStream_t stream);

}  // namespace torchgraft::lltm::cuda
