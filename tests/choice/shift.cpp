// Says which kernel serves each shift of standard input, one a line: its numbers are those that are read
// below. With an argument it writes the names of all instead.

#include <iostream>
#include <string>

#include "cuda/policy.h"

int main(int count, char**) {
  using namespace torchgraft::shift::cuda;
  if (count > 1) {
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
    std::string supported;
    for (const Rule& rule : kRules) {
      if (rule.supports(problem)) supported += std::string(" ") + rule.name;
    }
    std::cout << torchgraft::choose(kRules, problem).name << " of" << supported << '\n';
  }
}
