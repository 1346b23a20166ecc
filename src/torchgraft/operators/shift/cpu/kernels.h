// The passes on CPU, a file a layout. T is one of double, float, Half, BFloat16; images are dense, offsets
// contiguous; there are results. Which gradients are computed is told by which of their places are not null.
#pragma once

#include <torchgraft/cpu.h>
#include <torchgraft/cpu_convert.h>
#include <torchgraft/dispatch.h>
#include <torchgraft/numbers.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "../geometry.h"

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
  T* input_grad;         // or null
  double* partial_sums;  // [batch][along x, along y][channel], or null
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

// The row of the source at a position, where `period` - 1 rows of zeros lie behind each. A division takes as
// long as the results of a small plane, and mostly there is nothing to divide.
inline int64_t row_at(int64_t position, int64_t period) {
  return period == 1 ? position : floor_divide(position, period);
}

// Which rows of the source the results of one channel lie between, from the first row of results to the last.
class Rows {
 public:
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::min();

  // Row r lies between rows r * step + first and one on; or, where `period` is more than one, as if the
  // source had as many rows less one of zeros between its own.
  Rows(int64_t first, int64_t step, int64_t period)
      : row_(row_at(first, period)), remainder_(first - row_ * period), step_(step), period_(period) {}

  // The upper one, 0, or the lower one, 1, which may lie outside of the source; kNone between two of its
  // rows.
  int64_t under(int i) const {
    const bool is_row = i == 0 ? remainder_ == 0 : remainder_ + 1 == period_;
    return is_row ? row_ + i : kNone;
  }

  void advance() {
    if (period_ == 1) {
      row_ += step_;
    } else if (++remainder_ == period_) {
      remainder_ = 0;
      ++row_;
    }
  }

 private:
  int64_t row_;
  int64_t remainder_;
  int64_t step_;
  int64_t period_;
};

// Where the results of one channel come from. The gradient of the input is a sampling too, of the output's
// gradient, with its taps turned around and rows of zeros in between.
template <typename A>
struct Taps {
  int64_t row = 0;     // result (0, 0) lies between this row and one below,
  int64_t column = 0;  // and between this column and one to the right
  A row_weights[2] = {};
  A column_weights[2] = {};
  int64_t step = 1;
  int64_t period = 1;
  int64_t source_rows = 0;

  Taps() = default;
  Taps(const Sampling<A>& sampling, const Geometry& geometry, bool transposed)
      : row(transposed ? -sampling.y - 1 : sampling.y),
        column(transposed ? -sampling.x - 1 : sampling.x),
        step(transposed ? 1 : geometry.stride),
        period(transposed ? geometry.stride : 1),
        source_rows(transposed ? geometry.steps : geometry.height) {
    for (int i = 0; i < 2; ++i) {
      row_weights[i] = sampling.row_weights[transposed ? 1 - i : i];
      column_weights[i] = sampling.column_weights[transposed ? 1 - i : i];
    }
  }

  // Those under a row of results and the following ones.
  Rows rows(int64_t first) const { return Rows(first * step + row, step, period); }
};

template <typename Pass>
auto taps_of(const Pass& pass, int64_t channel, bool transposed) {
  using A = accumulate_t<std::remove_cvref_t<decltype(*pass.x_offset)>>;
  const Geometry& geometry = pass.geometry;
  const Sampling<A> sampling(static_cast<A>(pass.x_offset[channel]), static_cast<A>(pass.y_offset[channel]),
                             geometry.width, geometry.height);
  return Taps<A>(sampling, geometry, transposed);
}

// A thread is worth waking for so many results and no fewer.
inline constexpr int64_t kGrain = 16384;

inline int64_t units_of_grain(int64_t results_of_unit) {
  return std::max<int64_t>(1, kGrain / results_of_unit);
}

}  // namespace torchgraft::shift::cpu
