// Wrong: each element reads its neighbour too, and the last one has none.

#include "scale.h"

namespace planted {
namespace {

Tensor reads_past_the_end_cpu(Tensor input, double factor) {
  return scale_with(input, factor, [](const auto* from, auto by, auto* to, int64_t count) {
    using T = std::decay_t<decltype(*to)>;
    for (int64_t i = 0; i < count; ++i) {
      to[i] = times(from[i], by);
      if (!(from[i + 1] == from[i + 1])) to[i] = static_cast<T>(0);
    }
  });
}

}  // namespace

TORCHGRAFT_KERNEL(planted, CPU, reads_past_the_end, reads_past_the_end_cpu)

}  // namespace planted
