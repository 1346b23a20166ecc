// Forward and input gradient of large kernels of halves, narrow NCHW planes of many images, stride 1: band
// matrices on tensor cores, whose other side are images.
//
// For one channel, a row of results and a row of sources below each other meet one row of taps, and an octet
// of either's columns a band matrix that depends on the distance between the two octets alone:
//   A[image][column] = source row   B[column][x] = tap[column - x + padding]   D[image][x] = result row
// Products are m16n8k16, of sixteen images with two octets, or m16n8k8 where the kernel reaches one of those
// only. Windows end where the image does: padding is neither stored nor multiplied.
//
// A block owns one channel (eight where planes are smaller than 8 x 8) of 16 images or more, whose planes lie
// in shared memory, [channel][image][row][column] with rows of whole octets, and their taps twice, set off by
// one element, so that every pair of neighbours is one aligned word. A warp owns BatchShape::rows rows of
// results of sixteen images and walks down the sources. Octets of images come by ldmatrix, and bands are
// words of taps, 2 * reach + 1 a row of taps: as sources move on by one row, a row of results needs the bands
// that the row above it needed before, so that they stay in registers, in a ring, and a step loads one row of
// taps. Results leave through shared memory where there is room, for a lane holds two columns only of an
// image.
//
// Predicted on an H200, at 600 TFLOP/s of mma.sync: (64,256,28x28,k29) 36 us of products (7 of k = 16 a pair
// of rows and sixteen images, 20 pairs a row of results), one multiprocessor reading 15 clocks of shared
// memory for 44 of products; with loading, which two blocks overlap in part, 55 us. (64,128,56x56,k31) 78 us
// of products, 105 in all. (64,512,14x14,k27) 6 us of products and 6 of memory, one after the other: 15 us.
// (64,1024,7x7,k13) is memory, 7 us, and how it is cut: 12 us. Measured: 80, 142, 37 and 24 us, where
// bands_large and tiles_correlate took 255, 329, 160 and 143: loading is hidden less than
// that.
//
// Sums are kept in fp32. A product multiplies the zeros of a band with what lies outside a result's window:
// where that is not finite the result comes out NaN, and every NaN is computed again tap by tap.

#include "../half_window.cuh"
#include "../kernels.h"
#include "../supports.h"

namespace torchgraft::depthwise::cuda {
namespace {

// Small planes are loaded and multiplied several channels at a time.
constexpr int64_t kSmallPlane = 8 * 8;
constexpr int kChannelsOfSmallPlanes = 8;

struct BatchProduct : HalfWindow {
  int images, images_of_block, chunks;  // a multiple of kBatchImages of a block
  int channels, channels_of_block;
  int first_tap_row, tap_rows;  // those in shared memory
  FastDivisor band_rows;        // and one of zeros
  int row_groups;
  int image_pitch;  // elements of an image in shared memory
  // Sources come in pieces of so many elements, which divide rows. Where rows are odd, they are split up,
  // from vectors of so many elements of the run that a block's channels are.
  int piece, vector;
  FastDivisor row_pieces;   // pieces of a row; elements, where rows are odd
  FastDivisor source_rows;  // source_height
  FastDivisor row_end;      // columns of the last octet behind the row
  bool has_row_end, stores_pairs;
};

// Row of results where group `rank` begins: those in the middle of the plane, which meet the most taps,
// first.
__device__ inline int row_group(int rank, int groups) {
  return groups / 2 + ((rank & 1) != 0 ? -((rank + 1) / 2) : rank / 2);
}

template <int kElements>
__device__ void load_batch_pieces(const HalfBits* run, int pieces, HalfBits* tile, int channel_pitch,
                                  int pitch, const BatchProduct& product) {
  for (int i = static_cast<int>(threadIdx.x) % 32; i < pieces; i += 32) {
    const int row = product.row_pieces.divide(i);
    const int channel = product.source_rows.divide(row);
    const int column = (i - row * product.row_pieces.divisor()) * kElements;
    copy_async<kElements * sizeof(HalfBits)>(
        tile + channel * channel_pitch + (row - channel * product.source_height) * pitch + column,
        run + i * kElements);
  }
}

template <int kElements>
__device__ void load_batch_elements(const HalfBits* run, int elements, HalfBits* tile, int channel_pitch,
                                    int pitch, const BatchProduct& product) {
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x) % 32 * kElements; i < elements; i += 32 * kElements) {
    const Vector<HalfBits, kElements> vector = *reinterpret_cast<const Vector<HalfBits, kElements>*>(run + i);
    const int run_row = product.row_pieces.divide(i);
    const int channel = product.source_rows.divide(run_row);
    int column = i - run_row * product.source_width;
    int row = run_row - channel * product.source_height;
    HalfBits* to = tile + channel * channel_pitch + row * pitch + column;
#pragma unroll
    for (int element = 0; element < kElements; ++element) {
      *to++ = vector[element];
      if (++column < product.source_width) continue;
      column = 0;
      to += pitch - product.source_width;
      if (++row < product.source_height) continue;
      row = 0;
      to += channel_pitch - product.source_height * pitch;
    }
  }
}

