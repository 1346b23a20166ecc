// The steps of a block of bands_large, which large.cu describes: it lays out its channel's taps as bands in
// shared memory, brings one round of images after another there, and each warp multiplies eight units by
// kColumnBlocks blocks of columns.
#pragma once

#include "large_plan.h"

#include "../half_window.cuh"
#include "../kernels.h"

namespace torchgraft::depthwise::cuda {

// The sizes of a dense pass.
struct LargeProduct : HalfWindow {
  int channels, multiplier;  // of the results; result channel c reads source channel c / multiplier
  int images, images_of_round, rounds_of_block, chunks;
  FastDivisor pairs;       // of rows of results of an image
  FastDivisor source_row;  // source_width
  int column_blocks;
  int pitch, odd_rows;  // elements between rows, and rows in front of the odd ones
  int image_pitch;
  int band_pitch;  // elements of one copy of a kernel row

  static constexpr bool kPhased = false;
  __device__ int taps() const { return kernel_height * kernel_width; }
  __device__ int band_rows() const { return kernel_height; }
  __device__ int source_plane() const { return source_height * source_width; }
  __device__ int rows_of_image() const { return result_height; }
  __device__ int columns_of_image() const { return result_width; }
};

// The sizes of a pass with a stride or a dilation. Those of LargeProduct are the sizes of its phases, which
// lie one after another: the phases of an image in the tile, and those of the kernel in the bands.
struct PhasedProduct : LargeProduct {
  PhaseAxis height, width;
  int result_phases, summed_phases;
  int phase_pitch;  // of the tile
  FastDivisor source_step_y, source_step_x;

  static constexpr bool kPhased = true;
  __device__ int taps() const { return height.kernel * width.kernel; }
  __device__ int band_rows() const { return kernel_height * (height.tap_phases() * width.tap_phases()); }
  __device__ int source_plane() const { return height.source * width.source; }
  __device__ int rows_of_image() const { return height.result; }
  __device__ int columns_of_image() const { return width.result; }

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

// Computes one result again, tap by tap.
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
class LargeBlock {
  using Math = HalfMath<T>;
  static constexpr bool kPhased = Product::kPhased;
  static constexpr int kHalfBytes = sizeof(HalfBits);
  static constexpr int kLoads = (kColumnBlocks + kOctets - 1 + 3) / 4;  // of four octets each
  static_assert((4 * kLoads - kOctets) * kOctetSize <= kLargeElementsBehind,
                "the last row is read beyond its end");

  using Sums = float[kColumnBlocks][4];
  using Bands = uint32_t[kOctets];  // of one kernel row, a word each

 public:
  __device__ __forceinline__ LargeBlock(const HalfBits* source, const Rounded<T>& weight,
                                        const Rounded<T>& bias, HalfBits* result, const Product& product)
      : product_(product), bands_(shared_memory<HalfBits>()) {
    zeros_ = bands_ + 2 * product.band_rows() * product.band_pitch;
    tile_ = zeros_ + product.pitch;
    const int channel = static_cast<int>(blockIdx.x) / product.chunks;
    chunk_ = static_cast<int>(blockIdx.x) - channel * product.chunks;
    const int source_plane = product.source_plane();
    result_height_ = product.rows_of_image();
    result_width_ = product.columns_of_image();
    taps_ = weight + static_cast<int64_t>(channel) * product.taps();
    start_ = bias.or_zero(true, channel);
    source_image_ = static_cast<int64_t>(product.channels / product.multiplier) * source_plane;
    result_image_ = static_cast<int64_t>(product.channels) * result_height_ * result_width_;
    source_ = source + channel / product.multiplier * static_cast<int64_t>(source_plane);
    result_ = result + channel * (static_cast<int64_t>(result_height_) * result_width_);
  }

  __device__ __forceinline__ void run() {
    taps_.with_numbers([&](const auto* numbers) { lay_out_bands<T>(product_, numbers, bands_); });
    clear_tile();
    find_operands();
    for (int turn = 0; turn < product_.rounds_of_block; ++turn) {
      const int first_image = (chunk_ * product_.rounds_of_block + turn) * product_.images_of_round;
      if (first_image >= product_.images) return;
      const int images = min(product_.images_of_round, product_.images - first_image);
      load_images(first_image, images);
      multiply_images(first_image, images);
    }
  }

 private:
  // The results that a warp computes at once: eight units by kColumnBlocks blocks of columns.
  struct Item {
    int phase_y, phase_x;  // of the results
    int first_unit;
    int first_block;
    int first_row;     // of the sources under the unit whose rows this lane gives the addresses of
    uint32_t address;  // where that unit's image begins at the first block
    int begin, end;    // rows of sources, counted from first_row, that any of the units needs
  };

