// The two passes of a recurrence over all steps, forward and back, on a device that runs one step's units.
#pragma once

#include "recurrence.h"

namespace torchgraft::recurrence {

// The message that the first step is told.
template <typename Cell, typename T, typename Run>
void first_message(const Run& run, const std::vector<const T*>& initial, const Sizes& sizes, T* message) {
  Rows<typename Cell::Message, T> rows(sizes.batch, sizes.units);
  for (const T* state : initial) rows.read(state);
  rows.write(message);
  run(rows.step());
}

// The steps of a sequence forward, whose inputs have been multiplied. Tensors are contiguous, and of the type
// that is computed in.
struct ForwardSteps {
  Sizes sizes;
  bool reverse;
  ScalarType dtype;                // of the call
  Tensor weight_hh;                // (gates * units, units)
  Tensor gates;                    // (steps, batch, gates * units): the inputs', and what is kept of them
  std::optional<Tensor> bias;      // (gates * units), to be added to those
  Tensor message_gates;            // likewise, of each step or of the last one, if the gates are apart
  Tensor message_bias;             // (gates * units)
  Tensor message;                  // (batch, units): what the first step is told
  std::vector<Tensor> initial;     // (batch, units) each
  std::vector<Tensor> parameters;  // (units) each
  Tensor states;                   // (states, steps or 1, batch, units): after each step, or the last one
  Tensor output;                   // (steps, batch, units)
  std::optional<Tensor> packed;    // weight_hh as a device reads it, from the first of several pieces on
};

// Where the numbers of each step forward lie.
template <typename Cell, typename T>
class ForwardRows {
 public:
  explicit ForwardRows(ForwardSteps& steps)
      : sizes_(steps.sizes),
        reverse_(steps.reverse),
        planes_(steps.states.size(1)),
        gates_(mutable_data_of<T>(steps.gates)),
        message_gates_(Cell::kGatesApart ? mutable_data_of<T>(steps.message_gates) : gates_),
        message_bias_(data_of<T>(steps.message_bias)),
        initial_(pointers_to<T>(steps.initial)),
        parameters_(pointers_to<T>(steps.parameters)),
        states_(mutable_data_of<T>(steps.states)),
        output_(mutable_data_of<T>(steps.output)) {}

  // The rows of a step, in the order of the recurrence. `message_gates` (batch, gates * units) are what it
  // was told times the weights, and to `message` (batch, units) goes what the next one is told.
  Step<typename Cell::Forward, T> at(int64_t step, const T* message_gates, T* message) const {
    const int64_t t = reverse_ ? sizes_.steps - 1 - step : step;
    const int64_t gates_size = sizes_.batch * Cell::kGates * sizes_.units;
    const int64_t state_size = sizes_.batch * sizes_.units;
    Rows<typename Cell::Forward, T> rows(sizes_.batch, sizes_.units);
    rows.read_parts(gates_ + t * gates_size, Cell::kGates);
    rows.read_parts(message_gates, Cell::kGates);
    if constexpr (Cell::kGatesApart) {
      for (int gate = 0; gate < Cell::kGates; ++gate) rows.read(message_bias_ + gate * sizes_.units, 0);
    }
    for (int state = 0; state < Cell::kStates; ++state) {
      const int64_t before = state * planes_ + plane(Sizes::before(t, reverse_));
      rows.read(step == 0 ? initial_[state] : states_ + before * state_size);
    }
    for (const T* each : parameters_) rows.read(each, 0);
    rows.write_parts(message_gates_ + (Cell::kGatesApart ? plane(t) : t) * gates_size, Cell::kGates);
    for (int state = 0; state < Cell::kStates; ++state) {
      rows.write(states_ + (state * planes_ + plane(t)) * state_size);
    }
    rows.write(message);
    rows.write(output_ + t * state_size);
    return rows.step();
  }

 private:
  // Where the states of a time are, of those that are kept. A unit reads all its numbers before it writes
  // any, so the states before a step and those after it may be in the same place.
  int64_t plane(int64_t t) const { return planes_ == 1 ? 0 : t; }

