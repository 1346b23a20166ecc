// What the host functions of lltm share, on every device: checks of sizes, tensors to compute in, and
// products.
//
// float16 and bfloat16 are computed in float32: arguments are converted as they come in, and results rounded
// once as they go out. Products are PyTorch's own.
#pragma once

#include <torchgraft/checks.h>
#include <torchgraft/dispatch.h>
#include <torchgraft/layout.h>

#include <array>
#include <initializer_list>
#include <optional>
#include <tuple>
#include <type_traits>

namespace torchgraft::lltm {

// Recording off, as in any kernel: our caller knows the gradient.
class WithoutAutograd {
 public:
  WithoutAutograd() : was_enabled_(aoti_torch_grad_mode_is_enabled()) {
    aoti_torch_grad_mode_set_enabled(false);
  }
  ~WithoutAutograd() { aoti_torch_grad_mode_set_enabled(was_enabled_); }
  WithoutAutograd(const WithoutAutograd&) = delete;
  WithoutAutograd& operator=(const WithoutAutograd&) = delete;

 private:
  bool was_enabled_;
};

// Calls `function(Tag<T>{})` with the type that a dtype is computed in: two bytes in float.
template <typename Function>
decltype(auto) dispatch_accumulated(ScalarType dtype, const char* name, Function&& function) {
  const bool is_served =
      dtype == ScalarType::Float || dtype == ScalarType::Half || dtype == ScalarType::BFloat16;
  TORCHGRAFT_CHECK(is_served || dtype == ScalarType::Double, name,
                   " has kernels for float64, float32, float16 and bfloat16 only");
  return is_served ? function(Tag<float>{}) : function(Tag<double>{});
}

inline ScalarType accumulate_dtype(ScalarType dtype) {
  return dtype == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

template <typename T>
constexpr ScalarType dtype_of() {
  if (std::is_same_v<T, double>) return ScalarType::Double;
  if (std::is_same_v<T, float>) return ScalarType::Float;
  return std::is_same_v<T, BFloat16> ? ScalarType::BFloat16 : ScalarType::Half;
}

inline Tensor empty_of(std::initializer_list<int64_t> sizes, ScalarType dtype, const Tensor& like) {
  std::array<int64_t, 3> strides = {1, 1, 1};
  const int64_t* size = sizes.begin();
  int64_t numel = 1;
  for (int64_t d = static_cast<int64_t>(sizes.size()) - 1; d >= 0; --d) {
    strides[d] = numel;
    numel = checked_product(numel, std::max<int64_t>(size[d], 1), "lltm");
  }
  TORCHGRAFT_CHECK(numel < int64_t{1} << 58, "lltm: these sizes make a tensor that no memory can hold");
  int32_t code = aoti_torch_dtype_float32();
  if (dtype == ScalarType::Double) code = aoti_torch_dtype_float64();
  if (dtype == ScalarType::Half) code = aoti_torch_dtype_float16();
  if (dtype == ScalarType::BFloat16) code = aoti_torch_dtype_bfloat16();
  return make_empty(static_cast<int64_t>(sizes.size()), size, strides.data(), code,
                    internal::device_type_of(like), like.get_device_index());
}

// A contiguous tensor of the same values in another dtype; the tensor itself where it is that already.
inline Tensor converted(const Tensor& tensor, ScalarType dtype) {
  if (tensor.scalar_type() == dtype && tensor.is_contiguous()) return tensor;
  const auto sizes = tensor.sizes();
  Tensor result = tensor.dim() == 1   ? empty_of({sizes[0]}, dtype, tensor)
                  : tensor.dim() == 2 ? empty_of({sizes[0], sizes[1]}, dtype, tensor)
                                      : empty_of({sizes[0], sizes[1], sizes[2]}, dtype, tensor);
  torch::stable::copy_(result, tensor);
  return result;
}

inline std::optional<Tensor> converted(const std::optional<Tensor>& tensor, ScalarType dtype) {
  return tensor.has_value() ? std::optional<Tensor>(converted(*tensor, dtype)) : std::nullopt;
}

// Likewise; no elements where it is not wanted.
inline Tensor converted(bool is_wanted, const Tensor& tensor, ScalarType dtype) {
  return is_wanted ? converted(tensor, dtype) : empty_of({0}, dtype, tensor);
}

template <typename T>
const T* data(const Tensor& tensor) {
  return static_cast<const T*>(tensor.const_data_ptr());
}

template <typename T>
const T* data(const std::optional<Tensor>& tensor) {
  return tensor.has_value() ? static_cast<const T*>(tensor->const_data_ptr()) : nullptr;
}

template <typename T>
T* mutable_data(Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

// result = left @ right for matrices. By the name that writes into a result of ours, which autocast leaves
// alone.
inline void multiply(const Tensor& left, const Tensor& right, Tensor& result) {
  using torch::stable::detail::from;
  std::array<StableIValue, 3> stack = {from(left), from(right), from(result)};
  check_call(torch_call_dispatcher("aten::mm", "out", stack.data(), TORCH_ABI_VERSION), "lltm: a product");
  torch::stable::detail::to<Tensor>(stack[0]);
}

// result = left @ right, with a result of float for factors of two bytes; of factors in parts, (parts, rows,
// columns), each part's.
inline void multiply_by_pytorch(const Tensor& left, const Tensor& right, Tensor& result) {
  if (left.scalar_type() == result.scalar_type()) {
    multiply(left, right, result);
    return;
  }
  const char* const name = left.dim() == 3 ? "aten::bmm" : "aten::mm";
  using torch::stable::detail::from;
  std::array<StableIValue, 4> stack = {from(left), from(right), from(result.scalar_type()), from(result)};
  check_call(torch_call_dispatcher(name, "dtype_out", stack.data(), TORCH_ABI_VERSION), "lltm: a product");
  torch::stable::detail::to<Tensor>(stack[0]);
}

// How many columns of two bytes a row gets, with what fills it up: products are slow where rows do not begin
// at sixteen bytes.
inline int64_t padded_to_whole(int64_t columns) { return (columns + 7) / 8 * 8; }

inline Tensor transposed(const Tensor& matrix) { return torch::stable::transpose(matrix, 0, 1); }

inline void check_shape(const Tensor& tensor, const char* name, std::initializer_list<int64_t> expected) {
  const auto sizes = tensor.sizes();
  bool same = sizes.size() == expected.size();
  for (size_t d = 0; same && d < sizes.size(); ++d) same = sizes[d] == expected.begin()[d];
  TORCHGRAFT_CHECK(same, "lltm: ", name, " has sizes that do not fit the others");
  check_memory(tensor, name);
}

inline void check_floating(const Tensor& tensor, const char* name) {
  const ScalarType dtype = tensor.scalar_type();
  TORCHGRAFT_CHECK(dtype == ScalarType::Double || dtype == ScalarType::Float || dtype == ScalarType::Half ||
                       dtype == ScalarType::BFloat16,
                   "lltm: ", name, " must be float64, float32, float16 or bfloat16");
}

// The sizes of a call: `steps` is one for the cell.
struct Sizes {
  int64_t steps;
  int64_t batch;
  int64_t features;
  int64_t units;

  int64_t rows() const { return steps * batch; }
};

// A copy in the dtype of computation, or zeros.
inline Tensor state_or_zeros(const std::optional<Tensor>& state, const Sizes& sizes, ScalarType kept,
                             const Tensor& like) {
  Tensor result = empty_of({sizes.batch, sizes.units}, kept, like);
  if (state.has_value()) {
    torch::stable::copy_(result, *state);
  } else {
    torch::stable::zero_(result);
  }
  return result;
}

// The arguments of the cell and of the sequence, checked.
inline Sizes check_arguments(const Tensor& input, const Tensor& h, const Tensor& c, const Tensor& weight_ih,
                             const Tensor& weight_hh, const std::optional<Tensor>& bias, bool is_sequence) {
  check_dim(input, is_sequence ? 3 : 2, "lltm: input");
  check_dim(weight_hh, 2, "lltm: weight_hh");
  const int64_t offset = is_sequence ? 1 : 0;
  const Sizes sizes = {is_sequence ? input.size(0) : 1, input.size(offset), input.size(offset + 1),
                       weight_hh.size(1)};
  TORCHGRAFT_CHECK(sizes.steps > 0, "lltm: input must have at least one step, got (0, ", input.size(1), ", ",
                   input.size(2), ")");
  TORCHGRAFT_CHECK(sizes.features > 0, "lltm: input must have at least one feature");
  TORCHGRAFT_CHECK(sizes.units > 0 && sizes.units < int64_t{1} << 28,
                   "lltm: weight_hh must have between 1 and 2**28 - 1 columns, a unit each, got ",
                   sizes.units);
  check_shape(weight_hh, "weight_hh", {3 * sizes.units, sizes.units});
  check_shape(weight_ih, "weight_ih", {3 * sizes.units, sizes.features});
  check_shape(h, is_sequence ? "h0" : "h", {sizes.batch, sizes.units});
  check_shape(c, is_sequence ? "c0" : "c", {sizes.batch, sizes.units});
  check_same_kind(input, "input", h, "h");
  check_same_kind(input, "input", c, "c");
  check_same_kind(input, "input", weight_ih, "weight_ih");
  check_same_kind(input, "input", weight_hh, "weight_hh");
  if (bias.has_value()) {
    check_shape(*bias, "bias", {3 * sizes.units});
    check_same_kind(input, "input", *bias, "bias");
  }
  return sizes;
}

inline void check_gradient(const Tensor& input, const std::optional<Tensor>& gradient, const char* name,
                           std::initializer_list<int64_t> expected) {
  if (!gradient.has_value()) return;
  check_shape(*gradient, name, expected);
  check_same_kind(input, "input", *gradient, name);
}

// What a forward pass kept: of an input of two bytes it is in float.
inline void check_kept(const Tensor& input, const Tensor& kept, const char* name,
                       std::initializer_list<int64_t> expected) {
  check_shape(kept, name, expected);
  check_floating(kept, name);
  TORCHGRAFT_CHECK(same_device(input, kept), "input and ", name, " must be on the same device");
}

inline Sizes check_cell_grads(const Tensor& input, const Tensor& h, const Tensor& c, const Tensor& weight_ih,
                              const Tensor& weight_hh, const Tensor& activations,
                              const std::optional<Tensor>& h_grad, const std::optional<Tensor>& c_grad) {
  const Sizes sizes = check_arguments(input, h, c, weight_ih, weight_hh, std::nullopt, false);
  check_kept(input, activations, "activations", {sizes.batch, 3 * sizes.units});
  check_gradient(input, h_grad, "h_grad", {sizes.batch, sizes.units});
  check_gradient(input, c_grad, "c_grad", {sizes.batch, sizes.units});
  return sizes;
}

inline Sizes check_grads(const Tensor& input, const Tensor& h0, const Tensor& weight_ih,
                         const Tensor& weight_hh, const Tensor& activations, const Tensor& cells,
                         const std::optional<Tensor>& output_grad, const std::optional<Tensor>& h_n_grad,
                         const std::optional<Tensor>& c_n_grad) {
  const Sizes sizes = check_arguments(input, h0, h0, weight_ih, weight_hh, std::nullopt, true);
  check_kept(input, activations, "activations", {sizes.steps, sizes.batch, 3 * sizes.units});
  check_kept(input, cells, "cells", {sizes.steps, sizes.batch, sizes.units});
  check_gradient(input, output_grad, "output_grad", {sizes.steps, sizes.batch, sizes.units});
  check_gradient(input, h_n_grad, "h_n_grad", {sizes.batch, sizes.units});
  check_gradient(input, c_n_grad, "c_n_grad", {sizes.batch, sizes.units});
  return sizes;
}

// Of which arguments the gradients are wanted.
struct Wanted {
  bool input;
  bool h;
  bool weight_ih;
  bool weight_hh;
  bool bias;
};

// The gradients of input, of the h and c that it began with, of weight_ih, weight_hh and bias. What is not
// wanted has no elements.
using Grads = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// left @ right by `multiply(left, right, result)`, computed in the dtype of `left` and rounded once; no
// elements where it is not wanted.
template <typename Multiply>
Tensor product(const Multiply& multiply, bool is_wanted, const Tensor& left, const Tensor& right,
               ScalarType dtype) {
  if (!is_wanted) return empty_of({0}, dtype, left);
  Tensor result = empty_of({left.size(0), right.size(1)}, left.scalar_type(), left);
  multiply(left, converted(right, left.scalar_type()), result);
  return converted(result, dtype);
}

// What the gradients are multiplied from. The gradients of gates are in the dtype of sums.
struct GradFactors {
  Tensor input;       // (rows, features)
  Tensor h;           // (rows, units), what weight_hh was multiplied with
  Tensor weight_ih;   // (3 units, features)
  Tensor gates_grad;  // (rows, 3 units)
  Tensor h_grad;      // results already, as the next two
  Tensor c_grad;
  Tensor bias_grad;
};

// All gradients, each by `multiply(left, right, result)` where it is wanted.
template <typename Multiply>
Grads multiply_grads(const Multiply& multiply, const GradFactors& factors, const Wanted& wanted) {
  const ScalarType dtype = factors.weight_ih.scalar_type();
  const Tensor columns = transposed(factors.gates_grad);
  return {product(multiply, wanted.input, factors.gates_grad, factors.weight_ih, dtype),
          factors.h_grad,
          converted(factors.c_grad, dtype),
          product(multiply, wanted.weight_ih, columns, factors.input, dtype),
          product(multiply, wanted.weight_hh, columns, factors.h, dtype),
          factors.bias_grad};
}

// The rows of all steps of a sequence as one matrix.
inline Tensor rows_of(const Tensor& sequence) {
  return torch::stable::view(sequence, {sequence.size(0) * sequence.size(1), sequence.size(2)});
}

// The gradients with that of the input, where it is wanted, in the shape of a sequence.
inline Grads of_sequence(Grads grads, const Wanted& wanted, const Sizes& sizes) {
  Tensor& input = std::get<0>(grads);
  if (wanted.input) input = torch::stable::view(input, {sizes.steps, sizes.batch, sizes.features});
  return grads;
}

// The results of a sequence: the output, both states after the last step, and what its gradient needs.
inline std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> sequence_results(const Tensor& output,
                                                                           const Tensor& cells,
                                                                           const Tensor& activations,
                                                                           ScalarType dtype, bool reverse) {
  const int64_t last = reverse ? 0 : output.size(0) - 1;
  const auto state_after = [&](const Tensor& states) {
    Tensor state = empty_of({states.size(1), states.size(2)}, dtype, states);
    torch::stable::copy_(state, torch::stable::select(states, 0, last));
    return state;
  };
  return {converted(output, dtype), state_after(output), state_after(cells), activations, cells};
}

}  // namespace torchgraft::lltm
