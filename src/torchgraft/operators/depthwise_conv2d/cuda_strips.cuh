// Forward and input gradient on NCHW planes without shared memory, k = 3, 5, 7, stride 1 and 2.
//
// A strip is a stretch of rows of one plane (or a segment of a wide one's columns). Neighbouring lanes of a
// warp own neighbouring columns of it, one vector access wide; short rows leave room for several strips in a
// warp. The lanes slide down the sources: each source is read from device memory once, `kDepth` rows ahead of
// its use, the columns of neighbours come by shuffle, weights and the sums of the results that are under way
// stay in registers, and a result leaves as soon as its last row of sources has passed. No thread waits for
// another warp.
//
// The input gradient of stride 1 is the forward pass with the kernel turned around; that of stride 2 streams
// the output gradient and finishes two rows of results a row of sources.
//
// Predicted: k <= 5 bound by memory (some 14, 31 instructions a result against the 57 that fp32 has time for);
// k = 7 by its 49 multiply-adds and five other instructions a result, which take as long as fp32's memory.
#pragma once

#include "cuda_stencil.cuh"

namespace torchgraft::depthwise::cuda {

// How columns and rows of sources and results belong together, and what a lane holds. A lane owns kResults
// neighbouring results and kSources sources; the window of its results reaches kLeft sources to the left of
// its own and kRight to the right.
template <typename Element, int kKernelSize, int kStrideSize, bool kIsTransposed, int kResultCount,
          bool kIsAligned>
struct Strip {
  using T = Element;
  static constexpr int kKernel = kKernelSize;
  static constexpr int kTaps = kKernel * kKernel;
  static constexpr int kStride = kStrideSize;
  static constexpr bool kTransposed = kIsTransposed;
  static constexpr int kResults = kResultCount;
  // Whether a lane's sources, and its results, are one access each; else they are taken one by one.
  static constexpr bool kAligned = kIsAligned;
  static_assert(!kTransposed || kResults % kStride == 0);

  static constexpr int kReach = kKernel / 2;
  static constexpr int kSources = kTransposed ? kResults / kStride : kResults * kStride;
  static constexpr int kLeft = kTransposed ? kReach / kStride : kReach;
  static constexpr int kRight = kTransposed ? (kReach + kStride - 1) / kStride : kReach + 1 - kStride;
  static constexpr int kWindow = kLeft + kSources + kRight;

  // Shuffles move words of four bytes.
  static constexpr int kWordElements = kSources * sizeof(T) >= 4 ? 4 / sizeof(T) : 1;
  static constexpr int kWords = kSources / kWordElements;
  static constexpr int kLeftWords = ceil_divide(kLeft, kWordElements);
  static constexpr int kRightWords = ceil_divide(kRight, kWordElements);
  static constexpr int kHaloLanes = std::max(ceil_divide(kLeft, kSources), ceil_divide(kRight, kSources));

  // Rows of sources in flight, and after how many rows registers have their names again.
  static constexpr int kDepth = kWords >= 4 ? 4 : 8;
  static constexpr int kUnroll =
      kTransposed ? kDepth : ceil_divide(std::max(kKernel, kDepth), kDepth) * kDepth;
  static constexpr int kSlots = kTransposed ? kUnroll * kStride : kUnroll / kStride;

  // Row `row` of sources takes part in result row (row - tap) / kStride, or row * kStride + tap.
  static constexpr bool meets(int row, int tap) { return kTransposed || (row + kStride * kKernel - tap) % kStride == 0; }
  static constexpr int slot(int row, int tap) {
    return kTransposed ? (row * kStride + tap) % kSlots : (row + kStride * kSlots - tap) / kStride % kSlots;
  }
  // Rows counted from the first of a stretch.
  static constexpr int result_row(int row, int tap) {
    return kTransposed ? row * kStride + tap - (kKernel - 1) : (row - (kKernel - 1)) / kStride;
  }
  static constexpr bool starts(int tap) { return kTransposed ? tap >= kKernel - kStride : tap == 0; }
  static constexpr bool finishes(int tap) { return kTransposed ? tap < kStride : tap == kKernel - 1; }

