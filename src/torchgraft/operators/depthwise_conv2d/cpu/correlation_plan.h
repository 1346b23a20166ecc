// How a correlation on CPU is cut to the sizes of caches: bands of rows, slices of columns, vectors of
// channels and rows of the kernel that are taken at a time.
#pragma once

#include <torchgraft/dispatch.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "blocks.h"
#include "correlation.h"
#include "correlation_row.h"

namespace torchgraft::depthwise::cpu {

// Whether a destination of sums of A is made in strips, if its lines allow it.
template <typename A>
bool are_strips(const Correlation& correlation, const Blocks& blocks) {
  const Direction& height = correlation.height;
  const Direction& width = correlation.width;
  if (height.phases.size() > 1 || width.phases.size() > 1 || correlation.sources() > 1) return false;
  const Phase& row = height.phases[0];
  const Phase& column = width.phases[0];
  return std::is_same_v<A, float> && blocks.lanes == kMostLanes && correlation.depth.kernel == 1 &&
         row.taps == 3 && column.taps == 3 && row.step == column.step &&
         (row.step == 1 || (row.step == 2 && row.tap_step * column.tap_step == 1));
}

// Whether it is made two rows by two columns at a time.
template <typename A>
bool are_pairs(const Correlation& correlation) {
  const auto is_paired = [](const Direction& direction) {
    return direction.kernel == 3 && direction.phases.size() == 2 &&
           direction.phases[0].taps + direction.phases[1].taps == 3 &&
           std::min(direction.phases[0].taps, direction.phases[1].taps) == 1 &&
           direction.phases[0].tap_step == 1;
  };
  return std::is_same_v<A, float> && correlation.sources() == 1 && correlation.depth.kernel == 1 &&
         is_paired(correlation.height) && is_paired(correlation.width);
}

// Whether every line that a row of outputs is cut into has a loop over float16 and bfloat16 images where they
// lie.
inline bool has_converting_loops(const Correlation& correlation, const Blocks& blocks) {
  if (are_pairs<float>(correlation)) return true;
  const Direction& width = correlation.width;
  const int64_t phases = width.phases.size();
  const int64_t least = are_strips<float>(correlation, blocks) ? kLeastStrip : kLeastTile;
  for (int64_t column = 0; column < phases; ++column) {
    const Phase& phase = width.phases[column];
    const int64_t pixels = ceil_divide(width.destination - column, phases);
    const Remainders remainders(phase.step, phase.tap_step, phase.taps, pixels);
    const int64_t step = remainders.parts * phase.step / remainders.stretch;
    const bool has_loop = phase.taps == 3 || phase.taps == 5 || phase.taps == 7 ||
                          (step == 1 && (phase.taps == 2 || phase.taps == 4));
    if (!has_loop || phase.tap_step != remainders.stretch || step > 2 || pixels / remainders.parts < least)
      return false;
  }
  return true;
}

// Images of T, of which loops read and write elements of S.
template <typename T, typename S>
class CorrelationPlan {
  using A = accumulate_t<T>;

 public:
  CorrelationPlan(const Correlation& correlation, const Blocks& blocks)
      : correlation_(correlation),
        blocks_(blocks),
        is_direct_(blocks.are_direct<T, S>(correlation.multiplier)),
        kernel_planes_(std::max<int64_t>(correlation.depth.phases[0].taps, 1)) {
    for (const Phase& phase : correlation.height.phases) most_taps = std::max(most_taps, phase.taps);
    cut_rows_of_outputs();
    cut_bands();
    rows_of_patches = std::min(kernel_rows, std::max<int64_t>(kRowsOfPart / kernel_planes_, 1));
    in_parts = kernel_planes_ * most_taps > kRowsOfPart;
  }

  int64_t vectors = 0;          // that a row of outputs takes along
  int64_t slab = 0;             // planes of the destination, of volumes
  int64_t band = 0;             // rows of the destination
  int64_t slice = 0;            // columns of the destination
  int64_t most_taps = 0;        // rows of the kernel that an element of the destination meets
  int64_t kernel_rows = 0;      // that are taken at a time, of each plane of the kernel
  int64_t rows_of_patches = 0;  // the same for patches, whose sums are made of no parts
  bool in_parts = false;        // whether sums of rows are made of parts

