// Says which kernel serves each pass of standard input, one a line: its numbers are those that are read
// below. With an argument it writes both tables instead.

#include <iostream>
#include <string>

#include "cuda_choice.h"

namespace {

using namespace torchgraft::depthwise;

void write(const char* passes, const cuda::Rule* rules) {
  for (const cuda::Rule* rule = rules;; ++rule) {
    std::cout << passes << '\t' << rule->name << '\t' << rule->regime << '\t' << rule->reason << '\n';
    if (rule->takes == cuda::takes_anything) return;
  }
}

std::istream& operator>>(std::istream& in, Extent& extent) {
  return in >> extent.input >> extent.output >> extent.kernel >> extent.stride >> extent.padding >>
         extent.dilation;
}

}  // namespace

int main(int count, char**) {
  if (count > 1) {
    write("forward, input gradient", cuda::kCorrelationRules);
    write("weight gradient", cuda::kWeightGradRules);
    return 0;
  }
  std::string direction;
  cuda::Pass pass = {};
  Geometry& sizes = pass.geometry;
  while (std::cin >> direction >> pass.channels_last >> pass.element_bytes >> pass.alignment >>
         pass.tensor_cores >> pass.shared_bytes >> pass.multiprocessors >> sizes.batch >> sizes.channels >>
         sizes.multiplier >> sizes.height >> sizes.width) {
    pass.transposed = direction == "input_grad";
    if (direction == "layout") {
      std::cout << (cuda::planes_pay(sizes, pass.element_bytes) ? "NCHW" : "as given") << '\n';
    } else {
      std::cout << (direction == "weight_grad" ? cuda::choose_weight_grad(pass) : cuda::choose(pass)).name
                << '\n';
    }
  }
}
