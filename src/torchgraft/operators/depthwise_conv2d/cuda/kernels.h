// What every kernel of a pass is given, and every kernel's launcher. Each lies in the file of its name: a
// folder is a technique, how bytes reach registers. Which of them serves is told in policy.h.
#pragma once

#include <cuda_runtime.h>

#include <torchgraft/dispatch.h>

#include "../geometry.h"
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

// T is one of float, Half, BFloat16 where nothing else is said.
template <typename T>
void launch_strips_correlate(const Correlation<T>& pass);
template <typename T>
void launch_strips_weight_grad(const WeightGrad<T>& pass);

template <typename T>
void launch_small_planes_correlate(const Correlation<T>& pass);
template <typename T>
void launch_small_planes_weight_grad(const WeightGrad<T>& pass);
void launch_small_planes_whole(const Correlation<float>& pass);

template <typename T>
void launch_tiles_correlate(const Correlation<T>& pass);
template <typename T>
void launch_tiles_weight_grad(const WeightGrad<T>& pass);

template <typename T>
void launch_slide_correlate(const Correlation<T>& pass);
template <typename T>
void launch_slide_columns(const Correlation<T>& pass);
template <typename T>
void launch_slide_window(const Correlation<T>& pass);
template <typename T>
void launch_slide_columns_weight_grad(const WeightGrad<T>& pass);
template <typename T>
void launch_slide_weight_grad(const WeightGrad<T>& pass);

// Half and BFloat16.
template <typename T>
void launch_slide_correlate_mma(const Correlation<T>& pass);
template <typename T>
void launch_slide_weight_grad_mma(const WeightGrad<T>& pass);
template <typename T>
void launch_bands_small(const Correlation<T>& pass);
template <typename T>
void launch_bands_batch(const Correlation<T>& pass);
template <typename T>
void launch_bands_large(const Correlation<T>& pass);
template <typename T>
void launch_diagonals_nchw(const WeightGrad<T>& pass);
template <typename T>
void launch_diagonals_nhwc(const WeightGrad<T>& pass);

// Double too; the columns not.
template <typename T>
void launch_gather_columns(const Correlation<T>& pass);
template <typename T>
void launch_gather_columns_nhwc(const Correlation<T>& pass);
template <typename T>
void launch_gather_small(const Correlation<T>& pass);
template <typename T>
void launch_gather_large(const Correlation<T>& pass);
template <typename T>
void launch_gather_any(const Correlation<T>& pass);
template <typename T>
void launch_gather_weight_grad(const WeightGrad<T>& pass);
template <typename T>
void launch_gather_weight_grad_any(const WeightGrad<T>& pass);

}  // namespace torchgraft::depthwise::cuda
