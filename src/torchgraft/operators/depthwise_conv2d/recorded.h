// Convolutions whose gradient PyTorch records in C++, so that a layer in training costs no Python.
//
// PyTorch has two operators for devices that it does not know, aten::convolution_overrideable and
// aten::convolution_backward_overrideable. The first has a gradient in C++, which calls the second; on CPU
// and CUDA neither has a kernel, and PyTorch's own convolutions call neither. Ours stand there. The names are
// everybody's, so what is not depthwise is refused.
//
// Here padding may have four numbers: top, left, bottom, right.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torchgraft/measured.h>

#include <array>
#include <tuple>
#include <vector>

#include "host.h"
#include "rival.h"

namespace torchgraft::depthwise {

using Integers = std::vector<int64_t>;

inline Window window_of(const Integers& stride, const Integers& padding, const Integers& dilation) {
  TORCHGRAFT_CHECK(
      stride.size() == 2 && dilation.size() == 2 && (padding.size() == 2 || padding.size() == 4),
      "convolution_overrideable: stride and dilation must have 2 numbers and padding 2 or 4, got ",
      stride.size(), ", ", dilation.size(), " and ", padding.size());
  const size_t behind = padding.size() - 2;
  return {stride[0],       stride[1],           padding[0],  padding[1],
          padding[behind], padding[behind + 1], dilation[0], dilation[1]};
}

// Throws where a convolution is none that the kernels compute.
inline void check_depthwise(const Tensor& input, const Tensor& weight, bool transposed, int64_t groups) {
  check_dim(input, 4, "input");
  check_weight(weight);
  TORCHGRAFT_CHECK(
      !transposed && groups == input.size(1),
      "convolution_overrideable: torchgraft's kernels compute depthwise convolutions, which are not "
      "transposed and have a group for each of the ",
      input.size(1), " channels, got transposed=", transposed ? "True" : "False", " and groups=", groups);
}

// The host functions as their raw names are registered: they take the fastest kernel where that is measured.
inline constexpr char kForward[] = "depthwise_conv2d";
inline constexpr char kInputGrad[] = "depthwise_conv2d_input_grad";
inline constexpr char kWeightGrad[] = "depthwise_conv2d_weight_grad";
template <typename Device>
using Forward =
    internal::Measured<kForward, decltype(&forward_on<Device>), &forward_on<Device>, &forward_by_pytorch>;
template <typename Device>
using InputGrad = internal::Measured<kInputGrad, decltype(&input_grad_on<Device>), &input_grad_on<Device>,
                                     &input_grad_by_pytorch>;
template <typename Device>
using WeightGrad = internal::Measured<kWeightGrad, decltype(&weight_grad_on<Device>), &weight_grad_on<Device>,
                                      &weight_grad_by_pytorch>;

template <typename Device>
Tensor convolution_on(Tensor input, Tensor weight, std::optional<Tensor> bias, Integers stride,
                      Integers padding, Integers dilation, bool transposed, Integers /*output_padding*/,
                      int64_t groups) {
  check_depthwise(input, weight, transposed, groups);
  const Window window = window_of(stride, padding, dilation);
  const internal::Measuring measuring(internal::switch_is_on());
  return Forward<Device>::call(input, weight, bias, window.stride_height, window.stride_width,
                               window.padding_top, window.padding_left, window.padding_bottom,
                               window.padding_right, window.dilation_height, window.dilation_width);
}

// Calls an operator of torchgraft through PyTorch's dispatcher, where checks may put another kernel. Before
// 2.13 the dispatcher prints errors instead of passing them on: there, `directly` is called. `make_arguments`
// makes an array of StableIValue. Each of a tensor holds it until the dispatcher takes it, so they are made
// for the dispatcher alone.
template <typename MakeArguments, typename Directly>
Tensor dispatched(const char* name, MakeArguments&& make_arguments, Directly&& directly) {
  static const bool passes_errors_on = aoti_torch_abi_version() >= (uint64_t{2} << 56 | uint64_t{13} << 48);
  if (!passes_errors_on) return directly();
  auto arguments = make_arguments();
  check_call(torch_call_dispatcher(name, "", arguments.data(), TORCH_ABI_VERSION), name);
  return torch::stable::detail::to<Tensor>(arguments[0]);
}

// Whether a mode of Python's sees each operator that is called now. The operator that is asked has no
// arguments and a kernel for such modes, which answers true; the other kernel, which answers false, runs
// without one.
inline bool a_mode_sees_operators(const Tensor& tensor) {
  const char* const name = tensor.is_cpu() ? "torchgraft::_a_mode_sees_CPU" : "torchgraft::_a_mode_sees_CUDA";
  std::array<StableIValue, 1> stack{};
  return torch_call_dispatcher(name, "", stack.data(), TORCH_ABI_VERSION) == 0 &&
         torch::stable::detail::to<bool>(stack[0]);
}

template <bool kAnswer>
bool answer() {
  return kAnswer;
}

// The gradients as the formula in Python computes them. It runs code of the caller's, such as hooks of saved
// tensors and modes, and no exception of theirs could pass through here with its class: what the operator
// returns then raises it behind this function (kernels/cpp_autograd.py).
inline std::tuple<Tensor, Tensor, Tensor> differentiated_by_python(
    const Tensor& output_grad, const Tensor& input, const Tensor& weight, const Integers& stride,
    const Integers& padding, const Integers& dilation, const std::vector<bool>& wanted) {
  using torch::stable::detail::from, torch::stable::detail::to;
  const char* const name = "torchgraft::_recorded_convolution_backward";
  const bool of_input = wanted[0], of_weight = wanted[1], of_bias = wanted[2];
  std::array<StableIValue, 9> stack = {from(output_grad), from(input),     from(weight),
                                       from(stride),      from(padding),   from(dilation),
                                       from(of_input),    from(of_weight), from(of_bias)};
  check_call(torch_call_dispatcher(name, "", stack.data(), TORCH_ABI_VERSION), name);
  return {to<Tensor>(stack[0]), to<Tensor>(stack[1]), to<Tensor>(stack[2])};
}

// Python computes what is to be recorded, or to be seen by modes.
template <typename Device>
std::tuple<Tensor, Tensor, Tensor> convolution_backward_on(Tensor output_grad, Tensor input, Tensor weight,
                                                           Integers stride, Integers padding,
                                                           Integers dilation, bool transposed,
                                                           Integers /*output_padding*/, int64_t groups,
                                                           std::vector<bool> wanted) {
  using torch::stable::detail::from;
  check_depthwise(input, weight, transposed, groups);
  TORCHGRAFT_CHECK(wanted.size() == 3, "output_mask must have 3 elements, got ", wanted.size());
  const Window window = window_of(stride, padding, dilation);
  if (aoti_torch_grad_mode_is_enabled() || a_mode_sees_operators(input)) {
    return differentiated_by_python(output_grad, input, weight, stride, padding, dilation, wanted);
  }
  const auto& [stride_height, stride_width, top, left, bottom, right, dilation_height, dilation_width] =
      window;
  const Geometry geometry = forward_geometry(input, weight, std::nullopt, window);
  const bool is_empty = geometry.batch == 0;
  const Layouts layouts = is_empty ? Layouts() : layouts_of(input, weight, geometry, window);
  const internal::Measuring measuring(internal::switch_is_on());
  Tensor input_grad, weight_grad, bias_grad;
  if (wanted[0]) {
    const int64_t channels = input.size(1), height = input.size(2), width = input.size(3);
    const std::optional<bool> channels_last = layouts.input_grad == Layout::channels_last;
    const auto make_arguments = [&] {
      return std::array<StableIValue, 14>{
          from(output_grad),   from(weight),        from(channels),        from(height),        from(width),
          from(channels_last), from(stride_height), from(stride_width),    from(top),           from(left),
          from(bottom),        from(right),         from(dilation_height), from(dilation_width)};
    };
    const auto directly = [&] {
      return InputGrad<Device>::call(output_grad, weight, channels, height, width, channels_last,
                                     stride_height, stride_width, top, left, bottom, right, dilation_height,
                                     dilation_width);
    };
    input_grad = dispatched("torchgraft::_depthwise_conv2d_input_grad", make_arguments, directly);
    input_grad = with_strides(input_grad, input_grad_strides(input, layouts.input_grad, window));
  }
  if (wanted[1]) {
    const int64_t height = weight.size(2), width = weight.size(3);
    const std::optional<ScalarType> dtype = weight.scalar_type();
    const bool channels_last = layouts.weight_grad == Layout::channels_last;
    const auto make_arguments = [&] {
      return std::array<StableIValue, 14>{from(output_grad),
                                          from(input),
                                          from(height),
                                          from(width),
                                          from(stride_height),
                                          from(stride_width),
                                          from(top),
                                          from(left),
                                          from(bottom),
                                          from(right),
                                          from(dilation_height),
                                          from(dilation_width),
                                          from(dtype),
                                          from(channels_last)};
    };
    const auto directly = [&] {
      return WeightGrad<Device>::call(output_grad, input, height, width, stride_height, stride_width, top,
                                      left, bottom, right, dilation_height, dilation_width, dtype,
                                      channels_last);
    };
    weight_grad = dispatched("torchgraft::_depthwise_conv2d_weight_grad", make_arguments, directly);
    if (is_empty) weight_grad = with_strides(weight_grad, strides_of_copy(weight));
  }
  if (wanted[2]) {
    // Of the dtype of the weight, as the bias is: sums of halves are float32, and not rounded where that is
    // so. On a CPU, PyTorch takes twice as long where its sums are to be halves.
    const ScalarType dtype = weight.scalar_type();
    const bool widens = input.is_cpu() && (dtype == ScalarType::Half || dtype == ScalarType::BFloat16);
    bias_grad = torch::stable::sum(output_grad, Integers{0, 2, 3}, /*keepdim=*/false,
                                   widens ? ScalarType::Float : dtype);
    if (widens) bias_grad = torch::stable::to(bias_grad, dtype);
  }
  return {input_grad, weight_grad, bias_grad};
}

}  // namespace torchgraft::depthwise

