// The recurrence of a whole sequence, forward and back: what it is of, and the kernels that are all of it.
#pragma once

#include <cuda_runtime.h>
#include <torchgraft/checks.h>
#include <torchgraft/dispatch.h>

#include <cstdint>
#include <optional>

#include "cuda_numbers.cuh"

namespace torchgraft::lltm::cuda {

// What is given and what is asked for is of the same dtype, what is kept in float.
struct ForwardPass {
  Numbers weight;      // weight_hh, (3 units, units)
  Numbers bias;        // (3 units), or none
  Numbers h0;          // (batch, units)
  Numbers c0;          // (batch, units)
  float* activations;  // (steps, batch, 3 units), in which the gates of the inputs come
  Results output;      // (steps, batch, units)
  float* cells;        // (steps, batch, units)
  int64_t steps;
  int64_t batch;
  int64_t units;
  bool reverse;
};

struct BackwardPass {
  Numbers weight;            // weight_hh, (3 units, units)
  const float* activations;  // (steps, batch, 3 units)
  const float* cells;        // (steps, batch, units)
  Numbers output_grad;       // (steps, batch, units), or none
  float* gates_grad;         // (steps, batch, 3 units)
  float* h_grad;             // (batch, units): of the last h, becomes that of the first
  float* c_grad;             // (batch, units), likewise
  int64_t steps;
  int64_t batch;
  int64_t units;
  bool reverse;
};

// Each launches the pass where the current device can hold all blocks at once that wait for each other, and
// says whether it did; where it did not, nothing was written. `weight` is the tensor of weight_hh.
//
// In true float32: in clusters, with at most so many rows each, for which the gradient of the output is
// converted; or on the grid, where everything is in float32. In clusters it is faster where both can.
bool launch_clusters(const ForwardPass& pass, cudaStream_t stream, int64_t most_rows = INT64_MAX);
bool launch_clusters(const BackwardPass& pass, const std::optional<Tensor>& output_grad, cudaStream_t stream,
                     int64_t most_rows = INT64_MAX);
bool launch_grid(const ForwardPass& pass, cudaStream_t stream);
bool launch_grid(const BackwardPass& pass, cudaStream_t stream);
// On tensor cores.
bool launch_tensor_cores(const ForwardPass& pass, const Tensor& weight, cudaStream_t stream);
bool launch_tensor_cores(const BackwardPass& pass, const Tensor& weight, cudaStream_t stream);

}  // namespace torchgraft::lltm::cuda
