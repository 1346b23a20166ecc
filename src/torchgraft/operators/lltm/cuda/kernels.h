// The recurrence of a whole sequence, forward and back: what it is of, and the kernels that are all of it.
#pragma once

#include <cuda_runtime.h>
#include <torchgraft/checks.h>
#include <torchgraft/dispatch.h>

#include <cstdint>
#include <optional>

#include "dynamic_dtype.cuh"
#include "problem.h"

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

// Each launches a pass by a kernel of its own that supports the problem. `weight` is the tensor of weight_hh.
//
// On chip, for which the gradient of the output is converted; or on tensor cores.
void launch_on_chip(const Problem& problem, Kernel kernel, const ForwardPass& pass, cudaStream_t stream);
void launch_on_chip(const Problem& problem, Kernel kernel, BackwardPass pass,
                    const std::optional<Tensor>& output_grad, cudaStream_t stream);
void launch_on_chip_mma(const Problem& problem, Kernel kernel, const ForwardPass& pass, const Tensor& weight,
                        cudaStream_t stream);
void launch_on_chip_mma(const Problem& problem, Kernel kernel, const BackwardPass& pass, const Tensor& weight,
                        cudaStream_t stream);
// By steps, on tensor cores.
void launch_steps(Kernel kernel, const ForwardPass& pass, const Tensor& weight, cudaStream_t stream);
void launch_steps(Kernel kernel, const BackwardPass& pass, const Tensor& weight, cudaStream_t stream);
// On the grid, where everything is in float.
void launch_grid(const Problem& problem, Kernel kernel, const ForwardPass& pass, cudaStream_t stream);
void launch_grid(const Problem& problem, Kernel kernel, const BackwardPass& pass, cudaStream_t stream);

// What Problem::resident tells, of the kernels of each.
int resident_on_chip(const Problem& problem, Kernel kernel, int64_t blocks, int64_t shared_bytes);
int resident_on_chip_mma_forward(Kernel kernel, int64_t blocks, int64_t shared_bytes);
int resident_on_chip_mma_backward(const Problem& problem, Kernel kernel, int64_t blocks,
                                  int64_t shared_bytes);
int resident_on_grid(const Problem& problem, Kernel kernel, int64_t shared_bytes);

}  // namespace torchgraft::lltm::cuda
