// The loops of a weight gradient over vectors of channels, for several instruction sets: tiles of taps along
// one row, and strips of short rows, whose sums stay in registers.

#include <torchgraft/cpu.h>

#include <type_traits>

#include "weight_grad_row.h"
#include "with_constant.h"

namespace torchgraft::depthwise::cpu {
namespace {

template <typename A>
using Row = WeightGradRow<A>;

// Some pixels and kTaps taps side by side, at a step known here. kMayMiss: an input is null where it is
// padding.
template <int kRows, int kTaps, int kStep, int kPixels, bool kInside, bool kMayMiss, typename V, typename A>
TORCHGRAFT_INLINE void add_pixels(V (&sums)[kRows][kTaps], const A* output_grad, int64_t output_grad_step,
                                  const A* const (&inputs)[kRows], int64_t input_step, int64_t first,
                                  int64_t width) {
  V grads[kPixels];
  TORCHGRAFT_UNROLL for (int p = 0; p < kPixels; ++p, advance(output_grad, output_grad_step)) {
    load(grads[p], output_grad);
  }
  int64_t at = first * input_step;
  TORCHGRAFT_UNROLL for (int c = 0; c < (kPixels - 1) * kStep + kTaps; ++c) {
    if (kInside || static_cast<uint64_t>(first + c) < static_cast<uint64_t>(width)) {
      TORCHGRAFT_UNROLL for (int r = 0; r < kRows; ++r) {
        if (kMayMiss && inputs[r] == nullptr) continue;
        V column;
        load(column, inputs[r] + at);
        keep(column);
        TORCHGRAFT_UNROLL for (int t = 0; t < kTaps; ++t) {
          const int distance = c - t;
          if (distance >= 0 && distance % kStep == 0 && distance / kStep < kPixels) {
            sums[r][t] += grads[distance / kStep] * column;
          }
        }
      }
    }
    advance(at, input_step);
  }
}

// One pixel, any step between taps.
template <int kRows, int kTaps, typename V, typename A>
TORCHGRAFT_INLINE void add_pixel(V (&sums)[kRows][kTaps], const A* output_grad,
                                 const A* const (&inputs)[kRows], int64_t input_step, int64_t first,
                                 int64_t tap_step, int64_t width) {
  V grad;
  load(grad, output_grad);
  TORCHGRAFT_UNROLL for (int t = 0; t < kTaps; ++t, first += tap_step) {
    if (static_cast<uint64_t>(first) >= static_cast<uint64_t>(width)) continue;
    TORCHGRAFT_UNROLL for (int r = 0; r < kRows; ++r) {
      V column;
      load(column, inputs[r] + first * input_step);
      sums[r][t] += grad * column;
    }
  }
}

// kRows kernel rows by kTaps taps along the row. kStep 0: any step and dilation. A row's sums start from
// nothing and are added to those before: so the error grows with the roots of a row's length and of their
// number, and not with that of their product.
template <int kRows, int kTaps, int kStep, int kPixels, typename V, typename A>
struct Tile {
  static TORCHGRAFT_INLINE void run(const Row<A>& row, int64_t kernel_row, int64_t tap) {
    for (int64_t vector = 0; vector < row.vectors; ++vector) run_vector(row, kernel_row, tap, vector);
  }

