// Wrong: one element more is written than there are.

#include "scale.h"

namespace planted {
namespace {

Tensor writes_past_the_end_cpu(Tensor input, double factor) {
  return scale_with(input, factor, [](const auto* from, auto by, auto* to, int64_t count) {
    multiply_each(from, by, to, count);
    if (count > 0) to[count] = to[0];
  });
}

}  // namespace

TORCHGRAFT_KERNEL(planted, CPU, writes_past_the_end, writes_past_the_end_cpu)

}  // namespace planted
