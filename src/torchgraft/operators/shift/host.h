// The four host functions, for any device: what they are given is checked, results are allocated, and images
// are brought into one layout. Device tells how that is done on one kind of device:
//
//   Device(tensor)                           makes the tensor's device current, for a scope
//   Tensor to_layout(tensor, layout)         the tensor itself where it lies so already
//   void forward(input, x_offset, y_offset, output, geometry, layout)
//   void input_grad(output_grad, x_offset, y_offset, input_grad, geometry, layout)
//   void grads(output_grad, input, x_offset, y_offset, input_grad, x_grad, y_grad, geometry, layout, like)
//
// where `input_grad` of the last may be null.
#pragma once

#include <torchgraft/dispatch.h>
#include <torchgraft/layout.h>

#include <tuple>

#include "geometry.h"

namespace torchgraft::shift {

template <typename Device>
Tensor forward_on(Tensor input, Tensor x_offset, Tensor y_offset, int64_t stride) {
  const Geometry geometry = forward_geometry("shift", input, x_offset, y_offset, stride);
  return dispatch_floating(input.scalar_type(), "shift", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Device device(input);
    const Layout layout = layout_of(input);
    Tensor output =
        empty_images(geometry.batch, geometry.channels, geometry.steps, geometry.width, layout, input);
    if (geometry.results() == 0) return output;
    input = device.to_layout(input, layout);
    x_offset = to_contiguous(x_offset);
    y_offset = to_contiguous(y_offset);
    device.forward(data_of<T>(input), data_of<T>(x_offset), data_of<T>(y_offset), mutable_data_of<T>(output),
                   geometry, layout);
    return output;
  });
}

template <typename Device>
Tensor input_grad_on(Tensor output_grad, Tensor x_offset, Tensor y_offset, int64_t height, bool channels_last,
                     int64_t stride) {
  const Geometry geometry = input_grad_geometry(output_grad, x_offset, y_offset, height, stride);
  return dispatch_floating(output_grad.scalar_type(), "shift_input_grad", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Device device(output_grad);
    const Layout layout = channels_last ? Layout::channels_last : Layout::contiguous;
    Tensor input_grad =
        empty_images(geometry.batch, geometry.channels, height, geometry.width, layout, output_grad);
    if (geometry.results() == 0) return torch::stable::zero_(input_grad);
    output_grad = device.to_layout(output_grad, layout);
    x_offset = to_contiguous(x_offset);
    y_offset = to_contiguous(y_offset);
    device.input_grad(data_of<T>(output_grad), data_of<T>(x_offset), data_of<T>(y_offset),
                      mutable_data_of<T>(input_grad), geometry, layout);
    return input_grad;
  });
}

// The gradients of the input, where that is asked for, and of both offsets.
template <typename Device>
std::tuple<Tensor, Tensor, Tensor> backward_on(Tensor output_grad, Tensor input, Tensor x_offset,
                                               Tensor y_offset, int64_t stride, bool with_input_grad,
                                               const char* name) {
  const Geometry geometry = backward_geometry(name, output_grad, input, x_offset, y_offset, stride);
  return dispatch_floating(input.scalar_type(), name, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Device device(input);
    const Layout layout = layout_of(input);
    const int64_t step = 1;
    Tensor input_grad;
    if (with_input_grad) {
      input_grad =
          empty_images(geometry.batch, geometry.channels, geometry.height, geometry.width, layout, input);
    }
    Tensor x_grad = empty_strided(&geometry.channels, &step, 1, input);
    Tensor y_grad = empty_strided(&geometry.channels, &step, 1, input);
    if (geometry.results() == 0) {
      if (with_input_grad) torch::stable::zero_(input_grad);
      return std::make_tuple(input_grad, torch::stable::zero_(x_grad), torch::stable::zero_(y_grad));
    }
    output_grad = device.to_layout(output_grad, layout);
    input = device.to_layout(input, layout);
    x_offset = to_contiguous(x_offset);
    y_offset = to_contiguous(y_offset);
    device.grads(data_of<T>(output_grad), data_of<T>(input), data_of<T>(x_offset), data_of<T>(y_offset),
                 with_input_grad ? mutable_data_of<T>(input_grad) : nullptr, mutable_data_of<T>(x_grad),
                 mutable_data_of<T>(y_grad), geometry, layout, input);
    return std::make_tuple(input_grad, x_grad, y_grad);
  });
}

template <typename Device>
std::tuple<Tensor, Tensor> offset_grad_on(Tensor output_grad, Tensor input, Tensor x_offset, Tensor y_offset,
                                          int64_t stride) {
  auto [none, x_grad, y_grad] = backward_on<Device>(output_grad, input, x_offset, y_offset, stride,
                                                    /*with_input_grad=*/false, "shift_offset_grad");
  return {x_grad, y_grad};
}

template <typename Device>
std::tuple<Tensor, Tensor, Tensor> grads_on(Tensor output_grad, Tensor input, Tensor x_offset,
                                            Tensor y_offset, int64_t stride) {
  return backward_on<Device>(output_grad, input, x_offset, y_offset, stride, /*with_input_grad=*/true,
                             "shift_grads");
}

}  // namespace torchgraft::shift
