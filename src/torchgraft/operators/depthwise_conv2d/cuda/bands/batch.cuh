// The steps of a block of bands_batch, which batch.cu describes: it brings its planes and the taps of their
// channels to shared memory, and each warp multiplies one item after another.
#pragma once

#include "batch_plan.h"

#include "../half_window.cuh"
#include "../kernels.h"

namespace torchgraft::depthwise::cuda {

// The sizes of a pass, and how BatchPlan cuts it.
struct BatchProduct : HalfWindow {
  int images, images_of_block, chunks;
  int channels, channels_of_block;
  int first_tap_row, tap_rows;  // those in shared memory
  FastDivisor band_rows;        // rows of taps, and one of zeros
  int row_groups;
  int image_pitch;  // elements of an image in shared memory
  int piece, vector;
  FastDivisor row_pieces;   // pieces of a row; elements, if rows are odd
  FastDivisor source_rows;  // source_height
  FastDivisor row_end;      // columns of the last octet behind the row
  bool has_row_end, stores_pairs;
};

template <typename T, int kShapeIndex>
class BatchBlock {
  using Math = HalfMath<T>;
  static constexpr BatchShape kShape = kBatchShapes[kShapeIndex];
  static constexpr int kOctets = kShape.octets;
  static constexpr int kReach = kShape.reach;
  static constexpr int kRows = kShape.rows;
  static constexpr int kPitch = kShape.pitch();
  static constexpr int kBandPitch = kShape.band_pitch();
  static constexpr int kBandCenter = kShape.band_center();
  static constexpr int kBands = 2 * kReach + 1;
  static constexpr bool kStaged = kShape.stage() > 0;
  static constexpr int kStagePitch = kShape.stage_pitch();
  static constexpr int kThreads = kBatchWarps * 32;
  static constexpr int kOctetBytes = kOctetSize * static_cast<int>(sizeof(HalfBits));

  using Sums = float[kRows][kOctets][4];
  using Bands = uint32_t[kBands];  // of one row of taps, a word each
  using Ring = Bands[kRows];

 public:
  __device__ __forceinline__ BatchBlock(const HalfBits* source, const Rounded<T>& weight,
                                        const Rounded<T>& bias, HalfBits* result, const BatchProduct& product)
      : product_(product),
        source_(source),
        bias_(bias),
        result_(result),
        band_rows_(product.band_rows.divisor()),
        bands_(shared_memory<HalfBits>()),
        tile_(bands_ + product.channels_of_block * band_rows_ * 2 * kBandPitch),
        channel_pitch_(product.images_of_block * product.image_pitch),
        warp_(static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32),
        source_plane_(product.source_height * product.source_width),
        result_plane_(product.result_height * product.result_width) {
    const int channel_group = static_cast<int>(blockIdx.x) / product.chunks;
    const int first_image =
        (static_cast<int>(blockIdx.x) - channel_group * product.chunks) * product.images_of_block;
    images_ = min(product.images_of_block, product.images - first_image);
    first_channel_ = channel_group * product.channels_of_block;
    channels_ = min(product.channels_of_block, product.channels - first_channel_);
    result_image_ = static_cast<int64_t>(product.channels) * result_plane_;
    taps_ = product.kernel_height * product.kernel_width;
    block_taps_ = weight + static_cast<int64_t>(first_channel_) * taps_;
    first_plane_ = static_cast<int64_t>(first_image) * product.channels + first_channel_;
  }

