// Turns a dtype, known at run time, into a C++ type, and gives the type in which sums of it are computed.
#pragma once

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <type_traits>
#include <utility>

#include "checks.h"
#include "data.h"

namespace torchgraft {

// PyTorch's two-byte numbers.
using Half = torch::headeronly::Half;
using BFloat16 = torch::headeronly::BFloat16;

// A type as a value: `[](auto tag) { using T = typename decltype(tag)::type; ... }`.
template <typename T>
struct Tag {
  using type = T;
};

// The types that dispatch_floating knows.
template <typename T>
concept FloatingType = std::is_same_v<T, double> || std::is_same_v<T, float> || std::is_same_v<T, Half> ||
                       std::is_same_v<T, BFloat16>;

// float16 and bfloat16 are stored in two bytes and summed in float32.
template <typename T>
using accumulate_t = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Calls `function(Tag<T>{})` with the C++ type T of a floating dtype, and returns its result. Throws for any
// other dtype.
template <typename Function>
decltype(auto) dispatch_floating(ScalarType dtype, const char* operator_name, Function&& function) {
  switch (dtype) {
    case ScalarType::Double:
      return std::forward<Function>(function)(Tag<double>{});
    case ScalarType::Float:
      return std::forward<Function>(function)(Tag<float>{});
    case ScalarType::Half:
      return std::forward<Function>(function)(Tag<Half>{});
    case ScalarType::BFloat16:
      return std::forward<Function>(function)(Tag<BFloat16>{});
    default:
      refuse(operator_name, " has kernels for float64, float32, float16 and bfloat16 only");
  }
}

}  // namespace torchgraft
