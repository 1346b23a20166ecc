// What each kernel can compute at all: alignment, sizes that it is compiled for, what fits 32 bits and shared
// memory. Nothing here is tuned; where a kernel pays is told in policy.h. Sizes that a kernel and its limits
// share stand here too.
#pragma once

#include <cstdint>
#include <iterator>
#include <numeric>

#include "phases.h"

namespace torchgraft::depthwise::cuda {

// ---------------------------------------------------------------- planes moved whole

// Planes of 7 x 7, 14 x 14 and 28 x 28 whose results have their size.
inline bool supports_small_planes_of_any_number(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  const auto fits = [](const Extent& extent) {
    return (extent.input == 7 || extent.input == 14 || extent.input == 28) &&
           extent.padding == extent.kernel / 2 && extent.output == extent.input;
  };
  constexpr int64_t kLimit = int64_t{1} << 29;
  return !problem.channels_last && !problem.is_float64() && problem.alignment == 16 &&
         geometry.multiplier == 1 && is_unit_step(geometry) && is_square_of_3_5_7(geometry) &&
         fits(geometry.height) && fits(geometry.width) && geometry.height.input == geometry.width.input &&
         geometry.batch * geometry.channels < kLimit && geometry.channels < kLimit / 64;
}

// A warp takes neighbouring planes of so many pixels, which are of different channels.
constexpr int64_t kSmallPlanesPixels = 32 * 7 * 7;

inline bool supports_small_planes_correlate(const Problem& problem) {
  return supports_small_planes_of_any_number(problem) &&
         problem.geometry.channels * problem.geometry.input_pixels() >= kSmallPlanesPixels;
}

// A warp goes from image to image, sixteen bytes at a time.
inline bool supports_small_planes_weight_grad(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  return supports_small_planes_of_any_number(problem) &&
         geometry.channels * geometry.input_pixels() * problem.element_bytes % 16 == 0;
}

// ---------------------------------------------------------------- bands: products of band matrices

// Taps of which the band matrices of a warp are made.
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

// Columns of a band matrix are made of octets.
constexpr int kOctetSize = 8;

constexpr int kBatchImages = 16;  // of a product of bands_batch
constexpr int kBatchWarps = 8;    // of a block

// The sizes that bands_batch is compiled for; the first that takes a problem is the one.
struct BatchShape {
  int octets;  // of a row of sources, or of results
  int reach;   // octets to either side of its own that a result may meet
  int rows;    // of results of a warp, as many as the registers hold
  int blocks;  // of eight warps a multiprocessor, which leave a thread its registers: 128 of two, 64 of four

