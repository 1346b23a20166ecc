// The arguments of the kernels of volumes, and their launchers. Volumes are dense in the layout that a kernel
// takes, the batch is not empty, weights are contiguous. Everything is enqueued on a stream.
#pragma once

#include <cuda_runtime.h>

#include <torchgraft/dispatch.h>

#include "../../depthwise_conv2d/cuda/rounded.cuh"
#include "../../depthwise_conv2d/sizes.h"
#include "plan.h"

namespace torchgraft::depthwise::volumes {

using cuda::Rounded;

// A forward pass or, transposed, an input gradient.
template <typename T>
struct Correlation {
  const T* source;
  Rounded<T> weight;
  Rounded<T> bias;  // may be none
  T* result;
  const Geometry& geometry;
  bool transposed;
  cudaStream_t stream;

  // The operator, in messages.
  const char* name() const { return transposed ? "depthwise_conv3d_input_grad" : "depthwise_conv3d"; }
  int64_t source_planes() const { return transposed ? geometry.depth.output : geometry.depth.input; }
  int64_t result_planes() const { return transposed ? geometry.depth.input : geometry.depth.output; }
  int64_t result_channels() const { return transposed ? geometry.channels : geometry.output_channels(); }
};

template <typename T>
struct WeightGrad {
  static constexpr const char* kName = "depthwise_conv3d_weight_grad";

  const T* output_grad;
  const T* input;
  const Geometry& geometry;
  const Tensor& like;  // on the device
  cudaStream_t stream;
};

// Partial sums [part][output channel][tap] of a weight gradient. They are added up in order by another
// kernel, so that the bits are the same at each run.
struct Partials {
  Tensor memory;
  int parts;
};

template <typename T>
void launch_sweep(const Correlation<T>& pass);
template <typename T>
void launch_channels_last(const Correlation<T>& pass);
template <typename T>
void launch_phases(const Correlation<T>& pass);
template <typename T>
void launch_channels_last_phases(const Correlation<T>& pass);
template <typename T>
void launch_runs(const Correlation<T>& pass);
template <typename T>
void launch_any(const Correlation<T>& pass);
template <typename T>
Partials launch_sweep_weight_grad(const WeightGrad<T>& pass);
template <typename T>
Partials launch_channels_last_weight_grad(const WeightGrad<T>& pass);
template <typename T>
Partials launch_runs_weight_grad(const WeightGrad<T>& pass);
template <typename T>
Partials launch_any_weight_grad(const WeightGrad<T>& pass);

}  // namespace torchgraft::depthwise::volumes