template <typename T, int kShape>
__global__ void __launch_bounds__(kBatchWarps * 32, kBatchShapes[kShape].blocks)
    bands_batch(const HalfBits* __restrict__ source, Rounded<T> weight, Rounded<T> bias,
                HalfBits* __restrict__ result, BatchProduct product) {
  using Math = HalfMath<T>;
  constexpr int kOctets = kBatchShapes[kShape].octets;
  constexpr int kReach = kBatchShapes[kShape].reach;
  constexpr int kRows = kBatchShapes[kShape].rows;
  constexpr int kPitch = kBatchShapes[kShape].pitch();
  constexpr int kBandPitch = kBatchShapes[kShape].band_pitch();
  constexpr int kBandCenter = kBatchShapes[kShape].band_center();
  constexpr int kBands = 2 * kReach + 1;
  constexpr bool kStaged = kBatchShapes[kShape].stage() > 0;
  constexpr int kStagePitch = kBatchShapes[kShape].stage_pitch();
  const int band_rows = product.band_rows.divisor();
  HalfBits* const bands = shared_memory<HalfBits>();
  HalfBits* const tile = bands + product.channels_of_block * band_rows * 2 * kBandPitch;
  const int channel_pitch = product.images_of_block * product.image_pitch;

  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int channel_group = static_cast<int>(blockIdx.x) / product.chunks;
  const int first_image =
      (static_cast<int>(blockIdx.x) - channel_group * product.chunks) * product.images_of_block;
  const int images = min(product.images_of_block, product.images - first_image);
  const int first_channel = channel_group * product.channels_of_block;
  const int channels = min(product.channels_of_block, product.channels - first_channel);
  const int source_plane = product.source_height * product.source_width;
  const int result_plane = product.result_height * product.result_width;
  const int64_t result_image = static_cast<int64_t>(product.channels) * result_plane;
  const int64_t first_plane = static_cast<int64_t>(first_image) * product.channels + first_channel;
  const HalfBits* const block_source = source + first_plane * source_plane;

  for (int image = warp; image < images; image += kBatchWarps) {
    const HalfBits* run = block_source + static_cast<int64_t>(image) * product.channels * source_plane;
    HalfBits* to = tile + image * product.image_pitch;
    const int elements = channels * source_plane;
    if (product.piece == 8) {
      load_batch_pieces<8>(run, elements / 8, to, channel_pitch, kPitch, product);
    } else if (product.piece == 4) {
      load_batch_pieces<4>(run, elements / 4, to, channel_pitch, kPitch, product);
    } else if (product.piece == 2) {
      load_batch_pieces<2>(run, elements / 2, to, channel_pitch, kPitch, product);
    } else if (product.vector == 8) {
      load_batch_elements<8>(run, elements, to, channel_pitch, kPitch, product);
    } else {
      load_batch_elements<1>(run, elements, to, channel_pitch, kPitch, product);
    }
  }
  commit_copies();
  if (product.has_row_end) {
    const int columns = product.row_end.divisor();
    const int ends = channels * product.images_of_block * product.source_height * columns;
    for (int i = static_cast<int>(threadIdx.x); i < ends; i += kBatchWarps * 32) {
      const int run_row = product.row_end.divide(i);
      const int plane = product.source_rows.divide(run_row);
      const int row = run_row - plane * product.source_height;
      tile[plane * product.image_pitch + row * kPitch + product.source_width + i - run_row * columns] = 0;
    }
  }

  // Copy `odd` of a row of taps has the tap for distance d, from a result to a source, at d + odd +
  // kBandCenter.
  const int taps = product.kernel_height * product.kernel_width;
  const Rounded<T> block_taps = weight + static_cast<int64_t>(first_channel) * taps;
  block_taps.with_numbers([&](const auto* numbers) {
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < channels * band_rows * 2 * kBandPitch;
         i += kBatchWarps * 32) {
      const int row_copy = i / kBandPitch;
      const int tap_column = i - row_copy * kBandPitch - kBandCenter - (row_copy & 1) + product.padding_x;
      const int channel = product.band_rows.divide(row_copy >> 1);
      const int band_row = (row_copy >> 1) - channel * band_rows;
      const int tap = (band_row + product.first_tap_row) * product.kernel_width + tap_column;
      const bool inside = band_row < product.tap_rows && tap_column >= 0 && tap_column < product.kernel_width;
      const int place = channel * taps + (product.flipped ? taps - 1 - tap : tap);
      bands[i] = inside ? bits_of(read_rounded<T>(numbers + place)) : HalfBits(0);
    }
  });
  wait_for_copies<0>();
  __syncthreads();

  // Of images, lane l gives the address of row l % 16 of the octet l / 16. Of a band, lane (g, q) holds
  // distances 2 q - g and the next, from the copy where that begins a word.
  const int g = lane / 4;
  const int q = lane % 4;
  const uint32_t lane_tile =
      shared_address(tile) + (lane % 16 * product.image_pitch + lane / 16 * kOctetSize) * sizeof(HalfBits);
  const HalfBits* const lane_bands = bands + (g & 1) * (kBandPitch + 1) + kBandCenter + 2 * q - g;

  HalfBits* const stage =
      tile + product.channels_of_block * channel_pitch + warp * kBatchImages * kStagePitch;
  const int image_tiles = (images + kBatchImages - 1) / kBatchImages;
  const int group_items = channels * image_tiles;
  const int items = product.row_groups * group_items;
  // Long ones first, and those of a warp now from the front and now from the back of a turn.
  for (int turn = 0; turn * kBatchWarps < items; ++turn) {
    const int item = turn * kBatchWarps + ((turn & 1) != 0 ? kBatchWarps - 1 - warp : warp);
    if (item >= items) continue;
    const int rank = item / group_items;
    const int channel = (item - rank * group_items) / image_tiles;
    const int image_tile = item - rank * group_items - channel * image_tiles;
    const int first_row = row_group(rank, product.row_groups) * kRows;
    const int last_row = min(first_row + kRows, product.result_height) - 1;
    const int begin = max(0, first_row - product.padding_y);
    const int end = min(product.source_height, last_row - product.padding_y + product.kernel_height);
    const uint32_t item_tile =
        lane_tile + (channel * channel_pitch + image_tile * kBatchImages * product.image_pitch) *
                        static_cast<int>(sizeof(HalfBits));
    const int64_t item_plane =
        first_plane + static_cast<int64_t>(image_tile) * kBatchImages * product.channels + channel;
    HalfBits* const item_result = result + item_plane * result_plane + first_row * product.result_width;
    const HalfBits* const item_bands = lane_bands + channel * band_rows * 2 * kBandPitch;
    const float start = bias.or_zero(true, first_channel + channel);

    float sums[kRows][kOctets][4];
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
#pragma unroll
      for (int octet = 0; octet < kOctets; ++octet) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[row][octet][i] = start;
      }
    }
    // Those of row y of results and source row s are ring[(s - begin - (y - first_row)) mod kRows].
    uint32_t ring[kRows][kBands];
    const auto load_bands = [&](int tap_row, uint32_t (&loaded)[kBands]) {
      const int row = tap_row - product.first_tap_row;
      const bool inside = static_cast<unsigned>(row) < static_cast<unsigned>(product.tap_rows);
      const HalfBits* from = item_bands + (inside ? row : product.tap_rows) * 2 * kBandPitch;
#pragma unroll
      for (int band = 0; band < kBands; ++band) {
        loaded[band] = *reinterpret_cast<const uint32_t*>(from + (band - kReach) * kOctetSize);
      }
    };
    const int first_tap_row = begin - first_row + product.padding_y;
