// Which kernel computes a call (policy.h), and its launch: a switch without a default for each table.

#include "kernels.h"

#include <torchgraft/cuda.cuh>
#include <torchgraft/device.cuh>

#include "policy.h"

namespace torchgraft::lltm::cuda {
namespace {

int bytes_of(ScalarType dtype) {
  return dtype == ScalarType::Double ? 8 : dtype == ScalarType::Float ? 4 : 2;
}

RowsProblem rows_problem(const Sizes& sizes, ScalarType dtype) {
  return {sizes.rows(), sizes.features, sizes.units, bytes_of(dtype), current_device().multiprocessors};
}

int resident(const Problem& problem, Technique technique, Kernel kernel, int64_t blocks,
             int64_t shared_bytes) {
  switch (technique) {
    case Technique::on_chip:
      return problem.backward ? resident_on_chip_backward(problem, kernel, blocks, shared_bytes)
                              : resident_on_chip_forward(problem, kernel, blocks, shared_bytes);
    case Technique::on_chip_mma:
      return problem.backward ? resident_on_chip_mma_backward(problem, kernel, blocks, shared_bytes)
                              : resident_on_chip_mma_forward(problem, kernel, blocks, shared_bytes);
    case Technique::grid:
      return problem.backward ? resident_grid_backward(problem, kernel, shared_bytes)
                              : resident_grid_forward(problem, kernel, shared_bytes);
    case Technique::few_units:
    case Technique::steps:
    case Technique::elementwise:
      break;
  }
  fail("lltm: kernels whose blocks need not be resident are asked for room");
}

// `starts_aligned`: whether all that kernels on the grid read four numbers at a time begins at sixteen bytes.
Problem make_problem(const Sizes& sizes, ScalarType dtype, bool backward, bool allow_tf32,
                     bool starts_aligned) {
  const Device& device = current_device();
  const int bytes = bytes_of(dtype);
  return {sizes.steps,
          sizes.batch,
          sizes.units,
          backward,
          bytes,
          dtype == ScalarType::BFloat16,
          bytes == 2 || (bytes == 4 && allow_tf32),
          sizes.units % 4 == 0 && starts_aligned,
          device.architecture,
          architecture_of_kernels(),
          device.multiprocessors,
          device.shared_of_block,
          device.has_clusters,
          device.has_cooperative_launches,
          resident};
}

// The others read and write numbers of two bytes themselves.
bool needs_dtype_of_sums(Technique technique) {
  return technique == Technique::grid || technique == Technique::elementwise;
}

}  // namespace

// Of the cell, some of whose small samples are deep enough for parts.
TORCHGRAFT_KERNELS(lltm_cell, kMatrixRules)
TORCHGRAFT_KERNELS(lltm_grads, kSequenceGradsRules)

void launch_recurrence(ForwardTensors& tensors, bool allow_tf32) {
  const ScalarType dtype = tensors.h0.scalar_type();
  const ScalarType sum_dtype = accumulate_dtype(dtype);
  // What is converted begins aligned.
  const bool starts_aligned = sum_dtype != dtype || is_aligned(tensors.h0.const_data_ptr(), 16);
  const Problem problem = make_problem(tensors.sizes, dtype, false, allow_tf32, starts_aligned);
  const Rule& rule = choose(kForwardRules, problem);
  if (sum_dtype != dtype && needs_dtype_of_sums(rule.technique)) {
    const Sizes& sizes = tensors.sizes;
    tensors.output = empty_of({sizes.steps, sizes.batch, sizes.units}, sum_dtype, tensors.output);
    tensors.weight_hh = converted(tensors.weight_hh, sum_dtype);
    tensors.bias = converted(tensors.bias, sum_dtype);
    tensors.h0 = converted(tensors.h0, sum_dtype);
    tensors.c0 = converted(tensors.c0, sum_dtype);
  }
  switch (rule.technique) {
    case Technique::few_units:
      return launch_few_units_forward(problem, rule.kernel, tensors);
    case Technique::on_chip:
      return launch_on_chip_forward(problem, rule.kernel, tensors);
    case Technique::on_chip_mma:
      return launch_on_chip_mma_forward(problem, rule.kernel, tensors);
    case Technique::steps:
      return launch_steps_forward(problem, rule.kernel, tensors);
    case Technique::grid:
      return launch_grid_forward(problem, rule.kernel, tensors);
    case Technique::elementwise:
      return launch_elementwise_forward(problem, rule.kernel, tensors);
  }
}

void launch_recurrence(BackwardTensors& tensors, bool allow_tf32) {
  const ScalarType dtype = tensors.weight_hh.scalar_type();
  const Problem problem = make_problem(tensors.sizes, dtype, true, allow_tf32, true);
  const Rule& rule = choose(kBackwardRules, problem);
  if (needs_dtype_of_sums(rule.technique)) {
    tensors.output_grad = converted(tensors.output_grad, accumulate_dtype(dtype));
    tensors.weight_hh = converted(tensors.weight_hh, accumulate_dtype(dtype));
  }
  switch (rule.technique) {
    case Technique::few_units:
      return launch_few_units_backward(problem, rule.kernel, tensors);
    case Technique::on_chip:
      return launch_on_chip_backward(problem, rule.kernel, tensors);
    case Technique::on_chip_mma:
      return launch_on_chip_mma_backward(problem, rule.kernel, tensors);
    case Technique::steps:
      return launch_steps_backward(problem, rule.kernel, tensors);
    case Technique::grid:
      return launch_grid_backward(problem, rule.kernel, tensors);
    case Technique::elementwise:
      return launch_elementwise_backward(problem, rule.kernel, tensors);
  }
}

bool is_small_cell(const Sizes& sizes, ScalarType dtype) {
  return choose(kCellRules, rows_problem(sizes, dtype)).kernel == CellKernel::cell;
}

template <typename T>
Grads multiply_grads(const GradTensors& tensors) {
  const RowsProblem problem = rows_problem(tensors.sizes, dtype_of<T>());
  const GradsRule& rule =
      tensors.states.has_value() ? choose(kSequenceGradsRules, problem) : choose(kCellGradsRules, problem);
  switch (rule.kernel) {
    case GradsKernel::together:
      if constexpr (!std::is_same_v<T, double>) return launch_products_together<T>(tensors);
      break;
    case GradsKernel::halves:
      if constexpr (sizeof(T) == 2) return launch_products_halves<T>(tensors);
      break;
    case GradsKernel::plain:
      return launch_products_plain<T>(tensors);
  }
  fail("lltm: nothing launches ", rule.name, " for elements of ", sizeof(T), " bytes");
}

template Grads multiply_grads<double>(const GradTensors&);
template Grads multiply_grads<float>(const GradTensors&);
template Grads multiply_grads<Half>(const GradTensors&);
template Grads multiply_grads<BFloat16>(const GradTensors&);

void multiply(const Tensor& left, const Tensor& right, Tensor& result) {
  // Factors of three dimensions are in parts already, of so many units that there are tiles for all blocks.
  if (left.dim() == 2 && left.element_size() == 2) {
    const MatrixProblem problem = {result.size(0), result.size(1), left.size(1),
                                   current_device().multiprocessors};
    if (choose(kMatrixRules, problem).kernel == MatrixKernel::in_parts) {
      return launch_products_in_parts(left, right, result);
    }
  }
  launch_products_at_once(left, right, result);
}

}  // namespace torchgraft::lltm::cuda
