// Forward and input gradient of large kernels on NCHW planes, through tiles in shared memory (tile.cuh).
//
// Any kernel that fits, stride 1. A thread owns eight results of a row and walks along
// each row of the kernel four taps at a time: two sixteen-byte accesses to shared memory feed 32
// multiply-adds. Rows of taps that lie in the padding are left out. Bound by multiply-adds:
// (64,128,56x56,k31) 0.64 ms for the 86 % of its rows of taps that touch the image; predicted 1.1 ms,
// measured 1.43. Where a result sums several source planes a block takes their tiles in turn:
// (8,64,28x28,k5x3, multiplier 2) 11 us, where gathering took 20.

#include <torchgraft/device.cuh>

#include "../index.cuh"
#include "../kernels.h"
#include "../supports.h"
#include "tile.cuh"

namespace torchgraft::depthwise::cuda {
namespace {

constexpr int kTileBlocks = 4;  // of a multiprocessor
constexpr int kLeastTileThreads = 128;

struct PlanesParameters {
  Tiling tiling;
  int planes;  // of results
  FastDivisor result_channels;
  int multiplier;  // result planes a source plane
};

// Where a block's tile lies.
struct BlockTile {
  int x, y;
  int first_plane;
  int planes;  // fewer than a tiling's in the last block

  __device__ BlockTile(const Tiling& tiling, int all_planes) {
    const unsigned tiles_x = tiling.width.tiles;
    const unsigned tiles_y = tiling.height.tiles;
    x = static_cast<int>(blockIdx.x % tiles_x);
    y = static_cast<int>(blockIdx.x / tiles_x % tiles_y);
    first_plane = static_cast<int>(blockIdx.x / tiles_x / tiles_y) * tiling.planes;
    planes = min(tiling.planes, all_planes - first_plane);
  }
};

// Where a thread's patch lies in its tile; past the last patch, `plane` is not below the tile's planes.
struct ThreadPatch {
  int x, y, plane;

