// How diagonals_nchw shares out taps and planes among blocks and warps, and how a block's tiles lie in shared
// memory. Host code alone, so that every limit is tested without a GPU.
#pragma once

#include "../phases.h"
#include "segments.h"

namespace torchgraft::depthwise::cuda {

constexpr int kMostNchwWarps = 4;  // of a block
constexpr int kNchwStages = 2;
constexpr int kPlaceBytes = 8;  // of an entry of the list of places

// The sizes that a plan is made for: a dense convolution, or the phases of another one, all of the size of
// the largest.
struct NchwSizes {
  Geometry geometry;
  int input_alignment, grad_alignment;  // elements that may be copied at once
  int slack;                            // rows of padding that some phases have more
  int tap_phases;
  int64_t most_chunks;
};

// The sizes of a weight gradient whose images begin at multiples of so many bytes. Pixels of phases lie
// apart, and are copied one by one.
inline NchwSizes nchw_sizes(const Geometry& geometry, int input_alignment, int grad_alignment) {
  const PhaseAxis height(geometry.height, /*transposed=*/false);
  const PhaseAxis width(geometry.width, /*transposed=*/false);
  const auto copied_at_once = [](int64_t columns, int alignment) {
    int unit = 8;
    while (columns % unit != 0 || alignment % (unit * 2) != 0) unit /= 2;
    return unit;
  };
  NchwSizes sizes = {geometry,
                     width.source_steps ? 1 : copied_at_once(width.source, input_alignment),
                     width.result_steps ? 1 : copied_at_once(width.result, grad_alignment),
                     height.source_steps && height.lead > 0 ? 1 : 0,
                     height.tap_phases() * width.tap_phases(),
                     most_chunks(geometry, /*channels_last=*/false)};
  sizes.geometry.height = {ceil_divide(height.source, height.source_phases()),
                           height.phase_result,
                           height.phase_kernel,
                           1,
                           height.padding,
                           1};
  sizes.geometry.width = {width.phase_source, width.phase_result, width.phase_kernel, 1, width.padding, 1};
  return sizes;
}

// How one of the two images comes to shared memory. Widths and heights are those of a phase.
struct NchwTile {
  int height, width;              // of a plane
  int plane;                      // elements from plane to plane
  int64_t image;                  // elements from image to image
  int unit, units;                // elements copied at once, and how many of these in a row
  int loaded_rows;                // of a plane, at least one
  int source_row, source_column;  // the first that is loaded for tile 0, perhaps outside the plane
  int row, column;                // where it lies in shared memory
  int plane_rows;                 // of shared memory, from plane to plane
  int octet_rows;                 // from octet to octet; odd, so that these lie in different banks
  int bytes;                      // of a stage
  int places;                     // of copies in a tile of several planes, else 0
  int side_by_side;               // units that one pass of the block copies of a row
  int rows_of_pass;               // and rows
  int passes, rows_beyond;        // the last pass has `rows_beyond` rows, if any
};

struct NchwPlan {
  NchwTile input, grad;
  int channels_of_block;
  int planes;  // of one channel in a tile
  int strips, bands;
  int strip_octets;               // of the output gradient in a tile
  int segments;                   // of a plane in a tile
  int splits;                     // warps that share a tile
  int row_groups;                 // warps side by side, each with its rows of the kernel
  int row_blocks, column_blocks;  // blocks that share a kernel
  int columns_of_block;
  int shift;  // of the windows behind the first octet of input
  int threads;
  size_t bytes;         // of shared memory that a block takes
  int64_t tiles;        // of a channel
  int64_t most_chunks;  // into which they may be cut
  int64_t blocks_of_chunk;
};

// The most elements that are copied at once and still leave windows of `columns` columns within `octets`
// octets; one always does if the kernel is not too wide.
inline int nchw_input_unit(int alignment, int64_t padding, int64_t columns, int octets) {
  for (int unit = alignment; unit > 1; unit /= 2) {
    const int shift = static_cast<int>((unit - padding % unit) % unit);
    if (shift + kOctet - 1 + columns <= octets * kOctet) return unit;
  }
  return 1;
}

// Makes a plan for warps that own the taps of Block, a TapBlock.
template <typename Block>
class NchwPlanner {
 public:
  NchwPlanner(const NchwSizes& sizes, int multiprocessors, int64_t shared_of_block)
      : sizes_(sizes),
        height_(sizes.geometry.height),
        width_(sizes.geometry.width),
        blocks_at_once_(int64_t{multiprocessors} * kBlocksOfMultiprocessor),
        shared_of_block_(shared_of_block),
        output_octets_(static_cast<int>(ceil_divide<int64_t>(width_.output, kOctet))) {}

