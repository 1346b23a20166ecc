// Forward and input gradient of halves on tensor cores, stride 1: along a row, eight results of one channel
// are a band (Toeplitz) matrix of its taps times sixteen sources.
//
// small_kernel_tensor_core: up to 7 rows and 8 columns of taps. The product m16n8k16 of source row r gives
//   A[(my, g)][k] = tap[r - 2 p - my][k - g]   B[k][n] = source row r of unit n, column k
// 2 x 8 results of row pair p in each of 8 units; a unit is 8 columns of a band of 2 * kPairs rows of a
// plane. Units are counted over columns, bands and images of one channel, so that 14 x 14 and 7 x 7 planes
// fill all eight. All of A is in registers for as long as a warp stays with a channel: two a row of taps. A
// source row of eight units comes by half an ldmatrix.x4 and feeds up to (kTapRows + 1) / 2 row pairs.
//
// A block owns some channels of some images, or of a band of rows of one image, as a tile of halves in shared
// memory (cuda_half_tile.cuh); a warp owns whole channels of it. Results take the place of sources: the
// result of (row, column) is stored where the first source of its window was, which no later unit reads, and
// leave as sources came.
//
// Budget, (128,96,56x56,k7), floor 37 us: 4.5 results a clock and multiprocessor at the memory roof, which
// leaves 28 thread instructions and 28 bytes of shared memory a result. Products: 8 for 128 results, half the
// tensor cores' rate; with loads and epilogue some 7 instructions a result; in and out 5 to 8 more. Shared
// memory: 2 + 5.7 + 2 + 2 bytes a result.
//
// Sums are kept in fp32. A product multiplies the zeros of the band with what lies outside a result's window:
// where that is not finite the result comes out NaN, and every NaN is computed again tap by tap.

#include "cuda_tensor_core.cuh"

#include "cuda_half_math.cuh"

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
  int column_blocks;                         // of a tile, that hold results
  FastDivisor padded_columns;                // column blocks as units count them
  FastDivisor bands;                         // of a tile
  PlaneAccess source_access, result_access;  // NCHW
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

constexpr int kWarp = 32;
constexpr int kMostWarps = 4;
constexpr int kUnits = 8;           // of a product: its n
constexpr int kBlockColumns = 8;    // results of a unit along a row
constexpr int kSourceColumns = 16;  // under them: a product's k
constexpr int kMostTapRows = 7;
constexpr int kMostTapColumns = 8;
static_assert(kMostTapRows * kMostTapColumns <= 2 * kWarp, "a lane brings two taps");

// The taps of a warp's channel in shared memory: rows with zeros before and after, twice, the second time one
// element further on, so that any two neighbours lie in four bytes of one copy or the other.
constexpr int kBandPitch = 24;
constexpr int kBandCopy = kMostTapRows * kBandPitch;
constexpr int kBandElements = 2 * kBandCopy;
constexpr int kBandFirst = 8;  // where tap 0 of a row lies if rows are not shifted

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

template <typename T, int kTapRows, int kPairs, bool kChannelsLast>
__global__ void __launch_bounds__(kMostWarps* kWarp, 4)
    small_kernel_tensor_core(const HalfBits* __restrict__ source, const HalfBits* __restrict__ weight,
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
  if constexpr (kChannelsLast) {
    load_half_pixels(source, parameters.source, source_box, pitch, shared);
  } else {
    load_half_planes(source, parameters.source, source_box, pitch, parameters.source_access, shared);
  }
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
            Math::multiply_add(sums[pair], band[tap_row], sources[2 * next], sources[2 * next + 1],
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
                  source + (tile.first_image + image) * pixels * channels +
                      (kChannelsLast ? own_channel : own_channel * pixels),
                  weight + own_channel * taps, bias_value, parameters,
                  kChannelsLast ? static_cast<int>(channels) : 1, tile.first_row + band_row,
                  tile.first_column + column_block * kBlockColumns + column);
      }
    }
  }
  __syncthreads();

  const TileBox result_box = {
      tile.first_image,       tile.images,       tile.first_channel,       tile.channels, tile.first_row,
      parameters.result_rows, tile.first_column, parameters.result_columns};
  if constexpr (kChannelsLast) {
    store_half_pixels(result, parameters.result, result_box, pitch, shared);
  } else {
    store_half_planes(result, parameters.result, result_box, pitch, parameters.result_access, shared);
  }
}

// One direction of the pass: what is read, what is written and the padding between.
struct PassAxis {
  int source, result, kernel, padding;

  PassAxis(const Extent& extent, bool transposed)
      : source(static_cast<int>(transposed ? extent.output : extent.input)),
        result(static_cast<int>(transposed ? extent.input : extent.output)),
        kernel(static_cast<int>(extent.kernel)),
        padding(static_cast<int>(transposed ? extent.kernel - 1 - extent.padding : extent.padding)) {}
};

int round_up(int value, int step) { return ceil_divide(value, step) * step; }

