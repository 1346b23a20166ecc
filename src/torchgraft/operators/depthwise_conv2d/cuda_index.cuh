// Index arithmetic in as few instructions as it takes.
#pragma once

#include <torchgraft/cuda.cuh>

namespace torchgraft::depthwise::cuda {

// The quotient; `rest` keeps the remainder.
__device__ inline int split(int& rest, const FastDivisor& divisor) {
  const int quotient = divisor.divide(rest);
  rest -= quotient * divisor.divisor();
  return quotient;
}

__device__ inline bool is_inside(int position, int size) {
  return static_cast<unsigned>(position) < static_cast<unsigned>(size);
}

// A pointer to device memory, computed here: 32-bit offsets are added to it with one instruction each, where
// the compiler would add up everything else first.
template <typename T>
__device__ const T* kept(const T* pointer) {
  asm("" : "+l"(pointer));
  __builtin_assume(__isGlobal(pointer));
  return pointer;
}

}  // namespace torchgraft::depthwise::cuda
