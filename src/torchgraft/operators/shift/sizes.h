// The sizes of a shift, of which its passes are made.
#pragma once

#include <cstdint>

namespace torchgraft::shift {

struct Geometry {
  int64_t batch;
  int64_t channels;
  int64_t height;  // rows of the input
  int64_t width;   // of the input and of the output
  int64_t steps;   // rows of the output
  int64_t stride;  // rows of the input between rows of the output

  int64_t input_pixels() const { return height * width; }
  int64_t output_pixels() const { return steps * width; }
  int64_t planes() const { return batch * channels; }
  // Where there are none, gradients are sums of nothing: zero, whatever the offsets are.
  int64_t results() const { return planes() * output_pixels(); }
};

}  // namespace torchgraft::shift
