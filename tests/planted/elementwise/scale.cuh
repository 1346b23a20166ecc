// What the CUDA kernels of this family share.
#pragma once

#include <torchgraft/dispatch.h>
#include <torchgraft/layout.h>
#include <torchgraft/registration.h>
#include <torchgraft/cuda.cuh>

namespace planted {

using namespace torchgraft;

inline constexpr int kThreads = 256;

inline unsigned blocks_for(int64_t count) {
  return grid_of(ceil_divide<int64_t>(count, kThreads), "planted");
}

template <typename T>
__device__ T times(T value, accumulate_t<T> factor) {
  return static_cast<T>(static_cast<accumulate_t<T>>(value) * factor);
}

// The correct kernel: an element a thread.
template <typename T>
__global__ void multiply_each(const T* from, accumulate_t<T> by, T* to, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) to[i] = times(from[i], by);
}

// `launch(from, factor, to, count, stream)` for a dense input and a result laid out as it is.
template <typename Launcher>
Tensor scale_with(Tensor input, double factor, const Launcher& launch) {
  return dispatch_floating(input.scalar_type(), "a planted operator", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Launch scope(input);
    const Tensor source = to_dense(input);
    Tensor output = empty_as(source);
    if (output.numel() == 0) return output;
    launch(static_cast<const T*>(source.const_data_ptr()), static_cast<accumulate_t<T>>(factor),
           static_cast<T*>(output.mutable_data_ptr()), output.numel(), scope.stream());
    check_launch("a planted operator");
    return output;
  });
}

}  // namespace planted
