// Forward and input gradient on NCHW planes without shared memory, k = 3, 5, 7, stride 1 and 2.
//
// A strip is a stretch of rows of one plane (or of a segment of a wide plane's columns). Neighbouring lanes
// of a warp own neighbouring columns of it; short rows leave room for several strips in a warp. The lanes
// slide down the sources: each row comes by asynchronous copies into a ring of the warp's own in shared
// memory, some rows ahead of its use, where a lane finds the columns of its neighbours too. Weights and the
// sums of the results that are under way stay in registers, and a result leaves as soon as its last row of
// sources has passed. No thread waits for another warp, and a source is read from device memory once but for
// the kernel - 1 rows that two stretches share.
//
// The input gradient of stride 1 is the forward pass with the kernel turned around; that of stride 2 streams
// the output gradient and finishes two rows of results a row of sources.
//
// Predicted: k <= 5 bound by memory (17 and 36 instructions a result against the 57 that fp32's memory leaves
// time for, 28 for halves); k = 7 by its 49 multiply-adds and ten other instructions a result, which take as
// long as fp32's memory. Measured on an H200, fp32: (128,32,112x112,k3) 113 us (floor 99),
// (128,144,56x56,k3) 129 (111), (128,96,112x112,k3,s2) 195 forward, 213 input gradient (186),
// (128,96,56x56,k7) 110 (74): 16 warps a multiprocessor issue three instructions in four cycles; bf16 62
// (49), 70 (56), 104 and 109 (93), 116 (37).

#include <limits>

#include "../kernels.h"
#include "plan.h"
#include "strip.cuh"

namespace torchgraft::depthwise::cuda {

// One lane of a warp: its columns of a strip of sources, and of the results that they are added to.
template <typename Strip>
class StripsCorrelate {
 public:
  using T = typename Strip::T;
  using Ring = StripRing<Strip>;
  using Rows = StripRows<T, Strip::kSources, Strip::kAligned>;
  static constexpr int kKernel = Strip::kKernel;
  static constexpr int kResults = Strip::kResults;
  static constexpr int kSources = Strip::kSources;
  // Rows that cannot be copied asynchronously go through registers, as many at a time.
  static constexpr int kPending = Rows::kAsync ? 1 : Ring::kRows;
  // Arrays of a lane are local variables of `run`: while a loop over one is not unrolled, the compiler keeps
  // the whole object that holds it in memory.
  using Pending = T[kPending][kSources];
  using Taps = float[Strip::kTaps];
  using Sums = float[Strip::kSlots][kResults];

  // A lane's columns: its sources, and its results in the next row that it finishes. They change with each
  // row. As members of this class they take up to six registers more.
  struct Columns {
    Rows source;
    T* next_result;
  };

  // Finds where this lane's sources and results lie. Rows are counted from the first of the stretch.
  __device__ StripsCorrelate(const T* source, T* result, const StripParameters& parameters, Columns& columns)
      : parameters_(parameters) {
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    const int warp = warp_of_grid();
    const int strip_of_warp = parameters.lanes.divide(lane);
    const int lane_of_strip = lane - strip_of_warp * parameters.lanes.divisor();
    const int strip = warp * parameters.strips_of_warp + strip_of_warp;
    const bool active = strip_of_warp < parameters.strips_of_warp && strip < parameters.strips;

    int rest = active ? strip : 0;
    const auto next = [&rest](const FastDivisor& size) {
      const int quotient = size.divide(rest);
      const int remainder = rest - quotient * size.divisor();
      rest = quotient;
      return remainder;
    };
    const int segment = next(parameters.segments);
    const int stretch = next(parameters.stretches);
    const int plane = rest;
    channel_ = next(parameters.channels);

    const int unit_of_segment = lane_of_strip - parameters.halo_lanes;
    const int unit = segment * parameters.units + unit_of_segment;
    const int source_column = parameters.first_source_column + unit * kSources;
    const int result_column = parameters.first_result_column + unit * kResults;
    const int source_width = parameters.source_width;
    const int result_width = parameters.result_width;

    const int first_source_row = parameters.first_source_row + stretch * parameters.source_step;
    const int first_result_row = parameters.first_result_row + stretch * parameters.result_rows;
    // If aligned, a lane's elements are all in the image or all outside.
    const bool loads = active && source_column + kSources > 0 && source_column < source_width;
    const bool stores = active && unit_of_segment >= 0 && unit_of_segment < parameters.units &&
                        result_column + kResults > 0 && result_column < result_width;
    result_column_ = result_column;
    result_begin_ = max(-first_result_row, 0);
    result_end_ = stores ? min(parameters.result_height - first_result_row, parameters.result_rows) : 0;
    columns.source = {source +
                          static_cast<int64_t>(parameters.multiplier.divide(plane)) *
                              parameters.source_height * source_width +
                          static_cast<int64_t>(first_source_row) * source_width + source_column,
                      source_column, source_width, max(-first_source_row, 0),
                      loads ? min(parameters.source_height - first_source_row, parameters.source_rows) : 0};
    columns.next_result = result + static_cast<int64_t>(plane) * parameters.result_height * result_width +
                          static_cast<int64_t>(first_result_row + Strip::result_row(0, 0)) * result_width +
                          result_column;
    ring_ = prepare_ring<Strip, Ring>(
        shared_memory<T>() + static_cast<int>(threadIdx.x) / kLanes * Ring::kElements,
        parameters.lanes.divisor(), parameters.strips_of_warp, strip_of_warp, lane_of_strip);
  }

