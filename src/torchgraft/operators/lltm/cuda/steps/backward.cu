// The recurrence of a whole sequence by steps, with weight_hh in float16, bfloat16 or, where tf32 is
// permitted, float, and too large for one kernel to hold on chip, or with too many rows: a step is one
// product of PyTorch's, on tensor cores, and one elementwise kernel.
//
// What enters a product is, as in the kernels on chip, two halves of each number (split.cuh):
// rows of the higher halves, and below them rows of the lower ones, so that one product reads weight_hh once
// for both. It leaves a sum in float for each, and the elementwise kernel adds the two:
//
//     forward   halves of h (2 batch, units) @ weight_hh.T -> gates, c, h -> halves of h
//     back      gradients of gates -> halves of them (2 batch, 3 units) @ weight_hh -> gradients of h
//
// Going back a product has few results, each a sum of many: of few rows it is made in six parts, of each gate
// and of two ranges of units, which are sums for the elementwise kernel to add too. (Of 64 rows and 2048
// units the parts take 8 us, where a product that PyTorch's library splits and adds up takes 12.5.)
//
// Forward halves are of float16, 22 bits of h, and weights of bfloat16 and float are converted once a call,
// each row multiplied by a power of two: what that leaves out of a row is below 2**-39 of its largest number.
// Going back they are of bfloat16 with weights of that, else of float16, as weights of float become, each
// column multiplied by a power of two. Halves of float16 are of a row's range multiplied by a power of two
// for its largest gradient, since gradients may be of any size: so a block has all of a range, and above 2048
// units of it reads what it wrote of the gradients of gates a second time.
//
// A step reads weight_hh, 6 units**2 bytes, which the 50 MB of an H200's L2 hold up to 2048 units, and makes
// 6 units**2 multiply-adds a row; the elementwise kernel moves 62 bytes a unit and row forward and 60 back.
// With 64 rows of 2048 units that is 25 MB at 5 TB/s, 5 us; 1.6 billion multiply-adds at 800 TFLOP/s, 4 us;
// and 8 MB, 2.5 us. Predicted, with two launches: forward 14 us a step, back 15 us; with 17 rows of 1536
// units 10 us both ways, about what the host takes for a product through PyTorch's dispatcher and a launch.
// Measured: 12 and 16 us, with 17 rows of 1536 units 9 and 12. Back the product takes 8 and 5 of them, and
// the elementwise kernel, which is one round of loads, a search for the largest and a round of stores, 5
// and 4.

#include "../../host.h"
#include "../kernels.h"
#include "../mma_weight.h"
#include "../products/multiply.h"
#include "../split.cuh"
#include "../unit.cuh"

