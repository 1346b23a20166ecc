// The steps of a block of diagonals_nchw, which nchw.cu describes: it walks through the tiles of its chunk,
// the next one on its way, and each warp adds the products of its taps.
#pragma once

#include "../kernels.h"
#include "diagonals.cuh"
#include "nchw_copies.cuh"

namespace torchgraft::depthwise::cuda {

// A dense weight gradient.
struct NchwParameters {
  using Steps = DenseSteps;
  static constexpr bool kPhased = false;

  TileSource input, grad;
  int batch, channels;
  FastDivisor channel_blocks;
  FastDivisor channels_of_block;
  int planes;  // of one channel in a tile
  FastDivisor strips, bands;
  int strip_columns, band_rows;
  Chunks chunks;                          // of tiles
  FastDivisor segments;                   // of a plane
  FastDivisor octets;                     // of the output gradient in a tile
  FastDivisor splits;                     // warps that share a tile
  FastDivisor row_groups;                 // warps side by side, each with its rows of the kernel
  FastDivisor row_blocks, column_blocks;  // blocks that share a kernel
  int kernel_height, kernel_width, columns_of_block;
  int shift;  // of the windows behind the first octet of input

  __device__ int all_kernel_height() const { return kernel_height; }
  __device__ int all_kernel_width() const { return kernel_width; }
};

// One with a stride or a dilation: all sizes are those of a phase, but for `height` and `width` of a
// TileSource.
struct PhasedNchwParameters : NchwParameters {
  using Steps = PhaseSteps;
  static constexpr bool kPhased = true;

  PhaseAxis height, width;
  FastDivisor tap_phases;  // of a stride: blocks side by side, each with taps of its own
  int summed_phases;       // of a dilation: they are added up by each block

  // Rows of padding that a phase has more than others: its source 0 would lie before the image, and it begins
  // with source 1.
  __device__ int more_padding(int phase_y) const {
    return height.source_steps && phase_y < height.lead ? 1 : 0;
  }
  __device__ PhaseSteps input_steps(int phase_y, int phase_x) const {
    return {height.source_phases(), height.source_at(phase_y, more_padding(phase_y)), width.source_phases(),
            width.source_at(phase_x, 0)};
  }
  __device__ PhaseSteps grad_steps(int phase_y, int phase_x) const {
    return {height.result_phases(), height.result_at(phase_y, more_padding(phase_y)), width.result_phases(),
            width.result_at(phase_x, 0)};
  }

  __device__ int all_kernel_height() const { return height.kernel; }
  __device__ int all_kernel_width() const { return width.kernel; }
};

// The tiles of a chunk, one after another.
struct TileWalker {
  int strip, band, group;

  __device__ TileWalker(const NchwParameters& parameters, int tile) {
    const int rest = parameters.strips.divide(tile);
    strip = tile - rest * parameters.strips.divisor();
    group = parameters.bands.divide(rest);
    band = rest - group * parameters.bands.divisor();
  }

  __device__ void advance(const NchwParameters& parameters) {
    if (++strip < parameters.strips.divisor()) return;
    strip = 0;
    if (++band < parameters.bands.divisor()) return;
    band = 0;
    ++group;
  }
};

template <typename T, typename Block, typename Parameters>
class NchwBlock {
  static constexpr bool kPhased = Parameters::kPhased;
  using Steps = typename Parameters::Steps;

 public:
  __device__ __forceinline__ NchwBlock(const uint16_t* output_grad, const uint16_t* input, float* partial,
                                       const Parameters& parameters)
      : parameters_(parameters), output_grad_(output_grad), input_(input), partial_(partial) {
    find_block();
    find_warp();
    shared_sums_ = shared_memory<float>();
    shared_ = shared_address(shared_sums_);
    stage_bytes_ = parameters.input.bytes + parameters.grad.bytes;
    zeros_ = shared_ + kNchwStages * stage_bytes_;
    input_list_ = zeros_ + kZeroBytes;
    grad_list_ = input_list_ + parameters.input.places * kPlaceBytes;
    channels_ = min(parameters.channels_of_block.divisor(), parameters.channels - first_channel_);
  }

  __device__ __forceinline__ void run() {
    clear_octets(shared_, kNchwStages * stage_bytes_ + kZeroBytes);
    begin_phase(0);
    DiagonalSums<Block> sums = {};
    sum_tiles(sums);
    __syncthreads();
    store_sums(sums, shared_sums_ + warp_ * Block::kFloats);
    __syncthreads();
    store_taps();
  }

