// Forward and input gradient of any geometry: what the kernels for small squares and for tiles do not serve.
// The kernels are in cuda_gather.cuh.
#pragma once

#include <cuda_runtime.h>

#include <torchgraft/layout.h>

#include <cstdint>
#include <utility>

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

// Whether launch_gather may be called: sizes whose positions fit 32 bits inside an image, and a kernel that
// fits shared memory. `transposed` is the input gradient.
bool serves_gather(const Geometry& geometry, bool transposed);

// bias may be null.
template <typename T>
void launch_gather(const T* source, const T* weight, const T* bias, T* result, const Geometry& geometry,
                   Layout layout, bool transposed, cudaStream_t stream);

}  // namespace torchgraft::depthwise::cuda
