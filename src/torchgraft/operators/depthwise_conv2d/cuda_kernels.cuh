// The three passes on CUDA, each in its own file. Images are dense in `layout`, weights contiguous, T one of
// double, float, Half, BFloat16; batch > 0. Everything is enqueued on `stream`, nothing waits and nothing is
// allocated.
#pragma once

#include <cuda_runtime.h>

#include <torchgraft/dispatch.h>

#include "geometry.h"

namespace torchgraft::depthwise::cuda {

// bias may be null.
template <typename T>
void forward(const T* input, const T* weight, const T* bias, T* output, const Geometry& geometry,
             Layout layout, cudaStream_t stream);

template <typename T>
void input_grad(const T* output_grad, const T* weight, T* input_grad, const Geometry& geometry, Layout layout,
                cudaStream_t stream);

// Elements of accumulate_t<T> that weight_grad needs for the partial sums of its blocks: one a weight, or up
// to 2**23 as long as that is at most a sixteenth of the elements of both images.
int64_t weight_grad_workspace(const Geometry& geometry, Layout layout);

template <typename T>
void weight_grad(const T* output_grad, const T* input, T* weight_grad, accumulate_t<T>* workspace,
                 const Geometry& geometry, Layout layout, cudaStream_t stream);

}  // namespace torchgraft::depthwise::cuda
