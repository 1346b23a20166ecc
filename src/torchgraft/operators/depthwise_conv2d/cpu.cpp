// depthwise_conv2d and its two gradients on CPU: host functions and registration. The kernels are in
// cpu_forward.cpp, cpu_input_grad.cpp and cpu_weight_grad.cpp.

#include <torchgraft/dispatch.h>
#include <torchgraft/layout.h>
#include <torchgraft/registration.h>

#include "cpu_kernels.h"
#include "geometry.h"

namespace torchgraft::depthwise {
namespace {

Tensor forward_cpu(Tensor input, Tensor weight, std::optional<Tensor> bias, int64_t stride_height,
                   int64_t stride_width, int64_t padding_top, int64_t padding_left, int64_t padding_bottom,
                   int64_t padding_right, int64_t dilation_height, int64_t dilation_width) {
  const Geometry geometry =
      forward_geometry(input, weight, bias,
                       {stride_height, stride_width, padding_top, padding_left, padding_bottom, padding_right,
                        dilation_height, dilation_width});
  return dispatch_floating(input.scalar_type(), "depthwise_conv2d", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Layout layout = layout_of(input);
    Tensor output = empty_images(geometry.batch, geometry.output_channels(), geometry.height.output,
                                 geometry.width.output, layout, input);
    if (geometry.batch == 0) return output;
    input = to_layout(input, layout);
    weight = to_contiguous(weight);
    if (bias) bias = to_contiguous(*bias);
    cpu::forward(static_cast<const T*>(input.const_data_ptr()),
                 static_cast<const T*>(weight.const_data_ptr()),
                 bias ? static_cast<const T*>(bias->const_data_ptr()) : nullptr,
                 static_cast<T*>(output.mutable_data_ptr()), geometry, layout);
    return output;
  });
}

Tensor input_grad_cpu(Tensor output_grad, Tensor weight, int64_t channels, int64_t height, int64_t width,
                      bool channels_last, int64_t stride_height, int64_t stride_width, int64_t padding_top,
                      int64_t padding_left, int64_t padding_bottom, int64_t padding_right,
                      int64_t dilation_height, int64_t dilation_width) {
  const Geometry geometry =
      input_grad_geometry(output_grad, weight, channels, height, width,
                          {stride_height, stride_width, padding_top, padding_left, padding_bottom,
                           padding_right, dilation_height, dilation_width});
  return dispatch_floating(output_grad.scalar_type(), "depthwise_conv2d_input_grad", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Layout layout = channels_last ? Layout::channels_last : Layout::contiguous;
    Tensor result = empty_images(geometry.batch, channels, height, width, layout, output_grad);
    if (geometry.batch == 0) return result;
    output_grad = to_layout(output_grad, layout);
    weight = to_contiguous(weight);
    cpu::input_grad(static_cast<const T*>(output_grad.const_data_ptr()),
                    static_cast<const T*>(weight.const_data_ptr()),
                    static_cast<T*>(result.mutable_data_ptr()), geometry, layout);
    return result;
  });
}

Tensor weight_grad_cpu(Tensor output_grad, Tensor input, int64_t kernel_height, int64_t kernel_width,
                       int64_t stride_height, int64_t stride_width, int64_t padding_top, int64_t padding_left,
                       int64_t padding_bottom, int64_t padding_right, int64_t dilation_height,
                       int64_t dilation_width) {
  const Geometry geometry =
      weight_grad_geometry(output_grad, input, kernel_height, kernel_width,
                           {stride_height, stride_width, padding_top, padding_left, padding_bottom,
                            padding_right, dilation_height, dilation_width});
  return dispatch_floating(input.scalar_type(), "depthwise_conv2d_weight_grad", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Layout layout = layout_of(input);
    Tensor result =
        empty_images(geometry.output_channels(), 1, kernel_height, kernel_width, Layout::contiguous, input);
    input = to_layout(input, layout);
    output_grad = to_layout(output_grad, layout);
    cpu::weight_grad(static_cast<const T*>(output_grad.const_data_ptr()),
                     static_cast<const T*>(input.const_data_ptr()),
                     static_cast<T*>(result.mutable_data_ptr()), geometry, layout);
    return result;
  });
}

}  // namespace

TORCHGRAFT_KERNEL(torchgraft, CPU, depthwise_conv2d, forward_cpu)
TORCHGRAFT_KERNEL(torchgraft, CPU, depthwise_conv2d_input_grad, input_grad_cpu)
TORCHGRAFT_KERNEL(torchgraft, CPU, depthwise_conv2d_weight_grad, weight_grad_cpu)

}  // namespace torchgraft::depthwise
