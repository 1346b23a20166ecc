// Kernels that write to an argument in place: the argument may be expanded, and share memory with another
// one.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <utility>

#include "checks.h"
#include "layout.h"

namespace torchgraft {

// Throws if a tensor is expanded, so that several elements share an address: a number that is written to one
// of them would be found in the others. It looks for strides of 0 alone. Call it for each argument that a
// kernel writes to by its strides.
inline void check_separate(const Tensor& tensor, const char* name) {
  if (tensor.numel() == 0) return;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    TORCHGRAFT_CHECK(tensor.size(d) == 1 || tensor.stride(d) != 0, name,
                     " is written to and has elements that share memory");
  }
}

namespace internal {

// The addresses of the first byte of a tensor, and behind its last one.
inline std::pair<uintptr_t, uintptr_t> extent_of(const Tensor& tensor) {
  const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  if (tensor.numel() == 0) return {begin, begin};
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  return {begin, begin + static_cast<uintptr_t>(last + 1) * tensor.element_size()};
}

}  // namespace internal

// The tensor, contiguous, in memory apart from that of `written`: a copy if it is not contiguous, or lies
// where elements of `written` may lie. For an argument that a kernel reads after it has begun to write to
// another.
inline Tensor apart_from(const Tensor& written, const Tensor& tensor, const char* name) {
  const Tensor source = to_contiguous(tensor, name);
  const auto [begin, end] = internal::extent_of(written);
  const auto [other_begin, other_end] = internal::extent_of(source);
  if (begin >= other_end || other_begin >= end) return source;
  Tensor copy = empty_as(source);
  torch::stable::copy_(copy, source);
  return copy;
}

}  // namespace torchgraft