  // The element of the window that joins a result and a tap; negative where they do not meet.
  static constexpr int window(int result, int tap) {
    if (!kTransposed) return result * kStride + tap;
    const int twice = result + kReach - tap;
    return (twice + kStride * kKernel) % kStride == 0 ? kLeft + (twice + kStride * kKernel) / kStride - kKernel
                                                      : -1;
  }
};

struct StripParameters {
  FastDivisor lanes, segments, stretches, channels, multiplier;
  int strips, strips_of_warp;
  int halo_lanes;         // at either end of a strip: they only hold sources
  int units;              // lanes of a segment that have results
  int first_source_column, first_result_column;  // of unit 0
  int source_height, source_width, result_height, result_width;
  int first_source_row, first_result_row;  // of stretch 0; the rows of sources in front of the image count
  int source_rows, result_rows;            // of a stretch
  int source_step;                         // rows between two stretches
  bool flipped;                            // the kernel is turned around
};

template <int kWords>
struct Words {
  uint32_t words[kWords];
};

constexpr int kStripThreads = 128;

template <typename Strip>
constexpr int strip_blocks() {
  return Strip::kKernel == 3 ? 6 : 4;
}

template <typename Strip>
__global__ void __launch_bounds__(kStripThreads, strip_blocks<Strip>())
    strips(const typename Strip::T* __restrict__ source, const typename Strip::T* __restrict__ weight,
           const typename Strip::T* __restrict__ bias, typename Strip::T* __restrict__ result,
           StripParameters parameters) {
  using T = typename Strip::T;
  using Row = Words<Strip::kWords>;
  constexpr unsigned kAllLanes = 0xffffffff;
  constexpr int kKernel = Strip::kKernel;
  constexpr int kResults = Strip::kResults;
  constexpr int kSources = Strip::kSources;

  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(blockIdx.x) * (kStripThreads / 32) + static_cast<int>(threadIdx.x) / 32;
  const int strip_of_warp = parameters.lanes.divide(lane);
  const int lane_of_strip = lane - strip_of_warp * parameters.lanes.divisor();
  const int strip = warp * parameters.strips_of_warp + strip_of_warp;
  const bool active = strip_of_warp < parameters.strips_of_warp && strip < parameters.strips;
  if (warp * parameters.strips_of_warp >= parameters.strips) return;

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
  const int channel = next(parameters.channels);

  const int unit_of_segment = lane_of_strip - parameters.halo_lanes;
  const int unit = segment * parameters.units + unit_of_segment;
  const int source_column = parameters.first_source_column + unit * kSources;
  const int result_column = parameters.first_result_column + unit * kResults;
  const int source_width = parameters.source_width;
  const int result_width = parameters.result_width;

  // Rows below are counted from the first of the stretch.
  const int first_source_row = parameters.first_source_row + stretch * parameters.source_step;
  const int first_result_row = parameters.first_result_row + stretch * parameters.result_rows;
  const int source_rows = parameters.source_rows;
  // Aligned, a lane's elements are all in the image or all outside.
  const bool loads = active && source_column + kSources > 0 && source_column < source_width;
  const bool stores = active && unit_of_segment >= 0 && unit_of_segment < parameters.units &&
                      result_column + kResults > 0 && result_column < result_width;
  const int source_begin = max(-first_source_row, 0);
  const int source_end = loads ? min(parameters.source_height - first_source_row, source_rows) : 0;
  const int result_begin = max(-first_result_row, 0);
  const int result_end =
      stores ? min(parameters.result_height - first_result_row, parameters.result_rows) : 0;

  const T* next_source =
      source + static_cast<int64_t>(parameters.multiplier.divide(plane)) * parameters.source_height * source_width +
      static_cast<int64_t>(first_source_row) * source_width + source_column;
  T* next_result = result + static_cast<int64_t>(plane) * parameters.result_height * result_width +
                          static_cast<int64_t>(first_result_row + Strip::result_row(0, 0)) * result_width + result_column;

  const auto load = [&](int row) {
    Row words = {};
    const T* const elements = next_source;
    next_source += source_width;
    if (row >= source_begin && row < source_end) {
      if constexpr (Strip::kAligned) {
        const auto access = *reinterpret_cast<const Vector<T, kSources>*>(elements);
        memcpy(&words, &access, sizeof(access));
      } else {
        T access[kSources] = {};
#pragma unroll
        for (int i = 0; i < kSources; ++i) {
          if (source_column + i >= 0 && source_column + i < source_width) access[i] = elements[i];
        }
        memcpy(&words, &access, sizeof(access));
      }
    }
    return words;
  };

  Row ring[Strip::kDepth];
#pragma unroll
  for (int row = 0; row < Strip::kDepth; ++row) ring[row] = load(row);

  float taps[Strip::kTaps];
  const int tap_step = parameters.flipped ? -1 : 1;
  const T* const first_tap =
      weight + static_cast<int64_t>(channel) * Strip::kTaps + (parameters.flipped ? Strip::kTaps - 1 : 0);
#pragma unroll
  for (int tap = 0; tap < Strip::kTaps; ++tap) taps[tap] = static_cast<float>(first_tap[tap * tap_step]);
  const float start = bias == nullptr ? 0.0F : static_cast<float>(bias[channel]);

  // All ones where the neighbour at a distance is one of this strip.
  uint32_t left_masks[Strip::kHaloLanes], right_masks[Strip::kHaloLanes];
#pragma unroll
  for (int i = 0; i < Strip::kHaloLanes; ++i) {
    left_masks[i] = lane_of_strip > i ? ~0U : 0U;
    right_masks[i] = lane_of_strip + i + 1 < parameters.lanes.divisor() ? ~0U : 0U;
  }

  float sums[Strip::kSlots][kResults] = {};
  for (int first_row = 0; first_row < source_rows; first_row += Strip::kUnroll) {
#pragma unroll
    for (int phase = 0; phase < Strip::kUnroll; ++phase) {
      const int row = first_row + phase;
      const Row own = ring[phase % Strip::kDepth];
      ring[phase % Strip::kDepth] = load(row + Strip::kDepth);

      // Rows of padding take no part, where that spares many multiplications.
      if (kKernel == 3 || __any_sync(kAllLanes, row >= source_begin && row < source_end)) {
        // This lane's words and those of its neighbours.
        uint32_t words[Strip::kLeftWords + Strip::kWords + Strip::kRightWords];
#pragma unroll
        for (int i = 1; i <= Strip::kLeftWords; ++i) {
          const int distance = ceil_divide(i, Strip::kWords);
          words[Strip::kLeftWords - i] =
              __shfl_up_sync(kAllLanes, own.words[distance * Strip::kWords - i], distance) &
              left_masks[distance - 1];
        }
#pragma unroll
        for (int i = 0; i < Strip::kWords; ++i) words[Strip::kLeftWords + i] = own.words[i];
#pragma unroll
        for (int i = 0; i < Strip::kRightWords; ++i) {
          const int distance = i / Strip::kWords + 1;
          words[Strip::kLeftWords + Strip::kWords + i] =
              __shfl_down_sync(kAllLanes, own.words[i % Strip::kWords], distance) &
              right_masks[distance - 1];
        }
        float values[Strip::kWindow];
#pragma unroll
        for (int i = 0; i < Strip::kWindow; ++i) {
          const int element = Strip::kLeftWords * Strip::kWordElements - Strip::kLeft + i;
          T pair[4 / sizeof(T)];
          memcpy(pair, &words[element / Strip::kWordElements], 4);
          values[i] = static_cast<float>(pair[element % Strip::kWordElements]);
        }
#pragma unroll
        for (int tap_row = 0; tap_row < kKernel; ++tap_row) {
          if (!Strip::meets(phase, tap_row)) continue;
          float* row_sums = sums[Strip::slot(phase, tap_row)];
          if (Strip::starts(tap_row)) {
#pragma unroll
            for (int i = 0; i < kResults; ++i) row_sums[i] = start;
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
      } else {
#pragma unroll
        for (int tap_row = 0; tap_row < kKernel; ++tap_row) {
          if (!Strip::meets(phase, tap_row) || !Strip::starts(tap_row)) continue;
#pragma unroll
          for (int i = 0; i < kResults; ++i) sums[Strip::slot(phase, tap_row)][i] = start;
        }
      }

#pragma unroll
      for (int tap_row = 0; tap_row < kKernel; ++tap_row) {
        if (!Strip::meets(phase, tap_row) || !Strip::finishes(tap_row)) continue;
        const int result_row = Strip::result_row(row, tap_row);
        T* const elements = next_result;
        next_result += result_width;
        if (result_row < result_begin || result_row >= result_end) continue;
        Vector<T, kResults> values;
#pragma unroll
        for (int i = 0; i < kResults; ++i) values[i] = static_cast<T>(sums[Strip::slot(phase, tap_row)][i]);
        if constexpr (Strip::kAligned) {
          *reinterpret_cast<Vector<T, kResults>*>(elements) = values;
        } else {
#pragma unroll
          for (int i = 0; i < kResults; ++i) {
            if (result_column + i >= 0 && result_column + i < result_width) elements[i] = values[i];
          }
        }
      }
    }
  }
}

}  // namespace torchgraft::depthwise::cuda
