// A recurrence from a cell that torchgraft.recurrence printed: what its host functions do on any device.
//
// The inputs of a piece of the sequence are multiplied at once; a piece is all of it if a gradient is needed.
// Then a device runs all steps of the piece in its own way (`at_once`). Otherwise a step is one product of
// PyTorch's, the message of the step before with weight_hh, and one pass over all rows and units. The forward
// pass keeps the gates before their activation and the states after each step, and the step back computes the
// activations again: the sum of a gate lies in memory in any case, so nothing is kept that is not written
// anyway, and a pass is bound by memory on most devices. The gradients of the weights are one product each
// over all steps, at the end.
//
// float16 and bfloat16 are computed in float: arguments are converted as they come in, and results rounded
// once as they go out.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "../checks.h"
#include "../dispatch.h"
#include "../empty.h"
#include "../layout.h"

namespace torchgraft::recurrence {

// Where one number of each unit lies, for all rows: that of unit u of row r is first[r * stride + u]. With a
// stride of zero all rows read the same numbers.
template <typename T>
struct Row {
  T* first;
  int64_t stride;
};

// A pass over rows and units: `Pass::unit` is called for each unit of each row, with one number of each row
// that is read, and writes one of each row that is written.
template <typename Pass, typename T>
struct Step {
  Row<const T> read[Pass::kReads];
  Row<T> written[Pass::kWrites];
  int64_t rows;
  int64_t units;
};

// Adds a number of each unit to all rows.
struct AddBias {
  static constexpr int kReads = 2;
  static constexpr int kWrites = 1;
  template <typename M, typename T>
  static TORCHGRAFT_CELL_FUNCTION void unit(const T* read, T* written) {
    written[0] = read[0] + read[1];
  }
};

// 1 - tanh(x)^2, and sigmoid(x) * (1 - sigmoid(x)), without cancellation if x is large. A subnormal number
// becomes zero: processors take a hundred times as long with one.
template <typename M, typename T>
TORCHGRAFT_CELL_FUNCTION T sigmoid_slope(T x) {
  const T power = M::exp(-M::abs(x));
  const T inverse = M::reciprocal(T(1) + power);
  return power < std::numeric_limits<T>::min() ? T(0) : power * inverse * inverse;
}
template <typename M, typename T>
TORCHGRAFT_CELL_FUNCTION T tanh_slope(T x) {
  if constexpr (requires { M::tanh_slope(x); }) {
    return M::tanh_slope(x);
  } else {
    return T(4) * sigmoid_slope<M>(T(2) * x);
  }
}

// Fills the rows of a step one after the other, in the order in which the pass counts them.
template <typename Pass, typename T>
class Rows {
 public:
  Rows(int64_t rows, int64_t units) : step_{{}, {}, rows, units} {}

  // One row of each of `count` parts of a matrix whose rows have all parts side by side.
  void read_parts(const T* first, int count) {
    for (int part = 0; part < count; ++part) read(first + part * step_.units, count * step_.units);
  }
  void write_parts(T* first, int count) {
    for (int part = 0; part < count; ++part) write(first + part * step_.units, count * step_.units);
  }

  void read(const T* first, int64_t stride) {
    TORCHGRAFT_CHECK(reads_ < Pass::kReads, "recurrence: a step reads less than it was given");
    step_.read[reads_++] = {first, stride};
  }
  void write(T* first, int64_t stride) {
    TORCHGRAFT_CHECK(writes_ < Pass::kWrites, "recurrence: a step writes less than it was given");
    step_.written[writes_++] = {first, stride};
  }

  // Rows of units alone.
  void read(const T* first) { read(first, step_.units); }
  void write(T* first) { write(first, step_.units); }

  const Step<Pass, T>& step() const {
    TORCHGRAFT_CHECK(reads_ == Pass::kReads && writes_ == Pass::kWrites, "recurrence: a row was left out");
    return step_;
  }

