// The three passes on CPU, each in its own file. Images are dense in `layout`, weights contiguous, T one of
// double, float, Half, BFloat16; batch > 0.
#pragma once

#include "../geometry.h"

namespace torchgraft::depthwise::cpu {

// bias may be null.
template <typename T>
void forward(const T* input, const T* weight, const T* bias, T* output, const Geometry& geometry,
             Layout layout);

template <typename T>
void input_grad(const T* output_grad, const T* weight, T* input_grad, const Geometry& geometry,
                Layout layout);

// R is T or, for halves, float.
template <typename T, typename R>
void weight_grad(const T* output_grad, const T* input, R* weight_grad, const Geometry& geometry,
                 Layout layout);

}  // namespace torchgraft::depthwise::cpu
