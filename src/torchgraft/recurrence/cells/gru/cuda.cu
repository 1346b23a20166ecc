// clang-format off
// The recurrence torchgraft_recurrences::gru and its gradients, CUDA: written by torchgraft from gru_step.
#include <torchgraft/detail/recurrence.cuh>

#include <torchgraft/registration.h>

namespace torchgraft_recurrences {

using namespace torchgraft;

namespace {

#include "cell.h"

auto gru_cuda(Tensor input, Tensor weight_ih, Tensor weight_hh, std::optional<Tensor> bias, std::optional<Tensor> message_bias, Tensor initial_h, bool reverse, bool keep) {
  return recurrence::as_tuple<5>(recurrence::forward<gru_cell::Cell>(recurrence::OnCuda(input), {input, weight_ih, weight_hh, {}, {initial_h}, reverse}, bias, message_bias, keep));
}

auto gru_grads_cuda(Tensor input, Tensor weight_ih, Tensor weight_hh, Tensor initial_h, Tensor gates, Tensor message_gates, Tensor states, std::optional<Tensor> output_grad, std::optional<Tensor> final_h_grad, bool reverse, bool of_input, bool of_weight_ih, bool of_weight_hh, bool of_bias) {
  return recurrence::as_tuple<6>(recurrence::backward<gru_cell::Cell>(recurrence::OnCuda(input), {input, weight_ih, weight_hh, {}, {initial_h}, reverse}, {gates, message_gates, states, output_grad, {final_h_grad}, of_input, of_weight_ih, of_weight_hh, of_bias}));
}

}  // namespace

TORCHGRAFT_KERNEL(torchgraft_recurrences, CUDA, gru, gru_cuda)
TORCHGRAFT_KERNEL(torchgraft_recurrences, CUDA, gru_grads, gru_grads_cuda)

}  // namespace torchgraft_recurrences
