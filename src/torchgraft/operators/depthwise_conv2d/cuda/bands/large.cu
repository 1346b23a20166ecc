// Forward and input gradient of large kernels of halves, NCHW planes: band matrices on tensor cores.
//
// A unit is 2 x 8 neighbouring results; eight units, of pairs of rows one below the other and on from image
// to image, are the columns of a product. For source row r under a pair, with kernel row r for its upper
// results and r - 1 for its lower ones,
//   A[(my, g)][k] = tap[r - my][k - g]   B[k][n] = source row r of unit n, column k
// over the 8 + kernel_width - 1 columns that the units' windows span, in octets of columns: products of
// m16n8k16 take two of them, one of m16n8k8 what is left. A block owns one channel and several rounds of
// images. Its taps lie in shared memory twice, set off by one, so that every pair of neighbours of a band is
// one aligned word. A warp owns eight units by kColumnBlocks blocks of columns: what it loads of A (an octet
// a word) serves all of them, and an octet of B, by ldmatrix, up to kOctets of them. Even rows of an image
// lie before its odd ones, so that the eight rows of an ldmatrix, two apart, lie in different banks; rows
// outside the image are one row of zeros.
//
// Bound by products: (64,128,56x56,k31) 80 of m16n8k16 for 128 results, 65 % of them of use, some 0.14 ms at
// the 0.6 of their peak that mma.sync reaches on an H200, where fp32 multiply-adds need 0.75 ms; memory 0.025
// ms.
//
// A stride or a dilation makes several dense convolutions of a pass, its phases (phases.h). A tile then holds
// the phases of an image one after another, and the bands those of the kernel. Which of them a warp takes is
// part of its work where results have phases, and a loop where phases are added up: the forward pass of a
// stride. The inner loop is the same.
//   (64,128,56x56,k31), stride 2, either pass: 4 phases of 16 x 16 taps are a third of the products of stride
//   1, some 0.04 ms; memory 0.016 ms. Dilation 2: as many products for a result as without, some 0.14 ms.
// Pixels come two bytes a thread, each with some 25 instructions: 0.02 ms of that row.
//
// Sums are kept in fp32. A product multiplies the zeros of the band with what lies outside a result's window:
// where that is not finite the result comes out NaN, and every NaN is computed again tap by tap.

#include "../kernels.h"

#include "../half_window.cuh"
#include "../stencil.cuh"
#include "../supports.h"

namespace torchgraft::depthwise::cuda {
namespace {

constexpr int kLargeWarps = 8;
constexpr int kUnitsOfProduct = 8;
// Of shared memory a block.
constexpr int64_t kLargeBytesForTwoBlocks = 48 << 10;

struct LargeProduct : HalfWindow {
  int channels, multiplier;  // of the results; result channel c reads source channel c / multiplier
  int images, images_of_round, rounds_of_block, chunks;
  FastDivisor pairs;       // of rows of results of an image
  FastDivisor source_row;  // source_width
  int column_blocks;
  int pitch, odd_rows;  // elements between rows, and rows in front of the odd ones
  int image_pitch;
  int band_pitch;  // elements of one copy of a kernel row
};

// Of a convolution with stride or dilation: the sizes of LargeProduct are those of its phases, which lie one
// after another: of an image in the tile, and of the kernel in the bands.
struct PhasedProduct : LargeProduct {
  PhaseAxis height, width;
  int result_phases, summed_phases;
  int phase_pitch;  // of the tile
  FastDivisor source_step_y, source_step_x;

