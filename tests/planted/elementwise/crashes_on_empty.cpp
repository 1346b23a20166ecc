// Wrong: the first element is read whether there is one or not.

#include "scale.h"

namespace planted {
namespace {

Tensor crashes_on_empty_cpu(Tensor input, double factor) {
  return scale_with(input, factor, [](const auto* from, auto by, auto* to, int64_t count) {
    const auto first = from[0];
    multiply_each(from, by, to, count);
    to[0] = times(first, by);
  });
}

}  // namespace

TORCHGRAFT_KERNEL(planted, CPU, crashes_on_empty, crashes_on_empty_cpu)

}  // namespace planted
