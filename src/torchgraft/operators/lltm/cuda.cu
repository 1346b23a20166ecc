// Host functions of lltm on CUDA.
//
// A small cell in float is one kernel, any other two products of PyTorch's and one elementwise kernel. Back,
// a small cell is an elementwise kernel and one for all products, any other as many products as are wanted. A
// sequence is one product for the inputs of all steps and then one kernel for all of the recurrence; or, in
// double and where the device cannot hold weight_hh on chip, one product and one elementwise kernel a step:
// in float16, bfloat16 and tf32 a product of halves (steps/). Back, the same recurrence leaves the
// gradients of gates, and products with those of all steps give the others: in float16 and bfloat16, where
// they are large, of halves (products/halves.cu). Nothing waits for the host, so a CUDA graph can hold either.

#include <torchgraft/registration.h>

#include <tuple>

#include "cuda/cell/cell.h"
#include "cuda/kernels.h"
#include "cuda/policy.h"
#include "cuda/products/multiply.h"
#include "cuda/products/products.h"
#include "cuda/unit.cuh"
#include "host.h"

namespace torchgraft::lltm {
namespace {

int bytes_of(ScalarType dtype) {
  return dtype == ScalarType::Double ? 8 : dtype == ScalarType::Float ? 4 : 2;
}

cuda::RowsProblem rows_problem(const Sizes& sizes, ScalarType dtype) {
  return {sizes.rows(), sizes.features, sizes.units, bytes_of(dtype), current_device().multiprocessors};
}

std::tuple<Tensor, Tensor, Tensor> cell_cuda(Tensor input, Tensor h, Tensor c, Tensor weight_ih,
                                             Tensor weight_hh, std::optional<Tensor> bias) {
  const Sizes sizes = check_arguments(input, h, c, weight_ih, weight_hh, bias, false);
  const ScalarType dtype = input.scalar_type();
  return dispatch_floating(dtype, "lltm_cell", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Kept = accumulate_t<T>;
    const Launch scope(input);
    const WithoutRecording unrecorded;
    const ScalarType kept = kept_dtype(dtype);
    Tensor activations = empty_of({sizes.batch, 3 * sizes.units}, kept, input);
    Tensor h_after = empty_of({sizes.batch, sizes.units}, dtype, input);
    Tensor c_after = empty_of({sizes.batch, sizes.units}, dtype, input);
    input = to_contiguous(input);
    h = to_contiguous(h);
    c = to_contiguous(c);
    weight_ih = to_contiguous(weight_ih);
    weight_hh = to_contiguous(weight_hh);
    bias = converted(bias, dtype);
    const cuda::CellRule& rule = choose(cuda::kCellRules, rows_problem(sizes, dtype));
    if constexpr (std::is_same_v<T, float>) {
      if (rule.kernel == cuda::CellKernel::cell) {
        cuda::launch_cell({data<T>(input), data<T>(h), data<T>(c), data<T>(weight_ih), data<T>(weight_hh),
                           data<T>(bias), mutable_data<float>(activations), mutable_data<T>(h_after),
                           mutable_data<T>(c_after), sizes.batch, sizes.features, sizes.units},
                          scope.stream());
        return std::make_tuple(h_after, c_after, activations);
      }
    }

    Tensor of_hidden = empty_of({sizes.batch, 3 * sizes.units}, kept, input);
    if (sizes.batch > 0) {
      cuda::multiply(input, transposed(weight_ih), activations);
      cuda::multiply(h, transposed(weight_hh), of_hidden);
    }
    cuda::launch(
        cuda::ForwardStep<T>{data<Kept>(of_hidden), data<T>(bias), data<T>(c),
                             mutable_data<Kept>(activations), mutable_data<T>(h_after),
                             mutable_data<T>(c_after), nullptr, sizes.batch * sizes.units, sizes.units},
        scope.stream());
    return std::make_tuple(h_after, c_after, activations);
  });
}

template <typename Kept, typename T>
Tensor bias_grad(const Tensor& gates_grad, const Wanted& wanted, cudaStream_t stream) {
  if (!wanted.bias) return empty_of({0}, dtype_of<T>(), gates_grad);
  return cuda::column_sums<Kept, T>(gates_grad, nullptr, stream);
}

// `multiply_grads` as one kernel.
template <typename T>
Grads multiply_at_once(const Tensor& input, const Tensor& h, const Tensor& weight_ih, const Tensor& weight_hh,
                       const Tensor& gates_grad, const Tensor& c_grad, const Wanted& wanted,
                       const Sizes& sizes, cudaStream_t stream) {
  const float* gates = data<float>(gates_grad);
  const int64_t width = 3 * sizes.units;
  cuda::CellProducts<T> products = {};
  const auto add = [&](bool is_wanted, std::initializer_list<int64_t> shape, const T* right, bool of_rows) {
    if (!is_wanted) return empty_of({0}, input.scalar_type(), input);
    Tensor result = empty_of(shape, input.scalar_type(), input);
    const int64_t rows = *shape.begin();
    const int64_t columns = shape.size() == 2 ? *(shape.begin() + 1) : 1;
    products.each[products.count++] = {gates,   of_rows ? width : 1,           of_rows ? 1 : width,
                                       right,   mutable_data<T>(result),       rows,
                                       columns, of_rows ? width : sizes.batch, 0};
    return result;
  };
  Grads grads = {add(wanted.input, {sizes.batch, sizes.features}, data<T>(weight_ih), true),
                 add(wanted.h, {sizes.batch, sizes.units}, data<T>(weight_hh), true),
                 c_grad,
                 add(wanted.weight_ih, {width, sizes.features}, data<T>(input), false),
                 add(wanted.weight_hh, {width, sizes.units}, data<T>(h), false),
                 add(wanted.bias, {width}, nullptr, false)};
  cuda::launch_products(products, stream);
  return grads;
}

Grads cell_grads_cuda(Tensor input, Tensor h, Tensor c, Tensor weight_ih, Tensor weight_hh,
                      Tensor activations, std::optional<Tensor> h_grad, std::optional<Tensor> c_grad,
                      bool of_input, bool of_h, bool of_weight_ih, bool of_weight_hh, bool of_bias) {
  const Sizes sizes = check_cell_grads(input, h, c, weight_ih, weight_hh, activations, h_grad, c_grad);
  const ScalarType dtype = input.scalar_type();
  const Wanted wanted = {of_input, of_h, of_weight_ih, of_weight_hh, of_bias};
  return dispatch_floating(dtype, "lltm_cell_grads", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Kept = accumulate_t<T>;
    const Launch scope(input);
    const WithoutRecording unrecorded;
    Tensor gates_grad = empty_of({sizes.batch, 3 * sizes.units}, kept_dtype(dtype), input);
    Tensor c_before_grad = empty_of({sizes.batch, sizes.units}, dtype, input);
    activations = converted(activations, kept_dtype(dtype));
    c = to_contiguous(c);
    h_grad = converted(h_grad, dtype);
    c_grad = converted(c_grad, dtype);
    cuda::launch<Kept, false, T>(
        {data<Kept>(activations), data<T>(c), data<T>(h_grad), nullptr, data<T>(c_grad),
         mutable_data<Kept>(gates_grad), mutable_data<T>(c_before_grad), nullptr, sizes.batch * sizes.units,
         sizes.units},
        scope.stream());
    const cuda::GradsRule& rule = choose(cuda::kCellGradsRules, rows_problem(sizes, dtype));
    if constexpr (!std::is_same_v<T, double>) {
      if (rule.kernel == cuda::GradsKernel::cell_products) {
        return multiply_at_once<T>(to_contiguous(input), to_contiguous(h), to_contiguous(weight_ih),
                                   to_contiguous(weight_hh), gates_grad, c_before_grad, wanted, sizes,
                                   scope.stream());
      }
    }
    if constexpr (sizeof(T) == 2) {
      if (rule.kernel == cuda::GradsKernel::halves) {
        const cuda::GateHalves<T> gates(gates_grad, wanted.bias, scope.stream());
        return Grads(gates.times(wanted.input, weight_ih), gates.times(wanted.h, weight_hh), c_before_grad,
                     gates.transposed_times(wanted.weight_ih, {input, std::nullopt}),
                     gates.transposed_times(wanted.weight_hh, {h, std::nullopt}), gates.bias());
      }
    }
    return multiply_grads(cuda::multiply, input, h, weight_ih, gates_grad,
                          product(cuda::multiply, wanted.h, gates_grad, weight_hh, dtype), c_before_grad,
                          bias_grad<Kept, T>(gates_grad, wanted, scope.stream()), wanted);
  });
}