  __device__ __forceinline__ void run() {
    load_images();
    clear_row_ends();
    load_taps();
    wait_for_copies<0>();
    __syncthreads();
    find_operands();

    const int image_tiles = (images_ + kBatchImages - 1) / kBatchImages;
    const int group_items = channels_ * image_tiles;
    const int items = product_.row_groups * group_items;
    // Items with many sources come first. A warp takes its items now from the front and now from the back of
    // a turn.
    for (int turn = 0; turn * kBatchWarps < items; ++turn) {
      const int index = turn * kBatchWarps + ((turn & 1) != 0 ? kBatchWarps - 1 - warp_ : warp_);
      if (index >= items) continue;
      const Item item = item_at(index, group_items, image_tiles);
      Sums sums;
      multiply(item, sums);
      HalfBits* own[2];
      find_own(item, own);
      if (round(item, sums, own)) repair(item, own);
      if constexpr (kStaged) store(item);
    }
  }

 private:
  // The results that a warp computes at once: up to kRows rows of one channel, of sixteen images.
  struct Item {
    int channel;              // of the block
    int image_tile;           // sixteen images of the block
    int first_row, last_row;  // of results
    int begin, end;           // rows of sources under them
    uint32_t tile;            // where this lane reads the channel's images
    const HalfBits* bands;    // and its taps
    float start;              // the channel's bias
  };

  // Brings all planes of the block to shared memory, an image a warp.
  __device__ __forceinline__ void load_images() const {
    const HalfBits* const block_source = source_ + first_plane_ * source_plane_;
    for (int image = warp_; image < images_; image += kBatchWarps) {
      const HalfBits* run = block_source + static_cast<int64_t>(image) * product_.channels * source_plane_;
      HalfBits* to = tile_ + image * product_.image_pitch;
      const int elements = channels_ * source_plane_;
      if (product_.piece == 8) {
        load_pieces<8>(run, elements / 8, to);
      } else if (product_.piece == 4) {
        load_pieces<4>(run, elements / 4, to);
      } else if (product_.piece == 2) {
        load_pieces<2>(run, elements / 2, to);
      } else if (product_.vector == 8) {
        load_elements<8>(run, elements, to);
      } else {
        load_elements<1>(run, elements, to);
      }
    }
    commit_copies();
  }

  // Copies pieces that lie in one row each.
  template <int kElements>
  __device__ __forceinline__ void load_pieces(const HalfBits* run, int pieces, HalfBits* tile) const {
    for (int i = lane_; i < pieces; i += 32) {
      const int row = product_.row_pieces.divide(i);
      const int channel = product_.source_rows.divide(row);
      const int column = (i - row * product_.row_pieces.divisor()) * kElements;
      copy_async<kElements * sizeof(HalfBits)>(
          tile + channel * channel_pitch_ + (row - channel * product_.source_height) * kPitch + column,
          run + i * kElements);
    }
  }

  // Splits vectors up where rows are odd: a vector may hold elements of several rows and channels.
  template <int kElements>
  __device__ __forceinline__ void load_elements(const HalfBits* run, int elements, HalfBits* tile) const {
#pragma unroll 4
    for (int i = lane_ * kElements; i < elements; i += 32 * kElements) {
      const Vector<HalfBits, kElements> vector =
          *reinterpret_cast<const Vector<HalfBits, kElements>*>(run + i);
      const int run_row = product_.row_pieces.divide(i);
      const int channel = product_.source_rows.divide(run_row);
      int column = i - run_row * product_.source_width;
      int row = run_row - channel * product_.source_height;
      HalfBits* to = tile + channel * channel_pitch_ + row * kPitch + column;
#pragma unroll
      for (int element = 0; element < kElements; ++element) {
        *to++ = vector[element];
        if (++column < product_.source_width) continue;
        column = 0;
        to += kPitch - product_.source_width;
        if (++row < product_.source_height) continue;
        row = 0;
        to += channel_pitch_ - product_.source_height * kPitch;
      }
    }
  }

  // Clears the columns of the last octet that lie behind the row.
  __device__ __forceinline__ void clear_row_ends() const {
    if (!product_.has_row_end) return;
    const int columns = product_.row_end.divisor();
    const int ends = channels_ * product_.images_of_block * product_.source_height * columns;
    for (int i = static_cast<int>(threadIdx.x); i < ends; i += kThreads) {
      const int run_row = product_.row_end.divide(i);
      const int plane = product_.source_rows.divide(run_row);
      const int row = run_row - plane * product_.source_height;
      tile_[plane * product_.image_pitch + row * kPitch + product_.source_width + i - run_row * columns] = 0;
    }
  }

