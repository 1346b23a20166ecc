// Forward and input gradient of NCHW halves on tensor cores, stride 1, kernels of up to 7 x 8 taps: results
// of a channel are a band matrix of its taps times sources (band.cuh).
//
// A warp works alone: it goes through tiles, each a plane of some images (or a part of a large plane) of one
// channel, which it brings to shared memory by asynchronous copies of 4 or 8 bytes, a unit that divides the
// width and so lands on its boundary beside a border of zeros. Results take the place of sources: the result
// of (row, column) is stored where the first source of its window was, which no later unit reads, and leave
// as sources came. No barrier of a block: what other warps compute covers what a warp waits for.
//
// Budget, (128,96,56x56,k7), floor 37 us: 4.5 results a clock and multiprocessor at the memory roof, which
// leaves 28 thread instructions and 28 bytes of shared memory a result. Products: 8 for 128 results, half the
// tensor cores' rate. Instructions: 1.5 a result in, 7 products, 1 out. Shared memory: 2 + 5.7 + 2 + 2 bytes.

#include "../kernels.h"
#include "small_tiles.cuh"

namespace torchgraft::depthwise::cuda {
namespace {

// The place of a unit of results in its tile; it begins in row `row` of the image.
struct SmallUnit {
  int column_block, image, row;
  bool valid;  // whether it has results

