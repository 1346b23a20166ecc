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

#include <torchgraft/ptx.cuh>

#include "../kernels.h"
#include "band.cuh"

namespace torchgraft::depthwise::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kBlocks = 4;  // of a multiprocessor

struct PlanesParameters {
  BandPass pass;
  int channels, batch;
  int tile_images;
  int source_rows, source_columns, result_rows, result_columns;  // of a tile
  FastDivisor all_channels, tiles_x, tiles_y;
  int tiles;
  bool whole_rows;
  TilePitch pitch;
  int stage_elements, stages, warp_elements;
  int source_places, result_places;  // sizes of the tables of units
  int column_blocks;                 // of a tile, that hold results
  FastDivisor padded_columns;        // column blocks as units count them
  FastDivisor bands;                 // of a tile
  int source_unit, result_unit;
};

struct PlanesTile {
  int channel, first_row, first_column, first_image, images;

  __device__ PlanesTile(const PlanesParameters& parameters, int index) {
    const int column = parameters.all_channels.divide(index);
    channel = index - column * parameters.all_channels.divisor();
    const int row = parameters.tiles_x.divide(column);
    first_column = (column - row * parameters.tiles_x.divisor()) * parameters.result_columns;
    const int group = parameters.tiles_y.divide(row);
    first_row = (row - group * parameters.tiles_y.divisor()) * parameters.result_rows;
    first_image = group * parameters.tile_images;
    images = min(parameters.tile_images, parameters.batch - first_image);
  }
};

__device__ void clear_of_warp(HalfBits* shared, int elements) {
  for (int i = threadIdx.x % kWarp * 8; i < elements; i += kWarp * 8) {
    *reinterpret_cast<uint4*>(shared + i) = make_uint4(0, 0, 0, 0);
  }
}

// The part of a tile that lies in its image is some runs of neighbouring elements: all its rows at once, or,
// where a tile is not as wide as the image, each row. A run is moved in units, which a table of the block
// gives their places in shared memory.
struct TileRuns {
  int begin_y, begin_x;
  int runs, units;

  __device__ TileRuns(int origin_y, int origin_x, int rows, int columns, int height, int width, int unit,
                      bool whole_rows)
      : begin_y(max(origin_y, 0)), begin_x(max(origin_x, 0)) {
    const int inside_y = max(min(origin_y + rows, height) - begin_y, 0);
    const int inside_x = max(min(origin_x + columns, width) - begin_x, 0);
    runs = whole_rows ? 1 : inside_y;
    units = (whole_rows ? inside_y * width : inside_x) / unit;
  }
};

// Only what lies in the image is written.
template <int kUnit>
__device__ void load_tile(const HalfBits* __restrict__ source, const PlanesParameters& parameters,
                          const PlanesTile& tile, const uint16_t* places, HalfBits* shared) {
  const int lane = threadIdx.x % kWarp;
  const int width = parameters.pass.source_width;
  const int pitch = parameters.pitch.row;
  const int origin_y = tile.first_row - parameters.pass.padding_y;
  const int origin_x = tile.first_column - parameters.pass.lead;
  const TileRuns part(origin_y, origin_x, parameters.source_rows, parameters.source_columns,
                      parameters.pass.source_height, width, kUnit, parameters.whole_rows);
  const int plane = parameters.pass.source_height * width;
  const int image_elements = parameters.channels * plane;
  const HalfBits* image = source + tile.first_image * static_cast<int64_t>(image_elements) +
                          (tile.channel * plane + part.begin_y * width + part.begin_x + lane * kUnit);
  HalfBits* shared_image = shared + (part.begin_y - origin_y) * pitch + part.begin_x - origin_x;
  for (int i = 0; i < tile.images; ++i, image += image_elements, shared_image += parameters.pitch.image) {
    const HalfBits* from = image;
    HalfBits* to = shared_image;
    for (int run = 0; run < part.runs; ++run, from += width, to += pitch) {
      if constexpr (kUnit == 1) {
        constexpr int kBatch = 8;
        for (int unit = lane; unit < part.units; unit += kBatch * kWarp) {
          HalfBits values[kBatch];
#pragma unroll
          for (int j = 0; j < kBatch; ++j) {
            if (unit + j * kWarp < part.units) values[j] = __ldg(from + unit - lane + j * kWarp);
          }
#pragma unroll
          for (int j = 0; j < kBatch; ++j) {
            if (unit + j * kWarp < part.units) to[places[unit + j * kWarp]] = values[j];
          }
        }
      } else {
        const uint32_t address = shared_address(to);
        const HalfBits* next = from;
#pragma unroll 4
        for (int unit = lane; unit < part.units; unit += kWarp, next += kWarp * kUnit) {
          copy_async<2 * kUnit>(address + 2 * places[unit], next);
        }
      }
    }
  }
}

