// A recurrence on CUDA: a kernel for each step, in which a thread owns one unit of one row.
//
// A pass reads and writes a few numbers a unit, neighbours side by side, so memory bounds it, or its launch
// if it is small. Products are PyTorch's.
#pragma once

#include <cmath>

#include "../cuda.cuh"

#define TORCHGRAFT_CELL_FUNCTION __device__ __forceinline__
#include "recurrence_passes.h"

namespace torchgraft::recurrence {

// The functions that a printed cell calls.
struct CudaMath {
#define TORCHGRAFT_CELL_CALLS(NAME)               \
  template <typename T>                           \
  static __device__ __forceinline__ T NAME(T x) { \
    return ::NAME(x);                             \
  }
  TORCHGRAFT_CELL_CALLS(exp)
  TORCHGRAFT_CELL_CALLS(expm1)
  TORCHGRAFT_CELL_CALLS(log)
  TORCHGRAFT_CELL_CALLS(log1p)
  TORCHGRAFT_CELL_CALLS(tanh)
  TORCHGRAFT_CELL_CALLS(erf)
  TORCHGRAFT_CELL_CALLS(sqrt)
  TORCHGRAFT_CELL_CALLS(sin)
  TORCHGRAFT_CELL_CALLS(cos)
  TORCHGRAFT_CELL_CALLS(atan)
#undef TORCHGRAFT_CELL_CALLS
  template <typename T>
  static __device__ __forceinline__ T abs(T x) {
    return ::fabs(x);
  }
  template <typename T>
  static __device__ __forceinline__ T sigmoid(T x) {
    return T(1) / (T(1) + ::exp(-x));
  }
  template <typename T>
  static __device__ __forceinline__ T pow(T x, T y) {
    return ::pow(x, y);
  }
};

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

 private:
  Launch launch_;
};

}  // namespace torchgraft::recurrence
