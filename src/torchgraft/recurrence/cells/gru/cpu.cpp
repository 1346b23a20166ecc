// clang-format off
// The recurrence torchgraft_recurrences::gru and its gradients, CPU: written by torchgraft from gru_step.
#include <torchgraft/detail/recurrence_cpu.h>

#include <torchgraft/registration.h>

namespace torchgraft_recurrences {

using namespace torchgraft;

namespace {

#include "cell.h"

auto gru_cpu(Tensor input, Tensor weight_ih, Tensor weight_hh, std::optional<Tensor> bias, std::optional<Tensor> message_bias, Tensor initial_h, bool reverse, bool keep) {
  return recurrence::as_tuple<5>(recurrence::forward<gru_cell::Cell>(recurrence::OnCpu(), {input, weight_ih, weight_hh, {}, {initial_h}, reverse}, bias, message_bias, keep));
}

auto gru_grads_cpu(Tensor input, Tensor weight_ih, Tensor weight_hh, Tensor initial_h, Tensor gates, Tensor message_gates, Tensor states, std::optional<Tensor> output_grad, std::optional<Tensor> final_h_grad, bool reverse, bool of_input, bool of_weight_ih, bool of_weight_hh, bool of_bias) {
  return recurrence::as_tuple<6>(recurrence::backward<gru_cell::Cell>(recurrence::OnCpu(), {input, weight_ih, weight_hh, {}, {initial_h}, reverse}, {gates, message_gates, states, output_grad, {final_h_grad}, of_input, of_weight_ih, of_weight_hh, of_bias}));
}

}  // namespace

TORCHGRAFT_KERNEL(torchgraft_recurrences, CPU, gru, gru_cpu)
TORCHGRAFT_KERNEL(torchgraft_recurrences, CPU, gru_grads, gru_grads_cpu)

}  // namespace torchgraft_recurrences
