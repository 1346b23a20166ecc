// Planes of 7 x 7, 14 x 14 and 28 x 28 as a warp owns them: 32, 8 or 2 neighbouring ones, of which a lane has
// a tile of 7 x 7 pixels.
#pragma once

#include <torchgraft/async_copy.cuh>

#include "../stencil.cuh"

namespace torchgraft::depthwise::cuda {

template <typename Element, int kKernelSize, int kTileCount>
struct SmallPlanes {
  using T = Element;
  static constexpr int kKernel = kKernelSize;
  static constexpr int kTaps = kKernel * kKernel;
  static constexpr int kReach = kKernel / 2;
  static constexpr int kTile = 7;            // rows and columns of a lane
  static constexpr int kTiles = kTileCount;  // along either direction of a plane
  static constexpr int kSide = kTile * kTiles;
  static constexpr int kPixels = kSide * kSide;
  static constexpr int kPlanes = 32 / (kTiles * kTiles);  // of a warp
  static constexpr int kWarps = 2;
  static constexpr int kElements = kPlanes * kPixels;
  static constexpr int kWeights = ceil_divide(kPlanes * kTaps, 8) * 8;
  static_assert(kElements * sizeof(T) % 16 == 0);
  static constexpr int kBytes = kWarps * (kElements + kWeights) * static_cast<int>(sizeof(T));
  static constexpr int kBlocks = (kKernel == 7 ? 16 : kKernel == 5 ? 16 : 24) / kWarps;
};

// Whether a tile may have sources in a row (counted from its first), or at a place of the window of a row,
// that are not padding.
template <typename Shape>
constexpr bool tile_row_exists(int row) {
  return Shape::kTiles > 1 || (row >= 0 && row < Shape::kTile);
}
template <typename Shape>
constexpr bool tile_value_exists(int value) {
  return Shape::kTiles > 1 || (value >= Shape::kReach && value < Shape::kReach + Shape::kTile);
}

// The window of a tile in a row: its seven columns and those that the kernel reaches; zeros outside the
// plane.
template <typename Shape>
__device__ void load_tile_row(const typename Shape::T* tile, int row, int tile_y, int tile_x,
                              float (&values)[Shape::kTile + 2 * Shape::kReach]) {
  constexpr int kLast = Shape::kTiles - 1;
  const bool inside = (row >= 0 || tile_y > 0) && (row < Shape::kTile || tile_y < kLast);
#pragma unroll
  for (int i = -Shape::kReach; i < Shape::kTile + Shape::kReach; ++i) {
    const bool exists = inside && (i >= 0 || tile_x > 0) && (i < Shape::kTile || tile_x < kLast);
    values[Shape::kReach + i] = exists ? static_cast<float>(tile[row * Shape::kSide + i]) : 0.0F;
  }
}

// Calls `function` with the kernel size and the tiles of a side.
template <typename Function>
void with_small_planes(const Geometry& geometry, const Function& function) {
  with_small_kernel(geometry, [&](auto kernel, auto) {
    switch (geometry.width.input) {
      case 7:
        return function(kernel, std::integral_constant<int, 1>{});
      case 14:
        return function(kernel, std::integral_constant<int, 2>{});
      default:
        return function(kernel, std::integral_constant<int, 4>{});
    }
  });
}

}  // namespace torchgraft::depthwise::cuda
