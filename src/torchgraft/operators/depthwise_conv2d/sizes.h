// The sizes of one depthwise convolution, of which its three passes are made.
//
//   forward      input, weight        -> output
//   input_grad   output_grad, weight  -> input_grad
//   weight_grad  output_grad, input   -> weight_grad
#pragma once

#include <array>
#include <cstddef>
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

// How a kernel moves over images of any rank: the arguments that every one of the three operators has, in the
// order of the schema. Each of the four parts has a number for each direction, the innermost last.
template <size_t kRank>
struct WindowOf {
  std::array<int64_t, 4 * kRank> numbers;

  using Numbers = std::array<int64_t, kRank>;
  constexpr int64_t stride(size_t direction) const { return numbers[direction]; }
  constexpr int64_t front(size_t direction) const { return numbers[kRank + direction]; }
  constexpr int64_t back(size_t direction) const { return numbers[2 * kRank + direction]; }
  constexpr int64_t dilation(size_t direction) const { return numbers[3 * kRank + direction]; }

  constexpr Numbers strides() const { return part(0); }
  constexpr Numbers fronts() const { return part(1); }
  constexpr Numbers dilations() const { return part(3); }

  constexpr bool is_uneven() const {
    for (size_t i = 0; i < kRank; ++i) {
      if (front(i) != back(i)) return true;
    }
    return false;
  }

 private:
  constexpr Numbers part(size_t which) const {
    Numbers found = {};
    for (size_t i = 0; i < kRank; ++i) found[i] = numbers[which * kRank + i];
    return found;
  }
};

// Windows of images (N, C, H, W), of sequences (N, C, L), and of volumes (N, C, D, H, W).
using Window = WindowOf<2>;
using SequenceWindow = WindowOf<1>;
using VolumeWindow = WindowOf<3>;

}  // namespace torchgraft::depthwise
