// Wrong: the result is added to memory that nobody set to zero.

#include "scale.h"

namespace planted {
namespace {

Tensor reads_uninitialised_cpu(Tensor input, double factor) {
  return scale_with(input, factor, [](const auto* from, auto by, auto* to, int64_t count) {
    using T = std::decay_t<decltype(*to)>;
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(to[i] * 1e-30f) + times(from[i], by);
  });
}

}  // namespace

TORCHGRAFT_KERNEL(planted, CPU, reads_uninitialised, reads_uninitialised_cpu)

}  // namespace planted