// Whether weight_hh may be multiplied in two bytes: that of float where tf32 is permitted.
bool has_short_factor(ScalarType dtype, bool allow_tf32) {
  return dtype == ScalarType::Half || dtype == ScalarType::BFloat16 ||
         (dtype == ScalarType::Float && allow_tf32);
}

int resident(const cuda::Problem& problem, cuda::Technique technique, cuda::Kernel kernel, int64_t blocks,
             int64_t shared_bytes) {
  switch (technique) {
    case cuda::Technique::on_chip:
      return cuda::resident_on_chip(problem, kernel, blocks, shared_bytes);
    case cuda::Technique::on_chip_mma:
      return problem.backward ? cuda::resident_on_chip_mma_backward(problem, kernel, blocks, shared_bytes)
                              : cuda::resident_on_chip_mma_forward(kernel, blocks, shared_bytes);
    case cuda::Technique::grid:
      return cuda::resident_on_grid(problem, kernel, shared_bytes);
    case cuda::Technique::steps:
    case cuda::Technique::elementwise:
      break;
  }
  fail("lltm: kernels that need no room are asked for it");
}

// `is_aligned`: whether all that kernels on the grid read four numbers at a time begins at sixteen bytes.
cuda::Problem problem_of(const Sizes& sizes, ScalarType dtype, bool backward, bool allow_tf32,
                         bool is_aligned) {
  const Device& device = current_device();
  return {sizes.steps,
          sizes.batch,
          sizes.units,
          backward,
          bytes_of(dtype),
          dtype == ScalarType::BFloat16,
          has_short_factor(dtype, allow_tf32),
          sizes.units % 4 == 0 && is_aligned,
          device.architecture,
          architecture_of_kernels(),
          device.multiprocessors,
          device.shared_of_block,
          device.has_clusters,
          device.has_cooperative_launches,
          resident};
}