  static __device__ int warp_of_grid() {
    return static_cast<int>(blockIdx.x) * (kStripThreads / kLanes) + static_cast<int>(threadIdx.x) / kLanes;
  }

  __device__ void run(Columns& columns, const Rounded<T>& weight, const Rounded<T>& bias) {
    Pending pending;
    begin_rows(columns, pending);
    Taps taps;
    load_taps(weight, taps);
    start_ = bias.or_zero(true, channel_);

    Sums sums = {};
    for (int first_row = 0; first_row < parameters_.source_rows; first_row += Strip::kUnroll) {
      if constexpr (!Rows::kAsync) fetch(columns, first_row + Strip::kUnroll, pending);
#pragma unroll
      for (int phase = 0; phase < Strip::kUnroll; ++phase) {
        const int row = first_row + phase;
        if (row >= parameters_.source_rows) break;
        if constexpr (Rows::kAsync) next_row(columns, row, phase);
        // Rows of padding take no part, where that saves many multiplications.
        if (kKernel == 3 || __any_sync(0xffffffff, columns.source.inside(row))) {
          add_row(phase, taps, sums);
        } else {
          start_rows(phase, sums);
        }
        store_rows(columns, row, phase, sums);
      }
      if constexpr (!Rows::kAsync) put(pending);
    }
    if constexpr (Rows::kAsync) wait_for_copies<0>();
  }

 private:
  __device__ void begin_rows(Columns& columns, Pending& pending) {
    if constexpr (Rows::kAsync) {
#pragma unroll
      for (int row = 0; row < Ring::kRows - 1; ++row) {
        columns.source.copy(row, ring_ + row * Ring::kRow);
        commit_copies();
      }
    } else {
      fetch(columns, 0, pending);
      put(pending);
    }
  }

  __device__ void fetch(Columns& columns, int first_row, Pending& pending) {
#pragma unroll
    for (int i = 0; i < kPending; ++i) columns.source.fetch(first_row + i, pending[i]);
  }