  __device__ int source_phase(int y, int x) const {
    return (height.source_steps ? y * width.source_phases() : 0) + (width.source_steps ? x : 0);
  }
  __device__ int tap_phase(int y, int x) const {
    return (height.tap_steps ? y * width.tap_phases() : 0) + (width.tap_steps ? x : 0);
  }
};

// Lays out the bands: copy `odd` of a kernel row has tap column c at c + 8 + odd.
template <typename T, typename Number>
__device__ void lay_out_bands(const LargeProduct& product, const Number* channel_taps, HalfBits* bands) {
  const int taps = product.kernel_height * product.kernel_width;
  for (int i = static_cast<int>(threadIdx.x); i < 2 * product.kernel_height * product.band_pitch;
       i += blockDim.x) {
    const int row_copy = i / product.band_pitch;
    const int column = i - row_copy * product.band_pitch - kOctetSize - (row_copy & 1);
    const int tap = (row_copy >> 1) * product.kernel_width + column;
    const bool inside = column >= 0 && column < product.kernel_width;
    const Number* place = channel_taps + (product.flipped ? taps - 1 - tap : tap);
    bands[i] = inside ? bits_of(read_rounded<T>(place)) : HalfBits(0);
  }
}

// The same of all phases, a warp a row; taps lie further on by the shift of their phase.
template <typename T, typename Number>
__device__ void lay_out_bands(const PhasedProduct& product, const Number* channel_taps, HalfBits* bands) {
  const int taps = product.height.kernel * product.width.kernel;
  const int row_copies = 2 * product.kernel_height * product.height.tap_phases() * product.width.tap_phases();
  for (int row_copy = static_cast<int>(threadIdx.x) / 32; row_copy < row_copies; row_copy += kLargeWarps) {
    const int phase = (row_copy >> 1) / product.kernel_height;
    const int row = (row_copy >> 1) - phase * product.kernel_height;
    const int phase_y = phase / product.width.tap_phases();
    const int phase_x = phase - phase_y * product.width.tap_phases();
    const int tap_row = product.height.tap_at(phase_y, row);
    const int first = kOctetSize + (row_copy & 1) + product.width.shift(phase_x);
    for (int i = static_cast<int>(threadIdx.x) % 32; i < product.band_pitch; i += 32) {
      const int tap_column = product.width.tap_at(phase_x, i - first);
      const int tap = tap_row * product.width.kernel + tap_column;
      const bool inside = i >= first && tap_column < product.width.kernel && tap_row < product.height.kernel;
      const Number* place = channel_taps + (product.flipped ? taps - 1 - tap : tap);
      bands[row_copy * product.band_pitch + i] = inside ? bits_of(read_rounded<T>(place)) : HalfBits(0);
    }
  }
}

// Brings a plane to its tile: even rows before odd ones.
__device__ inline void load_plane(const LargeProduct& product, const HalfBits* plane, HalfBits* tile) {
  HalfBits* to = tile + product.padding_x;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < product.source_height * product.source_width;
       i += kLargeWarps * 32) {
    const int y = product.source_row.divide(i);
    const int x = i - y * product.source_width;
    to[((y >> 1) + (y & 1) * product.odd_rows) * product.pitch + x] = plane[i];
  }
}

// The same, each pixel to its phase.
__device__ inline void load_plane(const PhasedProduct& product, const HalfBits* plane, HalfBits* tile) {
  const PhaseAxis& height = product.height;
  const PhaseAxis& width = product.width;
  const int lead_y = height.source_steps ? height.lead : 0;
  const int lead_x = width.source_steps ? width.lead : 0;
  HalfBits* to = tile + product.padding_x;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < height.source * width.source; i += kLargeWarps * 32) {
    const int image_y = product.source_row.divide(i);
    const int image_x = i - image_y * width.source;
    const int y = product.source_step_y.divide(image_y + lead_y);
    const int x = product.source_step_x.divide(image_x + lead_x);
    const int phase = (image_y + lead_y - y * product.source_step_y.divisor()) * width.source_phases() +
                      image_x + lead_x - x * product.source_step_x.divisor();
    to[phase * product.phase_pitch + ((y >> 1) + (y & 1) * product.odd_rows) * product.pitch + x] = plane[i];
  }
}

