// Says which kernel serves each problem of standard input, one a line: its numbers are those that are read
// below. With the argument `supported` it says which kernels support it, with `together` whether threads of
// gather_large take neighbouring channels; with `tables` it writes both tables instead.

#include <iostream>
#include <string>

#include "cuda/policy.h"

namespace {

using namespace torchgraft::depthwise;

template <typename Kernel, size_t kCount>
void write(const char* passes, const cuda::RuleOf<Kernel> (&rules)[kCount]) {
  for (const auto& rule : rules) {
    std::cout << passes << '\t' << rule.name << '\t' << rule.regime << '\t' << rule.reason << '\n';
  }
}

std::istream& operator>>(std::istream& in, Extent& extent) {
  return in >> extent.input >> extent.output >> extent.kernel >> extent.stride >> extent.padding >>
         extent.dilation;
}

}  // namespace

int main(int count, char** arguments) {
  const std::string mode = count > 1 ? arguments[1] : "";
  if (mode == "tables") {
    write("forward, input gradient", cuda::kCorrelationRules);
    write("weight gradient", cuda::kWeightGradRules);
    return 0;
  }
  std::string direction;
  cuda::Problem problem = {};
  Geometry& sizes = problem.geometry;
  while (std::cin >> direction >> problem.channels_last >> problem.element_bytes >> problem.alignment >>
         problem.tensor_cores >> problem.shared_bytes >> problem.multiprocessors >> sizes.batch >>
         sizes.channels >> sizes.multiplier >> sizes.height >> sizes.width) {
    problem.transposed = direction == "input_grad";
    const auto answer = [&](const auto& rules) {
      if (mode != "supported") {
        std::cout << torchgraft::choose(rules, problem).name << '\n';
        return;
      }
      for (const auto& rule : rules) {
        if (rule.supports(problem)) std::cout << rule.name << ' ';
      }
      std::cout << '\n';
    };
    if (mode == "together") {
      std::cout << (cuda::gathers_channels_together(problem) ? "together" : "apart") << '\n';
    } else if (direction == "layout") {
      std::cout << (cuda::planes_pay(sizes, problem.element_bytes) ? "NCHW" : "as given") << '\n';
    } else if (direction == "images_of_weight_grad") {
      const cuda::Images images = cuda::images_of_weight_grad(problem);
      std::cout << (images == cuda::Images::planes           ? "NCHW"
                    : images == cuda::Images::whole_channels ? "whole eights"
                                                             : "as given")
                << '\n';
    } else if (direction == "weight_grad") {
      answer(cuda::kWeightGradRules);
    } else {
      answer(cuda::kCorrelationRules);
    }
  }
}
