// How the threads of a block of diagonals_nhwc load the columns of a tile, and turn them around.
#pragma once

#include "../kernels.h"
#include "diagonals.cuh"
#include "nhwc_plan.h"

namespace torchgraft::depthwise::cuda {

constexpr int kChannelsOfWarp = 2;
constexpr int kWarpsOfRowGroup = kChannelsOfBlock / kChannelsOfWarp;
constexpr int kLoadThreads = kLoadRows * kChannelsOfBlock / kChannelsOfThread;
static_assert(2 * kLoadThreads == kWarpsOfRowGroup * 32, "half of the threads load one image each");

struct ColumnSource {
  int height, width;
  FastDivisor rows;   // loaded of a plane
  int source_row;     // the first, for band 0
  int source_column;  // of the first octet, for strip 0
  int row;            // where it lies in shared memory
  int plane_rows;     // from plane to plane
  int channel_rows;   // from channel to channel
};

struct NhwcParameters {
  ColumnSource input, grad;
  int batch, channels;
  int load_bytes;     // of one load: sixteen, or as many as addresses are multiples of
  FastDivisor slabs;  // of channels
  int planes;         // images in a tile
  FastDivisor strips, bands;
  int strip_octets, band_rows;
  Chunks chunks;         // of tiles
  FastDivisor segments;  // of a plane
  int kernel_height, kernel_width;
};

// Eight pixels of a thread's channels.
struct Pixels {
  uint4 values[kOctet];
};

// The first `count` of a thread's channels of one pixel, loaded a Part at a time, and zeros.
template <typename Part>
__device__ __forceinline__ uint4 load_channels(const uint16_t* source, int count) {
  if constexpr (std::is_same_v<Part, uint4>) {
    return __ldg(reinterpret_cast<const uint4*>(source));
  } else {
    constexpr int kChannelsOfPart = sizeof(Part) / sizeof(uint16_t);
    Part parts[kChannelsOfThread / kChannelsOfPart];
#pragma unroll
    for (int i = 0; i < kChannelsOfThread; i += kChannelsOfPart) {
      parts[i / kChannelsOfPart] = i < count ? __ldg(reinterpret_cast<const Part*>(source + i)) : Part{};
    }
    uint4 whole;
    static_assert(sizeof(whole) == sizeof(parts));
    memcpy(&whole, parts, sizeof(whole));
    return whole;
  }
}

// Loads a thread's part of a tile, step after step; a step is one octet column.
class ColumnLoader {
 public:
  __device__ ColumnLoader(const NhwcParameters& parameters, const uint16_t* output_grad,
                          const uint16_t* input, int first_channel, int begin, int end)
      : parameters_(parameters),
        is_input_(threadIdx.x < kLoadThreads),
        memory_(is_input_ ? input : output_grad),
        tile_(begin),
        end_(end) {
    const ColumnSource& source = is_input_ ? parameters.input : parameters.grad;
    const int thread = static_cast<int>(threadIdx.x) % kLoadThreads;
    // Lanes of a quarter warp lie in neighbouring rows, and so in different banks when they store.
    const int group = thread / 8 % 2;
    const int row = thread / 16 * 8 + thread % 8;
    plane_ = source.rows.divide(row);
    plane_row_ = row - plane_ * source.rows.divisor();
    channel_ = first_channel + group * kChannelsOfThread;
    loads_ = threadIdx.x < 2 * kLoadThreads && plane_ < parameters.planes;
    target_ = (group * kChannelsOfThread * source.channel_rows + source.row + plane_ * source.plane_rows +
               plane_row_) *
              kOctetBytes;
    height_ = source.height;
    width_ = source.width;
    source_row_ = source.source_row + plane_row_;
    source_column_ = source.source_column;
    channel_bytes_ = source.channel_rows * kOctetBytes;
    enter_tile();  // no chunk is empty
  }

  // Loads the octet column of the next step.
  __device__ void load(Pixels& pixels) {
    if (tile_ == end_) return;
    switch (parameters_.load_bytes) {
      case sizeof(uint4):
        load_in<uint4>(pixels);
        break;
      case sizeof(uint2):
        load_in<uint2>(pixels);
        break;
      case sizeof(uint32_t):
        load_in<uint32_t>(pixels);
        break;
      default:
        load_in<uint16_t>(pixels);
    }
    if (++step_ > parameters_.strip_octets) {
      step_ = 0;
      if (++tile_ < end_) enter_tile();
    }
  }

  // Writes them to shared memory, each channel's eight pixels in one access.
  __device__ void store(const Pixels& pixels, uint32_t input_stage, uint32_t grad_stage) const {
    if (!loads_) return;
    const uint32_t target = (is_input_ ? input_stage : grad_stage) + target_;
#pragma unroll
    for (int channel = 0; channel < kChannelsOfThread; ++channel) {
      const uint32_t half = channel % 2 == 0 ? 0x5410 : 0x7632;
      const auto word = [&](int i) {
        const uint4& value = pixels.values[i];
        return channel < 2 ? value.x : channel < 4 ? value.y : channel < 6 ? value.z : value.w;
      };
      ptx::store_shared(target + channel * channel_bytes_,
                        make_uint4(__byte_perm(word(0), word(1), half), __byte_perm(word(2), word(3), half),
                                   __byte_perm(word(4), word(5), half), __byte_perm(word(6), word(7), half)));
    }
  }

 private:
  template <typename Part>
  __device__ __forceinline__ void load_in(Pixels& pixels) const {
    const int octet = is_input_ ? step_ : step_ - 1;
    const int first = column_ + octet * kOctet;
    const uint16_t* source = row_ + static_cast<int64_t>(first) * parameters_.channels;
    const bool exists = row_exists_ && octet >= 0;
#pragma unroll
    for (int i = 0; i < kOctet; ++i) {
      uint4 value = {};
      if (exists && first + i >= 0 && first + i < width_) {
        value = load_channels<Part>(source + static_cast<int64_t>(i) * parameters_.channels,
                                    parameters_.channels - channel_);
      }
      pixels.values[i] = value;
    }
  }

  __device__ void enter_tile() {
    const int rest = parameters_.strips.divide(tile_);
    const int strip = tile_ - rest * parameters_.strips.divisor();
    const int group = parameters_.bands.divide(rest);
    const int band = rest - group * parameters_.bands.divisor();
    const int image = group * parameters_.planes + plane_;
    const int row = source_row_ + band * parameters_.band_rows;
    row_exists_ =
        loads_ && image < parameters_.batch && channel_ < parameters_.channels && row >= 0 && row < height_;
    column_ = source_column_ + strip * parameters_.strip_octets * kOctet;
    row_ = memory_ + (static_cast<int64_t>(image) * height_ + row) * width_ * parameters_.channels + channel_;
  }

  const NhwcParameters& parameters_;
  const bool is_input_;
  const uint16_t* const memory_;
  int tile_;
  const int end_;
  int step_ = 0;
  int plane_, plane_row_, channel_;
  int height_, width_, source_row_, source_column_;
  uint32_t target_, channel_bytes_;
  bool loads_;
  bool row_exists_ = false;
  int column_ = 0;
  const uint16_t* row_ = nullptr;
};

}  // namespace torchgraft::depthwise::cuda
