// Forward and input gradient of NHWC halves on tensor cores, stride 1, kernels of up to 7 x 8 taps: results
// of a channel are a band matrix of its taps times sources (band.cuh).
//
// A block owns some channels of some images, or of a band of rows of one image, as a tile of halves in shared
// memory (half_tile.cuh), where channels are planes; a warp owns whole channels of it, and keeps all of
// the band in registers for as long as it stays with one. Results take the place of sources: the result of
// (row, column) is stored where the first source of its window was, which no later unit reads, and leave as
// sources came.
//
// Budget, (128,96,56x56,k7), floor 37 us: 4.5 results a clock and multiprocessor at the memory roof, which
// leaves 28 thread instructions and 28 bytes of shared memory a result. Products: 8 for 128 results, half the
// tensor cores' rate; with loads and epilogue some 7 instructions a result; in and out 5 to 8 more. Shared
// memory: 2 + 5.7 + 2 + 2 bytes a result.

#include "../kernels.h"

#include "band.cuh"

namespace torchgraft::depthwise::cuda {
namespace {

struct ProductParameters {
  TileImages source, result;
  int batch;
  int kernel_height, kernel_width;
  bool flipped;
  int padding_y, padding_x;
  int lead;  // column 0 of a tile is this many columns in front of its first result's
  TilePitch pitch;
  int tile_images, tile_channels;
  int source_rows, source_columns, result_rows, result_columns;  // of a tile
  int slices, tiles_x, tiles_y;
  int tile_elements;
  int column_blocks;           // of a tile, that hold results
  FastDivisor padded_columns;  // column blocks as units count them
  FastDivisor bands;           // of a tile
};

// The result at (y, x), tap by tap: only what lies in its window.
template <typename T>
__device__ float window_sum(const HalfBits* source, const HalfBits* weight, float start,
                            const ProductParameters& parameters, int pixel_step, int y, int x) {
  const int height = parameters.source.height.divisor();
  const int width = parameters.source.width.divisor();
  const int taps = parameters.kernel_height * parameters.kernel_width;
  float sum = start;
  for (int row = 0; row < parameters.kernel_height; ++row) {
    const int source_y = y - parameters.padding_y + row;
    if (source_y < 0 || source_y >= height) continue;
    for (int column = 0; column < parameters.kernel_width; ++column) {
      const int source_x = x - parameters.padding_x + column;
      if (source_x < 0 || source_x >= width) continue;
      const int tap = row * parameters.kernel_width + column;
      sum += HalfMath<T>::to_float(weight[parameters.flipped ? taps - 1 - tap : tap]) *
             HalfMath<T>::to_float(source[(static_cast<int64_t>(source_y) * width + source_x) * pixel_step]);
    }
  }
  return sum;
}

// Computes again those of 2 x `rows` results from (y, x) on that are NaN.
template <typename T>
__device__ __noinline__ void repair(HalfBits* results, int rows, const HalfBits* source,
                                    const HalfBits* weight, float start, const ProductParameters& parameters,
                                    int pixel_step, int y, int x) {
  for (int i = 0; i < 2 * rows; ++i) {
    HalfBits& value = results[i / 2 * parameters.pitch.row + i % 2];
    if (!HalfMath<T>::is_nan(value)) continue;
    value = HalfMath<T>::from_float(
        window_sum<T>(source, weight, start, parameters, pixel_step, y + i / 2, x + i % 2));
  }
}

constexpr int kMostWarps = 4;

// Where a block's tile lies.
struct ProductTile {
  int first_image, images, first_channel, channels, first_row, first_column;