  __device__ __forceinline__ SmallUnit(const SmallParameters& parameters, const SmallTile& tile, int unit,
                                       int rows) {
    const int unit_row = parameters.padded_columns.divide(unit);
    column_block = unit - unit_row * parameters.padded_columns.divisor();
    image = parameters.bands.divide(unit_row);
    row = (unit_row - image * parameters.bands.divisor()) * rows;
    valid = column_block < parameters.column_blocks && image < tile.images;
  }
};

template <typename T, int kTapRows, int kPairs>
__global__ void __launch_bounds__(kSmallWarps* kWarp, kSmallBlocks)
    bands_small(const HalfBits* __restrict__ source, Rounded<T> weight, Rounded<T> bias,
                HalfBits* __restrict__ result, const __grid_constant__ SmallParameters parameters) {
  constexpr int kRows = 2 * kPairs;
  const int lane = threadIdx.x % kWarp;
  const int pitch = parameters.pitch.row;
  const int tile_step = gridDim.x * kSmallWarps;
  int index = blockIdx.x * kSmallWarps + threadIdx.x / kWarp;  // of the tile
  // Of the block: tables of units. Of the warp: the band, a place for what has no result, and tiles.
  uint16_t* source_places = shared_memory<HalfBits>();
  uint16_t* result_places = source_places + parameters.source_places;
  HalfBits* shared_band =
      result_places + parameters.result_places + threadIdx.x / kWarp * parameters.warp_elements;
  HalfBits* stages = shared_band + kBandElements + 8;
  make_tables(parameters, source_places, result_places);
  clear_of_warp(shared_band, kBandElements);
  __syncthreads();
  if (index >= parameters.tiles) return;

  BandTaps taps(parameters.pass, shared_band);
  int stage = 0;
  // Brings what belongs to a tile: its sources to a stage, the taps of its channel to registers.
  const auto bring = [&](int tile_index, int to_stage) {
    load_tile(source, parameters, tile_index, source_places, stages + to_stage * parameters.stage_elements);
    taps.bring(taps_of(weight, parameters, SmallTile(parameters, tile_index)));
  };
  bring(index, 0);
  for (;; index += tile_step) {
    const bool more = index + tile_step < parameters.tiles;
    HalfBits* shared_tile = stages + stage * parameters.stage_elements;
    taps.put();
    if (parameters.stages == 2 && more) {
      stage ^= 1;
      bring(index + tile_step, stage);
      wait_for_copies<1>();
    } else {
      wait_for_copies<0>();
    }
    const SmallTile tile(parameters, index);
    const float start = bias.or_zero(true, tile.channel);
    __syncwarp();
    Band<kTapRows> band;
    band.load(shared_band);
    const int units = tile.images * parameters.bands.divisor() * parameters.padded_columns.divisor();
    for (int first_unit = 0; first_unit < units; first_unit += kUnits) {
      // Units without results read what the tile's first one does, and write beside the tile.
      const SmallUnit unit(parameters, tile, first_unit + lane % kUnits, kRows);
      HalfBits* first = shared_tile + (unit.valid ? unit.image * parameters.pitch.image + unit.row * pitch +
                                                        unit.column_block * kBlockColumns
                                                  : 0);
      float sums[kPairs][4];
      band_products<T, kTapRows, kPairs>(band, shared_address(first + lane / 8 % 2 * 8 + lane / 16 * pitch),
                                         pitch, start, sums);
      __syncwarp();
      const bool is_nan = store_band_results<T, kPairs>(
          sums, shared_address(unit.valid ? first + lane / 8 * pitch : stages - 8),
          unit.valid ? 4 * sizeof(HalfBits) * pitch : 0);
      if (__any_sync(0xffffffff, is_nan)) {
        __syncwarp();
        if (unit.valid) {
          // Four lanes have the same unit: each takes two of its columns.
          const int column = lane / 8 * 2;
          repair_results<T>(first + column, pitch, kRows, plane_of(source, parameters, tile, unit.image),
                            taps_of(weight, parameters, tile), start, parameters.pass,
                            tile.first_row + unit.row,
                            tile.first_column + unit.column_block * kBlockColumns + column);
        }
      }
    }
    __syncwarp();
    store_tile(result, parameters, index, result_places, shared_tile);
    if (!more) return;
    __syncwarp();
    if (parameters.stages == 1) bring(index + tile_step, 0);
  }
}

SmallParameters parameters_of(const Geometry& geometry, bool transposed, const SmallPlan& plan) {
  return {.pass = {half_window(geometry, transposed), plan.lead},
          .channels = static_cast<int>(geometry.channels),
          .batch = static_cast<int>(geometry.batch),
          .tile_images = plan.tile_images,
          .source_rows = plan.source_rows,
          .source_columns = plan.source_columns,
          .result_rows = plan.result_rows,
          .result_columns = plan.result_columns,
          .all_channels = FastDivisor(static_cast<int>(geometry.channels)),
          .tiles_x = FastDivisor(plan.tiles_x),
          .tiles_y = FastDivisor(plan.tiles_y),
          .tiles = plan.tiles,
          .whole_rows = plan.whole_rows,
          .pitch = plan.pitch,
          .stage_elements = plan.stage_elements,
          .stages = plan.stages,
          .warp_elements = plan.warp_elements,
          .source_places = plan.source_places,
          .result_places = plan.result_places,
          .column_blocks = plan.column_blocks,
          .padded_columns = FastDivisor(plan.padded_columns),
          .bands = FastDivisor(plan.bands),
          .source_unit = plan.source_unit,
          .result_unit = plan.result_unit};
}

}  // namespace

template <typename T>
void launch_bands_small(const Correlation<T>& pass) {
  const auto& [source, weight, bias, result, geometry, layout, transposed, stream] = pass;
  TORCHGRAFT_CHECK(is_aligned(result, 16), pass.name(),
                   ": a result must begin at a multiple of sixteen bytes");
  const SmallPlan plan = SmallPlanner(geometry, transposed, common_alignment(source)).plan();
  const SmallParameters parameters = parameters_of(geometry, transposed, plan);
  const int blocks =
      std::min(ceil_divide(plan.tiles, kSmallWarps), current_device().multiprocessors * kSmallBlocks);
  const auto bits = [](const T* pointer) { return reinterpret_cast<const HalfBits*>(pointer); };
  with_band(plan.tap_rows, plan.pairs, [&](auto tap_rows, auto pairs) {
    const auto kernel = bands_small<T, tap_rows, pairs>;
    require_shared_memory(kernel, static_cast<int64_t>(plan.bytes), pass.name());
    kernel<<<blocks, kSmallWarps * kWarp, plan.bytes, stream>>>(
        bits(source), weight, bias, reinterpret_cast<HalfBits*>(result), parameters);
  });
  check_launch(pass.name());
}

template void launch_bands_small(const Correlation<Half>&);
template void launch_bands_small(const Correlation<BFloat16>&);

}  // namespace torchgraft::depthwise::cuda
