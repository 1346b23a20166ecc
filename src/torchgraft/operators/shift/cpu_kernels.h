// The passes on CPU, a file a layout. T is one of double, float, Half, BFloat16; images are dense, offsets
// contiguous. Which gradients are computed is told by which of their places are not null.
#pragma once

#include <torchgraft/dispatch.h>

#include "geometry.h"

namespace torchgraft::shift::cpu {

template <typename T>
struct Forward {
  const T* input;
  const T* x_offset;
  const T* y_offset;
  T* output;
  Geometry geometry;
};

template <typename T>
struct Backward {
  const T* output_grad;
  const T* input;  // null where the gradients of the offsets are not wanted
  const T* x_offset;
  const T* y_offset;
  T* input_grad;                  // or null
  accumulate_t<T>* partial_sums;  // [batch][along x, along y][channel], or null
  Geometry geometry;
};

template <typename T>
void forward_planes(const Forward<T>& pass);
template <typename T>
void forward_channels_last(const Forward<T>& pass);

template <typename T>
void backward_planes(const Backward<T>& pass);
template <typename T>
void backward_channels_last(const Backward<T>& pass);

// How one channel is sampled.
template <typename T>
Sampling<accumulate_t<T>> sampling_of(const T* x_offset, const T* y_offset, int64_t channel,
                                      const Geometry& geometry) {
  using A = accumulate_t<T>;
  return Sampling<A>(static_cast<A>(x_offset[channel]), static_cast<A>(y_offset[channel]), geometry.width,
                     geometry.height);
}

// A thread is worth waking for so many results and no fewer.
inline constexpr int64_t kGrain = 16384;

inline int64_t units_of_grain(int64_t results_of_unit) {
  return results_of_unit >= kGrain ? 1 : kGrain / (results_of_unit > 0 ? results_of_unit : 1);
}

}  // namespace torchgraft::shift::cpu
