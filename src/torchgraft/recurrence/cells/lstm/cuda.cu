// clang-format off
// The recurrence torchgraft_recurrences::lstm and its gradients, CUDA: written by torchgraft from lstm_step.
#include <torchgraft/detail/recurrence.cuh>

#include <torchgraft/registration.h>

namespace torchgraft_recurrences {

using namespace torchgraft;

namespace {

#include "cell.h"

auto lstm_cuda(Tensor input, Tensor weight_ih, Tensor weight_hh, std::optional<Tensor> bias, Tensor initial_h, Tensor initial_c, bool reverse, bool keep) {
  return recurrence::as_tuple<5>(recurrence::forward<lstm_cell::Cell>(recurrence::OnCuda(input), {input, weight_ih, weight_hh, {}, {initial_h, initial_c}, reverse}, bias, std::nullopt, keep));
}

auto lstm_grads_cuda(Tensor input, Tensor weight_ih, Tensor weight_hh, Tensor initial_h, Tensor initial_c, Tensor gates, Tensor states, std::optional<Tensor> output_grad, std::optional<Tensor> final_h_grad, std::optional<Tensor> final_c_grad, bool reverse, bool of_input, bool of_weight_ih, bool of_weight_hh, bool of_bias) {
  return recurrence::as_tuple<6>(recurrence::backward<lstm_cell::Cell>(recurrence::OnCuda(input), {input, weight_ih, weight_hh, {}, {initial_h, initial_c}, reverse}, {gates, std::nullopt, states, output_grad, {final_h_grad, final_c_grad}, of_input, of_weight_ih, of_weight_hh, of_bias}));
}

}  // namespace

TORCHGRAFT_KERNEL(torchgraft_recurrences, CUDA, lstm, lstm_cuda)
TORCHGRAFT_KERNEL(torchgraft_recurrences, CUDA, lstm_grads, lstm_grads_cuda)

}  // namespace torchgraft_recurrences