// Not inlined, as it would take registers of the products.
__device__ __noinline__ void load_tile(const HalfBits* __restrict__ source,
                                       const PlanesParameters& parameters, int index, const uint16_t* places,
                                       HalfBits* shared) {
  const PlanesTile tile(parameters, index);
  clear_of_warp(shared, parameters.stage_elements);
  __syncwarp();
  if (parameters.source_unit == 4) {
    load_tile<4>(source, parameters, tile, places, shared);
  } else if (parameters.source_unit == 2) {
    load_tile<2>(source, parameters, tile, places, shared);
  } else {
    load_tile<1>(source, parameters, tile, places, shared);
  }
  commit_copies();
}

template <int kUnit>
struct Unit;
template <>
struct Unit<1> {
  using type = uint16_t;
};
template <>
struct Unit<2> {
  using type = uint32_t;
};
template <>
struct Unit<4> {
  using type = uint2;
};
template <>
struct Unit<8> {
  using type = uint4;
};

template <int kUnit>
__device__ void store_tile(HalfBits* result, const PlanesParameters& parameters, const PlanesTile& tile,
                           const uint16_t* places, const HalfBits* shared) {
  using Bits = typename Unit<kUnit>::type;
  const int lane = threadIdx.x % kWarp;
  const int width = parameters.pass.result_width;
  const TileRuns part(tile.first_row, tile.first_column, parameters.result_rows, parameters.result_columns,
                      parameters.pass.result_height, width, kUnit, parameters.whole_rows);
  const int plane = parameters.pass.result_height * width;
  const int image_elements = parameters.channels * plane;
  HalfBits* image = result + tile.first_image * static_cast<int64_t>(image_elements) +
                    (tile.channel * plane + part.begin_y * width + part.begin_x + lane * kUnit);
  for (int i = 0; i < tile.images; ++i, image += image_elements, shared += parameters.pitch.image) {
    HalfBits* to = image;
    const HalfBits* from = shared;
    for (int run = 0; run < part.runs; ++run, to += width, from += parameters.pitch.row) {
      HalfBits* next = to;
#pragma unroll 4
      for (int unit = lane; unit < part.units; unit += kWarp, next += kWarp * kUnit) {
        *reinterpret_cast<Bits*>(next) = *reinterpret_cast<const Bits*>(from + places[unit]);
      }
    }
  }
}

__device__ __noinline__ void store_tile(HalfBits* result, const PlanesParameters& parameters, int index,
                                        const uint16_t* places, const HalfBits* shared) {
  const PlanesTile tile(parameters, index);
  switch (parameters.result_unit) {
    case 8:
      return store_tile<8>(result, parameters, tile, places, shared);
    case 4:
      return store_tile<4>(result, parameters, tile, places, shared);
    case 2:
      return store_tile<2>(result, parameters, tile, places, shared);
    default:
      return store_tile<1>(result, parameters, tile, places, shared);
  }
}

// Where the units of a run lie.
__device__ void make_places(uint16_t* places, int count, int unit, int width, int pitch) {
  const int units_of_row = width / unit;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const int row = i / units_of_row;
    places[i] = static_cast<uint16_t>(row * pitch + (i - row * units_of_row) * unit);
  }
}