  __device__ void put(const Pending& pending) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kPending; ++i) {
#pragma unroll
      for (int j = 0; j < kSources; ++j) ring_[i * Ring::kRow + j] = pending[i][j];
    }
    __syncwarp();
  }

  __device__ void load_taps(const Rounded<T>& weight, Taps& taps) {
    const int tap_step = parameters_.flipped ? -1 : 1;
    const Rounded<T> first_tap = weight + (static_cast<int64_t>(channel_) * Strip::kTaps +
                                           (parameters_.flipped ? Strip::kTaps - 1 : 0));
    T read[Strip::kTaps];
    first_tap.with_numbers([&](const auto* numbers) {
#pragma unroll
      for (int tap = 0; tap < Strip::kTaps; ++tap) read[tap] = read_rounded<T>(numbers + tap * tap_step);
    });
#pragma unroll
    for (int tap = 0; tap < Strip::kTaps; ++tap) taps[tap] = static_cast<float>(read[tap]);
  }

  // Waits for a row of sources, and begins to copy the row that takes the place of the one before it.
  __device__ void next_row(Columns& columns, int row, int phase) {
    wait_for_copies<Ring::kRows - 2>();
    __syncwarp();
    columns.source.copy(row + Ring::kRows - 1, ring_ + (phase + Ring::kRows - 1) % Ring::kRows * Ring::kRow);
    commit_copies();
  }

  // Adds a row of sources to all results that it takes part in.
  __device__ void add_row(int phase, const Taps& taps, Sums& sums) {
    float values[Strip::kWindow];
    load_window<Strip>(ring_ + phase % Ring::kRows * Ring::kRow, values);
#pragma unroll
    for (int tap_row = 0; tap_row < kKernel; ++tap_row) {
      if (!Strip::meets(phase, tap_row)) continue;
      float* row_sums = sums[Strip::slot(phase, tap_row)];
      if (Strip::starts(tap_row)) {
#pragma unroll
        for (int i = 0; i < kResults; ++i) row_sums[i] = start_;
      }
#pragma unroll
      for (int tap = 0; tap < kKernel; ++tap) {
#pragma unroll
        for (int i = 0; i < kResults; ++i) {
          const int value = Strip::window(i, tap);
          if (value >= 0) row_sums[i] += taps[tap_row * kKernel + tap] * values[value];
        }
      }
    }
  }

  // Starts the sums of results whose first row of sources is padding.
  __device__ void start_rows(int phase, Sums& sums) {
#pragma unroll
    for (int tap_row = 0; tap_row < kKernel; ++tap_row) {
      if (!Strip::meets(phase, tap_row) || !Strip::starts(tap_row)) continue;
#pragma unroll
      for (int i = 0; i < kResults; ++i) sums[Strip::slot(phase, tap_row)][i] = start_;
    }
  }

  // Stores the results whose last row of sources this is.
  __device__ void store_rows(Columns& columns, int row, int phase, const Sums& sums) {
#pragma unroll
    for (int tap_row = 0; tap_row < kKernel; ++tap_row) {
      if (!Strip::meets(phase, tap_row) || !Strip::finishes(tap_row)) continue;
      const int result_row = Strip::result_row(row, tap_row);
      T* const elements = columns.next_result;
      columns.next_result += parameters_.result_width;
      if (result_row < result_begin_ || result_row >= result_end_) continue;
      Vector<T, kResults> values;
#pragma unroll
      for (int i = 0; i < kResults; ++i) values[i] = static_cast<T>(sums[Strip::slot(phase, tap_row)][i]);
      if constexpr (Strip::kAligned) {
        *reinterpret_cast<Vector<T, kResults>*>(elements) = values;
      } else {
#pragma unroll
        for (int i = 0; i < kResults; ++i) {
          if (result_column_ + i >= 0 && result_column_ + i < parameters_.result_width) {
            elements[i] = values[i];
          }
        }
      }
    }
  }

  const StripParameters& parameters_;
  int channel_;
  T* ring_;  // this lane's sources in the ring's first row
  int result_column_;
  int result_begin_, result_end_;  // rows of results that this lane stores
  float start_;                    // of a sum: the bias
};

template <typename Strip>
constexpr int strip_blocks() {
  return Strip::kKernel == 3 ? 8 : Strip::kKernel == 5 ? 6 : 4;
}

template <typename Strip>
__global__ void __launch_bounds__(kStripThreads, strip_blocks<Strip>())
    strips_correlate(const typename Strip::T* __restrict__ source, Rounded<typename Strip::T> weight,
                     Rounded<typename Strip::T> bias, typename Strip::T* __restrict__ result,
                     StripParameters parameters) {
  using Lane = StripsCorrelate<Strip>;
  if (Lane::warp_of_grid() * parameters.strips_of_warp >= parameters.strips) return;
  typename Lane::Columns columns;
  Lane(source, result, parameters, columns).run(columns, weight, bias);
}