  Sizes sizes_;
  bool reverse_;
  int64_t planes_;
  T* gates_;
  T* message_gates_;
  const T* message_bias_;
  std::vector<const T*> initial_;
  std::vector<const T*> parameters_;
  T* states_;
  T* output_;
};

// The steps as a product and a pass over the units each. The products have the same tensors in all steps:
// views of each step's would cost the host as much as a launch.
template <typename Cell, typename T, typename Run>
void step_by_step(const Run& run, ForwardSteps& steps) {
  const Sizes& sizes = steps.sizes;
  const int64_t width = Cell::kGates * sizes.units;
  if (steps.bias.has_value()) {
    Rows<AddBias, T> rows(sizes.steps * sizes.batch, width);
    rows.read(data_of<T>(steps.gates));
    rows.read(data_of<T>(*steps.bias), 0);
    rows.write(mutable_data_of<T>(steps.gates));
    run(rows.step());
  }
  Tensor message_gates = empty_contiguous({sizes.batch, width}, steps.gates);
  const Tensor weight = transposed(steps.weight_hh);
  const ForwardRows<Cell, T> rows(steps);
  for (int64_t step = 0; step < sizes.steps; ++step) {
    multiply(steps.message, weight, message_gates);
    run(rows.at(step, data_of<T>(message_gates), mutable_data_of<T>(steps.message)));
  }
}

// The output of all steps, the states after the last one, and what is kept for the gradient: the gates, of
// all steps before their activation, if a cell needs them apart those of the messages too, and the states
// after each step, (states, steps, batch, units). If nothing is to be kept those have no steps, and a device
// may run a piece of the sequence after the other, so that the gates of a piece stay in its caches.
template <typename Cell, typename Run>
std::vector<Tensor> forward(const Run& run, Given given, const std::optional<Tensor>& bias,
                            const std::optional<Tensor>& message_bias, bool keep) {
  const Sizes sizes = check_given<Cell>(given);
  const int64_t width = Cell::kGates * sizes.units;
  check_beside_input(given.input, bias, "bias", {width});
  check_beside_input(given.input, message_bias, "message_bias", {width});
  const ScalarType dtype = given.input.scalar_type();
  return dispatch_computed(given.input, [&]<typename T>(Tag<T>) -> std::vector<Tensor> {
    const WithoutAutograd scope;
    const ScalarType computed = kDtypeOf<T>;
    const Tensor& like = given.input;
    const auto empty = [&](std::initializer_list<int64_t> shape) {
      return empty_contiguous(shape, like, code_of(computed));
    };
    const int64_t piece =
        keep ? sizes.steps : run.steps_of_piece(sizes.steps, sizes.batch, width * int64_t{sizeof(T)});
    // Where a piece is all, a device may rely on a place for the states of each step.
    const int64_t planes = piece < sizes.steps ? 1 : sizes.steps;

    const Tensor input = to_contiguous(given.input), weight_ih = to_contiguous(given.weight_ih);
    std::optional<Tensor> own_bias;
    if (bias.has_value()) own_bias = converted(*bias, computed);
    Tensor gates = empty({piece, sizes.batch, width}),
           output = empty({sizes.steps, sizes.batch, sizes.units});
    ForwardSteps steps = {sizes,
                          given.reverse,
                          dtype,
                          converted(given.weight_hh, computed),
                          gates,
                          std::nullopt,
                          empty({Cell::kGatesApart ? planes : 0, sizes.batch, width}),
                          copied_or_zeros(message_bias, {width}, like, computed),
                          empty({sizes.batch, sizes.units}),
                          converted(given.initial, computed),
                          converted(given.parameters, computed),
                          empty({Cell::kStates, planes, sizes.batch, sizes.units}),
                          output,
                          std::nullopt};
    first_message<Cell>(run, pointers_to<T>(steps.initial), sizes, mutable_data_of<T>(steps.message));
    for (int64_t done = 0; done < sizes.steps; done += piece) {
      const int64_t count = std::min(piece, sizes.steps - done);
      const int64_t first = given.reverse ? sizes.steps - done - count : done;
      steps.sizes.steps = count;
      steps.gates = narrowed(gates, 0, count);
      steps.output = narrowed(output, first, count);
      Tensor gate_rows = as_matrix(steps.gates);
      const bool has_bias =
          run.multiply_inputs(as_matrix(narrowed(input, first, count)), weight_ih, own_bias, gate_rows);
      steps.bias = has_bias ? std::nullopt : own_bias;
      if (!run.template at_once<Cell, T>(steps)) step_by_step<Cell, T>(run, steps);
      if (planes == 1) {
        for (int state = 0; state < Cell::kStates; ++state) {
          steps.initial[state] = plane_of(steps.states, state, 0);
        }
      }
    }

    std::vector<Tensor> results = {converted(output, dtype)};
    const int64_t last = given.reverse ? 0 : planes - 1;
    for (int state = 0; state < Cell::kStates; ++state) {
      Tensor after = empty_contiguous({sizes.batch, sizes.units}, like);
      torch::stable::copy_(after, plane_of(steps.states, state, last));
      results.push_back(after);
    }
    const int64_t kept = keep ? sizes.steps : 0;
    results.push_back(keep ? gates : empty({kept, sizes.batch, width}));
    if constexpr (Cell::kGatesApart) {
      results.push_back(keep ? steps.message_gates : empty({kept, sizes.batch, width}));
    }
    results.push_back(keep ? steps.states : empty({Cell::kStates, kept, sizes.batch, sizes.units}));
    return results;
  });
}

// The tensors that the forward pass kept, the gradients of its results, and which gradients are wanted.
struct Backward {
  Tensor gates;                               // (steps, batch, gates * units)
  std::optional<Tensor> message_gates;        // likewise, if the gates are apart
  Tensor states;                              // (states, steps, batch, units)
  std::optional<Tensor> output_grad;          // (steps, batch, units)
  std::vector<std::optional<Tensor>> finals;  // (batch, units) each, of the states after the last step
  bool of_input;
  bool of_weight_ih;
  bool of_weight_hh;
  bool of_bias;
};

template <typename Cell>
void check_backward(const Given& given, const Backward& pass, const Sizes& sizes) {
  const int64_t width = Cell::kGates * sizes.units;
  check_kept(given.input, pass.gates, "gates", {sizes.steps, sizes.batch, width});
  if (pass.message_gates.has_value()) {
    check_kept(given.input, *pass.message_gates, "message_gates", {sizes.steps, sizes.batch, width});
  }
  check_kept(given.input, pass.states, "states", {Cell::kStates, sizes.steps, sizes.batch, sizes.units});
  check_beside_input(given.input, pass.output_grad, "output_grad", {sizes.steps, sizes.batch, sizes.units});
  for (const std::optional<Tensor>& each : pass.finals) {
    check_beside_input(given.input, each, "the gradient of a final state", {sizes.batch, sizes.units});
  }
}

// The steps of a sequence back. Tensors are contiguous, and of the type that is computed in.
struct BackwardSteps {
  Sizes sizes;
  bool reverse;
  ScalarType dtype;                   // of the call
  Tensor weight_hh;                   // (gates * units, units)
  Tensor gates;                       // (steps, batch, gates * units)
  Tensor message_gates;               // likewise, if the gates are apart
  Tensor states;                      // (states, steps, batch, units)
  std::optional<Tensor> output_grad;  // (steps, batch, units)
  std::vector<Tensor> initial;        // (batch, units) each
  std::vector<Tensor> parameters;     // (units) each
  // Factors that are multiplied at the end, a row for each step and row of the batch: the gradients of gates,
  // those of the messages' gates, which are the same unless the gates are apart, and what each step was told.
  std::optional<Factor> gates_grad;
  std::optional<Factor> message_gates_grad;
  std::optional<Factor> messages;
  // The sums of both gradients of gates over the steps, (batch, gates * units), if they were made on the way.
  std::optional<Tensor> bias_sums;
  std::optional<Tensor> message_bias_sums;
  Tensor message_grad;              // (batch, units): zeros; becomes that of the first message
  std::vector<Tensor> state_grads;  // (batch, units) each: of the last states; become those of the first
  std::vector<Tensor> sums;         // (batch, units) each: zeros; become the gradients of the parameters
};

// Keeps what a pass back leaves for the products at the end, and where the numbers of each step lie.
template <typename Cell, typename T>
class BackwardRows {
 public:
  explicit BackwardRows(BackwardSteps& steps)
      : sizes_(steps.sizes),
        reverse_(steps.reverse),
        gates_grad_(of_steps(steps, Cell::kGates)),
        message_gates_grad_(Cell::kGatesApart ? of_steps(steps, Cell::kGates) : gates_grad_),
        messages_(of_steps(steps, 1)),
        output_grad_(steps.output_grad.has_value() ? *steps.output_grad
                                                   : copied_or_zeros(std::nullopt, {sizes_.units},
                                                                     steps.gates, steps.gates.scalar_type())),
        output_stride_(steps.output_grad.has_value() ? sizes_.units : 0),
        written_{mutable_data_of<T>(gates_grad_), mutable_data_of<T>(message_gates_grad_),
                 mutable_data_of<T>(messages_)},
        output_grad_data_(data_of<T>(output_grad_)),
        gates_(data_of<T>(steps.gates)),
        message_gates_(data_of<T>(steps.message_gates)),
        states_(data_of<T>(steps.states)),
        initial_(pointers_to<T>(steps.initial)),
        parameters_(pointers_to<T>(steps.parameters)) {
    for (Tensor& each : steps.state_grads) state_grads_.push_back(mutable_data_of<T>(each));
    for (Tensor& each : steps.sums) sums_.push_back(mutable_data_of<T>(each));
  }

