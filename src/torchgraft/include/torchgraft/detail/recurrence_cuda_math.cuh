// The functions that a printed cell calls on CUDA.
#pragma once

#include <cmath>

namespace torchgraft::recurrence {

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

}  // namespace torchgraft::recurrence
