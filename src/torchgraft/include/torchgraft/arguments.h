// Checks all tensors of a host function at once: each has its memory, and all have one dtype and one device.
#pragma once

#include <optional>
#include <vector>

#include "checks.h"

namespace torchgraft {

// Throws unless a tensor has memory for its elements, and the dtype and device of `first`. It takes every
// kind of tensor argument that a schema has: a tensor, an optional tensor, and lists of either.
inline void check_beside(const Tensor& first, const char* first_name, const Tensor& tensor,
                         const char* name) {
  check_memory(tensor, name);
  check_same_kind(first, first_name, tensor, name);
}

template <typename T>
void check_beside(const Tensor& first, const char* first_name, const std::optional<T>& value,
                  const char* name) {
  if (value.has_value()) check_beside(first, first_name, *value, name);
}

template <typename T>
void check_beside(const Tensor& first, const char* first_name, const std::vector<T>& values,
                  const char* name) {
  for (const T& value : values) check_beside(first, first_name, value, name);
}

// check_alike(input, "input", weight, "weight", ...) takes each tensor with its name. Throws unless all have
// memory for their elements, and the dtype and device of the first.
inline void check_alike(const Tensor& first, const char* first_name) { check_memory(first, first_name); }

template <typename Value, typename... More>
void check_alike(const Tensor& first, const char* first_name, const Value& value, const char* name,
                 const More&... more) {
  check_beside(first, first_name, value, name);
  check_alike(first, first_name, more...);
}

}  // namespace torchgraft
