// What the kernels of this family share: everything but the loop over the elements.
#pragma once

#include <torchgraft/cpu.h>
#include <torchgraft/dispatch.h>
#include <torchgraft/layout.h>
#include <torchgraft/registration.h>

namespace planted {

using namespace torchgraft;

template <typename T>
T times(T value, accumulate_t<T> factor) {
  return static_cast<T>(static_cast<accumulate_t<T>>(value) * factor);
}

// The correct loop.
inline constexpr auto multiply_each = [](const auto* from, auto by, auto* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = times(from[i], by);
};

// `loop(from, factor, to, count)` over the elements of a dense input and of a result laid out as it is.
template <typename Loop>
Tensor scale_with(Tensor input, double factor, const Loop& loop) {
  return dispatch_floating(input.scalar_type(), "a planted operator", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Tensor source = to_dense(input);
    Tensor output = empty_as(source);
    loop(static_cast<const T*>(source.const_data_ptr()), static_cast<accumulate_t<T>>(factor),
         static_cast<T*>(output.mutable_data_ptr()), output.numel());
    return output;
  });
}

}  // namespace planted
