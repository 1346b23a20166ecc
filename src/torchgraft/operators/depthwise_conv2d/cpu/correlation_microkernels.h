// The loops of a correlation over the registers: what is done with one Row of outputs, which
// `correlation.cpp` sets up. A tile is up to sixteen pixels of a row by one vector of channels, in registers;
// a column of the source is loaded once a kernel row and serves every pair of a pixel and a tap that meet
// there. A patch is two or four short rows, whose sums together hide the latency of a multiply-add. Kernels
// of three by three make strips of up to seven columns instead, and their input gradient with a stride of two
// makes pairs of rows by pairs of columns: both load a column once for all of their outputs.
#pragma once

#include <torchgraft/cpu.h>
#include <torchgraft/cpu_convert.h>
#include <torchgraft/numbers.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "correlation_row.h"
#include "correlation_strips.h"
#include "with_constant.h"

namespace torchgraft::depthwise::cpu {

// kTaps taps, kTapStep columns apart: each column is loaded once and serves every pair of a pixel and a tap
// that meet there.
template <int kTaps, int kStep, int kPixels, bool kInside, int kTapStep = 1, typename V, typename S,
          typename A>
TORCHGRAFT_INLINE void add_taps(V (&sums)[kPixels], const S* source, int64_t source_step, const A*& kernel,
                                int64_t kernel_step, int64_t first, int64_t width) {
  V weights[kTaps];
  TORCHGRAFT_UNROLL for (int t = 0; t < kTaps; ++t, advance(kernel, kernel_step)) load(weights[t], kernel);
  // Columns kTaps apart share no sum, so that a multiply-add need not wait for the one before.
  source += first * source_step;
  TORCHGRAFT_UNROLL for (int begin = 0; begin < kTaps; ++begin, advance(source, source_step)) {
    const S* at = source;
    TORCHGRAFT_UNROLL for (int c = begin; c < (kPixels - 1) * kStep + (kTaps - 1) * kTapStep + 1;
                           c += kTaps, advance(at, kTaps * source_step)) {
      if (kTaps < kStep && c % kStep >= kTaps) continue;
      if (!kInside && static_cast<uint64_t>(first + c) >= static_cast<uint64_t>(width)) continue;
      V column;
      load_converted<V, A>(column, at);
      keep(column);
      TORCHGRAFT_UNROLL for (int t = 0; t < kTaps; ++t) {
        const int distance = c - t * kTapStep;
        if (distance >= 0 && distance % kStep == 0 && distance / kStep < kPixels) {
          sums[distance / kStep] += weights[t] * column;
        }
      }
    }
  }
}

// All taps of a kernel's row, kTapStep columns apart. kTaps 0: any number, side by side.
template <int kTaps, int kStep, int kPixels, bool kInside, int kTapStep = 1, typename V, typename S,
          typename A>
TORCHGRAFT_INLINE void add_row(V (&sums)[kPixels], const S* source, int64_t source_step, const A* kernel,
                               int64_t kernel_step, int64_t begin, int64_t taps, int64_t width) {
  const auto add = [&](auto count) __attribute__((always_inline)) {
    add_taps<count(), kStep, kPixels, kInside, kTapStep>(sums, source, source_step, kernel, kernel_step,
                                                         begin, width);
    begin += count();
  };
  if constexpr (kTaps > 0) {
    add(std::integral_constant<int, kTaps>{});
  } else {
    const int64_t end = begin + taps;
    while (begin + 7 <= end) add(std::integral_constant<int, 7>{});
    if (begin + 5 <= end) add(std::integral_constant<int, 5>{});
    if (begin + 3 <= end) add(std::integral_constant<int, 3>{});
    while (begin < end) add(std::integral_constant<int, 1>{});
  }
}

// One tap, any step.
template <int kPixels, bool kInside, typename V, typename S, typename A>
TORCHGRAFT_INLINE void add_tap(V (&sums)[kPixels], const S* source, int64_t source_step, const A* kernel,
                               int64_t first, int64_t step, int64_t width) {
  V weight;
  load(weight, kernel);
  const S* at = source + first * source_step;
  TORCHGRAFT_UNROLL for (int p = 0; p < kPixels; ++p, advance(at, step * source_step), first += step) {
    if (!kInside && static_cast<uint64_t>(first) >= static_cast<uint64_t>(width)) continue;
    V column;
    load_converted<V, A>(column, at);
    sums[p] += weight * column;
  }
}

// Prefetches the rows of the source, kRows of them, that the next row of outputs is the first to read. The
// loops over float16 and bfloat16 take all vectors of channels along, more than stay in L1, and would wait.
template <int kColumns, int kRows, typename A, typename S>
TORCHGRAFT_INLINE void prefetch_below(const Row<A, S>& row, int64_t offset) {
  if (row.kernel_rows < 2) return;
  const S* const last = row.sources[row.kernel_rows - 1];
  const int64_t row_step = last - row.sources[row.kernel_rows - 2];
  TORCHGRAFT_UNROLL for (int r = 1; r <= kRows; ++r) {
    const S* at = last + r * row_step + offset;
    TORCHGRAFT_UNROLL for (int c = 0; c < kColumns; ++c, advance(at, row.source_step)) __builtin_prefetch(at);
  }
}

// kPixels pixels from `pixel` on of all of the row's vectors. kTaps 0: any number of taps. kStep 0: any step,
// and any between taps. The first `done` of the pixels have been stored before; those behind the row's end
// are computed and not stored. Where the kernel has many rows, kInParts, which is apart so that others take
// no time for it.
template <int kTaps, int kStep, int kPixels, bool kInside, bool kInParts, typename V>
struct Tile {
  template <typename A, typename S>
  static TORCHGRAFT_INLINE void run(const Row<A, S>& row, int64_t pixel, int64_t done) {
    const int64_t first = row.first_position + pixel * row.step;
    const int64_t source_step = row.source_step;
    const int64_t kernel_step = row.kernel_step;
    const int64_t width = row.width;
    const int64_t taps = row.taps;
    for (int64_t vector = 0; vector < row.vectors; ++vector) {
      const int64_t source_vector = row.source_vectors.place(vector);
      S* const outputs = row.outputs + pixel * row.output_step + row.output_vectors.place(vector);
      V sums[kPixels];
      if (row.accumulate) {
        const S* from = outputs;
        TORCHGRAFT_UNROLL for (int p = 0; p < kPixels; ++p, advance(from, row.output_step)) {
          sums[p] = V{};
          if (pixel + p < row.count) load_converted<V, A>(sums[p], from);
        }
      } else {
        load(sums[0], row.bias + vector * row.bias_step);
        TORCHGRAFT_UNROLL for (int p = 1; p < kPixels; ++p) sums[p] = sums[0];
      }
      const auto add_kernel_row = [&](int64_t r) __attribute__((always_inline)) {
        const S* source = row.sources[r] + row.source_offset + source_vector;
        const A* kernel = row.kernels[r] + row.kernel_offset + vector * row.vector_step;
        if constexpr (kStep > 0) {
          add_row<kTaps, kStep, kPixels, kInside>(sums, source, source_step, kernel, kernel_step, first, taps,
                                                  width);
        } else {
          int64_t begin = first;
          for (int64_t tap = 0; tap < taps; ++tap, begin += row.tap_step, kernel += kernel_step) {
            add_tap<kPixels, kInside>(sums, source, source_step, kernel, begin, row.step, width);
          }
        }
      };
      if constexpr (kInParts) {
        for (int64_t first_row = 0; first_row < row.kernel_rows; first_row += kRowsOfPart) {
          V before[kPixels];
          TORCHGRAFT_UNROLL for (int p = 0; p < kPixels; ++p) {
            before[p] = sums[p];
            sums[p] = V{};
          }
          const int64_t end_row = std::min(first_row + kRowsOfPart, row.kernel_rows);
          for (int64_t r = first_row; r < end_row; ++r) add_kernel_row(r);
          TORCHGRAFT_UNROLL for (int p = 0; p < kPixels; ++p) sums[p] += before[p];
        }
      } else {
        for (int64_t r = 0; r < row.kernel_rows; ++r) add_kernel_row(r);
      }
      if constexpr (!std::is_same_v<A, S> && kStep > 0) {
        prefetch_below<kPixels * kStep, kStep>(row, row.source_offset + source_vector + first * source_step);
      }
      S* to = outputs;
      TORCHGRAFT_UNROLL for (int p = 0; p < kPixels; ++p, advance(to, row.output_step)) {
        if (p >= done && pixel + p < row.count) store_converted<A>(sums[p], to);
      }
    }
  }
};

// kRows short rows of outputs, each of kPixels: together they have enough sums in flight. kSame: the row is
// as wide as the source's, under a kernel that is centered on it, so that which taps lie on padding is known
// here.
template <int kTaps, int kStep, int kTapStep, int kRows, int kPixels, bool kSame, typename V>
struct Patch {
  template <typename A, typename S>
  static TORCHGRAFT_INLINE void run(const Row<A, S>& row) {
    const int64_t first = kSame ? -(kTaps / 2) * kTapStep : row.first_position;
    const int64_t width = kSame ? kPixels : row.width;
    for (int64_t vector = 0; vector < row.vectors; ++vector) {
      const int64_t source_vector = row.source_vectors.place(vector);
      const int64_t output_vector = row.output_vectors.place(vector);
      V sums[kRows][kPixels] = {};
      for (int64_t y = 0; y < row.kernel_rows; ++y) {
        const A* const kernel = row.kernels[y] + row.kernel_offset + vector * row.vector_step;
        TORCHGRAFT_UNROLL for (int r = 0; r < kRows; ++r) {
          const S* const source = row.sources[y * kRows + r];
          if (source == nullptr) continue;
          add_row<kTaps, kStep, kPixels, false, kTapStep>(sums[r], source + row.source_offset + source_vector,
                                                          row.source_step, kernel, row.kernel_step, first,
                                                          row.taps, width);
        }
      }
      TORCHGRAFT_UNROLL for (int r = 0; r < kRows; ++r) {
        if (row.output_rows[r] == nullptr) continue;
        S* to = row.output_rows[r] + row.output_offset + output_vector;
        TORCHGRAFT_UNROLL for (int p = 0; p < kPixels; ++p, advance(to, row.output_step)) {
          V total;
          if (row.accumulate) {
            load_converted<V, A>(total, to);
          } else {
            load(total, row.bias + vector * row.bias_step);
          }
          store_converted<A>(total + sums[r][p], to);
        }
      }
    }
  }
};

template <int kTaps, int kStep, int kTapStep, int kVectorBytes, typename V, typename A, typename S>
TORCHGRAFT_INLINE void correlate_patch(const Row<A, S>& row) {
  const auto run = [&](auto rows, auto pixels) __attribute__((always_inline)) {
    if constexpr (kTaps > 0 && kStep == 1) {
      if (row.width == pixels() && row.first_position == -(kTaps / 2) * kTapStep) {
        using Same = Patch<kTaps, kStep, kTapStep, rows(), pixels(), true, V>;
        return Compiled<kVectorBytes>::template call<Same>(row);
      }
    }
    using Any = Patch<kTaps, kStep, kTapStep, rows(), pixels(), false, V>;
    Compiled<kVectorBytes>::template call<Any>(row);
  };
  if (row.rows == 4) {
    with_constant<2, 3, 4, 5>(row.count, [&](auto pixels) __attribute__((always_inline)) {
      run(std::integral_constant<int, 4>{}, pixels);
    });
  } else {
    // One phase may have a pixel less than the other: five, beside six.
    with_constant<5, 6, 7>(row.count, [&](auto pixels) __attribute__((always_inline)) {
      run(std::integral_constant<int, 2>{}, pixels);
    });
  }
}

// Tiles of one size over a row, the last of which overlaps the one before where it must. A tile that is
// larger than the row ends behind it.
template <int kTaps, int kStep, int kPixels, int kVectorBytes, typename V, typename A, typename S>
TORCHGRAFT_INLINE void correlate_pixels(const Row<A, S>& row) {
  for (int64_t pixel = 0; pixel < row.count; pixel += kPixels) {
    const int64_t at = std::max<int64_t>(0, std::min(pixel, row.count - kPixels));
    const int64_t first = row.first_position + at * row.step;
    const int64_t last = first + (kPixels - 1) * row.step + (row.taps - 1) * row.tap_step;
    const auto run = [&](auto is_inside, auto in_parts) __attribute__((always_inline)) {
      using TileOf = Tile<kTaps, kStep, kPixels, is_inside(), in_parts(), V>;
      Compiled<kVectorBytes>::template call<TileOf>(row, at, pixel - at);
    };
    const bool is_inside = first >= 0 && last < row.width;
    if constexpr (kTaps == 0) {
      if (row.in_parts) {
        is_inside ? run(std::true_type{}, std::true_type{}) : run(std::false_type{}, std::true_type{});
        continue;
      }
    }
    is_inside ? run(std::true_type{}, std::false_type{}) : run(std::false_type{}, std::false_type{});
  }
}

// Sixteen sums in flight hide the latency of a multiply-add where there are registers for them; eight nearly
// do. A row of more than eight pixels is cut into as few tiles as can be, of one size; where tiles are large
// an odd one gains too little for what it takes to compile it.
template <int kTaps, int kStep, int kVectorBytes, typename V, typename A, typename S>
TORCHGRAFT_INLINE void correlate_row(const Row<A, S>& row) {
  const int64_t count = row.count;
  const auto run = [&](auto pixels) __attribute__((always_inline)) {
    correlate_pixels<kTaps, kStep, pixels(), kVectorBytes, V>(row);
  };
  if constexpr (kVectorBytes == 64 && std::is_same_v<A, float>) {
    if (count > 8) {
      const int64_t pixels = ceil_divide(count, ceil_divide(count, 16));
      with_constant<9, 10, 11, 12, 14, 16>(pixels > 12 ? round_up(pixels, 2) : pixels, run);
      return;
    }
  }
  const auto covered = [&](int64_t pixels) { return round_up(count, pixels); };
  const int64_t pixels = count < 8 ? count : covered(7) < covered(8) ? 7 : 8;
  if (!with_constant<4, 5, 6, 7, 8>(pixels, run)) correlate_pixels<0, 0, 1, kVectorBytes, V>(row);
}

template <int kVectorBytes, typename V, typename A, typename S>
TORCHGRAFT_INLINE void dispatch_patch(const Row<A, S>& row) {
  if (row.tap_step == 2) {
    with_constant<3, 5>(row.taps, [&](auto taps) __attribute__((always_inline)) {
      correlate_patch<taps(), 1, 2, kVectorBytes, V>(row);
    });
    return;
  }
  with_constant<1, 2>(row.step, [&](auto step) __attribute__((always_inline)) {
    const auto run = [&](auto taps) __attribute__((always_inline)) {
      correlate_patch<taps(), step(), 1, kVectorBytes, V>(row);
    };
    if (with_constant<2, 3, 5, 7>(row.taps, run)) return;
    // Larger kernels only where it is known here which taps lie on padding: of all others they are too many.
    if constexpr (step() == 1) {
      const auto run_same = [&](auto taps) __attribute__((always_inline)) {
        with_constant<5, 6, 7>(row.count, [&](auto pixels) __attribute__((always_inline)) {
          // A row has no taps that none of its pixels meets.
          if constexpr (taps() < 2 * pixels()) {
            using Same = Patch<taps(), 1, 1, patch_rows(pixels()), pixels(), true, V>;
            Compiled<kVectorBytes>::template call<Same>(row);
          }
        });
      };
      const bool is_same = row.width == row.count && row.first_position == -(row.taps / 2);
      if (is_same && row.rows == patch_rows(row.count) && with_constant<9, 11, 13>(row.taps, run_same))
        return;
    }
    run(std::integral_constant<int, 0>{});
  });
}

// The loops over float16 and bfloat16 images where they lie. `has_converting_loops` says which rows they are
// made for; the last one takes any other row, a pixel at a time.
template <int kVectorBytes, typename V, typename A, typename S>
TORCHGRAFT_INLINE void dispatch_converting_row(const Row<A, S>& row) {
  if (row.shape == Shape::pairs) return correlate_pairs<kVectorBytes, V>(row);
  bool is_made = false;
  with_constant<1, 2>(row.step, [&](auto step) __attribute__((always_inline)) {
    const auto run = [&](auto taps) __attribute__((always_inline)) {
      correlate_row<taps(), step(), kVectorBytes, V>(row);
    };
    if (row.shape == Shape::strip) {
      correlate_strips<step(), kVectorBytes, V>(row);
      is_made = true;
    } else if (row.tap_step == 1) {
      is_made = with_constant<3, 5, 7>(row.taps, run);
      // Two or four taps are those of a gradient's phases, where the stride is two.
      if constexpr (step() == 1) is_made = is_made || with_constant<2, 4>(row.taps, run);
    }
  });
  if (!is_made) correlate_pixels<0, 0, 1, kVectorBytes, V>(row);
}

// Which loop serves which row. float64 is for checking others: it has the one loop that serves all.
template <int kVectorBytes, int kBytes, typename A, typename S>
TORCHGRAFT_INLINE void dispatch_row(const Row<A, S>& row) {
  using V = Vector<A, kBytes>;
  if constexpr (std::is_same_v<A, double>) {
    correlate_row<0, 0, kVectorBytes, V>(row);
  } else if constexpr (!std::is_same_v<S, A>) {
    dispatch_converting_row<kVectorBytes, V>(row);
  } else if (row.shape == Shape::pairs) {
    correlate_pairs<kVectorBytes, V>(row);
  } else if (row.shape == Shape::strip) {
    // Strips and patches are for registers of sixteen lanes.
    if constexpr (kVectorBytes == 64) {
      with_constant<1, 2>(row.step, [&](auto step) __attribute__((always_inline)) {
        correlate_strips<step(), kVectorBytes, V>(row);
      });
    }
  } else if (row.shape == Shape::patch) {
    if constexpr (kVectorBytes == 64) dispatch_patch<kVectorBytes, V>(row);
  } else if (row.step == 1 && row.taps == 1) {
    // One, two or four taps are those of a gradient's phases, where the stride is two.
    correlate_row<1, 1, kVectorBytes, V>(row);
  } else if (row.step == 1 && row.taps == 2 && row.tap_step == 1) {
    correlate_row<2, 1, kVectorBytes, V>(row);
  } else if (row.step == 1 && row.taps == 4 && row.tap_step == 1) {
    correlate_row<4, 1, kVectorBytes, V>(row);
  } else if (row.tap_step != 1 || row.step > 2 || row.taps < 3) {
    correlate_row<0, 0, kVectorBytes, V>(row);
  } else {
    with_constant<1, 2>(row.step, [&](auto step) __attribute__((always_inline)) {
      const auto run = [&](auto taps) __attribute__((always_inline)) {
        correlate_row<taps(), step(), kVectorBytes, V>(row);
      };
      if (!with_constant<3, 5, 7>(row.taps, run)) run(std::integral_constant<int, 0>{});
    });
  }
}

}  // namespace torchgraft::depthwise::cpu