  __device__ explicit ProductTile(const ProductParameters& parameters) {
    unsigned index = blockIdx.x;
    const unsigned slice = index % parameters.slices;
    index /= parameters.slices;
    const unsigned x = index % parameters.tiles_x;
    index /= parameters.tiles_x;
    const unsigned y = index % parameters.tiles_y;
    index /= parameters.tiles_y;
    first_channel = slice * parameters.tile_channels;
    channels = min(parameters.tile_channels, parameters.source.channels - first_channel);
    first_column = x * parameters.result_columns;
    first_row = y * parameters.result_rows;
    first_image = index * parameters.tile_images;
    images = min(parameters.tile_images, parameters.batch - first_image);
  }
};

template <typename T, int kTapRows, int kPairs>
__global__ void __launch_bounds__(kMostWarps* kWarp, 4)
    bands_small_nhwc(const HalfBits* __restrict__ source, const HalfBits* __restrict__ weight,
                     const HalfBits* __restrict__ bias, HalfBits* __restrict__ result,
                     const __grid_constant__ ProductParameters parameters) {
  using Math = HalfMath<T>;
  const ProductTile tile(parameters);
  const TilePitch& pitch = parameters.pitch;
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int warps = blockDim.x / kWarp;
  const int g = lane / 4;  // as the layout of a product's operands names them
  const int q = lane % 4;
  HalfBits* shared = shared_memory<HalfBits>();
  const int band_offset = parameters.tile_elements + warp * kBandElements;

  // The two taps that a lane brings of every channel of its warp, and where they belong.
  const int taps = parameters.kernel_height * parameters.kernel_width;
  const HalfBits* next_weight = weight + static_cast<int64_t>(tile.first_channel + warp) * taps + lane;
  const bool brings[2] = {lane < taps, lane + kWarp < taps};
  HalfBits brought[2] = {};
  int brought_to[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int tap = parameters.flipped ? taps - 1 - (lane + i * kWarp) : lane + i * kWarp;
    const int row = tap / parameters.kernel_width;
    brought_to[i] = band_offset + kBandFirst + row * kBandPitch + (tap - row * parameters.kernel_width) +
                    parameters.lead - parameters.padding_x;
    if (brings[i] && warp < tile.channels) brought[i] = next_weight[i * kWarp];
  }

  clear_half_tile(shared, parameters.tile_elements + warps * kBandElements);
  __syncthreads();
  const TileBox source_box = {tile.first_image,
                              tile.images,
                              tile.first_channel,
                              tile.channels,
                              tile.first_row - parameters.padding_y,
                              parameters.source_rows,
                              tile.first_column - parameters.lead,
                              parameters.source_columns};
  load_half_pixels(source, parameters.source, source_box, pitch, shared);
  __syncthreads();

  const int units = tile.images * parameters.bands.divisor() * parameters.padded_columns.divisor();
  const uint32_t zero_address = shared_address(shared + band_offset);
  const uint32_t band_address =
      shared_address(shared + band_offset + g % 2 * (kBandCopy + 1) + kBandFirst + 2 * q - g);
  for (int channel = warp; channel < tile.channels; channel += warps) {
    __syncwarp();
    next_weight += static_cast<int64_t>(warps) * taps;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!brings[i]) continue;
      shared[brought_to[i]] = brought[i];
      shared[brought_to[i] + kBandCopy + 1] = brought[i];
      if (channel + warps < tile.channels) brought[i] = next_weight[i * kWarp];
    }
    __syncwarp();
    // The band, as products take it: taps of row r, of row r - 1, both of source columns 2q and 2q + 1, and
    // both of the two eight further on. Each is loaded by itself, zeros and equal ones too: the four operands
    // of a product must be neighbours in the register file, and the compiler would move equal ones there each
    // time.
    uint32_t band[kTapRows + 1][4];
#pragma unroll
    for (int row = 0; row <= kTapRows; ++row) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int tap_row = row - i % 2;
        const bool is_zero = tap_row < 0 || tap_row >= kTapRows;
        band[row][i] = ptx::load_shared_volatile(
            is_zero ? zero_address
                    : band_address + (tap_row * kBandPitch + i / 2 * 8) * static_cast<int>(sizeof(HalfBits)));
      }
    }
    const float bias_value = bias == nullptr ? 0.0f : Math::to_float(bias[tile.first_channel + channel]);
    const float start[4] = {bias_value, bias_value, bias_value, bias_value};
    HalfBits* channel_tile = shared + pitch.plane(0, channel);

    for (int first_unit = 0; first_unit < units; first_unit += kUnits) {
      // Where the lane's unit lies. Those without results read what the tile's first one does, and write to
      // the end of the tile.
      const int unit = first_unit + lane % kUnits;
      const int unit_row = parameters.padded_columns.divide(unit);
      const int column_block = unit - unit_row * parameters.padded_columns.divisor();
      const int image = parameters.bands.divide(unit_row);
      const int band_row = (unit_row - image * parameters.bands.divisor()) * (2 * kPairs);
      const bool valid = column_block < parameters.column_blocks && image < tile.images;
      const int offset =
          valid ? image * pitch.image + band_row * pitch.row + column_block * kBlockColumns : 0;

      uint32_t address = shared_address(channel_tile + offset + lane / 8 % 2 * 8 + lane / 16 * pitch.row);
      float sums[kPairs][4];
#pragma unroll
      for (int row = 0; row < kTapRows - 1 + 2 * kPairs; row += 2) {
        uint32_t sources[4];
        ptx::ldmatrix(sources, address);
        address += 2 * sizeof(HalfBits) * pitch.row;
#pragma unroll
        for (int next = 0; next < 2; ++next) {
#pragma unroll
          for (int pair = 0; pair < kPairs; ++pair) {
            const int tap_row = row + next - 2 * pair;
            if (tap_row < 0 || tap_row > kTapRows) continue;
            multiply_add<T>(sums[pair], band[tap_row], sources[2 * next], sources[2 * next + 1],
                            tap_row == 0 ? start : sums[pair]);
          }
        }
      }

      uint32_t target = shared_address(valid ? channel_tile + offset + lane / 8 * pitch.row
                                             : shared + parameters.tile_elements - 8);
      const uint32_t target_step = valid ? 4 * sizeof(HalfBits) * pitch.row : 0;
      uint32_t largest = 0;
#pragma unroll
      for (int pair = 0; pair < kPairs; pair += 2) {
        uint32_t matrices[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (pair + i / 2 == kPairs) break;
          const float* values = sums[pair + i / 2] + i % 2 * 2;
          matrices[i] = Math::pack(values[0], values[1]);
          largest = Math::max_nan(largest, matrices[i]);
        }
        if (pair + 1 < kPairs) {
          store_transposed<4>(matrices, target);
        } else {
          store_transposed<2>(matrices, target);
        }
        target += target_step;
      }
      if (__any_sync(0xffffffff, Math::is_nan(largest & 0xffff) || Math::is_nan(largest >> 16)) && valid) {
        // Four lanes have the same unit: each takes two of its columns.
        const int64_t pixels =
            static_cast<int64_t>(parameters.source.height.divisor()) * parameters.source.width.divisor();
        const int64_t channels = parameters.source.channels;
        const int64_t own_channel = tile.first_channel + channel;
        const int column = lane / 8 * 2;
        repair<T>(channel_tile + offset + column, 2 * kPairs,
                  source + (tile.first_image + image) * pixels * channels + own_channel,
                  weight + own_channel * taps, bias_value, parameters, static_cast<int>(channels),
                  tile.first_row + band_row, tile.first_column + column_block * kBlockColumns + column);
      }
    }
  }
  __syncthreads();

  const TileBox result_box = {
      tile.first_image,       tile.images,       tile.first_channel,       tile.channels, tile.first_row,
      parameters.result_rows, tile.first_column, parameters.result_columns};
  store_half_pixels(result, parameters.result, result_box, pitch, shared);
}

