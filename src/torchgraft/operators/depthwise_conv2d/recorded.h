// Convolutions whose gradient PyTorch records in C++, so that a layer in training costs no Python.
//
// PyTorch has two operators for Apple's GPUs, aten::_mps_convolution and aten::mps_convolution_backward. The
// first has a gradient in C++, which calls the second; on CPU and CUDA neither has a kernel, and PyTorch's
// own convolutions call neither. Ours stand there. The names are everybody's, so what is not depthwise is
// refused. aten::convolution_overrideable and its gradient would do as well, but no function of Python's
// calls that but the one for any operator, which takes 10 us to read three lists of integers;
// torch._mps_convolution takes 2.
//
// Images (N, C, H, W), sequences (N, C, L) and volumes (N, C, D, H, W) come here. Device::Volumes is the
// device of the host functions of volumes. Padding may have twice as many numbers as a kernel has directions:
// those in front, then those behind.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torchgraft/measured.h>

#include <array>
#include <tuple>
#include <vector>

#include "host.h"
#include "rival.h"
#include "sequences.h"
#include "volumes.h"

namespace torchgraft::depthwise {

using Integers = std::vector<int64_t>;

template <size_t kRank>
WindowOf<kRank> window_of(const Integers& stride, const Integers& padding, const Integers& dilation) {
  TORCHGRAFT_CHECK(stride.size() == kRank && dilation.size() == kRank &&
                       (padding.size() == kRank || padding.size() == 2 * kRank),
                   "_mps_convolution: stride and dilation must have ", kRank, " numbers and padding ", kRank,
                   " or ", 2 * kRank, ", got ", stride.size(), ", ", dilation.size(), " and ",
                   padding.size());
  const size_t behind = padding.size() - kRank;
  WindowOf<kRank> window;
  for (size_t i = 0; i < kRank; ++i) {
    window.numbers[i] = stride[i];
    window.numbers[kRank + i] = padding[i];
    window.numbers[2 * kRank + i] = padding[behind + i];
    window.numbers[3 * kRank + i] = dilation[i];
  }
  return window;
}

// Throws where a convolution is none that the kernels compute.
template <size_t kRank>
void check_depthwise(const Tensor& input, const Tensor& weight, int64_t groups) {
  check_dim(input, kRank + 2, "input");
  check_weight<kRank>(weight);
  TORCHGRAFT_CHECK(
      groups == input.size(1),
      "_mps_convolution: torchgraft's kernels compute depthwise convolutions, which have a group "
      "for each of the ",
      input.size(1), " channels, got groups=", groups);
}

// The host functions as their raw names are registered: they take the fastest kernel where that is measured.
template <const char* kName, auto kFunction, auto kRival>
using Registered = internal::Measured<kName, decltype(kFunction), kFunction, kRival>;
template <typename Device, size_t kRank>
struct Passes;
template <typename Device>
struct Passes<Device, 1> {
  using Forward = Registered<kForward<1>, &sequences_forward_on<Device>, &sequences_forward_by_pytorch>;
  using InputGrad =
      Registered<kInputGrad<1>, &sequences_input_grad_on<Device>, &sequences_input_grad_by_pytorch>;
  using WeightGrad =
      Registered<kWeightGrad<1>, &sequences_weight_grad_on<Device>, &sequences_weight_grad_by_pytorch>;
};
template <typename Device>
struct Passes<Device, 2> {
  using Forward = Registered<kForward<2>, &forward_on<Device>, &forward_by_pytorch>;
  using InputGrad = Registered<kInputGrad<2>, &input_grad_on<Device>, &input_grad_by_pytorch>;
  using WeightGrad = Registered<kWeightGrad<2>, &weight_grad_on<Device>, &weight_grad_by_pytorch>;
};
template <typename Device>
struct Passes<Device, 3> {
  using Volumes = typename Device::Volumes;
  using Forward = Registered<kForward<3>, &volumes_forward_on<Volumes>, &volumes_forward_by_pytorch>;
  using InputGrad =
      Registered<kInputGrad<3>, &volumes_input_grad_on<Volumes>, &volumes_input_grad_by_pytorch>;
  using WeightGrad =
      Registered<kWeightGrad<3>, &volumes_weight_grad_on<Volumes>, &volumes_weight_grad_by_pytorch>;
};

// Calls a function with the rank of what a tensor holds, as a constant; with that of images for a tensor that
// holds none, which is refused then.
template <typename Device, typename Function>
auto with_rank(const Tensor& tensor, const Function& function) {
  if (tensor.dim() == 3) return function(std::integral_constant<size_t, 1>());
  if (tensor.dim() == 5) return function(std::integral_constant<size_t, 3>());
  return function(std::integral_constant<size_t, 2>());
}

template <typename Device, size_t kRank>
Tensor convolve_recorded(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                         const Integers& stride, const Integers& padding, const Integers& dilation,
                         int64_t groups) {
  check_depthwise<kRank>(input, weight, groups);
  const WindowOf<kRank> window = window_of<kRank>(stride, padding, dilation);
  const internal::Measuring measuring(internal::switch_is_on());
  return std::apply(
      [&](auto... numbers) { return Passes<Device, kRank>::Forward::call(input, weight, bias, numbers...); },
      window.numbers);
}

template <typename Device>
Tensor convolution_on(Tensor input, Tensor weight, std::optional<Tensor> bias, Integers padding,
                      Integers stride, Integers dilation, int64_t groups) {
  return with_rank<Device>(input, [&]<size_t kRank>(std::integral_constant<size_t, kRank>) {
    return convolve_recorded<Device, kRank>(input, weight, bias, stride, padding, dilation, groups);
  });
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

// The gradients of input, weight and bias, as far as they are wanted.
template <typename Device, size_t kRank>
std::tuple<Tensor, Tensor, Tensor> differentiate_recorded(const Tensor& output_grad, const Tensor& input,
                                                          const Tensor& weight, const WindowOf<kRank>& window,
                                                          const std::vector<bool>& wanted) {
  using torch::stable::detail::from;
  const auto of_images = as_window(window);
  const Geometry geometry = forward_geometry(kForward<kRank>, input, weight, std::nullopt, window);
  const bool is_empty = geometry.batch == 0;
  const Layouts layouts = is_empty ? Layouts() : layouts_of(input, weight, geometry, of_images);
  const internal::Measuring measuring(internal::switch_is_on());
  // The numbers of a call: of the sizes that it is told, and of the window.
  const auto call_with = [&](const std::array<int64_t, kRank>& sizes, const auto& call) {
    return std::apply(
        [&](auto... size) {
          return std::apply([&](auto... number) { return call(std::tuple(size...), std::tuple(number...)); },
                            window.numbers);
        },
        sizes);
  };
  Tensor input_grad, weight_grad, bias_grad;
  if (wanted[0]) {
    const std::optional<bool> channels_last = layouts.input_grad == Layout::channels_last;
    input_grad = call_with(sizes_behind<kRank>(input), [&](const auto& sizes, const auto& numbers) {
      const auto with = [&](const auto& function) {
        return std::apply(function, std::tuple_cat(std::tie(output_grad, weight), std::tuple(input.size(1)),
                                                   sizes, std::tie(channels_last), numbers));
      };
      return dispatched(
          kRawInputGrad<kRank>,
          [&] { return with([](const auto&... each) { return std::array{from(each)...}; }); },
          [&] {
            return with([](const auto&... each) { return Passes<Device, kRank>::InputGrad::call(each...); });
          });
    });
    input_grad = with_strides(input_grad, input_grad_strides(input, layouts.input_grad, of_images));
  }
  if (wanted[1]) {
    const std::optional<ScalarType> dtype = weight.scalar_type();
    const bool channels_last = layouts.weight_grad == Layout::channels_last;
    weight_grad = call_with(sizes_behind<kRank>(weight), [&](const auto& sizes, const auto& numbers) {
      const auto with = [&](const auto& function) {
        return std::apply(function, std::tuple_cat(std::tie(output_grad, input), sizes, numbers,
                                                   std::tie(dtype, channels_last)));
      };
      return dispatched(
          kRawWeightGrad<kRank>,
          [&] { return with([](const auto&... each) { return std::array{from(each)...}; }); },
          [&] {
            return with([](const auto&... each) { return Passes<Device, kRank>::WeightGrad::call(each...); });
          });
    });
    if (is_empty) weight_grad = with_strides(weight_grad, strides_of_copy<kDimOfImages<kRank>>(weight));
  }
  if (wanted[2]) {
    // Of the dtype of the weight, as the bias is: sums of halves are float32, and not rounded where that is
    // so. On a CPU, PyTorch takes twice as long where its sums are to be halves.
    const ScalarType dtype = weight.scalar_type();
    const bool widens = input.is_cpu() && (dtype == ScalarType::Half || dtype == ScalarType::BFloat16);
    Integers summed = {0};
    for (size_t i = 0; i < kRank; ++i) summed.push_back(static_cast<int64_t>(i) + 2);
    bias_grad =
        torch::stable::sum(output_grad, summed, /*keepdim=*/false, widens ? ScalarType::Float : dtype);
    if (widens) bias_grad = torch::stable::to(bias_grad, dtype);
  }
  return {input_grad, weight_grad, bias_grad};
}

// Python computes what is to be recorded, or to be seen by modes.
template <typename Device>
std::tuple<Tensor, Tensor, Tensor> convolution_backward_on(Tensor input, Tensor output_grad, Tensor weight,
                                                           Integers padding, Integers stride,
                                                           Integers dilation, int64_t groups,
                                                           std::vector<bool> wanted) {
  return with_rank<Device>(input, [&]<size_t kRank>(std::integral_constant<size_t, kRank>) {
    check_depthwise<kRank>(input, weight, groups);
    TORCHGRAFT_CHECK(wanted.size() == 3, "output_mask must have 3 elements, got ", wanted.size());
    const WindowOf<kRank> window = window_of<kRank>(stride, padding, dilation);
    if (aoti_torch_grad_mode_is_enabled() || a_mode_sees_operators(input)) {
      return differentiated_by_python(output_grad, input, weight, stride, padding, dilation, wanted);
    }
    return differentiate_recorded<Device>(output_grad, input, weight, window, wanted);
  });
}

}  // namespace torchgraft::depthwise

// Registers both for a kind of device: TORCHGRAFT_RECORDED(CPU, Cpu). The backward operator stands before
// PyTorch's autograd, whose own formula for its gradient would end in PyTorch's convolutions.
#define TORCHGRAFT_RECORDED(DEVICE, TYPE)                                                        \
  STABLE_TORCH_LIBRARY_IMPL(aten, DEVICE, library) {                                             \
    library.impl("_mps_convolution", TORCH_BOX(&::torchgraft::depthwise::convolution_on<TYPE>)); \
    library.impl("mps_convolution_backward",                                                     \
                 TORCH_BOX(&::torchgraft::depthwise::convolution_backward_on<TYPE>));            \
  }                                                                                              \
  STABLE_TORCH_LIBRARY_IMPL(aten, Autograd##DEVICE, library) {                                   \
    library.impl("mps_convolution_backward",                                                     \
                 TORCH_BOX(&::torchgraft::depthwise::convolution_backward_on<TYPE>));            \
  }                                                                                              \
  STABLE_TORCH_LIBRARY_IMPL(torchgraft, CompositeImplicitAutograd, library) {                    \
    library.impl("_a_mode_sees_" #DEVICE, TORCH_BOX(&::torchgraft::depthwise::answer<false>));   \
  }                                                                                              \
  STABLE_TORCH_LIBRARY_IMPL(torchgraft, Python, library) {                                       \
    library.impl("_a_mode_sees_" #DEVICE, TORCH_BOX(&::torchgraft::depthwise::answer<true>));    \
  }
