// What the kernels of bands can compute at all: products of the images with band matrices of the weights on
// tensor cores, for halves in NCHW. The sizes that these kernels and their limits share are here too.
#pragma once

#include <iterator>

#include "../phases.h"

namespace torchgraft::depthwise::cuda {

// The largest kernel whose band matrices a warp of bands_small holds.
constexpr int kMostTapRows = 7;
constexpr int kMostTapColumns = 8;

inline bool supports_bands_small(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  constexpr int64_t kMostImageElements = INT32_MAX;
  return !problem.channels_last && problem.has_half_tensor_cores() &&
         std::max(geometry.input_pixels(), geometry.output_pixels()) <=
             kMostImageElements / geometry.channels &&
         is_unit_step(geometry) && positions_fit_32(geometry) && geometry.multiplier == 1 &&
         is_padded_within_kernel(geometry) && geometry.height.kernel <= kMostTapRows &&
         geometry.width.kernel <= kMostTapColumns;
}

// Columns of a band matrix are counted in octets.
constexpr int kOctetSize = 8;

constexpr int kBatchImages = 16;  // images that bands_batch multiplies at once
constexpr int kBatchWarps = 8;    // warps of a block of bands_batch

// The sizes that bands_batch is compiled for; it uses the first that fits a problem.
struct BatchShape {
  int octets;  // in a row of sources, or of results
  int reach;   // octets to either side of its own that a result depends on
  int rows;    // of results that a warp owns: as many as its registers hold
  int blocks;  // on a multiprocessor: two leave a thread 128 registers, four leave it 64

