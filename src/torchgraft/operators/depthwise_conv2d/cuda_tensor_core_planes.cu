#include <cstdlib>
// Forward and input gradient of NCHW halves on tensor cores, stride 1, kernels of up to 7 x 8 taps: results of a
// channel are a band matrix of its taps times sources (cuda_tensor_core_band.cuh).
//
// A warp works alone: it goes through tiles, each a plane of some images (or a part of a large plane) of one
// channel, which it brings to shared memory by asynchronous copies of 4 or 8 bytes, a unit that divides the width
// and so lands on its boundary beside a border of zeros. Eight units of results at a time go through shared memory
// to leave as whole rows. No barrier of a block: what other warps compute covers what a warp waits for.
//
// Budget, (128,96,56x56,k7), floor 37 us: 4.5 results a clock and multiprocessor at the memory roof, which
// leaves 28 thread instructions and 28 bytes of shared memory a result. Products: 8 for 128 results, half the
// tensor cores' rate. Instructions: 1.5 a result in, 7 products, 1 out. Shared memory: 2 + 5.7 + 2 + 2 bytes.

#include "cuda_tensor_core.cuh"
#include "cuda_tensor_core_band.cuh"

namespace torchgraft::depthwise::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kBlocks = 4;  // of a multiprocessor

struct PlanesParameters {
  BandPass pass;
  int result_height, result_width;
  int channels, batch;
  int tile_images;
  int source_rows, source_columns, result_rows, result_columns;  // of a tile
  FastDivisor all_channels, tiles_x, tiles_y;
  int tiles;
  bool whole_planes;
  TilePitch pitch;
  int stage_elements, stages, warp_elements;
  int column_blocks;           // of a tile, that hold results
  FastDivisor padded_columns;  // column blocks as units count them
  FastDivisor bands;           // of a tile
  int source_unit, source_lanes;
  int result_unit, result_lanes_shift, group_columns;
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

template <int kBytes>
__device__ void copy_asynchronously(uint32_t shared, const void* memory) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared), "l"(memory), "n"(kBytes) : "memory");
#endif
}

__device__ void commit_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int kPending>
__device__ void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

__device__ void clear_of_warp(HalfBits* shared, int elements) {
  for (int i = threadIdx.x % kWarp * 8; i < elements; i += kWarp * 8) {
    *reinterpret_cast<uint4*>(shared + i) = make_uint4(0, 0, 0, 0);
  }
}

// A tile's sources, in units of kUnit elements. Only what lies in the image is written.
template <int kUnit>
__device__ void load_tile(const HalfBits* __restrict__ source, const PlanesParameters& parameters,
                          const PlanesTile& tile, HalfBits* shared) {
  const int lane = threadIdx.x % kWarp;
  const int height = parameters.pass.source_height;
  const int width = parameters.pass.source_width;
  const int pitch = parameters.pitch.row;
  const int origin_y = tile.first_row - parameters.pass.padding_y;
  const int origin_x = tile.first_column - parameters.pass.lead;
  const int begin_y = max(origin_y, 0);
  const int begin_x = max(origin_x, 0);
  const int rows = min(origin_y + parameters.source_rows, height) - begin_y;
  const int units = (min(origin_x + parameters.source_columns, width) - begin_x) / kUnit;
  const int rows_at_once = kWarp / parameters.source_lanes;
  const int lane_row = lane / parameters.source_lanes;
  if (lane_row >= rows_at_once) return;
  const int lane_unit = lane - lane_row * parameters.source_lanes;
  const int64_t image_elements = static_cast<int64_t>(parameters.channels) * height * width;
  const HalfBits* image = source + tile.first_image * image_elements +
                          static_cast<int64_t>(tile.channel) * height * width + begin_y * width + begin_x;
  HalfBits* shared_image = shared + (begin_y - origin_y) * pitch + begin_x - origin_x;
  for (int i = 0; i < tile.images; ++i, image += image_elements, shared_image += parameters.pitch.image) {
    for (int unit = lane_unit; unit < units; unit += parameters.source_lanes) {
      const HalfBits* from = image + lane_row * width + unit * kUnit;
      HalfBits* to = shared_image + lane_row * pitch + unit * kUnit;
      if constexpr (kUnit == 1) {
        constexpr int kBatch = 4;
        for (int row = lane_row; row < rows; row += kBatch * rows_at_once) {
          HalfBits values[kBatch];
#pragma unroll
          for (int j = 0; j < kBatch; ++j) {
            if (row + j * rows_at_once < rows) values[j] = __ldg(from + j * rows_at_once * width);
          }
#pragma unroll
          for (int j = 0; j < kBatch; ++j) {
            if (row + j * rows_at_once < rows) to[j * rows_at_once * pitch] = values[j];
          }
          from += kBatch * rows_at_once * width;
          to += kBatch * rows_at_once * pitch;
        }
      } else {
        uint32_t address = shared_address(to);
        const uint32_t step = sizeof(HalfBits) * rows_at_once * pitch;
#pragma unroll 4
        for (int row = lane_row; row < rows; row += rows_at_once) {
          copy_asynchronously<2 * kUnit>(address, from);
          address += step;
          from += rows_at_once * width;
        }
      }
    }
  }
}

