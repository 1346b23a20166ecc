// Host functions of lltm, its cell and their gradients on CPU. The kernels are in cpu/sequence.cpp and
// cpu/cell.cpp, and the matrix products in cpu/product.cpp.

#include <torchgraft/cpu.h>
#include <torchgraft/detail/rounds.h>
#include <torchgraft/dispatch.h>
#include <torchgraft/registration.h>

#include <tuple>
#include <type_traits>

#include "cpu/kernels.h"
#include "host.h"

namespace torchgraft::lltm {
namespace {

// The least units of a step for which a thread is worth waking.
constexpr int64_t kUnitsGrain = 4096;

// result = left @ right. Not PyTorch's: on some processors its products cut the depth into as many parts as
// there are threads, and then the last bits of a sum follow their number.
template <typename T>
void multiply_on_cpu(const Tensor& left, const Tensor& right, Tensor& result) {
  const int64_t rows = left.size(0), depth = left.size(1), columns = right.size(1);
  if (left.numel() == 0) {
    torch::stable::zero_(result);
    return;
  }
  const cpu::Product<T> product = {{data<T>(left), left.stride(0), left.stride(1)},
                                   {data<T>(right), right.stride(0), right.stride(1)},
                                   mutable_data<T>(result),
                                   depth,
                                   columns};
  cpu_products::share_out(product, rows, [&](const cpu::Share& share) { cpu::multiply(product, share); });
}

std::tuple<Tensor, Tensor, Tensor> cell_cpu(Tensor input, Tensor h, Tensor c, Tensor weight_ih,
                                            Tensor weight_hh, std::optional<Tensor> bias) {
  const Sizes sizes = check_arguments(input, h, c, weight_ih, weight_hh, bias, false);
  const ScalarType dtype = input.scalar_type();
  return dispatch_accumulated(dtype, "lltm_cell", [&]<typename T>(Tag<T>) {
    const WithoutAutograd scope;
    const ScalarType sum_dtype = accumulate_dtype(dtype);
    Tensor activations = empty_of({sizes.batch, 3 * sizes.units}, sum_dtype, input);
    Tensor hidden_gates = empty_of({sizes.batch, 3 * sizes.units}, sum_dtype, input);
    Tensor h_after = empty_of({sizes.batch, sizes.units}, sum_dtype, input);
    Tensor c_after = empty_of({sizes.batch, sizes.units}, sum_dtype, input);
    multiply_on_cpu<T>(converted(input, sum_dtype), transposed(converted(weight_ih, sum_dtype)), activations);
    multiply_on_cpu<T>(converted(h, sum_dtype), transposed(converted(weight_hh, sum_dtype)), hidden_gates);

    c = converted(c, sum_dtype);
    bias = converted(bias, sum_dtype);
    const cpu::CellForward<T> pass = {data<T>(hidden_gates),
                                      data<T>(bias),
                                      data<T>(c),
                                      mutable_data<T>(activations),
                                      mutable_data<T>(h_after),
                                      mutable_data<T>(c_after),
                                      sizes.units};
    parallel_for(0, sizes.batch, std::max<int64_t>(1, kUnitsGrain / sizes.units),
                 [&](int64_t begin, int64_t end) { cpu::cell_forward(pass, begin, end); });
    return std::make_tuple(converted(h_after, dtype), converted(c_after, dtype), activations);
  });
}

// The sums of a matrix's columns, rounded once; no elements where they are not wanted.
Tensor column_sums(bool is_wanted, const Tensor& matrix, ScalarType dtype) {
  if (!is_wanted) return empty_of({0}, dtype, matrix);
  Tensor result = empty_of({matrix.size(1)}, matrix.scalar_type(), matrix);
  const int64_t rows = 0;
  torch::stable::sum_out(result, matrix, torch::headeronly::IntHeaderOnlyArrayRef(&rows, 1));
  return converted(result, dtype);
}

Grads cell_grads_cpu(Tensor input, Tensor h, Tensor c, Tensor weight_ih, Tensor weight_hh, Tensor activations,
                     std::optional<Tensor> h_grad, std::optional<Tensor> c_grad, bool of_input, bool of_h,
                     bool of_weight_ih, bool of_weight_hh, bool of_bias) {
  const Sizes sizes = check_cell_grads(input, h, c, weight_ih, weight_hh, activations, h_grad, c_grad);
  const ScalarType dtype = input.scalar_type();
  const Wanted wanted = {of_input, of_h, of_weight_ih, of_weight_hh, of_bias};
  return dispatch_accumulated(dtype, "lltm_cell_grads", [&]<typename T>(Tag<T>) {
    const WithoutAutograd scope;
    const ScalarType sum_dtype = accumulate_dtype(dtype);
    Tensor gates_grad = empty_of({sizes.batch, 3 * sizes.units}, sum_dtype, c);
    Tensor c_before_grad = empty_of({sizes.batch, sizes.units}, sum_dtype, c);
    activations = converted(activations, sum_dtype);
    c = converted(c, sum_dtype);
    h_grad = converted(h_grad, sum_dtype);
    c_grad = converted(c_grad, sum_dtype);
    const cpu::CellBackward<T> pass = {data<T>(activations),
                                       data<T>(c),
                                       data<T>(h_grad),
                                       /*output_grad=*/nullptr,
                                       data<T>(c_grad),
                                       mutable_data<T>(gates_grad),
                                       mutable_data<T>(c_before_grad),
                                       /*h_after=*/nullptr,
                                       sizes.units};
    parallel_for(0, sizes.batch, std::max<int64_t>(1, kUnitsGrain / sizes.units),
                 [&](int64_t begin, int64_t end) { cpu::cell_backward(pass, begin, end); });
    return multiply_grads(
        multiply_on_cpu<T>,
        {input, h, weight_ih, gates_grad, product(multiply_on_cpu<T>, wanted.h, gates_grad, weight_hh, dtype),
         c_before_grad, column_sums(wanted.bias, gates_grad, dtype)},
        wanted);
  });
}

template <typename T>
RoundsOf rounds_of(const Sizes& sizes, int64_t panel, int64_t rounds) {
  const int64_t weights = 3 * sizes.units * sizes.units;
  return {rounds, sizes.batch, sizes.units, panel, weights, weights * static_cast<int64_t>(sizeof(T))};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> sequence_cpu(Tensor input, Tensor h0, Tensor c0,
                                                                Tensor weight_ih, Tensor weight_hh,
                                                                std::optional<Tensor> bias, bool reverse,
                                                                [[maybe_unused]] bool allow_tf32) {
  const Sizes sizes = check_arguments(input, h0, c0, weight_ih, weight_hh, bias, true);
  const ScalarType dtype = input.scalar_type();
  return dispatch_accumulated(dtype, "lltm", [&]<typename T>(Tag<T>) {
    const WithoutAutograd scope;
    const ScalarType sum_dtype = accumulate_dtype(dtype);
    Tensor activations = empty_of({sizes.steps, sizes.batch, 3 * sizes.units}, sum_dtype, input);
    Tensor output = empty_of({sizes.steps, sizes.batch, sizes.units}, sum_dtype, input);
    Tensor cells = empty_of({sizes.steps, sizes.batch, sizes.units}, sum_dtype, input);
    Tensor packed = empty_of({cpu::packed_count<T>(sizes.units)}, sum_dtype, input);
    Tensor gates = torch::stable::view(activations, {sizes.rows(), 3 * sizes.units});
    const Tensor rows = torch::stable::view(converted(input, sum_dtype), {sizes.rows(), sizes.features});
    multiply_on_cpu<T>(rows, transposed(converted(weight_ih, sum_dtype)), gates);

    weight_hh = converted(weight_hh, sum_dtype);
    bias = converted(bias, sum_dtype);
    h0 = converted(h0, sum_dtype);
    c0 = converted(c0, sum_dtype);
    const RoundsOf rounds = rounds_of<T>(sizes, cpu::kForwardPanel<T>, sizes.steps);
    pack_units(rounds, [&](int64_t begin, int64_t end) {
      cpu::pack_forward(data<T>(weight_hh), mutable_data<T>(packed), sizes.units, begin, end);
    });
    const cpu::SequenceForward<T> pass = {data<T>(packed),
                                          data<T>(bias),
                                          data<T>(h0),
                                          data<T>(c0),
                                          mutable_data<T>(activations),
                                          mutable_data<T>(output),
                                          mutable_data<T>(cells),
                                          sizes.steps,
                                          sizes.batch,
                                          sizes.units,
                                          reverse};
    run_rounds(rounds, [&](const cpu::Share& share, int64_t begin, int64_t end) {
      cpu::sequence_forward(pass, share, begin, end);
    });
    return sequence_results(output, cells, activations, dtype, reverse);
  });
}

Grads sequence_grads_cpu(Tensor input, Tensor h0, Tensor weight_ih, Tensor weight_hh, Tensor activations,
                         Tensor cells, std::optional<Tensor> output_grad, std::optional<Tensor> h_n_grad,
                         std::optional<Tensor> c_n_grad, bool reverse, [[maybe_unused]] bool allow_tf32,
                         bool of_input, bool of_h0, bool of_weight_ih, bool of_weight_hh, bool of_bias) {
  const Sizes sizes =
      check_grads(input, h0, weight_ih, weight_hh, activations, cells, output_grad, h_n_grad, c_n_grad);
  const ScalarType dtype = input.scalar_type();
  const Wanted wanted = {of_input, of_h0, of_weight_ih, of_weight_hh, of_bias};
  return dispatch_accumulated(dtype, "lltm_grads", [&]<typename T>(Tag<T>) {
    const WithoutAutograd scope;
    const ScalarType sum_dtype = accumulate_dtype(dtype);
    Tensor gates_grad = empty_of({sizes.rows(), 3 * sizes.units}, sum_dtype, cells);
    Tensor h_before =
        empty_of({wanted.weight_hh ? sizes.steps : 0, sizes.batch, sizes.units}, sum_dtype, cells);
    Tensor h_grad = state_or_zeros(h_n_grad, sizes, sum_dtype, cells);
    Tensor c_grad = state_or_zeros(c_n_grad, sizes, sum_dtype, cells);
    Tensor packed = empty_of({cpu::packed_count<T>(sizes.units)}, sum_dtype, cells);
    if (wanted.weight_hh) {
      Tensor first = torch::stable::select(h_before, 0, reverse ? sizes.steps - 1 : 0);
      torch::stable::copy_(first, h0);
    }
    activations = converted(activations, sum_dtype);
    cells = converted(cells, sum_dtype);
    output_grad = converted(output_grad, sum_dtype);
    weight_hh = converted(weight_hh, sum_dtype);
    const RoundsOf rounds = rounds_of<T>(sizes, cpu::kBackwardPanel<T>, sizes.steps + 1);
    pack_units(rounds, [&](int64_t begin, int64_t end) {
      cpu::pack({data<T>(weight_hh) + begin, sizes.units, 1}, end - begin, 3 * sizes.units,
                mutable_data<T>(packed) + begin * 3 * sizes.units);
    });
    const cpu::SequenceBackward<T> pass = {data<T>(packed),
                                           data<T>(activations),
                                           data<T>(cells),
                                           data<T>(output_grad),
                                           mutable_data<T>(gates_grad),
                                           wanted.weight_hh ? mutable_data<T>(h_before) : nullptr,
                                           mutable_data<T>(h_grad),
                                           mutable_data<T>(c_grad),
                                           sizes.steps,
                                           sizes.batch,
                                           sizes.units,
                                           reverse};
    run_rounds(rounds, [&](const cpu::Share& share, int64_t begin, int64_t end) {
      cpu::sequence_backward(pass, share, begin, end);
    });
    return of_sequence(multiply_grads(multiply_on_cpu<T>,
                                      {rows_of(to_contiguous(input)), rows_of(h_before), weight_ih,
                                       gates_grad, converted(wanted.h, h_grad, dtype), c_grad,
                                       column_sums(wanted.bias, gates_grad, dtype)},
                                      wanted),
                       wanted, sizes);
  });
}

}  // namespace

TORCHGRAFT_KERNEL(torchgraft, CPU, lltm_cell, cell_cpu)
TORCHGRAFT_KERNEL(torchgraft, CPU, lltm_cell_grads, cell_grads_cpu)
TORCHGRAFT_KERNEL(torchgraft, CPU, lltm, sequence_cpu)
TORCHGRAFT_KERNEL(torchgraft, CPU, lltm_grads, sequence_grads_cpu)

}  // namespace torchgraft::lltm
