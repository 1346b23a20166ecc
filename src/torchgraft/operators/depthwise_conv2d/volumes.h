// The host functions of volumes, with the arguments of the schemas, and PyTorch's own convolution beside
// them: those of images in host.h, where a dense volume is an image of all rows of its planes.
#pragma once

#include <optional>
#include <utility>

#include "host.h"
#include "rival.h"

namespace torchgraft::depthwise {

template <typename Device>
Tensor volumes_forward_on(Tensor input, Tensor weight, std::optional<Tensor> bias, int64_t stride_depth,
                          int64_t stride_height, int64_t stride_width, int64_t padding_front,
                          int64_t padding_top, int64_t padding_left, int64_t padding_back,
                          int64_t padding_bottom, int64_t padding_right, int64_t dilation_depth,
                          int64_t dilation_height, int64_t dilation_width) {
  return forward_of<Device, 3>(
      std::move(input), std::move(weight), std::move(bias),
      {stride_depth, stride_height, stride_width, padding_front, padding_top, padding_left, padding_back,
       padding_bottom, padding_right, dilation_depth, dilation_height, dilation_width});
}

template <typename Device>
Tensor volumes_input_grad_on(Tensor output_grad, Tensor weight, int64_t channels, int64_t depth,
                             int64_t height, int64_t width, std::optional<bool> channels_last,
                             int64_t stride_depth, int64_t stride_height, int64_t stride_width,
                             int64_t padding_front, int64_t padding_top, int64_t padding_left,
                             int64_t padding_back, int64_t padding_bottom, int64_t padding_right,
                             int64_t dilation_depth, int64_t dilation_height, int64_t dilation_width) {
  return input_grad_of<Device, 3>(
      std::move(output_grad), std::move(weight), channels, {depth, height, width}, channels_last,
      {stride_depth, stride_height, stride_width, padding_front, padding_top, padding_left, padding_back,
       padding_bottom, padding_right, dilation_depth, dilation_height, dilation_width});
}

template <typename Device>
Tensor volumes_weight_grad_on(Tensor output_grad, Tensor input, int64_t kernel_depth, int64_t kernel_height,
                              int64_t kernel_width, int64_t stride_depth, int64_t stride_height,
                              int64_t stride_width, int64_t padding_front, int64_t padding_top,
                              int64_t padding_left, int64_t padding_back, int64_t padding_bottom,
                              int64_t padding_right, int64_t dilation_depth, int64_t dilation_height,
                              int64_t dilation_width, std::optional<ScalarType> dtype, bool channels_last) {
  return weight_grad_of<Device, 3>(
      std::move(output_grad), std::move(input), {kernel_depth, kernel_height, kernel_width},
      {stride_depth, stride_height, stride_width, padding_front, padding_top, padding_left, padding_back,
       padding_bottom, padding_right, dilation_depth, dilation_height, dilation_width},
      dtype, channels_last);
}

inline Tensor volumes_forward_by_pytorch(Tensor input, Tensor weight, std::optional<Tensor> bias,
                                         int64_t stride_depth, int64_t stride_height, int64_t stride_width,
                                         int64_t padding_front, int64_t padding_top, int64_t padding_left,
                                         int64_t padding_back, int64_t padding_bottom, int64_t padding_right,
                                         int64_t dilation_depth, int64_t dilation_height,
                                         int64_t dilation_width) {
  return convolve_by_pytorch<3>(
      input, weight, bias,
      {stride_depth, stride_height, stride_width, padding_front, padding_top, padding_left, padding_back,
       padding_bottom, padding_right, dilation_depth, dilation_height, dilation_width});
}

inline Tensor volumes_input_grad_by_pytorch(Tensor output_grad, Tensor weight, int64_t channels,
                                            int64_t depth, int64_t height, int64_t width,
                                            std::optional<bool> channels_last, int64_t stride_depth,
                                            int64_t stride_height, int64_t stride_width,
                                            int64_t padding_front, int64_t padding_top, int64_t padding_left,
                                            int64_t padding_back, int64_t padding_bottom,
                                            int64_t padding_right, int64_t dilation_depth,
                                            int64_t dilation_height, int64_t dilation_width) {
  return input_grad_by_pytorch_of<3>(
      output_grad, weight, channels, {depth, height, width}, channels_last,
      {stride_depth, stride_height, stride_width, padding_front, padding_top, padding_left, padding_back,
       padding_bottom, padding_right, dilation_depth, dilation_height, dilation_width});
}

inline Tensor volumes_weight_grad_by_pytorch(
    Tensor output_grad, Tensor input, int64_t kernel_depth, int64_t kernel_height, int64_t kernel_width,
    int64_t stride_depth, int64_t stride_height, int64_t stride_width, int64_t padding_front,
    int64_t padding_top, int64_t padding_left, int64_t padding_back, int64_t padding_bottom,
    int64_t padding_right, int64_t dilation_depth, int64_t dilation_height, int64_t dilation_width,
    std::optional<ScalarType> dtype, bool channels_last) {
  return weight_grad_by_pytorch_of<3>(
      output_grad, input, {kernel_depth, kernel_height, kernel_width},
      {stride_depth, stride_height, stride_width, padding_front, padding_top, padding_left, padding_back,
       padding_bottom, padding_right, dilation_depth, dilation_height, dilation_width},
      dtype, channels_last);
}

}  // namespace torchgraft::depthwise
