// Wrong: whether the memory of a contiguous input is still there is never asked.

#include "scale.h"

namespace planted {
namespace {

Tensor reads_freed_memory_cpu(Tensor input, double factor) {
  if (!input.is_contiguous()) return scale_with(input, factor, multiply_each);
  return dispatch_floating(input.scalar_type(), "reads_freed_memory", [&](auto tag) {
    using T = typename decltype(tag)::type;
    Tensor output = empty_as(input);
    multiply_each(static_cast<const T*>(input.const_data_ptr()), static_cast<accumulate_t<T>>(factor),
                  static_cast<T*>(output.mutable_data_ptr()), output.numel());
    return output;
  });
}

}  // namespace

TORCHGRAFT_KERNEL(planted, CPU, reads_freed_memory, reads_freed_memory_cpu)

}  // namespace planted
