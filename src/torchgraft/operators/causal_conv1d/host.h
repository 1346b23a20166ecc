// The host functions that both devices share: they check, bring tensors into a layout that kernels read, and
// make the results.
#pragma once

#include <torchgraft/checks.h>
#include <torchgraft/dispatch.h>
#include <torchgraft/layout.h>

#include <optional>
#include <tuple>
#include <type_traits>

#include "sizes.h"

namespace torchgraft::causal_conv1d {

// The tensors that say which elements belong together; at most one is there.
struct Sequences {
  std::optional<Tensor> ids;
  std::optional<Tensor> offsets;
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

// Whether a tensor's results lie with their channels side by side. The Python twin is `_has_channels_last` in
// arguments.py.
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

// A weight or bias as kernels read it: contiguous, and rounded to the dtype of T if it has another one, as
// that of a layer has under autocast.
template <typename T>
Tensor readable_weight(const Tensor& tensor, const char* name) {
  if (tensor.scalar_type() == kDtypeOf<T>) return to_contiguous(tensor, name);
  check_memory(tensor, name);
  const auto sizes = tensor.sizes();
  std::array<int64_t, 2> strides = {1, 1};
  if (sizes.size() == 2) strides[0] = std::max<int64_t>(sizes[1], 1);
  Tensor copy = make_empty(static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(),
                           static_cast<int32_t>(kDtypeOf<T>), internal::device_type_of(tensor),
                           tensor.get_device_index());
  torch::stable::copy_(copy, tensor);
  return copy;
}
template <typename T>
std::optional<Tensor> readable_weight(const std::optional<Tensor>& tensor, const char* name) {
  return tensor ? std::optional(readable_weight<T>(*tensor, name)) : std::nullopt;
}

// The messages are those of `explain` in operator.py and update.py: a C++ program without Python reads these.
// The declared shapes say what is wrong with numbers of dimensions, or with sizes that two tensors share.
inline void check_state(const char* name, const Tensor& input, const std::optional<Tensor>& state,
                        const Sizes& sizes, const char* argument) {
  if (!state) return;
  check_dim(*state, 3, argument);
  check_same_kind(input, "input", *state, argument);
  TORCHGRAFT_CHECK(
      state->size(0) == sizes.states && state->size(1) == sizes.channels && state->size(2) == sizes.width - 1,
      name, ": ", argument, " must be (", sizes.states, ", ", sizes.channels, ", ", sizes.width - 1,
      ") for a weight of width ", sizes.width, ", got ", internal::shape_in_words(*state));
}

// A weight and a bias, which may have another floating dtype than the input; that is checked where they are
// read.
inline void check_weight(const char* name, const Tensor& input, const Tensor& weight,
                         const std::optional<Tensor>& bias) {
  check_dim(weight, 2, "weight");
  TORCHGRAFT_CHECK(same_device(input, weight), "input and weight must be on the same device");
  TORCHGRAFT_CHECK(weight.size(0) == input.size(1), "weight must have ", input.size(1), " channels, got ",
                   weight.size(0));
  TORCHGRAFT_CHECK(weight.size(1) >= 1 && weight.size(1) <= kMostTaps, name,
                   ": weight must have a width of 1 to ", kMostTaps, ", got ", weight.size(1));
  dispatch_floating(weight.scalar_type(), "causal_conv1d, its weight,", [](auto) {});
  if (!bias) return;
  check_dim(*bias, 1, "bias");
  TORCHGRAFT_CHECK(same_device(input, *bias), "input and bias must be on the same device");
  TORCHGRAFT_CHECK(bias->size(0) == input.size(1), "bias must have ", input.size(1), " elements, got ",
                   bias->size(0));
  dispatch_floating(bias->scalar_type(), "causal_conv1d, its bias,", [](auto) {});
}

inline void check_index(const Tensor& input, const Tensor& index, const char* name) {
  check_memory(index, name);
  TORCHGRAFT_CHECK(same_device(input, index), "input and ", name, " must be on the same device");
  TORCHGRAFT_CHECK(index.scalar_type() == ScalarType::Int, name, " must be int32");
}

inline Sizes check_arguments(const char* name, const Tensor& input, const Tensor& weight,
                             const std::optional<Tensor>& bias, const std::optional<Tensor>& initial_state,
                             const Sequences& sequences) {
  check_dim(input, 3, "input");
  Sizes sizes = {input.size(0), input.size(1), input.size(2), 1, has_channels_last(input), input.size(0)};
  if (sequences.ids) {
    check_index(input, *sequences.ids, "seq_idx");
    TORCHGRAFT_CHECK(sequences.ids->dim() == 2 && sequences.ids->size(0) == sizes.batch &&
                         sequences.ids->size(1) == sizes.length,
                     "seq_idx must have the shape (", sizes.batch, ", ", sizes.length, ")");
  }
  if (sequences.offsets) {
    const Tensor& offsets = *sequences.offsets;
    check_dim(offsets, 1, "cu_seqlens");
    TORCHGRAFT_CHECK(same_device(input, offsets), "input and cu_seqlens must be on the same device");
    TORCHGRAFT_CHECK(offsets.scalar_type() == ScalarType::Int || offsets.scalar_type() == ScalarType::Long,
                     "cu_seqlens must be int32 or int64");
    TORCHGRAFT_CHECK(sizes.batch == 1, name, ": input must have a batch of 1 with cu_seqlens, got ",
                     sizes.batch);
    sizes.states = offsets.size(0) - 1;
    TORCHGRAFT_CHECK(sizes.states >= 0, name,
                     ": cu_seqlens must have one element more than there are sequences, got 0");
    TORCHGRAFT_CHECK(sizes.states > 0 || sizes.length == 0, name,
                     ": cu_seqlens has no sequence for a length of ", sizes.length);
  }
  check_weight(name, input, weight, bias);
  sizes.width = weight.size(1);
  check_state(name, input, initial_state, sizes, "initial_state");
  return sizes;
}

// Contiguous copies of the tensors that say which elements belong together, and what kernels get of them.
inline Packing packing_of(Sequences& sequences) {
  Packing packing;
  if (sequences.ids) {
    sequences.ids = to_contiguous(*sequences.ids, "seq_idx");
    packing.ids = torchgraft::data_of<int32_t>(*sequences.ids);
  }
  if (sequences.offsets) {
    sequences.offsets = to_contiguous(*sequences.offsets, "cu_seqlens");
    packing.offsets = sequences.offsets->const_data_ptr();
    packing.has_wide_offsets = sequences.offsets->scalar_type() == ScalarType::Long;
  }
  return packing;
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
                                   std::optional<Tensor> initial_state, Sequences sequences, bool silu,
                                   const Run& run) {
  const char* const name = sequences.offsets ? "causal_conv1d_packed" : "causal_conv1d";
  const Sizes sizes = check_arguments(name, input, weight, bias, initial_state, sequences);
  Tensor output = empty_of(sizes.batch, sizes.channels, sizes.length, sizes.channels_last, input);
  Tensor final_state = empty_of(sizes.states, sizes.channels, sizes.width - 1, sizes.channels_last, input);
  dispatch_floating(input.scalar_type(), "causal_conv1d", [&]<typename T>(Tag<T>) {
    if (sizes.batch == 0 || sizes.channels == 0) return;
    input = readable(input, sizes.channels_last, "input");
    weight = readable_weight<T>(weight, "weight");
    bias = readable_weight<T>(bias, "bias");
    run(Forward<T>{sizes, silu, view<T>(input), data_of<T>(weight), data_of<T>(bias), view<T>(initial_state),
                   mutable_view<T>(output), mutable_view<T>(final_state), packing_of(sequences)});
  });
  return {output, final_state};
}

// An uninitialised tensor of a dtype, or else of that of `like`.
inline Tensor empty_in(const std::optional<ScalarType>& dtype, int64_t dim, const int64_t* sizes,
                       const int64_t* strides, const Tensor& like) {
  if (!dtype) return empty_strided(sizes, strides, dim, like);
  dispatch_floating(*dtype, "causal_conv1d_backward, its dtype,", [](auto) {});
  return make_empty(dim, sizes, strides, static_cast<int32_t>(*dtype), internal::device_type_of(like),
                    like.get_device_index());
}

// Gradients of the operator, those of weight and bias in `dtype`, or else in that of the input;
// `run(Backward<T>, weight_grad, bias_grad)` computes them, of an empty batch too.
template <typename Run>
std::tuple<Tensor, Tensor, Tensor, Tensor> backward(Tensor output_grad,
                                                    std::optional<Tensor> final_state_grad, Tensor input,
                                                    Tensor weight, std::optional<Tensor> bias,
                                                    std::optional<Tensor> initial_state, Sequences sequences,
                                                    bool silu, std::optional<ScalarType> dtype,
                                                    const Run& run) {
  const char* const name = sequences.offsets ? "causal_conv1d_packed_backward" : "causal_conv1d_backward";
  const Sizes sizes = check_arguments(name, input, weight, bias, initial_state, sequences);
  check_dim(output_grad, 3, "output_grad");
  check_same_kind(input, "input", output_grad, "output_grad");
  TORCHGRAFT_CHECK(output_grad.size(0) == sizes.batch && output_grad.size(1) == sizes.channels &&
                       output_grad.size(2) == sizes.length,
                   "output_grad must have the shape (", sizes.batch, ", ", sizes.channels, ", ", sizes.length,
                   ")");
  check_state(name, input, final_state_grad, sizes, "final_state_grad");
  const int64_t channels = sizes.channels, past = sizes.width - 1, one = 1;
  Tensor input_grad = empty_of(sizes.batch, channels, sizes.length, sizes.channels_last, input);
  const std::array<int64_t, 2> weight_sizes = {channels, sizes.width}, weight_strides = {sizes.width, 1};
  Tensor weight_grad = empty_in(dtype, 2, weight_sizes.data(), weight_strides.data(), input);
  Tensor bias_grad = empty_in(dtype, 1, &channels, &one, input);
  Tensor state_grad =
      empty_of(sizes.states, channels, past,
               initial_state ? has_channels_last(*initial_state) : sizes.channels_last, input);
  dispatch_floating(input.scalar_type(), "causal_conv1d_backward", [&]<typename T>(Tag<T>) {
    if (channels == 0) return;
    output_grad = readable(output_grad, sizes.channels_last, "output_grad");
    input = readable(input, sizes.channels_last, "input");
    weight = readable_weight<T>(weight, "weight");
    bias = readable_weight<T>(bias, "bias");
    run(Backward<T>{sizes, silu, view<T>(output_grad), view<T>(final_state_grad), view<T>(input),
                    data_of<T>(weight), data_of<T>(bias), view<T>(initial_state), mutable_view<T>(input_grad),
                    mutable_view<T>(state_grad), packing_of(sequences)},
        weight_grad, bias_grad);
  });
  return {input_grad, weight_grad, bias_grad, state_grad};
}

// The first byte of a tensor's memory, and the one behind its last: the same if it has no elements.
inline std::pair<const char*, const char*> span_of(const Tensor& tensor) {
  const char* const begin = static_cast<const char*>(tensor.const_data_ptr());
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  return {begin,
          tensor.numel() == 0 ? begin : begin + (last + 1) * static_cast<int64_t>(tensor.element_size())};
}

// Whether a byte may belong to both tensors, as it does for views of one another.
inline bool may_overlap(const Tensor& left, const Tensor& right) {
  const auto [left_begin, left_end] = span_of(left);
  const auto [right_begin, right_end] = span_of(right);
  return std::max(left_begin, right_begin) < std::min(left_end, right_end);
}

// The output of a step of decoding; `run(Update<T>)` computes it and writes the state.
template <typename Run>
Tensor update(Tensor input, Tensor state, Tensor weight, std::optional<Tensor> bias,
              std::optional<Tensor> cache_seqlens, std::optional<Tensor> state_indices, bool silu,
              const Run& run) {
  const char* const name = "causal_conv1d_update";
  check_dim(input, 3, "input");
  check_weight(name, input, weight, bias);
  check_dim(state, 3, "state");
  check_same_kind(input, "input", state, "state");
  const int64_t batch = input.size(0), channels = input.size(1), length = input.size(2),
                width = weight.size(1);
  TORCHGRAFT_CHECK(state.size(1) == channels, "state must have ", channels, " channels, got ", state.size(1));
  TORCHGRAFT_CHECK(state.size(2) >= width - 1, name, ": state must keep ", width - 1, " times or more, got ",
                   internal::shape_in_words(state));
  TORCHGRAFT_CHECK(state_indices || state.size(0) == batch, name, ": state must have ", batch,
                   " rows, as input has such a batch, got ", internal::shape_in_words(state));
  for (int64_t d = 0; d < 3; ++d)
    TORCHGRAFT_CHECK(state.stride(d) != 0 || state.size(d) < 2, name,
                     ": state is written to, and must not be expanded: clone it first");
  for (const auto& [index, argument] :
       {std::pair<std::optional<Tensor>&, const char*>{cache_seqlens, "cache_seqlens"},
        {state_indices, "state_indices"}}) {
    if (!index) continue;
    check_index(input, *index, argument);
    TORCHGRAFT_CHECK(index->dim() == 1 && index->size(0) == batch, argument, " must have the shape (", batch,
                     ",)");
    index = to_contiguous(*index, argument);
  }
  Tensor output = empty_of(batch, channels, length, has_channels_last(input), input);
  // An input that lies in the state would change while it is read.
  if (may_overlap(input, state)) {
    Tensor copy = empty_of(batch, channels, length, has_channels_last(input), input);
    torch::stable::copy_(copy, input);
    input = copy;
  }
  if (may_overlap(weight, state)) weight = torch::stable::clone(weight);
  if (bias && may_overlap(*bias, state)) bias = torch::stable::clone(*bias);
  dispatch_floating(input.scalar_type(), "causal_conv1d_update", [&]<typename T>(Tag<T>) {
    if (batch == 0 || channels == 0) return;
    weight = readable_weight<T>(weight, "weight");
    bias = readable_weight<T>(bias, "bias");
    run(Update<T>{batch, channels, length, width, silu, view<T>(input), mutable_view<T>(state), state.size(0),
                  state.size(2), data_of<T>(weight), data_of<T>(bias), data_of<int32_t>(cache_seqlens),
                  data_of<int32_t>(state_indices), mutable_view<T>(output)});
  });
  return output;
}

}  // namespace torchgraft::causal_conv1d
