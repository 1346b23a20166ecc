// How diagonals_nhwc cuts images into tiles, tiles into steps, and both into chunks. Host code alone, so that
// every limit is tested without a GPU.
#pragma once

#include "segments.h"

namespace torchgraft::depthwise::cuda {

constexpr int kChannelsOfBlock = 16;
constexpr int kChannelsOfThread = 8;
constexpr int kLoadRows = 64;  // of an image, in one octet column
constexpr int kInputStages = 3;
constexpr int kGradStages = 2;

// How one of the two images comes to shared memory.
struct NhwcTile {
  int height, width;
  int loaded_rows;    // of a plane, at least one
  int source_row;     // the first, for band 0
  int source_column;  // of the first octet, for strip 0
  int row;            // where it lies in shared memory
  int plane_rows;     // from plane to plane
  int channel_rows;   // from channel to channel
};

struct NhwcPlan {
  NhwcTile input, grad;
  int slabs;     // of channels, one a block
  int planes;    // images in a tile
  int bands;     // of an image
  int segments;  // of a plane in a tile
  int octets;    // of the output gradient in a row
  int strips, strip_octets;
  int64_t tiles;
  int64_t most_chunks;  // into which they may be cut
  int64_t bytes;        // of shared memory, of all stages of a block
};

// Rows of octets that a channel of a tile of so many planes has.
inline int nhwc_input_rows(const SegmentRows& rows, int planes) { return planes * rows.input_rows; }

inline int nhwc_grad_rows(const SegmentRows& rows, int planes, int tap_rows) {
  return std::max(planes * rows.grad_rows, (planes - 1) * rows.grad_rows + rows.input_rows + tap_rows - 1);
}

inline int64_t nhwc_stage_bytes(const SegmentRows& rows, int planes, int tap_rows) {
  const int64_t all_rows = int64_t{kInputStages} * nhwc_input_rows(rows, planes) +
                           int64_t{kGradStages} * nhwc_grad_rows(rows, planes, tap_rows);
  return all_rows * kChannelsOfBlock * kOctetBytes + kZeroBytes;
}

// Makes a plan for blocks whose warps own `tap_rows` rows of the kernel.
class NhwcPlanner {
 public:
  NhwcPlanner(const Geometry& geometry, int tap_rows, int multiprocessors, int64_t shared_of_block)
      : geometry_(geometry),
        tap_rows_(tap_rows),
        multiprocessors_(multiprocessors),
        shared_of_block_(shared_of_block) {}

  NhwcPlan plan() {
    cut_rows();
    lay_out_tiles();
    cut_columns();
    return plan_;
  }

 private:
  // Tiles: as many whole planes as fill eight segments, or bands of one plane.
  void cut_rows() {
    const Extent& height = geometry_.height;
    rows_ = small_planes_whole(height, tap_rows_);
    plan_.planes = 1;
    plan_.bands = 1;
    if (rows_.segments <= kSegments && rows_.grad_loaded <= kLoadRows) {
      const int64_t most = std::min(kSegments / rows_.segments, kLoadRows / std::max(rows_.grad_loaded, 1));
      // With each plane shared memory grows by the same number of bytes, from those of none.
      const int64_t bytes_of_none = nhwc_stage_bytes(rows_, 0, tap_rows_);
      const int64_t fitting =
          (shared_of_block_ - bytes_of_none) / (nhwc_stage_bytes(rows_, 1, tap_rows_) - bytes_of_none);
      plan_.planes = static_cast<int>(std::min(geometry_.batch, std::clamp<int64_t>(fitting, 1, most)));
      plan_.input.loaded_rows = static_cast<int>(height.input);
    } else {
      const int most_segments = std::min((kLoadRows - tap_rows_ + 1) / kSegment, kSegments);
      const int plane_segments = rows_.segments;
      const int bands = ceil_divide(plane_segments, most_segments);
      rows_ = band_of_plane(height, tap_rows_, ceil_divide(plane_segments, bands));
      plan_.bands = ceil_divide(plane_segments, rows_.segments);
      plan_.input.loaded_rows = rows_.input_rows;
    }
    plan_.grad.loaded_rows = std::max(rows_.grad_loaded, 1);
    plan_.segments = rows_.segments;
  }

  void lay_out_tiles() {
    NhwcTile& input = plan_.input;
    NhwcTile& grad = plan_.grad;
    input.height = static_cast<int>(geometry_.height.input);
    input.width = static_cast<int>(geometry_.width.input);
    input.source_column = -static_cast<int>(geometry_.width.padding);
    input.plane_rows = rows_.input_rows;
    input.channel_rows = nhwc_input_rows(rows_, plan_.planes);
    grad.height = static_cast<int>(geometry_.height.output);
    grad.width = static_cast<int>(geometry_.width.output);
    grad.source_row = rows_.grad_source;
    grad.row = rows_.grad_row;
    grad.plane_rows = rows_.grad_rows;
    grad.channel_rows = nhwc_grad_rows(rows_, plan_.planes, tap_rows_);
    plan_.bytes = nhwc_stage_bytes(rows_, plan_.planes, tap_rows_);
  }

  // Strips of as many octets as make least work of a chunk: a strip has a step for each, and one to begin.
  void cut_columns() {
    plan_.octets = static_cast<int>(ceil_divide<int64_t>(geometry_.width.output, kOctet));
    plan_.slabs = ceil_divide(static_cast<int>(geometry_.channels), kChannelsOfBlock);
    const int64_t bands_of_all = ceil_divide<int64_t>(geometry_.batch, plan_.planes) * plan_.bands;
    const int64_t blocks = int64_t{multiprocessors_} * 2;
    plan_.most_chunks =
        std::min(most_chunks(geometry_, /*channels_last=*/true), std::max<int64_t>(blocks / plan_.slabs, 1));
    const auto steps_of_chunk = [&](int strip_octets) {
      const int64_t tiles = bands_of_all * ceil_divide(plan_.octets, strip_octets);
      return ceil_divide(tiles, std::min(tiles, plan_.most_chunks)) * (strip_octets + 1);
    };
    // More would share the work hardly better, and images may be wide.
    constexpr int64_t kTilesOfChunk = 4;
    const int64_t most_strips =
        std::min<int64_t>(plan_.octets / 2, ceil_divide(kTilesOfChunk * plan_.most_chunks, bands_of_all));
    plan_.strip_octets = plan_.octets;
    for (int strips = 2; strips <= most_strips; ++strips) {
      const int strip_octets = ceil_divide(plan_.octets, strips);
      if (steps_of_chunk(strip_octets) < steps_of_chunk(plan_.strip_octets))
        plan_.strip_octets = strip_octets;
    }
    plan_.strips = ceil_divide(plan_.octets, plan_.strip_octets);
    plan_.tiles = bands_of_all * plan_.strips;
  }

  const Geometry& geometry_;
  const int tap_rows_;
  const int multiprocessors_;
  const int64_t shared_of_block_;
  SegmentRows rows_ = {};
  NhwcPlan plan_ = {};
};

}  // namespace torchgraft::depthwise::cuda
