// Says which kernel computes each shift of standard input, one a line, and which kernels support it: its
// numbers are those that are read below. With the argument `names` it writes the names of all instead. With
// `plans` the name of a kernel begins each line, and the address of the source ends it; the program then says
// how that kernel cuts its work.

#include "answers.h"
//
#include "cuda/channels_last.h"
#include "cuda/policy.h"

using namespace torchgraft::shift::cuda;

void write_plan(const std::string& kernel, const Problem& problem, uint64_t address) {
  for (const Rule& rule : kRules) {
    if (rule.name != kernel) continue;
    if (!rule.supports(problem)) {
      std::cout << "none\n";
      return;
    }
    const Plan plan = rule.plan(problem);
    std::cout << plan.blocks << " blocks of " << plan.threads << ", " << plan.parts << " parts, "
              << plan.shared_bytes << " bytes; ";
    if (kernel == "planes") {
      std::cout << plan.tile_rows << " rows of " << plan.stage_rows << ", " << plan.step << " a thread";
    } else if (kernel == "channels_last") {
      const ChannelsLastSizes sizes(plan, problem.geometry, problem.element_bytes, address);
      std::cout << "ring of " << plan.stage_rows << ", span " << plan.span << "; " << sizes.groups
                << " groups of " << sizes.group << ", " << sizes.chunks << " chunks; " << sizes.pieces
                << " and " << sizes.last_pieces << " pieces of " << sizes.piece_bytes << "; pitch "
                << sizes.row_pitch << " of " << sizes.ring_elements << ", " << sizes.slots_of_row
                << " slots a row";
    }
    std::cout << '\n';
  }
}

int main(int count, char** arguments) {
  const std::string mode = count > 1 ? arguments[1] : "";
  if (mode == "names") {
    for (const Rule& rule : kRules) std::cout << rule.name << '\n';
    return 0;
  }
  const std::string passes[] = {"forward", "input_grad", "offset_grad", "grads"};
  std::string kernel;
  std::string pass;
  Problem problem = {};
  torchgraft::shift::Geometry& sizes = problem.geometry;
  if (mode == "plans") std::cin >> kernel;
  while (std::cin >> pass >> problem.channels_last >> problem.element_bytes >> problem.multiprocessors >>
         problem.shared_of_block >> sizes.batch >> sizes.channels >> sizes.height >> sizes.width >>
         sizes.stride) {
    for (int i = 0; i < 4; ++i) {
      if (pass == passes[i]) problem.pass = static_cast<Pass>(i);
    }
    sizes.steps = sizes.height / sizes.stride;
    problem.shared_of_multiprocessor = problem.shared_of_block + 1024;
    if (mode == "plans") {
      uint64_t address = 0;
      std::cin >> address;
      write_plan(kernel, problem, address);
      std::cin >> kernel;
      continue;
    }
    torchgraft::write_answer(mode == "thresholds", [&] {
      std::string answer = std::string(torchgraft::choose(kRules, problem).name) + " of";
      for (const Rule& rule : kRules) {
        if (rule.supports(problem)) answer.append(" ").append(rule.name);
      }
      return answer;
    });
  }
}
