// New tensors of any size: results and workspaces.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "allocation.h"
#include "checks.h"

namespace torchgraft {

// An uninitialised contiguous tensor on the device of `like`. The sizes may be a list in braces, a
// std::vector, or the sizes of another tensor: the rank need not be known when the kernel is compiled. The
// dtype is given as `aoti_torch_dtype_int64()`. Throws if a size is negative or if the number of bytes
// overflows 64 bits. On CUDA the caching allocator knows the current stream, so a workspace may be dropped as
// soon as its last kernel is launched.
inline Tensor empty_contiguous(std::span<const int64_t> sizes, const Tensor& like, int32_t dtype) {
  std::vector<int64_t> strides(sizes.size());
  int64_t step = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    const int64_t size = sizes[d];
    TORCHGRAFT_CHECK(size >= 0, "a result must not have a negative size, got ", size);
    strides[d] = step;
    step = checked_product(step, std::max<int64_t>(size, 1), "a result");
  }
  checked_product(step, static_cast<int64_t>(aoti_torch_dtype_element_size(dtype)), "a result");
  return make_empty(static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(), dtype,
                    internal::device_type_of(like), like.get_device_index());
}

// The same, with the dtype of `like`.
inline Tensor empty_contiguous(std::span<const int64_t> sizes, const Tensor& like) {
  int32_t dtype = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(like.get(), &dtype));
  return empty_contiguous(sizes, like, dtype);
}

// A list in braces is no std::span: `{rows, columns}` comes here. `dtype` may be left out.
template <typename... Dtype>
Tensor empty_contiguous(std::initializer_list<int64_t> sizes, const Tensor& like, Dtype... dtype) {
  return empty_contiguous(std::span<const int64_t>(sizes.begin(), sizes.size()), like, dtype...);
}

}  // namespace torchgraft