  __device__ explicit ThreadPatch(const Tiling& tiling) {
    const unsigned columns = tiling.width.patches;
    const unsigned rows = tiling.height.patches;
    x = static_cast<int>(threadIdx.x % columns);
    y = static_cast<int>(threadIdx.x / columns % rows);
    plane = static_cast<int>(threadIdx.x / columns / rows);
  }
};

template <typename T, typename Accumulate>
__device__ void load_source_tile(const T* source, int64_t first_plane, const Tiling& tiling,
                                 const BlockTile& tile, Accumulate* shared) {
  const TileAxis& height = tiling.height;
  const TileAxis& width = tiling.width;
  const int64_t plane = static_cast<int64_t>(height.source.divisor()) * width.source.divisor();
  load_tile(source + first_plane * plane, plane, tile.planes, height.source, width.source,
            source_part(tiling, tile.y, tile.x), shared);
}

template <typename T, typename Accumulate>
__device__ void store_result_tile(T* result, const PlanesParameters& parameters, const BlockTile& tile,
                                  const Accumulate* shared) {
  const TileAxis& height = parameters.tiling.height;
  const TileAxis& width = parameters.tiling.width;
  const int64_t plane = static_cast<int64_t>(height.result.divisor()) * width.result.divisor();
  store_tile(result + tile.first_plane * plane, plane, tile.planes, height.result, width.result,
             result_part(parameters.tiling, tile.y, tile.x), shared);
}

struct LargeKernel {
  int height, width;
  FastDivisor padded_width;  // rows of taps in shared memory end in zeros, up to a multiple of kTapGroup
  FastDivisor padded_taps;
};

// kFlipped: the input gradient of stride 1 is the forward pass with the kernel turned around. kSums: of
// several source planes a result plane, which are taken in turn; a block owns one plane.
template <typename T, bool kFlipped, bool kSums>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    tiles_correlate(const T* __restrict__ source, Rounded<T> weight, Rounded<T> bias, T* __restrict__ result,
                    PlanesParameters parameters, LargeKernel kernel) {
  using Accumulate = accumulate_t<T>;
  using Group = Vector<Accumulate, kTapGroup>;
  const Tiling& tiling = parameters.tiling;
  const BlockTile tile(tiling, parameters.planes);
  const ThreadPatch patch(tiling);
  const auto channel_of = [&](int plane) {
    int channel = tile.first_plane + plane;
    split(channel, parameters.result_channels);
    return channel;
  };
  const int taps = kernel.height * kernel.width;
  const int padded_width = kernel.padded_width.divisor();
  const int padded_taps = kernel.padded_taps.divisor();
  Accumulate* shared = shared_memory<Accumulate>();
  Accumulate* shared_weight = shared + tiling.planes * max(tiling.source_plane(), tiling.result_plane());

  Accumulate sums[kStrip];
  const bool active = patch.plane < tile.planes;
  {
    const Accumulate start = bias.or_zero(active, channel_of(patch.plane));
#pragma unroll
    for (int column = 0; column < kStrip; ++column) sums[column] = start;
  }

  clear_shared(shared, tiling.planes * tiling.source_plane());
  const int summed_planes = kSums ? parameters.multiplier : 1;
#pragma unroll 1
  for (int summed = 0; summed < summed_planes; ++summed) {
    __syncthreads();
    weight.with_numbers([&](const auto* numbers) {
#pragma unroll 4
      for (int i = threadIdx.x; i < tile.planes * padded_taps; i += blockDim.x) {
        int column = i;
        const int plane = split(column, kernel.padded_taps);
        const int row = split(column, kernel.padded_width);
        const int tap = row * kernel.width + column;
        const int64_t channel = channel_of(plane) * summed_planes + summed;
        const auto* const place = numbers + channel * taps + (kFlipped ? taps - 1 - tap : tap);
        shared_weight[i] =
            column < kernel.width ? static_cast<Accumulate>(read_rounded<T>(place)) : Accumulate(0);
      }
    });
    load_source_tile(source,
                     kFlipped ? int64_t{tile.first_plane} * summed_planes + summed
                              : int64_t{tile.first_plane / parameters.multiplier},
                     tiling, tile, shared);
    __syncthreads();
    if (!active) continue;

    const int pitch = tiling.width.source_extent;
    const int origin = tiling.height.source_origin(tile.y) + patch.y;
    const int begin = max(0, -origin);
    const int end = min(kernel.height, tiling.height.source.divisor() - origin);
    const Accumulate* window =
        shared + patch.plane * tiling.source_plane() + patch.y * pitch + patch.x * kStrip;
    const Accumulate* plane_weight = shared_weight + patch.plane * padded_taps;
    for (int row = begin; row < end; ++row) {
      const Accumulate* values = window + row * pitch;
      const Accumulate* row_weight = plane_weight + row * padded_width;
      Accumulate held[kStrip + kTapGroup];
      Accumulate first[kStrip];
      load_row<kStrip, kTapGroup>(values, first);
#pragma unroll
      for (int i = 0; i < kStrip; ++i) held[i] = first[i];
      const auto take_taps = [&](int column, int count) {
        const Group next = *reinterpret_cast<const Group*>(values + column + kStrip);
        const Group group = *reinterpret_cast<const Group*>(row_weight + column);
#pragma unroll
        for (int i = 0; i < kTapGroup; ++i) held[kStrip + i] = next[i];
#pragma unroll
        for (int tap = 0; tap < kTapGroup; ++tap) {
          if (tap >= count) break;
#pragma unroll
          for (int i = 0; i < kStrip; ++i) sums[i] += group[tap] * held[i + tap];
        }
#pragma unroll
        for (int i = 0; i < kStrip; ++i) held[i] = held[i + kTapGroup];
      };
      int column = 0;
      // Three turns rename twelve held values all the way round, so that none need be moved.
#pragma unroll 3
      for (; column + kTapGroup <= kernel.width; column += kTapGroup) take_taps(column, kTapGroup);
      // The zeros behind the last tap are not multiplied: they would make NaN of what is not finite there.
      if (column < kernel.width) take_taps(column, kernel.width - column);
    }
  }

  __syncthreads();
  if (active) {
    Accumulate* results = shared + patch.plane * tiling.result_plane() +
                          patch.y * tiling.width.result_extent + patch.x * kStrip;
#pragma unroll
    for (int i = 0; i < kStrip; i += kTapGroup) {
      Group values;
#pragma unroll
      for (int j = 0; j < kTapGroup; ++j) values[j] = sums[i + j];
      *reinterpret_cast<Group*>(results + i) = values;
    }
  }
  __syncthreads();
  store_result_tile(result, parameters, tile, shared);
}

inline PlanesParameters planes_parameters(const Tiling& tiling, const Geometry& geometry, bool transposed) {
  const int64_t channels = transposed ? geometry.channels : geometry.output_channels();
  return {tiling, static_cast<int>(geometry.batch * channels), FastDivisor(static_cast<int>(channels)),
          static_cast<int>(geometry.multiplier)};
}

inline int64_t planes_blocks(const PlanesParameters& parameters) {
  return ceil_divide(int64_t{parameters.planes}, int64_t{parameters.tiling.planes}) *
         parameters.tiling.tiles();
}

// Planes of results that a block may own side by side: their sources must be neighbours too.
inline int64_t adjacent_planes(const Geometry& geometry, bool transposed) {
  if (geometry.multiplier > 1) return 1;
  return geometry.batch * (transposed ? geometry.channels : geometry.output_channels());
}

// What both weights and tile take of shared memory, in elements, and how planes are cut for it.
struct LargeKernelPlan {
  LargeKernel kernel;
  Tiling tiling;
  int64_t elements;
};

inline LargeKernelPlan plan_large_kernel(const Geometry& geometry, bool flipped) {
  const int kernel_height = static_cast<int>(geometry.height.kernel);
  const int kernel_width = static_cast<int>(geometry.width.kernel);
  const int padded_width = round_up(kernel_width, kTapGroup);
  const int padded_taps = kernel_height * padded_width;
  const LargeKernel kernel = {kernel_height, kernel_width, FastDivisor(padded_width),
                              FastDivisor(padded_taps)};
  const auto elements = [&](const Tiling& tiling) {
    return int64_t{tiling.planes} * (std::max(tiling.source_plane(), tiling.result_plane()) + padded_taps);
  };
  const TilePlan height = large_kernel_plan(geometry.height, 1, kernel.height - 1, flipped);
  const TilePlan width = large_kernel_plan(geometry.width, kStrip, padded_width, flipped);
  // As many patches as threads, or fewer, so that small problems fill the device: a warp each at least.
  const int64_t planes = geometry.batch * (flipped ? geometry.channels : geometry.output_channels());
  const int64_t blocks = int64_t{current_device().multiprocessors} * kTileBlocks;
  const int64_t share = round_up(ceil_divide(planes * height.patches * width.patches, blocks), int64_t{32});
  const Tiling tiling =
      make_tiling(height, width, adjacent_planes(geometry, flipped),
                  static_cast<int>(std::min<int64_t>(share, kTileThreads)), kLargeKernelElements, elements);
  return {kernel, tiling, elements(tiling)};
}

}  // namespace

template <typename T>
void launch_tiles_correlate(const Correlation<T>& pass) {
  const auto& [source, weight, bias, result, geometry, layout, transposed, stream] = pass;
  const LargeKernelPlan plan = plan_large_kernel(geometry, transposed);
  const PlanesParameters parameters = planes_parameters(plan.tiling, geometry, transposed);
  const auto kernel = !transposed                ? tiles_correlate<T, false, false>
                      : geometry.multiplier == 1 ? tiles_correlate<T, true, false>
                                                 : tiles_correlate<T, true, true>;
  // Some threads have no patch where a block has few, and help to bring the others theirs.
  const int threads = std::max(round_up(plan.tiling.patches(), 32), kLeastTileThreads);
  kernel<<<grid_of(planes_blocks(parameters), pass.name()), threads, plan.elements * sizeof(float), stream>>>(
      source, weight, bias, result, parameters, plan.kernel);
  check_launch(pass.name());
}

template void launch_tiles_correlate(const Correlation<float>&);
template void launch_tiles_correlate(const Correlation<Half>&);
template void launch_tiles_correlate(const Correlation<BFloat16>&);

}  // namespace torchgraft::depthwise::cuda
