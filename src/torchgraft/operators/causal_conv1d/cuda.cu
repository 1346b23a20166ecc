// causal_conv1d, its gradient, and a step of decoding on CUDA: host functions, the last sum of weight and
// bias gradients, registration.
//
// Widths of 2 to 4 have kernels by how the input lies in memory, in cuda/channels_first.cu and
// cuda/channels_last.cu; cuda/wide.cu computes other widths, and cuda/any.cu packed sequences. Backward,
// blocks leave their sums for the gradients of weight and bias, which are added up here in a fixed order: the
// bits are the same at each run.

#include <torchgraft/registration.h>

#include "cuda/kernels.cuh"

namespace torchgraft::causal_conv1d {
namespace {

constexpr int kColumns = 32;
constexpr int kTurns = 16;

// A thread adds up every sixteenth part of one element of a gradient, and the first of these their sums. The
// gradients may have another dtype than the tensors, W.
template <typename A, typename W>
__global__ void __launch_bounds__(kColumns* kTurns)
    sum_partials(const A* __restrict__ partials, int64_t parts, int64_t columns, int width,
                 W* __restrict__ weight_grad, W* __restrict__ bias_grad) {
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
    weight_grad[channel * width + tap] = static_cast<W>(sum);
  } else {
    bias_grad[channel] = static_cast<W>(sum);
  }
}

// Whether the kernels of one layout compute a call.
template <typename Call>
bool has_own_kernel(const Call& call) {
  return call.sizes.width >= 2 && call.sizes.width <= 4 && !call.packing.is_there();
}

std::tuple<Tensor, Tensor> forward_cuda(Tensor input, Tensor weight, std::optional<Tensor> bias,
                                        std::optional<Tensor> initial_state, Sequences sequences, bool silu) {
  const Launch scope(input);
  return forward(input, weight, bias, initial_state, sequences, silu,
                 [&]<typename T>(const Forward<T>& call) {
                   if (!has_own_kernel(call)) return forward_any(call, scope.stream());
                   call.sizes.channels_last ? forward_channels_last(call, scope.stream())
                                            : forward_channels_first(call, scope.stream());
                 });
}

template <typename T>
Partials sums_of(const Backward<T>& call, const Tensor& like, cudaStream_t stream) {
  if (!has_own_kernel(call)) return backward_any(call, like, stream);
  return call.sizes.channels_last ? backward_channels_last(call, like, stream)
                                  : backward_channels_first(call, like, stream);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward_cuda(Tensor output_grad,
                                                         std::optional<Tensor> final_state_grad, Tensor input,
                                                         Tensor weight, std::optional<Tensor> bias,
                                                         std::optional<Tensor> initial_state,
                                                         Sequences sequences, bool silu,
                                                         std::optional<ScalarType> dtype) {
  const Launch scope(input);
  return backward(
      output_grad, final_state_grad, input, weight, bias, initial_state, sequences, silu, dtype,
      [&]<typename T>(const Backward<T>& call, const Tensor& weight_grad, const Tensor& bias_grad) {
        using A = accumulate_t<T>;
        const Partials partials = sums_of(call, input, scope.stream());
        const int width = static_cast<int>(call.sizes.width);
        const int64_t columns = call.sizes.channels * (width + 1);
        const unsigned blocks = grid_of(ceil_divide(columns, kColumns), "causal_conv1d_backward");
        dispatch_floating(weight_grad.scalar_type(), "causal_conv1d_backward", [&]<typename W>(Tag<W>) {
          sum_partials<A, W><<<blocks, kColumns * kTurns, 0, scope.stream()>>>(
              data_of<A>(partials.memory), partials.parts, columns, width, mutable_data_of<W>(weight_grad),
              mutable_data_of<W>(bias_grad));
        });
        check_launch("causal_conv1d_backward");
      });
}

std::tuple<Tensor, Tensor> causal_conv1d_cuda(Tensor input, Tensor weight, std::optional<Tensor> bias,
                                              std::optional<Tensor> initial_state,
                                              std::optional<Tensor> seq_idx, bool silu) {
  return forward_cuda(input, weight, bias, initial_state, {seq_idx, std::nullopt}, silu);
}

std::tuple<Tensor, Tensor> causal_conv1d_packed_cuda(Tensor input, Tensor weight, std::optional<Tensor> bias,
                                                     std::optional<Tensor> initial_state, Tensor cu_seqlens,
                                                     bool silu) {
  return forward_cuda(input, weight, bias, initial_state, {std::nullopt, cu_seqlens}, silu);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> causal_conv1d_backward_cuda(
    Tensor output_grad, std::optional<Tensor> final_state_grad, Tensor input, Tensor weight,
    std::optional<Tensor> bias, std::optional<Tensor> initial_state, std::optional<Tensor> seq_idx, bool silu,
    std::optional<ScalarType> dtype) {
  return backward_cuda(output_grad, final_state_grad, input, weight, bias, initial_state,
                       {seq_idx, std::nullopt}, silu, dtype);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> causal_conv1d_packed_backward_cuda(
    Tensor output_grad, std::optional<Tensor> final_state_grad, Tensor input, Tensor weight,
    std::optional<Tensor> bias, std::optional<Tensor> initial_state, Tensor cu_seqlens, bool silu,
    std::optional<ScalarType> dtype) {
  return backward_cuda(output_grad, final_state_grad, input, weight, bias, initial_state,
                       {std::nullopt, cu_seqlens}, silu, dtype);
}

Tensor causal_conv1d_update_cuda(Tensor input, Tensor state, Tensor weight, std::optional<Tensor> bias,
                                 std::optional<Tensor> cache_seqlens, std::optional<Tensor> state_indices,
                                 bool silu) {
  const Launch scope(input);
  return update(input, state, weight, bias, cache_seqlens, state_indices, silu,
                [&]<typename T>(const Update<T>& call) { run_update(call, scope.stream()); });
}

}  // namespace

TORCHGRAFT_KERNEL(torchgraft, CUDA, causal_conv1d, causal_conv1d_cuda)
TORCHGRAFT_KERNEL(torchgraft, CUDA, causal_conv1d_backward, causal_conv1d_backward_cuda)
TORCHGRAFT_KERNEL(torchgraft, CUDA, causal_conv1d_packed, causal_conv1d_packed_cuda)
TORCHGRAFT_KERNEL(torchgraft, CUDA, causal_conv1d_packed_backward, causal_conv1d_packed_backward_cuda)
TORCHGRAFT_KERNEL(torchgraft, CUDA, causal_conv1d_update, causal_conv1d_update_cuda)

}  // namespace torchgraft::causal_conv1d
