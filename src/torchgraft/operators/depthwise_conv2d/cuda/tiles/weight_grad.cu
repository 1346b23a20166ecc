// Weight gradient of large kernels on NCHW planes, first pass, through tiles in shared memory
// (tile.cuh). A block owns one output channel and a chunk of the tiles of its planes; both tiles, of
// input and output gradient, are read from device memory once, but for the borders of tiles of large planes.
//
// Any kernel that fits, stride 1. A thread owns eight taps of a kernel row and
// visits the pixels of the tile, four at a time: two sixteen-byte accesses to shared memory, one of them the
// same for the whole warp, feed 32 multiply-adds. Where taps are few, several threads own the same and share
// the rows of the tile. Bound by multiply-adds: (64,128,56x56,k31) predicted 1.3 ms,
// measured 1.4.

#include "../chunks.cuh"
#include "../kernels.h"
#include "tile.cuh"

namespace torchgraft::depthwise::cuda {
namespace {

struct TilesWeightGradParameters {
  Tiling tiling;
  Chunks chunks;  // of tiles
  int batch, channels, multiplier, output_channels;
};

// Brings tile number `index` of a channel into shared memory, zeros around it.
struct TilesWeightGradTile {
  int x, y;
  int first_image, images;

  __device__ TilesWeightGradTile(const TilesWeightGradParameters& parameters, int index) {
    const Tiling& tiling = parameters.tiling;
    x = index % tiling.width.tiles;
    const int rest = index / tiling.width.tiles;
    y = rest % tiling.height.tiles;
    first_image = rest / tiling.height.tiles * tiling.planes;
    images = min(tiling.planes, parameters.batch - first_image);
  }

  template <typename T, typename Accumulate>
  __device__ void load(const TilesWeightGradParameters& parameters, const T* output_grad, const T* input,
                       int channel, Accumulate* shared_input, Accumulate* shared_output_grad) const {
    const Tiling& tiling = parameters.tiling;
    const TileAxis& height = tiling.height;
    const TileAxis& width = tiling.width;
    const int64_t input_plane = static_cast<int64_t>(height.source.divisor()) * width.source.divisor();
    const int64_t output_plane = static_cast<int64_t>(height.result.divisor()) * width.result.divisor();
    const int64_t input_index =
        static_cast<int64_t>(first_image) * parameters.channels + channel / parameters.multiplier;
    const int64_t output_index = static_cast<int64_t>(first_image) * parameters.output_channels + channel;
    clear_shared(shared_input, tiling.planes * tiling.source_plane());
    clear_shared(shared_output_grad, tiling.planes * tiling.result_plane());
    __syncthreads();
    load_tile(input + input_index * input_plane, parameters.channels * input_plane, images, height.source,
              width.source, source_part(tiling, y, x), shared_input);
    load_tile(output_grad + output_index * output_plane, parameters.output_channels * output_plane, images,
              height.result, width.result, result_part(tiling, y, x), shared_output_grad);
    __syncthreads();
  }
};

// Pixels of a chain of additions, at least: longer ones lose digits, and shorter ones take a noticeable part
// of the time.
constexpr int kPixelsOfChain = 32;

struct TapGroups {
  int kernel_height, kernel_width;
  int row_groups;       // groups of kTapsOfThread taps in a kernel row
  int groups_of_block;  // a thread each
  int blocks;           // that share the groups of a channel
  int slices;           // threads that own the same group and share the rows of a tile
};

// One thread: a group of taps, and a share of the rows of its block's tiles. Arrays of a thread are local
// variables of its methods: while a loop over one is not unrolled, the compiler keeps the whole object that
// holds it in memory.
template <typename T>
class TilesWeightGrad {
 public:
  using Accumulate = accumulate_t<T>;
  using Pixels = Vector<Accumulate, kPixelsAtATime>;
  using Taps = Accumulate[kTapsOfThread];

  __device__ TilesWeightGrad(const TilesWeightGradParameters& parameters, const TapGroups& tap_groups)
      : parameters_(parameters), tiling_(parameters.tiling), tap_groups_(tap_groups) {
    int rest = static_cast<int>(blockIdx.x);
    channel_ = rest % parameters.output_channels;
    rest /= parameters.output_channels;
    first_group_ = rest % tap_groups.blocks * tap_groups.groups_of_block;
    chunk_ = rest / tap_groups.blocks;
    const int group = first_group_ + static_cast<int>(threadIdx.x) % tap_groups.groups_of_block;
    slice_ = static_cast<int>(threadIdx.x) / tap_groups.groups_of_block;
    tap_row_ = group / tap_groups.row_groups;
    first_tap_ = group % tap_groups.row_groups * kTapsOfThread;
    shared_input_ = shared_memory<Accumulate>();
    shared_output_grad_ = shared_input_ + tiling_.planes * tiling_.source_plane();
  }

