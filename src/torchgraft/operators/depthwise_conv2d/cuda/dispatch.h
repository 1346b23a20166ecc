// The three passes on CUDA: each chooses a kernel (policy.h) and launches it. Everything is enqueued on a
// stream, nothing waits and nothing is allocated.
#pragma once

#include "kernels.h"

namespace torchgraft::depthwise::cuda {

// Batch > 0, weights contiguous, T one of double, float, Half, BFloat16.
template <typename T>
void correlate(const Correlation<T>& pass);
template <typename T>
void sum_weight_grad(const WeightGrad<T>& pass);

}  // namespace torchgraft::depthwise::cuda
