// Index arithmetic in as few instructions as it takes.
#pragma once

#include <torchgraft/dispatch.h>
#include <torchgraft/cuda.cuh>
#include <torchgraft/ptx.cuh>

namespace torchgraft::depthwise::cuda {

// The quotient; `rest` keeps the remainder.
__device__ inline int split(int& rest, const FastDivisor& divisor) {
  const int quotient = divisor.divide(rest);
  rest -= quotient * divisor.divisor();
  return quotient;
}

// A pointer to device memory, computed here: 32-bit offsets are added to it with one instruction each, where
// the compiler would add up everything else first.
template <typename T>
__device__ T* kept(T* pointer) {
  pointer = ptx::opaque(pointer);
  __builtin_assume(__isGlobal(pointer));
  return pointer;
}

// The same for a pointer to shared memory.
template <typename T>
__device__ T* kept_shared(T* pointer) {
  pointer = ptx::opaque(pointer);
  __builtin_assume(__isShared(pointer));
  return pointer;
}

// Neighbouring elements, or zeros. Zeros are chosen before the conversion, so that it needs no predicate:
// there are few of those, and loads would wait for them.
template <typename T, int kCount>
__device__ void load_if(bool is_loaded, const T* pointer, accumulate_t<T> (&values)[kCount]) {
  Vector<T, kCount> vector = {};
  if (is_loaded) vector = *reinterpret_cast<const Vector<T, kCount>*>(pointer);
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = static_cast<accumulate_t<T>>(vector[i]);
}

template <typename T>
__device__ accumulate_t<T> load_if(bool is_loaded, const T* pointer) {
  accumulate_t<T> value[1];
  load_if(is_loaded, pointer, value);
  return value[0];
}

}  // namespace torchgraft::depthwise::cuda
