// The sizes of one depthwise convolution, checked once; its three passes share them.
#pragma once

#include <torchgraft/checks.h>
#include <torchgraft/dispatch.h>
#include <torchgraft/layout.h>

#include <cstdint>
#include <optional>
#include <sstream>

#include "sizes.h"

namespace torchgraft::depthwise {

// No size may come near 2**63: products and sums of those below this never overflow in the checks that
// follow.
inline constexpr int64_t kLargestSize = int64_t{1} << 40;

// What checks say is what `_explain_sizes` in operator.py says: a C++ program without Python reads it.
inline constexpr const char* kNoMemory = ": these sizes make a tensor that no memory can hold";

// How far a kernel spans in one direction, from its first tap to its last.
inline int64_t span_of(const char* name, int64_t kernel, int64_t dilation) {
  int64_t span = 0;
  TORCHGRAFT_CHECK(
      !__builtin_mul_overflow(dilation, kernel - 1, &span) && !__builtin_add_overflow(span, 1, &span), name,
      kNoMemory);
  return span;
}

// The pixels of a padded input in one direction.
inline int64_t room_of(const char* name, int64_t input, int64_t padding_front, int64_t padding_back) {
  int64_t room = 0;
  TORCHGRAFT_CHECK(!__builtin_add_overflow(input, padding_front, &room) &&
                       !__builtin_add_overflow(room, padding_back, &room),
                   name, kNoMemory);
  return room;
}

// Whether images no higher than kLargestSize can be addressed, at eight bytes an element. A batch may hold
// none: it comes last.
inline bool is_addressable(int64_t batch, int64_t channels, int64_t height, int64_t width) {
  int64_t bytes = 8 * height;
  return !__builtin_mul_overflow(bytes, width, &bytes) && !__builtin_mul_overflow(bytes, channels, &bytes) &&
         !__builtin_mul_overflow(bytes, batch, &bytes);
}

inline Geometry make_geometry(const char* name, int64_t batch, int64_t channels, int64_t output_channels,
                              int64_t input_height, int64_t input_width, int64_t kernel_height,
                              int64_t kernel_width, const Window& window) {
  const auto& [stride_height, stride_width, top, left, bottom, right, dilation_height, dilation_width] =
      window;
  TORCHGRAFT_CHECK(stride_height > 0 && stride_width > 0, name, ": stride must be positive, got (",
                   stride_height, ", ", stride_width, ")");
  TORCHGRAFT_CHECK(dilation_height > 0 && dilation_width > 0, name, ": dilation must be positive, got (",
                   dilation_height, ", ", dilation_width, ")");
  TORCHGRAFT_CHECK(top >= 0 && left >= 0 && bottom >= 0 && right >= 0, name,
                   ": padding must not be negative, got (", left, ", ", right, ", ", top, ", ", bottom,
                   ") (left, right, ...)");
  TORCHGRAFT_CHECK(channels > 0, name, ": input must have at least one channel, got ", channels);
  TORCHGRAFT_CHECK(input_height > 0 && input_width > 0, name,
                   ": input must have at least one pixel, its height and width are (", input_height, ", ",
                   input_width, ")");
  TORCHGRAFT_CHECK(kernel_height > 0 && kernel_width > 0, name,
                   ": weight must have at least one tap, its kernels are (", kernel_height, ", ",
                   kernel_width, ")");
  TORCHGRAFT_CHECK(output_channels > 0 && output_channels % channels == 0, name, ": weight has ",
                   output_channels, " channels, which must be a multiple of the ", channels, " of input");
  const int64_t tall = span_of(name, kernel_height, dilation_height);
  const int64_t wide = span_of(name, kernel_width, dilation_width);
  const int64_t rows = room_of(name, input_height, top, bottom);
  const int64_t columns = room_of(name, input_width, left, right);
  TORCHGRAFT_CHECK(tall <= rows && wide <= columns, name, ": the kernel spans ", tall, " x ", wide,
                   " pixels and the padded input has only ", rows, " x ", columns);
  TORCHGRAFT_CHECK(rows < kLargestSize && columns < kLargestSize && stride_height < kLargestSize &&
                       stride_width < kLargestSize && dilation_height < kLargestSize &&
                       dilation_width < kLargestSize,
                   name, kNoMemory);
  const Geometry geometry = {
      batch,
      channels,
      output_channels / channels,
      {input_height, (rows - tall) / stride_height + 1, kernel_height, stride_height, top, dilation_height},
      {input_width, (columns - wide) / stride_width + 1, kernel_width, stride_width, left, dilation_width}};
  TORCHGRAFT_CHECK(is_addressable(batch, channels, input_height, input_width) &&
                       is_addressable(batch, output_channels, geometry.height.output, geometry.width.output),
                   name, kNoMemory);
  return geometry;
}

inline void check_weight(const Tensor& weight) {
  check_dim(weight, 4, "weight");
  TORCHGRAFT_CHECK(weight.size(1) == 1, "weight must be (channels, 1, height, width), its second size is ",
                   weight.size(1));
}

inline void check_output_grad(const char* name, const Tensor& output_grad, const Geometry& geometry) {
  TORCHGRAFT_CHECK(
      output_grad.size(0) == geometry.batch && output_grad.size(1) == geometry.output_channels() &&
          output_grad.size(2) == geometry.height.output && output_grad.size(3) == geometry.width.output,
      name, ": output_grad must be (", geometry.batch, ", ", geometry.output_channels(), ", ",
      geometry.height.output, ", ", geometry.width.output, ") for these sizes, got (", output_grad.size(0),
      ", ", output_grad.size(1), ", ", output_grad.size(2), ", ", output_grad.size(3), ")");
}

// A weight or bias may have another floating dtype than the image, to which it is then rounded.
inline void check_same_device(const Tensor& image, const char* image_name, const Tensor& other,
                              const char* other_name) {
  TORCHGRAFT_CHECK(same_device(image, other), image_name, " and ", other_name, " must be on the same device");
  if (image.scalar_type() == other.scalar_type()) return;
  dispatch_floating(other.scalar_type(), "depthwise_conv2d", [](auto) {});
}

inline Geometry forward_geometry(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                                 const Window& window) {
  const char* const name = "depthwise_conv2d";
  if (input.dim() != 4) {
    const auto sizes = input.sizes();
    std::ostringstream shape;
    for (size_t i = 0; i < sizes.size(); ++i) shape << (i == 0 ? "" : ", ") << sizes[i];
    fail(name, ": input must be (N, C, H, W) or (C, H, W), got (", shape.str(),
         sizes.size() == 1 ? ",)" : ")");
  }
  check_memory(input, "input");
  check_weight(weight);
  check_same_device(input, "input", weight, "weight");
  const Geometry geometry = make_geometry(name, input.size(0), input.size(1), weight.size(0), input.size(2),
                                          input.size(3), weight.size(2), weight.size(3), window);
  if (bias) {
    check_dim(*bias, 1, "bias");
    check_same_device(input, "input", *bias, "bias");
    TORCHGRAFT_CHECK(bias->size(0) == weight.size(0), "bias must have ", weight.size(0), " elements, got ",
                     bias->size(0));
  }
  return geometry;
}

inline Geometry input_grad_geometry(const Tensor& output_grad, const Tensor& weight, int64_t channels,
                                    int64_t height, int64_t width, const Window& window) {
  const char* const name = "depthwise_conv2d_input_grad";
  check_dim(output_grad, 4, "output_grad");
  check_weight(weight);
  check_same_device(output_grad, "output_grad", weight, "weight");
  const Geometry geometry = make_geometry(name, output_grad.size(0), channels, weight.size(0), height, width,
                                          weight.size(2), weight.size(3), window);
  check_output_grad(name, output_grad, geometry);
  return geometry;
}

inline Geometry weight_grad_geometry(const Tensor& output_grad, const Tensor& input, int64_t kernel_height,
                                     int64_t kernel_width, const Window& window) {
  const char* const name = "depthwise_conv2d_weight_grad";
  check_dim(output_grad, 4, "output_grad");
  check_dim(input, 4, "input");
  check_same_kind(output_grad, "output_grad", input, "input");
  const Geometry geometry = make_geometry(name, input.size(0), input.size(1), output_grad.size(1),
                                          input.size(2), input.size(3), kernel_height, kernel_width, window);
  check_output_grad(name, output_grad, geometry);
  return geometry;
}

}  // namespace torchgraft::depthwise
