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

template <size_t kRank>
std::vector<int64_t> in_vector(const std::array<int64_t, kRank>& numbers) {
  return {numbers.begin(), numbers.end()};
}

template <size_t kRank>
std::vector<int64_t> rival_padding(const WindowOf<kRank>& window) {
  TORCHGRAFT_CHECK(!window.is_uneven(), "PyTorch pads both sides alike");
  return in_vector(window.fronts());
}

// PyTorch's result, where its strides are the operator's: those of images.
template <size_t kDim>
Tensor expect_strides(const Tensor& result, const StridesOf<kDim>& strides) {
  TORCHGRAFT_CHECK(as_image<kDim>(result).strides == strides, "PyTorch gives another layout");
  return result;
}

inline void check_same_dtype(const Tensor& one, const Tensor& other) {
  TORCHGRAFT_CHECK(one.scalar_type() == other.scalar_type(), "PyTorch takes one dtype");
}

template <size_t kRank>
Tensor convolve_by_pytorch(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                           const WindowOf<kRank>& window) {
  using torch::stable::detail::from;
  TORCHGRAFT_CHECK(input.size(0) > 0, "of no images there is nothing to compute");
  check_same_dtype(input, weight);
  if (bias) check_same_dtype(input, *bias);
  const int64_t groups = input.size(1);
  std::array<StableIValue, 9> stack = {from(input),
                                       from(weight),
                                       from(bias),
                                       from(in_vector(window.strides())),
                                       from(rival_padding(window)),
                                       from(in_vector(window.dilations())),
                                       from(false),
                                       from(std::vector<int64_t>(kRank, 0)),
                                       from(groups)};
  check_call(torch_call_dispatcher("aten::convolution", "", stack.data(), TORCH_ABI_VERSION),
             "aten::convolution");
  const Tensor result = torch::stable::detail::to<Tensor>(stack[0]);
  // Under autocast PyTorch takes another dtype.
  check_same_dtype(result, input);
  const Geometry geometry = forward_geometry(kForward<kRank>, input, weight, bias, window);
  const Layout layout = layouts_of(input, weight, geometry, as_window(window)).output;
  return expect_strides(result, dense_strides(as_image<kDimOfImages<kRank>>(result).sizes, layout));
}

// The gradient of the input, or of the weight.
template <size_t kRank>
Tensor gradient_by_pytorch(const Tensor& output_grad, const Tensor& input, const Tensor& weight,
                           const WindowOf<kRank>& window, bool of_input) {
  using torch::stable::detail::from;
  const int64_t groups = input.size(1);
  const std::array<bool, 3> wanted = {of_input, !of_input, false};
  std::array<StableIValue, 11> stack = {
      from(output_grad),
      from(input),
      from(weight),
      from(std::optional<std::vector<int64_t>>()),
      from(in_vector(window.strides())),
      from(rival_padding(window)),
      from(in_vector(window.dilations())),
      from(false),
      from(std::vector<int64_t>(kRank, 0)),
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

// Uninitialised images of as many directions as a tensor has.
template <size_t kRank>
Tensor empty_beside(int64_t batch, int64_t channels, const std::array<int64_t, kRank>& size, Layout layout,
                    const Tensor& like) {
  const int64_t planes = kRank == 3 ? size[0] : 1, height = kRank == 1 ? 1 : size[(kRank - 1) / 2];
  return from_images<kRank>(empty_images(batch, channels, planes * height, size[kRank - 1], layout, like),
                            planes);
}

template <size_t kRank>
Tensor input_grad_by_pytorch_of(const Tensor& output_grad, const Tensor& weight, int64_t channels,
                                const std::array<int64_t, kRank>& size, std::optional<bool> channels_last,
                                const WindowOf<kRank>& window) {
  check_same_dtype(output_grad, weight);
  Layout layout = layout_of_rank<kRank>(output_grad);
  if (channels_last) layout = *channels_last ? Layout::channels_last : Layout::contiguous;
  // Only shape and layout of the input are read.
  const Tensor input = empty_beside(output_grad.size(0), channels, size, layout, output_grad);
  const Tensor result = gradient_by_pytorch(output_grad, input, weight, window, /*of_input=*/true);
  return expect_strides(result, as_image<kDimOfImages<kRank>>(input).strides);
}

template <size_t kRank>
Tensor weight_grad_by_pytorch_of(const Tensor& output_grad, const Tensor& input,
                                 const std::array<int64_t, kRank>& kernel, const WindowOf<kRank>& window,
                                 std::optional<ScalarType> dtype, bool channels_last) {
  check_same_dtype(output_grad, input);
  TORCHGRAFT_CHECK(!dtype || *dtype == input.scalar_type(), "PyTorch gives another dtype");
  const Tensor weight = empty_beside(output_grad.size(1), 1, kernel,
                                     channels_last ? Layout::channels_last : Layout::contiguous, input);
  const Tensor result = gradient_by_pytorch(output_grad, input, weight, window, /*of_input=*/false);
  return expect_strides(result, as_image<kDimOfImages<kRank>>(weight).strides);
}

inline Tensor forward_by_pytorch(Tensor input, Tensor weight, std::optional<Tensor> bias,
                                 int64_t stride_height, int64_t stride_width, int64_t padding_top,
                                 int64_t padding_left, int64_t padding_bottom, int64_t padding_right,
                                 int64_t dilation_height, int64_t dilation_width) {
  return convolve_by_pytorch<2>(input, weight, bias,
                                {stride_height, stride_width, padding_top, padding_left, padding_bottom,
                                 padding_right, dilation_height, dilation_width});
}

inline Tensor input_grad_by_pytorch(Tensor output_grad, Tensor weight, int64_t channels, int64_t height,
                                    int64_t width, std::optional<bool> channels_last, int64_t stride_height,
                                    int64_t stride_width, int64_t padding_top, int64_t padding_left,
                                    int64_t padding_bottom, int64_t padding_right, int64_t dilation_height,
                                    int64_t dilation_width) {
  return input_grad_by_pytorch_of<2>(output_grad, weight, channels, {height, width}, channels_last,
                                     {stride_height, stride_width, padding_top, padding_left, padding_bottom,
                                      padding_right, dilation_height, dilation_width});
}

inline Tensor weight_grad_by_pytorch(Tensor output_grad, Tensor input, int64_t kernel_height,
                                     int64_t kernel_width, int64_t stride_height, int64_t stride_width,
                                     int64_t padding_top, int64_t padding_left, int64_t padding_bottom,
                                     int64_t padding_right, int64_t dilation_height, int64_t dilation_width,
                                     std::optional<ScalarType> dtype, bool channels_last) {
  return weight_grad_by_pytorch_of<2>(output_grad, input, {kernel_height, kernel_width},
                                      {stride_height, stride_width, padding_top, padding_left, padding_bottom,
                                       padding_right, dilation_height, dilation_width},
                                      dtype, channels_last);
}

}  // namespace torchgraft::depthwise