  NchwPlan plan() {
    share_taps();
    plan_.channels_of_block = plan_.planes = plan_.bands = plan_.strips = 1;
    plan_.strip_octets = output_octets_;
    rows_ = small_planes_whole(height_, tap_rows_, sizes_.slack);
    if (plan_.row_blocks * plan_.column_blocks == 1 && stage_bytes() <= kLargestStageBytes) {
      take_whole_planes();
    } else {
      take_bands_and_strips();
    }
    lay_out_tiles();
    share_copies();
    count_blocks();
    return plan_;
  }

 private:
  static constexpr int kStageBytes = 18 * 1024;
  static constexpr int kLargestStageBytes = 30 * 1024;
  static constexpr int kWarps = 4;  // of a block, if there is a choice
  static constexpr int64_t kBlocksOfMultiprocessor = 5;

  // Which taps blocks and warps own, and how many columns the input is shifted by.
  void share_taps() {
    const int groups = ceil_divide(static_cast<int>(height_.kernel), Block::kTapRows);
    plan_.row_blocks = ceil_divide(groups, kMostNchwWarps);
    plan_.row_groups = ceil_divide(groups, plan_.row_blocks);
    tap_rows_ = plan_.row_groups * Block::kTapRows;
    const int kernel_width = static_cast<int>(width_.kernel);
    plan_.column_blocks = 1;
    plan_.columns_of_block = kernel_width;
    if (kernel_width > Block::most_columns(0)) {
      // Shared among blocks, whole octets each, so that the shift is the same for all.
      constexpr int kMostColumns = Block::most_columns(kOctet - 1) / kOctet * kOctet;
      const int wanted = ceil_divide(kernel_width, kMostColumns);
      plan_.columns_of_block = ceil_divide(ceil_divide(kernel_width, wanted), kOctet) * kOctet;
      plan_.column_blocks = ceil_divide(kernel_width, plan_.columns_of_block);
    }
    plan_.input.unit =
        nchw_input_unit(sizes_.input_alignment, width_.padding, plan_.columns_of_block, Block::kOctets);
    plan_.grad.unit = sizes_.grad_alignment;
    const int padding = static_cast<int>(width_.padding);
    shifted_ = round_up(padding, plan_.input.unit);
    plan_.shift = shifted_ - padding;
  }

  int64_t slots() const { return int64_t{plan_.planes} * plan_.channels_of_block; }
  int input_octets() const { return plan_.strip_octets + Block::kOctets - 1; }
  // Rows of octets of a tile, an odd number, so that octets lie in different banks.
  int64_t input_octet_rows() const { return (slots() * rows_.input_rows) | 1; }
  int64_t grad_octet_rows() const {
    const int64_t least = (slots() - 1) * rows_.grad_rows + rows_.segments * kSegment + tap_rows_ - 1;
    return std::max(slots() * rows_.grad_rows, least) | 1;
  }
  // Of one stage, with tiles as planned so far.
  int64_t input_bytes() const { return input_octet_rows() * input_octets() * kOctetBytes; }
  int64_t grad_bytes() const { return grad_octet_rows() * plan_.strip_octets * kOctetBytes; }
  int64_t stage_bytes() const { return input_bytes() + grad_bytes(); }