  // Whether all of the kernel's rows are taken at once, so that nothing is added to outputs in memory.
  bool are_sums_whole() const { return most_taps <= rows_of_patches; }

 private:
  // Bytes of the source that a band may span, so that it stays in L2 while it is worked on; and those that a
  // row of outputs may read, of the source and of kernels, so that they stay in L1 from one row to the next.
  static constexpr int64_t kBandBytes = 256 * 1024;
  static constexpr int64_t kRowBytes = 36 * 1024;
  // The same as a band's for some planes of a volume, each of which several planes of the destination read.
  static constexpr int64_t kSlabBytes = 1024 * 1024;
  static constexpr int64_t kLeastBand = 4;
  // Volumes are bound by memory with more taps than images are: each plane of the source is read again for
  // every plane of the kernel. With channels side by side, 3 x 3 x 3 takes 0.8 of the time in that order.
  static constexpr int64_t kFewTapsOfVolumes = 27;
  // Columns below which there is no gain in less, and vectors that are taken along where they lie side by
  // side in memory: to lay out the work takes as long as a plane of five by five of some vectors.
  static constexpr int64_t kLeastSlice = 28;
  static constexpr int64_t kMostVectors = 16;

  // Columns that so many outputs of a row read of a row of the source.
  int64_t source_columns(int64_t columns) const {
    const Direction& width = correlation_.width;
    const Phase& column = width.phases[0];
    const int64_t outputs = ceil_divide(columns, width.phases.size());
    const int64_t met =
        (outputs - 1) * column.step + std::max<int64_t>(column.taps - 1, 0) * column.tap_step + 1;
    return std::min(met, width.source);
  }

  // Bytes that they read of one vector of channels of that row.
  int64_t source_bytes(int64_t columns) const {
    return source_columns(columns) * blocks_.lanes * static_cast<int64_t>(sizeof(S));
  }

  // Bytes that they read of so many rows of each plane of the kernel and of the source rows under these.
  int64_t row_bytes(int64_t columns, int64_t rows) const {
    return kernel_planes_ *
           (std::min(rows, correlation_.height.source) * source_bytes(columns) +
            rows * correlation_.width.phases[0].taps * blocks_.lanes * static_cast<int64_t>(sizeof(A)));
  }

  // Cuts rows of outputs, and the kernel's rows, so that what they read stays in L1. Where rows are read from
  // the tensor itself, a row of outputs takes several vectors of channels along, so that memory is read in
  // longer pieces.
  void cut_rows_of_outputs() {
    const Direction& width = correlation_.width;
    const Phase& column = width.phases[0];
    kernel_rows = std::max<int64_t>(most_taps, 1);
    slice = width.destination;
    vectors = std::min(is_direct_ ? kMostVectors : scratch_vectors(), blocks_.count);
    // Slices are read with the columns that the kernel reaches beyond them.
    const int64_t least_slice = std::max<int64_t>(
        kLeastSlice * column.tap_step, 2 * column.tap_step * column.taps / std::max<int64_t>(column.step, 1));
    for (int64_t slices = 2; slice > least_slice && row_bytes(slice, kernel_rows) * vectors > kRowBytes;
         ++slices) {
      slice = ceil_divide(ceil_divide(width.destination, slices), 14) * 14;
    }
    while (vectors > 1 && row_bytes(slice, kernel_rows) * vectors > kRowBytes) --vectors;
    while (kernel_rows > 4 && row_bytes(slice, kernel_rows) > kRowBytes)
      kernel_rows = ceil_divide(kernel_rows, 2);
    // Vectors in groups of one size.
    vectors = ceil_divide(blocks_.count, ceil_divide(blocks_.count, vectors));
    const int64_t few_taps = kernel_planes_ > 1 ? kFewTapsOfVolumes : kFewTaps;
    const bool has_few_taps = kernel_planes_ * most_taps * column.taps <= few_taps;
    // Loops over two-byte images prefetch what they read next into L1, from rows that stay in L2.
    const bool is_prefetched =
        !std::is_same_v<S, A> && row_bytes(width.destination, most_taps) * blocks_.count <= kBandBytes;
    if (is_direct_ && (has_few_taps || is_prefetched)) {
      // Bound by memory, which is fastest in its own order.
      slice = width.destination;
      vectors = blocks_.count;
    }
  }

