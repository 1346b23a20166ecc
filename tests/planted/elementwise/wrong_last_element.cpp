// Wrong: the last element is copied and not multiplied.

#include "scale.h"

namespace planted {
namespace {

Tensor wrong_last_element_cpu(Tensor input, double factor) {
  return scale_with(input, factor, [](const auto* from, auto by, auto* to, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] = i + 1 < count || count == 1 ? times(from[i], by) : from[i];
  });
}

}  // namespace

TORCHGRAFT_KERNEL(planted, CPU, wrong_last_element, wrong_last_element_cpu)

}  // namespace planted