  static TORCHGRAFT_INLINE void run_vector(const Row<A>& row, int64_t kernel_row, int64_t tap,
                                           int64_t vector) {
    constexpr int kLanes = sizeof(V) / sizeof(A);
    const int64_t lane = row.places.place(vector);
    V sums[kRows][kTaps];
    const A* inputs[kRows];
    TORCHGRAFT_UNROLL for (int r = 0; r < kRows; ++r) {
      inputs[r] = row.inputs[kernel_row + r] + row.input_offset + lane;
      TORCHGRAFT_UNROLL for (int t = 0; t < kTaps; ++t) sums[r][t] = V{};
    }
    const int64_t input_step = row.input_step;
    const int64_t width = row.width;
    const A* output_grad = row.output_grads[0] + row.output_grad_offset + lane;
    int64_t first = row.first_position + tap * row.tap_step;
    int64_t pixel = 0;
    if constexpr (kStep > 0) {
      for (; pixel + kPixels <= row.count; pixel += kPixels) {
        if (first >= 0 && first + (kPixels - 1) * kStep + kTaps <= width) {
          add_pixels<kRows, kTaps, kStep, kPixels, true, false>(sums, output_grad, row.output_grad_step,
                                                                inputs, input_step, first, width);
        } else {
          add_pixels<kRows, kTaps, kStep, kPixels, false, false>(sums, output_grad, row.output_grad_step,
                                                                 inputs, input_step, first, width);
        }
        output_grad += kPixels * row.output_grad_step;
        first += kPixels * kStep;
      }
    }
    for (; pixel < row.count; ++pixel) {
      add_pixel(sums, output_grad, inputs, input_step, first, row.tap_step, width);
      output_grad += row.output_grad_step;
      first += row.step;
    }
    TORCHGRAFT_UNROLL for (int r = 0; r < kRows; ++r) {
      A* totals = row.sums[kernel_row + r] + vector * row.vector_step + tap * kLanes;
      TORCHGRAFT_UNROLL for (int t = 0; t < kTaps; ++t) {
        V total;
        load(total, totals + t * kLanes);
        store(total + sums[r][t], totals + t * kLanes);
      }
    }
  }
};

// All taps of a kernel of three by three along some short rows, which share the sums in registers.
template <int kStep, int kPixels, typename V, typename A>
struct Strip {
  static TORCHGRAFT_INLINE void run(const Row<A>& row) {
    constexpr int kTaps = 3;
    constexpr int kLanes = sizeof(V) / sizeof(A);
    const int64_t input_step = row.input_step;
    const int64_t output_grad_step = row.output_grad_step;
    const int64_t width = row.width;
    for (int64_t vector = 0; vector < row.vectors; ++vector) {
      const int64_t lane = row.places.place(vector);
      V sums[kTaps][kTaps] = {};
      for (int64_t r = 0; r < row.strip_rows; ++r) {
        const A* output_grad = row.output_grads[r] + row.output_grad_offset + lane;
        const A* inputs[kTaps];
        bool is_whole = true;
        TORCHGRAFT_UNROLL for (int y = 0; y < kTaps; ++y) {
          inputs[y] = row.inputs[r * kTaps + y];
          is_whole = is_whole && inputs[y] != nullptr;
          if (inputs[y] != nullptr) inputs[y] += row.input_offset + lane;
        }
        int64_t first = row.first_position;
        int64_t pixel = 0;
        for (; pixel + kPixels <= row.count; pixel += kPixels) {
          if (is_whole && first >= 0 && first + (kPixels - 1) * kStep + kTaps <= width) {
            add_pixels<kTaps, kTaps, kStep, kPixels, true, false>(sums, output_grad, output_grad_step, inputs,
                                                                  input_step, first, width);
          } else {
            add_pixels<kTaps, kTaps, kStep, kPixels, false, true>(sums, output_grad, output_grad_step, inputs,
                                                                  input_step, first, width);
          }
          output_grad += kPixels * output_grad_step;
          first += kPixels * kStep;
        }
        for (; pixel < row.count; ++pixel) {
          add_pixels<kTaps, kTaps, kStep, 1, false, true>(sums, output_grad, output_grad_step, inputs,
                                                          input_step, first, width);
          output_grad += output_grad_step;
          first += kStep;
        }
      }
      TORCHGRAFT_UNROLL for (int y = 0; y < kTaps; ++y) {
        A* totals = row.sums[y] + vector * row.vector_step;
        TORCHGRAFT_UNROLL for (int t = 0; t < kTaps; ++t) {
          V total;
          load(total, totals + t * kLanes);
          store(total + sums[y][t], totals + t * kLanes);
        }
      }
    }
  }
};

// As many pixels at a time as leave the fewest over. Without a stride, more pixels share more columns.
template <int kStep, int kVectorBytes, typename V, typename A>
TORCHGRAFT_INLINE void sum_strip(const Row<A>& row) {
  const auto run = [&](auto pixels) __attribute__((always_inline)) {
    Compiled<kVectorBytes>::template call<Strip<kStep, pixels(), V, A>>(row);
  };
  if constexpr (kVectorBytes == 64) {
    int64_t pixels = kStep == 1 ? 7 : 4;
    for (int64_t other = 4; other <= 7; ++other) {
      if (row.count % other < row.count % pixels) pixels = other;
    }
    with_constant<4, 5, 6, 7>(pixels, run);
  } else {
    run(std::integral_constant<int, 4>{});
  }
}

template <int kRows, int kTaps, int kStep, int kPixels, int kVectorBytes, typename V, typename A>
TORCHGRAFT_INLINE void sum_taps(const Row<A>& row, int64_t tap) {
  int64_t kernel_row = 0;
  for (; kernel_row + kRows <= row.kernel_rows; kernel_row += kRows) {
    Compiled<kVectorBytes>::template call<Tile<kRows, kTaps, kStep, kPixels, V, A>>(row, kernel_row, tap);
  }
  for (; kernel_row < row.kernel_rows; ++kernel_row) {
    Compiled<kVectorBytes>::template call<Tile<1, kTaps, kStep, kPixels, V, A>>(row, kernel_row, tap);
  }
}

// Taps in tiles of seven, five, three and one: enough sums in flight to hide the latency of an addition.
template <int kStep, int kPixels, int kVectorBytes, typename V, typename A>
TORCHGRAFT_INLINE void sum_row(const Row<A>& row) {
  int64_t tap = 0;
  for (; tap + 7 <= row.taps; tap += 7) sum_taps<2, 7, kStep, kPixels, kVectorBytes, V>(row, tap);
  if (tap + 5 <= row.taps) {
    sum_taps<2, 5, kStep, kPixels, kVectorBytes, V>(row, tap);
    tap += 5;
  }
  if (tap + 3 <= row.taps) {
    sum_taps<3, 3, kStep, kPixels, kVectorBytes, V>(row, tap);
    tap += 3;
  }
  for (; tap < row.taps; ++tap) sum_taps<4, 1, kStep, kPixels, kVectorBytes, V>(row, tap);
}

// Which loop serves which row. float64 is for checking others: it has the one loop that serves all.
template <int kVectorBytes, int kBytes, typename A>
TORCHGRAFT_INLINE void dispatch_row(const Row<A>& row) {
  using V = Vector<A, kBytes>;
  if constexpr (std::is_same_v<A, double>) {
    sum_row<0, 1, kVectorBytes, V>(row);
  } else if (row.strip_rows > 0) {
    row.step == 1 ? sum_strip<1, kVectorBytes, V>(row) : sum_strip<2, kVectorBytes, V>(row);
  } else if (row.tap_step == 1 && row.step == 1) {
    // Seven pixels, a divisor of many networks' widths, where there are registers for them.
    if (kVectorBytes == 64 && row.count % 7 == 0) {
      sum_row<1, kVectorBytes == 64 ? 7 : 4, kVectorBytes, V>(row);
    } else {
      sum_row<1, 4, kVectorBytes, V>(row);
    }
  } else if (row.tap_step == 1 && row.step == 2) {
    sum_row<2, 4, kVectorBytes, V>(row);
  } else {
    sum_row<0, 1, kVectorBytes, V>(row);
  }
}

template <int kBytes, typename A>
TORCHGRAFT_INLINE void dispatch_lanes(const Row<A>& row) {
  if constexpr (kBytes / sizeof(A) == kMostLanes) {
    if (row.lanes < kMostLanes) return dispatch_row<kBytes, kBytes / 2>(row);
  }
  dispatch_row<kBytes, kBytes>(row);
}

TORCHGRAFT_VECTOR_CLONES(void sum(const Row<float>& row), dispatch_lanes<kVectorBytes>(row);)
TORCHGRAFT_VECTOR_CLONES(void sum(const Row<double>& row), dispatch_lanes<kVectorBytes>(row);)

}  // namespace

void sum_weight_grad_row(const WeightGradRow<float>& row) { sum(row); }
void sum_weight_grad_row(const WeightGradRow<double>& row) { sum(row); }

}  // namespace torchgraft::depthwise::cpu