template <typename T, int kTapRows, int kPairs>
__global__ void __launch_bounds__(kWarps* kWarp, kBlocks)
    bands_small(const HalfBits* __restrict__ source, Rounded<T> weight, Rounded<T> bias,
                HalfBits* __restrict__ result, const __grid_constant__ PlanesParameters parameters) {
  constexpr int kRows = 2 * kPairs;
  const int lane = threadIdx.x % kWarp;
  const int pitch = parameters.pitch.row;
  const int tile_step = gridDim.x * kWarps;
  int index = blockIdx.x * kWarps + threadIdx.x / kWarp;  // of the tile

  // Of the block: tables of units. Of the warp: the band, a place for what has no result, and tiles.
  HalfBits* shared = shared_memory<HalfBits>();
  uint16_t* source_places = shared;
  uint16_t* result_places = source_places + parameters.source_places;
  HalfBits* shared_band =
      result_places + parameters.result_places + threadIdx.x / kWarp * parameters.warp_elements;
  HalfBits* stages = shared_band + kBandElements + 8;
  make_places(source_places, parameters.source_places, parameters.source_unit, parameters.pass.source_width,
              pitch);
  make_places(result_places, parameters.result_places, parameters.result_unit, parameters.pass.result_width,
              pitch);
  clear_of_warp(shared_band, kBandElements);
  __syncthreads();
  if (index >= parameters.tiles) return;

  BandTaps taps(parameters.pass, shared_band);
  int stage = 0;
  // Brings what belongs to a tile: its sources to a stage, the taps of its channel to registers.
  const auto bring = [&](int tile_index, int to_stage) {
    load_tile(source, parameters, tile_index, source_places, stages + to_stage * parameters.stage_elements);
    const PlanesTile next(parameters, tile_index);
    taps.bring(weight + static_cast<int64_t>(next.channel) * parameters.pass.taps());
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
    const PlanesTile tile(parameters, index);
    const float start = bias.or_zero(true, tile.channel);
    __syncwarp();
    Band<kTapRows> band;
    band.load(shared_band);

    const int units = tile.images * parameters.bands.divisor() * parameters.padded_columns.divisor();
    for (int first_unit = 0; first_unit < units; first_unit += kUnits) {
      // Units without results read what the tile's first one does, and write beside the tile.
      const int unit = first_unit + lane % kUnits;
      const int unit_row = parameters.padded_columns.divide(unit);
      const int column_block = unit - unit_row * parameters.padded_columns.divisor();
      const int image = parameters.bands.divide(unit_row);
      const int band_row = (unit_row - image * parameters.bands.divisor()) * kRows;
      const bool valid = column_block < parameters.column_blocks && image < tile.images;
      HalfBits* first =
          shared_tile +
          (valid ? image * parameters.pitch.image + band_row * pitch + column_block * kBlockColumns : 0);
      float sums[kPairs][4];
      band_products<T, kTapRows, kPairs>(band, shared_address(first + lane / 8 % 2 * 8 + lane / 16 * pitch),
                                         pitch, start, sums);
      __syncwarp();
      const bool is_nan =
          store_band_results<T, kPairs>(sums, shared_address(valid ? first + lane / 8 * pitch : stages - 8),
                                        valid ? 4 * sizeof(HalfBits) * pitch : 0);
      if (__any_sync(0xffffffff, is_nan)) {
        __syncwarp();
        if (valid) {
          // Four lanes have the same unit: each takes two of its columns.
          const int column = lane / 8 * 2;
          const int64_t plane =
              (tile.first_image + image) * static_cast<int64_t>(parameters.channels) + tile.channel;
          repair_results<T>(first + column, pitch, kRows,
                            source + plane * parameters.pass.source_height * parameters.pass.source_width,
                            weight + static_cast<int64_t>(tile.channel) * parameters.pass.taps(), start,
                            parameters.pass, tile.first_row + band_row,
                            tile.first_column + column_block * kBlockColumns + column);
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

struct PlanesPlan {
  PlanesParameters parameters;
  int tap_rows, pairs;
  size_t bytes;
};

PlanesPlan make_plan(const Geometry& geometry, bool transposed, const void* source) {
  PlanesPlan plan{};
  PlanesParameters& p = plan.parameters;
  const PassAxis height(geometry.height, transposed);
  const PassAxis width(geometry.width, transposed);
  const int batch = static_cast<int>(geometry.batch);
  const int channels = static_cast<int>(geometry.channels);
  plan.tap_rows = tap_rows_of(height.kernel);
  plan.pairs = pairs_of_band(height.result);
  const int band_rows = 2 * plan.pairs;
  const int halo = plan.tap_rows - 1;

  // Columns are shifted so that wide units of a row lie on their boundaries in shared memory.
  int lead;
  for (p.source_unit = 4;; p.source_unit /= 2) {
    lead = round_up(width.padding, p.source_unit);
    if (p.source_unit == 1) break;
    if (lead - width.padding + width.kernel + kBlockColumns - 1 > kSourceColumns) continue;
    if (width.source % p.source_unit == 0 && is_aligned(source, 2 * p.source_unit)) break;
  }
  p.pass = {half_window(geometry, transposed), lead};
  p.channels = channels;
  p.batch = batch;

  constexpr int kMostColumnBlocks = 24;
  const int all_column_blocks = ceil_divide(width.result, kBlockColumns);
  int tiles_x = ceil_divide(all_column_blocks, kMostColumnBlocks);
  p.column_blocks =
      tiles_x == 1 ? all_column_blocks : round_up(ceil_divide(all_column_blocks, tiles_x), kUnits);
  tiles_x = ceil_divide(all_column_blocks, p.column_blocks);
  const int padded_columns = pad_column_blocks(p.column_blocks);
  p.padded_columns = FastDivisor(padded_columns);
  p.result_columns = p.column_blocks * kBlockColumns;
  p.source_columns = p.result_columns + kBlockColumns;

  // As many bands of a plane as fit, or as many images as fill eight units. Small tiles come one ahead.
  constexpr int kMostStageElements = 5 * 1024;
  constexpr int kTwiceElements = 2 * 1024;
  const int all_bands = ceil_divide(height.result, band_rows);
  int bands = all_bands;
  while (bands > 1 && (bands * band_rows + halo) * p.source_columns > kMostStageElements) --bands;
  const int tiles_y = ceil_divide(all_bands, bands);
  bands = ceil_divide(all_bands, tiles_y);
  p.bands = FastDivisor(bands);
  p.result_rows = bands * band_rows;
  p.source_rows = p.result_rows + halo;
  // Where padding behind an image is as large as the kernel or larger, an input gradient has sources that no
  // result needs, behind the columns of the tile: rows are then moved one by one, and end with the tile.
  p.whole_rows = tiles_x == 1 && lead + width.source <= p.source_columns;
  p.tile_images =
      tiles_x * tiles_y == 1 ? std::min(batch, std::max(1, kUnits / (padded_columns * bands))) : 1;
  p.pitch = band_pitch(p.source_rows, p.source_columns, padded_columns, bands, band_rows, p.tile_images);

  p.all_channels = FastDivisor(channels);
  p.tiles_x = FastDivisor(tiles_x);
  p.tiles_y = FastDivisor(tiles_y);
  p.tiles = ceil_divide(batch, p.tile_images) * tiles_y * tiles_x * channels;
  p.result_unit = 8;
  while (width.result % p.result_unit != 0) p.result_unit /= 2;
  p.source_places =
      round_up((p.whole_rows ? std::min(p.source_rows, height.source) * width.source : p.source_columns) /
                   p.source_unit,
               8);
  p.result_places =
      round_up((p.whole_rows ? std::min(p.result_rows, height.result) * width.result : p.result_columns) /
                   p.result_unit,
               8);
  p.stage_elements = p.pitch.channel;
  p.stages = p.stage_elements <= kTwiceElements ? 2 : 1;
  p.warp_elements = kBandElements + 8 + p.stages * p.stage_elements + 8;
  plan.bytes = sizeof(HalfBits) * (p.source_places + p.result_places + kWarps * p.warp_elements);
  return plan;
}

}  // namespace

template <typename T>
void launch_bands_small(const Correlation<T>& pass) {
  const auto& [source, weight, bias, result, geometry, layout, transposed, stream] = pass;
  TORCHGRAFT_CHECK(is_aligned(result, 16), pass.name(),
                   ": a result must begin at a multiple of sixteen bytes");
  const PlanesPlan plan = make_plan(geometry, transposed, source);
  const int blocks =
      std::min(ceil_divide(plan.parameters.tiles, kWarps), current_device().multiprocessors * kBlocks);
  const auto bits = [](const T* pointer) { return reinterpret_cast<const HalfBits*>(pointer); };
  with_band(plan.tap_rows, plan.pairs, [&](auto tap_rows, auto pairs) {
    const auto kernel = bands_small<T, tap_rows, pairs>;
    require_shared_memory(kernel, static_cast<int64_t>(plan.bytes), pass.name());
    kernel<<<blocks, kWarps * kWarp, plan.bytes, stream>>>(
        bits(source), weight, bias, reinterpret_cast<HalfBits*>(result), plan.parameters);
  });
  check_launch(pass.name());
}

template void launch_bands_small(const Correlation<Half>&);
template void launch_bands_small(const Correlation<BFloat16>&);

}  // namespace torchgraft::depthwise::cuda
