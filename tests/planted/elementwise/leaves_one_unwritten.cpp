// Wrong: the last of an odd number of elements is never written.

#include "scale.h"

namespace planted {
namespace {

Tensor leaves_one_unwritten_cpu(Tensor input, double factor) {
  return scale_with(input, factor, [](const auto* from, auto by, auto* to, int64_t count) {
    const int64_t pairs = count / 2 * 2;
    for (int64_t i = 0; i < pairs; ++i) to[i] = times(from[i], by);
    if (count == 1) to[0] = times(from[0], by);
  });
}

}  // namespace

TORCHGRAFT_KERNEL(planted, CPU, leaves_one_unwritten, leaves_one_unwritten_cpu)

}  // namespace planted
