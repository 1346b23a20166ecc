// The arguments of every kernel of a pass, and the launcher of every kernel. A kernel is in the file of its
// name; a folder is a technique, how bytes reach registers. policy.h chooses the kernel.
#pragma once

#include <cuda_runtime.h>

#include <torchgraft/dispatch.h>

#include "../geometry.h"
#include "kernel_table.h"
#include "rounded.cuh"

namespace torchgraft::depthwise::cuda {

// A forward pass or, transposed, an input gradient. The input gradient gathers too: each input position adds
// up the output gradients that it had a part in, so that nothing is written twice and no sum depends on
// timing.
template <typename T>
struct Correlation {
  const T* source;
  Rounded<T> weight;
  Rounded<T> bias;  // may be none
  T* result;
  const Geometry& geometry;
  Layout layout;  // of both images, which are dense
  bool transposed;
  cudaStream_t stream;

  // Of the operator, for messages.
  const char* name() const { return transposed ? "depthwise_conv2d_input_grad" : "depthwise_conv2d"; }
};

// Where a weight gradient goes: rounded to T, or its sums as they are, which are float for halves. One of the
// two pointers is null.
template <typename T>
struct GradOfWeight {
  T* rounded;
  accumulate_t<T>* sums;

  // Where the partial sums of so many chunks go: those of a single chunk are the result's own.
  accumulate_t<T>* partials(int chunks, accumulate_t<T>* workspace) const {
    return chunks == 1 && sums != nullptr ? sums : workspace;
  }
  // What a kernel rounds to where so many chunks leave nothing to add up; else null.
  T* direct(int chunks) const { return chunks == 1 ? rounded : nullptr; }
};

template <typename T>
struct WeightGrad {
  static constexpr const char* kName = "depthwise_conv2d_weight_grad";

  const T* output_grad;
  const T* input;
  GradOfWeight<T> weight_grad;
  accumulate_t<T>* workspace;  // for most_chunks partial sums of each weight
  const Geometry& geometry;
  Layout layout;
  cudaStream_t stream;
};

// The launcher of each kernel, for the elements that its row of the table names.
#define TORCHGRAFT_LAUNCHER(NAME, LAUNCH, ...) \
  template <typename T>                        \
  void LAUNCH(const Correlation<T>& pass);
TORCHGRAFT_DEPTHWISE_CORRELATIONS(TORCHGRAFT_LAUNCHER)
#undef TORCHGRAFT_LAUNCHER
// rows_nhwc of a forward pass, with its results in NCHW.
template <typename T>
void launch_rows_nhwc_turned(const Correlation<T>& pass);
#define TORCHGRAFT_LAUNCHER(NAME, LAUNCH, ...) \
  template <typename T>                        \
  void LAUNCH(const WeightGrad<T>& pass);
TORCHGRAFT_DEPTHWISE_WEIGHT_GRADS(TORCHGRAFT_LAUNCHER)
#undef TORCHGRAFT_LAUNCHER

}  // namespace torchgraft::depthwise::cuda
