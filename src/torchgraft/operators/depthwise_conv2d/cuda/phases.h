// A convolution with a stride or a dilation as several dense convolutions, its phases, along one direction.
//
// Dilation d: every d-th result reads every d-th source, so there are d phases, each with its own results and
// sources. Stride s: a result of the forward pass is the sum of s phases, each with every s-th source and
// every s-th tap. A result of the input gradient needs every s-th tap, and all sources: results and taps have
// phases. Phase c joins
//   source  source_at(c, v)   tap  tap_at(c, i)   result  result_at(c, a)   where v = a + i - padding
// Padding is the same for all phases. So source 0 of a phase may lie before the image (source_at < 0): it is
// padding. `lead` is what is left of the padding after division by the step.
//
// Taps are counted as the pass meets them: in the input gradient the kernel is turned around.
#pragma once

#include "problem.h"

namespace torchgraft::depthwise::cuda {

// As many phases as a direction may have.
constexpr int64_t kMostPhases = 8;

struct PhaseAxis {
  int step;  // and number of phases; 1: the direction is dense as it is
  int lead;
  bool source_steps, result_steps, tap_steps;             // which of them have phases
  int source, result, kernel;                             // sizes of the images and the kernel
  int phase_source, phase_result, phase_kernel, padding;  // of the largest phase

  constexpr PhaseAxis(const Extent& extent, bool transposed)
      : step(static_cast<int>(extent.stride > 1 ? extent.stride : extent.dilation)),
        lead(0),
        source_steps(extent.dilation > 1 || (extent.stride > 1 && !transposed)),
        result_steps(extent.dilation > 1 || (extent.stride > 1 && transposed)),
        tap_steps(extent.stride > 1),
        source(static_cast<int>(transposed ? extent.output : extent.input)),
        result(static_cast<int>(transposed ? extent.input : extent.output)),
        kernel(static_cast<int>(extent.kernel)),
        phase_source(source),
        phase_result(result),
        phase_kernel(kernel),
        padding(static_cast<int>(transposed ? extent.dilation * (extent.kernel - 1) - extent.padding
                                            : extent.padding)) {
    lead = padding % step;
    padding /= step;
    if (source_steps) phase_source = (source - 1 + lead) / step + 1;
    if (result_steps) phase_result = ceil_divide(result, step);
    if (tap_steps) phase_kernel = ceil_divide(kernel, step);
  }

  constexpr int source_phases() const { return source_steps ? step : 1; }
  constexpr int result_phases() const { return result_steps ? step : 1; }
  constexpr int tap_phases() const { return tap_steps ? step : 1; }
  // Phases that are added up in one result.
  constexpr int summed_phases() const { return result_steps ? 1 : source_phases(); }

  constexpr int source_at(int phase, int index) const {
    return source_steps ? index * step + phase - lead : index;
  }
  constexpr int tap_at(int phase, int index) const { return tap_steps ? index * step + phase : index; }
  // In some phases of the input gradient of a stride, result 0 would lie before the image. They begin one
  // result later, so that all phases begin in the image, and have one less of padding.
  constexpr int shift(int phase) const { return result_steps && tap_steps && phase > lead ? 1 : 0; }
  constexpr int result_at(int phase, int index) const {
    if (!result_steps) return index;
    return index * step + (tap_steps ? lead - phase + step * shift(phase) : phase);
  }
  // The source that a tap joins with a result, perhaps behind the image; -1: none does.
  constexpr int source_under(int result_index, int tap) const {
    const int position = result_index * (source_steps && tap_steps ? step : 1) +
                         tap * (source_steps && result_steps ? step : 1) - (padding * step + lead);
    const int divisor = result_steps && tap_steps ? step : 1;
    return position >= 0 && position % divisor == 0 ? position / divisor : -1;
  }
  // Columns of the band of a phase: its taps, as many further on as its shift says.
  constexpr int shifted_kernel() const {
    int most = phase_kernel;
    for (int phase = 0; phase < tap_phases(); ++phase) {
      most = std::max(most, shift(phase) + ceil_divide(kernel - phase, step));
    }
    return most;
  }
};

// Whether a few dense phases make up the convolution: along each direction there is a stride, or a dilation,
// or neither.
inline bool has_phases(const Geometry& geometry) {
  const auto splits = [](const Extent& extent) {
    return std::min(extent.stride, extent.dilation) == 1 &&
           std::max(extent.stride, extent.dilation) <= kMostPhases;
  };
  return splits(geometry.height) && splits(geometry.width);
}

}  // namespace torchgraft::depthwise::cuda
