// Shared parts of the kernels of input gradients with a stride (phases_input_grad.cu,
// channels_last_phases_input_grad.cu).
//
// The tap i of output o counts for the place o * stride + i of the padded input gradient. So a result takes
// only the taps of its phase, which is its place modulo the stride: each phase is a dense correlation of
// stride 1, with every stride-th tap of the kernel. Results that share a quotient by the stride are a cell.
// They read the same sources, so a thread that owns a cell, or a run of them, loads each source once for all
// their phases.
#pragma once

#include "kernels.h"
#include "widths.h"

namespace torchgraft::depthwise::volumes {

// Depth or height of an input gradient. A thread owns all phases of a cell, where there are kPhases of them,
// or one result, where kPhases is 1; the stride is then 1 or 2.
struct PhaseExtent {
  int sources, results, kernel, stride, padding;

  PhaseExtent() = default;
  explicit PhaseExtent(const Extent& extent)
      : sources(static_cast<int>(extent.output)),
        results(static_cast<int>(extent.input)),
        kernel(static_cast<int>(extent.kernel)),
        stride(static_cast<int>(extent.stride)),
        padding(static_cast<int>(extent.padding)) {}

  // The cells, or results.
  int items(int phases) const {
    return phases == 1 ? results : (results - 1 + padding) / phases - padding / phases + 1;
  }
};

// The part of a direction that a thread owns: its first result, which may lie in front of the gradient; and
// the source on which the first tap falls. Each further tap, a stride later, falls on the source before.
struct PhaseItem {
  int result, source, tap;

  template <int kPhases>
  __device__ static PhaseItem of(const PhaseExtent& extent, int item) {
    static_assert(kPhases == 1 || kPhases == 2, "strides are 1 or 2");
    if constexpr (kPhases == 2) {
      const int cell = item + (extent.padding >> 1);
      return {2 * cell - extent.padding, cell, 0};
    } else {
      const int place = item + extent.padding, shift = extent.stride - 1;
      return {item, place >> shift, place & shift};
    }
  }

  // The same without the taps that fall behind the last source.
  __device__ PhaseItem within(const PhaseExtent& extent) const {
    const int behind = max(source - (extent.sources - 1), 0);
    return {result, source - behind, tap + min(behind, extent.kernel) * extent.stride};
  }
};

// Calls use.operator()<kWide, kStride, kRowPhases>() for the width of the kernel, and the strides along width
// and height, of which one at least is 2.
template <typename Use>
void with_phases(const Geometry& geometry, const Use& use) {
  const auto with_width_and_strides = [&]<int kWide>() {
    if (geometry.width.stride == 1) return use.template operator()<kWide, 1, 2>();
    if (geometry.height.stride == 1) return use.template operator()<kWide, 2, 1>();
    use.template operator()<kWide, 2, 2>();
  };
  with_width(geometry.width, "depthwise_conv3d_input_grad", with_width_and_strides);
}

}  // namespace torchgraft::depthwise::volumes
