// Turns a dtype, known at run time, into a C++ type, and gives the type in which sums of it are computed.
#pragma once

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>
#include <torch/headeronly/util/complex.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "checks.h"
#include "data.h"

namespace torchgraft {

// PyTorch's two-byte numbers.
using Half = torch::headeronly::Half;
using BFloat16 = torch::headeronly::BFloat16;

// PyTorch's complex numbers, of float or double.
template <typename T>
using Complex = torch::headeronly::complex<T>;

// A type as a value: `[](auto tag) { using T = typename decltype(tag)::type; ... }`.
template <typename T>
struct Tag {
  using type = T;
};

// The types that dispatch_floating knows.
template <typename T>
concept FloatingType = std::is_same_v<T, double> || std::is_same_v<T, float> || std::is_same_v<T, Half> ||
                       std::is_same_v<T, BFloat16>;

// The type that values are summed in: float16 and bfloat16, which are stored in two bytes, in float32; whole
// numbers in 64 bits.
template <typename T>
using accumulate_t = std::conditional_t<std::is_integral_v<T>, int64_t,
                                        std::conditional_t<std::is_same_v<T, double>, double, float>>;

namespace internal {

// The types that one dispatch knows.
template <typename... T>
struct Types {
  // The message lists their dtypes.
  [[noreturn]] static void refuse_others(const char* operator_name) {
    std::string listed;
    size_t left = sizeof...(T);
    ((listed += name_of(kDtypeOf<T>), --left, listed += left > 1 ? ", " : left == 1 ? " and " : ""), ...);
    refuse(operator_name, " has kernels for ", listed, " only");
  }
};

// Compares a dtype with the first type of some, and goes on with the others; `All` is the Types of all.
template <typename All, typename First, typename... Others, typename Function>
decltype(auto) dispatch_first(ScalarType dtype, const char* operator_name, Function&& function) {
  if (dtype == kDtypeOf<First>) return std::forward<Function>(function)(Tag<First>{});
  if constexpr (sizeof...(Others) > 0) {
    return dispatch_first<All, Others...>(dtype, operator_name, std::forward<Function>(function));
  } else {
    All::refuse_others(operator_name);
  }
}

}  // namespace internal

// Calls `function(Tag<T>{})` with that of the types T whose dtype it is, and returns its result. Throws a
// Refusal that lists the dtypes of these types for any other dtype. The types are those that pointers to
// elements have: `bool`, `uint8_t`, `int64_t`, `float`, `Half`, `Complex<float>` and so on.
template <typename... T, typename Function>
decltype(auto) dispatch_types(ScalarType dtype, const char* operator_name, Function&& function) {
  return internal::dispatch_first<internal::Types<T...>, T...>(dtype, operator_name,
                                                               std::forward<Function>(function));
}

// The same with the floating dtypes: double, float, Half and BFloat16.
template <typename Function>
decltype(auto) dispatch_floating(ScalarType dtype, const char* operator_name, Function&& function) {
  return dispatch_types<double, float, Half, BFloat16>(dtype, operator_name,
                                                       std::forward<Function>(function));
}

// The same with the dtypes of whole numbers: uint8_t, int8_t, int16_t, int32_t and int64_t.
template <typename Function>
decltype(auto) dispatch_integral(ScalarType dtype, const char* operator_name, Function&& function) {
  return dispatch_types<uint8_t, int8_t, int16_t, int32_t, int64_t>(dtype, operator_name,
                                                                    std::forward<Function>(function));
}

}  // namespace torchgraft
