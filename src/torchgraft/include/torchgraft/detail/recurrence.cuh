// A recurrence on CUDA.
//
// The steps are one kernel in all dtypes but float64 if the weights fit into a cluster
// (recurrence_on_chip_forward.cuh). Otherwise each step is a product of PyTorch's and a kernel in which a
// thread owns one unit of one row: it reads and writes a few numbers a unit, neighbours side by side, so
// memory bounds it, or its launch if it is small.
#pragma once

#include "../cuda.cuh"
#include "recurrence_cuda_math.cuh"

#define TORCHGRAFT_CELL_FUNCTION __device__ __forceinline__
#include "recurrence_passes.h"

#include "recurrence_on_chip.cuh"
#include "recurrence_products.cuh"

namespace torchgraft::recurrence {

inline constexpr int kStepThreads = 256;

template <typename Pass, typename T>
__global__ void __launch_bounds__(kStepThreads) run_units(const Step<Pass, T> step) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kStepThreads + threadIdx.x;
  if (index >= step.rows * step.units) return;
  const int64_t row = index / step.units;
  const int64_t unit = index - row * step.units;
  T read[Pass::kReads], written[Pass::kWrites];
#pragma unroll
  for (int i = 0; i < Pass::kReads; ++i) read[i] = step.read[i].first[row * step.read[i].stride + unit];
  Pass::template unit<CudaMath>(read, written);
#pragma unroll
  for (int i = 0; i < Pass::kWrites; ++i) {
    step.written[i].first[row * step.written[i].stride + unit] = written[i];
  }
}

class OnCuda {
 public:
  explicit OnCuda(const Tensor& tensor) : launch_(tensor) {}

  template <typename Pass, typename T>
  void operator()(const Step<Pass, T>& step) const {
    const int64_t count = step.rows * step.units;
    if (count == 0) return;
    const unsigned blocks = grid_of((count + kStepThreads - 1) / kStepThreads, "a recurrence");
    run_units<<<blocks, kStepThreads, 0, launch_.stream()>>>(step);
    check_launch("a recurrence");
  }

  // result = input @ weight.T, left @ right, and a tensor of a call as a factor for the latter.
  // Returns whether a bias was added.
  bool multiply_inputs(const Tensor& input, const Tensor& weight, const std::optional<Tensor>&,
                       Tensor& result) const {
    if (has_two_bytes(input.scalar_type())) {
      multiply_two_bytes({{input, transposed(weight)}}, result);
    } else {
      multiply_converted(input, weight, result);
    }
    return false;
  }
  void multiply_factors(const Factor& left, const Factor& right, Tensor& result) const {
    if (!left.rest.has_value()) {
      multiply(left.matrix, right.matrix, result);
      return;
    }
    // The product of both rests is less than what rounding loses.
    std::vector<std::pair<Tensor, Tensor>> products = {{left.matrix, right.matrix},
                                                       {*left.rest, right.matrix}};
    if (right.rest.has_value()) products.emplace_back(left.matrix, *right.rest);
    multiply_two_bytes(products, result);
  }
  Factor factor_beside(const Factor& other, const Tensor& tensor, ScalarType computed) const {
    if (!other.rest.has_value()) return {converted(tensor, computed)};
    if (tensor.scalar_type() == ScalarType::BFloat16) return {tensor};
    return in_two(tensor, launch_.stream());
  }

  // The whole sequence: a kernel that runs all steps keeps the weights on the chip.
  int64_t steps_of_piece(int64_t steps, int64_t, int64_t) const { return steps; }

  // Whether the steps were run, all by one kernel.
  template <typename Cell, typename T, typename Steps>
  bool at_once([[maybe_unused]] Steps& steps) const {
    if constexpr (std::is_same_v<T, float>) {
      return run_at_once<Cell>(steps, launch_.stream());
    } else {
      return false;
    }
  }

 private:
  Launch launch_;
};

}  // namespace torchgraft::recurrence