  // Tiles of whole planes: as many as fill slices and warps best.
  void take_whole_planes() {
    constexpr int64_t kSmallPlane = 512;
    constexpr int64_t kMostPlanes = 64;
    load_whole_planes();
    // Small planes of neighbouring channels make runs of memory of some length.
    const Geometry& geometry = sizes_.geometry;
    if (std::min(geometry.input_pixels(), geometry.output_pixels()) <= kSmallPlane && plan_.row_groups == 1) {
      plan_.channels_of_block = static_cast<int>(std::min<int64_t>(geometry.channels, kWarps));
      if (!whole_planes_fit()) plan_.channels_of_block = 1;
    }
    plan_.splits = std::max(kWarps / (plan_.channels_of_block * plan_.row_groups), 1);
    int best = 1;
    double best_share = 0;
    for (plan_.planes = 1; plan_.planes <= std::min(geometry.batch, kMostPlanes); ++plan_.planes) {
      if (plan_.planes > 1 && !whole_planes_fit()) break;
      const double share = share_of_use();
      if (share >= best_share) {
        best_share = share;
        best = plan_.planes;
      }
    }
    plan_.planes = best;
  }

  // Which rows and columns of a whole plane are loaded. Columns of shared memory begin `shifted_` columns
  // before the plane.
  void load_whole_planes() {
    NchwTile& input = plan_.input;
    input.loaded_rows = static_cast<int>(height_.input);
    const int first = std::max(-shifted_, 0);
    const int last =
        static_cast<int>(std::min<int64_t>(width_.input, int64_t{kOctet} * input_octets() - shifted_));
    input.source_column = first;
    input.column = first + shifted_;
    input.units = std::max(last - first, 0) / input.unit;
    plan_.grad.units = static_cast<int>(width_.output) / plan_.grad.unit;
  }

  bool whole_planes_fit() const {
    const int64_t places = int64_t{plan_.channels_of_block} * (height_.input * plan_.input.units +
                                                               int64_t{rows_.grad_loaded} * plan_.grad.units);
    return stage_bytes() <= kStageBytes &&
           kNchwStages * stage_bytes() + kZeroBytes + kPlaceBytes * places <= shared_of_block_;
  }

  // The share of slices and of warps' turns that a tile of the planned planes uses.
  double share_of_use() const {
    const int slices = ceil_divide(plan_.planes * rows_.segments, kSegments);
    const int items = slices * output_octets_;
    return static_cast<double>(plan_.planes * rows_.segments) / (slices * kSegments) * items /
           (ceil_divide(items, plan_.splits) * plan_.splits);
  }

  // Tiles of one plane: bands of at most eight segments, cut into strips of octets until a stage is small
  // enough.
  void take_bands_and_strips() {
    const int plane_segments = rows_.segments;
    const int bands = ceil_divide(plane_segments, kSegments);
    rows_ = band_of_plane(height_, tap_rows_, ceil_divide(plane_segments, bands));
    plan_.bands = ceil_divide(plane_segments, rows_.segments);
    // Strips of one octet fit, whatever the kernel.
    constexpr int kMostSegmentRows = kSegments * kSegment;
    constexpr int kMostGradRows = kMostSegmentRows + kMostNchwWarps * Block::kTapRows - 1;
    static_assert(((kMostSegmentRows | 1) * Block::kOctets + (kMostGradRows | 1)) * kOctetBytes <=
                  kLargestStageBytes);
    int strips = 1;
    while (stage_bytes() > kLargestStageBytes) plan_.strip_octets = ceil_divide(output_octets_, ++strips);
    plan_.strips = ceil_divide(output_octets_, plan_.strip_octets);
    plan_.splits = std::max(kWarps / plan_.row_groups, 1);
    NchwTile& input = plan_.input;
    input.loaded_rows = rows_.input_rows;
    input.source_column = -shifted_;
    input.units = input_octets() * kOctet / input.unit;
    plan_.grad.units = plan_.strip_octets * kOctet / plan_.grad.unit;
  }

