// The recurrence of a whole sequence forward, step by step, with weight_hh in float16, bfloat16 or, where
// tf32 is permitted, float: for weights too large to stay on the chip, or too many rows. A step is one
// product of PyTorch's, on tensor cores, and one kernel:
//
//     halves of h (2 batch, units) @ weight_hh.T -> gates, c, h -> halves of h
//
// Rows of the lower halves of h (split.cuh) lie below those of the higher ones, so that one product reads
// weight_hh once for both. It leaves a sum in float for each, and the kernel adds the two. Halves are of
// float16, 21 bits of h. Weights of bfloat16 and float are converted once a call, each row multiplied by a
// power of two.
//
// The kernel moves 62 bytes a unit and row. With 64 rows of 2048 units 14 us a step were predicted, and 12
// measured (docs/lltm.md).

#include "step.cuh"

namespace torchgraft::lltm::cuda {
namespace {

using StepsForward = Steps<ForwardPass, Half>;

// A thread a unit; T is what is given and asked for.
template <typename T>
__global__ void __launch_bounds__(kThreads) steps_forward(StepsForward steps, int64_t step) {
  const ForwardPass& pass = steps.pass;
  const int64_t units = pass.units;
  const int64_t row = blockIdx.x;
  const int64_t unit = int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
  const bool has_unit = unit < units;
  const int64_t place = (pass.reverse ? pass.steps - 1 - step : step) * pass.batch + row;
  const int64_t place_before = pass.reverse ? place + pass.batch : place - pass.batch;
  float* const activations = pass.activations + place * 3 * units;

  float sums[3] = {};
  float gates[3] = {};
  float c = 0.0f;
  if (has_unit) {
#pragma unroll
    for (int g = 0; g < 3; ++g) {
      gates[g] = activations[g * units + unit];
      if (pass.bias) gates[g] += static_cast<float>(pass.bias.as<T>()[g * units + unit]);
    }
  }
  wait_for_kernels_before();
  if (has_unit) {
    const float* const of_high = steps.sums + row * 3 * steps.padded + unit;
    const float* const of_low = of_high + pass.batch * 3 * steps.padded;
#pragma unroll
    for (int g = 0; g < 3; ++g) {
      sums[g] = of_high[g * steps.padded] + of_low[g * steps.padded];
      if constexpr (!std::is_same_v<T, Half>) sums[g] *= steps.weight_scales[g * steps.padded + unit];
      if (step == 0) sums[g] *= steps.row_scales[row];
    }
    c = step == 0 ? static_cast<float>(pass.c0.as<T>()[row * units + unit])
                  : pass.cells[place_before * units + unit];
  }
  if (!has_unit) return;
#pragma unroll
  for (int g = 0; g < 3; ++g) gates[g] += sums[g];

  const float h = step_forward(gates[0], gates[1], gates[2], c);
#pragma unroll
  for (int g = 0; g < 3; ++g) activations[g * units + unit] = gates[g];
  pass.cells[place * units + unit] = c;
  pass.output.as<T>()[place * units + unit] = static_cast<T>(h);
  const Split<Half> split(h);
  steps.halves[row * steps.padded + unit] = split.high;
  steps.halves[(pass.batch + row) * steps.padded + unit] = split.low;
}

template <typename T>
void launch(ForwardTensors& tensors) {
  const MmaWeight weight = row_scaled_weight<Half>(tensors.weight_hh, tensors.stream);
  const ForwardPass pass(tensors);
  const cudaStream_t stream = tensors.stream;
  const Tensor right = transposed(weight.matrix);
  const int64_t padded = weight.padded;
  Tensor halves = empty_of({2 * pass.batch, padded}, ScalarType::Half, weight.matrix);
  Tensor sums = empty_of({2 * pass.batch, 3 * padded}, ScalarType::Float, weight.matrix);
  Tensor row_scales = empty_of({pass.batch}, ScalarType::Float, weight.matrix);
  const StepsForward steps = {pass,
                              padded,
                              mutable_data<Half>(halves),
                              data<float>(sums),
                              data<float>(weight.scales),
                              mutable_data<float>(row_scales)};
  split_rows(pass.h0, pass.batch, pass.units, steps.halves, steps.halves + pass.batch * padded,
             steps.row_scales, padded, stream);
  const unsigned threads = threads_for(pass.units, kThreads);
  const dim3 grid = grid_of_units(pass.batch, pass.units, threads);
  for (int64_t step = 0; step < pass.steps; ++step) {
    multiply(halves, right, sums);
    launch_step(steps_forward<T>, grid, threads, stream, steps, step);
  }
}

}  // namespace

void launch_steps_forward(const Problem&, Kernel, ForwardTensors& tensors) {
  dispatch_floating(tensors.weight_hh.scalar_type(), "lltm", [&]<typename T>(Tag<T>) {
    if constexpr (!std::is_same_v<T, double>) launch<T>(tensors);
  });
}

}  // namespace torchgraft::lltm::cuda