  // Copy `odd` of a row of taps has the tap for distance d, from a result to a source, at d + odd +
  // kBandCenter.
  __device__ __forceinline__ void load_taps() const {
    block_taps_.with_numbers([&](const auto* numbers) {
#pragma unroll 4
      for (int i = static_cast<int>(threadIdx.x); i < channels_ * band_rows_ * 2 * kBandPitch;
           i += kThreads) {
        const int row_copy = i / kBandPitch;
        const int tap_column = i - row_copy * kBandPitch - kBandCenter - (row_copy & 1) + product_.padding_x;
        const int channel = product_.band_rows.divide(row_copy >> 1);
        const int band_row = (row_copy >> 1) - channel * band_rows_;
        const int tap = (band_row + product_.first_tap_row) * product_.kernel_width + tap_column;
        const bool inside =
            band_row < product_.tap_rows && tap_column >= 0 && tap_column < product_.kernel_width;
        const int place = channel * taps_ + (product_.flipped ? taps_ - 1 - tap : tap);
        bands_[i] = inside ? bits_of(read_rounded<T>(numbers + place)) : HalfBits(0);
      }
    });
  }

  // Finds where this lane reads its operands, and where its warp gathers results.
  __device__ __forceinline__ void find_operands() {
    g_ = lane_ / 4;
    q_ = lane_ % 4;
    // Of images, lane l gives the address of row l % 16 of the octet l / 16. Of a band, lane (g, q) holds
    // distances 2 q - g and the next, from the copy where that begins a word.
    lane_tile_ = shared_address(tile_) +
                 (lane_ % 16 * product_.image_pitch + lane_ / 16 * kOctetSize) * sizeof(HalfBits);
    lane_bands_ = bands_ + (g_ & 1) * (kBandPitch + 1) + kBandCenter + 2 * q_ - g_;
    stage_ = tile_ + product_.channels_of_block * channel_pitch_ + warp_ * kBatchImages * kStagePitch;
  }

  // The row of results where group `rank` begins. Rows in the middle of the plane have the most taps, and
  // come first.
  __device__ __forceinline__ int first_row_of(int rank) const {
    return (product_.row_groups / 2 + ((rank & 1) != 0 ? -((rank + 1) / 2) : rank / 2)) * kRows;
  }

  __device__ __forceinline__ Item item_at(int index, int group_items, int image_tiles) const {
    Item item;
    const int rank = index / group_items;
    item.channel = (index - rank * group_items) / image_tiles;
    item.image_tile = index - rank * group_items - item.channel * image_tiles;
    item.first_row = first_row_of(rank);
    item.last_row = min(item.first_row + kRows, product_.result_height) - 1;
    item.begin = max(0, item.first_row - product_.padding_y);
    item.end = min(product_.source_height, item.last_row - product_.padding_y + product_.kernel_height);
    item.tile =
        lane_tile_ + (item.channel * channel_pitch_ + item.image_tile * kBatchImages * product_.image_pitch) *
                         static_cast<int>(sizeof(HalfBits));
    item.bands = lane_bands_ + item.channel * band_rows_ * 2 * kBandPitch;
    item.start = bias_.or_zero(true, first_channel_ + item.channel);
    return item;
  }

  // How many of the item's sixteen images exist.
  __device__ __forceinline__ int images_of(const Item& item) const {
    return min(images_ - item.image_tile * kBatchImages, kBatchImages);
  }

  // The plane of the item's first image.
  __device__ __forceinline__ int64_t plane_of(const Item& item) const {
    return first_plane_ + static_cast<int64_t>(item.image_tile) * kBatchImages * product_.channels +
           item.channel;
  }