  void lay_out_tiles() {
    NchwTile& input = plan_.input;
    NchwTile& grad = plan_.grad;
    grad.source_row = rows_.grad_source;
    grad.row = rows_.grad_row;
    grad.loaded_rows = std::max(rows_.grad_loaded, 1);
    if (rows_.grad_loaded == 0) grad.units = 0;
    input.bytes = static_cast<int>(input_bytes());
    grad.bytes = static_cast<int>(grad_bytes());
    input.octet_rows = static_cast<int>(input_octet_rows());
    grad.octet_rows = static_cast<int>(grad_octet_rows());
    input.plane_rows = rows_.input_rows;
    grad.plane_rows = rows_.grad_rows;
    input.height = static_cast<int>(height_.input);
    input.width = static_cast<int>(width_.input);
    grad.height = static_cast<int>(height_.output);
    grad.width = static_cast<int>(width_.output);
    input.plane = static_cast<int>(sizes_.geometry.input_pixels());
    grad.plane = static_cast<int>(sizes_.geometry.output_pixels());
    input.image = sizes_.geometry.channels * sizes_.geometry.input_pixels();
    grad.image = sizes_.geometry.channels * sizes_.geometry.output_pixels();
    if (slots() > 1) {
      input.places = plan_.channels_of_block * input.loaded_rows * input.units;
      grad.places = plan_.channels_of_block * grad.loaded_rows * grad.units;
    }
    plan_.segments = rows_.segments;
  }

  // How the threads of a block share the copies of a tile of one plane.
  void share_copies() {
    plan_.threads = 32 * plan_.channels_of_block * plan_.row_groups * plan_.splits;
    for (NchwTile* tile : {&plan_.input, &plan_.grad}) {
      tile->side_by_side = std::clamp(tile->units, 1, plan_.threads);
      tile->rows_of_pass = plan_.threads / tile->side_by_side;
      tile->passes = tile->loaded_rows / tile->rows_of_pass;
      tile->rows_beyond = tile->loaded_rows % tile->rows_of_pass;
    }
  }

  void count_blocks() {
    const Geometry& geometry = sizes_.geometry;
    plan_.tiles = ceil_divide<int64_t>(geometry.batch, plan_.planes) * plan_.bands * plan_.strips;
    const int64_t channel_blocks = ceil_divide<int64_t>(geometry.channels, plan_.channels_of_block);
    plan_.blocks_of_chunk = channel_blocks * sizes_.tap_phases * plan_.row_blocks * plan_.column_blocks;
    // Tiles of several channels do little each.
    const int64_t wanted = (plan_.channels_of_block > 1 ? 2 : 1) * blocks_at_once_;
    plan_.most_chunks = std::min(sizes_.most_chunks, std::max<int64_t>(wanted / plan_.blocks_of_chunk, 1));
    const size_t stages = size_t{kNchwStages} * (plan_.input.bytes + plan_.grad.bytes) + kZeroBytes +
                          size_t{kPlaceBytes} * (plan_.input.places + plan_.grad.places);
    const size_t sums = size_t(plan_.threads) / 32 * Block::kFloats * sizeof(float);
    plan_.bytes = std::max(stages, sums);
  }

  const NchwSizes& sizes_;
  const Extent& height_;
  const Extent& width_;
  const int64_t blocks_at_once_;
  const int64_t shared_of_block_;
  const int output_octets_;
  int tap_rows_ = 0;  // of all warps of a block
  int shifted_ = 0;   // columns of shared memory before the plane
  SegmentRows rows_ = {};
  NchwPlan plan_ = {};
};

}  // namespace torchgraft::depthwise::cuda
