// Says which kernel computes each shift of standard input, one a line, and which kernels support it: its
// numbers are those that are read below. With the argument `names` it writes the names of all instead.

#include "answers.h"
//
#include "cuda/policy.h"

int main(int count, char** arguments) {
  using namespace torchgraft::shift::cuda;
  const std::string mode = count > 1 ? arguments[1] : "";
  if (mode == "names") {
    for (const Rule& rule : kRules) std::cout << rule.name << '\n';
    return 0;
  }
  const std::string passes[] = {"forward", "input_grad", "offset_grad", "grads"};
  std::string pass;
  Problem problem = {};
  torchgraft::shift::Geometry& sizes = problem.geometry;
  while (std::cin >> pass >> problem.channels_last >> problem.element_bytes >> problem.multiprocessors >>
         problem.shared_of_block >> sizes.batch >> sizes.channels >> sizes.height >> sizes.width >>
         sizes.stride) {
    for (int i = 0; i < 4; ++i) {
      if (pass == passes[i]) problem.pass = static_cast<Pass>(i);
    }
    sizes.steps = sizes.height / sizes.stride;
    problem.shared_of_multiprocessor = problem.shared_of_block + 1024;
    torchgraft::write_answer(mode == "thresholds", [&] {
      std::string answer = std::string(torchgraft::choose(kRules, problem).name) + " of";
      for (const Rule& rule : kRules) {
        if (rule.supports(problem)) answer.append(" ").append(rule.name);
      }
      return answer;
    });
  }
}
