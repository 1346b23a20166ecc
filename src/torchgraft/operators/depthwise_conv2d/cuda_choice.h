// Which kernel serves a convolution on CUDA: two tables, asked from the top, the first rule that takes it is
// the one. Host code alone, so that every boundary is tested without a GPU. How a kernel works, and what it
// reaches, is told in its own file.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <numeric>

#include "sizes.h"

namespace torchgraft::depthwise::cuda {

// One pass over images that are dense in one layout.
struct Pass {
  Geometry geometry;
  bool transposed;  // the input gradient, and not the forward pass
  bool channels_last;
  int element_bytes;                // eight: float64, which is for checking gradients, not for speed
  int alignment;                    // of both images' pointers: the greatest power of two, at most 16
  bool tensor_cores;                // whether kernels are compiled for them, for halves
  int64_t shared_bytes = 48 << 10;  // of shared memory that a block of the device can have
  int multiprocessors = 132;

  constexpr int64_t result_channels() const {
    return transposed ? geometry.channels : geometry.output_channels();
  }
  constexpr int64_t result(const Extent& extent) const { return transposed ? extent.input : extent.output; }
  constexpr int64_t results() const {
    return geometry.batch * result_channels() * result(geometry.height) * result(geometry.width);
  }
};

enum class Kernel {
  small_planes,
  tensor_core_planes,
  window_channels_last,
  slide_tensor_core,
  tensor_core_channels_last,
  batch_tensor_core,
  large_tensor_core,
  strips,
  whole_planes,
  large_planes,
  slide,
  gather_columns,
  gather_columns_channels_last,
  gather_small,
  gather_large,
  direct,
  weight_grad_small_planes,
  weight_grad_tensor_core_planes,
  weight_grad_tensor_core_slide,
  weight_grad_tensor_core_channels_last,
  weight_grad_strips,
  weight_grad_large_planes,
  weight_grad_slide,
  weight_grad_general,
  weight_grad_direct,
};

// ---------------------------------------------------------------- what sizes are

// A size from which a kernel pays, as measured on an H200: as large a share of the device in hand.
constexpr int64_t share_of_device(const Pass& pass, int64_t on_h200) {
  constexpr int64_t kMultiprocessors = 132;
  return on_h200 * pass.multiprocessors / kMultiprocessors;
}

inline bool is_unit_step(const Geometry& geometry) {
  return geometry.height.stride == 1 && geometry.width.stride == 1 && geometry.height.dilation == 1 &&
         geometry.width.dilation == 1;
}

inline bool is_square_of_3_5_7(const Geometry& geometry) {
  const int64_t kernel = geometry.height.kernel;
  return kernel == geometry.width.kernel && (kernel == 3 || kernel == 5 || kernel == 7);
}

// What the kernels with sizes known to the compiler are made for (with_small_kernel).
inline bool has_small_kernel(const Geometry& geometry) {
  const Extent& height = geometry.height;
  const Extent& width = geometry.width;
  return is_square_of_3_5_7(geometry) && height.stride == width.stride && height.stride <= 2 &&
         height.dilation == 1 && width.dilation == 1;
}

// Whether every window touches the image: padding is less than the kernel.
inline bool is_padded_within_kernel(const Geometry& geometry) {
  return geometry.height.padding < geometry.height.kernel && geometry.width.padding < geometry.width.kernel;
}

// Whether every position along either direction, padding included, and every count of channels, images and
// planes is far from the end of 32 bits. Offsets between elements need not be.
inline bool positions_fit_32(const Geometry& geometry) {
  constexpr int64_t kLimit = int64_t{1} << 29;
  const auto fits = [](const Extent& extent) {
    return extent.input < kLimit && extent.padding < kLimit && extent.output * extent.stride < kLimit &&
           extent.kernel * extent.dilation < kLimit;
  };
  return geometry.batch < kLimit && geometry.output_channels() < kLimit &&
         geometry.batch * geometry.output_channels() < kLimit && fits(geometry.height) &&
         fits(geometry.width);
}

// Whether 32 bits hold, in any layout, an offset from the first element of an image to a source, be it in the
// padding, of loops that take `more_taps` taps more than the kernel has.
inline bool offsets_fit_32(const Geometry& geometry, int64_t more_taps) {
  constexpr int64_t kLimit = int64_t{1} << 31;
  if (!positions_fit_32(geometry)) return false;
  const auto span = [more_taps](const Extent& extent) {
    return std::max(extent.input, extent.output * extent.stride) + extent.padding +
           (extent.kernel + more_taps) * extent.dilation;
  };
  const int64_t rows = span(geometry.height);
  const int64_t columns = span(geometry.width);
  return rows < kLimit && columns < kLimit && rows * columns < kLimit / geometry.output_channels();
}

// ---------------------------------------------------------------- layout

// Whether images are better brought into NCHW first: where a kernel is so large that arithmetic counts for
// more than moving images, along whose rows its windows slide.
inline bool planes_pay(const Geometry& geometry, int element_bytes) {
  constexpr int64_t kFewTaps = 7 * 7;
  return element_bytes < 8 && geometry.taps() > kFewTaps && is_unit_step(geometry);
}

// ---------------------------------------------------------------- chunks of the weight gradient

// Chunks that a first pass may use. Enough that blocks fill a large device several times over, but few enough
// that partial sums stay a small part of the traffic: at most one for sixteen elements read, and 32 MB of
// float in all, unless one chunk alone is larger.
inline int64_t most_chunks(const Geometry& geometry, bool channels_last) {
  constexpr int64_t kBlocks = 4096;
  constexpr int64_t kMost = 512;
  constexpr int64_t kElementsOfPartialSum = 16;
  constexpr int64_t kPartialSums = int64_t{8} << 20;
  const int64_t weights = geometry.output_channels() * geometry.taps();
  // A block of the NHWC kernels owns up to 64 channels and takes half as long to start.
  const int64_t blocks_of_chunk =
      channels_last ? 2 * ((geometry.output_channels() + 63) / 64) : geometry.output_channels();
  const int64_t elements = geometry.batch * (geometry.channels * geometry.input_pixels() +
                                             geometry.output_channels() * geometry.output_pixels());
  return std::max<int64_t>(1,
                           std::min({kMost, (kBlocks + blocks_of_chunk - 1) / blocks_of_chunk,
                                     elements / (kElementsOfPartialSum * weights), kPartialSums / weights}));
}

// ---------------------------------------------------------------- planes moved whole

inline bool takes_small_planes(const Pass& pass) {
  const Geometry& geometry = pass.geometry;
  const auto fits = [](const Extent& extent) {
    return (extent.input == 7 || extent.input == 14 || extent.input == 28) &&
           extent.padding == extent.kernel / 2 && extent.output == extent.input;
  };
  constexpr int64_t kLimit = int64_t{1} << 29;
  // Warps enough to fill the device: one takes whole planes, and a launch of few takes long.
  const int64_t warps = pass.multiprocessors * 4;
  constexpr int64_t kPixelsOfWarp = 32 * 7 * 7;
  // Wider planes with a large kernel are faster in strips, which need not wait for all of a plane.
  if (geometry.width.input == 28 && geometry.width.kernel == 7) return false;
  return !pass.channels_last && pass.element_bytes < 8 && pass.alignment == 16 && geometry.multiplier == 1 &&
         is_unit_step(geometry) && is_square_of_3_5_7(geometry) && fits(geometry.height) &&
         fits(geometry.width) && geometry.height.input == geometry.width.input &&
         geometry.batch * geometry.channels < kLimit && geometry.channels < kLimit / 64 &&
         geometry.channels * geometry.input_pixels() >= kPixelsOfWarp &&
         geometry.batch * geometry.channels * geometry.input_pixels() >= warps * kPixelsOfWarp;
}

inline bool takes_weight_grad_small_planes(const Pass& pass) {
  const Geometry& geometry = pass.geometry;
  // Sums and two images of 28 x 28 leave fp32 too few warps.
  if (geometry.width.input == 28 && geometry.width.kernel == 5 && pass.element_bytes == 4) return false;
  constexpr int64_t kFewImages = 12;
  return takes_small_planes(pass) &&
         geometry.channels * geometry.input_pixels() * pass.element_bytes % 16 == 0 &&
         geometry.batch >= kFewImages;
}

// ---------------------------------------------------------------- tensor cores

// Whether halves are worth bringing to tensor cores: where multiply-adds would take longer than memory, and
// the problem is large enough to hide what that costs.
inline bool products_pay(const Pass& pass) {
  constexpr int64_t kFewElements = int64_t{1} << 20;
  const Geometry& geometry = pass.geometry;
  const int64_t longest = std::max(geometry.height.kernel, geometry.width.kernel);
  if (pass.element_bytes != 2 || !pass.tensor_cores) return false;
  if (pass.channels_last) return longest >= 5;
  return longest >= 6 &&
         geometry.batch * geometry.channels * geometry.input_pixels() >= share_of_device(pass, kFewElements);
}

// Taps of which the band matrices of a warp are made.
constexpr int kMostTapRows = 7;
constexpr int kMostTapColumns = 8;

inline bool takes_tensor_core(const Pass& pass) {
  const Geometry& geometry = pass.geometry;
  constexpr int64_t kMostImageElements = INT32_MAX;
  return products_pay(pass) &&
         std::max(geometry.input_pixels(), geometry.output_pixels()) <=
             kMostImageElements / geometry.channels &&
         is_unit_step(geometry) && positions_fit_32(geometry) && geometry.multiplier == 1 &&
         is_padded_within_kernel(geometry) && geometry.height.kernel <= kMostTapRows &&
         geometry.width.kernel <= kMostTapColumns;
}

inline bool takes_tensor_core_planes(const Pass& pass) {
  return !pass.channels_last && takes_tensor_core(pass);
}

// A block's pixels are moved sixteen bytes, eight channels, at a time.
inline bool takes_tensor_core_channels_last(const Pass& pass) {
  return pass.channels_last && takes_tensor_core(pass) && pass.geometry.channels % 8 == 0 &&
         pass.alignment == 16;
}

// Taps of which a product of slide_tensor_core is made; fewer than the least leave less to multiply than it
// takes to bring pixels to tensor cores.
constexpr int kLeastSlideTaps = 3;
constexpr int kMostSlideTaps = 7;
constexpr int kLeastStridedSlideTaps = 4;

// Pixels come and go eight channels at a time. An input gradient of stride two is no forward pass; and a
// forward pass of stride two with few taps only moves, which takes slide_channels_last less time: 115 us of
// (128,96,112x112,k3,s2) on an H200, and 120.
inline bool takes_slide_tensor_core(const Pass& pass) {
  constexpr int64_t kMost = int64_t{1} << 30;
  const Geometry& geometry = pass.geometry;
  const Extent& height = geometry.height;
  const Extent& width = geometry.width;
  const int64_t longest = std::max(height.kernel, width.kernel);
  return pass.channels_last && pass.element_bytes == 2 && pass.tensor_cores && geometry.multiplier == 1 &&
         height.stride == width.stride &&
         height.stride <= (pass.transposed || longest < kLeastStridedSlideTaps ? 1 : 2) &&
         height.dilation == 1 && width.dilation == 1 && longest >= kLeastSlideTaps &&
         longest <= kMostSlideTaps && geometry.channels % 8 == 0 && pass.alignment == 16 &&
         positions_fit_32(geometry) &&
         std::max(geometry.input_pixels(), geometry.output_pixels()) <= INT32_MAX / geometry.channels &&
         geometry.batch * std::max(height.input, height.output) < kMost;
}

// Columns of a band matrix are made of octets.
constexpr int kOctetSize = 8;

constexpr int kBatchImages = 16;  // of a product of batch_tensor_core
constexpr int kBatchWarps = 8;    // of a block

// The sizes that batch_tensor_core is compiled for; the first that takes a problem is the one.
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
  const Extent& width = geometry.width;
  const int64_t padding = transposed ? width.kernel - 1 - width.padding : width.padding;
  const int64_t reach = std::max(padding, width.kernel - 1 - padding);
  int index = 0;
  for (const BatchShape& shape : kBatchShapes) {
    if (std::max(width.input, width.output) <= shape.pitch() &&
        (shape.reach == shape.octets - 1 || reach <= shape.reach * kOctetSize)) {
      break;
    }
    ++index;
  }
  return index;
}