// Registers both for a kind of device: TORCHGRAFT_RECORDED(CPU, Cpu). The backward operator stands before
// PyTorch's autograd, whose own formula for its gradient would end in PyTorch's convolutions.
#define TORCHGRAFT_RECORDED(DEVICE, TYPE)                                                                \
  STABLE_TORCH_LIBRARY_IMPL(aten, DEVICE, library) {                                                     \
    library.impl("convolution_overrideable", TORCH_BOX(&::torchgraft::depthwise::convolution_on<TYPE>)); \
    library.impl("convolution_backward_overrideable",                                                    \
                 TORCH_BOX(&::torchgraft::depthwise::convolution_backward_on<TYPE>));                    \
  }                                                                                                      \
  STABLE_TORCH_LIBRARY_IMPL(aten, Autograd##DEVICE, library) {                                           \
    library.impl("convolution_backward_overrideable",                                                    \
                 TORCH_BOX(&::torchgraft::depthwise::convolution_backward_on<TYPE>));                    \
  }                                                                                                      \
  STABLE_TORCH_LIBRARY_IMPL(torchgraft, CompositeImplicitAutograd, library) {                            \
    library.impl("_a_mode_sees_" #DEVICE, TORCH_BOX(&::torchgraft::depthwise::answer<false>));           \
  }                                                                                                      \
  STABLE_TORCH_LIBRARY_IMPL(torchgraft, Python, library) {                                               \
    library.impl("_a_mode_sees_" #DEVICE, TORCH_BOX(&::torchgraft::depthwise::answer<true>));            \
  }
