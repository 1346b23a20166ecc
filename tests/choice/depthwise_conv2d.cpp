// Answers the questions of standard input, one a line: a word, and the numbers that are read below.
//
//   forward, input_grad, weight_grad   the kernel that is chosen; behind `supported:` all kernels that
//   support the
//                                      problem, behind `together:` whether threads of gather_large own
//                                      neighbouring channels
//   layout, images_of_weight_grad      how images are brought to the kernels
//
// With the argument `tables` it writes both tables instead.

#include "answers.h"
//
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

std::string answer(const std::string& question, const cuda::Problem& problem) {
  const Geometry& sizes = problem.geometry;
  if (question == "layout") {
    return cuda::planes_pay(sizes, problem.element_bytes) ? "NCHW" : "as given";
  }
  if (question == "images_of_weight_grad") {
    const cuda::Images images = cuda::images_of_weight_grad(problem);
    return images == cuda::Images::planes           ? "NCHW"
           : images == cuda::Images::whole_channels ? "whole eights"
                                                    : "as given";
  }
  if (question.starts_with("together:")) {
    return cuda::gathers_channels_together(problem) ? "together" : "apart";
  }
  const auto of = [&](const auto& rules) -> std::string {
    if (!question.starts_with("supported:")) return torchgraft::choose(rules, problem).name;
    std::string supported;
    for (const auto& rule : rules) {
      if (rule.supports(problem)) supported.append(supported.empty() ? "" : " ").append(rule.name);
    }
    return supported;
  };
  return question.ends_with("weight_grad") ? of(cuda::kWeightGradRules) : of(cuda::kCorrelationRules);
}

}  // namespace

int main(int count, char** arguments) {
  const std::string mode = count > 1 ? arguments[1] : "";
  if (mode == "tables") {
    write("forward, input gradient", cuda::kCorrelationRules);
    write("weight gradient", cuda::kWeightGradRules);
    return 0;
  }
  std::string question;
  cuda::Problem problem = {};
  Geometry& sizes = problem.geometry;
  while (std::cin >> question >> problem.channels_last >> problem.element_bytes >> problem.alignment >>
         problem.tensor_cores >> problem.shared_bytes >> problem.multiprocessors >> sizes.batch >>
         sizes.channels >> sizes.multiplier >> sizes.height >> sizes.width) {
    problem.transposed = question.ends_with("input_grad");
    torchgraft::write_answer(mode == "thresholds", [&] { return answer(question, problem); });
  }
}
