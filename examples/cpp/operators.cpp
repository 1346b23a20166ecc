// Calls operators from C++, without Python, and shows what a wrong call raises.
#include <torch/csrc/stable/ops.h>
#include <torchgraft/operators.h>

#include <iostream>

using torch::headeronly::ScalarType;

int main() try {
  const auto input = torch::stable::full({1, 2, 4, 4}, 3.0, ScalarType::Float);
  const auto weight = torch::stable::full({2, 1, 3, 3}, 0.5, ScalarType::Float);
  const auto output = torchgraft::depthwise_conv2d(input, weight, std::nullopt, 1, 1, 1, 1, 1, 1, 1, 1);
  const auto doubled = torchgraft::mul_constant(output, 2.0);
  std::cout << "a corner: " << doubled.const_data_ptr<float>()[0] << '\n';

  const auto wrong = torch::stable::full({3, 1, 3, 3}, 0.5, ScalarType::Double);
  torchgraft::depthwise_conv2d(input, wrong, std::nullopt, 1, 1, 1, 1, 1, 1, 1, 1);
} catch (const std::exception& error) {
  std::cout << "refused: " << error.what() << '\n';
}
