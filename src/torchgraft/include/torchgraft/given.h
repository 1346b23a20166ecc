// The arguments of a call of an operator, in words: for the text of an error, once a call has failed.
#pragma once

#include <torch/csrc/stable/device.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "checks.h"
#include "data.h"

namespace torchgraft::internal {

// An operator as it is declared in Python, for the functions that torchgraft writes for C++.
struct Declaration {
  const char* name_space;
  const char* name;
  // As a kernel's in signature.h: "Tensor, Tensor?, int".
  const char* arguments;
  const char* results;
  // The names of the arguments, with spaces between them.
  const char* names;
  // What tensors must be, each as "name float32 float16", with semicolons between them. Those of which the
  // same is said must be of the same dtype, but for one that "~name" marks.
  const char* dtypes;
  // As Operator takes it; empty where none are declared.
  const char* shapes;
};

// An argument with its value: tensors, those of a list, or a whole number; of other kinds only the name.
struct __attribute__((visibility("hidden"))) Given {
  std::string name;
  // By the name in a message: "tensors[1]" of a list. One that is missing is no part of it.
  std::vector<std::pair<std::string, Tensor>> tensors;
  std::optional<int64_t> number;
};

inline void take(Given& given, const std::string& shown, const Tensor& value) {
  given.tensors.emplace_back(shown, value);
}

inline void take(Given& given, const std::string&, int64_t value) { given.number = value; }

// Numbers that are no sizes, text and devices: Python has nothing to say about these that C++ would not.
inline void take(Given&, const std::string&, double) {}
inline void take(Given&, const std::string&, bool) {}
inline void take(Given&, const std::string&, const std::string&) {}
inline void take(Given&, const std::string&, ScalarType) {}
inline void take(Given&, const std::string&, torch::headeronly::Layout) {}
inline void take(Given&, const std::string&, torch::headeronly::MemoryFormat) {}
inline void take(Given&, const std::string&, const torch::stable::Device&) {}

template <typename T>
void take(Given& given, const std::string& shown, const std::optional<T>& value) {
  if (value) take(given, shown, *value);
}

template <typename T>
void take(Given& given, const std::string& shown, const std::vector<T>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    take(given, shown + "[" + std::to_string(i) + "]", static_cast<const T&>(values[i]));
  }
  given.number.reset();
}

// What stands between separators.
inline std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

template <typename... Arguments>
std::vector<Given> give(const Declaration& declaration, const Arguments&... arguments) {
  std::vector<Given> all;
  for (const std::string& name : split(declaration.names, ' ')) all.push_back({name, {}, {}});
  size_t place = 0;
  const auto next = [&](const auto& value) {
    Given& given = all[place++];
    take(given, given.name, value);
  };
  (next(arguments), ...);
  return all;
}

// As Python writes a tuple: (2, 3), (2,) and ().
template <typename Numbers>
std::string as_tuple(const Numbers& numbers) {
  std::ostringstream text;
  for (size_t i = 0; i < numbers.size(); ++i) text << (i == 0 ? "" : ", ") << numbers[i];
  return "(" + text.str() + (numbers.size() == 1 ? ",)" : ")");
}

inline std::string device_of(const Tensor& tensor) {
  const auto device = tensor.device();
  return device.is_cpu() ? "cpu" : "cuda:" + std::to_string(device.index());
}

}  // namespace torchgraft::internal
