// The host functions of both devices: they check, make the results, and leave the rest to a device's
// `forward` and `backward`.
#pragma once

#include <torchgraft/dispatch.h>
#include <torchgraft/rows.h>

#include <optional>
#include <tuple>

namespace rms_norm {

using namespace torchgraft;

// What a kernel reads and writes, in contiguous rows; null is what a call does not have. `output` is the
// gradient of the input in the backward pass.
template <typename T>
struct Problem {
  const T *input, *residual, *weight, *output_grad, *total_grad;
  T *output, *total, *weight_grad;
  accumulate_t<T>* partials;
  int64_t rows, columns;
  accumulate_t<T> epsilon;
};

// The arguments of a call, checked and contiguous.
struct Call {
  Rows rows;
  Tensor input, weight;
  std::optional<Tensor> residual, output_grad, total_grad;

  Call(const Tensor& input_argument, const std::optional<Tensor>& residual_argument,
       const Tensor& weight_argument, const std::optional<Tensor>& output_grad_argument = {},
       const std::optional<Tensor>& total_grad_argument = {})
      : rows(rows_of(input_argument, "input")),
        input(rows.tensor),
        weight(to_contiguous(weight_argument, "weight")) {
    check_same_kind(input, "input", weight, "weight");
    TORCHGRAFT_CHECK(weight.dim() == 1 && weight.size(0) == rows.columns,
                     "weight must have one dimension, as large as the last of input");
    residual = beside_input(residual_argument, "residual");
    output_grad = beside_input(output_grad_argument, "output_grad");
    total_grad = beside_input(total_grad_argument, "total_grad");
  }

  std::optional<Tensor> beside_input(const std::optional<Tensor>& tensor, const char* name) const {
    if (!tensor.has_value()) return {};
    check_same_kind(input, "input", *tensor, name);
    TORCHGRAFT_CHECK(tensor->sizes().equals(input.sizes()), name, " must have the sizes of input");
    return to_contiguous(*tensor, name);
  }

  template <typename T>
  Problem<T> problem(double epsilon) const {
    const auto data = [](const std::optional<Tensor>& tensor) {
      return tensor.has_value() ? data_of<T>(*tensor) : nullptr;
    };
    Problem<T> problem = {};
    problem.input = data(input), problem.residual = data(residual), problem.weight = data(weight);
    problem.output_grad = data(output_grad), problem.total_grad = data(total_grad);
    problem.columns = rows.columns;
    problem.rows = rows.columns == 0 ? 0 : rows.count;
    problem.epsilon = static_cast<accumulate_t<T>>(epsilon);
    return problem;
  }
};

// The normalized rows, and the sums that were normalized where `total` is a tensor.
template <typename Device>
Tensor normalized(const Call& call, double epsilon, const Tensor* total) {
  Tensor output = empty_as(call.input);
  dispatch_floating(output.scalar_type(), "rms_norm", [&](auto tag) {
    using T = typename decltype(tag)::type;
    auto problem = call.problem<T>(epsilon);
    problem.output = mutable_data_of<T>(output);
    if (total != nullptr) problem.total = mutable_data_of<T>(*total);
    if (problem.rows > 0) Device::forward(problem, output);
  });
  return output;
}

template <typename Device>
Tensor rms_norm(Tensor input, Tensor weight, double epsilon) {
  return normalized<Device>(Call(input, {}, weight), epsilon, nullptr);
}

template <typename Device>
std::tuple<Tensor, Tensor> add_rms_norm(Tensor input, Tensor residual, Tensor weight, double epsilon) {
  const Call call(input, residual, weight);
  const Tensor total = empty_as(call.input);
  return {normalized<Device>(call, epsilon, &total), total};
}

template <typename Device>
std::tuple<Tensor, Tensor> rms_norm_backward(Tensor output_grad, std::optional<Tensor> total_grad,
                                             Tensor input, std::optional<Tensor> residual, Tensor weight,
                                             double epsilon) {
  const Call call(input, residual, weight, output_grad, total_grad);
  Tensor input_grad = empty_as(call.input), weight_grad = empty_as(call.weight);
  dispatch_floating(weight_grad.scalar_type(), "rms_norm_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    auto problem = call.problem<T>(epsilon);
    problem.output = mutable_data_of<T>(input_grad);
    problem.weight_grad = mutable_data_of<T>(weight_grad);
    if (problem.columns > 0) Device::backward(problem, input_grad);
  });
  return {input_grad, weight_grad};
}

}  // namespace rms_norm
