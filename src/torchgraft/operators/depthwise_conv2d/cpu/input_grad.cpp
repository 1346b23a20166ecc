// Input gradient on CPU: the correlation of the output gradient with the kernel turned around. With a stride
// s, input element i meets tap k where i + padding - k * dilation is a multiple of s, and there output
// element (i + padding - k * dilation) / s. Elements with the same remainder by s meet the same taps and
// neighbours among them read neighbours: a phase. A phase that meets no tap (stride above the kernel) is
// zero.

#include <torchgraft/dispatch.h>

#include <algorithm>
#include <numeric>

#include "correlation.h"
#include "kernels.h"
#include "rows.h"

namespace torchgraft::depthwise::cpu {
namespace {

Direction input_grad_direction(const Extent& extent) {
  Direction direction = {extent.output, extent.input, extent.kernel, {}};
  const int64_t phases = std::min(extent.stride, extent.input);
  // Taps of one phase lie this far apart.
  const int64_t divisor = std::gcd(extent.stride, extent.dilation);
  const int64_t period = extent.stride / divisor;
  for (int64_t remainder = 0; remainder < phases; ++remainder) {
    Phase phase = {.first_position = 0,
                   .step = 1,
                   .tap_step = extent.dilation / divisor,
                   .taps = 0,
                   .first_tap = 0,
                   .kernel_step = -period};
    const auto distance = [&](int64_t tap) { return remainder + extent.padding - tap * extent.dilation; };
    int64_t least = 0;
    while (least < std::min(period, extent.kernel) && distance(least) % extent.stride != 0) ++least;
    if (least < std::min(period, extent.kernel)) {
      // Positions ascend as taps descend.
      phase.taps = ceil_divide(extent.kernel - least, period);
      phase.first_tap = least + (phase.taps - 1) * period;
      phase.first_position = distance(phase.first_tap) / extent.stride;
    }
    direction.phases.push_back(phase);
  }
  return direction;
}

}  // namespace

template <typename T>
void input_grad(const T* output_grad, const T* weight, T* input_grad, const Geometry& geometry,
                Layout layout) {
  correlate<T>(output_grad, weight, nullptr, input_grad,
               {geometry.batch, geometry.output_channels(), geometry.channels, geometry.multiplier,
                /*transposed=*/true, input_grad_direction(geometry.height),
                input_grad_direction(geometry.width), input_grad_direction(geometry.depth)},
               layout);
}

template void input_grad(const double*, const double*, double*, const Geometry&, Layout);
template void input_grad(const float*, const float*, float*, const Geometry&, Layout);
template void input_grad(const Half*, const Half*, Half*, const Geometry&, Layout);
template void input_grad(const BFloat16*, const BFloat16*, BFloat16*, const Geometry&, Layout);

}  // namespace torchgraft::depthwise::cpu
