// Wrong: the input is multiplied where it lies, and then copied; its schema does not say so.

#include "scale.h"

namespace planted {
namespace {

Tensor writes_to_its_input_cpu(Tensor input, double factor) {
  return scale_with(input, factor, [](const auto* from, auto by, auto* to, int64_t count) {
    auto* inside = const_cast<std::decay_t<decltype(to)>>(from);
    for (int64_t i = 0; i < count; ++i) inside[i] = times(from[i], by);
    for (int64_t i = 0; i < count; ++i) to[i] = inside[i];
  });
}

}  // namespace

TORCHGRAFT_KERNEL(planted, CPU, writes_to_its_input, writes_to_its_input_cpu)

}  // namespace planted