 private:
  Step<Pass, T> step_;
  int reads_ = 0;
  int writes_ = 0;
};

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

inline int32_t code_of(ScalarType dtype) {
  if (dtype == ScalarType::Double) return aoti_torch_dtype_float64();
  if (dtype == ScalarType::Half) return aoti_torch_dtype_float16();
  if (dtype == ScalarType::BFloat16) return aoti_torch_dtype_bfloat16();
  return aoti_torch_dtype_float32();
}

// A contiguous tensor of the same values in another dtype; the tensor itself if it is that already.
inline Tensor converted(const Tensor& tensor, ScalarType dtype) {
  if (tensor.scalar_type() == dtype && tensor.is_contiguous()) return tensor;
  const auto sizes = tensor.sizes();
  Tensor result = empty_contiguous(std::vector<int64_t>(sizes.begin(), sizes.end()), tensor, code_of(dtype));
  torch::stable::copy_(result, tensor);
  return result;
}

inline std::vector<Tensor> converted(const std::vector<Tensor>& tensors, ScalarType dtype) {
  std::vector<Tensor> results;
  for (const Tensor& each : tensors) results.push_back(converted(each, dtype));
  return results;
}

// A copy that a pass may write to, or zeros.
inline Tensor copied_or_zeros(const std::optional<Tensor>& tensor, std::initializer_list<int64_t> sizes,
                              const Tensor& like, ScalarType dtype) {
  Tensor result = empty_contiguous(sizes, like, code_of(dtype));
  if (tensor.has_value()) {
    torch::stable::copy_(result, *tensor);
  } else {
    torch::stable::zero_(result);
  }
  return result;
}

inline Tensor nothing_like(const Tensor& like) { return empty_contiguous({0}, like); }

// result = left @ right. It calls `mm.out`, which writes into `result`; autocast does not cast for it.
inline void multiply(const Tensor& left, const Tensor& right, Tensor& result) {
  using torch::stable::detail::from;
  std::array<StableIValue, 3> stack = {from(left), from(right), from(result)};
  check_call(torch_call_dispatcher("aten::mm", "out", stack.data(), TORCH_ABI_VERSION),
             "recurrence: a product");
  torch::stable::detail::to<Tensor>(stack[0]);
}

inline Tensor transposed(const Tensor& matrix) { return torch::stable::transpose(matrix, 0, 1); }

// result = input @ weight.T, in the type of the result.
inline void multiply_converted(const Tensor& input, const Tensor& weight, Tensor& result) {
  const ScalarType computed = result.scalar_type();
  multiply(converted(input, computed), transposed(converted(weight, computed)), result);
}

// The sums of a matrix's columns.
inline Tensor column_sums(const Tensor& matrix) {
  Tensor result = empty_contiguous({matrix.size(1)}, matrix);
  const int64_t rows = 0;
  torch::stable::sum_out(result, matrix, torch::headeronly::IntHeaderOnlyArrayRef(&rows, 1));
  return result;
}

// A matrix; or, with `rest`, the sum of two matrices of bfloat16: `rest` is what rounding to `matrix` lost.
struct Factor {
  Tensor matrix;
  std::optional<Tensor> rest = std::nullopt;

  Factor transposed() const {
    Factor result = {recurrence::transposed(matrix)};
    if (rest.has_value()) result.rest = recurrence::transposed(*rest);
    return result;
  }
};

// All steps of a sequence as one matrix.
inline Tensor as_matrix(const Tensor& sequence) {
  return torch::stable::view(sequence, {sequence.size(0) * sequence.size(1), sequence.size(2)});
}

// Some steps of a sequence, and one plane of states (states, steps, batch, units).
inline Tensor narrowed(Tensor sequence, int64_t first, int64_t steps) {
  return torch::stable::narrow(sequence, 0, first, steps);
}
inline Tensor plane_of(const Tensor& states, int64_t state, int64_t step) {
  return torch::stable::select(torch::stable::select(states, 0, state), 0, step);
}

template <typename T>
std::vector<const T*> pointers_to(const std::vector<Tensor>& tensors) {
  std::vector<const T*> pointers;
  for (const Tensor& each : tensors) pointers.push_back(data_of<T>(each));
  return pointers;
}

// The results of a kernel as its schema says.
template <size_t... kPlaces>
auto as_tuple(const std::vector<Tensor>& results, std::index_sequence<kPlaces...>) {
  return std::make_tuple(results[kPlaces]...);
}
template <size_t kCount>
auto as_tuple(const std::vector<Tensor>& results) {
  return as_tuple(results, std::make_index_sequence<kCount>());
}

struct Sizes {
  int64_t steps;
  int64_t batch;
  int64_t features;
  int64_t units;

