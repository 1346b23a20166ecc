// Wrong: a factor of zero gives zero even where the input is NaN or infinite.

#include "scale.h"

namespace planted {
namespace {

Tensor skips_zero_cpu(Tensor input, double factor) {
  return scale_with(input, factor, [](const auto* from, auto by, auto* to, int64_t count) {
    using T = std::decay_t<decltype(*to)>;
    for (int64_t i = 0; i < count; ++i) to[i] = by == 0 ? static_cast<T>(0) : times(from[i], by);
  });
}

}  // namespace

TORCHGRAFT_KERNEL(planted, CPU, skips_zero, skips_zero_cpu)

}  // namespace planted