  // The rows of a step, in the order of the recurrence. `message_grad` (batch, units) is the
  // gradient of what the step told the next one.
  Step<typename Cell::Backward, T> at(int64_t step, const T* message_grad) const {
    const int64_t t = time(step);
    const int64_t place = t * sizes_.batch * Cell::kGates * sizes_.units;
    const int64_t state_size = sizes_.batch * sizes_.units;
    Rows<typename Cell::Backward, T> rows(sizes_.batch, sizes_.units);
    rows.read_parts(gates_ + place, Cell::kGates);
    if constexpr (Cell::kGatesApart) rows.read_parts(message_gates_ + place, Cell::kGates);
    for (int state = 0; state < Cell::kStates; ++state) {
      const int64_t before = state * sizes_.steps + Sizes::before(t, reverse_);
      rows.read(step == 0 ? initial_[state] : states_ + before * state_size);
    }
    for (const T* each : parameters_) rows.read(each, 0);
    for (const T* each : state_grads_) rows.read(each);
    rows.read(message_grad);
    rows.read(output_grad_data_ + t * sizes_.batch * output_stride_, output_stride_);
    for (const T* each : sums_) rows.read(each);
    rows.write_parts(written_.gates_grad + place, Cell::kGates);
    if constexpr (Cell::kGatesApart) rows.write_parts(written_.message_gates_grad + place, Cell::kGates);
    for (T* each : state_grads_) rows.write(each);
    for (T* each : sums_) rows.write(each);
    rows.write(written_.messages + t * state_size);
    return rows.step();
  }