 private:
  // Finds what the block owns. Its index counts chunks, then channels, then blocks of taps, which share their
  // tiles, or in phases the memory under them.
  __device__ __forceinline__ void find_block() {
    int rest = static_cast<int>(blockIdx.x);
    const int column_block = rest % parameters_.column_blocks.divisor();
    rest = parameters_.column_blocks.divide(rest);
    const int row_block = rest % parameters_.row_blocks.divisor();
    rest = parameters_.row_blocks.divide(rest);
    if constexpr (kPhased) {
      const int all_channels = parameters_.tap_phases.divide(rest);
      const int phase = rest - all_channels * parameters_.tap_phases.divisor();
      rest = all_channels;
      phase_y_ = phase / parameters_.width.tap_phases();
      phase_x_ = phase - phase_y_ * parameters_.width.tap_phases();
    }
    chunk_ = parameters_.channel_blocks.divide(rest);
    first_channel_ =
        (rest - chunk_ * parameters_.channel_blocks.divisor()) * parameters_.channels_of_block.divisor();
    first_tap_row_ = row_block * parameters_.row_groups.divisor() * Block::kTapRows;
    first_tap_column_ = column_block * parameters_.columns_of_block;
    begin_ = static_cast<int>(chunk_ * parameters_.chunks.units_of_chunk);
    end_ = static_cast<int>(
        min(static_cast<int64_t>(begin_) + parameters_.chunks.units_of_chunk, parameters_.chunks.units));
  }

  // Finds what the warp owns: rows of the kernel of a channel, and every `splits`-th item of a tile.
  __device__ __forceinline__ void find_warp() {
    lane_ = static_cast<int>(threadIdx.x) % 32;
    warp_ = static_cast<int>(threadIdx.x) / 32;
    const int warp_taps = parameters_.splits.divide(warp_);
    split_ = warp_ - warp_taps * parameters_.splits.divisor();
    channel_ = parameters_.row_groups.divide(warp_taps);
    row_group_ = warp_taps - channel_ * parameters_.row_groups.divisor();
  }

  // Lists the places of a phase's copies. `summed` counts the phases that the block adds up.
  __device__ __forceinline__ void begin_phase(int summed) {
    if constexpr (kPhased) {
      const int summed_y = summed / parameters_.width.result_phases();
      const int y = phase_y_ + summed_y;
      const int x = phase_x_ + summed - summed_y * parameters_.width.result_phases();
      input_steps_ = parameters_.input_steps(y, x);
      grad_steps_ = parameters_.grad_steps(y, x);
    }
    list_places(parameters_.input, input_steps_, channels_, parameters_.planes, input_list_);
    list_places(parameters_.grad, grad_steps_, channels_, parameters_.planes, grad_list_);
    __syncthreads();
  }

  // Adds the products of all tiles. Tiles are counted on from phase to phase.
  __device__ __forceinline__ void sum_tiles(DiagonalSums<Block>& sums) {
    TileWalker next(parameters_, begin_);
    int last = end_;
    if constexpr (kPhased) last = begin_ + (end_ - begin_) * parameters_.summed_phases;
    find_operands();
    int next_segments = load(begin_, 0, next);
#pragma unroll 1
    for (int tile = begin_; tile < last; ++tile) {
      ptx::cp_async_wait_all();
      __syncthreads();
      const int stage = (tile - begin_) % kNchwStages;
      const int segments = next_segments;
      if (tile + 1 < last) next_segments = load(tile + 1, (stage + 1) % kNchwStages, next);
      add_tile(sums, segments, stage * stage_bytes_);
    }
  }

  // Finds where this lane reads in the first stage, without octet column and segment.
  __device__ __forceinline__ void find_operands() {
    pair_step_ = 2 * parameters_.input.octet_rows * kOctetBytes;
    first_pair_ = shared_ + (lane_ / 8 % 2 * parameters_.input.octet_rows + lane_ / 16) * kOctetBytes;
    first_last_ = shared_ + ((Block::kOctets - 1) * parameters_.input.octet_rows + lane_ / 8) * kOctetBytes;
    const int grad_row = (parameters_.row_groups.divisor() - 1 - row_group_) * Block::kTapRows + lane_ / 8;
    first_grad_ = shared_ + parameters_.input.bytes + grad_row * kOctetBytes;
  }

  // Begins to copy a tile to a stage, and returns how many segments it has.
  __device__ __forceinline__ int load(int tile, int stage, TileWalker& next) {
    if constexpr (kPhased) {
      const int phase_tile = (tile - begin_) % (end_ - begin_);
      if (tile > begin_ && phase_tile == 0) {
        next = TileWalker(parameters_, begin_);
        begin_phase((tile - begin_) / (end_ - begin_));
      }
    }
    TilePlace place;
    place.first_image = next.group * parameters_.planes;
    place.images = min(parameters_.planes, parameters_.batch - place.first_image);
    place.row = next.band * parameters_.band_rows;
    place.column = next.strip * parameters_.strip_columns + first_tap_column_;
    const uint32_t target = shared_ + stage * stage_bytes_;
    load_image(input_ + int64_t{first_channel_} * parameters_.input.plane, parameters_.input, input_steps_,
               place, parameters_.planes, input_list_, target);
    place.row -= first_tap_row_;
    place.column -= first_tap_column_;
    load_image(output_grad_ + int64_t{first_channel_} * parameters_.grad.plane, parameters_.grad, grad_steps_,
               place, parameters_.planes, grad_list_, target + parameters_.input.bytes);
    const int segments = place.images * parameters_.segments.divisor();
    next.advance(parameters_);
    return segments;
  }