  // Cuts the destination so that the source under a band stays in L2.
  void cut_bands() {
    const Direction& height = correlation_.height;
    // Lines of memory hold channels of several vectors: all of them.
    const int64_t line_bytes =
        blocks_.layout == Layout::channels_last && correlation_.multiplier == 1
            ? source_columns(slice) * correlation_.source_channels * static_cast<int64_t>(sizeof(T))
            : source_bytes(slice) * correlation_.sources();
    const int64_t bands = std::clamp<int64_t>(ceil_divide(height.source * line_bytes, kBandBytes), 1,
                                              ceil_divide(height.destination, kLeastBand));
    slab = 1;
    band = ceil_divide(height.destination, bands);
    if (kernel_planes_ > 1) cut_slabs(line_bytes);
    if (are_strips<A>(correlation_, blocks_)) {
      const int64_t rows = 4 * height.phases[0].tap_step;
      band = std::min(ceil_divide(band, rows) * rows, height.destination);
    }
  }

  // Cuts the destination of volumes so that the planes of the source under some of its planes stay in L2, and
  // few rows and planes of the source lie under two cuts.
  void cut_slabs(int64_t line_bytes) {
    const Direction& height = correlation_.height;
    const Direction& depth = correlation_.depth;
    const auto met = [](const Direction& direction, int64_t elements) {
      const Phase& phase = direction.phases[0];
      const int64_t outputs = ceil_divide(elements, direction.phases.size());
      return std::min((outputs - 1) * phase.step + std::max<int64_t>(phase.taps - 1, 0) * phase.tap_step + 1,
                      direction.source);
    };
    slab = depth.destination;
    band = height.destination;
    while (met(depth, slab) * met(height, band) * line_bytes > kSlabBytes &&
           (slab > 1 || band > kLeastBand)) {
      const bool is_deep = slab * height.kernel > band * depth.kernel || band <= kLeastBand;
      int64_t& cut = is_deep && slab > 1 ? slab : band;
      cut = ceil_divide(cut, 2);
    }
  }

  // Vectors that are taken along through scratch: small planes, which take less time than to lay out the
  // work.
  int64_t scratch_vectors() const {
    constexpr int64_t kScratchBytes = 16 * 1024;
    const int64_t pixels =
        correlation_.sources() * correlation_.depth.source * correlation_.height.source *
            correlation_.width.source +
        correlation_.depth.destination * correlation_.height.destination * correlation_.width.destination;
    const int64_t bytes = pixels * blocks_.lanes * static_cast<int64_t>(sizeof(A));
    return std::clamp<int64_t>(kScratchBytes / std::max<int64_t>(bytes, 1), 1, kMostVectors);
  }

  const Correlation& correlation_;
  const Blocks& blocks_;
  const bool is_direct_;
  const int64_t kernel_planes_;
};

// Whether images of T, of two bytes, are read and written where they lie, by loops that convert what they
// load and store: every vector is a whole one of channels side by side, there are such loops, and they add
// nothing to outputs in memory, which would round sums.
template <typename T>
bool are_converted_in_place(const Correlation& correlation, const Blocks& blocks) {
  return blocks.are_direct<T, T>(correlation.multiplier) && blocks.lanes == kMostLanes &&
         blocks.channels >= kMostLanes && has_converting_loops(correlation, blocks) &&
         CorrelationPlan<T, T>(correlation, blocks).are_sums_whole();
}

}  // namespace torchgraft::depthwise::cpu
