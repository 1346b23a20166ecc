// Wrong: elements are read one after the other, however the input lies in memory.

#include "scale.h"

namespace planted {
namespace {

Tensor ignores_strides_cpu(Tensor input, double factor) {
  return dispatch_floating(input.scalar_type(), "ignores_strides", [&](auto tag) {
    using T = typename decltype(tag)::type;
    Tensor output = torch::stable::empty_like(input);
    const T* from = static_cast<const T*>(input.const_data_ptr());
    T* to = static_cast<T*>(output.mutable_data_ptr());
    const auto by = static_cast<accumulate_t<T>>(factor);
    multiply_each(from, by, to, output.numel());
    return output;
  });
}

}  // namespace

TORCHGRAFT_KERNEL(planted, CPU, ignores_strides, ignores_strides_cpu)

}  // namespace planted
