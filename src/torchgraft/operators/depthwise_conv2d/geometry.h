// The sizes of one depthwise convolution, checked once; its three passes share them.
#pragma once

#include <torchgraft/checks.h>
#include <torchgraft/layout.h>

#include <cstdint>
#include <optional>

#include "sizes.h"

namespace torchgraft::depthwise {

// No size may come near 2**63: products and sums of those below this never overflow in the checks that
// follow.
inline constexpr int64_t kLargestSize = int64_t{1} << 40;

inline Extent make_extent(const char* direction, int64_t input, int64_t kernel, int64_t stride,
                          int64_t padding_front, int64_t padding_back, int64_t dilation) {
  TORCHGRAFT_CHECK(input > 0 && input < kLargestSize, direction,
                   " of input must be positive and fit memory, got ", input);
  TORCHGRAFT_CHECK(kernel > 0 && kernel < kLargestSize, direction,
                   " of weight must be positive and fit memory, got ", kernel);
  TORCHGRAFT_CHECK(stride > 0 && stride < kLargestSize, "stride must be positive and fit memory, got ",
                   stride);
  TORCHGRAFT_CHECK(dilation > 0 && dilation < kLargestSize, "dilation must be positive and fit memory, got ",
                   dilation);
  TORCHGRAFT_CHECK(padding_front >= 0 && padding_back >= 0, "padding must not be negative, got ",
                   padding_front, " and ", padding_back);
  TORCHGRAFT_CHECK(padding_front < kLargestSize && padding_back < kLargestSize, "padding is too large");
  const int64_t reach = checked_product(dilation, kernel - 1, "dilation * (kernel - 1)");
  const int64_t room = input + padding_front + padding_back;
  TORCHGRAFT_CHECK(reach < room, "kernel does not fit: it spans ", reach, " + 1 and the padded ", direction,
                   " of input is ", room);
  return {input, (room - reach - 1) / stride + 1, kernel, stride, padding_front, dilation};
}

inline Geometry make_geometry(int64_t batch, int64_t channels, int64_t output_channels, int64_t input_height,
                              int64_t input_width, int64_t kernel_height, int64_t kernel_width,
                              const Window& window) {
  TORCHGRAFT_CHECK(channels > 0, "input must have at least one channel");
  TORCHGRAFT_CHECK(output_channels > 0 && output_channels % channels == 0, "weight has ", output_channels,
                   " channels, which is no multiple of the ", channels, " of input");
  const Geometry geometry = {batch, channels, output_channels / channels,
                             make_extent("height", input_height, kernel_height, window.stride_height,
                                         window.padding_top, window.padding_bottom, window.dilation_height),
                             make_extent("width", input_width, kernel_width, window.stride_width,
                                         window.padding_left, window.padding_right, window.dilation_width)};
  // Eight bytes an element: the largest tensor must be addressable.
  const int64_t input_image = checked_product(geometry.input_pixels(), channels, "input");
  const int64_t output_image = checked_product(
      checked_product(geometry.height.output, geometry.width.output, "output"), output_channels, "output");
  checked_product(checked_product(input_image, batch, "input"), 8, "input");
  checked_product(checked_product(output_image, batch, "output"), 8, "output");
  return geometry;
}

inline void check_weight(const Tensor& weight) {
  check_dim(weight, 4, "weight");
  TORCHGRAFT_CHECK(weight.size(1) == 1, "weight must be (channels, 1, height, width), its second size is ",
                   weight.size(1));
}

inline void check_output_grad(const Tensor& output_grad, const Geometry& geometry) {
  TORCHGRAFT_CHECK(
      output_grad.size(0) == geometry.batch && output_grad.size(1) == geometry.output_channels() &&
          output_grad.size(2) == geometry.height.output && output_grad.size(3) == geometry.width.output,
      "output_grad must be (", geometry.batch, ", ", geometry.output_channels(), ", ", geometry.height.output,
      ", ", geometry.width.output, "), got (", output_grad.size(0), ", ", output_grad.size(1), ", ",
      output_grad.size(2), ", ", output_grad.size(3), ")");
}

inline Geometry forward_geometry(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                                 const Window& window) {
  check_dim(input, 4, "input");
  check_weight(weight);
  check_same_kind(input, "input", weight, "weight");
  const Geometry geometry = make_geometry(input.size(0), input.size(1), weight.size(0), input.size(2),
                                          input.size(3), weight.size(2), weight.size(3), window);
  if (bias) {
    check_dim(*bias, 1, "bias");
    check_same_kind(input, "input", *bias, "bias");
    TORCHGRAFT_CHECK(bias->size(0) == weight.size(0), "bias must have ", weight.size(0), " elements, got ",
                     bias->size(0));
  }
  return geometry;
}

inline Geometry input_grad_geometry(const Tensor& output_grad, const Tensor& weight, int64_t channels,
                                    int64_t height, int64_t width, const Window& window) {
  check_dim(output_grad, 4, "output_grad");
  check_weight(weight);
  check_same_kind(output_grad, "output_grad", weight, "weight");
  const Geometry geometry = make_geometry(output_grad.size(0), channels, weight.size(0), height, width,
                                          weight.size(2), weight.size(3), window);
  check_output_grad(output_grad, geometry);
  return geometry;
}

inline Geometry weight_grad_geometry(const Tensor& output_grad, const Tensor& input, int64_t kernel_height,
                                     int64_t kernel_width, const Window& window) {
  check_dim(output_grad, 4, "output_grad");
  check_dim(input, 4, "input");
  check_same_kind(output_grad, "output_grad", input, "input");
  const Geometry geometry = make_geometry(input.size(0), input.size(1), output_grad.size(1), input.size(2),
                                          input.size(3), kernel_height, kernel_width, window);
  check_output_grad(output_grad, geometry);
  return geometry;
}

}  // namespace torchgraft::depthwise
