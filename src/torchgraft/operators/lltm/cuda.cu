// lltm, its cell and their gradients on CUDA: host functions and registration. The kernels lie in folders of
// cuda/ by technique.
//
// A sequence is one product for the inputs of all steps, and then its recurrence, which leaves the
// activations of the gates. Going back the same recurrence leaves the gradients of the gates, and products
// with those of all steps give the others. A cell is the same with one step. Nothing waits for the host, so
// that a CUDA graph can hold all of it.

#include <torchgraft/registration.h>
#include <torchgraft/cuda.cuh>

#include <tuple>

#include "cuda/kernels.h"
#include "cuda/policy.h"
#include "host.h"

namespace torchgraft::lltm {
namespace {

std::tuple<Tensor, Tensor, Tensor> cell_cuda(Tensor input, Tensor h, Tensor c, Tensor weight_ih,
                                             Tensor weight_hh, std::optional<Tensor> bias) {
  const Sizes sizes = check_arguments(input, h, c, weight_ih, weight_hh, bias, false);
  const ScalarType dtype = input.scalar_type();
  return dispatch_floating(dtype, "lltm_cell", [&]<typename T>(Tag<T>) {
    using A = accumulate_t<T>;
    const Launch scope(input);
    const WithoutAutograd without_autograd;
    const ScalarType sum_dtype = accumulate_dtype(dtype);
    Tensor activations = empty_of({sizes.batch, 3 * sizes.units}, sum_dtype, input);
    Tensor h_after = empty_of({sizes.batch, sizes.units}, dtype, input);
    Tensor c_after = empty_of({sizes.batch, sizes.units}, dtype, input);
    input = to_contiguous(input);
    h = to_contiguous(h);
    c = to_contiguous(c);
    weight_ih = to_contiguous(weight_ih);
    weight_hh = to_contiguous(weight_hh);
    bias = converted(bias, dtype);
    if constexpr (std::is_same_v<T, float>) {
      if (cuda::is_small_cell(sizes, dtype)) {
        cuda::launch_cell_forward(
            {data<T>(input), data<T>(h), data<T>(c), data<T>(weight_ih), data<T>(weight_hh), data<T>(bias),
             mutable_data<T>(activations), mutable_data<T>(h_after), mutable_data<T>(c_after), sizes.batch,
             sizes.features, sizes.units},
            scope.stream());
        return std::make_tuple(h_after, c_after, activations);
      }
    }

    Tensor hidden_gates = empty_of({sizes.batch, 3 * sizes.units}, sum_dtype, input);
    if (sizes.batch > 0) {
      cuda::multiply(input, transposed(weight_ih), activations);
      cuda::multiply(h, transposed(weight_hh), hidden_gates);
    }
    cuda::launch_elementwise_step(
        cuda::ForwardStep<T>{data<A>(hidden_gates), data<T>(bias), data<T>(c), mutable_data<A>(activations),
                             mutable_data<T>(h_after), mutable_data<T>(c_after), /*h_copy=*/nullptr,
                             sizes.batch * sizes.units, sizes.units},
        scope.stream());
    return std::make_tuple(h_after, c_after, activations);
  });
}

Grads cell_grads_cuda(Tensor input, Tensor h, Tensor c, Tensor weight_ih, Tensor weight_hh,
                      Tensor activations, std::optional<Tensor> h_grad, std::optional<Tensor> c_grad,
                      bool of_input, bool of_h, bool of_weight_ih, bool of_weight_hh, bool of_bias) {
  const Sizes sizes = check_cell_grads(input, h, c, weight_ih, weight_hh, activations, h_grad, c_grad);
  const ScalarType dtype = input.scalar_type();
  return dispatch_floating(dtype, "lltm_cell_grads", [&]<typename T>(Tag<T>) {
    using A = accumulate_t<T>;
    const Launch scope(input);
    const WithoutAutograd without_autograd;
    Tensor gates_grad = empty_of({sizes.batch, 3 * sizes.units}, accumulate_dtype(dtype), input);
    Tensor c_before_grad = empty_of({sizes.batch, sizes.units}, dtype, input);
    activations = converted(activations, accumulate_dtype(dtype));
    c = to_contiguous(c);
    h_grad = converted(h_grad, dtype);
    c_grad = converted(c_grad, dtype);
    cuda::launch_elementwise_step</*kAfter=*/false>(
        cuda::BackwardStep<T>{data<A>(activations), data<T>(c), data<T>(h_grad), /*output_grad=*/nullptr,
                              data<T>(c_grad), mutable_data<A>(gates_grad), mutable_data<T>(c_before_grad),
                              /*gates_grad_copy=*/nullptr, sizes.batch * sizes.units, sizes.units},
        scope.stream());
    return cuda::multiply_grads<T>({input,
                                    weight_ih,
                                    weight_hh,
                                    gates_grad,
                                    c_before_grad,
                                    {of_input, of_h, of_weight_ih, of_weight_hh, of_bias},
                                    sizes,
                                    scope.stream(),
                                    h,
                                    std::nullopt,
                                    std::nullopt});
  });
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> sequence_cuda(Tensor input, Tensor h0, Tensor c0,
                                                                 Tensor weight_ih, Tensor weight_hh,
                                                                 std::optional<Tensor> bias, bool reverse,
                                                                 bool allow_tf32) {
  const Sizes sizes = check_arguments(input, h0, c0, weight_ih, weight_hh, bias, true);
  const ScalarType dtype = input.scalar_type();
  check_floating(input, "input");
  const Launch scope(input);
  const WithoutAutograd without_autograd;
  cuda::ForwardTensors tensors = {
      to_contiguous(weight_hh),
      converted(bias, dtype),
      to_contiguous(h0),
      to_contiguous(c0),
      empty_of({sizes.steps, sizes.batch, 3 * sizes.units}, accumulate_dtype(dtype), input),
      empty_of({sizes.steps, sizes.batch, sizes.units}, dtype, input),
      empty_of({sizes.steps, sizes.batch, sizes.units}, accumulate_dtype(dtype), input),
      sizes,
      reverse,
      scope.stream()};
  if (sizes.batch > 0) {
    Tensor gates = rows_of(tensors.activations);
    cuda::multiply(rows_of(to_contiguous(input)), transposed(to_contiguous(weight_ih)), gates);
    cuda::launch_recurrence(tensors, allow_tf32);
  }
  if (!tensors.last) {
    const int64_t last = reverse ? 0 : sizes.steps - 1;
    tensors.last = cuda::copies_of_states(torch::stable::select(tensors.output, 0, last),
                                          torch::stable::select(tensors.cells, 0, last), sizes, dtype, input,
                                          scope.stream());
  }
  const auto& [h_n, c_n] = *tensors.last;
  return {converted(tensors.output, dtype), h_n, c_n, tensors.activations, tensors.cells};
}

Grads sequence_grads_cuda(Tensor input, Tensor h0, Tensor weight_ih, Tensor weight_hh, Tensor activations,
                          Tensor cells, std::optional<Tensor> output_grad, std::optional<Tensor> h_n_grad,
                          std::optional<Tensor> c_n_grad, bool reverse, bool allow_tf32, bool of_input,
                          bool of_h0, bool of_weight_ih, bool of_weight_hh, bool of_bias) {
  const Sizes sizes =
      check_grads(input, h0, weight_ih, weight_hh, activations, cells, output_grad, h_n_grad, c_n_grad);
  const ScalarType dtype = input.scalar_type();
  return dispatch_floating(dtype, "lltm_grads", [&]<typename T>(Tag<T>) {
    const Launch scope(input);
    const WithoutAutograd without_autograd;
    const ScalarType sum_dtype = accumulate_dtype(dtype);
    const auto [h_after_grad, c_after_grad] =
        cuda::copies_of_states(h_n_grad, c_n_grad, sizes, sum_dtype, input, scope.stream());
    cuda::BackwardTensors tensors = {to_contiguous(weight_hh),
                                     converted(activations, sum_dtype),
                                     converted(cells, sum_dtype),
                                     converted(output_grad, dtype),
                                     empty_of({sizes.rows(), 3 * sizes.units}, sum_dtype, input),
                                     h_after_grad,
                                     c_after_grad,
                                     sizes,
                                     reverse,
                                     scope.stream()};
    if (sizes.batch > 0) cuda::launch_recurrence(tensors, allow_tf32);
    if (sum_dtype != dtype) {
      const auto rounded =
          cuda::copies_of_states(tensors.h_grad, tensors.c_grad, sizes, dtype, input, scope.stream());
      tensors.h_grad = rounded[0];
      tensors.c_grad = rounded[1];
    }
    const Wanted wanted = {of_input, of_h0, of_weight_ih, of_weight_hh, of_bias};
    const cuda::HiddenStates states = {tensors.activations, tensors.cells, to_contiguous(h0), reverse};
    return of_sequence(cuda::multiply_grads<T>({rows_of(to_contiguous(input)), weight_ih, weight_hh,
                                                tensors.gates_grad, tensors.c_grad, wanted, sizes,
                                                scope.stream(), std::nullopt, states, tensors.h_grad}),
                       wanted, sizes);
  });
}

}  // namespace

TORCHGRAFT_KERNELS(lltm, cuda::kForwardRules)
TORCHGRAFT_KERNELS(lltm_grads, cuda::kBackwardRules)
TORCHGRAFT_KERNELS(lltm_cell, cuda::kCellRules)
TORCHGRAFT_KERNELS(lltm_cell_grads, cuda::kCellGradsRules)

TORCHGRAFT_KERNEL(torchgraft, CUDA, lltm_cell, cell_cuda)
TORCHGRAFT_KERNEL(torchgraft, CUDA, lltm_cell_grads, cell_grads_cuda)
TORCHGRAFT_KERNEL(torchgraft, CUDA, lltm, sequence_cuda)
TORCHGRAFT_KERNEL(torchgraft, CUDA, lltm_grads, sequence_grads_cuda)

}  // namespace torchgraft::lltm
