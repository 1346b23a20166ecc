// The CPU as a device of the host functions (host.h): its kernels take either layout.
#pragma once

#include <utility>

#include "../host.h"
#include "kernels.h"

namespace torchgraft::depthwise {

class Cpu {
 public:
  static constexpr bool kTakesVolumes = true;

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
    return torchgraft::to_layout(tensor, layout);
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
};

}  // namespace torchgraft::depthwise
