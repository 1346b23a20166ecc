// Says which kernel computes each recurrence of standard input, and each cell, its gradients or those of a
// sequence, and each product, one a line: its numbers are those that are read below. With the argument
// `times` it writes behind each recurrence the kernels that are predicted to take a time, with that time and
// whether they support the problem. With `recurrences` it writes the names of all of them instead, with
// `others` those of all other kernels. A multiprocessor of the device has room for one block at a time.

#include "answers.h"
//
#include "cuda/policy.h"

namespace {

using namespace torchgraft::lltm::cuda;

int resident(const Problem& problem, Technique, Kernel kernel, int64_t blocks, int64_t) {
  const std::string names = [&] {
    for (const Rule& rule : kForwardRules) {
      if (rule.kernel == kernel) return std::string(rule.name);
    }
    for (const Rule& rule : kBackwardRules) {
      if (rule.kernel == kernel) return std::string(rule.name);
    }
    return std::string();
  }();
  const bool is_cluster = names.find("cluster") != std::string::npos;
  return is_cluster ? problem.multiprocessors / static_cast<int>(blocks) : 1;
}

}  // namespace

int main(int count, char** arguments) {
  const auto write_names = [](const auto& rules) {
    for (const auto& rule : rules) std::cout << rule.name << '\n';
  };
  const std::string mode = count > 1 ? arguments[1] : "";
  if (mode == "recurrences") {
    write_names(kForwardRules);
    write_names(kBackwardRules);
    return 0;
  }
  if (mode == "others") {
    write_names(kCellRules);
    write_names(kCellGradsRules);
    write_names(kSequenceGradsRules);
    write_names(kMatrixRules);
    return 0;
  }
  std::string asked;
  Problem problem = {};
  problem.resident = resident;
  while (std::cin >> asked) {
    if (asked == "product") {
      MatrixProblem product = {};
      std::cin >> product.rows >> product.columns >> product.depth >> product.multiprocessors;
      torchgraft::write_answer(mode == "thresholds",
                               [&] { return torchgraft::choose(kMatrixRules, product).name; });
      continue;
    }
    if (asked == "cell" || asked == "cell_grads" || asked == "grads") {
      RowsProblem rows = {};
      std::cin >> rows.rows >> rows.features >> rows.units >> rows.element_bytes >> rows.multiprocessors;
      torchgraft::write_answer(mode == "thresholds", [&] {
        return asked == "cell"         ? torchgraft::choose(kCellRules, rows).name
               : asked == "cell_grads" ? torchgraft::choose(kCellGradsRules, rows).name
                                       : torchgraft::choose(kSequenceGradsRules, rows).name;
      });
      continue;
    }
    std::cin >> problem.element_bytes >> problem.is_bfloat16 >> problem.allows_two_byte_weights >>
        problem.architecture >> problem.multiprocessors >> problem.shared_of_block >>
        problem.has_cooperative_launches >> problem.steps >> problem.batch >> problem.units;
    problem.backward = asked == "backward";
    problem.reads_float4 = problem.units % 4 == 0;
    problem.compiled_for = problem.architecture;
    problem.has_clusters = problem.has_cooperative_launches && problem.architecture >= 900;
    const auto answer = [&](const auto& rules) {
      std::cout << torchgraft::choose(rules, problem).name;
      for (const Rule& rule : rules) {
        const float time = rule.microseconds(problem);
        if (mode == "times" && time < kNever) {
          std::cout << ' ' << rule.name << ' ' << time << ' ' << rule.supports(problem);
        }
      }
      std::cout << '\n';
    };
    problem.backward ? answer(kBackwardRules) : answer(kForwardRules);
  }
}