// Kernels that compute in float or double alone: numbers of two bytes are converted for them.
bool needs_kept_numbers(cuda::Technique technique) {
  return technique == cuda::Technique::grid || technique == cuda::Technique::elementwise;
}

cuda::ForwardPass forward_pass(const Tensor& weight_hh, const std::optional<Tensor>& bias, const Tensor& h0,
                               const Tensor& c0, Tensor& activations, Tensor& output, Tensor& cells,
                               const Sizes& sizes, bool reverse) {
  return {cuda::Numbers(weight_hh),
          cuda::Numbers(bias),
          cuda::Numbers(h0),
          cuda::Numbers(c0),
          mutable_data<float>(activations),
          cuda::Results(output),
          mutable_data<float>(cells),
          sizes.steps,
          sizes.batch,
          sizes.units,
          reverse};
}

cuda::BackwardPass backward_pass(const Tensor& weight_hh, const Tensor& activations, const Tensor& cells,
                                 const std::optional<Tensor>& output_grad, Tensor& gates_grad, Tensor& h_grad,
                                 Tensor& c_grad, const Sizes& sizes, bool reverse) {
  return {cuda::Numbers(weight_hh),
          data<float>(activations),
          data<float>(cells),
          cuda::Numbers(output_grad),
          mutable_data<float>(gates_grad),
          mutable_data<float>(h_grad),
          mutable_data<float>(c_grad),
          sizes.steps,
          sizes.batch,
          sizes.units,
          reverse};
}