  __device__ void run(const T* output_grad, const T* input, Accumulate* partial) {
    const int begin = static_cast<int>(chunk_ * parameters_.chunks.units_of_chunk);
    const int end =
        static_cast<int>(min(begin + parameters_.chunks.units_of_chunk, parameters_.chunks.units));
    const bool active = tap_row_ < tap_groups_.kernel_height && slice_ < tap_groups_.slices;
    Taps sums = {};
    Taps chains = {};
    int chain_pixels = 0;
    for (int index = begin; index < end; ++index) {
      const TilesWeightGradTile tile(parameters_, index);
      tile.load(parameters_, output_grad, input, channel_, shared_input_, shared_output_grad_);
      if (active) add_tile(tile, sums, chains, chain_pixels);
      __syncthreads();
    }
    end_chains(sums, chains, chain_pixels);
    store_sums(sums, partial);
  }

 private:
  // Adds the chains to the sums, and begins new ones.
  static __device__ void end_chains(Taps& sums, Taps& chains, int& chain_pixels) {
#pragma unroll
    for (int tap = 0; tap < kTapsOfThread; ++tap) {
      sums[tap] += chains[tap];
      chains[tap] = 0;
    }
    chain_pixels = 0;
  }

  __device__ void add_tile(const TilesWeightGradTile& tile, Taps& sums, Taps& chains,
                           int& chain_pixels) const {
    const int origin = tiling_.height.source_origin(tile.y) + tap_row_;
    const int rows =
        min(tiling_.height.patches, tiling_.height.result.divisor() - tile.y * tiling_.height.patches);
    for (int i = slice_; i < tile.images * rows; i += tap_groups_.slices) {
      const int image = i / rows;
      const int row = i - image * rows;
      if (origin + row < 0 || origin + row >= tiling_.height.source.divisor()) continue;
      add_row(shared_input_ + image * tiling_.source_plane() +
                  (row + tap_row_) * tiling_.width.source_extent + first_tap_,
              shared_output_grad_ + image * tiling_.result_plane() + row * tiling_.width.result_extent,
              chains);
      chain_pixels += tiling_.width.result_extent;
      if (chain_pixels >= kPixelsOfChain) end_chains(sums, chains, chain_pixels);
    }
  }

  // Adds the products of a row of gradients with the inputs that this thread's taps lead to.
  __device__ void add_row(const Accumulate* values, const Accumulate* grads, Taps& chains) const {
    Accumulate held[kTapsOfThread + kPixelsAtATime];
    Accumulate first[kTapsOfThread];
    load_row<kTapsOfThread, kPixelsAtATime>(values, first);
#pragma unroll
    for (int tap = 0; tap < kTapsOfThread; ++tap) held[tap] = first[tap];
    // Three turns rename twelve held values all the way round, so that none need be moved.
#pragma unroll 3
    for (int x = 0; x < tiling_.width.result_extent; x += kPixelsAtATime) {
      const Pixels next = *reinterpret_cast<const Pixels*>(values + x + kTapsOfThread);
      const Pixels grad = *reinterpret_cast<const Pixels*>(grads + x);
#pragma unroll
      for (int pixel = 0; pixel < kPixelsAtATime; ++pixel) held[kTapsOfThread + pixel] = next[pixel];
#pragma unroll
      for (int pixel = 0; pixel < kPixelsAtATime; ++pixel) {
#pragma unroll
        for (int tap = 0; tap < kTapsOfThread; ++tap) chains[tap] += grad[pixel] * held[pixel + tap];
      }
#pragma unroll
      for (int tap = 0; tap < kTapsOfThread; ++tap) held[tap] = held[tap + kPixelsAtATime];
    }
  }

  // Adds up the slices of each tap, in a fixed order. Threads with the same taps lie `taps_of_block` apart in
  // shared memory.
  __device__ void store_sums(const Taps& sums, Accumulate* partial) const {
    const int taps_of_block = tap_groups_.groups_of_block * kTapsOfThread;
    if (slice_ < tap_groups_.slices) {
#pragma unroll
      for (int tap = 0; tap < kTapsOfThread; ++tap) {
        shared_input_[threadIdx.x * kTapsOfThread + tap] = sums[tap];
      }
    }
    __syncthreads();
    const int64_t taps = static_cast<int64_t>(tap_groups_.kernel_height) * tap_groups_.kernel_width;
    Accumulate* channel_partial =
        partial + (static_cast<int64_t>(chunk_) * parameters_.output_channels + channel_) * taps;
    for (int i = threadIdx.x; i < taps_of_block; i += blockDim.x) {
      const int row = (first_group_ + i / kTapsOfThread) / tap_groups_.row_groups;
      const int column =
          (first_group_ + i / kTapsOfThread) % tap_groups_.row_groups * kTapsOfThread + i % kTapsOfThread;
      if (row >= tap_groups_.kernel_height || column >= tap_groups_.kernel_width) continue;
      channel_partial[row * tap_groups_.kernel_width + column] =
          sum_in_order(shared_input_ + i, tap_groups_.slices, taps_of_block);
    }
  }