  constexpr int pitch() const { return octets * kOctetSize; }  // elements of a row in shared memory
  // A row of taps is ordered by the distance between source and result. This is the place of distance 0, and
  // the length of the row, chosen so that the two copies of a row lie in different banks.
  constexpr int band_center() const { return (reach + 1) * kOctetSize; }
  constexpr int band_pitch() const { return 2 * band_center() + (reach == 3 ? 2 * kOctetSize : 0); }
  // If there is room, the results of a warp are collected in shared memory: the elements between two images,
  // an odd number of octets, and the elements of all warps.
  constexpr int stage_pitch() const { return (rows * octets | 1) * kOctetSize; }
  constexpr int stage() const { return octets <= 4 ? kBatchWarps * kBatchImages * stage_pitch() : 0; }
};
constexpr BatchShape kBatchShapes[] = {{1, 0, 7, 4}, {2, 1, 7, 2}, {3, 2, 4, 2},
                                       {4, 2, 4, 2}, {4, 3, 2, 2}, {7, 2, 2, 2}};

// The index of the first shape that fits; the number of shapes if none does.
inline int batch_shape(const Geometry& geometry, bool transposed) {
  const PassAxis width(geometry.width, transposed);
  const int reach = std::max(width.padding, width.kernel - 1 - width.padding);
  int index = 0;
  for (const BatchShape& shape : kBatchShapes) {
    if (std::max(width.source, width.result) <= shape.pitch() &&
        (shape.reach == shape.octets - 1 || reach <= shape.reach * kOctetSize)) {
      break;
    }
    ++index;
  }
  return index;
}

// The rows of taps that join some row of sources with some row of results.
struct BatchTapRows {
  int first, count;
};
inline BatchTapRows batch_tap_rows(const Geometry& geometry, bool transposed) {
  const PassAxis height(geometry.height, transposed);
  const int first = std::max(0, height.padding - (height.result - 1));
  return {first, std::max(0, std::min(height.kernel, height.source + height.padding) - first)};
}

// The elements of an image in shared memory: an odd number of octets, so that images lie in different banks.
inline int64_t batch_image_pitch(const Geometry& geometry, bool transposed, const BatchShape& shape) {
  const int64_t rows = transposed ? geometry.height.output : geometry.height.input;
  return (rows * shape.octets | 1) * kOctetSize;
}

// The shared memory for `images` images of `channels` channels, two copies of their taps, and the results.
inline int64_t batch_bytes(const Geometry& geometry, bool transposed, const BatchShape& shape,
                           int64_t channels, int64_t images) {
  constexpr int64_t kHalfBytes = 2;
  const int64_t band_rows = batch_tap_rows(geometry, transposed).count + 1;
  return kHalfBytes * (channels * (2 * band_rows * shape.band_pitch() +
                                   images * batch_image_pitch(geometry, transposed, shape)) +
                       shape.stage());
}

inline bool supports_bands_batch(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  constexpr int64_t kMostPixels = int64_t{1} << 20;
  constexpr int64_t kMostTaps = int64_t{1} << 27;
  if (!problem.has_half_tensor_cores() || problem.channels_last || geometry.multiplier != 1 ||
      !is_unit_step(geometry) || !positions_fit_32(geometry) || !is_padded_within_kernel(geometry) ||
      geometry.taps() > kMostTaps ||
      std::max(geometry.input_pixels(), geometry.output_pixels()) > kMostPixels) {
    return false;
  }
  const size_t shape = batch_shape(geometry, problem.transposed);
  return shape < std::size(kBatchShapes) && batch_bytes(geometry, problem.transposed, kBatchShapes[shape], 1,
                                                        kBatchImages) <= problem.shared_bytes;
}

// The most octets that a window of bands_large spans, for a dense convolution and for one in phases.
constexpr int kMostOctets = 8;
constexpr int kMostPhaseOctets = 5;
constexpr int64_t kMostLargeBytes = 96 << 10;  // shared memory of a block of bands_large

// The octets that a window of any result spans, rounded up to a number that the kernel is compiled for.
inline int large_product_octets(const Geometry& geometry, bool transposed) {
  const int kernel_width = PhaseAxis(geometry.width, transposed).shifted_kernel();
  const int octets = ceil_divide(kOctetSize + kernel_width - 1, kOctetSize);
  if (octets <= 2 && !is_unit_step(geometry)) return 2;
  return octets <= 3 ? 3 : octets <= 5 ? 5 : kMostOctets;
}

// Elements between the rows of an image in shared memory: an odd number of octets, so that neighbouring rows
// begin in different banks.
inline int64_t large_product_pitch(const Geometry& geometry, bool transposed) {
  const PhaseAxis width(geometry.width, transposed);
  const int blocks = ceil_divide(width.phase_result, kOctetSize);
  const int columns = std::max((blocks + large_product_octets(geometry, transposed) - 1) * kOctetSize,
                               width.padding + width.phase_source);
  return (ceil_divide(columns, kOctetSize) | 1) * kOctetSize;
}

// The kernel loads four octets at a time, and columns in groups. So it reads this many elements behind the
// end of a row of the tile, the last row too; the results from them belong to columns outside the image.
constexpr int kLargeElementsBehind = 9 * kOctetSize;

// The shared memory for two copies of the bands and all phases of `images` images.
inline int64_t large_product_bytes(const Geometry& geometry, bool transposed, int64_t images) {
  constexpr int64_t kHalfBytes = 2;
  const PhaseAxis height(geometry.height, transposed);
  const PhaseAxis width(geometry.width, transposed);
  const int64_t band_pitch = (large_product_octets(geometry, transposed) + 2) * kOctetSize;
  const int64_t band_rows = int64_t{height.phase_kernel} * height.tap_phases() * width.tap_phases();
  const int64_t pitch = large_product_pitch(geometry, transposed);
  const int64_t rows = images * height.phase_source * height.source_phases() * width.source_phases();
  return kHalfBytes * (2 * band_rows * band_pitch + (1 + rows) * pitch + kLargeElementsBehind);
}

inline bool supports_bands_large(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  constexpr int64_t kMostPixels = int64_t{1} << 20;
  constexpr int64_t kMostRows = 256;
  if (!problem.has_half_tensor_cores() || problem.channels_last || !has_phases(geometry) ||
      !positions_fit_32(geometry) || (problem.transposed && geometry.multiplier > 1) ||
      !is_padded_within_window(geometry) ||
      std::max(geometry.input_pixels(), geometry.output_pixels()) > kMostPixels ||
      geometry.height.kernel > kMostRows) {
    return false;
  }
  const bool is_dense = is_unit_step(geometry);
  const int64_t most_columns = kOctetSize * ((is_dense ? kMostOctets : kMostPhaseOctets) - 1) + 1;
  return PhaseAxis(geometry.width, problem.transposed).shifted_kernel() <= most_columns &&
         large_product_bytes(geometry, problem.transposed, 1) <=
             (is_dense ? std::min(kMostLargeBytes, problem.shared_bytes) : problem.shared_bytes);
}

}  // namespace torchgraft::depthwise::cuda