struct ProductPlan {
  ProductParameters parameters;
  int tap_rows, pairs;
  int64_t blocks;
  size_t bytes;
};

// `most_bytes`: of shared memory of a block.
ProductPlan make_plan(const PassAxis& height, const PassAxis& width, int64_t batch, int64_t channels,
                      bool flipped, int64_t most_bytes) {
  ProductPlan plan{};
  ProductParameters& p = plan.parameters;
  p.source = {static_cast<int>(channels), FastDivisor(height.source), FastDivisor(width.source)};
  p.result = {static_cast<int>(channels), FastDivisor(height.result), FastDivisor(width.result)};
  p.batch = static_cast<int>(batch);
  p.kernel_height = height.kernel;
  p.kernel_width = width.kernel;
  p.flipped = flipped;
  p.padding_y = height.padding;
  p.padding_x = width.padding;

  plan.tap_rows = tap_rows_of(height.kernel);
  plan.pairs = pairs_of_band(height.result);
  const int band_rows = 2 * plan.pairs;
  const int all_bands = ceil_divide(height.result, band_rows);

  p.lead = width.padding;
  constexpr int kMostColumnBlocks = 24;
  const int all_column_blocks = ceil_divide(width.result, kBlockColumns);
  p.tiles_x = ceil_divide(all_column_blocks, kMostColumnBlocks);
  p.column_blocks =
      p.tiles_x == 1 ? all_column_blocks : round_up(ceil_divide(all_column_blocks, p.tiles_x), 8);
  p.tiles_x = ceil_divide(all_column_blocks, p.column_blocks);
  const int padded_columns = pad_column_blocks(p.column_blocks);
  p.padded_columns = FastDivisor(padded_columns);
  p.result_columns = p.column_blocks * kBlockColumns;
  p.source_columns = p.result_columns + kBlockColumns;

  // As many bands and images as make a channel of a tile worth a warp, as far as shared memory goes.
  constexpr int kPlaneElements = 5 * 1024;
  constexpr int kTileElements = 40 * 1024;
  const int halo = plan.tap_rows - 1;
  const int minimum_channels = std::min<int>(32, static_cast<int>(channels));
  int bands = all_bands;
  while (bands > 1 && ((bands * band_rows + halo) * p.source_columns > kPlaneElements ||
                       (bands * band_rows + halo) * p.source_columns * minimum_channels > kTileElements)) {
    --bands;
  }
  constexpr int kUnitChannels = 8;
  const auto cut = [&](int most_bands, int64_t most_images) {
    p.tiles_y = ceil_divide(all_bands, most_bands);
    bands = ceil_divide(all_bands, p.tiles_y);
    p.bands = FastDivisor(bands);
    p.result_rows = bands * band_rows;
    p.source_rows = p.result_rows + halo;
    p.tile_images = static_cast<int>(
        p.tiles_y * p.tiles_x > 1
            ? 1
            : std::min<int64_t>(most_images, std::max(1, kUnits / (padded_columns * bands))));
    p.pitch = band_pitch(p.source_rows, p.source_columns, padded_columns, bands, band_rows, p.tile_images);
  };
  const auto tile_elements = [&] { return p.pitch.plane(0, p.tile_channels - 1) + p.pitch.channel + 8; };
  const auto bytes = [&] {
    return static_cast<int64_t>(sizeof(HalfBits)) * (tile_elements() + int64_t{kMostWarps} * kBandElements);
  };
  // What the fewest channels of a tile take must fit.
  const auto least_bytes = [&] {
    p.tile_channels = kUnitChannels;
    p.pitch.group = channels_last_group(p.tile_channels);
    return bytes();
  };
  cut(bands, batch);
  while (least_bytes() > most_bytes && p.tile_images > 1) cut(bands, p.tile_images - 1);
  while (least_bytes() > most_bytes && bands > 1) cut(bands - 1, 1);

  constexpr int kMostChannels = 32;
  int tile_channels = std::clamp(kTileElements / p.pitch.channel / kUnitChannels * kUnitChannels,
                                 kUnitChannels, kMostChannels);
  const auto blocks = [&] {
    p.slices = static_cast<int>(ceil_divide<int64_t>(channels, tile_channels));
    return ceil_divide<int64_t>(batch, p.tile_images) * p.tiles_x * p.tiles_y * p.slices;
  };
  const int64_t few_blocks = int64_t{current_device().multiprocessors} * 2;
  while (tile_channels > kUnitChannels && blocks() < few_blocks) {
    tile_channels = std::max(kUnitChannels, round_up(tile_channels / 2, kUnitChannels));
  }
  plan.blocks = blocks();
  p.tile_channels = round_up(static_cast<int>(ceil_divide<int64_t>(channels, p.slices)), kUnitChannels);
  p.pitch.group = channels_last_group(p.tile_channels);
  p.tile_elements = tile_elements();
  plan.bytes = static_cast<size_t>(bytes());
  return plan;
}

