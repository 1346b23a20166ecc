// What the calls stand on that tests/test_cpp.py writes: each prints a line, its number and what it raised.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torchgraft/operators.h>

#include <cstring>
#include <iostream>
#include <string>
#include <vector>

using torch::headeronly::ScalarType;
using torchgraft::Tensor;

// A tensor of the values, which are whole numbers, or else of ones.
inline Tensor tensor(const std::vector<int64_t>& sizes, ScalarType dtype,
                     const std::vector<int64_t>& values = {}) {
  Tensor made = torch::stable::full(sizes, 1.0, dtype);
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == ScalarType::Int) {
      static_cast<int32_t*>(made.mutable_data_ptr())[i] = static_cast<int32_t>(values[i]);
    } else {
      static_cast<int64_t*>(made.mutable_data_ptr())[i] = values[i];
    }
  }
  return made;
}

// What a call raised, with its kind: "invalid" for std::invalid_argument, "failed" for any other.
template <typename Call>
void attempt(int number, const Call& call) {
  std::string said = "fine";
  try {
    call();
  } catch (const std::invalid_argument& error) {
    said = std::string("invalid ") + error.what();
  } catch (const std::exception& error) {
    said = std::string("failed ") + error.what();
  }
  std::cout << number << '\t' << said.substr(0, said.find('\n')) << '\n';
}
