// The host functions of sequences, with the arguments of the schemas, and PyTorch's own convolution beside
// them: those of images in ../depthwise_conv2d, where a sequence is an image of one row.
#pragma once

#include <optional>
#include <utility>

#include "../depthwise_conv2d/host.h"
#include "../depthwise_conv2d/rival.h"

namespace torchgraft::depthwise {

template <typename Device>
Tensor sequences_forward_on(Tensor input, Tensor weight, std::optional<Tensor> bias, int64_t stride,
                            int64_t padding_left, int64_t padding_right, int64_t dilation) {
  return forward_of<Device, 1>(std::move(input), std::move(weight), std::move(bias),
                               {stride, padding_left, padding_right, dilation});
}

template <typename Device>
Tensor sequences_input_grad_on(Tensor output_grad, Tensor weight, int64_t channels, int64_t length,
                               std::optional<bool> channels_last, int64_t stride, int64_t padding_left,
                               int64_t padding_right, int64_t dilation) {
  return input_grad_of<Device, 1>(std::move(output_grad), std::move(weight), channels, {length},
                                  channels_last, {stride, padding_left, padding_right, dilation});
}

template <typename Device>
Tensor sequences_weight_grad_on(Tensor output_grad, Tensor input, int64_t kernel_size, int64_t stride,
                                int64_t padding_left, int64_t padding_right, int64_t dilation,
                                std::optional<ScalarType> dtype, bool channels_last) {
  return weight_grad_of<Device, 1>(std::move(output_grad), std::move(input), {kernel_size},
                                   {stride, padding_left, padding_right, dilation}, dtype, channels_last);
}

inline Tensor sequences_forward_by_pytorch(Tensor input, Tensor weight, std::optional<Tensor> bias,
                                           int64_t stride, int64_t padding_left, int64_t padding_right,
                                           int64_t dilation) {
  return convolve_by_pytorch<1>(input, weight, bias, {stride, padding_left, padding_right, dilation});
}

inline Tensor sequences_input_grad_by_pytorch(Tensor output_grad, Tensor weight, int64_t channels,
                                              int64_t length, std::optional<bool> channels_last,
                                              int64_t stride, int64_t padding_left, int64_t padding_right,
                                              int64_t dilation) {
  return input_grad_by_pytorch_of<1>(output_grad, weight, channels, {length}, channels_last,
                                     {stride, padding_left, padding_right, dilation});
}

inline Tensor sequences_weight_grad_by_pytorch(Tensor output_grad, Tensor input, int64_t kernel_size,
                                               int64_t stride, int64_t padding_left, int64_t padding_right,
                                               int64_t dilation, std::optional<ScalarType> dtype,
                                               bool channels_last) {
  return weight_grad_by_pytorch_of<1>(output_grad, input, {kernel_size},
                                      {stride, padding_left, padding_right, dilation}, dtype, channels_last);
}

}  // namespace torchgraft::depthwise