template <typename T, int kTapRows, int kPairs>
void launch_plan(const ProductPlan& plan, const T* source, const T* weight, const T* bias, T* result,
                 const char* name, cudaStream_t stream) {
  const auto kernel = bands_small_nhwc<T, kTapRows, kPairs>;
  require_shared_memory(kernel, static_cast<int64_t>(plan.bytes), name);
  const auto bits = [](const T* pointer) { return reinterpret_cast<const HalfBits*>(pointer); };
  kernel<<<grid_of(plan.blocks, name), kMostWarps * kWarp, plan.bytes, stream>>>(
      bits(source), bits(weight), bits(bias), reinterpret_cast<HalfBits*>(result), plan.parameters);
  check_launch(name);
}

}  // namespace

template <typename T>
void launch_bands_small_nhwc(const Correlation<T>& pass) {
  const auto& [source, weight, bias, result, geometry, layout, transposed, stream] = pass;
  const ProductPlan plan =
      make_plan(PassAxis(geometry.height, transposed), PassAxis(geometry.width, transposed), geometry.batch,
                geometry.channels, transposed, current_device().shared_of_block);
  const char* name = transposed ? "depthwise_conv2d_input_grad" : "depthwise_conv2d";
  with_band(plan.tap_rows, plan.pairs, [&](auto tap_rows, auto pairs) {
    launch_plan<T, tap_rows, pairs>(plan, source, weight, bias, result, name, stream);
  });
}

template void launch_bands_small_nhwc(const Correlation<Half>&);
template void launch_bands_small_nhwc(const Correlation<BFloat16>&);

}  // namespace torchgraft::depthwise::cuda
