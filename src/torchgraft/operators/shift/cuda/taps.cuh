// Between which sources a result lies, in the terms of kernels that gather: the same for both directions.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <torchgraft/dispatch.h>
#include <torchgraft/cuda.cuh>

#include "../geometry.h"

namespace torchgraft::shift::cuda {

// The quotient rounded down, for numerators of either sign.
__device__ inline int divide_down(int numerator, const FastDivisor& divisor) {
  return numerator >= 0 ? divisor.divide(numerator) : ~divisor.divide(~numerator);
}

// A result in column v lies between the sources' columns v + column and one to the right. In row r it lies
// between rows r * stride + row and one below; in the transpose with a stride it comes from one row alone, or
// none: with (r - row) = t * stride + i, from row t, which is `lower` for i = 0, `upper` for i = 1. Where
// offsets are not finite every weight is NaN, and so is the product with a source that is not there.
template <typename T, bool kTransposed, bool kStrided>
struct Taps {
  using A = accumulate_t<T>;
  int column, row;
  A left, right, upper, lower;

  Taps() = default;
  __device__ Taps(T x_offset, T y_offset, int width, int height) {
    const Sampling<A> sampling(static_cast<A>(x_offset), static_cast<A>(y_offset), width, height);
    constexpr int kFirst = kTransposed ? 1 : 0;
    column = static_cast<int>(sampling.x);
    row = static_cast<int>(sampling.y);
    if (kTransposed) column = -column - 1;
    if (kTransposed && !kStrided) row = -row - 1;
    left = sampling.column_weights[kFirst];
    right = sampling.column_weights[1 - kFirst];
    upper = sampling.row_weights[kFirst];
    lower = sampling.row_weights[1 - kFirst];
  }

  // Of the forward pass: the displacements.
  __device__ int x() const { return kTransposed ? -column - 1 : column; }
  __device__ int y() const { return kTransposed && !kStrided ? -row - 1 : row; }
};

// What a thread moves at once: four bytes; of double one.
template <typename T>
inline constexpr int kWord = sizeof(T) == 2 ? 2 : 1;
template <typename T>
using Word = Vector<T, kWord<T>>;

template <typename T>
__device__ void widen(const Word<T>& word, accumulate_t<T> (&values)[kWord<T>]) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    const uint32_t pair = reinterpret_cast<const uint32_t&>(word);
    values[0] = __uint_as_float(pair << 16);
    values[1] = __uint_as_float(pair & 0xffff0000U);
  } else if constexpr (std::is_same_v<T, Half>) {
    const float2 both = __half22float2(reinterpret_cast<const __half2&>(word));
    values[0] = both.x;
    values[1] = both.y;
  } else {
    values[0] = word[0];
  }
}

template <typename T>
__device__ Word<T> round(const accumulate_t<T> (&values)[kWord<T>]) {
  Word<T> rounded;
  if constexpr (std::is_same_v<T, BFloat16>) {
    reinterpret_cast<__nv_bfloat162&>(rounded) = __floats2bfloat162_rn(values[0], values[1]);
  } else if constexpr (std::is_same_v<T, Half>) {
    reinterpret_cast<__half2&>(rounded) = __floats2half2_rn(values[0], values[1]);
  } else {
    rounded[0] = values[0];
  }
  return rounded;
}

// Sums of an input times each of its four sources, and the gradients made of them.
template <typename A>
struct TapSums {
  A upper_left = 0, upper_right = 0, lower_left = 0, lower_right = 0;

  // In the transpose the upper and the left tap are the later ones.
  template <typename Taps>
  __device__ A along_x(const Taps& taps) const {
    return taps.upper * (upper_left - upper_right) + taps.lower * (lower_left - lower_right);
  }
  template <typename Taps>
  __device__ A along_y(const Taps& taps) const {
    return taps.left * (upper_left - lower_left) + taps.right * (upper_right - lower_right);
  }
};

// The results of the forward pass that lie outside the image altogether: no pixel meets their gradients. Yet
// by the definition they count, zero times each, which tells where one is not finite.
struct Outside {
  int first_row, end_row, first_column, end_column;  // of those that are not

  Outside() = default;
  template <typename Taps>
  __device__ Outside(const Taps& taps, int height, int width, int steps, const FastDivisor& stride) {
    first_row = min(max(divide_down(-taps.y() - 2, stride) + 1, 0), steps);
    end_row = max(min(divide_down(height - 1 - taps.y(), stride) + 1, steps), first_row);
    first_column = min(max(-taps.x() - 1, 0), width);
    end_column = max(min(width - taps.x(), width), first_column);
  }
};

}  // namespace torchgraft::shift::cuda