  // Adds the products of a tile: of eight segments by an octet column at a time.
  __device__ __forceinline__ void add_tile(DiagonalSums<Block>& sums, int segments, uint32_t stage) const {
    const int items = ceil_divide(segments, kSegments) * parameters_.octets.divisor();
#pragma unroll 1
    for (int item = split_; item < items; item += parameters_.splits.divisor()) {
      const int segment_group = parameters_.octets.divide(item);
      const int octet = item - segment_group * parameters_.octets.divisor();
      const int lane_segment = segment_group * kSegments + lane_ % kSegments;
      const bool exists = lane_segment < segments;
      const int segment = exists ? lane_segment : 0;
      const int image = parameters_.segments.divide(segment);
      const int row = (segment - image * parameters_.segments.divisor()) * kSegment;
      const int slot = channel_ * parameters_.planes + image;
      const uint32_t input = stage + offset_in(parameters_.input, octet, slot, row);
      const uint32_t grad = stage + offset_in(parameters_.grad, octet, slot, row);
      add_products<T>(sums, exists ? first_pair_ + input : zeros_, exists ? pair_step_ : 0,
                      exists ? first_last_ + input : zeros_, first_grad_ + grad);
    }
  }

  __device__ __forceinline__ static int offset_in(const TileSource& source, int octet, int slot, int row) {
    return (octet * source.octet_rows + slot * source.plane_rows + row) * kOctetBytes;
  }

  // Sums the diagonals of what the warps left in shared memory, and stores the gradients of the block's taps.
  __device__ __forceinline__ void store_taps() const {
    const int columns = min(parameters_.columns_of_block, parameters_.kernel_width - first_tap_column_);
    const int rows =
        min(parameters_.row_groups.divisor() * Block::kTapRows, parameters_.kernel_height - first_tap_row_);
    const int kernel_width = parameters_.all_kernel_width();
    const int64_t taps = static_cast<int64_t>(parameters_.all_kernel_height()) * kernel_width;
    float* to = partial_ + (static_cast<int64_t>(chunk_) * parameters_.channels + first_channel_) * taps;
    for (int i = static_cast<int>(threadIdx.x); i < channels_ * rows * columns;
         i += static_cast<int>(blockDim.x)) {
      const int column = i % columns;
      const int row = i / columns % rows;
      const int channel = i / columns / rows;
      int tap_row = first_tap_row_ + row;
      int tap_column = first_tap_column_ + column;
      if constexpr (kPhased) {
        tap_row = parameters_.height.tap_at(phase_y_, tap_row);
        tap_column = parameters_.width.tap_at(phase_x_, tap_column);
        if (tap_row >= parameters_.height.kernel || tap_column >= kernel_width) continue;
      }
      to[channel * taps + static_cast<int64_t>(tap_row) * kernel_width + tap_column] =
          sum_of_warps(channel, row, column);
    }
  }

  // Adds up what the warps have that share a row of the kernel of a channel.
  __device__ __forceinline__ float sum_of_warps(int channel, int row, int column) const {
    const int group = row / Block::kTapRows;
    const int first_warp =
        (channel * parameters_.row_groups.divisor() + group) * parameters_.splits.divisor();
    float sum = 0;
    for (int other = 0; other < parameters_.splits.divisor(); ++other) {
      sum += diagonal_sum<Block>(shared_sums_ + (first_warp + other) * Block::kFloats,
                                 row - group * Block::kTapRows, parameters_.shift + column);
    }
    return sum;
  }

  const Parameters& parameters_;
  const uint16_t* const output_grad_;
  const uint16_t* const input_;
  float* const partial_;
  // Of the block.
  int phase_y_ = 0, phase_x_ = 0;
  int chunk_, begin_, end_;  // its tiles
  int first_channel_, channels_;
  int first_tap_row_, first_tap_column_;
  // Of the warp.
  int lane_, warp_, split_, channel_, row_group_;
  // In shared memory.
  float* shared_sums_;
  uint32_t shared_, zeros_, input_list_, grad_list_;
  int stage_bytes_;
  uint32_t pair_step_, first_pair_, first_last_, first_grad_;
  Steps input_steps_, grad_steps_;
};

}  // namespace torchgraft::depthwise::cuda
