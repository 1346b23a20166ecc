// What the kernels of this family share.
#pragma once

#include <torchgraft/cpu.h>
#include <torchgraft/dispatch.h>
#include <torchgraft/layout.h>
#include <torchgraft/registration.h>

#include <algorithm>

namespace planted {

using namespace torchgraft;

inline bool same_sizes(const Tensor& left, const Tensor& right) {
  return left.dim() == right.dim() &&
         std::equal(left.sizes().begin(), left.sizes().end(), right.sizes().begin());
}

// The products of two tensors, both read one element after the other.
inline Tensor multiply_straight(const Tensor& left, const Tensor& right) {
  check_same_kind(left, "left", right, "right");
  return dispatch_floating(left.scalar_type(), "a planted operator", [&](auto tag) {
    using T = typename decltype(tag)::type;
    Tensor output = torch::stable::new_empty(left, left.sizes());
    const T* one = static_cast<const T*>(left.const_data_ptr());
    const T* other = static_cast<const T*>(right.const_data_ptr());
    T* to = static_cast<T*>(output.mutable_data_ptr());
    for (int64_t i = 0; i < output.numel(); ++i) {
      to[i] = static_cast<T>(static_cast<accumulate_t<T>>(one[i]) * static_cast<accumulate_t<T>>(other[i]));
    }
    return output;
  });
}

}  // namespace planted
