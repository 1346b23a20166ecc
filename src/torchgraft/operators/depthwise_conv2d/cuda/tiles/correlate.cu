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

struct TilesCorrelateParameters {
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
__device__ void store_result_tile(T* result, const TilesCorrelateParameters& parameters,
                                  const BlockTile& tile, const Accumulate* shared) {
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

// One thread: a patch of kStrip results in a row of its block's tile. Arrays of a thread are local
// variables of its methods: while a loop over one is not unrolled, the compiler keeps the whole object that
// holds it in memory.
template <typename T, bool kFlipped, bool kSums>
class TilesCorrelate {
 public:
  using Accumulate = accumulate_t<T>;
  using Group = Vector<Accumulate, kTapGroup>;
  using Sums = Accumulate[kStrip];

  __device__ TilesCorrelate(const TilesCorrelateParameters& parameters, const LargeKernel& kernel)
      : parameters_(parameters),
        tiling_(parameters.tiling),
        kernel_(kernel),
        tile_(tiling_, parameters.planes),
        patch_(tiling_),
        active_(patch_.plane < tile_.planes) {
    shared_ = shared_memory<Accumulate>();
    shared_weight_ = shared_ + tiling_.planes * max(tiling_.source_plane(), tiling_.result_plane());
  }

  __device__ void run(const T* source, const Rounded<T>& weight, const Rounded<T>& bias, T* result) {
    Sums sums;
    const Accumulate start = bias.or_zero(active_, channel_of(patch_.plane));
#pragma unroll
    for (int column = 0; column < kStrip; ++column) sums[column] = start;
    clear_shared(shared_, tiling_.planes * tiling_.source_plane());
    const int summed_planes = kSums ? parameters_.multiplier : 1;
#pragma unroll 1
    for (int summed = 0; summed < summed_planes; ++summed) {
      __syncthreads();
      load_weights(weight, summed, summed_planes);
      load_source_tile(source,
                       kFlipped ? int64_t{tile_.first_plane} * summed_planes + summed
                                : int64_t{tile_.first_plane / parameters_.multiplier},
                       tiling_, tile_, shared_);
      __syncthreads();
      if (active_) add_rows(sums);
    }
    __syncthreads();
    if (active_) put_results(sums);
    __syncthreads();
    store_result_tile(result, parameters_, tile_, shared_);
  }

 private:
  __device__ int channel_of(int plane) const {
    int channel = tile_.first_plane + plane;
    split(channel, parameters_.result_channels);
    return channel;
  }

  // Brings the taps of the tile's planes to shared memory, with zeros behind each row of them.
  __device__ void load_weights(const Rounded<T>& weight, int summed, int summed_planes) const {
    const int taps = kernel_.height * kernel_.width;
    const int padded_taps = kernel_.padded_taps.divisor();
    weight.with_numbers([&](const auto* numbers) {
#pragma unroll 4
      for (int i = threadIdx.x; i < tile_.planes * padded_taps; i += blockDim.x) {
        int column = i;
        const int plane = split(column, kernel_.padded_taps);
        const int row = split(column, kernel_.padded_width);
        const int tap = row * kernel_.width + column;
        const int64_t channel = channel_of(plane) * summed_planes + summed;
        const auto* const place = numbers + channel * taps + (kFlipped ? taps - 1 - tap : tap);
        shared_weight_[i] =
            column < kernel_.width ? static_cast<Accumulate>(read_rounded<T>(place)) : Accumulate(0);
      }
    });
  }

  // Adds the products of all rows of sources under the patch.
  __device__ void add_rows(Sums& sums) const {
    const int pitch = tiling_.width.source_extent;
    const int padded_width = kernel_.padded_width.divisor();
    const int padded_taps = kernel_.padded_taps.divisor();
    const int origin = tiling_.height.source_origin(tile_.y) + patch_.y;
    const int begin = max(0, -origin);
    const int end = min(kernel_.height, tiling_.height.source.divisor() - origin);
    const Accumulate* window =
        shared_ + patch_.plane * tiling_.source_plane() + patch_.y * pitch + patch_.x * kStrip;
    const Accumulate* plane_weight = shared_weight_ + patch_.plane * padded_taps;
    for (int row = begin; row < end; ++row) {
      add_row(window + row * pitch, plane_weight + row * padded_width, sums);
    }
  }

  __device__ void add_row(const Accumulate* values, const Accumulate* row_weight, Sums& sums) const {
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
    for (; column + kTapGroup <= kernel_.width; column += kTapGroup) take_taps(column, kTapGroup);
    // The zeros behind the last tap are not multiplied: times infinity they would give NaN.
    if (column < kernel_.width) take_taps(column, kernel_.width - column);
  }

  // Puts the patch's results in the place of the sources.
  __device__ void put_results(const Sums& sums) const {
    Accumulate* results = shared_ + patch_.plane * tiling_.result_plane() +
                          patch_.y * tiling_.width.result_extent + patch_.x * kStrip;
#pragma unroll
    for (int i = 0; i < kStrip; i += kTapGroup) {
      Group values;
#pragma unroll
      for (int j = 0; j < kTapGroup; ++j) values[j] = sums[i + j];
      *reinterpret_cast<Group*>(results + i) = values;
    }
  }

  const TilesCorrelateParameters& parameters_;
  const Tiling& tiling_;
  const LargeKernel& kernel_;
  BlockTile tile_;
  ThreadPatch patch_;
  bool active_;  // this thread has a patch
  // In shared memory: the sources of the tile, later its results; and the taps of its planes.
  Accumulate* shared_;
  Accumulate* shared_weight_;
};

// kFlipped: the input gradient of stride 1 is the forward pass with the kernel turned around. kSums: several
// source planes are summed in a result plane, one after the other; a block then owns one plane.
template <typename T, bool kFlipped, bool kSums>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    tiles_correlate(const T* __restrict__ source, Rounded<T> weight, Rounded<T> bias, T* __restrict__ result,
                    TilesCorrelateParameters parameters, LargeKernel kernel) {
  TilesCorrelate<T, kFlipped, kSums>(parameters, kernel).run(source, weight, bias, result);
}

inline TilesCorrelateParameters tiles_correlate_parameters(const Tiling& tiling, const Geometry& geometry,
                                                           bool transposed) {
  const int64_t channels = transposed ? geometry.channels : geometry.output_channels();
  return {tiling, static_cast<int>(geometry.batch * channels), FastDivisor(static_cast<int>(channels)),
          static_cast<int>(geometry.multiplier)};
}

inline int64_t tiles_correlate_blocks(const TilesCorrelateParameters& parameters) {
  return ceil_divide(int64_t{parameters.planes}, int64_t{parameters.tiling.planes}) *
         parameters.tiling.tiles();
}

// Planes of results that a block may own side by side: their sources must be neighbours too.
inline int64_t adjacent_planes(const Geometry& geometry, bool transposed) {
  if (geometry.multiplier > 1) return 1;
  return geometry.batch * (transposed ? geometry.channels : geometry.output_channels());
}

// How planes are cut into tiles, and the elements of shared memory that weights and a tile take.
struct TilesCorrelatePlan {
  LargeKernel kernel;
  Tiling tiling;
  int64_t elements;
};

inline TilesCorrelatePlan plan_tiles_correlate(const Geometry& geometry, bool flipped) {
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
  const TilesCorrelatePlan plan = plan_tiles_correlate(geometry, transposed);
  const TilesCorrelateParameters parameters = tiles_correlate_parameters(plan.tiling, geometry, transposed);
  const auto kernel = !transposed                ? tiles_correlate<T, false, false>
                      : geometry.multiplier == 1 ? tiles_correlate<T, true, false>
                                                 : tiles_correlate<T, true, true>;
  // If a block has few patches, some threads have none, and help to bring those of the others.
  const int threads = std::max(round_up(plan.tiling.patches(), 32), kLeastTileThreads);
  kernel<<<grid_of(tiles_correlate_blocks(parameters), pass.name()), threads, plan.elements * sizeof(float),
           stream>>>(source, weight, bias, result, parameters, plan.kernel);
  check_launch(pass.name());
}

template void launch_tiles_correlate(const Correlation<float>&);
template void launch_tiles_correlate(const Correlation<Half>&);
template void launch_tiles_correlate(const Correlation<BFloat16>&);

}  // namespace torchgraft::depthwise::cuda