// A product a step, of the same tensors in all of them: a view of each step's would cost the host as much as
// a launch.
template <typename T>
void forward_by_steps(const Tensor& weight_hh, const std::optional<Tensor>& bias, const Tensor& h0,
                      const Tensor& c0, Tensor& activations, Tensor& output, Tensor& cells,
                      const Sizes& sizes, bool reverse, cudaStream_t stream) {
  const int64_t state = sizes.batch * sizes.units;
  const Tensor weight = transposed(weight_hh);
  Tensor of_hidden = empty_of({sizes.batch, 3 * sizes.units}, weight_hh.scalar_type(), weight_hh);
  Tensor h = empty_of({sizes.batch, sizes.units}, weight_hh.scalar_type(), weight_hh);
  torch::stable::copy_(h, h0);
  const T* c = data<T>(c0);
  for (int64_t step = 0; step < sizes.steps; ++step) {
    const int64_t t = reverse ? sizes.steps - 1 - step : step;
    cuda::multiply(h, weight, of_hidden);
    cuda::launch(cuda::ForwardStep<T>{data<T>(of_hidden), data<T>(bias), c,
                                      mutable_data<T>(activations) + t * 3 * state,
                                      mutable_data<T>(output) + t * state, mutable_data<T>(cells) + t * state,
                                      mutable_data<T>(h), state, sizes.units},
                 stream);
    c = data<T>(cells) + t * state;
  }
}

// Back, likewise.
template <typename T>
void backward_by_steps(const Tensor& weight_hh, const Tensor& activations, const Tensor& cells,
                       const std::optional<Tensor>& output_grad, Tensor& gates_grad, Tensor& h_grad,
                       Tensor& c_grad, const Sizes& sizes, bool reverse, cudaStream_t stream) {
  const int64_t state = sizes.batch * sizes.units;
  const T* of_output = data<T>(output_grad);
  Tensor factor = empty_of({sizes.batch, 3 * sizes.units}, weight_hh.scalar_type(), weight_hh);
  for (int64_t step = 0; step < sizes.steps; ++step) {
    const int64_t t = reverse ? step : sizes.steps - 1 - step;
    cuda::launch<T, true>({data<T>(activations) + t * 3 * state, data<T>(cells) + t * state, data<T>(h_grad),
                           of_output == nullptr ? nullptr : of_output + t * state, data<T>(c_grad),
                           mutable_data<T>(gates_grad) + t * 3 * state, mutable_data<T>(c_grad),
                           mutable_data<T>(factor), state, sizes.units},
                          stream);
    cuda::multiply(factor, weight_hh, h_grad);
  }
}

// The recurrence over all steps by the kernel of a rule; T is what is kept.
template <typename T>
void forward_recurrence(const cuda::Rule& rule, const cuda::Problem& problem, const Tensor& weight_hh,
                        const std::optional<Tensor>& bias, const Tensor& h0, const Tensor& c0,
                        Tensor& activations, Tensor& output, Tensor& cells, const Sizes& sizes, bool reverse,
                        cudaStream_t stream) {
  const auto pass = forward_pass(weight_hh, bias, h0, c0, activations, output, cells, sizes, reverse);
  switch (rule.technique) {
    case cuda::Technique::on_chip:
      return cuda::launch_on_chip(problem, rule.kernel, pass, stream);
    case cuda::Technique::on_chip_mma:
      return cuda::launch_on_chip_mma(problem, rule.kernel, pass, weight_hh, stream);
    case cuda::Technique::steps:
      return cuda::launch_steps(rule.kernel, pass, weight_hh, stream);
    case cuda::Technique::grid:
      return cuda::launch_grid(problem, rule.kernel, pass, stream);
    case cuda::Technique::elementwise:
      return forward_by_steps<T>(weight_hh, bias, h0, c0, activations, output, cells, sizes, reverse, stream);
  }
}

