// How a warp of bands_small moves tiles between device memory and its shared memory.
#pragma once

#include <torchgraft/ptx.cuh>

#include "band.cuh"

namespace torchgraft::depthwise::cuda {

struct SmallParameters {
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

struct SmallTile {
  int channel, first_row, first_column, first_image, images;

  __device__ SmallTile(const SmallParameters& parameters, int index) {
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

// The sources of an image of a tile.
__device__ __forceinline__ const HalfBits* plane_of(const HalfBits* source, const SmallParameters& parameters,
                                                    const SmallTile& tile, int image) {
  const int64_t plane = (tile.first_image + image) * static_cast<int64_t>(parameters.channels) + tile.channel;
  return source + plane * parameters.pass.source_height * parameters.pass.source_width;
}

// The taps of the channel of a tile.
template <typename T>
__device__ __forceinline__ Rounded<T> taps_of(const Rounded<T>& weight, const SmallParameters& parameters,
                                              const SmallTile& tile) {
  return weight + static_cast<int64_t>(tile.channel) * parameters.pass.taps();
}

__device__ inline void clear_of_warp(HalfBits* shared, int elements) {
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
__device__ void load_tile(const HalfBits* __restrict__ source, const SmallParameters& parameters,
                          const SmallTile& tile, const uint16_t* places, HalfBits* shared) {
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
__device__ __noinline__ inline void load_tile(const HalfBits* __restrict__ source,
                                              const SmallParameters& parameters, int index,
                                              const uint16_t* places, HalfBits* shared) {
  const SmallTile tile(parameters, index);
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
__device__ void store_tile(HalfBits* result, const SmallParameters& parameters, const SmallTile& tile,
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

__device__ __noinline__ inline void store_tile(HalfBits* result, const SmallParameters& parameters, int index,
                                               const uint16_t* places, const HalfBits* shared) {
  const SmallTile tile(parameters, index);
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
__device__ inline void make_places(uint16_t* places, int count, int unit, int width, int pitch) {
  const int units_of_row = width / unit;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const int row = i / units_of_row;
    places[i] = static_cast<uint16_t>(row * pitch + (i - row * units_of_row) * unit);
  }
}

// Makes the tables of a block, for sources and for results.
__device__ __forceinline__ void make_tables(const SmallParameters& parameters, uint16_t* source_places,
                                            uint16_t* result_places) {
  make_places(source_places, parameters.source_places, parameters.source_unit, parameters.pass.source_width,
              parameters.pitch.row);
  make_places(result_places, parameters.result_places, parameters.result_unit, parameters.pass.result_width,
              parameters.pitch.row);
}

}  // namespace torchgraft::depthwise::cuda
