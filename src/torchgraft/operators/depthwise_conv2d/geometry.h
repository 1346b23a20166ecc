// The sizes of one depthwise convolution, checked once; its three passes share them.
#pragma once

#include <torchgraft/checks.h>
#include <torchgraft/dispatch.h>
#include <torchgraft/layout.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <sstream>
#include <string>

#include "sizes.h"

namespace torchgraft::depthwise {

// No size may come near 2**63: products and sums of those below this never overflow in the checks that
// follow.
inline constexpr int64_t kLargestSize = int64_t{1} << 40;

// Messages are those of `explain_sizes` in operators/depthwise.py: a C++ program without Python reads these.
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

// Names in messages for the elements of an image of this rank, and for its sizes.
template <size_t kRank>
struct Words;
template <>
struct Words<1> {
  static constexpr const char *elements = "elements", *element = "element", *sizes = "length is",
                              *kernels = "kernel size is", *images = "(N, C, L) or (C, L)",
                              *weight = "(channels, 1, length)", *sides = "(left, right)";
};
template <>
struct Words<2> {
  static constexpr const char *elements = "pixels", *element = "pixel", *sizes = "height and width are",
                              *kernels = "kernels are", *images = "(N, C, H, W) or (C, H, W)",
                              *weight = "(channels, 1, height, width)", *sides = "(left, right, ...)";
};

template <>
struct Words<3> {
  static constexpr const char *elements = "voxels", *element = "voxel",
                              *sizes = "depth, height and width are", *kernels = "kernels are",
                              *images = "(N, C, D, H, W) or (C, D, H, W)",
                              *weight = "(channels, 1, depth, height, width)", *sides = "(left, right, ...)";
};

// Numbers as Python writes them: one alone, or several in a tuple.
template <size_t kRank>
std::string in_words(const std::array<int64_t, kRank>& numbers, const char* between = ", ") {
  std::ostringstream text;
  const bool is_tuple = kRank > 1 && between[0] == ',';
  if (is_tuple) text << "(";
  for (size_t i = 0; i < kRank; ++i) text << (i == 0 ? "" : between) << numbers[i];
  if (is_tuple) text << ")";
  return text.str();
}

// The padding of every side, the last direction first, as Python's `Window.padding` gives it.
template <size_t kRank>
std::string padding_in_words(const WindowOf<kRank>& window) {
  std::array<int64_t, 2 * kRank> sides;
  for (size_t i = 0; i < kRank; ++i) {
    sides[2 * i] = window.front(kRank - 1 - i);
    sides[2 * i + 1] = window.back(kRank - 1 - i);
  }
  return in_words(sides);
}

// Checks the sizes of a convolution of images of any rank; returns each direction, the innermost last.
template <size_t kRank>
std::array<Extent, kRank> make_extents(const char* name, int64_t batch, int64_t channels,
                                       int64_t output_channels, const std::array<int64_t, kRank>& input,
                                       const std::array<int64_t, kRank>& kernel,
                                       const WindowOf<kRank>& window) {
  using Say = Words<kRank>;
  const auto all = [](const auto& holds) {
    bool result = true;
    for (size_t i = 0; i < kRank; ++i) result = result && holds(i);
    return result;
  };
  TORCHGRAFT_CHECK(all([&](size_t i) { return window.stride(i) > 0; }), name,
                   ": stride must be positive, got ", in_words(window.strides()));
  TORCHGRAFT_CHECK(all([&](size_t i) { return window.dilation(i) > 0; }), name,
                   ": dilation must be positive, got ", in_words(window.dilations()));
  TORCHGRAFT_CHECK(all([&](size_t i) { return window.front(i) >= 0 && window.back(i) >= 0; }), name,
                   ": padding must not be negative, got ", padding_in_words(window), " ", Say::sides);
  TORCHGRAFT_CHECK(channels > 0, name, ": input must have at least one channel, got ", channels);
  TORCHGRAFT_CHECK(all([&](size_t i) { return input[i] > 0; }), name, ": input must have at least one ",
                   Say::element, ", its ", Say::sizes, " ", in_words(input));
  TORCHGRAFT_CHECK(all([&](size_t i) { return kernel[i] > 0; }), name,
                   ": weight must have at least one tap, its ", Say::kernels, " ", in_words(kernel));
  TORCHGRAFT_CHECK(output_channels > 0 && output_channels % channels == 0, name, ": weight has ",
                   output_channels, " channels, which must be a multiple of the ", channels, " of input");
  std::array<int64_t, kRank> spans, rooms;
  for (size_t i = 0; i < kRank; ++i) {
    spans[i] = span_of(name, kernel[i], window.dilation(i));
    rooms[i] = room_of(name, input[i], window.front(i), window.back(i));
  }
  TORCHGRAFT_CHECK(all([&](size_t i) { return spans[i] <= rooms[i]; }), name, ": the kernel spans ",
                   in_words(spans, " x "), " ", Say::elements, " and the padded input has only ",
                   in_words(rooms, " x "));
  TORCHGRAFT_CHECK(all([&](size_t i) {
                     return rooms[i] < kLargestSize && window.stride(i) < kLargestSize &&
                            window.dilation(i) < kLargestSize;
                   }),
                   name, kNoMemory);
  std::array<Extent, kRank> extents;
  for (size_t i = 0; i < kRank; ++i) {
    extents[i] = {input[i],        (rooms[i] - spans[i]) / window.stride(i) + 1,
                  kernel[i],       window.stride(i),
                  window.front(i), window.dilation(i)};
  }
  const auto fits = [&](int64_t channels_there, const auto& size) {
    int64_t bytes = 8;
    bool result = true;
    for (size_t i = 0; i < kRank; ++i) result = result && !__builtin_mul_overflow(bytes, size(i), &bytes);
    // A batch may hold no image: it comes last.
    return result && !__builtin_mul_overflow(bytes, channels_there, &bytes) &&
           !__builtin_mul_overflow(bytes, batch, &bytes);
  };
  TORCHGRAFT_CHECK(fits(channels, [&](size_t i) { return extents[i].input; }) &&
                       fits(output_channels, [&](size_t i) { return extents[i].output; }),
                   name, kNoMemory);
  return extents;
}

// The sizes of a sequence are those of an image of one row.
inline constexpr Extent kOneRow = {1, 1, 1, 1, 0, 1};

inline Geometry geometry_of(int64_t batch, int64_t channels, int64_t multiplier,
                            const std::array<Extent, 2>& extents) {
  return {batch, channels, multiplier, extents[0], extents[1]};
}
inline Geometry geometry_of(int64_t batch, int64_t channels, int64_t multiplier,
                            const std::array<Extent, 1>& extents) {
  return {batch, channels, multiplier, kOneRow, extents[0]};
}
inline Geometry geometry_of(int64_t batch, int64_t channels, int64_t multiplier,
                            const std::array<Extent, 3>& extents) {
  return {batch, channels, multiplier, extents[1], extents[2], extents[0]};
}

template <size_t kRank>
Geometry make_geometry(const char* name, int64_t batch, int64_t channels, int64_t output_channels,
                       const std::array<int64_t, kRank>& input, const std::array<int64_t, kRank>& kernel,
                       const WindowOf<kRank>& window) {
  const std::array<Extent, kRank> extents =
      make_extents(name, batch, channels, output_channels, input, kernel, window);
  return geometry_of(batch, channels, output_channels / channels, extents);
}

// The sizes of a tensor behind its batch and its channels.
template <size_t kRank>
std::array<int64_t, kRank> sizes_behind(const Tensor& tensor) {
  std::array<int64_t, kRank> sizes;
  for (size_t i = 0; i < kRank; ++i) sizes[i] = tensor.size(static_cast<int64_t>(i) + 2);
  return sizes;
}

template <size_t kRank>
void check_weight(const Tensor& weight) {
  check_dim(weight, kRank + 2, "weight");
  TORCHGRAFT_CHECK(weight.size(1) == 1, "weight must be ", Words<kRank>::weight, ", its second size is ",
                   weight.size(1));
}

template <size_t kRank>
void check_output_grad(const char* name, const Tensor& output_grad, const Geometry& geometry) {
  const std::array<int64_t, 3> volume = {geometry.depth.output, geometry.height.output,
                                         geometry.width.output};
  std::array<int64_t, kRank + 2> expected = {geometry.batch, geometry.output_channels()};
  for (size_t i = 0; i < kRank; ++i) expected[i + 2] = volume[i + 3 - kRank];
  const auto found = output_grad.sizes();
  TORCHGRAFT_CHECK(std::equal(expected.begin(), expected.end(), found.begin()), name,
                   ": output_grad must be ", in_words(expected), " for these sizes, got ",
                   internal::shape_in_words(output_grad));
}

// A weight or bias may have another floating dtype than the image, to which it is then rounded.
inline void check_same_device(const char* name, const Tensor& image, const char* image_name,
                              const Tensor& other, const char* other_name) {
  TORCHGRAFT_CHECK(same_device(image, other), image_name, " and ", other_name, " must be on the same device");
  if (image.scalar_type() == other.scalar_type()) return;
  dispatch_floating(other.scalar_type(), name, [](auto) {});
}

template <size_t kRank>
Geometry forward_geometry(const char* name, const Tensor& input, const Tensor& weight,
                          const std::optional<Tensor>& bias, const WindowOf<kRank>& window) {
  if (input.dim() != kRank + 2) {
    fail(name, ": input must be ", Words<kRank>::images, ", got ", internal::shape_in_words(input));
  }
  check_memory(input, "input");
  check_weight<kRank>(weight);
  check_same_device(name, input, "input", weight, "weight");
  const Geometry geometry = make_geometry(name, input.size(0), input.size(1), weight.size(0),
                                          sizes_behind<kRank>(input), sizes_behind<kRank>(weight), window);
  if (bias) {
    check_dim(*bias, 1, "bias");
    check_same_device(name, input, "input", *bias, "bias");
    TORCHGRAFT_CHECK(bias->size(0) == weight.size(0), "bias must have ", weight.size(0), " elements, got ",
                     bias->size(0));
  }
  return geometry;
}

template <size_t kRank>
Geometry input_grad_geometry(const char* name, const Tensor& output_grad, const Tensor& weight,
                             int64_t channels, const std::array<int64_t, kRank>& size,
                             const WindowOf<kRank>& window) {
  check_dim(output_grad, kRank + 2, "output_grad");
  check_weight<kRank>(weight);
  check_same_device(name, output_grad, "output_grad", weight, "weight");
  const Geometry geometry = make_geometry(name, output_grad.size(0), channels, weight.size(0), size,
                                          sizes_behind<kRank>(weight), window);
  check_output_grad<kRank>(name, output_grad, geometry);
  return geometry;
}

template <size_t kRank>
Geometry weight_grad_geometry(const char* name, const Tensor& output_grad, const Tensor& input,
                              const std::array<int64_t, kRank>& kernel, const WindowOf<kRank>& window) {
  check_dim(output_grad, kRank + 2, "output_grad");
  check_dim(input, kRank + 2, "input");
  check_same_kind(output_grad, "output_grad", input, "input");
  const Geometry geometry = make_geometry(name, input.size(0), input.size(1), output_grad.size(1),
                                          sizes_behind<kRank>(input), kernel, window);
  check_output_grad<kRank>(name, output_grad, geometry);
  return geometry;
}

}  // namespace torchgraft::depthwise