// The repair of one result.
template <typename T>
__device__ __noinline__ float sum_of_phases(const HalfBits* plane, Rounded<T> taps, float start, int y, int x,
                                            PhaseAxis height, PhaseAxis width, bool flipped) {
  using Math = HalfMath<T>;
  const int last = height.kernel * width.kernel - 1;
  float sum = start;
  for (int row = 0; row < height.kernel; ++row) {
    const int source_y = height.source_under(y, row);
    if (!is_inside(source_y, height.source)) continue;
    for (int column = 0; column < width.kernel; ++column) {
      const int source_x = width.source_under(x, column);
      if (!is_inside(source_x, width.source)) continue;
      const int tap = row * width.kernel + column;
      sum += taps[flipped ? last - tap : tap] * Math::to_float(plane[source_y * width.source + source_x]);
    }
  }
  return sum;
}

template <typename T, int kOctets, int kColumnBlocks, typename Product>
__global__ void __launch_bounds__(kLargeWarps * 32, 2)
    bands_large(const HalfBits* __restrict__ source, Rounded<T> weight, Rounded<T> bias,
                HalfBits* __restrict__ result, Product product) {
  using Math = HalfMath<T>;
  constexpr bool kPhased = std::is_same_v<Product, PhasedProduct>;
  constexpr int kLoads = (kColumnBlocks + kOctets - 1 + 3) / 4;  // of four octets each
  static_assert((4 * kLoads - kOctets) * kOctetSize <= kLargeElementsBehind,
                "the last row is read beyond its end");
  HalfBits* bands = shared_memory<HalfBits>();
  int band_rows = product.kernel_height;
  if constexpr (kPhased) band_rows *= product.height.tap_phases() * product.width.tap_phases();
  HalfBits* zeros = bands + 2 * band_rows * product.band_pitch;
  HalfBits* tile = zeros + product.pitch;

  const int channel = static_cast<int>(blockIdx.x) / product.chunks;
  const int chunk = static_cast<int>(blockIdx.x) - channel * product.chunks;
  int taps = product.kernel_height * product.kernel_width;
  int source_plane = product.source_height * product.source_width;
  int result_height = product.result_height;
  int result_width = product.result_width;
  if constexpr (kPhased) {
    taps = product.height.kernel * product.width.kernel;
    source_plane = product.height.source * product.width.source;
    result_height = product.height.result;
    result_width = product.width.result;
  }
  const Rounded<T> channel_taps = weight + static_cast<int64_t>(channel) * taps;
  const float start = bias.or_zero(true, channel);
  const int64_t source_image = static_cast<int64_t>(product.channels / product.multiplier) * source_plane;
  const int64_t result_image = static_cast<int64_t>(product.channels) * result_height * result_width;
  const HalfBits* channel_source = source + channel / product.multiplier * static_cast<int64_t>(source_plane);
  HalfBits* channel_result = result + channel * (static_cast<int64_t>(result_height) * result_width);

  channel_taps.with_numbers([&](const auto* numbers) { lay_out_bands<T>(product, numbers, bands); });
  const int cleared = product.pitch + product.images_of_round * product.image_pitch + kLargeElementsBehind;
  for (int i = static_cast<int>(threadIdx.x); i < cleared; i += blockDim.x) zeros[i] = 0;

  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int q = lane % 4;
  const uint32_t zero_row = shared_address(zeros) + lane / 8 * kOctetSize * sizeof(HalfBits);
  const uint32_t tile_address = shared_address(tile) + lane / 8 * kOctetSize * sizeof(HalfBits);
  // Of the pair of taps that a lane holds of octet o: 2 q - g + 8 o, in the copy where that is even.
  const int first_tap = 2 * q - g;
  const int odd = first_tap & 1;
  const HalfBits* lane_bands = bands + odd * product.band_pitch + kOctetSize + odd + first_tap;
  const int pairs = product.pairs.divisor();

  for (int turn = 0; turn < product.rounds_of_block; ++turn) {
    const int first_image = (chunk * product.rounds_of_block + turn) * product.images_of_round;
    if (first_image >= product.images) return;
    const int images = min(product.images_of_round, product.images - first_image);
    __syncthreads();
    for (int image = 0; image < images; ++image) {
      const HalfBits* plane = channel_source + (first_image + image) * source_image;
      load_plane(product, plane, tile + image * product.image_pitch);
    }
    __syncthreads();

    const int units = images * pairs;
    const int unit_groups = (units + kUnitsOfProduct - 1) / kUnitsOfProduct;
    const int column_groups = (product.column_blocks + kColumnBlocks - 1) / kColumnBlocks;
    int phases = 1;
    if constexpr (kPhased) phases = product.result_phases;
    for (int work = warp; work < unit_groups * column_groups * phases; work += kLargeWarps) {
      int phase_y = 0, phase_x = 0;  // of the results
      int column_group = work / unit_groups;
      if constexpr (kPhased) {
        const int phase = column_group / column_groups;
        phase_y = phase / product.width.result_phases();
        phase_x = phase - phase_y * product.width.result_phases();
        column_group -= phase * column_groups;
      }
      const int first_unit =
          (kPhased ? work % unit_groups : work - column_group * unit_groups) * kUnitsOfProduct;
      const int first_block = column_group * kColumnBlocks;
      // The unit whose rows this lane gives the addresses of.
      const int unit = min(first_unit + lane % kUnitsOfProduct, units - 1);
      const int image = product.pairs.divide(unit);
      int first_row = 2 * (unit - image * pairs) - product.padding_y;
      if constexpr (kPhased) first_row += product.height.shift(phase_y);
      const uint32_t image_address =
          tile_address + (image * product.image_pitch + first_block * kOctetSize) * sizeof(HalfBits);

      // Source rows under which any of the units has a row of its image.
      int begin = max(0, -first_row);
      int end = min(product.kernel_height + 1, product.source_height - first_row);
#pragma unroll
      for (int step = 1; step < kUnitsOfProduct; step *= 2) {
        begin = min(begin, __shfl_xor_sync(0xffffffff, begin, step));
        end = max(end, __shfl_xor_sync(0xffffffff, end, step));
      }

      float sums[kColumnBlocks][4];
#pragma unroll
      for (int block = 0; block < kColumnBlocks; ++block) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[block][i] = start;
      }
      // Adds the products of one phase, whose bands and tile begin here.
      const auto add_phase = [&](const HalfBits* phase_bands, uint32_t phase_address) {
        uint32_t upper[kOctets], lower[kOctets];
        const auto load_band = [&](int row, uint32_t (&band)[kOctets]) {
          const bool inside = row >= 0 && row < product.kernel_height;
          const HalfBits* from = phase_bands + (inside ? row : 0) * 2 * product.band_pitch;
#pragma unroll
          for (int octet = 0; octet < kOctets; ++octet) {
            const uint32_t word = *reinterpret_cast<const uint32_t*>(from + octet * kOctetSize);
            band[octet] = inside ? word : 0u;
          }
        };
        load_band(begin - 1, upper);
        for (int row = begin; row < end; ++row) {
#pragma unroll
          for (int octet = 0; octet < kOctets; ++octet) lower[octet] = upper[octet];
          load_band(row, upper);
          const int y = first_row + row;
          const uint32_t address = static_cast<unsigned>(y) < static_cast<unsigned>(product.source_height)
                                       ? phase_address + ((y >> 1) + (y & 1) * product.odd_rows) *
                                                             product.pitch *
                                                             static_cast<int>(sizeof(HalfBits))
                                       : zero_row;
          uint32_t octets[kLoads][4];
#pragma unroll
          for (int load = 0; load < kLoads; ++load) {
            ptx::ldmatrix(octets[load], address + load * 4 * kOctetSize * static_cast<int>(sizeof(HalfBits)));
          }
#pragma unroll
          for (int octet = 0; octet + 1 < kOctets; octet += 2) {
            const uint32_t band[4] = {upper[octet], lower[octet], upper[octet + 1], lower[octet + 1]};
#pragma unroll
            for (int block = 0; block < kColumnBlocks; ++block) {
              const int at = block + octet;
              multiply_add<T>(sums[block], band, octets[at / 4][at % 4], octets[(at + 1) / 4][(at + 1) % 4],
                              sums[block]);
            }
          }
          if constexpr (kOctets % 2 == 1) {
#pragma unroll
            for (int block = 0; block < kColumnBlocks; ++block) {
              const int at = block + kOctets - 1;
              multiply_add<T>(sums[block], upper[kOctets - 1], lower[kOctets - 1], octets[at / 4][at % 4]);
            }
          }
        }
      };
      if constexpr (kPhased) {
        for (int summed = 0; summed < product.summed_phases; ++summed) {
          // Along each direction there are phases of results or such as are summed, or none.
          const int summed_y = summed / product.width.summed_phases();
          const int y = phase_y + summed_y;
          const int x = phase_x + summed - summed_y * product.width.summed_phases();
          add_phase(lane_bands + product.tap_phase(y, x) * product.kernel_height * 2 * product.band_pitch,
                    image_address + product.source_phase(y, x) * product.phase_pitch *
                                        static_cast<int>(sizeof(HalfBits)));
        }
      } else {
        add_phase(lane_bands, image_address);
      }

#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const int result_unit = first_unit + 2 * q + side;
        if (result_unit >= units) continue;
        const int result_image_index = product.pairs.divide(result_unit);
        const int pair_y = 2 * (result_unit - result_image_index * pairs);
        HalfBits* to = channel_result + (first_image + result_image_index) * result_image;
#pragma unroll
        for (int block = 0; block < kColumnBlocks; ++block) {
          int x = (first_block + block) * kOctetSize + g;
          if constexpr (kPhased) x = product.width.result_at(phase_x, x);
          if (x >= result_width) continue;
#pragma unroll
          for (int below = 0; below < 2; ++below) {
            int y = pair_y + below;
            if constexpr (kPhased) y = product.height.result_at(phase_y, y);
            if (y >= result_height) continue;
            HalfBits value = Math::from_float(sums[block][2 * below + side]);
            if (Math::is_nan(value)) {
              const HalfBits* plane = channel_source + (first_image + result_image_index) * source_image;
              float sum;
              if constexpr (kPhased) {
                sum = sum_of_phases<T>(plane, channel_taps, start, y, x, product.height, product.width,
                                       product.flipped);
              } else {
                sum = sum_of_window<T>(plane, channel_taps, start, y, x, product);
              }
              value = Math::from_float(sum);
            }
            to[y * result_width + x] = value;
          }
        }
      }
    }
  }
}