  // The item's results of its first image, in device memory.
  __device__ __forceinline__ HalfBits* result_of(const Item& item) const {
    return result_ + plane_of(item) * result_plane_ + item.first_row * product_.result_width;
  }

  // Walks down the sources. The bands of row y of results and source row s lie in
  // ring[(s - begin - (y - first_row)) mod kRows].
  __device__ __forceinline__ void multiply(const Item& item, Sums& sums) const {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
#pragma unroll
      for (int octet = 0; octet < kOctets; ++octet) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[row][octet][i] = item.start;
      }
    }
    Ring ring;
    const int first_tap_row = item.begin - item.first_row + product_.padding_y;
#pragma unroll
    for (int row = 1; row < kRows; ++row) load_bands(item, first_tap_row - row, ring[kRows - row]);

    for (int first_source = item.begin; first_source < item.end; first_source += kRows) {
#pragma unroll
      for (int step = 0; step < kRows; ++step) {
        const int source_row = first_source + step;
        if (source_row >= item.end) break;
        load_bands(item, source_row - item.first_row + product_.padding_y, ring[step]);
        const uint32_t address = item.tile + source_row * kPitch * static_cast<int>(sizeof(HalfBits));
#pragma unroll
        for (int first = 0; first < kOctets; first += 2) {
          if constexpr (kOctets % 2 == 1) {
            if (first == kOctets - 1) {
              add_last_octet(address, ring, step, sums);
              continue;
            }
          }
          add_octet_pair(address, first, ring, step, sums);
        }
      }
    }
  }

  // Loads the words of one row of taps, or zeros.
  __device__ __forceinline__ void load_bands(const Item& item, int tap_row, Bands& loaded) const {
    const int row = tap_row - product_.first_tap_row;
    const bool inside = static_cast<unsigned>(row) < static_cast<unsigned>(product_.tap_rows);
    const HalfBits* from = item.bands + (inside ? row : product_.tap_rows) * 2 * kBandPitch;
#pragma unroll
    for (int band = 0; band < kBands; ++band) {
      loaded[band] = *reinterpret_cast<const uint32_t*>(from + (band - kReach) * kOctetSize);
    }
  }

  // Adds the products of two octets of sources, `first` and the next, to the octets of results in reach.
  __device__ __forceinline__ void add_octet_pair(uint32_t address, int first, const Ring& ring, int step,
                                                 Sums& sums) const {
    uint32_t octets[4];
    ptx::ldmatrix(octets, address + first * kOctetBytes);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const Bands& bands = ring[(step - row + kRows) % kRows];
#pragma unroll
      for (int to = 0; to < kOctets; ++to) {
        const int band = first - to + kReach;
        if (band >= 0 && band + 1 < kBands) {
          multiply_add<T>(sums[row][to], octets, bands[band], bands[band + 1], sums[row][to]);
        } else if (band == -1) {
          multiply_add<T>(sums[row][to], octets[2], octets[3], bands[0]);
        } else if (band == kBands - 1) {
          multiply_add<T>(sums[row][to], octets[0], octets[1], bands[band]);
        }
      }
    }
  }

  __device__ __forceinline__ void add_last_octet(uint32_t address, const Ring& ring, int step,
                                                 Sums& sums) const {
    constexpr int kLast = kOctets - 1;
    uint32_t octet[2];
    ptx::ldmatrix(octet, address + kLast * kOctetBytes);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const Bands& bands = ring[(step - row + kRows) % kRows];
#pragma unroll
      for (int to = 0; to < kOctets; ++to) {
        if (kLast - to > kReach) continue;
        multiply_add<T>(sums[row][to], octet[0], octet[1], bands[kLast - to + kReach]);
      }
    }
  }

  // Finds where the two images of this lane have their rows of results: in the stage, or else in device
  // memory.
  __device__ __forceinline__ void find_own(const Item& item, HalfBits* (&own)[2]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int image = half * kOctetSize + g_;
      own[half] = kStaged ? stage_ + image * kStagePitch : result_of(item) + image * result_image_;
    }
  }

  // Rounds the sums and writes them. Returns whether one of this lane's is NaN.
  __device__ __forceinline__ bool round(const Item& item, const Sums& sums, HalfBits* const (&own)[2]) const {
    bool has_nan = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (half * kOctetSize + g_ >= images_of(item)) continue;
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        if (item.first_row + row > item.last_row) break;
#pragma unroll
        for (int octet = 0; octet < kOctets; ++octet) {
          const int x = octet * kOctetSize + 2 * q_;
          if (x >= product_.result_width) continue;
          const float low = sums[row][octet][2 * half];
          const float high = sums[row][octet][2 * half + 1];
          has_nan |= low != low || high != high;
          const uint32_t pair = Math::pack(low, high);
          HalfBits* const at = own[half] + row * product_.result_width + x;
          if (product_.stores_pairs) {
            *reinterpret_cast<uint32_t*>(at) = pair;
          } else {
            at[0] = static_cast<HalfBits>(pair);
            if (x + 1 < product_.result_width) at[1] = static_cast<HalfBits>(pair >> 16);
          }
        }
      }
    }
    return has_nan;
  }

  // Computes this lane's results that are NaN again, tap by tap.
  __device__ __forceinline__ void repair(const Item& item, HalfBits* const (&own)[2]) const {
    for (int i = 0; i < 4 * kOctets * kRows; ++i) {
      const int image = (i & 1) * kOctetSize + g_;
      const int x = i / 4 % kOctets * kOctetSize + 2 * q_ + (i >> 1 & 1);
      const int row = i / (4 * kOctets);
      if (image >= images_of(item) || x >= product_.result_width || item.first_row + row > item.last_row)
        continue;
      HalfBits* const at = own[i & 1] + row * product_.result_width + x;
      if (!Math::is_nan(*at)) continue;
      const HalfBits* const plane =
          source_ + (plane_of(item) + static_cast<int64_t>(image) * product_.channels) * source_plane_;
      *at = Math::from_float(sum_of_window<T>(plane, block_taps_ + item.channel * taps_, item.start,
                                              item.first_row + row, x, product_));
    }
  }

  // Stores the results of the warp from its stage to device memory.
  __device__ __forceinline__ void store(const Item& item) const {
    __syncwarp();
    const int run = (item.last_row + 1 - item.first_row) * product_.result_width;
    for (int image = 0; image < images_of(item); ++image) {
      const HalfBits* const from = stage_ + image * kStagePitch;
      HalfBits* const to = result_of(item) + image * result_image_;
      if (product_.stores_pairs) {
        for (int i = 2 * lane_; i < run; i += 64) {
          *reinterpret_cast<uint32_t*>(to + i) = *reinterpret_cast<const uint32_t*>(from + i);
        }
      } else {
        for (int i = lane_; i < run; i += 32) to[i] = from[i];
      }
    }
    __syncwarp();
  }

  const BatchProduct& product_;
  const HalfBits* const source_;
  const Rounded<T>& bias_;
  HalfBits* const result_;
  const int band_rows_;
  HalfBits* const bands_;  // in shared memory, like the tile and the stage
  HalfBits* const tile_;
  const int channel_pitch_;
  const int warp_, lane_;
  int g_, q_;  // lane 4 g + q, as the layout of a product's operands names them
  const int source_plane_, result_plane_;
  int taps_;
  int images_, channels_;  // of this block
  int first_channel_;
  int64_t result_image_, first_plane_;
  Rounded<T> block_taps_;
  uint32_t lane_tile_;
  const HalfBits* lane_bands_;
  HalfBits* stage_;
};

}  // namespace torchgraft::depthwise::cuda