namespace {

template <typename Strip>
void launch(const Correlation<typename Strip::T>& pass) {
  const auto& [source, weight, bias, result, geometry, layout, transposed, stream] = pass;
  const PassAxis height(geometry.height, transposed);
  const PassAxis width(geometry.width, transposed);
  StripParameters parameters = {};

  // Unit 0 lies at the left end of the results; or, where results and sources change places, its results
  // around the middle of the kernel.
  if (Strip::kTransposed) {
    const int shift = width.padding - Strip::kReach;
    const int units = floor_divide(shift, Strip::kResults);
    parameters.first_source_column = units * Strip::kSources;
    parameters.first_result_column = units * Strip::kResults - shift;
  } else {
    parameters.first_source_column = Strip::first_source(width.padding);
  }
  const int units = ceil_divide(width.result - parameters.first_result_column, Strip::kResults);
  const StripLanes cut = cut_into_lanes<Strip>(units, parameters.first_source_column, width.source);
  parameters.units = cut.units;
  parameters.halo_lanes = cut.halo_left;
  parameters.lanes = FastDivisor(cut.lanes());
  parameters.segments = FastDivisor(cut.segments);
  parameters.strips_of_warp = StripRing<Strip>::strips(cut.lanes());

  const int64_t channels = transposed ? geometry.channels : geometry.output_channels();
  const int64_t planes = geometry.batch * channels;
  const int phase = Strip::kTransposed ? height.padding % Strip::kStride : 0;
  const int rows = strip_rows(height.result + phase, Strip::kKernel,
                              ceil_divide<int64_t>(planes * cut.segments, parameters.strips_of_warp),
                              current_device().multiprocessors);
  if (Strip::kTransposed) {
    parameters.result_rows = ceil_divide(rows, Strip::kStride) * Strip::kStride;
    parameters.source_step = parameters.result_rows / Strip::kStride;
    parameters.source_rows = parameters.source_step + Strip::kReach;
    parameters.first_source_row = height.padding / Strip::kStride - Strip::kReach;
    parameters.first_result_row = -phase;
  } else {
    parameters.result_rows = rows;
    parameters.source_step = rows * Strip::kStride;
    parameters.source_rows = (rows - 1) * Strip::kStride + Strip::kKernel;
    parameters.first_source_row = -height.padding;
  }
  const int stretches = ceil_divide(height.result + phase, parameters.result_rows);
  parameters.stretches = FastDivisor(stretches);
  parameters.strips = static_cast<int>(planes * cut.segments * stretches);
  parameters.channels = FastDivisor(static_cast<int>(channels));
  parameters.multiplier = FastDivisor(static_cast<int>(geometry.multiplier));
  parameters.source_height = height.source;
  parameters.source_width = width.source;
  parameters.result_height = height.result;
  parameters.result_width = width.result;
  parameters.flipped = transposed && !Strip::kTransposed;

  const int warps = ceil_divide(parameters.strips, parameters.strips_of_warp);
  strips_correlate<Strip>
      <<<ceil_divide(warps, kStripThreads / kLanes), kStripThreads, StripRing<Strip>::kBytes, stream>>>(
          source, weight, bias, result, parameters);
  check_launch(pass.name());
}

}  // namespace

template <typename T>
void launch_strips_correlate(const Correlation<T>& pass) {
  const PassAxis width(pass.geometry.width, pass.transposed);
  const auto launch_strip = [&](auto strip) { launch<decltype(strip)>(pass); };
  with_small_kernel(pass.geometry, [&](auto kernel, auto stride) {
    constexpr int kAnySegments = std::numeric_limits<int>::max();
    if constexpr (stride > 1) {
      if (pass.transposed) {
        return with_strip<T, kernel, stride, true>(pass.source, pass.result, width, kAnySegments,
                                                   launch_strip);
      }
    }
    with_strip<T, kernel, stride, false>(pass.source, pass.result, width, kAnySegments, launch_strip);
  });
}

template void launch_strips_correlate(const Correlation<float>&);
template void launch_strips_correlate(const Correlation<Half>&);
template void launch_strips_correlate(const Correlation<BFloat16>&);

}  // namespace torchgraft::depthwise::cuda