template <typename T>
void backward_recurrence(const cuda::Rule& rule, const cuda::Problem& problem, const Tensor& weight_hh,
                         const Tensor& activations, const Tensor& cells,
                         const std::optional<Tensor>& output_grad, Tensor& gates_grad, Tensor& h_grad,
                         Tensor& c_grad, const Sizes& sizes, bool reverse, cudaStream_t stream) {
  const auto pass =
      backward_pass(weight_hh, activations, cells, output_grad, gates_grad, h_grad, c_grad, sizes, reverse);
  switch (rule.technique) {
    case cuda::Technique::on_chip:
      return cuda::launch_on_chip(problem, rule.kernel, pass, output_grad, stream);
    case cuda::Technique::on_chip_mma:
      return cuda::launch_on_chip_mma(problem, rule.kernel, pass, weight_hh, stream);
    case cuda::Technique::steps:
      return cuda::launch_steps(rule.kernel, pass, weight_hh, stream);
    case cuda::Technique::grid:
      return cuda::launch_grid(problem, rule.kernel, pass, stream);
    case cuda::Technique::elementwise:
      return backward_by_steps<T>(weight_hh, activations, cells, output_grad, gates_grad, h_grad, c_grad,
                                  sizes, reverse, stream);
  }
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> sequence_cuda(Tensor input, Tensor h0, Tensor c0,
                                                                 Tensor weight_ih, Tensor weight_hh,
                                                                 std::optional<Tensor> bias, bool reverse,
                                                                 bool allow_tf32) {
  const Sizes sizes = check_arguments(input, h0, c0, weight_ih, weight_hh, bias, true);
  const ScalarType dtype = input.scalar_type();
  return dispatch_kept(dtype, "lltm", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Launch scope(input);
    const WithoutRecording unrecorded;
    const ScalarType kept = kept_dtype(dtype);
    Tensor activations = empty_of({sizes.steps, sizes.batch, 3 * sizes.units}, kept, input);
    Tensor output = empty_of({sizes.steps, sizes.batch, sizes.units}, dtype, input);
    Tensor cells = empty_of({sizes.steps, sizes.batch, sizes.units}, kept, input);
    if (sizes.batch > 0) {
      Tensor gates = torch::stable::view(activations, {sizes.rows(), 3 * sizes.units});
      const Tensor rows = torch::stable::view(to_contiguous(input), {sizes.rows(), sizes.features});
      cuda::multiply(rows, transposed(to_contiguous(weight_ih)), gates);
      weight_hh = to_contiguous(weight_hh);
      bias = converted(bias, dtype);
      h0 = to_contiguous(h0);
      c0 = to_contiguous(c0);
      // What is converted begins aligned.
      const bool starts_aligned = kept != dtype || is_aligned(h0.const_data_ptr(), 16);
      const cuda::Problem problem = problem_of(sizes, dtype, false, allow_tf32, starts_aligned);
      const cuda::Rule& rule = choose(cuda::kForwardRules, problem);
      if (kept != dtype && needs_kept_numbers(rule.technique)) {
        output = empty_of({sizes.steps, sizes.batch, sizes.units}, kept, input);
        weight_hh = converted(weight_hh, kept);
        bias = converted(bias, kept);
        h0 = converted(h0, kept);
        c0 = converted(c0, kept);
      }
      forward_recurrence<T>(rule, problem, weight_hh, bias, h0, c0, activations, output, cells, sizes,
                            reverse, scope.stream());
    }

    const int64_t last = reverse ? 0 : sizes.steps - 1;
    Tensor h_n = empty_of({sizes.batch, sizes.units}, dtype, input);
    Tensor c_n = empty_of({sizes.batch, sizes.units}, dtype, input);
    torch::stable::copy_(h_n, torch::stable::select(output, 0, last));
    torch::stable::copy_(c_n, torch::stable::select(cells, 0, last));
    return std::make_tuple(converted(output, dtype), h_n, c_n, activations, cells);
  });
}