#pragma unroll
    for (int row = 1; row < kRows; ++row) load_bands(first_tap_row - row, ring[kRows - row]);

    for (int first_source = begin; first_source < end; first_source += kRows) {
#pragma unroll
      for (int step = 0; step < kRows; ++step) {
        const int source_row = first_source + step;
        if (source_row >= end) break;
        load_bands(source_row - first_row + product.padding_y, ring[step]);
        const uint32_t address = item_tile + source_row * kPitch * static_cast<int>(sizeof(HalfBits));
#pragma unroll
        for (int first = 0; first < kOctets; first += 2) {
          if constexpr (kOctets % 2 == 1) {
            if (first == kOctets - 1) {
              uint32_t octet[2];
              ptx::ldmatrix(octet, address + first * kOctetSize * static_cast<int>(sizeof(HalfBits)));
#pragma unroll
              for (int row = 0; row < kRows; ++row) {
                const uint32_t (&row_bands)[kBands] = ring[(step - row + kRows) % kRows];
#pragma unroll
                for (int to = 0; to < kOctets; ++to) {
                  if (first - to > kReach) continue;
                  multiply_add<T>(sums[row][to], octet[0], octet[1], row_bands[first - to + kReach]);
                }
              }
              continue;
            }
          }
          uint32_t octets[4];
          ptx::ldmatrix(octets, address + first * kOctetSize * static_cast<int>(sizeof(HalfBits)));
#pragma unroll
          for (int row = 0; row < kRows; ++row) {
            const uint32_t (&row_bands)[kBands] = ring[(step - row + kRows) % kRows];
#pragma unroll
            for (int to = 0; to < kOctets; ++to) {
              const int band = first - to + kReach;
              if (band >= 0 && band + 1 < kBands) {
                multiply_add<T>(sums[row][to], octets, row_bands[band], row_bands[band + 1], sums[row][to]);
              } else if (band == -1) {
                multiply_add<T>(sums[row][to], octets[2], octets[3], row_bands[0]);
              } else if (band == kBands - 1) {
                multiply_add<T>(sums[row][to], octets[0], octets[1], row_bands[band]);
              }
            }
          }
        }
      }
    }

    // Where this lane's images have their rows of results: on the way to device memory, or there.
    HalfBits* own[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int image = half * kOctetSize + g;
      own[half] = kStaged ? stage + image * kStagePitch : item_result + image * result_image;
    }
    const int item_images = min(images - image_tile * kBatchImages, kBatchImages);
    bool has_nan = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (half * kOctetSize + g >= item_images) continue;
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        if (first_row + row > last_row) break;
#pragma unroll
        for (int octet = 0; octet < kOctets; ++octet) {
          const int x = octet * kOctetSize + 2 * q;
          if (x >= product.result_width) continue;
          const float low = sums[row][octet][2 * half];
          const float high = sums[row][octet][2 * half + 1];
          has_nan |= low != low || high != high;
          const uint32_t pair = Math::pack(low, high);
          HalfBits* const at = own[half] + row * product.result_width + x;
          if (product.stores_pairs) {
            *reinterpret_cast<uint32_t*>(at) = pair;
          } else {
            at[0] = static_cast<HalfBits>(pair);
            if (x + 1 < product.result_width) at[1] = static_cast<HalfBits>(pair >> 16);
          }
        }
      }
    }
    if (has_nan) {
      for (int i = 0; i < 4 * kOctets * kRows; ++i) {
        const int image = (i & 1) * kOctetSize + g;
        const int x = i / 4 % kOctets * kOctetSize + 2 * q + (i >> 1 & 1);
        const int row = i / (4 * kOctets);
        if (image >= item_images || x >= product.result_width || first_row + row > last_row) continue;
        HalfBits* const at = own[i & 1] + row * product.result_width + x;
        if (!Math::is_nan(*at)) continue;
        const HalfBits* const plane =
            source + (item_plane + static_cast<int64_t>(image) * product.channels) * source_plane;
        *at = Math::from_float(
            sum_of_window<T>(plane, block_taps + channel * taps, start, first_row + row, x, product));
      }
    }
    if constexpr (kStaged) {
      __syncwarp();
      const int run = (last_row + 1 - first_row) * product.result_width;
      for (int image = 0; image < item_images; ++image) {
        const HalfBits* const from = stage + image * kStagePitch;
        HalfBits* const to = item_result + image * result_image;
        if (product.stores_pairs) {
          for (int i = 2 * lane; i < run; i += 64) {
            *reinterpret_cast<uint32_t*>(to + i) = *reinterpret_cast<const uint32_t*>(from + i);
          }
        } else {
          for (int i = lane; i < run; i += 32) to[i] = from[i];
        }
      }
      __syncwarp();
    }
  }
}

