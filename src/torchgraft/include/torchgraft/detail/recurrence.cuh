// A recurrence on CUDA.
//
// The steps are one kernel in all dtypes but float64 if the weights fit into a cluster
// (recurrence_on_chip_forward.cuh). Otherwise each step is a product of PyTorch's and a kernel in which a
// thread owns one unit of one row: it reads and writes a few numbers a unit, neighbours side by side, so
// memory bounds it, or its launch if it is small.
#pragma once

#include <torchgraft/detail/cublas_product.h>

#include "../cuda.cuh"
#include "recurrence_cuda_math.cuh"

#define TORCHGRAFT_CELL_FUNCTION __device__ __forceinline__
#include "recurrence_passes.h"

#include "recurrence_on_chip.cuh"

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

  // result = input @ weight.T. Of two bytes tensor cores make it, with sums in float.
  void multiply_inputs(const Tensor& input, const Tensor& weight, Tensor& result) const {
    // Of deeper products, in a few tiles, cuBLAS 13 leaves out a part of the depth now and then.
    constexpr int64_t kDeepest = 2048;
    if (!has_two_bytes(input.scalar_type()) || input.size(1) > kDeepest) {
      multiply_converted(input, weight, result);
      return;
    }
    using torch::stable::detail::from;
    std::array<StableIValue, 4> stack = {from(input), from(transposed(weight)), from(result.scalar_type()),
                                         from(result)};
    check_call(torch_call_dispatcher("aten::mm", "dtype_out", stack.data(), TORCH_ABI_VERSION),
               "recurrence: a product");
    torch::stable::detail::to<Tensor>(stack[0]);
  }

  // result = left @ right. Of factors in two matrices the products of tf32 are exact, and only that of both
  // rests is left out.
  void multiply_factors(const Factor& left, const Factor& right, Tensor& result) const {
    if (!left.rest.has_value()) {
      multiply(left.matrix, right.matrix, result);
      return;
    }
    internal::multiply(Cublas::tf32, left.matrix, right.matrix, result);
    internal::multiply(Cublas::tf32, *left.rest, right.matrix, result, /*adds=*/true);
    if (right.rest.has_value()) {
      internal::multiply(Cublas::tf32, left.matrix, *right.rest, result, /*adds=*/true);
    }
  }

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