// How many of the eight rows of a matrix that ldmatrix reads share their banks with another one.
int bank_conflicts(const TilePitch& pitch, int padded_columns, int bands, int band_rows, int images) {
  unsigned used = 0;
  int conflicts = 0;
  for (int unit = 0; unit < kUnits; ++unit) {
    const int row = unit / padded_columns;
    if (row >= bands * images) break;
    const int offset = row / bands * pitch.image + row % bands * band_rows * pitch.row;
    const unsigned bank = 1u << ((offset / 8 + unit % padded_columns) % 8);
    conflicts += (used & bank) != 0;
    used |= bank;
  }
  return conflicts;
}

struct ProductPlan {
  ProductParameters parameters;
  int tap_rows, pairs;
  int warps;
  int64_t blocks;
  size_t bytes;
};

ProductPlan make_plan(const PassAxis& height, const PassAxis& width, int64_t batch, int64_t channels,
                      Layout layout, bool flipped, const void* source, const void* result) {
  const bool channels_last = layout == Layout::channels_last;
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

  // Rows: bands of seven or four pairs, whichever leaves less idle.
  plan.tap_rows = height.kernel <= 3 ? 3 : height.kernel <= 5 ? 5 : 7;
  plan.pairs = round_up(height.result, 14) <= round_up(height.result, 8) ? 7 : 4;
  const int band_rows = 2 * plan.pairs;
  const int all_bands = ceil_divide(height.result, band_rows);

  // Columns: the tile is shifted so that wide units of a row lie on their boundaries in shared memory.
  int unit = 4;
  for (;; unit /= 2) {
    p.lead = channels_last ? width.padding : round_up(width.padding, unit);
    if (channels_last || unit == 1) break;
    if (p.lead - width.padding + width.kernel + kBlockColumns - 1 > kSourceColumns) continue;
    if (width.source % unit == 0 && is_aligned(source, 2 * unit)) break;
  }
  constexpr int kMostColumnBlocks = 24;
  const int all_column_blocks = ceil_divide(width.result, kBlockColumns);
  p.tiles_x = ceil_divide(all_column_blocks, kMostColumnBlocks);
  p.column_blocks =
      p.tiles_x == 1 ? all_column_blocks : round_up(ceil_divide(all_column_blocks, p.tiles_x), 8);
  p.tiles_x = ceil_divide(all_column_blocks, p.column_blocks);
  const int padded_columns = p.column_blocks > 4    ? round_up(p.column_blocks, 8)
                             : p.column_blocks == 3 ? 4
                                                    : p.column_blocks;
  p.padded_columns = FastDivisor(padded_columns);
  p.result_columns = p.column_blocks * kBlockColumns;
  p.source_columns = p.result_columns + kBlockColumns;

  // As many bands and images as make a channel of a tile worth a warp, as far as shared memory goes.
  constexpr int kPlaneElements = 5 * 1024;
  constexpr int kTileElements = 18 * 1024;
  constexpr int kChannelsLastElements = 40 * 1024;
  const int halo = plan.tap_rows - 1;
  const int most_elements = channels_last ? kChannelsLastElements : kTileElements;
  const int minimum_channels = channels_last ? std::min<int>(32, static_cast<int>(channels)) : 1;
  int bands = all_bands;
  while (bands > 1 && ((bands * band_rows + halo) * p.source_columns > kPlaneElements ||
                       (bands * band_rows + halo) * p.source_columns * minimum_channels > most_elements)) {
    --bands;
  }
  p.tiles_y = ceil_divide(all_bands, bands);
  bands = ceil_divide(all_bands, p.tiles_y);
  p.bands = FastDivisor(bands);
  p.result_rows = bands * band_rows;
  p.source_rows = p.result_rows + halo;
  p.tile_images = static_cast<int>(
      p.tiles_y * p.tiles_x > 1 ? 1
                                : std::min<int64_t>(batch, std::max(1, kUnits / (padded_columns * bands))));

  // Pitches without bank conflicts.
  int fewest = kUnits + 1;
  for (int row_extra = 0; row_extra < 4 && fewest > 0; ++row_extra) {
    const int row_pitch = p.source_columns + 8 * row_extra;
    for (int image_extra = 0; image_extra < 8 && fewest > 0; ++image_extra) {
      const TilePitch pitch = {row_pitch, p.source_rows * row_pitch + 8 * image_extra, 0, 0};
      const int conflicts = bank_conflicts(pitch, padded_columns, bands, band_rows, p.tile_images);
      if (conflicts >= fewest) continue;
      fewest = conflicts;
      p.pitch = pitch;
    }
  }
  p.pitch.channel = p.tile_images * p.pitch.image;

  // Channels of a tile: where planes are not whole vectors, as many as are.
  const bool whole_planes = p.tiles_y * p.tiles_x == 1;
  int unit_channels = 1;
  if (channels_last) {
    unit_channels = 8;
  } else if (whole_planes) {
    while (unit_channels < std::min<int64_t>(channels, 8) &&
           (unit_channels * int64_t{height.source} * width.source % 8 != 0 ||
            unit_channels * int64_t{height.result} * width.result % 8 != 0)) {
      unit_channels *= 2;
    }
  }
  const int most_channels = channels_last ? 32 : 8;
  int tile_channels = std::clamp(most_elements / p.pitch.channel / unit_channels * unit_channels,
                                 unit_channels, most_channels);
  const auto blocks = [&] {
    p.slices = static_cast<int>(ceil_divide<int64_t>(channels, tile_channels));
    return ceil_divide<int64_t>(batch, p.tile_images) * p.tiles_x * p.tiles_y * p.slices;
  };
  constexpr int64_t kFewBlocks = 264;
  while (tile_channels > unit_channels && blocks() < kFewBlocks) {
    tile_channels = std::max(unit_channels, round_up(tile_channels / 2, unit_channels));
  }
  blocks();
  p.tile_channels = round_up(static_cast<int>(ceil_divide<int64_t>(channels, p.slices)), unit_channels);
  plan.blocks = blocks();
  plan.warps = channels_last ? kMostWarps : std::min(kMostWarps, p.tile_channels);
  if (channels_last) {
    p.pitch.group = channels_last_group(p.tile_channels);
  } else {
    const int all_channels = static_cast<int>(channels);
    p.source_access = plane_access(source, all_channels, height.source, width.source, p.lead, p.tile_channels,
                                   p.tiles_x == 1, whole_planes);
    p.result_access = plane_access(result, all_channels, height.result, width.result, 0, p.tile_channels,
                                   p.tiles_x == 1, whole_planes);
  }
  p.tile_elements = p.pitch.plane(0, p.tile_channels - 1) + p.pitch.channel + 8;
  plan.bytes = sizeof(HalfBits) * (p.tile_elements + int64_t{plan.warps} * kBandElements);
  return plan;
}

