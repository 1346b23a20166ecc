// The recurrence of a whole sequence back, step by step, as forward.cu:
//
//     gradients of gates -> halves of them (2 batch, 3 units) @ weight_hh -> gradients of h
//
// The product has few results, each a sum of many. Where rows are few it is made in six parts, one for each
// gate and half of the units, which the kernel adds up too: of 64 rows and 2048 units the parts take 8 us,
// where a product that PyTorch's library splits and adds up takes 12.5.
//
// Halves are of bfloat16 with weights of bfloat16, or else of float16, to which weights of float are
// converted, each column multiplied by a power of two. Halves of float16 are multiplied by a power of two for
// the largest gradient in a row's range, since gradients may have any size: so a block has all of a range,
// and above 2048 units of it reads a second time what it wrote of the gradients of gates.
//
// The kernel moves 60 bytes a unit and row: one round of loads, a search for the largest, and a round of
// stores. With 64 rows of 2048 units 15 us a step were predicted, and 16 measured (docs/lltm.md).

#include "step.cuh"

namespace torchgraft::lltm::cuda {
namespace {

// Units of a row that a thread has in flight, going back.
constexpr int kInFlight = 2;
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

// What is multiplied going back.
template <typename T>
using BackwardElement = std::conditional_t<std::is_same_v<T, BFloat16>, BFloat16, Half>;

template <typename Element>
using StepsBackward = Steps<BackwardPass, Element>;

__device__ __forceinline__ int64_t place_back(const BackwardPass& pass, int64_t step, int64_t row) {
  return (pass.reverse ? step : pass.steps - 1 - step) * pass.batch + row;
}

// What the halves of a row's range are to be divided by after so many steps back. A block reads those of the
// step before while another one writes those of its own.
template <typename Product, typename Element>
__device__ __forceinline__ float& row_scale(const StepsBackward<Element>& steps, int64_t step, int64_t range,
                                            int64_t row) {
  return steps.row_scales[(step % 2 * Product::kRanges + range) * steps.pass.batch + row];
}

// The gradient of a row's h before so many steps back.
template <typename T, typename Product>
__device__ __forceinline__ float summed_h_grad(const StepsBackward<BackwardElement<T>>& steps, int64_t step,
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

// A block's range of a row, and the places of a thread in it.
template <typename Product, typename Element>
struct BackwardRange {
  const StepsBackward<Element>& steps;
  const int64_t row = blockIdx.x;
  const int64_t first = blockIdx.y * (steps.padded / Product::kRanges);
  const int64_t end = min(first + steps.padded / Product::kRanges, steps.pass.units);
  Element* const high = steps.halves + row * 3 * steps.padded;
  Element* const low = high + steps.pass.batch * 3 * steps.padded;

  __device__ __forceinline__ int64_t turns() const {
    return ceil_divide(end - first, int64_t{kInFlight} * blockDim.x);
  }
  __device__ __forceinline__ int64_t unit_of(int64_t turn, int i) const {
    return first + (turn * kInFlight + i) * blockDim.x + threadIdx.x;
  }
  __device__ __forceinline__ void store_halves(int gate, int64_t unit, float value) const {
    const Split<Element> split(value);
    high[gate * steps.padded + unit] = split.high;
    low[gate * steps.padded + unit] = split.low;
  }

  // Stores the halves of the gradients of gates, times a factor. Registers still hold what the last turn
  // found.
  __device__ __forceinline__ void store_scaled(float (&values)[kInFlight][3], const float* gates_grad,
                                               float factor) const {
    for (int64_t turn = turns() - 1; turn >= 0; --turn) {
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int64_t unit = unit_of(turn, i);
#pragma unroll
        for (int g = 0; g < 3; ++g) {
          if (turn < turns() - 1) values[i][g] = gates_grad[g * steps.pass.units + unit];
        }
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int64_t unit = unit_of(turn, i);
#pragma unroll
        for (int g = 0; g < 3; ++g) {
          if (unit < end) store_halves(g, unit, values[i][g] * factor);
        }
      }
    }
  }
};

// A block a range of a row; T is what is given.
template <typename T, typename Product>
__global__ void __launch_bounds__(Product::kMostThreads)
    steps_backward(StepsBackward<BackwardElement<T>> steps, int64_t step) {
  using Element = BackwardElement<T>;
  const BackwardPass& pass = steps.pass;
  const int64_t units = pass.units;
  const BackwardRange<Product, Element> range = {steps};
  const int64_t row = range.row, end = range.end;
  const int64_t place = place_back(pass, step, row);
  const float* const activations = pass.activations + place * 3 * units;
  const float* const cells = pass.cells + place * units;
  float* const gates_grad = pass.gates_grad + place * 3 * units;
  float* const c_grad = pass.c_grad + row * units;

  float values[kInFlight][3];
  float largest = 0.0f;
  for (int64_t turn = 0; turn < range.turns(); ++turn) {
    float cs[kInFlight];
    float h_grads[kInFlight];
    float output_grads[kInFlight];
    float c_grads[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int64_t unit = range.unit_of(turn, i);
      if (unit >= end) continue;
#pragma unroll
      for (int g = 0; g < 3; ++g) values[i][g] = activations[g * units + unit];
      cs[i] = cells[unit];
      output_grads[i] =
          pass.output_grad ? static_cast<float>(pass.output_grad.as<T>()[place * units + unit]) : 0.0f;
    }
    if (turn == 0) wait_for_kernels_before();
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int64_t unit = range.unit_of(turn, i);
      if (unit >= end) continue;
      h_grads[i] = summed_h_grad<T, Product>(steps, step, row, unit);
      c_grads[i] = c_grad[unit];
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int64_t unit = range.unit_of(turn, i);
      if (unit >= end) continue;
      const float h_grad = h_grads[i] + output_grads[i];
      step_back(values[i][0], values[i][1], values[i][2], cs[i], h_grad, c_grads[i]);
      c_grad[unit] = c_grads[i];
#pragma unroll
      for (int g = 0; g < 3; ++g) {
        gates_grad[g * units + unit] = values[i][g];
        largest = fmaxf(largest, finite_magnitude(values[i][g]));
        if constexpr (std::is_same_v<Element, BFloat16>) range.store_halves(g, unit, values[i][g]);
      }
    }
  }
  if constexpr (!std::is_same_v<Element, BFloat16>) {
    const float factor = power_to_fill_half(largest_of_block(largest));
    if (threadIdx.x == 0) row_scale<Product>(steps, step + 1, blockIdx.y, row) = 1.0f / factor;
    range.store_scaled(values, gates_grad, factor);
  }
}

// A thread a unit: the gradient of the first h.
template <typename T, typename Product>
__global__ void __launch_bounds__(kThreads) steps_backward_end(StepsBackward<BackwardElement<T>> steps) {
  const BackwardPass& pass = steps.pass;
  const int64_t row = blockIdx.x;
  const int64_t unit = int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
  if (unit >= pass.units) return;
  pass.h_grad[row * pass.units + unit] = summed_h_grad<T, Product>(steps, pass.steps, row, unit);
}

template <typename T, typename Product>
void launch_product(BackwardTensors& tensors, const MmaWeight& weight, const Tensor& matrix) {
  const cudaStream_t stream = tensors.stream;
  const BackwardPass pass(tensors);
  using Element = BackwardElement<T>;
  const int64_t rows = 2 * pass.batch;
  const int64_t padded = weight.padded;
  Tensor halves = empty_of({rows, 3 * padded}, dtype_of<Element>(), matrix);
  Tensor sums = empty_of({Product::kCount * rows, padded}, ScalarType::Float, matrix);
  Tensor row_scales = empty_of({2, Product::kRanges, pass.batch}, ScalarType::Float, matrix);
  const StepsBackward<Element> steps = {pass,
                                        padded,
                                        mutable_data<Element>(halves),
                                        data<float>(sums),
                                        data<float>(weight.scales),
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
void launch(Kernel kernel, BackwardTensors& tensors) {
  using Element = BackwardElement<T>;
  static_assert(InParts::kRanges == 2, "what supports_steps_in_parts asks");
  // Weights of the type that is multiplied need no copy. Of float the columns are scaled, which are rows
  // there.
  constexpr bool is_own = std::is_same_v<T, Element>;
  const MmaWeight weight = is_own ? row_scaled_weight<Element>(tensors.weight_hh, tensors.stream)
                                  : column_scaled_weight<Element>(tensors.weight_hh, tensors.stream);
  const Tensor matrix = is_own ? weight.matrix : transposed(weight.matrix);
  if (kernel == Kernel::steps_in_parts) {
    launch_product<T, InParts>(tensors, weight, matrix);
  } else {
    launch_product<T, Whole>(tensors, weight, matrix);
  }
}

}  // namespace

void launch_steps_backward(const Problem&, Kernel kernel, BackwardTensors& tensors) {
  dispatch_floating(tensors.weight_hh.scalar_type(), "lltm", [&]<typename T>(Tag<T>) {
    if constexpr (!std::is_same_v<T, double>) launch<T>(kernel, tensors);
  });
}

}  // namespace torchgraft::lltm::cuda