  const TilesWeightGradParameters& parameters_;
  const Tiling& tiling_;
  const TapGroups& tap_groups_;
  int channel_, chunk_;
  int first_group_;          // of the block
  int slice_;                // this thread's share of the rows
  int tap_row_, first_tap_;  // of this thread's group
  Accumulate* shared_input_;
  Accumulate* shared_output_grad_;
};

template <typename T>
__global__ void __launch_bounds__(kTileThreads, 3)
    tiles_weight_grad(const T* __restrict__ output_grad, const T* __restrict__ input,
                      accumulate_t<T>* __restrict__ partial, TilesWeightGradParameters parameters,
                      TapGroups tap_groups) {
  TilesWeightGrad<T>(parameters, tap_groups).run(output_grad, input, partial);
}

inline TilesWeightGradParameters tiles_weight_grad_parameters(const Tiling& tiling,
                                                              const Geometry& geometry) {
  const int64_t tiles = ceil_divide<int64_t>(geometry.batch, tiling.planes) * tiling.tiles();
  TORCHGRAFT_CHECK(tiles <= INT32_MAX,
                   "depthwise_conv2d_weight_grad: the tensors are too large for one launch");
  return {tiling,
          make_chunks(tiles, 1, most_chunks(geometry, Layout::contiguous)),
          static_cast<int>(geometry.batch),
          static_cast<int>(geometry.channels),
          static_cast<int>(geometry.multiplier),
          static_cast<int>(geometry.output_channels())};
}

struct TilesWeightGradPlan {
  TapGroups groups;
  int threads;
  Tiling tiling;
  int64_t elements;  // of shared memory
};

inline TilesWeightGradPlan plan_tiles_weight_grad(const Geometry& geometry) {
  constexpr int kPatches = 512;  // of four pixels
  const int kernel_height = static_cast<int>(geometry.height.kernel);
  const int kernel_width = static_cast<int>(geometry.width.kernel);
  const int row_groups = ceil_divide(kernel_width, kTapsOfThread);
  const int groups = kernel_height * row_groups;
  const int blocks = ceil_divide(groups, kTileThreads);
  const int groups_of_block = ceil_divide(groups, blocks);
  const TapGroups tap_groups = {kernel_height,   kernel_width, row_groups,
                                groups_of_block, blocks,       kTileThreads / groups_of_block};
  const int threads = round_up(groups_of_block * tap_groups.slices, 32);
  const auto elements = [&](const Tiling& tiling) {
    return std::max(int64_t{tiling.planes} * (tiling.source_plane() + tiling.result_plane()),
                    int64_t{threads} * kTapsOfThread);
  };
  const Tiling tiling =
      make_tiling(large_kernel_plan(geometry.height, 1, kernel_height - 1, false),
                  large_kernel_plan(geometry.width, kPixelsAtATime, row_groups * kTapsOfThread, false),
                  geometry.batch, kPatches, kLargeKernelElements, elements);
  return {tap_groups, threads, tiling, elements(tiling)};
}

}  // namespace

template <typename T>
void launch_tiles_weight_grad(const WeightGrad<T>& pass) {
  const auto& [output_grad, input, weight_grad, workspace, geometry, layout, stream] = pass;
  const TilesWeightGradPlan plan = plan_tiles_weight_grad(geometry);
  const TilesWeightGradParameters parameters = tiles_weight_grad_parameters(plan.tiling, geometry);
  const int64_t blocks = geometry.output_channels() * plan.groups.blocks * parameters.chunks.count;
  tiles_weight_grad<T><<<grid_of(blocks, pass.kName), plan.threads, plan.elements * sizeof(float), stream>>>(
      output_grad, input, workspace, parameters, plan.groups);
  check_launch(pass.kName);
  launch_sum_chunks(workspace, weight_grad, geometry, parameters.chunks.count, stream);
}

template void launch_tiles_weight_grad(const WeightGrad<float>&);
template void launch_tiles_weight_grad(const WeightGrad<Half>&);
template void launch_tiles_weight_grad(const WeightGrad<BFloat16>&);

}  // namespace torchgraft::depthwise::cuda
