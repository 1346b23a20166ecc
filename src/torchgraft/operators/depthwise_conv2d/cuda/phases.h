// A convolution with stride or dilation as several dense ones, along one direction: its phases.
//
// Dilation d: every d-th result reads every d-th source, so results, and sources with them, fall into d
// phases. Stride s: a result of the forward pass is the sum of s dense convolutions, each of every s-th source
// with every s-th tap; of the input gradient, every s-th result meets every s-th tap of the same sources. In
// all of them phase c of `step` joins
//   source offset + step * v   tap offset + step * i   result offset + step * a   where v = a + i - padding
// with offset and step of that which falls into phases, and the index itself of what does not. `lead` makes
// the padding whole and equal for all phases: the first source or result of a phase may lie before the image.
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
  bool source_steps, result_steps, tap_steps;  // which of them fall into phases
  int source, result, kernel;                  // of the image and the kernel
  int phase_source, phase_result, phase_kernel, padding;  // of a phase, the largest

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
  constexpr int tap_at(int phase, int index) const {
    return tap_steps ? index * step + phase : index;
  }
  // Where the input gradient of a stride begins behind the first result of the image that tap 0 meets, so
  // that all phases count results from the image's first: the padding is less by this.
  constexpr int shift(int phase) const {
    return result_steps && tap_steps && phase > lead ? 1 : 0;
  }
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
  // Taps of any phase together with its shift.
  constexpr int shifted_kernel() const {
    int most = phase_kernel;
    for (int phase = 0; phase < tap_phases(); ++phase) {
      most = std::max(most, shift(phase) + ceil_divide(kernel - phase, step));
    }
    return most;
  }
};

// Whether a few dense phases make up the convolution: along each direction there is a stride, or a dilation, or
// neither.
inline bool has_phases(const Geometry& geometry) {
  const auto splits = [](const Extent& extent) {
    return std::min(extent.stride, extent.dilation) == 1 &&
           std::max(extent.stride, extent.dilation) <= kMostPhases;
  };
  return splits(geometry.height) && splits(geometry.width);
}

}  // namespace torchgraft::depthwise::cuda
