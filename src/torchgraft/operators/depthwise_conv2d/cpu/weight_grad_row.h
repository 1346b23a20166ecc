// A row of the output gradient, as `weight_grad.cpp` sets it up for the loops of `weight_grad_vectors.cpp`.
#pragma once

#include <cstdint>

#include "rows.h"

namespace torchgraft::depthwise::cpu {

// A slice of one row of the output gradient, some vectors of channels, all of the taps.
template <typename A>
struct WeightGradRow {
  int64_t output_grad_offset;  // from the output gradient's row to the first pixel
  int64_t output_grad_step;    // elements from a pixel to the next
  int64_t count;               // pixels
  int64_t lanes;               // of a vector: a register's, or half of them
  int64_t vectors;
  VectorPlaces places;   // of the vectors, side by side in both images
  int64_t vector_step;   // elements from a vector's sums to the next one's
  int64_t input_offset;  // from the input's rows to the columns that are read
  int64_t input_step;    // elements from a column to the next
  int64_t width;         // columns of the input
  int64_t first_position;
  int64_t step;
  int64_t tap_step;
  int64_t taps;

  // For each row of the output gradient:
  const A* const* output_grads = nullptr;
  const A* const* inputs = nullptr;  // for each kernel row that meets the image: column 0 of the input's row,
  A* const* sums = nullptr;          // and the sums of the kernel's row, in vectors
  int64_t kernel_rows = 0;

  // Of a strip: its rows of the output gradient. Inputs and sums are those of every kernel row for each of
  // them, inputs null where that is padding. 0 where one row is taken by itself.
  int64_t strip_rows = 0;
};

// Adds the sums of a row to the totals that it points to.
void sum_weight_grad_row(const WeightGradRow<float>& row);
void sum_weight_grad_row(const WeightGradRow<double>& row);

}  // namespace torchgraft::depthwise::cpu
