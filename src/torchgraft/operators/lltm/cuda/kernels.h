// What the kernels of lltm are given, and the launcher of each. A kernel lies in the file of its name: a
// folder is a technique. Which kernel computes a call is told in policy.h.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <optional>

#include "../host.h"
#include "dynamic_dtype.cuh"
#include "problem.h"

namespace torchgraft::lltm::cuda {

// ---------------------------------------------------------------- the recurrence of a whole sequence

// Tensors are contiguous. What a call gives and asks for has one dtype; the others have that of sums.
struct ForwardTensors {
  Tensor weight_hh;            // (3 units, units)
  std::optional<Tensor> bias;  // (3 units)
  Tensor h0;                   // (batch, units)
  Tensor c0;                   // (batch, units)
  Tensor activations;          // (steps, batch, 3 units); before the call, the inputs' part of the gates
  Tensor output;               // (steps, batch, units)
  Tensor cells;                // (steps, batch, units)
  Sizes sizes;
  bool reverse;
  cudaStream_t stream;
  // h and c after the last step, each (batch, units), where the kernel has stored them.
  std::optional<std::array<Tensor, 2>> last = std::nullopt;
};

struct BackwardTensors {
  Tensor weight_hh;                   // (3 units, units)
  Tensor activations;                 // (steps, batch, 3 units)
  Tensor cells;                       // (steps, batch, units)
  std::optional<Tensor> output_grad;  // (steps, batch, units)
  Tensor gates_grad;                  // (steps, batch, 3 units)
  Tensor h_grad;                      // (batch, units): of the last h; becomes the gradient of h0
  Tensor c_grad;                      // (batch, units), likewise
  Sizes sizes;
  bool reverse;
  cudaStream_t stream;
};

// The same as kernels see it, where sums are float.
struct ForwardPass {
  DynamicInput weight;
  DynamicInput bias;
  DynamicInput h0;
  DynamicInput c0;
  float* activations;
  DynamicOutput output;
  float* cells;
  int64_t steps;
  int64_t batch;
  int64_t units;
  bool reverse;

  explicit ForwardPass(ForwardTensors& tensors)
      : weight(tensors.weight_hh),
        bias(tensors.bias),
        h0(tensors.h0),
        c0(tensors.c0),
        activations(mutable_data<float>(tensors.activations)),
        output(tensors.output),
        cells(mutable_data<float>(tensors.cells)),
        steps(tensors.sizes.steps),
        batch(tensors.sizes.batch),
        units(tensors.sizes.units),
        reverse(tensors.reverse) {}
};

struct BackwardPass {
  DynamicInput weight;
  const float* activations;
  const float* cells;
  DynamicInput output_grad;
  float* gates_grad;
  float* h_grad;
  float* c_grad;
  int64_t steps;
  int64_t batch;
  int64_t units;
  bool reverse;

