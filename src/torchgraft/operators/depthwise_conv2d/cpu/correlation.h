// What the forward pass and the input gradient have in common on CPU: both slide a kernel over an image,
//
//   destination[i] = bias + sum over taps of weight[tap] * source[position(i, tap)]
//
// and differ in which tap reads which position. With a stride, the elements of an input gradient fall into
// phases, by their remainder: each phase sees its own share of the taps, and reads the output gradient
// without a stride.
#pragma once

#include <torchgraft/layout.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "rows.h"

namespace torchgraft::depthwise::cpu {

// One direction of one phase. All is stated in elements of its direction, positions may lie outside of the
// source.
struct Phase {
  int64_t first_position;  // what output 0 reads at tap 0
  int64_t step;            // from an output to the next
  int64_t tap_step;        // from a tap to the next
  int64_t taps;
  int64_t first_tap;    // index in the kernel of tap t: first_tap + t * kernel_step
  int64_t kernel_step;  // may be negative

  int64_t position(int64_t output, int64_t tap) const {
    return first_position + output * step + tap * tap_step;
  }
};

// Element i of the destination is output `i / phases.size()` of phase `i % phases.size()`.
struct Direction {
  int64_t source;
  int64_t destination;
  int64_t kernel;
  std::vector<Phase> phases;

  const Phase& phase(int64_t element) const { return phases[element % phases.size()]; }
  int64_t output(int64_t element) const { return element / static_cast<int64_t>(phases.size()); }

  // Finds the part of the source that the elements `outputs` of the destination meet, and with how many taps
  // altogether.
  Range source_range(Range outputs, int64_t& taps) const {
    Range range = {source, 0};
    taps = 0;
    const int64_t count = phases.size();
    for (int64_t first = outputs.begin; first < std::min(outputs.begin + count, outputs.end); ++first) {
      const Phase& met = phase(first);
      if (met.taps == 0) continue;
      const int64_t last = first + (outputs.end - 1 - first) / count * count;
      range.begin = std::min(range.begin, met.position(output(first), 0));
      range.end = std::max(range.end, met.position(output(last), met.taps - 1) + 1);
      taps += met.taps * (output(last) - output(first) + 1);
    }
    return range.clipped(source);
  }
};

struct Correlation {
  int64_t batch;
  int64_t source_channels;
  int64_t destination_channels;
  int64_t multiplier;
  // Destination channel d reads source channel d / multiplier with kernel d; or, transposed, the `multiplier`
  // source channels from d * multiplier on, each with the kernel of its own number.
  bool transposed;
  Direction height;
  Direction width;
  Direction depth;  // from plane to plane of volumes

  int64_t sources() const { return transposed ? multiplier : 1; }
  int64_t source_channel(int64_t channel, int64_t source) const {
    return transposed ? kernel(channel, source) : input_channel(channel, multiplier);
  }
  int64_t kernel(int64_t channel, int64_t source) const {
    return transposed ? channel * multiplier + source : channel;
  }
  int64_t taps() const { return depth.kernel * height.kernel * width.kernel; }
};

// bias may be null. Defined for double, float, Half and BFloat16.
template <typename T>
void correlate(const T* source, const T* weight, const T* bias, T* destination,
               const Correlation& correlation, Layout layout);

}  // namespace torchgraft::depthwise::cpu