template <typename T, int kTapRows, int kPairs, bool kChannelsLast>
void launch_plan(const ProductPlan& plan, const T* source, const T* weight, const T* bias, T* result,
                 const char* name, cudaStream_t stream) {
  const auto kernel = small_kernel_tensor_core<T, kTapRows, kPairs, kChannelsLast>;
  constexpr size_t kDefaultBytes = 48 * 1024;
  if (plan.bytes > kDefaultBytes) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(plan.bytes));
  }
  const auto bits = [](const T* pointer) { return reinterpret_cast<const HalfBits*>(pointer); };
  kernel<<<grid_of(plan.blocks, name), plan.warps * kWarp, plan.bytes, stream>>>(
      bits(source), bits(weight), bits(bias), reinterpret_cast<HalfBits*>(result), plan.parameters);
  check_launch(name);
}

}  // namespace

bool serves_tensor_core(const Geometry& geometry, Layout layout, bool transposed, bool aligned) {
  constexpr int64_t kMostImageElements = INT32_MAX;
  if (std::max(geometry.input_pixels(), geometry.output_pixels()) > kMostImageElements / geometry.channels) {
    return false;
  }
  if (!is_unit_step(geometry) || !positions_fit_32(geometry) || geometry.multiplier != 1) return false;
  if (layout == Layout::channels_last && (geometry.channels % 8 != 0 || !aligned)) return false;
  for (const Extent* extent : {&geometry.height, &geometry.width}) {
    if (extent->padding >= extent->kernel) return false;
  }
  (void)transposed;
  return geometry.height.kernel <= kMostTapRows && geometry.width.kernel <= kMostTapColumns;
}

template <typename T>
void launch_tensor_core(const T* source, const T* weight, const T* bias, T* result, const Geometry& geometry,
                        Layout layout, bool transposed, cudaStream_t stream) {
  if (layout == Layout::contiguous) {
    return launch_tensor_core_planes(source, weight, bias, result, geometry, transposed, stream);
  }
  const ProductPlan plan =
      make_plan(PassAxis(geometry.height, transposed), PassAxis(geometry.width, transposed), geometry.batch,
                geometry.channels, layout, transposed, source, result);
  const char* name = transposed ? "depthwise_conv2d_input_grad" : "depthwise_conv2d";
  const auto launch = [&](auto tap_rows, auto pairs) {
    if (layout == Layout::channels_last) {
      launch_plan<T, tap_rows, pairs, true>(plan, source, weight, bias, result, name, stream);
    } else {
      launch_plan<T, tap_rows, pairs, false>(plan, source, weight, bias, result, name, stream);
    }
  };
  const auto with_pairs = [&](auto tap_rows) {
    if (plan.pairs == 7) {
      launch(tap_rows, std::integral_constant<int, 7>{});
    } else {
      launch(tap_rows, std::integral_constant<int, 4>{});
    }
  };
  switch (plan.tap_rows) {
    case 3:
      return with_pairs(std::integral_constant<int, 3>{});
    case 5:
      return with_pairs(std::integral_constant<int, 5>{});
    default:
      return with_pairs(std::integral_constant<int, 7>{});
  }
}

template void launch_tensor_core(const Half*, const Half*, const Half*, Half*, const Geometry&, Layout, bool,
                                 cudaStream_t);
template void launch_tensor_core(const BFloat16*, const BFloat16*, const BFloat16*, BFloat16*,
                                 const Geometry&, Layout, bool, cudaStream_t);

}  // namespace torchgraft::depthwise::cuda