namespace torchgraft::lltm::cuda {
namespace {

// Units of a row that a thread has under way at once, going back.
constexpr int kAbreast = 2;
// Threads of a block for so many units, such that all its turns but for a warp's rest are full.
unsigned threads_for(int64_t units, int64_t most) {
  return static_cast<unsigned>(ceil_divide<int64_t>(ceil_divide(units, ceil_divide(units, most)), 32) * 32);
}

// What a step of a pass works with beside its results.
template <typename Pass, typename Factor>
struct Steps {
  Pass pass;
  int64_t padded;              // units and what fills them up
  Factor* halves;              // (2 batch, padded) of h or (2 batch, 3 padded) of gradients of gates
  const float* sums;           // (2 batch, 3 padded) or (parts, 2 batch, padded): the product with those
  const float* weight_scales;  // (3 padded) or (padded), or null where weight_hh is as it was
  float* row_scales;           // (batch) of h0, or (2, ranges, batch): of gradients of gates, by turns
};

// How the product of a step back is made: whole, or each gate's apart, and of each the parts of some ranges
// of units. A range has a block, and as many threads as hold what they find in registers.
template <int kOfRanges, int kOfGates, int kThreadsAtMost>
struct Parts {
  static constexpr int kRanges = kOfRanges;
  static constexpr int kGates = kOfGates;
  static constexpr int kCount = kRanges * kGates;
  static constexpr int kMostThreads = kThreadsAtMost;
};
using Whole = Parts<1, 1, 1024>;
using InParts = Parts<2, 3, 512>;

// The kernel of a step, but for the first, is launched while the product before it ends, where the device
// can, and waits here before it reads what a step wrote. (Of 64 rows and 2048 units, forward, a call took 466
// us instead of 528.)
__device__ __forceinline__ void wait_for_kernels_before() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

template <typename S>
void launch_step(void (*kernel)(S, int64_t), dim3 grid, unsigned threads, cudaStream_t stream, const S& steps,
                 int64_t step) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.stream = stream;
  config.attrs = &attribute;
  // A kernel that is compiled for less does not wait there.
  const bool waits = architecture_of(reinterpret_cast<const void*>(kernel)) >= 900;
  config.numAttrs = step > 0 && waits ? 1 : 0;
  cudaLaunchKernelEx(&config, kernel, steps, step);
  check_launch("lltm");
}

// What is multiplied going back.
template <typename T>
using FactorBack = std::conditional_t<std::is_same_v<T, BFloat16>, BFloat16, Half>;

using StepsForward = Steps<ForwardPass, Half>;
template <typename Factor>
using StepsBackward = Steps<BackwardPass, Factor>;

// By a whole warp: the sum of a gate that came out as NaN, from a row's h. An infinite weight times the
// halves of a number may be infinities of both signs, where there is only one, and a lower half of zero none
// at all.
__device__ __noinline__ float multiply_again(Numbers h0, int64_t first_h, const float* cells,
                                             const float* output_gates, Numbers weight, int64_t first_weight,
                                             int64_t units) {
  float sum = 0;
  for (int64_t k = threadIdx.x % 32; k < units; k += 32) {
    const float h = h0 ? h0[first_h + k] : tanh(cells[k]) * output_gates[k];
    sum += h * weight[first_weight + k];
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  return sum;
}

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
#pragma unroll
  for (int g = 0; g < 3; ++g) {
    for (unsigned lost = __ballot_sync(0xffffffffu, isnan(sums[g])); lost != 0; lost &= lost - 1) {
      const int lane = __ffs(static_cast<int>(lost)) - 1;
      const int own_lane = static_cast<int>(threadIdx.x) % 32;
      const int64_t weight = (g * units + unit - own_lane + lane) * units;
      const float sum =
          step == 0
              ? multiply_again(pass.h0, row * units, nullptr, nullptr, pass.weight, weight, units)
              : multiply_again(Numbers(), 0, pass.cells + place_before * units,
                               pass.activations + (place_before * 3 + 1) * units, pass.weight, weight, units);
      if (own_lane == lane) sums[g] = sum;
    }
    gates[g] += sums[g];
  }
  if (!has_unit) return;

  const float h = step_forward(gates[0], gates[1], gates[2], c);
#pragma unroll
  for (int g = 0; g < 3; ++g) activations[g * units + unit] = gates[g];
  pass.cells[place * units + unit] = c;
  pass.output.as<T>()[place * units + unit] = static_cast<T>(h);
  const Split<Half> split(h);
  steps.halves[row * steps.padded + unit] = split.high;
  steps.halves[(pass.batch + row) * steps.padded + unit] = split.low;
}

__device__ __forceinline__ int64_t place_back(const BackwardPass& pass, int64_t step, int64_t row) {
  return (pass.reverse ? step : pass.steps - 1 - step) * pass.batch + row;
}

// What the halves of a row's range are to be divided by after so many steps back. A block reads those of the
// step before while another one writes those of its own.
template <typename Product, typename Factor>
__device__ __forceinline__ float& row_scale(const StepsBackward<Factor>& steps, int64_t step, int64_t range,
                                            int64_t row) {
  return steps.row_scales[(step % 2 * Product::kRanges + range) * steps.pass.batch + row];
}

// The gradient of a row's h before so many steps back; NaN where it is to be computed again.
template <typename T, typename Product>
__device__ __forceinline__ float summed_h_grad(const StepsBackward<FactorBack<T>>& steps, int64_t step,
                                               int64_t row, int64_t unit) {
  if (step == 0) return steps.pass.h_grad[row * steps.pass.units + unit];
  const int64_t batch = steps.pass.batch;
  float sum = 0.0f;
#pragma unroll
  for (int range = 0; range < Product::kRanges; ++range) {
    float of_range = 0.0f;
#pragma unroll
    for (int gate = 0; gate < Product::kGates; ++gate) {
      const int64_t part = gate * Product::kRanges + range;
      const float* const of_high = steps.sums + (part * 2 * batch + row) * steps.padded + unit;
      of_range += of_high[0] + of_high[batch * steps.padded];
    }
    sum += std::is_same_v<T, BFloat16> ? of_range : of_range * row_scale<Product>(steps, step, range, row);
  }
  return std::is_same_v<T, float> ? sum * steps.weight_scales[unit] : sum;
}

// The same from the gradients of gates in float: see the other multiply_again.
__device__ __noinline__ float multiply_again(const float* gates_grad, Numbers weight, int64_t unit,
                                             int64_t units) {
  float sum = 0;
#pragma unroll 4
  for (int64_t k = 0; k < 3 * units; ++k) sum += gates_grad[k] * weight[k * units + unit];
  return sum;
}

__device__ __forceinline__ float repaired(float h_grad, const BackwardPass& pass, int64_t step, int64_t row,
                                          int64_t unit) {
  if (step == 0 || !isnan(h_grad)) return h_grad;
  const float* const gates_grad = pass.gates_grad + place_back(pass, step - 1, row) * 3 * pass.units;
  return multiply_again(gates_grad, pass.weight, unit, pass.units);
}

// A block a range of a row; T is what is given.
template <typename T, typename Product>
__global__ void __launch_bounds__(Product::kMostThreads)
    steps_backward(StepsBackward<FactorBack<T>> steps, int64_t step) {
  using Factor = FactorBack<T>;
  const BackwardPass& pass = steps.pass;
  const int64_t units = pass.units;
  const int64_t row = blockIdx.x;
  const int64_t first = blockIdx.y * (steps.padded / Product::kRanges);
  const int64_t end = min(first + steps.padded / Product::kRanges, units);
  const int64_t place = place_back(pass, step, row);
  const float* const activations = pass.activations + place * 3 * units;
  const float* const cells = pass.cells + place * units;
  float* const gates_grad = pass.gates_grad + place * 3 * units;
  float* const c_grad = pass.c_grad + row * units;
  Factor* const high = steps.halves + row * 3 * steps.padded;
  Factor* const low = high + pass.batch * 3 * steps.padded;
  const auto put = [&](int gate, int64_t unit, float value) {
    const Split<Factor> split(value);
    high[gate * steps.padded + unit] = split.high;
    low[gate * steps.padded + unit] = split.low;
  };

  const int64_t turns = ceil_divide(end - first, int64_t{kAbreast} * blockDim.x);
  const auto unit_of = [&](int64_t turn, int i) {
    return first + (turn * kAbreast + i) * blockDim.x + threadIdx.x;
  };
  float values[kAbreast][3];
  float largest = 0.0f;
  for (int64_t turn = 0; turn < turns; ++turn) {
    float cs[kAbreast];
    float h_grads[kAbreast];
    float output_grads[kAbreast];
    float c_grads[kAbreast];
#pragma unroll
    for (int i = 0; i < kAbreast; ++i) {
      const int64_t unit = unit_of(turn, i);
      if (unit >= end) continue;
#pragma unroll
      for (int g = 0; g < 3; ++g) values[i][g] = activations[g * units + unit];
      cs[i] = cells[unit];
      output_grads[i] =
          pass.output_grad ? static_cast<float>(pass.output_grad.as<T>()[place * units + unit]) : 0.0f;
    }
    if (turn == 0) wait_for_kernels_before();
#pragma unroll
    for (int i = 0; i < kAbreast; ++i) {
      const int64_t unit = unit_of(turn, i);
      if (unit >= end) continue;
      h_grads[i] = summed_h_grad<T, Product>(steps, step, row, unit);
      c_grads[i] = c_grad[unit];
    }
#pragma unroll
    for (int i = 0; i < kAbreast; ++i) {
      const int64_t unit = unit_of(turn, i);
      if (unit >= end) continue;
      const float h_grad = repaired(h_grads[i], pass, step, row, unit) + output_grads[i];
      step_back(values[i][0], values[i][1], values[i][2], cs[i], h_grad, c_grads[i]);
      c_grad[unit] = c_grads[i];
#pragma unroll
      for (int g = 0; g < 3; ++g) {
        gates_grad[g * units + unit] = values[i][g];
        largest = fmaxf(largest, finite_size(values[i][g]));
        if constexpr (std::is_same_v<Factor, BFloat16>) put(g, unit, values[i][g]);
      }
    }
  }
  if constexpr (!std::is_same_v<Factor, BFloat16>) {
    const float factor = power_to_fill_half(largest_of_block(largest));
    if (threadIdx.x == 0) row_scale<Product>(steps, step + 1, blockIdx.y, row) = 1.0f / factor;
    // Registers still hold what the last turn found.
    for (int64_t turn = turns - 1; turn >= 0; --turn) {
#pragma unroll
      for (int i = 0; i < kAbreast; ++i) {
        const int64_t unit = unit_of(turn, i);
#pragma unroll
        for (int g = 0; g < 3; ++g) {
          if (turn < turns - 1) values[i][g] = gates_grad[g * units + unit];
        }
      }
#pragma unroll
      for (int i = 0; i < kAbreast; ++i) {
        const int64_t unit = unit_of(turn, i);
#pragma unroll
        for (int g = 0; g < 3; ++g) {
          if (unit < end) put(g, unit, values[i][g] * factor);
        }
      }
    }
  }
}

// A thread a unit: the gradient of the first h.
template <typename T, typename Product>
__global__ void __launch_bounds__(kThreads) steps_backward_end(StepsBackward<FactorBack<T>> steps) {
  const BackwardPass& pass = steps.pass;
  const int64_t row = blockIdx.x;
  const int64_t unit = int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
  if (unit >= pass.units) return;
  const float h_grad = summed_h_grad<T, Product>(steps, pass.steps, row, unit);
  pass.h_grad[row * pass.units + unit] = repaired(h_grad, pass, pass.steps, row, unit);
}

// As many threads as units, rows by rows.
dim3 grid_of_units(int64_t rows, int64_t units, unsigned threads) {
  return dim3(grid_of(rows, "lltm"), static_cast<unsigned>(ceil_divide<int64_t>(units, threads)));
}

template <typename T, typename Product>
void launch_in(const BackwardPass& pass, const WeightFactor& factor, const Tensor& matrix,
               cudaStream_t stream) {
  using Factor = FactorBack<T>;
  const int64_t rows = 2 * pass.batch;
  const int64_t padded = factor.padded;
  Tensor halves = empty_of({rows, 3 * padded}, dtype_of<Factor>(), matrix);
  Tensor sums = empty_of({Product::kCount * rows, padded}, ScalarType::Float, matrix);
  Tensor row_scales = empty_of({2, Product::kRanges, pass.batch}, ScalarType::Float, matrix);
  const StepsBackward<Factor> steps = {pass,
                                       padded,
                                       mutable_data<Factor>(halves),
                                       data<float>(sums),
                                       data<float>(factor.scales),
                                       mutable_data<float>(row_scales)};
  if (padded != pass.units) torch::stable::zero_(halves);
  Tensor left = halves;
  Tensor right = matrix;
  if constexpr (Product::kCount > 1) {
    const int64_t share = 3 * padded / Product::kCount;
    left = transposed(torch::stable::view(halves, {rows, Product::kCount, share}));
    right = torch::stable::view(matrix, {Product::kCount, share, padded});
    sums = torch::stable::view(sums, {Product::kCount, rows, padded});
  }
  const unsigned threads = threads_for(padded / Product::kRanges, Product::kMostThreads);
  const dim3 grid(grid_of(pass.batch, "lltm"), Product::kRanges);
  for (int64_t step = 0; step < pass.steps; ++step) {
    launch_step(steps_backward<T, Product>, grid, threads, stream, steps, step);
    multiply(left, right, sums);
  }
  const unsigned threads_of_end = threads_for(pass.units, kThreads);
  steps_backward_end<T, Product>
      <<<grid_of_units(pass.batch, pass.units, threads_of_end), threads_of_end, 0, stream>>>(steps);
  check_launch("lltm");
}

template <typename T>
void launch_of(Kernel kernel, const BackwardPass& pass, const Tensor& weight, cudaStream_t stream) {
  using Factor = FactorBack<T>;
  // Of the type that is multiplied it needs no other one; of float its columns do, which are rows here.
  constexpr bool is_own = std::is_same_v<T, Factor>;
  const WeightFactor factor = is_own ? rows_factor(weight, dtype_of<Factor>(), stream)
                                     : columns_factor(weight, dtype_of<Factor>(), stream);
  const Tensor matrix = is_own ? factor.matrix : transposed(factor.matrix);
  static_assert(InParts::kRanges == 2, "what supports_steps_in_parts asks");
  if (kernel == Kernel::steps_in_parts) {
    launch_in<T, InParts>(pass, factor, matrix, stream);
  } else {
    launch_in<T, Whole>(pass, factor, matrix, stream);
  }
}

template <typename T>
void launch_of(Kernel, const ForwardPass& pass, const Tensor& weight, cudaStream_t stream) {
  const WeightFactor factor = rows_factor(weight, ScalarType::Half, stream);
  const Tensor right = transposed(factor.matrix);
  const int64_t padded = factor.padded;
  Tensor halves = empty_of({2 * pass.batch, padded}, ScalarType::Half, weight);
  Tensor sums = empty_of({2 * pass.batch, 3 * padded}, ScalarType::Float, weight);
  Tensor row_scales = empty_of({pass.batch}, ScalarType::Float, weight);
  const StepsForward steps = {pass,
                              padded,
                              mutable_data<Half>(halves),
                              data<float>(sums),
                              data<float>(factor.scales),
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

template <typename Pass>
void launch(Kernel kernel, const Pass& pass, const Tensor& weight, cudaStream_t stream) {
  if (pass.weight.is_float()) return launch_of<float>(kernel, pass, weight, stream);
  if (pass.weight.is_half()) return launch_of<Half>(kernel, pass, weight, stream);
  launch_of<BFloat16>(kernel, pass, weight, stream);
}

}  // namespace

void launch_steps(Kernel kernel, const ForwardPass& pass, const Tensor& weight, cudaStream_t stream) {
  launch(kernel, pass, weight, stream);
}

void launch_steps(Kernel kernel, const BackwardPass& pass, const Tensor& weight, cudaStream_t stream) {
  launch(kernel, pass, weight, stream);
}

}  // namespace torchgraft::lltm::cuda