  // Clears the row of zeros and the tile behind it, whose padding no image is written to.
  __device__ __forceinline__ void clear_tile() const {
    const int cleared =
        product_.pitch + product_.images_of_round * product_.image_pitch + kLargeElementsBehind;
    for (int i = static_cast<int>(threadIdx.x); i < cleared; i += blockDim.x) zeros_[i] = 0;
  }

  // Finds where this lane reads its operands.
  __device__ __forceinline__ void find_operands() {
    warp_ = static_cast<int>(threadIdx.x) / 32;
    lane_ = static_cast<int>(threadIdx.x) % 32;
    g_ = lane_ / 4;
    q_ = lane_ % 4;
    zero_row_ = shared_address(zeros_) + lane_ / 8 * kOctetSize * sizeof(HalfBits);
    tile_address_ = shared_address(tile_) + lane_ / 8 * kOctetSize * sizeof(HalfBits);
    // A lane holds the pair of taps 2 q - g + 8 o of octet o, from the copy where that is even.
    const int first_tap = 2 * q_ - g_;
    const int odd = first_tap & 1;
    lane_bands_ = bands_ + odd * product_.band_pitch + kOctetSize + odd + first_tap;
    pairs_ = product_.pairs.divisor();
  }

  __device__ __forceinline__ void load_images(int first_image, int images) const {
    __syncthreads();
    for (int image = 0; image < images; ++image) {
      load_plane(product_, plane_of(first_image + image), tile_ + image * product_.image_pitch);
    }
    __syncthreads();
  }

  __device__ __forceinline__ const HalfBits* plane_of(int image) const {
    return source_ + image * source_image_;
  }

  __device__ __forceinline__ void multiply_images(int first_image, int images) const {
    const int units = images * pairs_;
    const int unit_groups = (units + kUnitsOfProduct - 1) / kUnitsOfProduct;
    const int column_groups = (product_.column_blocks + kColumnBlocks - 1) / kColumnBlocks;
    int phases = 1;
    if constexpr (kPhased) phases = product_.result_phases;
    for (int index = warp_; index < unit_groups * column_groups * phases; index += kLargeWarps) {
      const Item item = item_at(index, units, unit_groups, column_groups);
      Sums sums;
      multiply(item, sums);
      store(item, sums, first_image, units);
    }
  }

  __device__ __forceinline__ Item item_at(int index, int units, int unit_groups, int column_groups) const {
    Item item;
    item.phase_y = 0;
    item.phase_x = 0;
    int column_group = index / unit_groups;
    if constexpr (kPhased) {
      const int phase = column_group / column_groups;
      item.phase_y = phase / product_.width.result_phases();
      item.phase_x = phase - item.phase_y * product_.width.result_phases();
      column_group -= phase * column_groups;
    }
    item.first_unit = (kPhased ? index % unit_groups : index - column_group * unit_groups) * kUnitsOfProduct;
    item.first_block = column_group * kColumnBlocks;
    const int unit = min(item.first_unit + lane_ % kUnitsOfProduct, units - 1);
    const int image = product_.pairs.divide(unit);
    item.first_row = 2 * (unit - image * pairs_) - product_.padding_y;
    if constexpr (kPhased) item.first_row += product_.height.shift(item.phase_y);
    item.address =
        tile_address_ + (image * product_.image_pitch + item.first_block * kOctetSize) * sizeof(HalfBits);

    item.begin = max(0, -item.first_row);
    item.end = min(product_.kernel_height + 1, product_.source_height - item.first_row);
#pragma unroll
    for (int step = 1; step < kUnitsOfProduct; step *= 2) {
      item.begin = min(item.begin, __shfl_xor_sync(0xffffffff, item.begin, step));
      item.end = max(item.end, __shfl_xor_sync(0xffffffff, item.end, step));
    }
    return item;
  }

  // Sums the products of all phases that the results are made of.
  __device__ __forceinline__ void multiply(const Item& item, Sums& sums) const {
#pragma unroll
    for (int block = 0; block < kColumnBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[block][i] = start_;
    }
    if constexpr (kPhased) {
      for (int summed = 0; summed < product_.summed_phases; ++summed) {
        // Along each direction there are phases of results or such as are summed, or none.
        const int summed_y = summed / product_.width.summed_phases();
        const int y = item.phase_y + summed_y;
        const int x = item.phase_x + summed - summed_y * product_.width.summed_phases();
        add_phase(item,
                  lane_bands_ + product_.tap_phase(y, x) * product_.kernel_height * 2 * product_.band_pitch,
                  item.address + product_.source_phase(y, x) * product_.phase_pitch * kHalfBytes, sums);
      }
    } else {
      add_phase(item, lane_bands_, item.address, sums);
    }
  }