  int64_t time(int64_t step) const { return reverse_ ? sizes_.steps - 1 - step : step; }

  // The gradients of the gates that messages give, of all steps, or of the time at which a step is.
  const Tensor& message_gates_grad() const { return message_gates_grad_; }
  const T* message_gates_grad(int64_t step) const {
    return written_.message_gates_grad + time(step) * sizes_.batch * Cell::kGates * sizes_.units;
  }

  void leave(BackwardSteps& steps) const {
    steps.gates_grad = Factor{as_matrix(gates_grad_)};
    steps.message_gates_grad = Factor{as_matrix(message_gates_grad_)};
    steps.messages = Factor{as_matrix(messages_)};
  }

 private:
  static Tensor of_steps(const BackwardSteps& steps, int64_t parts) {
    return empty_contiguous({steps.sizes.steps, steps.sizes.batch, parts * steps.sizes.units}, steps.gates);
  }

  Sizes sizes_;
  bool reverse_;
  Tensor gates_grad_;
  Tensor message_gates_grad_;
  Tensor messages_;
  // One row of zeros for all rows and steps if there is no gradient of the output.
  Tensor output_grad_;
  int64_t output_stride_;
  struct Written {
    T* gates_grad;
    T* message_gates_grad;
    T* messages;
  } written_;
  const T* output_grad_data_;
  const T* gates_;
  const T* message_gates_;
  const T* states_;
  std::vector<const T*> initial_;
  std::vector<const T*> parameters_;
  std::vector<T*> state_grads_;
  std::vector<T*> sums_;
};

// The steps as a pass over the units and a product each.
template <typename Cell, typename T, typename Run>
void step_by_step(const Run& run, BackwardSteps& steps) {
  BackwardRows<Cell, T> rows(steps);
  for (int64_t step = steps.sizes.steps - 1; step >= 0; --step) {
    run(rows.at(step, data_of<T>(steps.message_grad)));
    multiply(torch::stable::select(rows.message_gates_grad(), 0, rows.time(step)), steps.weight_hh,
             steps.message_grad);
  }
  rows.leave(steps);
}

// The gradients of the input, of weight_ih, weight_hh and the bias, if the gates are apart of the messages'
// bias, of the numbers of each unit, and of the initial states. What is not wanted has no elements.
template <typename Cell, typename Run>
std::vector<Tensor> backward(const Run& run, Given given, const Backward& pass) {
  const Sizes sizes = check_given<Cell>(given);
  const ScalarType dtype = given.input.scalar_type();
  return dispatch_computed(given.input, [&]<typename T>(Tag<T>) -> std::vector<Tensor> {
    const WithoutAutograd scope;
    const ScalarType computed = kDtypeOf<T>;
    const Tensor& like = given.input;
    check_backward<Cell>(given, pass, sizes);
    const auto empty = [&](std::initializer_list<int64_t> shape) {
      return empty_contiguous(shape, like, code_of(computed));
    };
    const auto of_states = [&](const std::optional<Tensor>& tensor) {
      return copied_or_zeros(tensor, {sizes.batch, sizes.units}, like, computed);
    };

    const Tensor gates = converted(pass.gates, computed);
    BackwardSteps steps = {sizes,
                           given.reverse,
                           dtype,
                           converted(given.weight_hh, computed),
                           gates,
                           Cell::kGatesApart ? converted(*pass.message_gates, computed) : gates,
                           converted(pass.states, computed),
                           std::nullopt,
                           converted(given.initial, computed),
                           converted(given.parameters, computed),
                           std::nullopt,
                           std::nullopt,
                           std::nullopt,
                           std::nullopt,
                           std::nullopt,
                           of_states(std::nullopt),
                           {},
                           {}};
    if (pass.output_grad.has_value()) steps.output_grad = converted(*pass.output_grad, computed);
    for (const std::optional<Tensor>& each : pass.finals) steps.state_grads.push_back(of_states(each));
    for (int i = 0; i < Cell::kParameters; ++i) steps.sums.push_back(of_states(std::nullopt));
    if (!run.template at_once<Cell, T>(steps)) step_by_step<Cell, T>(run, steps);

    Rows<typename Cell::MessageBackward, T> rows(sizes.batch, sizes.units);
    for (const Tensor& state : steps.initial) rows.read(data_of<T>(state));
    for (const Tensor& each : steps.state_grads) rows.read(data_of<T>(each));
    rows.read(data_of<T>(steps.message_grad));
    for (const Tensor& each : steps.state_grads) rows.write(mutable_data_of<T>(each));
    run(rows.step());

    const Factor &grads = *steps.gates_grad, &message_grads = *steps.message_gates_grad;
    const auto product = [&](const Factor& left, const Factor& right) {
      Tensor result = empty({left.matrix.size(0), right.matrix.size(1)});
      run.multiply_factors(left, right, result);
      return converted(result, dtype);
    };
    const auto given_factor = [&](const Tensor& matrix) {
      return run.factor_beside(grads, matrix, computed);
    };
    const auto bias_grad = [&](const Factor& all, const std::optional<Tensor>& sums) {
      return converted(column_sums(sums.has_value() ? *sums : all.matrix), dtype);
    };
    std::vector<Tensor> results(4, nothing_like(like));
    if (pass.of_input) {
      results[0] = torch::stable::view(product(grads, given_factor(to_contiguous(given.weight_ih))),
                                       {sizes.steps, sizes.batch, sizes.features});
    }
    if (pass.of_weight_ih) {
      results[1] = product(grads.transposed(), given_factor(as_matrix(to_contiguous(given.input))));
    }
    if (pass.of_weight_hh) {
      results[2] = product(message_grads.transposed(), *steps.messages);
    }
    if (pass.of_bias) results[3] = bias_grad(grads, steps.bias_sums);
    if constexpr (Cell::kGatesApart) {
      results.push_back(pass.of_bias ? bias_grad(message_grads, steps.message_bias_sums)
                                     : nothing_like(like));
    }
    for (const Tensor& each : steps.sums) results.push_back(converted(column_sums(each), dtype));
    for (const Tensor& each : steps.state_grads) results.push_back(converted(each, dtype));
    return results;
  });
}

}  // namespace torchgraft::recurrence
