// PyTorch's own convolution, for torchgraft/measured.h, which times it beside the kernels: functions of the
// same arguments that call it through PyTorch's dispatcher. Each throws where PyTorch has no such
// convolution, as where padding differs from side to side, or gives a result of another layout or dtype.
#pragma once

#include <torch/csrc/stable/library.h>

#include <array>
#include <optional>
#include <vector>

#include "host.h"

namespace torchgraft::depthwise {

inline std::vector<int64_t> rival_padding(int64_t top, int64_t left, int64_t bottom, int64_t right) {
  TORCHGRAFT_CHECK(top == bottom && left == right, "PyTorch pads both sides alike");
  return {top, left};
}

// PyTorch's result, where its strides are the operator's.
inline Tensor expect_strides(const Tensor& result, const Strides& strides) {
  TORCHGRAFT_CHECK(strided(result).strides == strides, "PyTorch gives another layout");
  return result;
}

inline void check_same_dtype(const Tensor& one, const Tensor& other) {
  TORCHGRAFT_CHECK(one.scalar_type() == other.scalar_type(), "PyTorch takes one dtype");
}

inline Tensor forward_by_pytorch(Tensor input, Tensor weight, std::optional<Tensor> bias,
                                 int64_t stride_height, int64_t stride_width, int64_t padding_top,
                                 int64_t padding_left, int64_t padding_bottom, int64_t padding_right,
                                 int64_t dilation_height, int64_t dilation_width) {
  using torch::stable::detail::from;
  TORCHGRAFT_CHECK(input.size(0) > 0, "of no images there is nothing to compute");
  check_same_dtype(input, weight);
  if (bias) check_same_dtype(input, *bias);
  const int64_t groups = input.size(1);
  std::array<StableIValue, 9> stack = {
      from(input),
      from(weight),
      from(bias),
      from(std::vector<int64_t>{stride_height, stride_width}),
      from(rival_padding(padding_top, padding_left, padding_bottom, padding_right)),
      from(std::vector<int64_t>{dilation_height, dilation_width}),
      from(false),
      from(std::vector<int64_t>{0, 0}),
      from(groups)};
  check_call(torch_call_dispatcher("aten::convolution", "", stack.data(), TORCH_ABI_VERSION),
             "aten::convolution");
  const Tensor result = torch::stable::detail::to<Tensor>(stack[0]);
  // Under autocast PyTorch takes another dtype.
  check_same_dtype(result, input);
  const Window window = {stride_height,  stride_width,  padding_top,     padding_left,
                         padding_bottom, padding_right, dilation_height, dilation_width};
  const Geometry geometry = forward_geometry(input, weight, bias, window);
  const Layout layout = layouts_of(input, weight, geometry, window).output;
  return expect_strides(result, dense(strided(result).sizes, layout).strides);
}

// The gradient of the input, or of the weight.
inline Tensor gradient_by_pytorch(const Tensor& output_grad, const Tensor& input, const Tensor& weight,
                                  const std::vector<int64_t>& stride, const std::vector<int64_t>& padding,
                                  const std::vector<int64_t>& dilation, bool of_input) {
  using torch::stable::detail::from;
  const int64_t groups = input.size(1);
  const std::array<bool, 3> wanted = {of_input, !of_input, false};
  std::array<StableIValue, 11> stack = {
      from(output_grad),
      from(input),
      from(weight),
      from(std::optional<std::vector<int64_t>>()),
      from(stride),
      from(padding),
      from(dilation),
      from(false),
      from(std::vector<int64_t>{0, 0}),
      from(groups),
      from(torch::headeronly::HeaderOnlyArrayRef<bool>(wanted.data(), wanted.size()))};
  check_call(torch_call_dispatcher("aten::convolution_backward", "", stack.data(), TORCH_ABI_VERSION),
             "aten::convolution_backward");
  // All three are taken, so that what holds them is given back.
  const std::array<Tensor, 3> gradients = {torch::stable::detail::to<Tensor>(stack[0]),
                                           torch::stable::detail::to<Tensor>(stack[1]),
                                           torch::stable::detail::to<Tensor>(stack[2])};
  return gradients[of_input ? 0 : 1];
}

inline Tensor input_grad_by_pytorch(Tensor output_grad, Tensor weight, int64_t channels, int64_t height,
                                    int64_t width, std::optional<bool> channels_last, int64_t stride_height,
                                    int64_t stride_width, int64_t padding_top, int64_t padding_left,
                                    int64_t padding_bottom, int64_t padding_right, int64_t dilation_height,
                                    int64_t dilation_width) {
  check_same_dtype(output_grad, weight);
  Layout layout = layout_of(output_grad);
  if (channels_last) layout = *channels_last ? Layout::channels_last : Layout::contiguous;
  // Of the input only shape and layout are read.
  const Tensor input = empty_images(output_grad.size(0), channels, height, width, layout, output_grad);
  const Tensor result =
      gradient_by_pytorch(output_grad, input, weight, {stride_height, stride_width},
                          rival_padding(padding_top, padding_left, padding_bottom, padding_right),
                          {dilation_height, dilation_width}, /*of_input=*/true);
  return expect_strides(result, strided(input).strides);
}

inline Tensor weight_grad_by_pytorch(Tensor output_grad, Tensor input, int64_t kernel_height,
                                     int64_t kernel_width, int64_t stride_height, int64_t stride_width,
                                     int64_t padding_top, int64_t padding_left, int64_t padding_bottom,
                                     int64_t padding_right, int64_t dilation_height, int64_t dilation_width,
                                     std::optional<ScalarType> dtype, bool channels_last) {
  check_same_dtype(output_grad, input);
  TORCHGRAFT_CHECK(!dtype || *dtype == input.scalar_type(), "PyTorch gives another dtype");
  const Tensor weight = empty_images(output_grad.size(1), 1, kernel_height, kernel_width,
                                     channels_last ? Layout::channels_last : Layout::contiguous, input);
  const Tensor result =
      gradient_by_pytorch(output_grad, input, weight, {stride_height, stride_width},
                          rival_padding(padding_top, padding_left, padding_bottom, padding_right),
                          {dilation_height, dilation_width}, /*of_input=*/false);
  return expect_strides(result, strided(weight).strides);
}

}  // namespace torchgraft::depthwise
