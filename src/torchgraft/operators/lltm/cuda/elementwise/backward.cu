// The units of one step back; and a recurrence with such a step and a product of PyTorch's for each.

#include <torchgraft/cuda.cuh>

#include "../kernels.h"
#include "../unit.cuh"

namespace torchgraft::lltm::cuda {
namespace {

constexpr int kThreads = 256;

template <bool kAfter, typename T>
__global__ void __launch_bounds__(kThreads) elementwise_backward(BackwardStep<T> step) {
  using A = accumulate_t<T>;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= step.count) return;
  const int64_t unit = index % step.units;
  const int64_t first = (index - unit) * 3 + unit;
  A gates[3];
#pragma unroll
  for (int g = 0; g < 3; ++g) gates[g] = step.activations[first + g * step.units];
  A c_after = static_cast<A>(step.c[index]);
  if constexpr (!kAfter) c_after += gates[2] * gates[0];
  A h_grad = step.h_grad != nullptr ? static_cast<A>(step.h_grad[index]) : A(0);
  if (step.output_grad != nullptr) h_grad += static_cast<A>(step.output_grad[index]);
  A c_grad = step.c_grad != nullptr ? static_cast<A>(step.c_grad[index]) : A(0);
  step_back(gates[0], gates[1], gates[2], c_after, h_grad, c_grad);
#pragma unroll
  for (int g = 0; g < 3; ++g) {
    step.gates_grad[first + g * step.units] = gates[g];
    if (step.gates_grad_copy != nullptr) {
      step.gates_grad_copy[first + g * step.units] = gates[g];
    }
  }
  step.c_before_grad[index] = static_cast<T>(c_grad);
}

template <typename T>
void launch_steps_of(BackwardTensors& tensors) {
  const Sizes& sizes = tensors.sizes;
  const Tensor& weight_hh = tensors.weight_hh;
  const int64_t state = sizes.batch * sizes.units;
  const T* const output_grad = data<T>(tensors.output_grad);
  T* const c_grad = mutable_data<T>(tensors.c_grad);
  Tensor gates_grad = empty_of({sizes.batch, 3 * sizes.units}, weight_hh.scalar_type(), weight_hh);
  for (int64_t step = 0; step < sizes.steps; ++step) {
    const int64_t t = tensors.reverse ? step : sizes.steps - 1 - step;
    launch_elementwise_step</*kAfter=*/true>(
        BackwardStep<T>{data<T>(tensors.activations) + t * 3 * state, data<T>(tensors.cells) + t * state,
                        data<T>(tensors.h_grad), output_grad == nullptr ? nullptr : output_grad + t * state,
                        c_grad, mutable_data<T>(tensors.gates_grad) + t * 3 * state, c_grad,
                        mutable_data<T>(gates_grad), state, sizes.units},
        tensors.stream);
    multiply(gates_grad, weight_hh, tensors.h_grad);
  }
}

}  // namespace

template <bool kAfter, typename T>
void launch_elementwise_step(const BackwardStep<T>& step, cudaStream_t stream) {
  if (step.count == 0) return;
  elementwise_backward<kAfter, T>
      <<<grid_of(ceil_divide<int64_t>(step.count, kThreads), "lltm"), kThreads, 0, stream>>>(step);
  check_launch("lltm");
}

template void launch_elementwise_step<false>(const BackwardStep<double>&, cudaStream_t);
template void launch_elementwise_step<false>(const BackwardStep<float>&, cudaStream_t);
template void launch_elementwise_step<false>(const BackwardStep<Half>&, cudaStream_t);
template void launch_elementwise_step<false>(const BackwardStep<BFloat16>&, cudaStream_t);

void launch_elementwise_backward(const Problem& problem, Kernel, BackwardTensors& tensors) {
  if (problem.element_bytes == 8) return launch_steps_of<double>(tensors);
  launch_steps_of<float>(tensors);
}

}  // namespace torchgraft::lltm::cuda
