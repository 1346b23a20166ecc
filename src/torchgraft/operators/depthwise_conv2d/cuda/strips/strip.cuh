// Forward and input gradient on NCHW planes without shared memory, k = 3, 5, 7, stride 1 and 2.
//
// A strip is a stretch of rows of one plane (or a segment of a wide one's columns). Neighbouring lanes of a
// warp own neighbouring columns of it; short rows leave room for several strips in a warp. The lanes slide
// down the sources: each row comes by asynchronous copies into a ring of the warp's own in shared memory,
// some rows ahead of its use, where a lane finds the columns of its neighbours too. Weights and the sums of
// the results that are under way stay in registers, and a result leaves as soon as its last row of sources
// has passed. No thread waits for another warp, and a source is read from device memory once but for the
// kernel - 1 rows that two stretches share.
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
#pragma once

#include <torchgraft/ptx.cuh>

#include "../stencil.cuh"

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

  static constexpr int kHaloLanes = std::max(ceil_divide(kLeft, kSources), ceil_divide(kRight, kSources));

  // After so many rows registers have their names again.
  static constexpr int kUnroll = 8;
  static constexpr int kSlots = kTransposed ? kUnroll * kStride : kUnroll / kStride;

  // Row `row` of sources takes part in result row (row - tap) / kStride, or row * kStride + tap.
  static constexpr bool meets(int row, int tap) {
    return kTransposed || (row + kStride * kKernel - tap) % kStride == 0;
  }
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
    return (twice + kStride * kKernel) % kStride == 0
               ? kLeft + (twice + kStride * kKernel) / kStride - kKernel
               : -1;
  }
};

struct StripParameters {
  FastDivisor lanes, segments, stretches, channels, multiplier;
  int strips, strips_of_warp;
  int halo_lanes;                                // at either end of a strip: they only hold sources
  int units;                                     // lanes of a segment that have results
  int first_source_column, first_result_column;  // of unit 0
  int source_height, source_width, result_height, result_width;
  int first_source_row, first_result_row;  // of stretch 0; the rows of sources in front of the image count
  int source_rows, result_rows;            // of a stretch
  int source_step;                         // rows between two stretches
  bool flipped;                            // the kernel is turned around
};

// Copies kElements of T, four bytes or more, to shared memory; wait_for_copies waits for all that were begun
// before the last kBehind calls of commit_copies. Before compute capability 8.0 they take effect at once.
template <int kElements, bool kBypassL1 = false, typename T>
__device__ void copy_async(T* shared, const T* memory) {
#if __CUDA_ARCH__ >= 800
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  constexpr int kBytes = kElements * sizeof(T);
  if constexpr (kBypassL1 && kBytes == 16) {
    ptx::cp_async_cg(address, memory);
  } else {
    ptx::cp_async_ca<kBytes>(address, memory);
  }
#else
  *reinterpret_cast<Vector<T, kElements>*>(shared) = *reinterpret_cast<const Vector<T, kElements>*>(memory);
#endif
}

__device__ inline void commit_copies() {
#if __CUDA_ARCH__ >= 800
  ptx::cp_async_commit_group();
#endif
}

template <int kBehind>
__device__ void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  ptx::cp_async_wait_group<kBehind>();
#endif
}

constexpr int kStripThreads = 128;

// A warp's ring of rows in shared memory, one of them in use and the others under way. In a row, units of a
// lane's sources lie side by side; between strips, and at both ends, are zeros.
// Four rows of sixteen bytes a lane keep enough bytes under way, and those of a sector in L1 together.
template <typename Strip, int kRowCount = Strip::kSources * sizeof(typename Strip::T) < 16 ||
                                                  (Strip::kStride == 2 && Strip::kKernel > 3)
                                              ? 8
                                              : 4>
struct StripRing {
  using T = typename Strip::T;
  static constexpr int kRows = kRowCount;
  static_assert(Strip::kUnroll % kRows == 0);
  static constexpr int kUnits = 44;
  // One more, for lanes without a strip.
  static constexpr int kRow = (kUnits + 1 + Strip::kHaloLanes) * Strip::kSources;
  static constexpr int kElements = kRows * kRow;
  static constexpr int kBytes = kStripThreads / 32 * kElements * static_cast<int>(sizeof(T));

  // Strips of so many lanes that fit.
  static constexpr int strips(int lanes) {
    return std::min(32 / lanes, (kUnits - Strip::kHaloLanes) / (lanes + Strip::kHaloLanes));
  }
};

