// Host functions of lltm, its cell and their gradients on CPU. The kernels are in cpu/sequence.cpp and
// cpu/cell.cpp, and the matrix products in cpu/product.cpp.

#include <torchgraft/cpu.h>
#include <torchgraft/dispatch.h>
#include <torchgraft/registration.h>

#include <tuple>
#include <type_traits>

#include "cpu/kernels.h"
#include "cpu/rounds.h"
#include "host.h"

namespace torchgraft::lltm {
namespace {

// The least units of a step, and the least multiplications, for which a thread is worth waking.
constexpr int64_t kUnitsGrain = 4096;
constexpr int64_t kProductsGrain = 1 << 18;

// The least weights that a thread packs.
constexpr int64_t kPackedGrain = 1 << 16;

// result = left @ right. Not PyTorch's: on some processors its products cut the depth into as many parts as
// there are threads, and then the last bits of a sum follow their number.
template <typename T>
void multiply_on_cpu(const Tensor& left, const Tensor& right, Tensor& result) {
  // As many rows share what a thread packs; of more, threads share out rows, and each packs all columns.
  constexpr int64_t kManyRows = 256;
  // To pack a column takes as long as to multiply so many rows by it.
  constexpr int64_t kPackingRows = 8;
  constexpr int64_t kPanel = cpu::kBackwardPanel<T>;
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
  const int64_t panels = (columns + kPanel - 1) / kPanel;
  if (rows < kManyRows && panels >= 2 * torch::stable::get_num_threads()) {
    parallel_for(0, panels, std::max<int64_t>(1, kProductsGrain / ((rows + kPackingRows) * depth * kPanel)),
                 [&](int64_t begin, int64_t end) {
                   cpu::multiply(product, {0, rows, begin * kPanel, std::min(columns, end * kPanel)});
                 });
    return;
  }
  parallel_for(0, rows, std::max<int64_t>(1, kProductsGrain / (depth * columns)),
               [&](int64_t begin, int64_t end) { cpu::multiply(product, {begin, end, 0, columns}); });
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

// How many shares of the units the threads have; 1 where they had better share out the rows of the batch.
//
// Threads that share out units meet each step, and each reads its share of weight_hh from its own cache.
// Threads that share out rows never meet, and each reads all of weight_hh each step: that is slow where
// weight_hh does not fit a cache, and where rows are so few that a step is mostly reading.
template <typename T>
int64_t unit_shares(const Sizes& sizes, int64_t panels) {
  constexpr int64_t kCacheBytes = 1 << 20;
  constexpr int64_t kFewRows = 8;  // a thread
  // Of a share and a step: they take some microseconds, and a meeting some hundred nanoseconds.
  constexpr int64_t kProducts = 1 << 17;
  const int64_t threads = torch::stable::get_num_threads();
  const int64_t weights = 3 * sizes.units * sizes.units;
  const bool rows_are_few = sizes.batch < kFewRows * threads;
  const bool weights_are_many = weights * static_cast<int64_t>(sizeof(T)) > kCacheBytes;
  if (!rows_are_few && !weights_are_many) return 1;
  return std::min({threads, panels, weights * sizes.batch / kProducts});
}

// Calls `pack(begin, end)` with ranges of the units, of whole panels, that together are all.
template <typename Pack>
void pack_units(const Sizes& sizes, int64_t panel, const Pack& pack) {
  const int64_t panels = (sizes.units + panel - 1) / panel;
  parallel_for(0, panels, std::max<int64_t>(1, kPackedGrain / (3 * sizes.units * panel)),
               [&](int64_t begin, int64_t end) { pack(begin * panel, std::min(sizes.units, end * panel)); });
}

// Calls `run(share, begin, end)` with shares that together are all rows and units, and rounds that together
// are all.
template <typename T, typename Run>
void run_rounds(const Sizes& sizes, int64_t panel, int64_t rounds, const Run& run) {
  const int64_t panels = (sizes.units + panel - 1) / panel;
  const int64_t shares = unit_shares<T>(sizes, panels);
  if (shares <= 1) {
    const int64_t products = 3 * sizes.steps * sizes.units * sizes.units;
    parallel_for(0, sizes.batch, std::max<int64_t>(1, kProductsGrain / products),
                 [&](int64_t begin, int64_t end) { run(cpu::Share{begin, end, 0, sizes.units}, 0, rounds); });
    return;
  }
  const auto first_unit = [&](int64_t share) {
    return std::min(sizes.units, panels * share / shares * panel);
  };
  cpu::Rounds together(shares, rounds);
  parallel_for(0, shares, 1, [&](int64_t begin, int64_t end) {
    together.take_part(begin, end, [&](int64_t share, int64_t round) {
      run(cpu::Share{0, sizes.batch, first_unit(share), first_unit(share + 1)}, round, round + 1);
    });
  });
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
    pack_units(sizes, cpu::kForwardPanel<T>, [&](int64_t begin, int64_t end) {
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
    run_rounds<T>(sizes, cpu::kForwardPanel<T>, sizes.steps,
                  [&](const cpu::Share& share, int64_t begin, int64_t end) {
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
    pack_units(sizes, cpu::kBackwardPanel<T>, [&](int64_t begin, int64_t end) {
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
    run_rounds<T>(sizes, cpu::kBackwardPanel<T>, sizes.steps + 1,
                  [&](const cpu::Share& share, int64_t begin, int64_t end) {
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
