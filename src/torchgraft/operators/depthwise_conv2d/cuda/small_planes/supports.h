// What the kernels of small_planes can compute at all: planes in NCHW that a warp moves whole.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../problem.h"

namespace torchgraft::depthwise::cuda {

// The sides of planes that the kernels are compiled for.
constexpr int64_t kSmallPlane = 7, kMediumPlane = 14, kWidePlane = 28;

// Square planes of these sides whose results have the same size.
inline bool supports_small_planes_of_any_number(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  const auto fits = [](const Extent& extent) {
    return (extent.input == kSmallPlane || extent.input == kMediumPlane || extent.input == kWidePlane) &&
           extent.padding == extent.kernel / 2 && extent.output == extent.input;
  };
  constexpr int kAlignment = 16;
  constexpr int64_t kMostPlanes = int64_t{1} << 29;
  constexpr int64_t kMostChannels = kMostPlanes / 64;
  return !problem.channels_last && !problem.is_float64() && problem.alignment == kAlignment &&
         geometry.multiplier == 1 && is_unit_step(geometry) && is_square_of_3_5_7(geometry) &&
         fits(geometry.height) && fits(geometry.width) && geometry.height.input == geometry.width.input &&
         geometry.batch * geometry.channels < kMostPlanes && geometry.channels < kMostChannels;
}

// A warp owns neighbouring planes with this many pixels, each plane of another channel.
constexpr int64_t kSmallPlanesPixels = 32 * kSmallPlane * kSmallPlane;

inline bool supports_small_planes_correlate(const Problem& problem) {
  return supports_small_planes_of_any_number(problem) &&
         problem.geometry.channels * problem.geometry.input_pixels() >= kSmallPlanesPixels;
}

// A warp goes from image to image and moves kPiece bytes at a time.
inline bool supports_small_planes_weight_grad(const Problem& problem) {
  constexpr int64_t kPiece = 16;
  const Geometry& geometry = problem.geometry;
  return supports_small_planes_of_any_number(problem) &&
         geometry.channels * geometry.input_pixels() * problem.element_bytes % kPiece == 0;
}

// Every result depends on every source, in planes that the registers of a warp hold.
inline bool supports_small_planes_whole(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  constexpr int64_t kMostTaps = int64_t{1} << 27;
  const auto meets_all = [](const Extent& extent) {
    return (extent.input == kSmallPlane || extent.input == kMediumPlane) && extent.output == extent.input &&
           std::min(extent.padding, extent.kernel - 1 - extent.padding) >= extent.input - 1;
  };
  return !problem.channels_last && problem.is_float32() && geometry.multiplier == 1 &&
         is_unit_step(geometry) && positions_fit_32(geometry) && geometry.taps() <= kMostTaps &&
         meets_all(geometry.height) && meets_all(geometry.width) &&
         geometry.height.input == geometry.width.input;
}

}  // namespace torchgraft::depthwise::cuda