  // The step that comes before step t: t + 1 in a recurrence that runs in reverse.
  static int64_t before(int64_t t, bool reverse) { return reverse ? t + 1 : t - 1; }
};

// The arguments that both directions have.
struct Given {
  Tensor input;                    // (steps, batch, features)
  Tensor weight_ih;                // (gates * units, features)
  Tensor weight_hh;                // (gates * units, units)
  std::vector<Tensor> parameters;  // (units) each
  std::vector<Tensor> initial;     // (batch, units) each, the states before the first step
  bool reverse;
};

inline void check_shape(const Tensor& tensor, const char* name, std::initializer_list<int64_t> expected) {
  const auto sizes = tensor.sizes();
  bool is_same = sizes.size() == expected.size();
  for (size_t d = 0; is_same && d < sizes.size(); ++d) is_same = sizes[d] == expected.begin()[d];
  TORCHGRAFT_CHECK(is_same, name, " has sizes that do not fit the others, ",
                   torchgraft::internal::shape_in_words(tensor));
  check_memory(tensor, name);
}

// A tensor of the sizes, dtype and device that the input asks for.
inline void check_beside_input(const Tensor& input, const Tensor& tensor, const char* name,
                               std::initializer_list<int64_t> expected) {
  check_shape(tensor, name, expected);
  check_same_kind(input, "input", tensor, name);
}

inline void check_beside_input(const Tensor& input, const std::optional<Tensor>& tensor, const char* name,
                               std::initializer_list<int64_t> expected) {
  if (tensor.has_value()) check_beside_input(input, *tensor, name, expected);
}

// A result that the forward pass kept: in any floating dtype.
inline void check_kept(const Tensor& input, const Tensor& kept, const char* name,
                       std::initializer_list<int64_t> expected) {
  check_shape(kept, name, expected);
  dispatch_floating(kept.scalar_type(), name, [](auto) {});
  TORCHGRAFT_CHECK(same_device(input, kept), "input and ", name, " must be on the same device");
}

template <typename Cell>
Sizes check_given(const Given& given) {
  const Tensor& input = given.input;
  check_dim(input, 3, "input");
  check_dim(given.weight_hh, 2, "weight_hh");
  const Sizes sizes = {input.size(0), input.size(1), input.size(2), given.weight_hh.size(1)};
  TORCHGRAFT_CHECK(sizes.steps > 0, "input must have at least one step, got none");
  TORCHGRAFT_CHECK(sizes.units > 0 && sizes.units < int64_t{1} << 28,
                   "weight_hh must have between 1 and 2**28 - 1 columns, a unit each, got ", sizes.units);
  check_beside_input(input, given.weight_hh, "weight_hh", {Cell::kGates * sizes.units, sizes.units});
  check_beside_input(input, given.weight_ih, "weight_ih", {Cell::kGates * sizes.units, sizes.features});
  for (const Tensor& each : given.parameters) {
    check_beside_input(input, each, "a number of each unit", {sizes.units});
  }
  for (const Tensor& each : given.initial) {
    check_beside_input(input, each, "an initial state", {sizes.batch, sizes.units});
  }
  return sizes;
}

// Calls `function(Tag<T>{})` with the type that a dtype is computed in.
template <typename Function>
decltype(auto) dispatch_computed(const Tensor& input, Function&& function) {
  return dispatch_floating(input.scalar_type(), "a recurrence", [&](auto tag) {
    return function(Tag<accumulate_t<typename decltype(tag)::type>>{});
  });
}

}  // namespace torchgraft::recurrence
