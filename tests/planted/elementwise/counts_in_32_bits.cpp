// Wrong: the place of a row is counted in 32 bits.

#include "scale.h"

namespace planted {
namespace {

Tensor counts_in_32_bits_cpu(Tensor input, double factor) {
  if (input.dim() != 2) {
    return scale_with(input, factor, multiply_each);
  }
  return dispatch_floating(input.scalar_type(), "counts_in_32_bits", [&](auto tag) {
    using T = typename decltype(tag)::type;
    Tensor output = torch::stable::empty_like(input);
    const T* from = static_cast<const T*>(input.const_data_ptr());
    T* to = static_cast<T*>(output.mutable_data_ptr());
    const auto by = static_cast<accumulate_t<T>>(factor);
    for (int64_t row = 0; row < input.size(0); ++row) {
      const uint32_t first = static_cast<uint32_t>(row) * static_cast<uint32_t>(input.stride(0));
      for (int64_t i = 0; i < input.size(1); ++i) {
        to[row * output.stride(0) + i * output.stride(1)] = times(from[first + i * input.stride(1)], by);
      }
    }
    return output;
  });
}

}  // namespace

TORCHGRAFT_KERNEL(planted, CPU, counts_in_32_bits, counts_in_32_bits_cpu)

}  // namespace planted