  constexpr int pitch() const { return octets * kOctetSize; }  // elements of a row in shared memory
  // Of a row of taps, by distance between source and result, where distance 0 lies; and elements of the row,
  // so many that the two copies of it lie in different banks.
  constexpr int band_center() const { return (reach + 1) * kOctetSize; }
  constexpr int band_pitch() const { return 2 * band_center() + (reach == 3 ? 2 * kOctetSize : 0); }
  // Results of a warp are gathered in shared memory, where it has room: elements from image to image, an odd
  // number of octets, and of all warps.
  constexpr int stage_pitch() const { return (rows * octets | 1) * kOctetSize; }
  constexpr int stage() const { return octets <= 4 ? kBatchWarps * kBatchImages * stage_pitch() : 0; }
};
constexpr BatchShape kBatchShapes[] = {{1, 0, 7, 4}, {2, 1, 7, 2}, {3, 2, 4, 2},
                                       {4, 2, 4, 2}, {4, 3, 2, 2}, {7, 2, 2, 2}};

// The index of the shape, or that behind the last.
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

// Rows of taps that join a row of sources with one of results, from the first such one.
struct BatchTapRows {
  int first, count;
};
inline BatchTapRows batch_tap_rows(const Geometry& geometry, bool transposed) {
  const PassAxis height(geometry.height, transposed);
  const int first = std::max(0, height.padding - (height.result - 1));
  return {first, std::max(0, std::min(height.kernel, height.source + height.padding) - first)};
}

// Elements of an image in shared memory: an odd number of octets, so that images lie in different banks.
inline int64_t batch_image_pitch(const Geometry& geometry, bool transposed, const BatchShape& shape) {
  const int64_t rows = transposed ? geometry.height.output : geometry.height.input;
  return (rows * shape.octets | 1) * kOctetSize;
}

// Shared memory for so many channels of so many images, their taps, which lie there twice, and results.
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

// Of bands_large a window spans so many octets, and of a convolution in phases so many.
constexpr int kMostOctets = 8;
constexpr int kMostPhaseOctets = 5;
constexpr int64_t kMostLargeBytes = 96 << 10;  // of shared memory

// The octets that a window of any result spans, as many as the kernel is compiled for.
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

// Octets come four at a time, and columns in groups: so much is read behind the end of a row of the tile, and
// of the last row too. What comes of it belongs to columns that are not there.
constexpr int kLargeElementsBehind = 9 * kOctetSize;

// Shared memory for two copies of the bands and so many images, all phases of them.
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

// ---------------------------------------------------------------- diagonals: taps as diagonals of products

inline bool supports_diagonals(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  const Extent& height = geometry.height;
  const Extent& width = geometry.width;
  // Sizes are 32-bit numbers, and so are positions in the planes of a block's channels.
  constexpr int64_t kMostPixels = int64_t{1} << 27;
  constexpr int64_t kMost = int64_t{1} << 20;
  return problem.has_half_tensor_cores() && geometry.multiplier == 1 &&
         std::max(geometry.input_pixels(), geometry.output_pixels()) <= kMostPixels &&
         std::max({height.kernel, width.kernel, height.padding, width.padding}) <= kMost &&
         std::max(geometry.batch, geometry.channels) < INT32_MAX;
}

inline bool supports_diagonals_nchw(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  // Offsets of elements that lie in no plane, of tiles that reach beyond it, are 32-bit numbers too.
  constexpr int64_t kMostPhasedPixels = int64_t{1} << 20;
  constexpr int64_t kMostPhasedSide = int64_t{1} << 9;
  const auto is_small = [](const Extent& extent) {
    return std::max(extent.padding, extent.kernel * extent.dilation) <= kMostPhasedSide;
  };
  return !problem.channels_last && supports_diagonals(problem) &&
         (is_unit_step(geometry) ||
          (has_phases(geometry) && is_small(geometry.height) && is_small(geometry.width) &&
           std::max(geometry.input_pixels(), geometry.output_pixels()) <= kMostPhasedPixels));
}

// Taps that the warps of a block own side by side.
constexpr int kMostChannelsLastTapRows = 10;
constexpr int kMostChannelsLastTapColumns = 9;

inline bool supports_diagonals_nhwc(const Problem& problem) {
  return problem.channels_last && supports_diagonals(problem) && is_unit_step(problem.geometry) &&
         problem.geometry.height.kernel <= kMostChannelsLastTapRows &&
         problem.geometry.width.kernel <= kMostChannelsLastTapColumns;
}

// Whether eights of channels of all pixels of either image are counted in 32 bits.
inline bool eights_fit_32(const Geometry& geometry) {
  return geometry.batch * std::max(geometry.input_pixels(), geometry.output_pixels()) <=
         INT32_MAX / (geometry.output_channels() / 8);
}

// Columns for which a block of eight channels has warps and shared memory on any device; those of wider
// images are shared by several, each with a chunk of its own.
constexpr int64_t kDiagonalColumns = 64;

// The widest piece, of 16, 8 and 4 bytes, in which every pixel of images so aligned can be copied; 0: none.
inline int copied_piece(int64_t channels, int element_bytes, int alignment) {
  for (const int piece : {16, 8, 4}) {
    if (alignment % piece == 0 && channels * element_bytes % piece == 0) return piece;
  }
  return 0;
}

// Rows of all images, those of zeros between them included, are counted in 32 bits.
inline bool supports_slide_weight_grad_mma(const Problem& problem) {
  constexpr int64_t kMost = int64_t{1} << 30;
  const Geometry& geometry = problem.geometry;
  const Extent& height = geometry.height;
  const Extent& width = geometry.width;
  return problem.channels_last && problem.has_half_tensor_cores() && has_small_kernel(geometry) &&
         positions_fit_32(geometry) && is_padded_within_kernel(geometry) && geometry.multiplier == 1 &&
         copied_piece(geometry.channels, problem.element_bytes, problem.alignment) > 0 &&
         geometry.channels * std::max(width.input, width.output) < kMost &&
         geometry.batch * (std::max(height.input, height.output * height.stride) + 2 * height.kernel) <
             kMost &&
         ceil_divide(width.output, kDiagonalColumns) <= most_chunks(geometry, true);
}

// ---------------------------------------------------------------- NCHW in strips and tiles

// Rows of strips, some sixteen results wide, are counted in 32 bits.
inline bool strips_fit_32(int64_t planes, int64_t rows, int64_t columns) {
  constexpr int64_t kLimit = int64_t{1} << 30;
  return planes * (columns / 16 + 1) < kLimit / (rows + 1);
}

inline bool supports_strips_correlate(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  return !problem.channels_last && !problem.is_float64() && positions_fit_32(geometry) &&
         has_small_kernel(geometry) && !(problem.transposed && geometry.multiplier > 1) &&
         strips_fit_32(geometry.batch * geometry.output_channels(), problem.result(geometry.height),
                       problem.result(geometry.width));
}

inline bool supports_strips_weight_grad(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  return !problem.channels_last && !problem.is_float64() && positions_fit_32(geometry) &&
         has_small_kernel(geometry) &&
         strips_fit_32(geometry.batch, geometry.height.output, geometry.width.output);
}

// Rows of tiles in shared memory are an odd number of four elements long (cut_rows), so that accesses to four
// elements at the same place of neighbouring rows lie in different banks.
constexpr int64_t tile_pitch(int64_t columns) { return std::max<int64_t>(columns - 4 + 7, 0) / 8 * 8 + 4; }

constexpr int64_t kLargeKernelElements = 48 * 1024 / sizeof(float);  // of shared memory
constexpr int kStrip = 8;                                            // results of a thread, along a row
constexpr int kTapGroup = 4;                                         // taps it takes at a time
constexpr int kTapsOfThread = 8;                                     // of one kernel row, in the gradient
constexpr int kPixelsAtATime = 4;

// Every result meets every source, in planes that a warp's registers hold.
inline bool supports_small_planes_whole(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  constexpr int64_t kMostTaps = int64_t{1} << 27;
  const auto meets_all = [](const Extent& extent) {
    return (extent.input == 7 || extent.input == 14) && extent.output == extent.input &&
           std::min(extent.padding, extent.kernel - 1 - extent.padding) >= extent.input - 1;
  };
  return !problem.channels_last && problem.element_bytes == 4 && geometry.multiplier == 1 &&
         is_unit_step(geometry) && positions_fit_32(geometry) && geometry.taps() <= kMostTaps &&
         meets_all(geometry.height) && meets_all(geometry.width) &&
         geometry.height.input == geometry.width.input;
}

inline bool supports_tiles(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  return !problem.channels_last && !problem.is_float64() && is_unit_step(geometry) &&
         positions_fit_32(geometry) && geometry.taps() <= kLargeKernelElements;
}

// All taps and the smallest tile under them, one strip of results, fit shared memory.
inline bool supports_tiles_correlate(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  const int64_t row_taps = round_up(geometry.width.kernel, kTapGroup);
  return supports_tiles(problem) &&
         geometry.height.kernel * (tile_pitch(kStrip + row_taps) + row_taps) <= kLargeKernelElements;
}

// The smallest tile of the input, and that of the output gradient, fit shared memory.
inline bool supports_tiles_weight_grad(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  const int64_t row_taps = round_up(geometry.width.kernel, kTapsOfThread);
  return supports_tiles(problem) &&
         geometry.height.kernel * tile_pitch(kPixelsAtATime + row_taps) + kPixelsAtATime <=
             kLargeKernelElements;
}

// ---------------------------------------------------------------- NHWC, sliding down the image

// Taps of which a product of slide_correlate_mma is made.
constexpr int kMostSlideTaps = 7;

// Pixels come and go eight channels at a time. An input gradient of stride two is no forward pass.
inline bool supports_slide_correlate_mma(const Problem& problem) {
  constexpr int64_t kMost = int64_t{1} << 30;
  const Geometry& geometry = problem.geometry;
  const Extent& height = geometry.height;
  const Extent& width = geometry.width;
  const bool has_dilated_phases = height.stride == 1 && has_phases(geometry) &&
                                  is_padded_within_window(geometry) &&
                                  std::max(geometry.input_pixels(), geometry.output_pixels()) <=
                                      INT32_MAX / kMostPhases / geometry.channels;
  return problem.channels_last && problem.has_half_tensor_cores() && geometry.multiplier == 1 &&
         height.stride == width.stride && height.stride <= (problem.transposed ? 1 : 2) &&
         (!is_dilated(geometry) || has_dilated_phases) && longest_side(geometry) <= kMostSlideTaps &&
         geometry.channels % 8 == 0 && problem.alignment == 16 && positions_fit_32(geometry) &&
         std::max(geometry.input_pixels(), geometry.output_pixels()) <= INT32_MAX / geometry.channels &&
         geometry.batch * std::max(height.input, height.output) < kMost;
}

// `channels_of_thread`: as many as leave a thread the registers for their weights, or sums.
inline bool slides(const Problem& problem, int channels_of_thread) {
  constexpr int64_t kMost = int64_t{1} << 30;
  const Geometry& geometry = problem.geometry;
  // Rows of either image, and those of all images, are counted in 32 bits.
  return problem.channels_last && !problem.is_float64() && has_small_kernel(geometry) &&
         geometry.multiplier == 1 && positions_fit_32(geometry) &&
         geometry.channels % channels_of_thread == 0 &&
         geometry.channels * std::max(geometry.width.input, geometry.width.output) < kMost &&
         geometry.batch * std::max(geometry.height.input, geometry.height.output) < kMost &&
         copied_piece(geometry.channels, problem.element_bytes, problem.alignment) > 0;
}

constexpr int slide_channels(int64_t kernel) { return kernel == 3 ? 4 : 2; }
constexpr int slide_weight_grad_channels(int64_t kernel) { return kernel == 3 ? 4 : kernel == 5 ? 2 : 1; }

inline bool supports_slide_correlate(const Problem& problem) {
  return slides(problem, slide_channels(problem.geometry.height.kernel));
}

constexpr int64_t kSlideSharedBytes = 48 << 10;  // what every device grants without being asked
// Tiles of a row that a slide tries beyond the fewest.
constexpr int kMostSlideTiles = 12;

// A way to cut a row: lanes and strips of a block, at most, and the bytes of shared memory that a lane takes.
struct SlideCut {
  int strips, lanes, granule;
  int64_t lane_bytes;
};

// Calls `take` with each way to cut `groups` of channels, in granules of whole pieces of copies, and `strips`
// of columns into blocks of at most `most_threads`, no more than `most_blocks` of which share the channels of
// a block. `bytes(strips)` is the shared memory that a lane of so many strips takes.
template <typename Bytes, typename Take>
void with_slide_cuts(int groups, int piece_bytes, int strips, int most_threads, int group_bytes,
                     const Bytes& bytes, int64_t most_blocks, const Take& take) {
  const int granule = std::max(1, piece_bytes / group_bytes);
  // A pixel has no more pieces than a block has threads; there may be strips beyond the image.
  const int least_strips = ceil_divide(group_bytes, piece_bytes);
  strips = std::max(strips, least_strips);
  const int fewest = ceil_divide(strips, most_threads / granule);
  for (int tiles = fewest; tiles <= std::min(strips, fewest + kMostSlideTiles); ++tiles) {
    const int strips_of_block = std::max(ceil_divide(strips, tiles), least_strips);
    const int64_t lane_bytes = bytes(strips_of_block);
    const int lanes = static_cast<int>(
        std::min({int64_t{groups}, int64_t{most_threads / strips_of_block}, kSlideSharedBytes / lane_bytes}));
    if (lanes >= granule && ceil_divide(strips, strips_of_block) <= most_blocks) {
      take(SlideCut{strips_of_block, lanes / granule * granule, granule, lane_bytes});
    }
  }
}

// Buffers for steps; in half precision more, that as many bytes be under way.
constexpr int slide_stages(int64_t element_bytes) { return element_bytes == 4 ? 3 : 5; }

// Of slide_weight_grad: columns of the output gradient that a thread owns, and threads of a block, at most.
constexpr int slide_weight_grad_columns(int64_t stride) { return stride == 2 ? 2 : 4; }
constexpr int slide_weight_grad_threads(int64_t kernel) { return kernel == 5 ? 192 : 256; }

// Shared memory that a lane of so many strips takes: its steps of both images, and later the sums of a row of
// taps.
constexpr int64_t slide_weight_grad_lane_bytes(int64_t kernel, int64_t stride, int64_t element_bytes,
                                               int64_t strips) {
  const int64_t channels = slide_weight_grad_channels(kernel);
  const int64_t columns = strips * slide_weight_grad_columns(stride);
  const int64_t pixels = stride * ((columns - 1) * stride + kernel) + columns;
  return std::max(slide_stages(element_bytes) * pixels * channels * element_bytes,
                  kernel * strips * channels * int64_t{sizeof(float)});
}

// Each block of a row writes a chunk of its own, so that a row may be cut into no more blocks than there are
// chunks.
inline bool supports_slide_weight_grad(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  const int64_t kernel = geometry.height.kernel;
  const int64_t stride = geometry.height.stride;
  const int64_t channels = slide_weight_grad_channels(kernel);
  if (!slides(problem, static_cast<int>(channels))) return false;
  bool fits = false;
  with_slide_cuts(
      static_cast<int>(geometry.channels / channels),
      copied_piece(geometry.channels, problem.element_bytes, problem.alignment),
      static_cast<int>(ceil_divide(geometry.width.output, slide_weight_grad_columns(stride))),
      slide_weight_grad_threads(kernel), static_cast<int>(channels) * problem.element_bytes,
      [&](int strips) { return slide_weight_grad_lane_bytes(kernel, stride, problem.element_bytes, strips); },
      most_chunks(geometry, true), [&](const SlideCut&) { fits = true; });
  return fits;
}

// Results of one phase lie as far apart as the taps, and meet the same sources. So many phases have any
// result.
constexpr int64_t column_phases(int64_t results, int64_t dilation) { return std::min(results, dilation); }

// Columns of results that a thread owns which slides on its own, all of one phase; and how many such patches
// a row has. Four times as many columns as the dilation have one patch of each phase.
constexpr int kColumnsOfThread = 4;
constexpr int64_t column_patches(int64_t columns, int64_t dilation) {
  return ceil_divide(columns, kColumnsOfThread * dilation) * column_phases(columns, dilation);
}

// Threads are counted in 32 bits.
inline bool supports_slide_columns(const Problem& problem) {
  constexpr int64_t kMoreTaps = 8;
  constexpr int64_t kMostThreads = int64_t{1} << 29;
  const Geometry& geometry = problem.geometry;
  const Extent& height = geometry.height;
  const Extent& width = geometry.width;
  return problem.channels_last && !problem.is_float64() && geometry.multiplier == 1 && height.kernel == 3 &&
         width.kernel == 3 && height.stride == 1 && width.stride == 1 &&
         offsets_fit_32(geometry, kMoreTaps) &&
         column_patches(problem.result(width), width.dilation) *
                 column_phases(problem.result(height), height.dilation) <=
             kMostThreads / (geometry.batch * geometry.channels);
}

// Patches of all images are counted in 32 bits.
inline bool supports_slide_window(const Problem& problem) {
  constexpr int64_t kMoreTaps = 8;
  const Geometry& geometry = problem.geometry;
  return problem.channels_last && !problem.is_float64() && has_small_kernel(geometry) &&
         geometry.multiplier == 1 && offsets_fit_32(geometry, kMoreTaps) &&
         geometry.batch * problem.result(geometry.height) * problem.result(geometry.width) <= INT32_MAX;
}

// ---------------------------------------------------------------- any geometry

constexpr int64_t kGatherSharedBytes = 48 * 1024;
constexpr int kResultsOfThread = 4;  // of the gathering kernels of columns

// Taps of a channel as they lie in shared memory, at most: a period may end behind the kernel.
inline int64_t gather_shared_taps(const Geometry& geometry, bool transposed) {
  const auto taps = [transposed](const Extent& extent) {
    return extent.kernel + (transposed ? extent.stride - 1 : 0);
  };
  return taps(geometry.height) * taps(geometry.width);
}

// Of a column of results, for threads that own kResultsOfThread of them.
inline int64_t row_groups(int64_t rows, int64_t spacing) {
  const int64_t stretch = kResultsOfThread * spacing;
  return ceil_divide(rows, stretch) * spacing;
}

inline bool supports_gather(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  constexpr int64_t kMoreTaps = 8;
  // The phases of positions, in an input gradient. Its stride is less: shared memory holds so many taps.
  constexpr int64_t kLargestDilation = int64_t{1} << 15;
  static_assert(kGatherSharedBytes / sizeof(double) < kLargestDilation);
  return offsets_fit_32(geometry, kMoreTaps) &&
         (!problem.transposed ||
          std::max(geometry.height.dilation, geometry.width.dilation) < kLargestDilation) &&
         gather_shared_taps(geometry, problem.transposed) * int64_t{sizeof(double)} <= kGatherSharedBytes;
}

constexpr int kGatherChannels = 4;  // of a thread of gather_large, where they can be loaded together

// Whether threads of gather_large may take neighbouring channels: their loads, the pixels that 32 bits count
// and shared memory for the weights of one thread.
inline bool gathers_channels_together(const Problem& problem) {
  constexpr int64_t kMostPixels = int64_t{1} << 30;
  const Geometry& geometry = problem.geometry;
  return problem.channels_last && !problem.is_float64() && geometry.channels % kGatherChannels == 0 &&
         geometry.multiplier == 1 && problem.alignment % (problem.element_bytes * kGatherChannels) == 0 &&
         geometry.batch * std::max(geometry.input_pixels(), geometry.output_pixels()) < kMostPixels &&
         gather_shared_taps(geometry, problem.transposed) * kGatherChannels * int64_t{sizeof(float)} <=
             kGatherSharedBytes;
}

// Taps that a result meets at most, along one direction: an input gradient meets only every
// (stride / gcd(stride, dilation))-th one.
inline int64_t gathered_taps(const Extent& extent, bool transposed) {
  const int64_t period = transposed ? extent.stride / std::gcd(extent.stride, extent.dilation) : 1;
  return ceil_divide(extent.kernel, period);
}

inline int64_t gathered_taps(const Geometry& geometry, bool transposed) {
  return std::max(gathered_taps(geometry.height, transposed), gathered_taps(geometry.width, transposed));
}

// Whether the kernel is square and every result meets all of it, of one source channel.
inline bool gathers_whole_square(const Geometry& geometry, bool transposed) {
  return geometry.height.kernel == geometry.width.kernel &&
         !(transposed &&
           (geometry.height.stride > 1 || geometry.width.stride > 1 || geometry.multiplier > 1));
}

// How far apart results of a column lie that meet the same taps of neighbouring sources; 0: none do.
inline int64_t spacing_of_column(const Problem& problem) {
  const Extent& height = problem.geometry.height;
  if (problem.transposed && height.stride > 1) {
    return height.dilation / std::gcd(height.stride, height.dilation) * height.stride;
  }
  const int64_t scale = problem.transposed ? 1 : height.stride;
  return height.dilation % scale == 0 ? height.dilation / scale : 0;
}

inline bool supports_gather_columns_in_any_layout(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  const int64_t taps = gathered_taps(geometry, problem.transposed);
  // In NHWC the weights of a block lie in shared memory, of all summed channels at once.
  const int64_t summed_taps = geometry.taps() * (problem.transposed ? geometry.multiplier : 1);
  return !problem.is_float64() && supports_gather(problem) && spacing_of_column(problem) > 0 &&
         summed_taps * int64_t{sizeof(float)} <= kGatherSharedBytes &&
         (taps <= 5 || (taps == 7 && gathers_whole_square(geometry, problem.transposed)));
}

inline bool supports_gather_columns(const Problem& problem) {
  return !problem.channels_last && supports_gather_columns_in_any_layout(problem);
}

inline bool supports_gather_columns_nhwc(const Problem& problem) {
  return problem.channels_last && supports_gather_columns_in_any_layout(problem);
}

// One result a thread.
inline bool supports_gather_small(const Problem& problem) {
  return supports_gather(problem) && gathered_taps(problem.geometry, problem.transposed) <= 5;
}

inline bool supports_gather_weight_grad(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  constexpr int64_t kMoreTaps = 16;  // of groups of taps and pixels
  constexpr int64_t kMostPixels = int64_t{1} << 30;
  return offsets_fit_32(geometry, kMoreTaps) && geometry.batch * geometry.output_pixels() < kMostPixels;
}

}  // namespace torchgraft::depthwise::cuda
