// The CPU as a device of the host functions (host.h): its kernels take either layout.
#pragma once

#include <optional>
#include <utility>

#include "../host.h"
#include "kernels.h"

namespace torchgraft::depthwise {

class Cpu {
 public:
  using Volumes = Cpu;

  explicit Cpu(const Tensor&) {}

  // Kernels take either layout.
  template <typename T>
  Layout layout(const Geometry&, Layout asked) const {
    return asked;
  }
  template <typename T>
  std::pair<Layout, int64_t> arrange_weight_grad(const Geometry& geometry, Layout asked) const {
    return {asked, geometry.channels};
  }
  Tensor to_layout(const Tensor& tensor, Layout layout) const {
    check_memory(tensor, "a tensor");
    if (has_layout(tensor, layout)) return tensor;
    const std::optional<cpu::Matrices> matrices = matrices_of(strided(tensor), layout);
    return matrices ? transposed(tensor, layout, *matrices) : torchgraft::to_layout(tensor, layout);
  }
  Tensor relayout(const Tensor& tensor, Layout layout) const {
    // A dense tensor is a matrix in either layout. Where it has both, its strides are those of one alone.
    return transposed(tensor, layout, matrices_of(strided(tensor), layout).value());
  }
  Tensor with_channels(const Tensor& tensor, int64_t) const { return tensor; }

  template <typename T>
  Tensor readable(const Tensor& weight, const char* name) const {
    return rounded_to<T>(weight, name);
  }

  template <typename T>
  void forward(const T* input, const Tensor& weight, const std::optional<Tensor>& bias, T* output,
               const Geometry& geometry, Layout layout) const {
    cpu::forward(input, data_of<T>(weight), bias ? data_of<T>(*bias) : nullptr, output, geometry, layout);
  }
  template <typename T>
  void input_grad(const T* output_grad, const Tensor& weight, T* input_grad, const Geometry& geometry,
                  Layout layout) const {
    cpu::input_grad(output_grad, data_of<T>(weight), input_grad, geometry, layout);
  }
  template <typename T, typename R>
  void weight_grad(const T* output_grad, const T* input, R* weight_grad, const Geometry& geometry,
                   Layout layout, const Tensor&) const {
    cpu::weight_grad(output_grad, input, weight_grad, geometry, layout);
  }

 private:
  // Images as matrices whose transposes are images in a layout; nothing for those that lie in another order.
  static std::optional<cpu::Matrices> matrices_of(const Strided& images, Layout layout) {
    const auto& [batch, channels, height, width] = images.sizes;
    const auto& [step, of_channel, of_row, of_pixel] = images.strides;
    if (height > 1 && width > 1 && of_row != width * of_pixel) return std::nullopt;
    const int64_t pixels = height * width, pixel_step = width > 1 ? of_pixel : height > 1 ? of_row : 1;
    if (layout == Layout::contiguous) {
      if (of_channel != 1) return std::nullopt;
      return cpu::Matrices{batch, step, pixels, pixel_step, channels};
    }
    if (pixel_step != 1) return std::nullopt;
    return cpu::Matrices{batch, step, channels, of_channel, pixels};
  }

  static Tensor transposed(const Tensor& tensor, Layout layout, const cpu::Matrices& matrices) {
    Tensor result =
        empty_images(tensor.size(0), tensor.size(1), tensor.size(2), tensor.size(3), layout, tensor);
    cpu::transpose_each(tensor.const_data_ptr(), result.mutable_data_ptr(),
                        static_cast<int64_t>(tensor.element_size()), matrices);
    return result;
  }
};

}  // namespace torchgraft::depthwise