// Rows of taps that join a row of sources with one of results, from the first such one.
struct BatchTapRows {
  int64_t first, count;
};
inline BatchTapRows batch_tap_rows(const Geometry& geometry, bool transposed) {
  const Extent& height = geometry.height;
  const int64_t source = transposed ? height.output : height.input;
  const int64_t result = transposed ? height.input : height.output;
  const int64_t padding = transposed ? height.kernel - 1 - height.padding : height.padding;
  const int64_t first = std::max<int64_t>(0, padding - (result - 1));
  return {first, std::max<int64_t>(0, std::min(height.kernel, source + padding) - first)};
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

inline bool takes_batch_tensor_core(const Pass& pass) {
  const Geometry& geometry = pass.geometry;
  // With fewer images too much of each product is of none.
  constexpr int64_t kFewestImages = 8;
  constexpr int64_t kMostPixels = int64_t{1} << 20;
  constexpr int64_t kMostTaps = int64_t{1} << 27;
  if (!products_pay(pass) || pass.channels_last || geometry.multiplier != 1 || !is_unit_step(geometry) ||
      !positions_fit_32(geometry) || !is_padded_within_kernel(geometry) || geometry.taps() > kMostTaps ||
      geometry.batch < kFewestImages ||
      std::max(geometry.input_pixels(), geometry.output_pixels()) > kMostPixels) {
    return false;
  }
  const size_t shape = batch_shape(geometry, pass.transposed);
  return shape < std::size(kBatchShapes) &&
         batch_bytes(geometry, pass.transposed, kBatchShapes[shape], 1, kBatchImages) <= pass.shared_bytes;
}

// Of large_tensor_core a window spans so many octets.
constexpr int kMostOctets = 8;
constexpr int64_t kMostLargeBytes = 96 << 10;  // of shared memory

constexpr int large_product_octets(int64_t kernel_width) {
  const int64_t octets = (kOctetSize + kernel_width - 1 + kOctetSize - 1) / kOctetSize;
  return octets <= 3 ? 3 : octets <= 5 ? 5 : kMostOctets;
}

// Elements between the rows of an image in shared memory: an odd number of octets, so that neighbouring rows
// begin in different banks.
inline int64_t large_product_pitch(const Geometry& geometry, bool transposed) {
  const Extent& width = geometry.width;
  const int64_t source = transposed ? width.output : width.input;
  const int64_t result = transposed ? width.input : width.output;
  const int64_t padding = transposed ? width.kernel - 1 - width.padding : width.padding;
  const int64_t blocks = (result + kOctetSize - 1) / kOctetSize;
  const int64_t columns =
      std::max((blocks + large_product_octets(width.kernel) - 1) * kOctetSize, padding + source);
  return ((columns + kOctetSize - 1) / kOctetSize | 1) * kOctetSize;
}

// Octets come four at a time, and columns in groups: so much is read behind the end of a row of the tile, and
// of the last row too. What comes of it belongs to columns that are not there.
constexpr int kLargeElementsBehind = 9 * kOctetSize;

// Shared memory for two copies of the bands and so many images.
inline int64_t large_product_bytes(const Geometry& geometry, bool transposed, int64_t images) {
  constexpr int64_t kHalfBytes = 2;
  const Extent& height = geometry.height;
  const int64_t band_pitch = (large_product_octets(geometry.width.kernel) + 2) * kOctetSize;
  const int64_t pitch = large_product_pitch(geometry, transposed);
  const int64_t rows = images * (transposed ? height.output : height.input);
  return kHalfBytes * (2 * height.kernel * band_pitch + (1 + rows) * pitch + kLargeElementsBehind);
}

inline bool takes_large_tensor_core(const Pass& pass) {
  const Geometry& geometry = pass.geometry;
  // Planes as small as a few units are moved in pieces that cost more than their products save.
  constexpr int64_t kFewPixels = 8 * 8;
  constexpr int64_t kMostPixels = int64_t{1} << 20;
  constexpr int64_t kMostRows = 256;
  return products_pay(pass) && !pass.channels_last && geometry.output_pixels() > kFewPixels &&
         is_unit_step(geometry) && positions_fit_32(geometry) &&
         !(pass.transposed && geometry.multiplier > 1) && is_padded_within_kernel(geometry) &&
         std::max(geometry.input_pixels(), geometry.output_pixels()) <= kMostPixels &&
         geometry.width.kernel <= kOctetSize * (kMostOctets - 1) + 1 && geometry.height.kernel <= kMostRows &&
         large_product_bytes(geometry, pass.transposed, 1) <= std::min(kMostLargeBytes, pass.shared_bytes);
}

inline bool takes_weight_grad_tensor_core(const Pass& pass) {
  const Geometry& geometry = pass.geometry;
  const Extent& height = geometry.height;
  const Extent& width = geometry.width;
  // Sizes are 32-bit numbers, and so are positions in the planes of a block's channels.
  constexpr int64_t kMostPixels = int64_t{1} << 27;
  constexpr int64_t kMost = int64_t{1} << 20;
  return products_pay(pass) && geometry.multiplier == 1 && is_unit_step(geometry) &&
         std::max(geometry.input_pixels(), geometry.output_pixels()) <= kMostPixels &&
         std::max({height.kernel, width.kernel, height.padding, width.padding}) <= kMost &&
         std::max(geometry.batch, geometry.channels) < INT32_MAX;
}

inline bool takes_weight_grad_tensor_core_planes(const Pass& pass) {
  return !pass.channels_last && takes_weight_grad_tensor_core(pass);
}

// Taps that the warps of a block own side by side.
constexpr int kMostChannelsLastTapRows = 10;
constexpr int kMostChannelsLastTapColumns = 9;

inline bool takes_weight_grad_tensor_core_channels_last(const Pass& pass) {
  return pass.channels_last && takes_weight_grad_tensor_core(pass) &&
         pass.geometry.height.kernel <= kMostChannelsLastTapRows &&
         pass.geometry.width.kernel <= kMostChannelsLastTapColumns;
}

// Columns for which a block of eight channels has warps and shared memory on any device; those of wider
// images are shared by several, each with a chunk of its own.
constexpr int64_t kDiagonalColumns = 64;

// Eight channels of a pixel are moved at a time. Rows of all images, those of zeros between them included,
// are counted in 32 bits.
inline bool takes_weight_grad_tensor_core_slide(const Pass& pass) {
  constexpr int64_t kMost = int64_t{1} << 30;
  const Geometry& geometry = pass.geometry;
  const Extent& height = geometry.height;
  const Extent& width = geometry.width;
  // Of 49 taps on wide images pixels make more products than planes do: (128,96,56x56) takes 113 us on an
  // H200, and by planes 94; (128,768,7x7), whose planes leave products half empty, 31 and 34.
  if (height.kernel == 7 && width.output > kOctetSize && takes_weight_grad_tensor_core_channels_last(pass)) {
    return false;
  }
  return pass.channels_last && pass.element_bytes == 2 && pass.tensor_cores && has_small_kernel(geometry) &&
         positions_fit_32(geometry) && is_padded_within_kernel(geometry) && geometry.multiplier == 1 &&
         geometry.channels % 8 == 0 && pass.alignment == 16 &&
         geometry.channels * std::max(width.input, width.output) < kMost &&
         geometry.batch * (std::max(height.input, height.output * height.stride) + 2 * height.kernel) <
             kMost &&
         (width.output + kDiagonalColumns - 1) / kDiagonalColumns <= most_chunks(geometry, true);
}

// ---------------------------------------------------------------- NCHW

// Rows of strips, some sixteen results wide, are counted in 32 bits.
inline bool strips_fit_32(int64_t planes, int64_t rows, int64_t columns) {
  constexpr int64_t kLimit = int64_t{1} << 30;
  return planes * (columns / 16 + 1) < kLimit / (rows + 1);
}

inline bool takes_strips(const Pass& pass) {
  const Geometry& geometry = pass.geometry;
  return !pass.channels_last && pass.element_bytes < 8 && positions_fit_32(geometry) &&
         has_small_kernel(geometry) && !(pass.transposed && geometry.multiplier > 1) &&
         strips_fit_32(geometry.batch * geometry.output_channels(), pass.result(geometry.height),
                       pass.result(geometry.width));
}

inline bool takes_weight_grad_strips(const Pass& pass) {
  const Geometry& geometry = pass.geometry;
  return !pass.channels_last && pass.element_bytes < 8 && positions_fit_32(geometry) &&
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

// Whether every result meets every source, in planes that a warp's registers hold.
inline bool takes_whole_planes(const Pass& pass) {
  const Geometry& geometry = pass.geometry;
  constexpr int64_t kFewestImages = 16;  // of 32, a lane each
  constexpr int64_t kMostTaps = int64_t{1} << 27;
  const auto meets_all = [](const Extent& extent) {
    return (extent.input == 7 || extent.input == 14) && extent.output == extent.input &&
           std::min(extent.padding, extent.kernel - 1 - extent.padding) >= extent.input - 1;
  };
  return !pass.channels_last && pass.element_bytes == 4 && geometry.multiplier == 1 &&
         is_unit_step(geometry) && positions_fit_32(geometry) && geometry.batch >= kFewestImages &&
         geometry.taps() <= kMostTaps && meets_all(geometry.height) && meets_all(geometry.width) &&
         geometry.height.input == geometry.width.input;
}

// Whether a tile for each of the source planes of a result takes longer than to gather their few taps:
// (8,64,28x28,k5x3, multiplier 2) takes 11 us on an H200 by tiles and 12 by columns, a quarter of it 10 and
// 6, (4,96,56x56,k3, multiplier 2) 18 and 15.
inline bool gathers_few(const Pass& pass) {
  constexpr int64_t kMostTaps = 5;  // along a direction, of the small gathering kernels
  constexpr int64_t kFewTaps = 3 * 3;
  constexpr int64_t kFewResults = int64_t{1} << 18;
  const Geometry& geometry = pass.geometry;
  return pass.transposed && geometry.multiplier > 1 &&
         std::max(geometry.height.kernel, geometry.width.kernel) <= kMostTaps &&
         (geometry.taps() <= kFewTaps || pass.results() < share_of_device(pass, kFewResults));
}

// Whether all taps and the smallest tile under them, one strip of results, fit shared memory.
inline bool takes_large_planes(const Pass& pass) {
  const Geometry& geometry = pass.geometry;
  if (pass.channels_last || pass.element_bytes == 8 || !is_unit_step(geometry) ||
      !positions_fit_32(geometry) || geometry.taps() > kLargeKernelElements || gathers_few(pass)) {
    return false;
  }
  const int64_t row_taps = (geometry.width.kernel + kTapGroup - 1) / kTapGroup * kTapGroup;
  return geometry.height.kernel * (tile_pitch(kStrip + row_taps) + row_taps) <= kLargeKernelElements;
}

// Whether the smallest tile of the input, and that of the output gradient, fit shared memory.
inline bool takes_weight_grad_large_planes(const Pass& pass) {
  const Geometry& geometry = pass.geometry;
  if (pass.channels_last || pass.element_bytes == 8 || !is_unit_step(geometry) ||
      !positions_fit_32(geometry) || geometry.taps() > kLargeKernelElements) {
    return false;
  }
  const int64_t row_taps = (geometry.width.kernel + kTapsOfThread - 1) / kTapsOfThread * kTapsOfThread;
  return geometry.height.kernel * tile_pitch(kPixelsAtATime + row_taps) + kPixelsAtATime <=
         kLargeKernelElements;
}

// ---------------------------------------------------------------- NHWC

// The widest piece, of 16, 8 and 4 bytes, in which every pixel of images so aligned can be copied; 0: none.
inline int slide_piece(int64_t channels, int element_bytes, int alignment) {
  for (const int piece : {16, 8, 4}) {
    if (alignment % piece == 0 && channels * element_bytes % piece == 0) return piece;
  }
  return 0;
}

// `channels_of_thread`: as many as leave a thread the registers for their weights, or sums.
inline bool slides(const Pass& pass, int channels_of_thread) {
  constexpr int64_t kMost = int64_t{1} << 30;
  const Geometry& geometry = pass.geometry;
  // Rows of either image, and those of all images, are counted in 32 bits.
  return pass.channels_last && pass.element_bytes < 8 && has_small_kernel(geometry) &&
         geometry.multiplier == 1 && positions_fit_32(geometry) &&
         geometry.channels % channels_of_thread == 0 &&
         geometry.channels * std::max(geometry.width.input, geometry.width.output) < kMost &&
         geometry.batch * std::max(geometry.height.input, geometry.height.output) < kMost &&
         slide_piece(geometry.channels, pass.element_bytes, pass.alignment) > 0;
}

constexpr int slide_channels(int64_t kernel) { return kernel == 3 ? 4 : 2; }
constexpr int slide_weight_grad_channels(int64_t kernel) { return kernel == 3 ? 4 : kernel == 5 ? 2 : 1; }

inline bool takes_slide(const Pass& pass) {
  return slides(pass, slide_channels(pass.geometry.height.kernel));
}

// Outputs of a multiprocessor up to which windows take less time than slides, as measured on an H200: the
// more there are the longer is a slide, and the less it matters that each of its rows is waited for.
// `products`: those of slide_tensor_core.
constexpr int64_t window_outputs(int64_t kernel, int64_t stride, bool products) {
  if (stride == 2) return kernel == 3 ? 26000 : kernel == 5 ? 8300 : 3000;
  if (products) return kernel == 3 ? 50000 : kernel == 5 ? 16000 : 5000;
  return kernel == 3 ? 50000 : kernel == 5 ? 26000 : 14000;
}

// Patches of all images are counted in 32 bits. Three taps with stride two hardly share sources: in fp32,
// where they come in sectors, windows of any number are as fast as memory, (128,96,112x112) 189 and 197 us on
// an H200, and slides 197 and 250.
inline bool takes_window_channels_last(const Pass& pass) {
  constexpr int64_t kMoreTaps = 8;
  const Geometry& geometry = pass.geometry;
  const int64_t kernel = geometry.height.kernel;
  const int64_t stride = geometry.height.stride;
  if (!pass.channels_last || pass.element_bytes == 8 || !has_small_kernel(geometry) ||
      geometry.multiplier != 1 || !offsets_fit_32(geometry, kMoreTaps) ||
      geometry.batch * pass.result(geometry.height) * pass.result(geometry.width) > INT32_MAX) {
    return false;
  }
  const bool products = takes_slide_tensor_core(pass);
  if (!products && !takes_slide(pass)) return true;
  return (kernel == 3 && stride == 2 && pass.element_bytes == 4) ||
         geometry.batch * geometry.channels * geometry.output_pixels() <=
             pass.multiprocessors * window_outputs(kernel, stride, products);
}

inline bool takes_weight_grad_slide(const Pass& pass) {
  return slides(pass, slide_weight_grad_channels(pass.geometry.height.kernel));
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
  return (rows + stretch - 1) / stretch * spacing;
}

inline bool takes_gather(const Pass& pass) {
  const Geometry& geometry = pass.geometry;
  constexpr int64_t kMoreTaps = 8;
  // The phases of positions.
  constexpr int64_t kLargestStep = int64_t{1} << 15;
  const auto is_small = [](const Extent& extent) {
    return extent.stride < kLargestStep && extent.dilation < kLargestStep;
  };
  return offsets_fit_32(geometry, kMoreTaps) &&
         (!pass.transposed || (is_small(geometry.height) && is_small(geometry.width))) &&
         gather_shared_taps(geometry, pass.transposed) * int64_t{sizeof(double)} <= kGatherSharedBytes;
}

// Taps that a result meets at most, along one direction: an input gradient meets only every
// (stride / gcd(stride, dilation))-th one.
inline int64_t gathered_taps(const Extent& extent, bool transposed) {
  const int64_t period = transposed ? extent.stride / std::gcd(extent.stride, extent.dilation) : 1;
  return (extent.kernel + period - 1) / period;
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

constexpr int64_t kManyResults = int64_t{1} << 20;

// Whether threads that own four results are enough for the device. Of 5 x 5 taps four share so many that
// fewer do.
inline bool has_many_results(const Pass& pass) {
  constexpr int64_t kManyOfFiveTaps = int64_t{1} << 17;
  const int64_t taps = gathered_taps(pass.geometry, pass.transposed);
  return pass.results() >= share_of_device(pass, taps == 4 || taps == 5 ? kManyOfFiveTaps : kManyResults);
}

// Whether threads may own four results of a column that share their sources, for they meet the same taps of
// neighbouring ones: most of those so far apart must lie in the image.
inline bool shares_sources(const Pass& pass) {
  const Extent& height = pass.geometry.height;
  const bool has_phases = pass.transposed && height.stride > 1;
  const int64_t scale = pass.transposed ? 1 : height.stride;
  if (!has_phases && height.dilation % scale != 0) return false;
  const int64_t spacing = has_phases
                              ? height.dilation / std::gcd(height.stride, height.dilation) * height.stride
                              : height.dilation / scale;
  const int64_t rows = pass.result(height);
  return row_groups(rows, spacing) * kResultsOfThread * 3 <= rows * 4;
}

inline bool gathers_columns(const Pass& pass) {
  const Geometry& geometry = pass.geometry;
  const int64_t taps = gathered_taps(geometry, pass.transposed);
  // In NHWC the weights of a block lie in shared memory, of all summed channels at once.
  const int64_t summed_taps = geometry.taps() * (pass.transposed ? geometry.multiplier : 1);
  return pass.element_bytes < 8 && takes_gather(pass) && has_many_results(pass) && shares_sources(pass) &&
         summed_taps * int64_t{sizeof(float)} <= kGatherSharedBytes &&
         (taps <= 5 || (taps == 7 && gathers_whole_square(geometry, pass.transposed)));
}

inline bool takes_gather_columns(const Pass& pass) { return !pass.channels_last && gathers_columns(pass); }

inline bool takes_gather_columns_channels_last(const Pass& pass) {
  return pass.channels_last && gathers_columns(pass);
}

// One result a thread; in NHWC many results want the weights in shared memory.
inline bool takes_gather_small(const Pass& pass) {
  return takes_gather(pass) && gathered_taps(pass.geometry, pass.transposed) <= 5 &&
         !(pass.channels_last && pass.results() >= share_of_device(pass, kManyResults));
}

inline bool takes_weight_grad_general(const Pass& pass) {
  const Geometry& geometry = pass.geometry;
  constexpr int64_t kMoreTaps = 16;  // of groups of taps and pixels
  constexpr int64_t kMostPixels = int64_t{1} << 30;
  return offsets_fit_32(geometry, kMoreTaps) && geometry.batch * geometry.output_pixels() < kMostPixels;
}

inline bool takes_anything(const Pass&) { return true; }

// ---------------------------------------------------------------- the tables

struct Rule {
  Kernel kernel;
  const char* name;  // of the kernel, as a profiler tells it
  const char* regime;
  const char* reason;
  bool (*takes)(const Pass&);
};

// clang-format off
// Forward pass and input gradient.
inline constexpr Rule kCorrelationRules[] = {
    {Kernel::small_planes, "small_planes", "NCHW, 7 x 7, 14 x 14 and 28 x 28, k = 3, 5, 7, stride 1",
     "planes are moved whole, sixteen bytes at a time", takes_small_planes},
    {Kernel::tensor_core_planes, "small_kernel_planes_tensor_core", "halves, NCHW, k = 6, 7, stride 1",
     "products of band matrices: 49 multiply-adds take longer than memory", takes_tensor_core_planes},
    {Kernel::window_channels_last, "window_channels_last", "NHWC, k = 3, 5, 7, stride 1, 2: small problems, odd channels",
     "all loads of a thread are in flight at once", takes_window_channels_last},
    {Kernel::slide_tensor_core, "slide_tensor_core", "halves, NHWC, k = 3 to 7, stride 1; k = 4 to 7 forward: 2",
     "pairs of results of four channels: nothing is converted or turned", takes_slide_tensor_core},
    {Kernel::tensor_core_channels_last, "small_kernel_tensor_core", "halves, NHWC, 1 x 8 to 7 x 8 taps, stride 1",
     "products of band matrices; channels are turned in shared memory", takes_tensor_core_channels_last},
    {Kernel::batch_tensor_core, "large_kernel_batch_tensor_core",
     "halves, NCHW, 8 images or more up to 56 columns wide, k >= 8, stride 1",
     "the same bands for sixteen images, which need no padding", takes_batch_tensor_core},
    {Kernel::large_tensor_core, "large_kernel_tensor_core", "halves, NCHW, k = 8 to 57, stride 1",
     "band matrices as wide as the kernel", takes_large_tensor_core},
    {Kernel::strips, "strips", "NCHW, k = 3, 5, 7, stride 1, 2", "every source is read once, and slides by in registers",
     takes_strips},
    {Kernel::whole_planes, "whole_planes", "float32, NCHW, 7 x 7 and 14 x 14, 16 images or more, k >= 13 and 27, stride 1",
     "every result meets every source, and no padding", takes_whole_planes},
    {Kernel::large_planes, "large_kernel_planes", "NCHW, other kernels, stride 1",
     "tiles in shared memory: two accesses feed 32 multiply-adds", takes_large_planes},
    {Kernel::slide, "slide_channels_last", "NHWC, k = 3, 5, 7, stride 1, 2",
     "every source is read once; lanes lie along channels", takes_slide},
    {Kernel::gather_columns, "gather_small<T, k, 4>", "NCHW, up to 5 x 5 taps a result, or k = 7, many results",
     "four results of a column share their sources", takes_gather_columns},
    {Kernel::gather_columns_channels_last, "gather_small_channels_last", "the same, NHWC",
     "the same; weights are turned in shared memory", takes_gather_columns_channels_last},
    {Kernel::gather_small, "gather_small<T, k, 1>", "up to 5 x 5 taps a result",
     "all loads of a result are in flight at once", takes_gather_small},
    {Kernel::gather_large, "gather_large", "any kernel that fits shared memory",
     "taps are walked a few at a time", takes_gather},
    {Kernel::direct, "direct_kernel", "anything", "sizes beyond 32 bits", takes_anything},
};

inline constexpr Rule kWeightGradRules[] = {
    {Kernel::weight_grad_small_planes, "small_planes_weight_grad",
     "NCHW, 7 x 7, 14 x 14 and 28 x 28, k = 3, 5, 7, stride 1", "planes are moved whole, sixteen bytes at a time",
     takes_weight_grad_small_planes},
    {Kernel::weight_grad_tensor_core_planes, "tensor_core_weight_grad_planes", "halves, NCHW, k >= 6, stride 1",
     "taps are the diagonals of products of both images", takes_weight_grad_tensor_core_planes},
    {Kernel::weight_grad_tensor_core_slide, "tensor_core_weight_grad_slide",
     "halves, NHWC, k = 3, 5, narrow or strided 7, stride 1, 2, channels in eights",
     "taps are the diagonals of products of channels, as they lie in memory", takes_weight_grad_tensor_core_slide},
    {Kernel::weight_grad_tensor_core_channels_last, "tensor_core_weight_grad_channels_last",
     "halves, NHWC, k = 5 to 10, stride 1", "the same; channels are turned into planes in registers",
     takes_weight_grad_tensor_core_channels_last},
    {Kernel::weight_grad_strips, "weight_grad_strips", "NCHW, k = 3, 5, 7, stride 1, 2",
     "both images are read once; all taps are summed in registers", takes_weight_grad_strips},
    {Kernel::weight_grad_large_planes, "large_weight_grad_planes", "NCHW, other kernels, stride 1",
     "tiles in shared memory; threads own taps", takes_weight_grad_large_planes},
    {Kernel::weight_grad_slide, "slide_weight_grad", "NHWC, k = 3, 5, 7, stride 1, 2",
     "both images are read once; lanes lie along channels", takes_weight_grad_slide},
    {Kernel::weight_grad_general, "weight_grad_general", "anything within 32 bits",
     "groups of taps in registers, pixels shared out", takes_weight_grad_general},
    {Kernel::weight_grad_direct, "weight_grad_direct", "anything", "sizes beyond 32 bits", takes_anything},
};
// clang-format on

// The last rule takes anything.
inline const Rule& first_rule(const Rule* rules, const Pass& pass) {
  while (!rules->takes(pass)) ++rules;
  return *rules;
}

// Of the forward pass or, transposed, of the input gradient.
inline const Rule& choose(const Pass& pass) { return first_rule(kCorrelationRules, pass); }

// `transposed` says nothing here.
inline const Rule& choose_weight_grad(const Pass& pass) { return first_rule(kWeightGradRules, pass); }

}  // namespace torchgraft::depthwise::cuda