// The least power of two that is not below `value`.
constexpr int round_to_power(int value) {
  int power = 1;
  while (power < value) power *= 2;
  return power;
}

// kCount elements behind `memory`, which lies on a boundary of kAligned elements.
template <int kCount, int kAligned, typename T>
__device__ void load_elements(const T* memory, float (&values)[kCount]) {
  static_assert(kCount % kAligned == 0);
#pragma unroll
  for (int i = 0; i < kCount; i += kAligned) {
    const Vector<T, kAligned> access = *reinterpret_cast<const Vector<T, kAligned>*>(memory + i);
#pragma unroll
    for (int j = 0; j < kAligned; ++j) values[i + j] = static_cast<float>(access[j]);
  }
}

// The kElements neighbouring columns of an image that a lane reads, row by row.
template <typename T, int kElements, bool kAligned, bool kBypassL1 = false>
struct StripRows {
  static constexpr int kAccess = kAligned ? kElements : 1;
  // Narrower accesses cannot be copied asynchronously.
  static constexpr bool kAsync = kAccess * sizeof(T) >= 4;

  const T* next;
  int column, width;
  int begin, end;  // rows that exist, counted from the first that `next` points to

  __device__ bool inside(int row) const { return row >= begin && row < end; }
  // Aligned, they are all in the image or all outside, and then `inside` is never true.
  __device__ bool exists(int i) const { return kAligned || (column + i >= 0 && column + i < width); }

  // Row `row`, the one behind that of the last call, to shared memory.
  __device__ void copy(int row, T* shared) {
    const T* const elements = next;
    next += width;
#pragma unroll
    for (int i = 0; i < kElements; i += kAccess) {
      if (inside(row) && exists(i)) {
        copy_async<kAccess, kBypassL1>(shared + i, elements + i);
      } else {
        *reinterpret_cast<Vector<T, kAccess>*>(shared + i) = {};
      }
    }
  }

  // The same to registers.
  __device__ void fetch(int row, T (&values)[kElements]) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) values[i] = inside(row) && exists(i) ? next[i] : static_cast<T>(0.0F);
    next += width;
  }
};

// The window of a lane: its own sources, which lie at `own` in the ring, and its neighbours' or zeros.
template <typename Strip>
__device__ void load_window(const typename Strip::T* own, float (&values)[Strip::kWindow]) {
  constexpr int kSources = Strip::kSources;
  constexpr int kLeft =
      Strip::kLeft <= kSources ? round_to_power(Strip::kLeft) : Strip::kHaloLanes * kSources;
  constexpr int kRight =
      Strip::kRight <= kSources ? round_to_power(Strip::kRight) : Strip::kHaloLanes * kSources;
  float middle[kSources];
  load_elements<kSources, kSources>(own, middle);
#pragma unroll
  for (int i = 0; i < kSources; ++i) values[Strip::kLeft + i] = middle[i];
  if constexpr (Strip::kLeft > 0) {
    float left[kLeft];
    load_elements<kLeft, std::min(kLeft, kSources)>(own - kLeft, left);
#pragma unroll
    for (int i = 0; i < Strip::kLeft; ++i) values[i] = left[kLeft - Strip::kLeft + i];
  }
  if constexpr (Strip::kRight > 0) {
    float right[kRight];
    load_elements<kRight, std::min(kRight, kSources)>(own + kSources, right);
#pragma unroll
    for (int i = 0; i < Strip::kRight; ++i) values[Strip::kLeft + kSources + i] = right[i];
  }
}

// Where a lane's own sources lie in the first row of its warp's ring; and the zeros between strips are made.
template <typename Strip, typename Ring>
__device__ typename Strip::T* prepare_ring(typename Strip::T* warp_ring, int lanes_of_strip,
                                           int strips_of_warp, int strip, int lane_of_strip) {
  using T = typename Strip::T;
  constexpr int kGap = Strip::kHaloLanes * Strip::kSources;
  const int pitch = (lanes_of_strip + Strip::kHaloLanes) * Strip::kSources;
  const int gaps = (strips_of_warp + 1) * kGap;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < gaps; i += 32) {
    T* const gap = warp_ring + i / kGap * pitch + i % kGap;
#pragma unroll
    for (int row = 0; row < Ring::kRows; ++row) gap[row * Ring::kRow] = static_cast<T>(0.0F);
  }
  return warp_ring + (strip < strips_of_warp ? kGap + strip * pitch + lane_of_strip * Strip::kSources
                                             : Ring::kUnits * Strip::kSources);
}

