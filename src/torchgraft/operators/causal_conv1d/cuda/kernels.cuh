// Shared parts of the CUDA kernels: SiLU, an element of the past or the input, and what their launchers give
// back.
#pragma once

#include <torchgraft/cuda.cuh>
#include <torchgraft/packed.cuh>
#include <torchgraft/ptx.cuh>

#include "../host.h"

namespace torchgraft::causal_conv1d {

// Sums over parts of the batch and the time, as (parts, channels, width + 1): the gradients of a channel's
// weight and then that of its bias, to be added up in the order of the parts.
struct Partials {
  Tensor memory;
  int64_t parts;
};

template <typename T>
void forward_channels_first(const Forward<T>& call, cudaStream_t stream);
template <typename T>
void forward_channels_last(const Forward<T>& call, cudaStream_t stream);
template <typename T>
Partials backward_channels_first(const Backward<T>& call, const Tensor& like, cudaStream_t stream);
template <typename T>
Partials backward_channels_last(const Backward<T>& call, const Tensor& like, cudaStream_t stream);
// The output for any width where no sequences are packed; and all of the backward pass but the gradient of
// the initial state, for which the gradients of the sums before SiLU are left in `sums_grad`.
template <typename T>
void forward_wide(const Forward<T>& call, cudaStream_t stream);
template <typename T>
Partials backward_wide(const Backward<T>& call, accumulate_t<T>* sums_grad, const Tensor& like,
                       cudaStream_t stream);
// Any width, packed sequences, either layout.
template <typename T>
void forward_any(const Forward<T>& call, cudaStream_t stream);
template <typename T>
Partials backward_any(const Backward<T>& call, const Tensor& like, cudaStream_t stream);
template <typename T>
void run_update(const Update<T>& call, cudaStream_t stream);

__device__ inline float exponential(float value) { return expf(value); }
__device__ inline double exponential(double value) { return exp(value); }

// A value through the sigmoid, times `factor`. Where a result is rounded to two bytes the quick instructions
// do, which are off by some 1e-6 of it.
template <typename T>
__device__ accumulate_t<T> sigmoid(accumulate_t<T> value, accumulate_t<T> factor) {
  if constexpr (sizeof(T) == 2) {
    constexpr float kLog2E = 1.44269504f;
    return factor * ptx::rcp_approx_ftz(1 + ptx::ex2_approx_ftz(-kLog2E * value));
  } else {
    return factor / (1 + exponential(-value));
  }
}

template <typename T>
__device__ accumulate_t<T> silu(accumulate_t<T> value) {
  return sigmoid<T>(value, value);
}

// How SiLU changes with its argument.
template <typename T>
__device__ accumulate_t<T> silu_slope(accumulate_t<T> value) {
  const accumulate_t<T> share = sigmoid<T>(value, 1);
  return share * (1 + value * (1 - share));
}

// An element at a time from -(width - 1) on: of the past where that is negative. `input` and `state` point to
// those of one channel of one item; `state` may be null.
template <int kWidth, typename T>
__device__ T element_at(const T* input, int64_t input_step, const T* state, int64_t state_step, int time) {
  if (time >= 0) return input[time * input_step];
  return state == nullptr ? static_cast<T>(0.0f) : state[(time + kWidth - 1) * state_step];
}

// Where one channel of one item begins.
template <typename T>
__device__ T* row_of(const View<T>& view, int item, int channel) {
  return view.data + item * view.batch + channel * view.channel;
}

// The same of a tensor that need not be there; null stays null.
template <typename T>
__device__ T* channel_of(const View<T>& view, int item, int channel) {
  return view.data == nullptr ? nullptr : row_of(view, item, channel);
}

}  // namespace torchgraft::causal_conv1d
