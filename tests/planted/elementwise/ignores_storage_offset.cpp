// Wrong: a dense input is read from the start of its storage, where it may not begin.

#include "scale.h"

namespace planted {
namespace {

Tensor ignores_storage_offset_cpu(Tensor input, double factor) {
  return dispatch_floating(input.scalar_type(), "ignores_storage_offset", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Tensor source = to_dense(input);
    Tensor output = empty_as(source);
    int64_t offset = 0;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_offset(source.get(), &offset));
    const T* from = static_cast<const T*>(source.const_data_ptr()) - offset;
    T* to = static_cast<T*>(output.mutable_data_ptr());
    const auto by = static_cast<accumulate_t<T>>(factor);
    multiply_each(from, by, to, output.numel());
    return output;
  });
}

}  // namespace

TORCHGRAFT_KERNEL(planted, CPU, ignores_storage_offset, ignores_storage_offset_cpu)

}  // namespace planted
