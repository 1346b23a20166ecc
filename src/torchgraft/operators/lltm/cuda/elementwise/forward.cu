// The units of one step forward; and a recurrence with a product of PyTorch's and such a step for each.
//
// A thread owns one unit of one row. It reads the gates from what two products left, and writes the
// activations over the first: about nine numbers a unit, so memory bounds it, or its launch where it is
// small.

#include <torchgraft/cuda.cuh>

#include "../kernels.h"
#include "../unit.cuh"

namespace torchgraft::lltm::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kThreads) elementwise_forward(ForwardStep<T> step) {
  using A = accumulate_t<T>;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= step.count) return;
  const int64_t unit = index % step.units;
  const int64_t first = (index - unit) * 3 + unit;
  A gates[3];
#pragma unroll
  for (int g = 0; g < 3; ++g) {
    const int64_t place = first + g * step.units;
    gates[g] = step.activations[place] + step.hidden_gates[place];
    if (step.bias != nullptr) gates[g] += static_cast<A>(step.bias[g * step.units + unit]);
  }
  A c = static_cast<A>(step.c[index]);
  const A h = step_forward(gates[0], gates[1], gates[2], c);
#pragma unroll
  for (int g = 0; g < 3; ++g) step.activations[first + g * step.units] = gates[g];
  step.h_after[index] = static_cast<T>(h);
  if (step.h_copy != nullptr) step.h_copy[index] = static_cast<T>(h);
  step.c_after[index] = static_cast<T>(c);
}

// The products have the same tensors in all steps: views of each step's would cost the host as much as a
// launch.
template <typename T>
void launch_steps_of(ForwardTensors& tensors) {
  const Sizes& sizes = tensors.sizes;
  const Tensor& weight_hh = tensors.weight_hh;
  const int64_t state = sizes.batch * sizes.units;
  const Tensor weight = transposed(weight_hh);
  Tensor hidden_gates = empty_of({sizes.batch, 3 * sizes.units}, weight_hh.scalar_type(), weight_hh);
  Tensor h = empty_of({sizes.batch, sizes.units}, weight_hh.scalar_type(), weight_hh);
  torch::stable::copy_(h, tensors.h0);
  const T* c = data<T>(tensors.c0);
  for (int64_t step = 0; step < sizes.steps; ++step) {
    const int64_t t = tensors.reverse ? sizes.steps - 1 - step : step;
    multiply(h, weight, hidden_gates);
    T* const c_after = mutable_data<T>(tensors.cells) + t * state;
    launch_elementwise_step(ForwardStep<T>{data<T>(hidden_gates), data<T>(tensors.bias), c,
                                           mutable_data<T>(tensors.activations) + t * 3 * state,
                                           mutable_data<T>(tensors.output) + t * state, c_after,
                                           mutable_data<T>(h), state, sizes.units},
                            tensors.stream);
    c = c_after;
  }
}

}  // namespace

template <typename T>
void launch_elementwise_step(const ForwardStep<T>& step, cudaStream_t stream) {
  if (step.count == 0) return;
  elementwise_forward<T>
      <<<grid_of(ceil_divide<int64_t>(step.count, kThreads), "lltm"), kThreads, 0, stream>>>(step);
  check_launch("lltm");
}

template void launch_elementwise_step(const ForwardStep<double>&, cudaStream_t);
template void launch_elementwise_step(const ForwardStep<float>&, cudaStream_t);
template void launch_elementwise_step(const ForwardStep<Half>&, cudaStream_t);
template void launch_elementwise_step(const ForwardStep<BFloat16>&, cudaStream_t);

void launch_elementwise_forward(const Problem& problem, Kernel, ForwardTensors& tensors) {
  if (problem.element_bytes == 8) return launch_steps_of<double>(tensors);
  launch_steps_of<float>(tensors);
}

}  // namespace torchgraft::lltm::cuda
