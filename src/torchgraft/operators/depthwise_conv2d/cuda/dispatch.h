// The three passes on CUDA: each chooses a kernel (policy.h) and launches it. Everything is enqueued on a
// stream, nothing waits and nothing is allocated.
#pragma once

#include "kernels.h"

namespace torchgraft::depthwise::cuda {

// Batch > 0, weights contiguous, T one of double, float, Half, BFloat16.
template <typename T>
void correlate(const Correlation<T>& pass);

// Whether the kernel of a forward pass of so laid out sources can write its results in the other layout,
// which correlate_turned does.
template <typename T>
bool turns_results(const Geometry& geometry, Layout layout);
template <typename T>
void correlate_turned(const Correlation<T>& pass);

template <typename T>
void sum_weight_grad(const WeightGrad<T>& pass);

// How the images of a weight gradient are given to its kernels: in a layout, with channels of zeros behind
// their own or with none.
struct Arrangement {
  Layout layout;
  int64_t channels;
};
template <typename T>
Arrangement arrange_weight_grad(const Geometry& geometry, Layout asked);

}  // namespace torchgraft::depthwise::cuda
