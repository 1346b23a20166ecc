// Wrong: a result is cut off to bfloat16, not rounded: never further off than one step, and twice as far on
// average.

#include <cstring>

#include "scale.h"

namespace planted {
namespace {

constexpr auto multiply_and_cut_off = [](const auto* from, auto by, auto* to, int64_t count) {
  using T = std::decay_t<decltype(*to)>;
  for (int64_t i = 0; i < count; ++i) {
    to[i] = times(from[i], by);
    if constexpr (std::is_same_v<T, BFloat16>) {
      const float product = static_cast<float>(from[i]) * by;
      uint32_t bits;
      std::memcpy(&bits, &product, sizeof(bits));
      to[i].x = static_cast<uint16_t>(bits >> 16);
    }
  }
};

Tensor cuts_off_cpu(Tensor input, double factor) { return scale_with(input, factor, multiply_and_cut_off); }

}  // namespace

TORCHGRAFT_KERNEL(planted, CPU, cuts_off, cuts_off_cpu)

}  // namespace planted
