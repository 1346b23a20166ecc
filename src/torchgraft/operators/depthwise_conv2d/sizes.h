// The sizes of one depthwise convolution, of which its three passes are made.
//
//   forward      input, weight        -> output
//   input_grad   output_grad, weight  -> input_grad
//   weight_grad  output_grad, input   -> weight_grad
#pragma once

#include <cstdint>

namespace torchgraft::depthwise {

// One direction: depth, height or width.
struct Extent {
  int64_t input;
  int64_t output;
  int64_t kernel;
  int64_t stride;
  int64_t padding;  // in front: at the top, or at the left. What lies behind is told by `output`.
  int64_t dilation;

  // Position in the input that tap `tap` of output `output_index` reads; outside [0, input) it is padding.
  constexpr int64_t position(int64_t output_index, int64_t tap) const {
    return output_index * stride - padding + tap * dilation;
  }
};

// The direction that an image does not have.
inline constexpr Extent kNoExtent = {
    .input = 1, .output = 1, .kernel = 1, .stride = 1, .padding = 0, .dilation = 1};

struct Geometry {
  int64_t batch;
  int64_t channels;  // of the input
  int64_t
      multiplier;  // output channels an input channel; output channel o reads input channel o / multiplier
  Extent height;
  Extent width;
  Extent depth = kNoExtent;  // of volumes; an image is one plane

  constexpr int64_t output_channels() const { return channels * multiplier; }
  constexpr int64_t taps() const { return depth.kernel * height.kernel * width.kernel; }
  constexpr int64_t input_pixels() const { return depth.input * height.input * width.input; }
  constexpr int64_t output_pixels() const { return depth.output * height.output * width.output; }
};

// The arguments that every one of the three operators ends with, in the order of the schema.
struct Window {
  int64_t stride_height, stride_width;
  int64_t padding_top, padding_left, padding_bottom, padding_right;
  int64_t dilation_height, dilation_width;
};

}  // namespace torchgraft::depthwise
