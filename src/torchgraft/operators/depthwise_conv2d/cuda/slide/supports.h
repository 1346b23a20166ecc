// What the kernels of slide can compute at all: NHWC, with threads that slide down the image. The sizes that
// these kernels and their limits share are here too.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../phases.h"

namespace torchgraft::depthwise::cuda {

// The most taps along one direction of a product of slide_correlate_mma.
constexpr int kMostSlideTaps = 7;

// The kernel loads and stores eight channels of a pixel at a time. With stride 1 an input gradient is a
// forward pass with the kernel turned around; with stride 2 it is not.
inline bool supports_slide_correlate_mma(const Problem& problem) {
  constexpr int64_t kMostStride = 2;
  constexpr int64_t kMost = int64_t{1} << 30;
  const Geometry& geometry = problem.geometry;
  const Extent& height = geometry.height;
  const Extent& width = geometry.width;
  const bool has_dilated_phases = height.stride == 1 && has_phases(geometry) &&
                                  is_padded_within_window(geometry) &&
                                  std::max(geometry.input_pixels(), geometry.output_pixels()) <=
                                      INT32_MAX / kMostPhases / geometry.channels;
  return problem.channels_last && problem.has_half_tensor_cores() && geometry.multiplier == 1 &&
         height.stride == width.stride && height.stride <= (problem.transposed ? 1 : kMostStride) &&
         (!is_dilated(geometry) || has_dilated_phases) && longest_side(geometry) <= kMostSlideTaps &&
         geometry.channels % kWholeChannels == 0 && problem.alignment == kWholeAlignment &&
         positions_fit_32(geometry) &&
         std::max(geometry.input_pixels(), geometry.output_pixels()) <= INT32_MAX / geometry.channels &&
         geometry.batch * std::max(height.input, height.output) < kMost;
}

// `channels_of_thread`: how many leave a thread enough registers for their weights, or sums.
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

constexpr int64_t kSlideSharedBytes = 48 << 10;  // which every device gives a block without an attribute
// How many more tiles of a row than the fewest a slide tries.
constexpr int kMostSlideTiles = 12;

// A way to cut a row: the most strips and lanes of a block, and the shared memory of a lane in bytes.
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

// Buffers for steps; half types use more, to keep as many bytes in flight.
constexpr int slide_stages(int64_t element_bytes) { return element_bytes == 4 ? 3 : 5; }

// The columns of the output gradient that a thread of slide_weight_grad owns, and the most threads of its
// blocks.
constexpr int slide_weight_grad_columns(int64_t stride) { return stride == 2 ? 2 : 4; }
constexpr int slide_weight_grad_threads(int64_t kernel) { return kernel == 5 ? 192 : 256; }

// The shared memory of a lane with `strips` strips: its steps of both images, and later the sums of a row of
// taps.
constexpr int64_t slide_weight_grad_lane_bytes(int64_t kernel, int64_t stride, int64_t element_bytes,
                                               int64_t strips) {
  const int64_t channels = slide_weight_grad_channels(kernel);
  const int64_t columns = strips * slide_weight_grad_columns(stride);
  const int64_t pixels = stride * ((columns - 1) * stride + kernel) + columns;
  return std::max(slide_stages(element_bytes) * pixels * channels * element_bytes,
                  kernel * strips * channels * int64_t{sizeof(float)});
}

// Each block of a row writes a chunk of its own, so there may be no more blocks of a row than chunks.
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

// The results of one phase lie as far apart as the taps, and depend on the same sources. This is the number
// of phases that have any result.
constexpr int64_t column_phases(int64_t results, int64_t dilation) { return std::min(results, dilation); }

// A thread of slide_columns owns kColumnsOfThread columns of results of one phase, a patch; and the patches
// of a row. A row of kColumnsOfThread times the dilation has one patch of each phase.
constexpr int kColumnsOfThread = 4;
constexpr int64_t column_patches(int64_t columns, int64_t dilation) {
  return ceil_divide(columns, kColumnsOfThread * dilation) * column_phases(columns, dilation);
}

// 32 bits count the threads.
inline bool supports_slide_columns(const Problem& problem) {
  constexpr int64_t kMoreTaps = 8;
  constexpr int64_t kTapsOfColumns = 3;
  constexpr int64_t kMostThreads = int64_t{1} << 29;
  const Geometry& geometry = problem.geometry;
  const Extent& height = geometry.height;
  const Extent& width = geometry.width;
  return problem.channels_last && !problem.is_float64() && geometry.multiplier == 1 &&
         height.kernel == kTapsOfColumns && width.kernel == kTapsOfColumns && height.stride == 1 &&
         width.stride == 1 && offsets_fit_32(geometry, kMoreTaps) &&
         column_patches(problem.result(width), width.dilation) *
                 column_phases(problem.result(height), height.dilation) <=
             kMostThreads / (geometry.batch * geometry.channels);
}

// 32 bits count the patches of all images.
inline bool supports_slide_window(const Problem& problem) {
  constexpr int64_t kMoreTaps = 8;
  const Geometry& geometry = problem.geometry;
  return problem.channels_last && !problem.is_float64() && has_small_kernel(geometry) &&
         geometry.multiplier == 1 && offsets_fit_32(geometry, kMoreTaps) &&
         geometry.batch * problem.result(geometry.height) * problem.result(geometry.width) <= INT32_MAX;
}

// The columns for which a block of slide_weight_grad_mma, with eight channels, has warps and shared memory on
// any device. Several blocks share the columns of a wider image, and each writes a chunk of its own.
constexpr int64_t kDiagonalColumns = 64;

// 32 bits count the rows of all images and the rows of zeros between them.
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

}  // namespace torchgraft::depthwise::cuda