  // Adds the products of one phase, whose bands and tile begin at `bands` and `tile`. Walks down the sources:
  // the bands of the upper results' kernel row become those of the lower results one row further on.
  __device__ __forceinline__ void add_phase(const Item& item, const HalfBits* bands, uint32_t tile,
                                            Sums& sums) const {
    Bands upper, lower;
    load_bands(bands, item.begin - 1, upper);
    for (int row = item.begin; row < item.end; ++row) {
#pragma unroll
      for (int octet = 0; octet < kOctets; ++octet) lower[octet] = upper[octet];
      load_bands(bands, row, upper);
      add_row(row_address(tile, item.first_row + row), upper, lower, sums);
    }
  }

  // Loads the words of one kernel row, or zeros.
  __device__ __forceinline__ void load_bands(const HalfBits* bands, int row, Bands& loaded) const {
    const bool inside = row >= 0 && row < product_.kernel_height;
    const HalfBits* from = bands + (inside ? row : 0) * 2 * product_.band_pitch;
#pragma unroll
    for (int octet = 0; octet < kOctets; ++octet) {
      const uint32_t word = *reinterpret_cast<const uint32_t*>(from + octet * kOctetSize);
      loaded[octet] = inside ? word : 0u;
    }
  }

  // Where source row `y` of a phase lies in shared memory: even rows before odd ones, zeros outside.
  __device__ __forceinline__ uint32_t row_address(uint32_t tile, int y) const {
    return static_cast<unsigned>(y) < static_cast<unsigned>(product_.source_height)
               ? tile + ((y >> 1) + (y & 1) * product_.odd_rows) * product_.pitch * kHalfBytes
               : zero_row_;
  }

  // Adds the products of one source row of each unit.
  __device__ __forceinline__ void add_row(uint32_t address, const Bands& upper, const Bands& lower,
                                          Sums& sums) const {
    uint32_t octets[kLoads][4];
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      ptx::ldmatrix(octets[load], address + load * 4 * kOctetSize * kHalfBytes);
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

  // Rounds the sums and stores them.
  __device__ __forceinline__ void store(const Item& item, const Sums& sums, int first_image,
                                        int units) const {
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const int unit = item.first_unit + 2 * q_ + side;
      if (unit >= units) continue;
      const int image = product_.pairs.divide(unit);
      const int pair_y = 2 * (unit - image * pairs_);
      HalfBits* to = result_ + (first_image + image) * result_image_;
#pragma unroll
      for (int block = 0; block < kColumnBlocks; ++block) {
        int x = (item.first_block + block) * kOctetSize + g_;
        if constexpr (kPhased) x = product_.width.result_at(item.phase_x, x);
        if (x >= result_width_) continue;
#pragma unroll
        for (int below = 0; below < 2; ++below) {
          int y = pair_y + below;
          if constexpr (kPhased) y = product_.height.result_at(item.phase_y, y);
          if (y >= result_height_) continue;
          HalfBits value = Math::from_float(sums[block][2 * below + side]);
          if (Math::is_nan(value)) value = repaired(first_image + image, y, x);
          to[y * result_width_ + x] = value;
        }
      }
    }
  }

  // Computes a result that came out NaN again, tap by tap.
  __device__ __forceinline__ HalfBits repaired(int image, int y, int x) const {
    float sum;
    if constexpr (kPhased) {
      sum = sum_of_phases<T>(plane_of(image), taps_, start_, y, x, product_.height, product_.width,
                             product_.flipped);
    } else {
      sum = sum_of_window<T>(plane_of(image), taps_, start_, y, x, product_);
    }
    return Math::from_float(sum);
  }

  const Product& product_;
  HalfBits* const bands_;  // in shared memory, like the zeros and the tile
  HalfBits* zeros_;
  HalfBits* tile_;
  int chunk_;
  int result_height_, result_width_;
  Rounded<T> taps_;  // of the channel
  float start_;      // its bias
  int64_t source_image_, result_image_;
  const HalfBits* source_;
  HalfBits* result_;
  int warp_, lane_, g_, q_;  // lane 4 g + q, as the layout of a product's operands names them
  uint32_t zero_row_, tile_address_;
  const HalfBits* lane_bands_;
  int pairs_;
};

}  // namespace torchgraft::depthwise::cuda
