// What the kernels of gather can compute at all: almost anything. The sizes that these kernels and their
// limits share are here too.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "../problem.h"

namespace torchgraft::depthwise::cuda {

constexpr int64_t kGatherSharedBytes = 48 * 1024;
constexpr int kResultsOfThread = 4;  // of gather_columns and gather_columns_nhwc

// The most taps of a channel in shared memory: a period may end behind the kernel.
inline int64_t gather_shared_taps(const Geometry& geometry, bool transposed) {
  const auto taps = [transposed](const Extent& extent) {
    return extent.kernel + (transposed ? extent.stride - 1 : 0);
  };
  return taps(geometry.height) * taps(geometry.width);
}

// The groups of rows in a column of results, each a thread's kResultsOfThread results.
inline int64_t row_groups(int64_t rows, int64_t spacing) {
  const int64_t stretch = kResultsOfThread * spacing;
  return ceil_divide(rows, stretch) * spacing;
}

inline bool supports_gather(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  constexpr int64_t kMoreTaps = 8;
  // An input gradient has as many phases of positions. Its stride is less, as shared memory holds its taps.
  constexpr int64_t kLargestDilation = int64_t{1} << 15;
  static_assert(kGatherSharedBytes / sizeof(double) < kLargestDilation);
  return offsets_fit_32(geometry, kMoreTaps) &&
         (!problem.transposed ||
          std::max(geometry.height.dilation, geometry.width.dilation) < kLargestDilation) &&
         gather_shared_taps(geometry, problem.transposed) * int64_t{sizeof(double)} <= kGatherSharedBytes;
}

constexpr int kGatherChannels = 4;  // of a thread of gather_large, if they can be loaded together

// Whether threads of gather_large may own neighbouring channels: whether their loads are aligned, 32 bits
// count the pixels, and the weights of one thread fit shared memory.
inline bool gathers_channels_together(const Problem& problem) {
  constexpr int64_t kMostPixels = int64_t{1} << 30;
  const Geometry& geometry = problem.geometry;
  return problem.channels_last && !problem.is_float64() && geometry.channels % kGatherChannels == 0 &&
         geometry.multiplier == 1 && problem.alignment % (problem.element_bytes * kGatherChannels) == 0 &&
         geometry.batch * std::max(geometry.input_pixels(), geometry.output_pixels()) < kMostPixels &&
         gather_shared_taps(geometry, problem.transposed) * kGatherChannels * int64_t{sizeof(float)} <=
             kGatherSharedBytes;
}

// The most taps of one result along one direction: a result of an input gradient uses only every
// (stride / gcd(stride, dilation))-th one.
inline int64_t gathered_taps(const Extent& extent, bool transposed) {
  const int64_t period = transposed ? extent.stride / std::gcd(extent.stride, extent.dilation) : 1;
  return ceil_divide(extent.kernel, period);
}

inline int64_t gathered_taps(const Geometry& geometry, bool transposed) {
  return std::max(gathered_taps(geometry.height, transposed), gathered_taps(geometry.width, transposed));
}

// Whether the kernel is square and every result uses all of its taps, on one source channel.
inline bool gathers_whole_square(const Geometry& geometry, bool transposed) {
  return geometry.height.kernel == geometry.width.kernel &&
         !(transposed &&
           (geometry.height.stride > 1 || geometry.width.stride > 1 || geometry.multiplier > 1));
}

// How far apart the results of a column lie that use the same taps of neighbouring sources; 0 if none do.
inline int64_t spacing_of_column(const Problem& problem) {
  const Extent& height = problem.geometry.height;
  if (problem.transposed && height.stride > 1) {
    return height.dilation / std::gcd(height.stride, height.dilation) * height.stride;
  }
  const int64_t scale = problem.transposed ? 1 : height.stride;
  return height.dilation % scale == 0 ? height.dilation / scale : 0;
}

// The taps along one direction that gather_small and the kernels of columns are compiled for, and those of a
// square kernel.
constexpr int64_t kMostGatheredTaps = 5;
constexpr int64_t kMostSquareTaps = 7;

inline bool supports_gather_columns_in_any_layout(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  const int64_t taps = gathered_taps(geometry, problem.transposed);
  // In NHWC the weights of a block lie in shared memory, of all summed channels at once.
  const int64_t summed_taps = geometry.taps() * (problem.transposed ? geometry.multiplier : 1);
  return !problem.is_float64() && supports_gather(problem) && spacing_of_column(problem) > 0 &&
         summed_taps * int64_t{sizeof(float)} <= kGatherSharedBytes &&
         (taps <= kMostGatheredTaps ||
          (taps == kMostSquareTaps && gathers_whole_square(geometry, problem.transposed)));
}

inline bool supports_gather_columns(const Problem& problem) {
  return !problem.channels_last && supports_gather_columns_in_any_layout(problem);
}

inline bool supports_gather_columns_nhwc(const Problem& problem) {
  return problem.channels_last && supports_gather_columns_in_any_layout(problem);
}

// A thread owns one result.
inline bool supports_gather_small(const Problem& problem) {
  return supports_gather(problem) && gathered_taps(problem.geometry, problem.transposed) <= kMostGatheredTaps;
}

inline bool supports_gather_weight_grad(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  constexpr int64_t kMoreTaps = 16;  // of groups of taps and pixels
  constexpr int64_t kMostPixels = int64_t{1} << 30;
  return offsets_fit_32(geometry, kMoreTaps) && geometry.batch * geometry.output_pixels() < kMostPixels;
}

}  // namespace torchgraft::depthwise::cuda
