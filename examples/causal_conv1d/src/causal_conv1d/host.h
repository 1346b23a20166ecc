// What the kernels of both devices are given, and the host functions that they share: these check, bring
// tensors into a layout that kernels read, and make the results.
#pragma once

#include <torchgraft/checks.h>
#include <torchgraft/dispatch.h>
#include <torchgraft/layout.h>

#include <optional>
#include <tuple>
#include <type_traits>

namespace causal_conv1d {

using namespace torchgraft;

// A (batch, channels, time) tensor: its first element, null where there is no such tensor, and the distances
// of neighbours in elements.
template <typename T>
struct View {
  T* data = nullptr;
  int64_t batch = 0;
  int64_t channel = 0;
  int64_t time = 0;
};

struct Sizes {
  int64_t batch;
  int64_t channels;
  int64_t length;
  int64_t width;
  // Whether neighbouring channels are neighbours in memory; otherwise neighbouring times are.
  bool channels_last;
};

template <typename T>
struct Forward {
  Sizes sizes;
  bool silu;
  View<const T> input;
  const T* weight;
  const T* bias;
  View<const T> initial_state;
  View<T> output;
  View<T> final_state;
};

template <typename T>
struct Backward {
  Sizes sizes;
  bool silu;
  View<const T> output_grad;
  View<const T> final_state_grad;
  View<const T> input;
  const T* weight;
  const T* bias;
  View<const T> initial_state;
  View<T> input_grad;
  T* weight_grad;
  T* bias_grad;
  View<T> initial_state_grad;
};

// A tensor as kernels see it.
template <typename T>
View<T> view_of(T* data, const Tensor& tensor) {
  // The stride of a dimension of size one may be any number.
  const auto stride = [&](int64_t d) { return tensor.size(d) > 1 ? tensor.stride(d) : 0; };
  return {data, stride(0), stride(1), stride(2)};
}
template <typename T>
View<const T> view(const Tensor& tensor) {
  return view_of(data_of<T>(tensor), tensor);
}
template <typename T>
View<const T> view(const std::optional<Tensor>& tensor) {
  return tensor ? view<T>(*tensor) : View<const T>{};
}
template <typename T>
View<T> mutable_view(const Tensor& tensor) {
  return view_of(mutable_data_of<T>(tensor), tensor);
}
template <typename T>
const T* data_of(const std::optional<Tensor>& tensor) {
  return tensor ? torchgraft::data_of<T>(*tensor) : nullptr;
}

// Whether a tensor's results lie with their channels side by side. The Python twin is `_like` in operator.py.
inline bool has_channels_last(const Tensor& tensor) { return tensor.stride(1) == 1 && tensor.stride(2) != 1; }

inline Tensor empty_of(int64_t batch, int64_t channels, int64_t length, bool channels_last,
                       const Tensor& like) {
  const std::array<int64_t, 3> sizes = {batch, channels, length};
  // A size of zero must not make a stride of zero.
  const int64_t inner = std::max<int64_t>(channels_last ? channels : length, 1);
  const int64_t item = inner * std::max<int64_t>(channels_last ? length : channels, 1);
  const std::array<int64_t, 3> strides = {item, channels_last ? 1 : inner, channels_last ? inner : 1};
  return empty_strided(sizes.data(), strides.data(), 3, like);
}

// The tensor itself where it lies as kernels read it, else a copy that does. Items of a batch, and rows, may
// lie anywhere.
inline Tensor readable(const Tensor& tensor, bool channels_last, const char* name) {
  check_memory(tensor, name);
  const int64_t inner = channels_last ? 1 : 2;
  if (tensor.size(inner) <= 1 || tensor.stride(inner) == 1) return tensor;
  Tensor copy = empty_of(tensor.size(0), tensor.size(1), tensor.size(2), channels_last, tensor);
  torch::stable::copy_(copy, tensor);
  return copy;
}

inline void check_state(const Tensor& input, const std::optional<Tensor>& state, const Sizes& sizes,
                        const char* name) {
  if (!state) return;
  check_dim(*state, 3, name);
  check_same_kind(input, "input", *state, name);
  TORCHGRAFT_CHECK(
      state->size(0) == sizes.batch && state->size(1) == sizes.channels && state->size(2) == sizes.width - 1,
      name, " must have the shape (", sizes.batch, ", ", sizes.channels, ", ", sizes.width - 1, ")");
}

inline Sizes check_arguments(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                             const std::optional<Tensor>& initial_state) {
  check_dim(input, 3, "input");
  check_dim(weight, 2, "weight");
  check_same_kind(input, "input", weight, "weight");
  const Sizes sizes = {input.size(0), input.size(1), input.size(2), weight.size(1), has_channels_last(input)};
  TORCHGRAFT_CHECK(weight.size(0) == sizes.channels && sizes.width >= 2 && sizes.width <= 4,
                   "weight must have the shape (", sizes.channels, ", 2, 3 or 4)");
  if (bias) {
    check_dim(*bias, 1, "bias");
    check_same_kind(input, "input", *bias, "bias");
    TORCHGRAFT_CHECK(bias->size(0) == sizes.channels, "bias must have ", sizes.channels, " elements");
  }
  check_state(input, initial_state, sizes, "initial_state");
  return sizes;
}

inline std::optional<Tensor> contiguous(const std::optional<Tensor>& tensor, const char* name) {
  return tensor ? std::optional(to_contiguous(*tensor, name)) : std::nullopt;
}

// The width of a weight as a type, so that loops over it unroll.
template <typename Function>
void dispatch_width(int64_t width, const Function& function) {
  if (width == 2) return function(std::integral_constant<int, 2>{});
  if (width == 3) return function(std::integral_constant<int, 3>{});
  function(std::integral_constant<int, 4>{});
}

// Results of the operator; `run(Forward<T>)` computes them.
template <typename Run>
std::tuple<Tensor, Tensor> forward(Tensor input, Tensor weight, std::optional<Tensor> bias,
                                   std::optional<Tensor> initial_state, bool silu, const Run& run) {
  const Sizes sizes = check_arguments(input, weight, bias, initial_state);
  Tensor output = empty_of(sizes.batch, sizes.channels, sizes.length, sizes.channels_last, input);
  Tensor final_state = empty_of(sizes.batch, sizes.channels, sizes.width - 1, sizes.channels_last, input);
  if (sizes.batch == 0 || sizes.channels == 0) return {output, final_state};
  input = readable(input, sizes.channels_last, "input");
  weight = to_contiguous(weight, "weight");
  bias = contiguous(bias, "bias");
  dispatch_floating(input.scalar_type(), "causal_conv1d", [&]<typename T>(Tag<T>) {
    run(Forward<T>{sizes, silu, view<T>(input), data_of<T>(weight), data_of<T>(bias), view<T>(initial_state),
                   mutable_view<T>(output), mutable_view<T>(final_state)});
  });
  return {output, final_state};
}

// Gradients of the operator; `run(Backward<T>)` computes them, of an empty batch too.
template <typename Run>
std::tuple<Tensor, Tensor, Tensor, Tensor> backward(Tensor output_grad,
                                                    std::optional<Tensor> final_state_grad, Tensor input,
                                                    Tensor weight, std::optional<Tensor> bias,
                                                    std::optional<Tensor> initial_state, bool silu,
                                                    const Run& run) {
  const Sizes sizes = check_arguments(input, weight, bias, initial_state);
  check_dim(output_grad, 3, "output_grad");
  check_same_kind(input, "input", output_grad, "output_grad");
  TORCHGRAFT_CHECK(output_grad.size(0) == sizes.batch && output_grad.size(1) == sizes.channels &&
                       output_grad.size(2) == sizes.length,
                   "output_grad must have the shape (", sizes.batch, ", ", sizes.channels, ", ", sizes.length,
                   ")");
  check_state(input, final_state_grad, sizes, "final_state_grad");
  const int64_t channels = sizes.channels, past = sizes.width - 1, one = 1;
  Tensor input_grad = empty_of(sizes.batch, channels, sizes.length, sizes.channels_last, input);
  const std::array<int64_t, 2> weight_sizes = {channels, sizes.width}, weight_strides = {sizes.width, 1};
  Tensor weight_grad = empty_strided(weight_sizes.data(), weight_strides.data(), 2, weight);
  Tensor bias_grad = empty_strided(&channels, &one, 1, weight);
  Tensor state_grad =
      empty_of(sizes.batch, channels, past,
               initial_state ? has_channels_last(*initial_state) : sizes.channels_last, input);
  if (channels == 0) return {input_grad, weight_grad, bias_grad, state_grad};
  output_grad = readable(output_grad, sizes.channels_last, "output_grad");
  input = readable(input, sizes.channels_last, "input");
  weight = to_contiguous(weight, "weight");
  bias = contiguous(bias, "bias");
  dispatch_floating(input.scalar_type(), "causal_conv1d_backward", [&]<typename T>(Tag<T>) {
    run(Backward<T>{sizes, silu, view<T>(output_grad), view<T>(final_state_grad), view<T>(input),
                    data_of<T>(weight), data_of<T>(bias), view<T>(initial_state), mutable_view<T>(input_grad),
                    mutable_data_of<T>(weight_grad), mutable_data_of<T>(bias_grad),
                    mutable_view<T>(state_grad)});
  });
  return {input_grad, weight_grad, bias_grad, state_grad};
}

}  // namespace causal_conv1d
