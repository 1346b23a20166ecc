// The choice of lltm, of its cell and of their gradients (operators/lltm/cuda.cu and cuda/dispatch.cu). How
// many blocks of a kernel a multiprocessor has room for, only CUDA knows. One is assumed here, and a cluster
// of as many blocks as there is one multiprocessor for each. So small kernels that wait for each other may be
// chosen for a few more rows.

#include <torchgraft/detail/predicted.h>
#include "cuda/policy.h"

namespace torchgraft::predicted {
namespace {

using namespace lltm::cuda;

constexpr int kHalfBytes = 2, kFloatBytes = 4;

// Whether a rule of a kernel, in either direction, is one of clusters.
bool has_clusters(Kernel kernel) {
  const auto among = [kernel](const auto& rules) {
    return std::any_of(std::begin(rules), std::end(rules), [&](const Rule& rule) {
      return rule.kernel == kernel && std::string(rule.name).find("cluster") != std::string::npos;
    });
  };
  return among(kForwardRules) || among(kBackwardRules);
}

int resident(const Problem& problem, Technique, Kernel kernel, int64_t blocks, int64_t) {
  return has_clusters(kernel) ? problem.multiprocessors / static_cast<int>(blocks) : 1;
}

// The products with all inputs, which are chosen among for halves.
void add_product(Names& names, int64_t rows, int64_t columns, int64_t depth, int element_bytes,
                 const Gpu& gpu) {
  if (element_bytes != kHalfBytes) return;
  const MatrixProblem problem = {rows, columns, depth, gpu.multiprocessors};
  names.push_back(choose(kMatrixRules, problem).name);
}

// What the kernels are compiled for, as far as it matters: later architectures have all that 9.0 has.
int compiled_for(const Gpu& gpu) {
  for (const int architecture : {900, 800}) {
    if (gpu.architecture >= architecture) return architecture;
  }
  return gpu.architecture;
}

Problem recurrence(const Argument& input, int64_t units, bool backward, bool allow_tf32, const Gpu& gpu) {
  constexpr int kClusters = 900;
  const int bytes = input.element_bytes;
  return {input.sizes[0],
          input.sizes[1],
          units,
          backward,
          bytes,
          input.is_bfloat16,
          bytes == kHalfBytes || (bytes == kFloatBytes && allow_tf32),
          units % 4 == 0,
          gpu.architecture,
          compiled_for(gpu),
          gpu.multiprocessors,
          gpu.shared_of_block,
          gpu.architecture >= kClusters,
          true,
          resident};
}

// input, h0, c0, weight_ih, weight_hh, bias, reverse, allow_tf32
Names sequence(const Arguments& arguments, const Gpu& gpu) {
  const Argument& input = arguments[0];
  const int64_t units = arguments[4].sizes[1];
  if (input.sizes[1] == 0) return {};
  Names names;
  add_product(names, input.sizes[0] * input.sizes[1], kGates * units, input.sizes[2], input.element_bytes,
              gpu);
  names.push_back(choose(kForwardRules, recurrence(input, units, false, arguments[7].number != 0, gpu)).name);
  return names;
}

// input, h0, weight_ih, weight_hh, activations, cells, output_grad, h_n_grad, c_n_grad, reverse, allow_tf32,
// ...
Names sequence_grads(const Arguments& arguments, const Gpu& gpu) {
  const Argument& input = arguments[0];
  const int64_t units = arguments[3].sizes[1];
  Names names;
  if (input.sizes[1] > 0) {
    names.push_back(
        choose(kBackwardRules, recurrence(input, units, true, arguments[10].number != 0, gpu)).name);
  }
  const RowsProblem rows = {input.sizes[0] * input.sizes[1], input.sizes[2], units, input.element_bytes,
                            gpu.multiprocessors};
  names.push_back(choose(kSequenceGradsRules, rows).name);
  return names;
}

RowsProblem cell_problem(const Argument& input, int64_t units, const Gpu& gpu) {
  return {input.sizes[0], input.sizes[1], units, input.element_bytes, gpu.multiprocessors};
}

// input, h, c, weight_ih, weight_hh, bias
Names cell(const Arguments& arguments, const Gpu& gpu) {
  const RowsProblem problem = cell_problem(arguments[0], arguments[4].sizes[1], gpu);
  const CellRule& rule = choose(kCellRules, problem);
  // Only float32 has the one kernel, and asks for it.
  Names names;
  if (problem.element_bytes == kFloatBytes) names.push_back(rule.name);
  if (rule.kernel == CellKernel::elementwise && problem.rows > 0) {
    const int64_t width = kGates * problem.units;
    add_product(names, problem.rows, width, problem.features, problem.element_bytes, gpu);
    add_product(names, problem.rows, width, problem.units, problem.element_bytes, gpu);
  }
  return names;
}

// input, h, c, weight_ih, weight_hh, activations, ...
Names cell_grads(const Arguments& arguments, const Gpu& gpu) {
  return {choose(kCellGradsRules, cell_problem(arguments[0], arguments[4].sizes[1], gpu)).name};
}

const Registered kSequence("lltm", sequence);
const Registered kSequenceGrads("lltm_grads", sequence_grads);
const Registered kCell("lltm_cell", cell);
const Registered kCellGrads("lltm_cell_grads", cell_grads);

}  // namespace
}  // namespace torchgraft::predicted