struct LargeProductPlan {
  LargeProduct product;
  PhaseAxis height, width;
  int octets;
  int64_t bytes;
};

LargeProductPlan plan_of(const Geometry& geometry, bool transposed) {
  const PhaseAxis height(geometry.height, transposed);
  const PhaseAxis width(geometry.width, transposed);
  LargeProductPlan plan = {{}, height, width, large_product_octets(geometry, transposed), 0};
  LargeProduct& product = plan.product;
  product.channels = static_cast<int>(geometry.output_channels());
  product.multiplier = static_cast<int>(geometry.multiplier);
  static_cast<HalfWindow&>(product) = {height.phase_source, width.phase_source, height.phase_result,
                                       width.phase_result,  height.padding,     width.padding,
                                       height.phase_kernel, width.phase_kernel, transposed};
  product.images = static_cast<int>(geometry.batch);
  product.pairs = FastDivisor(ceil_divide(product.result_height, 2));
  product.source_row = FastDivisor(width.source);
  product.column_blocks = ceil_divide(product.result_width, kOctetSize);

  product.pitch = static_cast<int>(large_product_pitch(geometry, transposed));
  product.odd_rows = ceil_divide(product.source_height, 2);
  product.image_pitch =
      product.source_height * product.pitch * height.source_phases() * width.source_phases();
  product.band_pitch = (plan.octets + 2) * kOctetSize;
  const auto bytes = [&](int64_t images) { return large_product_bytes(geometry, transposed, images); };
  // As many images as give every warp a group of units, if two blocks of them fit a multiprocessor.
  int images = std::max(1, kLargeWarps * kUnitsOfProduct / product.pairs.divisor());
  images = std::min(images, product.images);
  while (images > 1 && bytes(images) > kLargeBytesForTwoBlocks) --images;
  product.images_of_round = images;
  plan.bytes = bytes(images);
  // Enough blocks to fill the device several times, against the cost of laying out the taps.
  const int64_t blocks = int64_t{current_device().multiprocessors} * 8;
  const int64_t rounds = ceil_divide<int64_t>(product.images, images);
  product.rounds_of_block =
      static_cast<int>(std::max<int64_t>(1, rounds * geometry.output_channels() / blocks));
  product.chunks = static_cast<int>(ceil_divide<int64_t>(rounds, product.rounds_of_block));
  return plan;
}

