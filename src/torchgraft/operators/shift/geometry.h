// What a shift is, in numbers: sizes, checked; and an offset taken apart into a whole and a fraction. Shared
// by the kernels of every device.
#pragma once

#include <torchgraft/checks.h>

#include <cstdint>
#include <limits>
#include <string>

#include "sizes.h"

namespace torchgraft::shift {

// How one channel is sampled: output row t lies between the input's rows t * stride + y and one below, column
// v between columns v + x and one to the right. A is what sums are kept in.
template <typename A>
struct Sampling {
  int64_t x = 0;
  int64_t y = 0;
  A column_weights[2] = {};
  A row_weights[2] = {};
  bool is_finite = true;  // else every weight is NaN, at no displacement

  // The fractions come from the offsets alone. Offsets beyond the image, `width` and `height`, are as good as
  // any other out there, and integers near them cannot overflow.
  constexpr Sampling(A x_offset, A y_offset, int64_t width, int64_t height) {
    is_finite = x_offset - x_offset == 0 && y_offset - y_offset == 0;
    if (!is_finite) {
      column_weights[0] = column_weights[1] = row_weights[0] = row_weights[1] =
          std::numeric_limits<A>::quiet_NaN();
      return;
    }
    x = take_apart(x_offset, width, column_weights);
    y = take_apart(y_offset, height, row_weights);
  }

 private:
  // Constant expressions only, and so code for every device.
  static constexpr int64_t take_apart(A offset, int64_t size, A (&weights)[2]) {
    // A power of two that every A holds and no size reaches; what lies beyond is whole.
    constexpr A kFarthest = int64_t{1} << 62;
    const int64_t beyond = size + 1;
    if (offset < -kFarthest || offset > kFarthest) {
      weights[0] = 1;
      return offset < 0 ? -beyond : beyond;
    }
    const int64_t truncated = static_cast<int64_t>(offset);
    const int64_t displacement = truncated - (static_cast<A>(truncated) > offset ? 1 : 0);
    weights[1] = offset - static_cast<A>(displacement);
    weights[0] = 1 - weights[1];
    return displacement < -beyond ? -beyond : (displacement > beyond ? beyond : displacement);
  }
};

// What checks say is what `explain` of operator.py says: a C++ program without Python reads it.
inline Geometry make_geometry(const char* name, int64_t batch, int64_t channels, int64_t height,
                              int64_t width, int64_t stride) {
  TORCHGRAFT_CHECK(stride >= 1, name, ": stride must be at least 1, got ", stride);
  TORCHGRAFT_CHECK(height >= 0, name, ": height must not be negative, got ", height);
  return {batch, channels, height, width, height / stride, stride};
}

// The tensors must be addressable: eight bytes an element.
inline void check_addressable(const char* name, const Geometry& geometry) {
  int64_t bytes = 0;
  TORCHGRAFT_CHECK(!__builtin_mul_overflow(geometry.height, geometry.width, &bytes) &&
                       !__builtin_mul_overflow(bytes, geometry.channels, &bytes) &&
                       !__builtin_mul_overflow(bytes, geometry.batch, &bytes) &&
                       !__builtin_mul_overflow(bytes, 8, &bytes),
                   name, ": these sizes make a tensor that no memory can hold");
}

inline void check_offset(const Tensor& offset, const char* name, const Tensor& images,
                         const char* images_name) {
  check_dim(offset, 1, name);
  check_same_kind(images, images_name, offset, name);
  TORCHGRAFT_CHECK(offset.size(0) == images.size(1), name, " must have ", images.size(1),
                   " elements, one a channel, got ", offset.size(0));
}

// `why` says what the sizes follow from.
inline void check_output_grad(const char* name, const Tensor& output_grad, const Geometry& geometry,
                              const char* why) {
  TORCHGRAFT_CHECK(output_grad.size(0) == geometry.batch && output_grad.size(1) == geometry.channels &&
                       output_grad.size(2) == geometry.steps && output_grad.size(3) == geometry.width,
                   name, ": output_grad must be (", geometry.batch, ", ", geometry.channels, ", ",
                   geometry.steps, ", ", geometry.width, ") for ", why, ", got (", output_grad.size(0), ", ",
                   output_grad.size(1), ", ", output_grad.size(2), ", ", output_grad.size(3), ")");
}

inline Geometry forward_geometry(const char* name, const Tensor& input, const Tensor& x_offset,
                                 const Tensor& y_offset, int64_t stride) {
  check_dim(input, 4, "input");
  check_offset(x_offset, "x_offset", input, "input");
  check_offset(y_offset, "y_offset", input, "input");
  const Geometry geometry =
      make_geometry(name, input.size(0), input.size(1), input.size(2), input.size(3), stride);
  check_addressable(name, geometry);
  return geometry;
}

inline Geometry input_grad_geometry(const Tensor& output_grad, const Tensor& x_offset, const Tensor& y_offset,
                                    int64_t height, int64_t stride) {
  const char* const name = "shift_input_grad";
  check_dim(output_grad, 4, "output_grad");
  check_offset(x_offset, "x_offset", output_grad, "output_grad");
  check_offset(y_offset, "y_offset", output_grad, "output_grad");
  const Geometry geometry =
      make_geometry(name, output_grad.size(0), output_grad.size(1), height, output_grad.size(3), stride);
  if (geometry.steps != output_grad.size(2)) {
    // Only then is the sentence put together.
    const std::string why =
        "a height of " + std::to_string(height) + " and a stride of " + std::to_string(stride);
    check_output_grad(name, output_grad, geometry, why.c_str());
  }
  // What fits the memory that a stride saves may not fit without.
  check_addressable(name, geometry);
  return geometry;
}

inline Geometry backward_geometry(const char* name, const Tensor& output_grad, const Tensor& input,
                                  const Tensor& x_offset, const Tensor& y_offset, int64_t stride) {
  const Geometry geometry = forward_geometry(name, input, x_offset, y_offset, stride);
  check_dim(output_grad, 4, "output_grad");
  check_same_kind(input, "input", output_grad, "output_grad");
  check_output_grad(name, output_grad, geometry, "these sizes");
  return geometry;
}

}  // namespace torchgraft::shift
