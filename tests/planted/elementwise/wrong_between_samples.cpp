// Wrong: every element of a tensor of five, a number that no sample in the table has.

#include "scale.h"

namespace planted {
namespace {

Tensor wrong_between_samples_cpu(Tensor input, double factor) {
  return scale_with(input, factor, [](const auto* from, auto by, auto* to, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] = count == 5 ? from[i] : times(from[i], by);
  });
}

}  // namespace

TORCHGRAFT_KERNEL(planted, CPU, wrong_between_samples, wrong_between_samples_cpu)

}  // namespace planted
