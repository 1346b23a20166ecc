// What the kernels of strips share (correlate.cu, weight_grad.cu): how a lane's columns of sources and
// results belong together, and how rows of sources reach a warp's own ring in shared memory ahead of their
// use.
#pragma once

#include <torchgraft/async_copy.cuh>

#include "../problem.h"
#include "../stencil.cuh"
#include "plan.h"

namespace torchgraft::depthwise::cuda {

// How columns and rows of sources and results belong together, and what a lane holds. A lane owns kResults
// neighbouring results and kSources sources; the window of its results reaches kLeft sources to the left of
// its own and kRight to the right. The kernel's middle lies on the kOffset-th of its own sources, where its
// first result is computed: which one that is follows from the padding, as own sources begin at a boundary.
template <typename Element, int kKernelSize, int kStrideSize, bool kIsTransposed, int kResultCount,
          bool kIsAligned, int kOffsetOfMiddle = 0>
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
  static constexpr int kOffset = kOffsetOfMiddle;

  static constexpr int kReach = kKernel / 2;
  static constexpr int kSources = kTransposed ? kResults / kStride : kResults * kStride;
  static constexpr int kLeft = kTransposed ? kReach / kStride : kReach - kOffset;
  static constexpr int kRight =
      kTransposed ? (kReach + kStride - 1) / kStride : kReach + kOffset + 1 - kStride;
  static_assert(kOffset <= kReach && kOffset < kSources && !(kTransposed && kOffset > 0));
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

  // The first of the sources of unit 0, whose first result is that of column 0; not of a transposed pass.
  static int first_source(int padding) {
    return kAligned ? floor_divide(kReach - padding, kSources) * kSources : kReach - padding;
  }

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
  int halo_lanes;                                // at the left end of a strip: they only hold sources
  int units;                                     // lanes of a segment that have results
  int first_source_column, first_result_column;  // of unit 0
  int source_height, source_width, result_height, result_width;
  int first_source_row, first_result_row;  // of stretch 0; the rows of sources in front of the image count
  int source_rows, result_rows;            // of a stretch
  int source_step;                         // rows between two stretches
  bool flipped;                            // the kernel is turned around
};

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
  static constexpr int kBytes = kStripThreads / kLanes * kElements * static_cast<int>(sizeof(T));

  // Strips of so many lanes that fit.
  static constexpr int strips(int lanes) {
    return std::min(kLanes / lanes, (kUnits - Strip::kHaloLanes) / (lanes + Strip::kHaloLanes));
  }
};

// How the units of a row, a lane each, are cut into segments, each of a strip.
struct StripLanes {
  int units, segments;
  int halo_left, halo_right;  // lanes at the ends of a strip, which only hold sources

  int lanes() const { return units + halo_left + halo_right; }
};

// The sources of unit 0 begin at column `first_source`. Where sources lie beyond those of all units, or in
// another segment, a strip has lanes for them.
template <typename Strip>
StripLanes cut_into_lanes(int units, int first_source, int source_width) {
  StripLanes cut = {units, 1, first_source > 0 ? Strip::kHaloLanes : 0,
                    first_source + units * Strip::kSources < source_width ? Strip::kHaloLanes : 0};
  if (cut.lanes() <= kLanes) return cut;
  cut.halo_left = cut.halo_right = Strip::kHaloLanes;
  cut.segments = ceil_divide(units, kLanes - 2 * Strip::kHaloLanes);
  cut.units = ceil_divide(units, cut.segments);
  return cut;
}

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
        copy_async<kAccess * sizeof(T), kBypassL1>(shared + i, elements + i);
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
  for (int i = static_cast<int>(threadIdx.x) % kLanes; i < gaps; i += kLanes) {
    T* const gap = warp_ring + i / kGap * pitch + i % kGap;
#pragma unroll
    for (int row = 0; row < Ring::kRows; ++row) gap[row * Ring::kRow] = static_cast<T>(0.0F);
  }
  return warp_ring + (strip < strips_of_warp ? kGap + strip * pitch + lane_of_strip * Strip::kSources
                                             : Ring::kUnits * Strip::kSources);
}

// Whether every lane's sources, and results, lie on boundaries of as many elements.
template <typename Strip>
bool is_strip_aligned(const void* source, const void* result, const PassAxis& width) {
  const int middle = Strip::kReach - width.padding;
  const bool fits = Strip::kTransposed ? middle % Strip::kResults == 0
                                       : middle - Strip::first_source(width.padding) == Strip::kOffset;
  return fits && width.source % Strip::kSources == 0 && width.result % Strip::kResults == 0 &&
         is_aligned(source, Strip::kSources * sizeof(typename Strip::T)) &&
         is_aligned(result, Strip::kResults * sizeof(typename Strip::T));
}

// The same of a pass whose results begin in unit 0.
template <typename Strip>
StripLanes cut_into_lanes(const PassAxis& width) {
  return cut_into_lanes<Strip>(ceil_divide(width.result, Strip::kResults), Strip::first_source(width.padding),
                               width.source);
}

// Calls `launch` with the Strip for images that lie so. Four sources or results a lane if rows are made for
// it, else two. If they are not, elements are taken one by one, of one result a lane; or of two, where a warp
// would hold no more than one row of single results: of (64,384,17x17,k5) in halves 26 us on an H100, and 51.
// Two results a lane are not used where a row would take more than `most_segments`.
template <typename T, int kKernel, int kStride, bool kTransposed, typename Launch>
void with_strip(const void* source, const void* result, const PassAxis& width, int most_segments,
                const Launch& launch) {
  constexpr int kSourcesOfResult = kTransposed ? 1 : kStride;
  using Wide = Strip<T, kKernel, kStride, kTransposed, 4 / kSourcesOfResult, true>;
  using Narrow = Strip<T, kKernel, kStride, kTransposed, 2 / kSourcesOfResult, true>;
  // With padding such as none of 3 x 3 taps: the kernel's middle lies on the second of a lane's sources.
  using Later = Strip<T, kKernel, kStride, kTransposed, 2 / kSourcesOfResult, true, kTransposed ? 0 : 1>;
  using Any = Strip<T, kKernel, kStride, kTransposed, kTransposed ? kStride : 1, false>;
  if (is_strip_aligned<Wide>(source, result, width)) return launch(Wide());
  if (is_strip_aligned<Narrow>(source, result, width)) return launch(Narrow());
  if (is_strip_aligned<Later>(source, result, width)) return launch(Later());
  if constexpr (kStride == 1) {
    using Two = Strip<T, kKernel, kStride, kTransposed, 2, false>;
    if (StripRing<Any>::strips(cut_into_lanes<Any>(width).lanes()) <= 1 &&
        cut_into_lanes<Two>(width).segments <= most_segments) {
      return launch(Two());
    }
  }
  launch(Any());
}

}  // namespace torchgraft::depthwise::cuda
