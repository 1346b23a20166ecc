// What the kernels of diagonals can compute at all: weight gradients of halves on tensor cores, whose taps
// are the diagonals of products of both images.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../phases.h"

namespace torchgraft::depthwise::cuda {

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
  // A tile may reach beyond its plane. The offsets of elements there are 32-bit numbers too.
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

// The largest kernel whose taps the warps of a block own side by side.
constexpr int kMostChannelsLastTapRows = 10;
constexpr int kMostChannelsLastTapColumns = 9;

inline bool supports_diagonals_nhwc(const Problem& problem) {
  return problem.channels_last && supports_diagonals(problem) && is_unit_step(problem.geometry) &&
         problem.geometry.height.kernel <= kMostChannelsLastTapRows &&
         problem.geometry.width.kernel <= kMostChannelsLastTapColumns;
}

// Whether 32 bits count the groups of eight channels of all pixels of either image.
inline bool eights_fit_32(const Geometry& geometry) {
  return geometry.batch * std::max(geometry.input_pixels(), geometry.output_pixels()) <=
         INT32_MAX / (geometry.output_channels() / kWholeChannels);
}

}  // namespace torchgraft::depthwise::cuda