  explicit BackwardPass(BackwardTensors& tensors)
      : weight(tensors.weight_hh),
        activations(data<float>(tensors.activations)),
        cells(data<float>(tensors.cells)),
        output_grad(tensors.output_grad),
        gates_grad(mutable_data<float>(tensors.gates_grad)),
        h_grad(mutable_data<float>(tensors.h_grad)),
        c_grad(mutable_data<float>(tensors.c_grad)),
        steps(tensors.sizes.steps),
        batch(tensors.sizes.batch),
        units(tensors.sizes.units),
        reverse(tensors.reverse) {}
};

void launch_few_units_forward(const Problem& problem, Kernel kernel, ForwardTensors& tensors);
void launch_few_units_backward(const Problem& problem, Kernel kernel, BackwardTensors& tensors);
void launch_on_chip_forward(const Problem& problem, Kernel kernel, ForwardTensors& tensors);
void launch_on_chip_backward(const Problem& problem, Kernel kernel, BackwardTensors& tensors);
void launch_on_chip_mma_forward(const Problem& problem, Kernel kernel, ForwardTensors& tensors);
void launch_on_chip_mma_backward(const Problem& problem, Kernel kernel, BackwardTensors& tensors);
void launch_grid_forward(const Problem& problem, Kernel kernel, ForwardTensors& tensors);
void launch_grid_backward(const Problem& problem, Kernel kernel, BackwardTensors& tensors);
void launch_steps_forward(const Problem& problem, Kernel kernel, ForwardTensors& tensors);
void launch_steps_backward(const Problem& problem, Kernel kernel, BackwardTensors& tensors);
void launch_elementwise_forward(const Problem& problem, Kernel kernel, ForwardTensors& tensors);
void launch_elementwise_backward(const Problem& problem, Kernel kernel, BackwardTensors& tensors);

// What Problem::resident tells, of the kernels whose blocks must all be resident.
int resident_on_chip_forward(const Problem& problem, Kernel kernel, int64_t blocks, int64_t shared_bytes);
int resident_on_chip_backward(const Problem& problem, Kernel kernel, int64_t blocks, int64_t shared_bytes);
int resident_on_chip_mma_forward(const Problem& problem, Kernel kernel, int64_t blocks, int64_t shared_bytes);
int resident_on_chip_mma_backward(const Problem& problem, Kernel kernel, int64_t blocks,
                                  int64_t shared_bytes);
int resident_grid_forward(const Problem& problem, Kernel kernel, int64_t shared_bytes);
int resident_grid_backward(const Problem& problem, Kernel kernel, int64_t shared_bytes);

// ---------------------------------------------------------------- one step

// A small cell in float: both products and the units. There are rows and units.
struct CellPass {
  const float* input;      // (batch, features)
  const float* h;          // (batch, units)
  const float* c;          // (batch, units)
  const float* weight_ih;  // (3 units, features)
  const float* weight_hh;  // (3 units, units)
  const float* bias;       // (3 units), or null
  float* activations;      // (batch, 3 units)
  float* h_after;          // (batch, units)
  float* c_after;          // (batch, units)
  int64_t batch;
  int64_t features;
  int64_t units;
};

void launch_cell_forward(const CellPass& pass, cudaStream_t stream);

// The units of one step, whose products have been made.
template <typename T>
struct ForwardStep {
  using A = accumulate_t<T>;
  const A* hidden_gates;  // (batch, 3 units), h @ weight_hh.T
  const T* bias;          // (3 units), or null
  const T* c;             // (batch, units)
  A* activations;         // (batch, 3 units); before the call, the input's part of the gates
  T* h_after;             // (batch, units)
  T* c_after;             // (batch, units)
  T* h_copy;              // (batch, units), or null: h_after where the next product reads it
  int64_t count;          // batch * units
  int64_t units;
};

template <typename T>
struct BackwardStep {
  using A = accumulate_t<T>;
  const A* activations;  // (batch, 3 units)
  const T* c;            // (batch, units), before the step, or after it where kAfter
  const T* h_grad;       // (batch, units), or null
  const T* output_grad;  // (batch, units), more of it, or null
  const T* c_grad;       // (batch, units), or null
  A* gates_grad;         // (batch, 3 units)
  T* c_before_grad;      // (batch, units)
  A* gates_grad_copy;    // (batch, 3 units), or null: gates_grad where the next product reads it
  int64_t count;         // batch * units
  int64_t units;
};

// T is any floating type.
template <typename T>
void launch_elementwise_step(const ForwardStep<T>& step, cudaStream_t stream);
template <bool kAfter, typename T>
void launch_elementwise_step(const BackwardStep<T>& step, cudaStream_t stream);

// Two tensors of (batch, units) as new ones of one dtype, in one launch where that is not float64. What is
// absent is zeros.
std::array<Tensor, 2> copies_of_states(const std::optional<Tensor>& one, const std::optional<Tensor>& other,
                                       const Sizes& sizes, ScalarType dtype, const Tensor& like,
                                       cudaStream_t stream);

// ---------------------------------------------------------------- products

// As `multiply` chooses; the first for matrices of two bytes alone.
void launch_products_in_parts(const Tensor& left, const Tensor& right, Tensor& result);
void launch_products_at_once(const Tensor& left, const Tensor& right, Tensor& result);

// What h before each step of a sequence follows from.
struct HiddenStates {
  Tensor activations;  // (steps, batch, 3 units)
  Tensor cells;        // (steps, batch, units)
  Tensor h0;           // (batch, units)
  bool reverse;
};

// What the gradients of a cell or of a sequence are multiplied from.
struct GradTensors {
  Tensor input;       // (rows, features), of all steps
  Tensor weight_ih;   // (3 units, features)
  Tensor weight_hh;   // (3 units, units)
  Tensor gates_grad;  // (rows, 3 units), in the dtype of sums
  Tensor c_grad;      // (batch, units), of the c that the call began with
  Wanted wanted;
  Sizes sizes;
  cudaStream_t stream;
  // A cell has its h; a sequence has the states of all steps, and the gradient of h0 already.
  std::optional<Tensor> h;
  std::optional<HiddenStates> states;
  std::optional<Tensor> h_grad;
};

// As one kernel for few rows, of float, Half or BFloat16; as products of halves on tensor cores, Half or
// BFloat16; and as products of PyTorch's, of any floating type.
template <typename T>
Grads launch_products_together(const GradTensors& tensors);
template <typename T>
Grads launch_products_halves(const GradTensors& tensors);
template <typename T>
Grads launch_products_plain(const GradTensors& tensors);

// The sums of the columns of a matrix of accumulate_t<T>, rounded once to T; `largest`, unless it is null,
// becomes the matrix' largest finite number where that is larger.
template <typename T>
Tensor column_sums(const Tensor& matrix, float* largest, cudaStream_t stream);

// ---------------------------------------------------------------- what chooses a kernel, and launches it

// The recurrence over all steps; there are rows. Going forward the tensor of the output may be replaced by
// one in the dtype of sums.
void launch_recurrence(ForwardTensors& tensors, bool allow_tf32);
void launch_recurrence(BackwardTensors& tensors, bool allow_tf32);

// result = left @ right for matrices, or for as many pairs of them as `left` has in its first dimension. The
// rows of a result have no gaps. Factors of two bytes have a result of float.
void multiply(const Tensor& left, const Tensor& right, Tensor& result);

// Whether a cell's step pays as one kernel.
bool is_small_cell(const Sizes& sizes, ScalarType dtype);

// The gradients, from those of gates. T is the dtype of the call.
template <typename T>
Grads multiply_grads(const GradTensors& tensors);

}  // namespace torchgraft::lltm::cuda