// The products of a sequence's gradients, from those of its gates.
template <typename T, typename Kept>
Grads multiply_sequence(const Tensor& input, const cuda::HiddenStates<Kept, T>& states,
                        const Tensor& weight_ih, const Tensor& gates_grad, const Tensor& h_grad,
                        const Tensor& c_grad, const Wanted& wanted, const Sizes& sizes, cudaStream_t stream) {
  const ScalarType dtype = input.scalar_type();
  const Tensor rows = rows_of(to_contiguous(input));
  const cuda::GradsRule& rule = choose(cuda::kSequenceGradsRules, rows_problem(sizes, dtype));
  if constexpr (sizeof(T) == 2) {
    if (rule.kernel == cuda::GradsKernel::halves) {
      const cuda::GateHalves<T> gates(gates_grad, wanted.bias, stream);
      const cuda::Factor h = wanted.weight_hh ? cuda::hidden_halves_before(states, input, stream)
                                              : cuda::Factor{rows, std::nullopt};
      return Grads(gates.times(wanted.input, weight_ih), converted(wanted.h, h_grad, dtype),
                   converted(c_grad, dtype), gates.transposed_times(wanted.weight_ih, {rows, std::nullopt}),
                   gates.transposed_times(wanted.weight_hh, h), gates.bias());
    }
  }
  const Tensor h = wanted.weight_hh ? cuda::hidden_before(states, input, stream) : h_grad;
  return multiply_grads(cuda::multiply, rows, h, weight_ih, gates_grad, converted(wanted.h, h_grad, dtype),
                        c_grad, bias_grad<Kept, T>(gates_grad, wanted, stream), wanted);
}

Grads sequence_grads_cuda(Tensor input, Tensor h0, Tensor weight_ih, Tensor weight_hh, Tensor activations,
                          Tensor cells, std::optional<Tensor> output_grad, std::optional<Tensor> h_n_grad,
                          std::optional<Tensor> c_n_grad, bool reverse, bool allow_tf32, bool of_input,
                          bool of_h0, bool of_weight_ih, bool of_weight_hh, bool of_bias) {
  const Sizes sizes =
      check_grads(input, h0, weight_ih, weight_hh, activations, cells, output_grad, h_n_grad, c_n_grad);
  const ScalarType dtype = input.scalar_type();
  const Wanted wanted = {of_input, of_h0, of_weight_ih, of_weight_hh, of_bias};
  return dispatch_floating(dtype, "lltm_grads", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Kept = accumulate_t<T>;
    const Launch scope(input);
    const WithoutRecording unrecorded;
    const ScalarType kept = kept_dtype(dtype);
    Tensor gates_grad = empty_of({sizes.rows(), 3 * sizes.units}, kept, input);
    Tensor h_grad = state_or_zeros(h_n_grad, sizes, kept, input);
    Tensor c_grad = state_or_zeros(c_n_grad, sizes, kept, input);
    activations = converted(activations, kept);
    cells = converted(cells, kept);
    h0 = to_contiguous(h0);
    weight_hh = to_contiguous(weight_hh);
    output_grad = converted(output_grad, dtype);
    if (sizes.batch > 0) {
      const cuda::Problem problem = problem_of(sizes, dtype, true, allow_tf32, true);
      const cuda::Rule& rule = choose(cuda::kBackwardRules, problem);
      if (needs_kept_numbers(rule.technique)) {
        output_grad = converted(output_grad, kept);
        weight_hh = converted(weight_hh, kept);
      }
      backward_recurrence<Kept>(rule, problem, weight_hh, activations, cells, output_grad, gates_grad, h_grad,
                                c_grad, sizes, reverse, scope.stream());
    }
    const cuda::HiddenStates<Kept, T> states = {data<Kept>(activations),
                                                data<Kept>(cells),
                                                data<T>(h0),
                                                sizes.steps,
                                                sizes.batch,
                                                sizes.units,
                                                reverse};
    return of_sequence(multiply_sequence(input, states, weight_ih, gates_grad, h_grad, c_grad, wanted, sizes,
                                         scope.stream()),
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
