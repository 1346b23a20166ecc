// causal_conv1d and its gradient on CUDA: host functions, the last sum of weight and bias gradients,
// registration.
//
// The kernels lie in channels_first.cu and channels_last.cu, by how the input lies in memory. Backward, each
// of their blocks leaves its sums for the gradients of weight and bias, which are added up here in a fixed
// order: the bits are the same at each run.

#include <torchgraft/registration.h>

#include "kernels.cuh"

namespace causal_conv1d {
namespace {

constexpr int kColumns = 32;
constexpr int kTurns = 16;

// A thread adds up every sixteenth part of one element of a gradient, and the first of these their sums.
template <typename T>
__global__ void __launch_bounds__(kColumns* kTurns)
    sum_partials(const accumulate_t<T>* __restrict__ partials, int64_t parts, int64_t columns, int width,
                 T* __restrict__ weight_grad, T* __restrict__ bias_grad) {
  using A = accumulate_t<T>;
  __shared__ A of_turns[kTurns][kColumns];
  const int lane = static_cast<int>(threadIdx.x) % kColumns, turn = static_cast<int>(threadIdx.x) / kColumns;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kColumns + lane;
  A sum = 0;
  if (column < columns) {
#pragma unroll 4
    for (int64_t part = turn; part < parts; part += kTurns) sum += partials[part * columns + column];
  }
  of_turns[turn][lane] = sum;
  __syncthreads();
  if (turn > 0 || column >= columns) return;
  for (int other = 1; other < kTurns; ++other) sum += of_turns[other][lane];
  const int64_t channel = column / (width + 1), tap = column % (width + 1);
  if (tap < width) {
    weight_grad[channel * width + tap] = static_cast<T>(sum);
  } else {
    bias_grad[channel] = static_cast<T>(sum);
  }
}

std::tuple<Tensor, Tensor> causal_conv1d_cuda(Tensor input, Tensor weight, std::optional<Tensor> bias,
                                              std::optional<Tensor> initial_state, bool silu) {
  const Launch scope(input);
  return forward(input, weight, bias, initial_state, silu, [&]<typename T>(const Forward<T>& call) {
    call.sizes.channels_last ? forward_channels_last(call, scope.stream())
                             : forward_channels_first(call, scope.stream());
  });
}

std::tuple<Tensor, Tensor, Tensor, Tensor> causal_conv1d_backward_cuda(
    Tensor output_grad, std::optional<Tensor> final_state_grad, Tensor input, Tensor weight,
    std::optional<Tensor> bias, std::optional<Tensor> initial_state, bool silu) {
  const Launch scope(input);
  return backward(output_grad, final_state_grad, input, weight, bias, initial_state, silu,
                  [&]<typename T>(const Backward<T>& call) {
                    const Partials partials = call.sizes.channels_last
                                                  ? backward_channels_last(call, input, scope.stream())
                                                  : backward_channels_first(call, input, scope.stream());
                    const int width = static_cast<int>(call.sizes.width);
                    const int64_t columns = call.sizes.channels * (width + 1);
                    const unsigned blocks = grid_of(ceil_divide(columns, kColumns), "causal_conv1d_backward");
                    sum_partials<T><<<blocks, kColumns * kTurns, 0, scope.stream()>>>(
                        data_of<accumulate_t<T>>(partials.memory), partials.parts, columns, width,
                        call.weight_grad, call.bias_grad);
                    check_launch("causal_conv1d_backward");
                  });
}

}  // namespace

TORCHGRAFT_KERNEL(causal_conv1d, CUDA, causal_conv1d, causal_conv1d_cuda)
TORCHGRAFT_KERNEL(causal_conv1d, CUDA, causal_conv1d_backward, causal_conv1d_backward_cuda)

}  // namespace causal_conv1d
