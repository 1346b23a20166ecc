// Wrong: beyond the first tile, elements are read one tile too early.

#include "scale.h"

namespace planted {
namespace {

Tensor wrong_above_one_tile_cpu(Tensor input, double factor) {
  return scale_with(input, factor, [](const auto* from, auto by, auto* to, int64_t count) {
    constexpr int64_t kTile = 64;
    for (int64_t i = 0; i < count; ++i) to[i] = times(from[i < kTile ? i : i - kTile], by);
  });
}

}  // namespace

TORCHGRAFT_KERNEL(planted, CPU, wrong_above_one_tile, wrong_above_one_tile_cpu)

}  // namespace planted
