// What the gradients of a sequence, or of a large cell, are multiplied from.
#pragma once

#include <cuda_runtime.h>

#include "../../host.h"

namespace torchgraft::lltm::cuda {

// What a forward pass kept, and what it began with, from which h before each step follows.
template <typename Kept, typename T>
struct HiddenStates {
  const Kept* activations;  // (steps, batch, 3 units)
  const Kept* cells;        // (steps, batch, units)
  const T* h0;              // (batch, units)
  int64_t steps;
  int64_t batch;
  int64_t units;
  bool reverse;
};

// h before each step, (steps * batch, units).
template <typename Kept, typename T>
Tensor hidden_before(const HiddenStates<Kept, T>& states, const Tensor& like, cudaStream_t stream);

// The sums of a matrix's columns, rounded once to T; `largest`, unless it is null, becomes its largest finite
// number where that is larger.
template <typename Kept, typename T>
Tensor column_sums(const Tensor& matrix, float* largest, cudaStream_t stream);

// A matrix in two bytes, or one in float as the sum of two in two bytes.
struct Factor {
  Tensor high;
  std::optional<Tensor> low;
};

// The same of two bytes.
template <typename T>
Factor hidden_halves_before(const HiddenStates<float, T>& states, const Tensor& like, cudaStream_t stream);

// The gradients of gates in float, (rows, 3 units), as halves of T, which tensor cores multiply with sums in
// float. Results are rounded once, and have no elements where they are not wanted.
template <typename T>
class GateHalves {
 public:
  GateHalves(const Tensor& gates_grad, bool of_bias, cudaStream_t stream);

  // The sums over all rows.
  const Tensor& bias() const { return bias_; }

  // gates_grad @ weight
  Tensor times(bool is_wanted, const Tensor& weight) const;
  // gates_grad.T @ factor
  Tensor transposed_times(bool is_wanted, const Factor& factor) const;

 private:
  // Each row of a matrix two times.
  Tensor twice(const Tensor& matrix) const;
  // What sums (count, at least rows, columns) add up to.
  Tensor rounded(const Tensor& sums, int64_t rows) const;

  ScalarType dtype_;
  cudaStream_t stream_;
  int64_t width_;
  int64_t pitch_;
  Tensor halves_;  // (rows, 2 pitch): of each row the higher halves, then the lower ones
  Tensor bias_;
  std::optional<Tensor> largest_;  // the largest number, whose power of two float16 is multiplied by
};

}  // namespace torchgraft::lltm::cuda