struct BatchPlan {
  BatchProduct product;
  int64_t blocks, bytes;
};

BatchPlan plan_of(const Geometry& geometry, bool transposed, const BatchShape& shape, int source_alignment) {
  BatchPlan plan = {};
  BatchProduct& product = plan.product;
  static_cast<HalfWindow&>(product) = half_window(geometry, transposed);
  product.images = static_cast<int>(geometry.batch);
  product.channels = static_cast<int>(geometry.channels);
  const BatchTapRows tap_rows = batch_tap_rows(geometry, transposed);
  product.first_tap_row = tap_rows.first;
  product.tap_rows = tap_rows.count;
  product.band_rows = FastDivisor(product.tap_rows + 1);
  product.row_groups = ceil_divide(product.result_height, shape.rows);
  product.image_pitch = static_cast<int>(batch_image_pitch(geometry, transposed, shape));

  const auto bytes = [&](int64_t channels, int64_t tiles) {
    return batch_bytes(geometry, transposed, shape, channels, tiles * kBatchImages);
  };
  // Of a multiprocessor's shared memory each block takes one KB more than it asks for.
  const Device& device = current_device();
  const int64_t most_bytes =
      std::min<int64_t>(device.shared_of_multiprocessor / shape.blocks - 1024, device.shared_of_block);
  int64_t channels = 1;
  if (std::max(geometry.input_pixels(), geometry.output_pixels()) <= kSmallPlane) {
    channels = std::min<int64_t>(kChannelsOfSmallPlanes, geometry.channels);
    while (channels > 1 && bytes(channels, 1) > most_bytes) --channels;
  }
  const int64_t channel_groups = ceil_divide(geometry.channels, channels);
  const int64_t tiles = ceil_divide<int64_t>(geometry.batch, kBatchImages);
  int64_t chunks =
      std::min(tiles, ceil_divide(int64_t{device.multiprocessors} * shape.blocks, channel_groups));
  while (chunks < tiles && bytes(channels, ceil_divide(tiles, chunks)) > most_bytes) ++chunks;
  const int64_t tiles_of_block = ceil_divide(tiles, chunks);
  product.channels_of_block = static_cast<int>(channels);
  product.images_of_block = static_cast<int>(tiles_of_block * kBatchImages);
  product.chunks = static_cast<int>(ceil_divide(tiles, tiles_of_block));
  plan.blocks = channel_groups * product.chunks;
  plan.bytes = bytes(channels, tiles_of_block);

  product.piece = 8;
  while (product.piece > 1 &&
         (product.source_width % product.piece != 0 || source_alignment % (2 * product.piece) != 0)) {
    product.piece /= 2;
  }
  const int64_t plane = int64_t{product.source_height} * product.source_width;
  product.vector =
      source_alignment == 16 && geometry.channels * plane % 8 == 0 && channels * plane % 8 == 0 ? 8 : 1;
  product.row_pieces = FastDivisor(product.source_width / product.piece);
  product.source_rows = FastDivisor(product.source_height);
  const int row_end = shape.pitch() - product.source_width;
  product.has_row_end = row_end > 0;
  product.row_end = FastDivisor(std::max(1, row_end));
  product.stores_pairs = product.result_width % 2 == 0;
  return plan;
}

