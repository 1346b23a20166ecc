// What the forward pass and the input gradient have in common on CPU: both slide a kernel over an image,
//
//   destination[i] = bias + sum over taps of weight[tap] * source[position(i, tap)]
//
// and differ in which tap reads which position. With a stride, the elements of an input gradient fall into
// phases, by their remainder: each phase sees its own share of the taps, and reads the output gradient
// without a stride.
#pragma once

#include <torchgraft/layout.h>

#include <cstdint>
#include <vector>

namespace torchgraft::depthwise::cpu {

// One direction of one phase. All is stated in elements of its direction, positions may lie outside of the
// source.
struct Phase {
  int64_t first_output;  // outputs of this phase are first_output + i * output_step, for i in [0, outputs)
  int64_t output_step;
  int64_t outputs;
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

// Where a row of the destination comes from: phase `row % phases.size()`, output `row / phases.size()`.
struct Direction {
  int64_t source;
  int64_t destination;
  int64_t kernel;
  std::vector<Phase> phases;
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

  int64_t sources() const { return transposed ? multiplier : 1; }
  int64_t source_channel(int64_t destination_channel, int64_t source) const {
    return transposed ? destination_channel * multiplier + source : destination_channel / multiplier;
  }
  int64_t kernel(int64_t destination_channel, int64_t source) const {
    return transposed ? destination_channel * multiplier + source : destination_channel;
  }
  int64_t kernels() const { return transposed ? source_channels : destination_channels; }
  int64_t taps() const { return height.kernel * width.kernel; }
};

// bias may be null. Defined for double, float, Half and BFloat16, each layout in a file of its name.
template <typename T>
void correlate_contiguous(const T* source, const T* weight, const T* bias, T* destination,
                          const Correlation& correlation);
template <typename T>
void correlate_channels_last(const T* source, const T* weight, const T* bias, T* destination,
                             const Correlation& correlation);

template <typename T>
void correlate(const T* source, const T* weight, const T* bias, T* destination,
               const Correlation& correlation, Layout layout) {
  if (layout == Layout::contiguous) {
    correlate_contiguous(source, weight, bias, destination, correlation);
  } else {
    correlate_channels_last(source, weight, bias, destination, correlation);
  }
}

}  // namespace torchgraft::depthwise::cpu