__device__ void load_tile(const HalfBits* __restrict__ source, const PlanesParameters& parameters,
                          const PlanesTile& tile, HalfBits* shared) {
  if (!parameters.whole_planes) {
    clear_of_warp(shared, parameters.stage_elements);
    __syncwarp();
  }
  if (parameters.source_unit == 4) {
    load_tile<4>(source, parameters, tile, shared);
  } else if (parameters.source_unit == 2) {
    load_tile<2>(source, parameters, tile, shared);
  } else {
    load_tile<1>(source, parameters, tile, shared);
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

// The results of eight units, rows of eight columns side by side, to device memory: a unit row, which is `group`
// neighbouring column blocks of one band, after the other.
template <int kUnit, int kRows>
__device__ void store_units(HalfBits* result, const PlanesParameters& parameters, const PlanesTile& tile,
                            int first_unit, const HalfBits* shared) {
  using Bits = typename Unit<kUnit>::type;
  const int lane = threadIdx.x % kWarp;
  const int lanes = 1 << parameters.result_lanes_shift;
  const int height = parameters.result_height;
  const int width = parameters.result_width;
  const int group = parameters.group_columns;
  const int lane_row = lane >> parameters.result_lanes_shift;
  const int lane_unit = lane & (lanes - 1);
  const int rows_at_once = max(kWarp >> parameters.result_lanes_shift, 1);
  const int end_column = min(width, tile.first_column + parameters.result_columns);
  for (int in_group = 0; in_group < kUnits; in_group += group) {
    const int unit_row = parameters.padded_columns.divide(first_unit + in_group);
    const int column_block = first_unit + in_group - unit_row * parameters.padded_columns.divisor();
    const int image = parameters.bands.divide(unit_row);
    if (image >= tile.images) break;
    const int y = tile.first_row + (unit_row - image * parameters.bands.divisor()) * kRows + lane_row;
    const int rows = min(kRows - lane_row, height - y);
    for (int unit = lane_unit; unit < group * kBlockColumns / kUnit; unit += kWarp) {
      const int x = tile.first_column + column_block * kBlockColumns + unit * kUnit;
      if (x >= end_column) break;
      HalfBits* to = result +
                     ((tile.first_image + image) * static_cast<int64_t>(parameters.channels) + tile.channel) *
                         height * width +
                     static_cast<int64_t>(y) * width + x;
      const HalfBits* from =
          shared + (lane_row * kUnits + in_group) * kBlockColumns + unit * kUnit;
#pragma unroll 4
      for (int row = 0; row < rows; row += rows_at_once) {
        *reinterpret_cast<Bits*>(to) = *reinterpret_cast<const Bits*>(from);
        from += rows_at_once * kUnits * kBlockColumns;
        to += rows_at_once * width;
      }
    }
  }
}

template <typename T, int kTapRows, int kPairs>
__global__ void __launch_bounds__(kWarps* kWarp, kBlocks)
    small_kernel_planes_tensor_core(const HalfBits* __restrict__ source, const HalfBits* __restrict__ weight,
                                    const HalfBits* __restrict__ bias, HalfBits* __restrict__ result,
                                    const __grid_constant__ PlanesParameters parameters) {
  constexpr int kRows = 2 * kPairs;
  const int lane = threadIdx.x % kWarp;
  const int pitch = parameters.pitch.row;
  const int tile_step = gridDim.x * kWarps;
  int index = blockIdx.x * kWarps + threadIdx.x / kWarp;
  if (index >= parameters.tiles) return;

  // Of the warp: stages of sources, the band, and eight units of results.
  HalfBits* shared = shared_memory<HalfBits>() + threadIdx.x / kWarp * parameters.warp_elements;
  HalfBits* shared_band = shared + parameters.stages * parameters.stage_elements;
  HalfBits* shared_results = shared_band + kBandElements;
  clear_of_warp(shared, parameters.stages * parameters.stage_elements + kBandElements);
  __syncwarp();

  BandTaps taps(parameters.pass, shared_band);
  PlanesTile tile(parameters, index);
  int stage = 0;
  load_tile(source, parameters, tile, shared);
  taps.bring(weight + static_cast<int64_t>(tile.channel) * parameters.pass.taps());
  for (;;) {
    const int next_index = index + tile_step;
    const bool more = next_index < parameters.tiles;
    const PlanesTile next_tile(parameters, more ? next_index : index);
    const HalfBits* sources = shared + stage * parameters.stage_elements;
    const float start = bias == nullptr ? 0.0f : HalfMath<T>::to_float(bias[tile.channel]);
    taps.put();
    if (more) taps.bring(weight + static_cast<int64_t>(next_tile.channel) * parameters.pass.taps());
    if (parameters.stages == 2) {
      stage ^= 1;
      if (more) {
        load_tile(source, parameters, next_tile, shared + stage * parameters.stage_elements);
        wait_for_copies<1>();
      } else {
        wait_for_copies<0>();
      }
    } else {
      wait_for_copies<0>();
    }
    __syncwarp();
    Band<kTapRows> band;
    band.load(shared_band);

    const int units = tile.images * parameters.bands.divisor() * parameters.padded_columns.divisor();
    for (int first_unit = 0; first_unit < units; first_unit += kUnits) {
      // Units without results read what the tile's first one does.
      const int unit = first_unit + lane % kUnits;
      const int unit_row = parameters.padded_columns.divide(unit);
      const int column_block = unit - unit_row * parameters.padded_columns.divisor();
      const int image = parameters.bands.divide(unit_row);
      const int band_row = (unit_row - image * parameters.bands.divisor()) * kRows;
      const bool valid = column_block < parameters.column_blocks && image < tile.images;
      const int offset =
          valid ? image * parameters.pitch.image + band_row * pitch + column_block * kBlockColumns : 0;
      float sums[kPairs][4];
      band_products<T, kTapRows, kPairs>(
          band, shared_address(sources + offset + lane / 8 % 2 * 8 + lane / 16 * pitch), pitch, start, sums);

      __syncwarp();
      constexpr uint32_t kResultRow = kUnits * kBlockColumns * sizeof(HalfBits);
      const bool is_nan = store_band_results<T, kPairs>(
          sums, shared_address(shared_results) + lane * kBlockColumns * sizeof(HalfBits), 4 * kResultRow);
      if (__any_sync(0xffffffff, is_nan)) {
        __syncwarp();
        if (valid) {
          // Four lanes have the same unit: each takes two of its columns.
          const int column = lane / 8 * 2;
          const int64_t plane = (tile.first_image + image) * static_cast<int64_t>(parameters.channels) + tile.channel;
          repair_results<T>(
              shared_results + lane % 8 * kBlockColumns + column, kUnits * kBlockColumns, kRows,
              source + plane * parameters.pass.source_height * parameters.pass.source_width,
              weight + static_cast<int64_t>(tile.channel) * parameters.pass.taps(), start, parameters.pass,
              tile.first_row + band_row, tile.first_column + column_block * kBlockColumns + column);
        }
      }
      __syncwarp();
      switch (parameters.result_unit) {
        case 8:
          store_units<8, kRows>(result, parameters, tile, first_unit, shared_results);
          break;
        case 4:
          store_units<4, kRows>(result, parameters, tile, first_unit, shared_results);
          break;
        case 2:
          store_units<2, kRows>(result, parameters, tile, first_unit, shared_results);
          break;
        default:
          store_units<1, kRows>(result, parameters, tile, first_unit, shared_results);
      }
    }
    if (!more) return;
    __syncwarp();
    if (parameters.stages == 1) load_tile(source, parameters, next_tile, shared);
    index = next_index;
    tile = next_tile;
  }
}

struct PlanesPlan {
  PlanesParameters parameters;
  int tap_rows, pairs;
  size_t bytes;
};

PlanesPlan make_plan(const PassAxis& height, const PassAxis& width, int batch, int channels, bool flipped,
                     const void* source, const void* result) {
  PlanesPlan plan{};
  PlanesParameters& p = plan.parameters;
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
  p.pass = {height.kernel, width.kernel, height.padding, width.padding, flipped, lead,
            height.source, width.source, 1};
  p.result_height = height.result;
  p.result_width = width.result;
  p.channels = channels;
  p.batch = batch;

  constexpr int kMostColumnBlocks = 24;
  const int all_column_blocks = ceil_divide(width.result, kBlockColumns);
  int tiles_x = ceil_divide(all_column_blocks, kMostColumnBlocks);
  p.column_blocks = tiles_x == 1 ? all_column_blocks : round_up(ceil_divide(all_column_blocks, tiles_x), kUnits);
  tiles_x = ceil_divide(all_column_blocks, p.column_blocks);
  const int padded_columns = pad_column_blocks(p.column_blocks);
  p.padded_columns = FastDivisor(padded_columns);
  p.result_columns = p.column_blocks * kBlockColumns;
  p.source_columns = p.result_columns + kBlockColumns;

  // As many bands of a plane as fit, or as many images as fill eight units.
  const auto env=[](const char*n,int d){const char*v=getenv(n);return v?atoi(v):d;};
  const int kStageElements = env("TC_STAGE", 5) * 1024;
  const int all_bands = ceil_divide(height.result, band_rows);
  int bands = all_bands;
  while (bands > 1 && (bands * band_rows + halo) * p.source_columns > kStageElements) --bands;
  const int tiles_y = ceil_divide(all_bands, bands);
  bands = ceil_divide(all_bands, tiles_y);
  p.bands = FastDivisor(bands);
  p.result_rows = bands * band_rows;
  p.source_rows = p.result_rows + halo;
  p.whole_planes = tiles_x * tiles_y == 1;
  p.tile_images = p.whole_planes ? std::min(batch, std::max(1, kUnits / (padded_columns * bands))) : 1;
  p.pitch = band_pitch(p.source_rows, p.source_columns, padded_columns, bands, band_rows, p.tile_images);

  p.all_channels = FastDivisor(channels);
  p.tiles_x = FastDivisor(tiles_x);
  p.tiles_y = FastDivisor(tiles_y);
  p.tiles = ceil_divide(batch, p.tile_images) * tiles_y * tiles_x * channels;
  p.source_lanes = std::min(kWarp, ceil_divide(std::min(width.source, p.source_columns), p.source_unit));
  p.result_unit = 8;
  while (width.result % p.result_unit != 0 || !is_aligned(result, 2 * p.result_unit)) p.result_unit /= 2;
  p.group_columns = std::min(padded_columns, kUnits);
  while (p.result_lanes_shift < 5 && (1 << p.result_lanes_shift) * p.result_unit < p.group_columns * kBlockColumns) {
    ++p.result_lanes_shift;
  }
  p.stage_elements = p.pitch.channel;
  p.stages = p.stage_elements <= env("TC_TWO", 2) * 1024 ? 2 : 1;
  p.warp_elements = p.stages * p.stage_elements + kBandElements + kUnits * kBlockColumns * band_rows;
  plan.bytes = sizeof(HalfBits) * kWarps * p.warp_elements;
  return plan;
}

}  // namespace

template <typename T>
void launch_tensor_core_planes(const T* source, const T* weight, const T* bias, T* result,
                               const Geometry& geometry, bool transposed, cudaStream_t stream) {
  const PlanesPlan plan =
      make_plan(PassAxis(geometry.height, transposed), PassAxis(geometry.width, transposed),
                static_cast<int>(geometry.batch), static_cast<int>(geometry.channels), transposed, source, result);
  const char* name = transposed ? "depthwise_conv2d_input_grad" : "depthwise_conv2d";
  int device = 0;
  int multiprocessors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  const int blocks = std::min(ceil_divide(plan.parameters.tiles, kWarps), multiprocessors * kBlocks);
  const auto bits = [](const T* pointer) { return reinterpret_cast<const HalfBits*>(pointer); };
  with_band(plan.tap_rows, plan.pairs, [&](auto tap_rows, auto pairs) {
    const auto kernel = small_kernel_planes_tensor_core<T, tap_rows, pairs>;
    constexpr size_t kDefaultBytes = 48 * 1024;
    if (plan.bytes > kDefaultBytes) {
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(plan.bytes));
    }
    kernel<<<blocks, kWarps * kWarp, plan.bytes, stream>>>(
        bits(source), bits(weight), bits(bias), reinterpret_cast<HalfBits*>(result), plan.parameters);
  });
  check_launch(name);
}

template void launch_tensor_core_planes(const Half*, const Half*, const Half*, Half*, const Geometry&, bool,
                                        cudaStream_t);
template void launch_tensor_core_planes(const BFloat16*, const BFloat16*, const BFloat16*, BFloat16*,
                                        const Geometry&, bool, cudaStream_t);

}  // namespace torchgraft::depthwise::cuda