template <typename T, int kShape = 0>
void launch(const Correlation<T>& pass, int shape) {
  if constexpr (kShape < std::size(kBatchShapes)) {
    if (shape != kShape) return launch<T, kShape + 1>(pass, shape);
    const auto& [source, weight, bias, result, geometry, layout, transposed, stream] = pass;
    TORCHGRAFT_CHECK(is_aligned(result, 4), pass.name(), ": a result must begin at a multiple of four bytes");
    const BatchPlan plan = plan_of(geometry, transposed, kBatchShapes[kShape], common_alignment(source));
    const auto kernel = bands_batch<T, kShape>;
    require_shared_memory(kernel, plan.bytes, pass.name());
    const auto bits = [](const T* pointer) { return reinterpret_cast<const HalfBits*>(pointer); };
    kernel<<<grid_of(plan.blocks, pass.name()), kBatchWarps * 32, plan.bytes, stream>>>(
        bits(source), weight, bias, reinterpret_cast<HalfBits*>(result), plan.product);
    check_launch(pass.name());
  }
}

}  // namespace

template <typename T>
void launch_bands_batch(const Correlation<T>& pass) {
  launch(pass, batch_shape(pass.geometry, pass.transposed));
}

template void launch_bands_batch(const Correlation<Half>&);
template void launch_bands_batch(const Correlation<BFloat16>&);

}  // namespace torchgraft::depthwise::cuda