template <typename Strip>
constexpr int strip_blocks() {
  return Strip::kKernel == 3 ? 8 : Strip::kKernel == 5 ? 6 : 4;
}

template <typename Strip>
__global__ void __launch_bounds__(kStripThreads, strip_blocks<Strip>())
    strips_correlate(const typename Strip::T* __restrict__ source,
                     const typename Strip::T* __restrict__ weight, const typename Strip::T* __restrict__ bias,
                     typename Strip::T* __restrict__ result, StripParameters parameters) {
  using T = typename Strip::T;
  using Ring = StripRing<Strip>;
  using Rows = StripRows<T, Strip::kSources, Strip::kAligned>;
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
  const int result_begin = max(-first_result_row, 0);
  const int result_end =
      stores ? min(parameters.result_height - first_result_row, parameters.result_rows) : 0;

  Rows source_lane = {source +
                          static_cast<int64_t>(parameters.multiplier.divide(plane)) *
                              parameters.source_height * source_width +
                          static_cast<int64_t>(first_source_row) * source_width + source_column,
                      source_column, source_width, max(-first_source_row, 0),
                      loads ? min(parameters.source_height - first_source_row, source_rows) : 0};
  T* next_result = result + static_cast<int64_t>(plane) * parameters.result_height * result_width +
                   static_cast<int64_t>(first_result_row + Strip::result_row(0, 0)) * result_width +
                   result_column;

  T* const ring = prepare_ring<Strip, Ring>(
      shared_memory<T>() + static_cast<int>(threadIdx.x) / 32 * Ring::kElements, parameters.lanes.divisor(),
      parameters.strips_of_warp, strip_of_warp, lane_of_strip);
  // What cannot be copied asynchronously goes through registers, as many rows at a time.
  constexpr int kPending = Rows::kAsync ? 1 : Ring::kRows;
  T pending[kPending][kSources];
  const auto fetch = [&](int first_row) {
#pragma unroll
    for (int i = 0; i < kPending; ++i) source_lane.fetch(first_row + i, pending[i]);
  };
  const auto put = [&] {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kPending; ++i) {
#pragma unroll
      for (int j = 0; j < kSources; ++j) ring[i * Ring::kRow + j] = pending[i][j];
    }
    __syncwarp();
  };
  if constexpr (Rows::kAsync) {
#pragma unroll
    for (int row = 0; row < Ring::kRows - 1; ++row) {
      source_lane.copy(row, ring + row * Ring::kRow);
      commit_copies();
    }
  } else {
    fetch(0);
    put();
  }

  float taps[Strip::kTaps];
  const int tap_step = parameters.flipped ? -1 : 1;
  const T* const first_tap =
      weight + static_cast<int64_t>(channel) * Strip::kTaps + (parameters.flipped ? Strip::kTaps - 1 : 0);
#pragma unroll
  for (int tap = 0; tap < Strip::kTaps; ++tap) taps[tap] = static_cast<float>(first_tap[tap * tap_step]);
  const float start = bias == nullptr ? 0.0F : static_cast<float>(bias[channel]);

  float sums[Strip::kSlots][kResults] = {};
  for (int first_row = 0; first_row < source_rows; first_row += Strip::kUnroll) {
    if constexpr (!Rows::kAsync) fetch(first_row + Strip::kUnroll);
#pragma unroll
    for (int phase = 0; phase < Strip::kUnroll; ++phase) {
      const int row = first_row + phase;
      if (row >= source_rows) break;
      if constexpr (Rows::kAsync) {
        wait_for_copies<Ring::kRows - 2>();
        __syncwarp();
        source_lane.copy(row + Ring::kRows - 1, ring + (phase + Ring::kRows - 1) % Ring::kRows * Ring::kRow);
        commit_copies();
      }

      // Rows of padding take no part, where that spares many multiplications.
      if (kKernel == 3 || __any_sync(kAllLanes, source_lane.inside(row))) {
        float values[Strip::kWindow];
        load_window<Strip>(ring + phase % Ring::kRows * Ring::kRow, values);
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
    if constexpr (!Rows::kAsync) put();
  }
  if constexpr (Rows::kAsync) wait_for_copies<0>();
}

}  // namespace torchgraft::depthwise::cuda
