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

// Matrices of rows whose elements lie side by side: the first elements of two of them are `step` apart, and
// those of two rows `row_step`.
struct Matrices {
  int64_t count;
  int64_t step;
  int64_t rows;
  int64_t row_step;
  int64_t columns;
};

// The transpose of each, one behind the other. Elements have 2, 4 or 8 bytes.
void transpose_each(const void* from, void* to, int64_t element_bytes, const Matrices& matrices);

}  // namespace torchgraft::depthwise::cpu
