// Forward and input gradient of any geometry: the kernels of cuda_gather.cuh.
#pragma once

#include <cuda_runtime.h>

#include <torchgraft/layout.h>

#include <cstdint>
#include <utility>

#include "cuda_choice.h"
#include "geometry.h"

namespace torchgraft::depthwise::cuda {

// x such that value * x = 1 modulo `modulus`; value and modulus have no common divisor.
inline int64_t inverse_modulo(int64_t value, int64_t modulus) {
  int64_t remainder = modulus, next_remainder = value % modulus;
  int64_t inverse = 0, next_inverse = 1;
  while (next_remainder != 0) {
    const int64_t quotient = remainder / next_remainder;
    remainder = std::exchange(next_remainder, remainder - quotient * next_remainder);
    inverse = std::exchange(next_inverse, inverse - quotient * next_inverse);
  }
  return inverse < 0 ? inverse + modulus : inverse;
}

// `kernel`: one of the gathering ones. bias may be null. `transposed` is the input gradient.
template <typename T>
void launch_gather(Kernel kernel, const T* source, const T* weight, const T* bias, T* result,
                   const Geometry& geometry, Layout layout, bool transposed, cudaStream_t stream);

}  // namespace torchgraft::depthwise::cuda
