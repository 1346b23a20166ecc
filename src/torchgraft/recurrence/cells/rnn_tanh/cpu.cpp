// clang-format off
// The recurrence torchgraft_recurrences::rnn_tanh and its gradients, CPU: written by torchgraft from rnn_tanh_step.
#include <torchgraft/detail/recurrence_cpu.h>

#include <torchgraft/registration.h>

namespace torchgraft_recurrences {

using namespace torchgraft;

namespace {

#include "cell.h"

auto rnn_tanh_cpu(Tensor input, Tensor weight_ih, Tensor weight_hh, std::optional<Tensor> bias, Tensor initial_h, bool reverse, bool keep) {
  return recurrence::as_tuple<4>(recurrence::forward<rnn_tanh_cell::Cell>(recurrence::OnCpu(), {input, weight_ih, weight_hh, {}, {initial_h}, reverse}, bias, std::nullopt, keep));
}

auto rnn_tanh_grads_cpu(Tensor input, Tensor weight_ih, Tensor weight_hh, Tensor initial_h, Tensor gates, Tensor states, std::optional<Tensor> output_grad, std::optional<Tensor> final_h_grad, bool reverse, bool of_input, bool of_weight_ih, bool of_weight_hh, bool of_bias) {
  return recurrence::as_tuple<5>(recurrence::backward<rnn_tanh_cell::Cell>(recurrence::OnCpu(), {input, weight_ih, weight_hh, {}, {initial_h}, reverse}, {gates, std::nullopt, states, output_grad, {final_h_grad}, of_input, of_weight_ih, of_weight_hh, of_bias}));
}

}  // namespace

TORCHGRAFT_KERNEL(torchgraft_recurrences, CPU, rnn_tanh, rnn_tanh_cpu)
TORCHGRAFT_KERNEL(torchgraft_recurrences, CPU, rnn_tanh_grads, rnn_tanh_grads_cpu)

}  // namespace torchgraft_recurrences