PhasedProduct phases_of(const LargeProductPlan& plan) {
  const auto& [product, height, width, octets, bytes] = plan;
  return {product,
          height,
          width,
          height.result_phases() * width.result_phases(),
          height.summed_phases() * width.summed_phases(),
          product.source_height * product.pitch,
          FastDivisor(height.source_phases()),
          FastDivisor(width.source_phases())};
}

template <int kOctets, int kColumnBlocks, typename Product, typename T>
void launch(const LargeProductPlan& plan, const Product& product, const Correlation<T>& pass) {
  const auto kernel = bands_large<T, kOctets, kColumnBlocks, Product>;
  require_shared_memory(kernel, plan.bytes, pass.name());
  const auto bits = [](const T* pointer) { return reinterpret_cast<const HalfBits*>(pointer); };
  const int64_t blocks = int64_t{product.channels} * product.chunks;
  kernel<<<grid_of(blocks, pass.name()), kLargeWarps * 32, plan.bytes, pass.stream>>>(
      bits(pass.source), pass.weight, pass.bias, reinterpret_cast<HalfBits*>(pass.result), product);
  check_launch(pass.name());
}

template <int kOctets, typename Product, typename T>
void launch_columns(const LargeProductPlan& plan, const Product& product, const Correlation<T>& pass) {
  if (product.column_blocks <= 2) {
    launch<kOctets, 2>(plan, product, pass);
  } else if (product.column_blocks <= 4) {
    launch<kOctets, 4>(plan, product, pass);
  } else {
    launch<kOctets, 7>(plan, product, pass);
  }
}

}  // namespace

template <typename T>
void launch_bands_large(const Correlation<T>& pass) {
  const LargeProductPlan plan = plan_of(pass.geometry, pass.transposed);
  if (is_unit_step(pass.geometry)) {
    if (plan.octets == 3) return launch_columns<3>(plan, plan.product, pass);
    if (plan.octets == 5) return launch_columns<5>(plan, plan.product, pass);
    return launch_columns<kMostOctets>(plan, plan.product, pass);
  }
  const PhasedProduct product = phases_of(plan);
  if (plan.octets == 2) return launch_columns<2>(plan, product, pass);
  if (plan.octets == 3) return launch_columns<3>(plan, product, pass);
  launch_columns<kMostPhaseOctets>(plan, product, pass);
}

template void launch_bands_large(const Correlation<Half>&);
template void launch_bands_large(const Correlation<BFloat16>&);

}  // namespace torchgraft::depthwise::cuda
