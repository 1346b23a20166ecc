// Forward on CPU: one phase in each direction, straight from the geometry. The loops are those of a
// correlation.

#include <torchgraft/dispatch.h>

#include "correlation.h"
#include "kernels.h"

namespace torchgraft::depthwise::cpu {
namespace {

Direction forward_direction(const Extent& extent) {
  const Phase phase = {.first_position = -extent.padding,
                       .step = extent.stride,
                       .tap_step = extent.dilation,
                       .taps = extent.kernel,
                       .first_tap = 0,
                       .kernel_step = 1};
  return {extent.input, extent.output, extent.kernel, {phase}};
}

}  // namespace

template <typename T>
void forward(const T* input, const T* weight, const T* bias, T* output, const Geometry& geometry,
             Layout layout) {
  correlate(input, weight, bias, output,
            {geometry.batch, geometry.channels, geometry.output_channels(), geometry.multiplier,
             /*transposed=*/false, forward_direction(geometry.height), forward_direction(geometry.width),
             forward_direction(geometry.depth)},
            layout);
}

template void forward(const double*, const double*, const double*, double*, const Geometry&, Layout);
template void forward(const float*, const float*, const float*, float*, const Geometry&, Layout);
template void forward(const Half*, const Half*, const Half*, Half*, const Geometry&, Layout);
template void forward(const BFloat16*, const BFloat16*, const BFloat16*, BFloat16*, const Geometry&, Layout);

}  // namespace torchgraft::depthwise::cpu
