// The loops of a correlation that make several rows of outputs of a kernel of three by three at a time, and
// load a column of the source once for all of its outputs: strips, and for an input gradient with a stride of
// two pairs. Part of correlation_microkernels.h.
#pragma once

#include <torchgraft/cpu.h>
#include <torchgraft/cpu_convert.h>
#include <torchgraft/numbers.h>

#include <algorithm>
#include <cstdint>

#include "correlation_row.h"
#include "with_constant.h"

namespace torchgraft::depthwise::cpu {

// A strip of kPixels columns of outputs of a kernel of three by three, made from the top to the bottom with
// all taps in registers. Each column of the source is loaded once and serves every output that it meets:
// those of three rows, or of two with a stride of two, are in flight.
template <int kStep, int kPixels, bool kInside, typename V>
struct Strip {
  template <typename A, typename S>
  static TORCHGRAFT_INLINE void run(const Row<A, S>& row, int64_t pixel) {
    constexpr int kTaps = 3;
    // The sums of slot s belong to the output row `r - s`, where source row `r * kStep` is the one in turn.
    constexpr int kSlots = ceil_divide(kTaps, kStep);
    const int64_t first = row.first_position + pixel * kStep;
    const int64_t source_step = row.source_step;
    const int64_t width = row.width;
    const int64_t source_rows = (row.rows - 1) * kStep + kTaps;
    for (int64_t vector = 0; vector < row.vectors; ++vector) {
      const int64_t source_vector = row.source_vectors.place(vector);
      const int64_t output_vector = row.output_vectors.place(vector);
      V weights[kTaps][kTaps];
      TORCHGRAFT_UNROLL for (int y = 0; y < kTaps; ++y) {
        const A* kernel = row.kernels[y] + row.kernel_offset + vector * row.vector_step;
        TORCHGRAFT_UNROLL for (int x = 0; x < kTaps; ++x, advance(kernel, row.kernel_step)) {
          load(weights[y][x], kernel);
          keep(weights[y][x]);
        }
      }
      const A* const bias = row.bias + vector * row.bias_step;
      V sums[kSlots][kPixels];
      TORCHGRAFT_UNROLL for (int s = 0; s < kSlots; ++s) {
        TORCHGRAFT_UNROLL for (int p = 0; p < kPixels; ++p) load(sums[s][p], bias);
      }
      for (int64_t r = 0; r * kStep < source_rows; ++r) {
        TORCHGRAFT_UNROLL for (int phase = 0; phase < kStep; ++phase) {
          const int64_t i = r * kStep + phase;
          if (i < source_rows && row.sources[i] != nullptr) {
            const S* at = row.sources[i] + row.source_offset + first * source_step + source_vector;
            TORCHGRAFT_UNROLL for (int c = 0; c < (kPixels - 1) * kStep + kTaps;
                                   ++c, advance(at, source_step)) {
              if (!kInside && static_cast<uint64_t>(first + c) >= static_cast<uint64_t>(width)) continue;
              V column;
              load_converted<V, A>(column, at);
              // The next vector of channels: the processor does not foresee that it is read next.
              __builtin_prefetch(at + sizeof(V) / sizeof(A));
              keep(column);
              TORCHGRAFT_UNROLL for (int y = phase; y < kTaps; y += kStep) {
                TORCHGRAFT_UNROLL for (int x = 0; x < kTaps; ++x) {
                  if (c >= x && (c - x) % kStep == 0 && (c - x) / kStep < kPixels) {
                    sums[y / kStep][(c - x) / kStep] += weights[y][x] * column;
                  }
                }
              }
            }
          }
          if (phase == (kTaps - 1) % kStep && r >= kSlots - 1) {
            S* to = row.output_rows[r - (kSlots - 1)] + row.output_offset + pixel * row.output_step +
                    output_vector;
            TORCHGRAFT_UNROLL for (int p = 0; p < kPixels; ++p, advance(to, row.output_step))
                store_converted<A>(sums[kSlots - 1][p], to);
          }
        }
        TORCHGRAFT_UNROLL for (int p = 0; p < kPixels; ++p) {
          TORCHGRAFT_UNROLL for (int s = kSlots - 1; s > 0; --s) sums[s][p] = sums[s - 1][p];
          load(sums[0][p], bias);
        }
      }
    }
  }
};

// Strips that differ by one column at most: so that none is made twice, whatever the width.
template <int kStep, int kVectorBytes, typename V, typename A, typename S>
TORCHGRAFT_INLINE void correlate_strips(const Row<A, S>& row) {
  const int64_t strips = ceil_divide(row.count, kMostStrip);
  for (int64_t strip = 0; strip < strips; ++strip) {
    const int64_t pixel = row.count * strip / strips;
    const int64_t pixels = row.count * (strip + 1) / strips - pixel;
    const int64_t first = row.first_position + pixel * kStep;
    const bool is_inside = first >= 0 && first + (pixels - 1) * kStep + 3 <= row.width;
    with_constant<3, 4, 5, 6, 7>(pixels, [&](auto count) __attribute__((always_inline)) {
      using Inside = Strip<kStep, count(), true, V>;
      using Border = Strip<kStep, count(), false, V>;
      is_inside ? Compiled<kVectorBytes>::template call<Inside>(row, pixel)
                : Compiled<kVectorBytes>::template call<Border>(row, pixel);
    });
  }
}

// Pixels of an input gradient of a kernel of three by three with a stride of two: two by two of them, made of
// two by two pixels of the output gradient. The first pixel of a pair reads source `first` through the middle
// tap, the second one sources `first` and `first + 1` through the outer taps; so too in the other direction.
template <bool kInside, typename V>
struct Pairs {
  template <typename A, typename S>
  static TORCHGRAFT_INLINE void run(const Row<A, S>& row, int64_t begin, int64_t end) {
    // The tap through which a pixel of a pair reads a source.
    constexpr int kTap[2][2] = {{1, -1}, {2, 0}};
    for (int64_t vector = 0; vector < row.vectors; ++vector) {
      const int64_t source_vector = row.source_vectors.place(vector);
      const int64_t output_vector = row.output_vectors.place(vector);
      V weights[3][3];
      TORCHGRAFT_UNROLL for (int y = 0; y < 3; ++y) {
        const A* kernel = row.kernels[y] + vector * row.vector_step;
        TORCHGRAFT_UNROLL for (int x = 0; x < 3; ++x, advance(kernel, row.lanes)) {
          load(weights[y][x], kernel);
          keep(weights[y][x]);
        }
      }
      for (int64_t pair = begin; pair < end; ++pair) {
        const int64_t first = row.first_position + pair;
        const int64_t output = row.first_output + 2 * pair;
        V sums[2][2] = {};
        TORCHGRAFT_UNROLL for (int i = 0; i < 2; ++i) {
          if (!kInside && row.sources[i] == nullptr) continue;
          const S* const source = row.sources[i] + first * row.source_step + source_vector;
          TORCHGRAFT_UNROLL for (int j = 0; j < 2; ++j) {
            if (!kInside && static_cast<uint64_t>(first + j) >= static_cast<uint64_t>(row.width)) continue;
            V column;
            load_converted<V, A>(column, source + j * row.source_step);
            keep(column);
            TORCHGRAFT_UNROLL for (int r = i; r < 2; ++r) {
              TORCHGRAFT_UNROLL for (int p = j; p < 2; ++p) {
                sums[r][p] += weights[kTap[r][i]][kTap[p][j]] * column;
              }
            }
          }
        }
        TORCHGRAFT_UNROLL for (int r = 0; r < 2; ++r) {
          if (!kInside && row.output_rows[r] == nullptr) continue;
          S* const to = row.output_rows[r] + row.output_offset + output * row.output_step + output_vector;
          TORCHGRAFT_UNROLL for (int p = 0; p < 2; ++p) {
            if (!kInside && static_cast<uint64_t>(output + p) >= static_cast<uint64_t>(row.count)) continue;
            store_converted<A>(sums[r][p], to + p * row.output_step);
          }
        }
      }
    }
  }
};

template <int kVectorBytes, typename V, typename A, typename S>
TORCHGRAFT_INLINE void correlate_pairs(const Row<A, S>& row) {
  // Pairs that are taken through one vector of channels after another.
  constexpr int64_t kPairs = 8;
  const int64_t pairs = ceil_divide(row.count - row.first_output, 2);
  int64_t begin = std::clamp<int64_t>(-row.first_position, -row.first_output, pairs);
  int64_t end = std::clamp<int64_t>(
      std::min(row.width - 1 - row.first_position, (row.count - row.first_output) / 2), begin, pairs);
  for (int i = 0; i < 2; ++i) {
    if (row.sources[i] == nullptr || row.output_rows[i] == nullptr) begin = end = pairs;
  }
  if (begin > 0) Compiled<kVectorBytes>::template call<Pairs<false, V>>(row, int64_t{0}, begin);
  for (int64_t pair = begin; pair < end; pair += kPairs) {
    Compiled<kVectorBytes>::template call<Pairs<true, V>>(row, pair, std::min(pair + kPairs, end));
  }
  if (end < pairs) Compiled<kVectorBytes>::template call<Pairs<false, V>>(row, end, pairs);
}

}  // namespace torchgraft::depthwise::cpu
