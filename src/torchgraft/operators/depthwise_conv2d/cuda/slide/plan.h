// How the sliding kernels share out a pass among blocks: host code alone, so that tests ask it on any
// machine.
#pragma once

#include "../supports.h"

namespace torchgraft::depthwise::cuda {

// The properties of a device that plans depend on; shared memory in bytes.
struct SlideDevice {
  int multiprocessors;
  int64_t shared_of_block, shared_of_multiprocessor;
};

constexpr double kSlideWarps = 12;  // that a multiprocessor should have

// The number of blocks that are resident at once on a device.
inline int resident_blocks(const SlideDevice& device, int threads, int64_t shared_bytes,
                           int most_threads_resident) {
  constexpr int kReservedBytes = 1024;
  constexpr int kMostBlocks = 16;
  const int64_t blocks =
      std::min({int64_t{kMostBlocks}, int64_t{most_threads_resident / (ceil_divide(threads, 32) * 32)},
                device.shared_of_multiprocessor / (shared_bytes + kReservedBytes)});
  return device.multiprocessors * static_cast<int>(std::max<int64_t>(blocks, 1));
}

// How the sliding kernels without tensor cores cut channels and columns into blocks.
struct SlideTile {
  int lanes, strips;  // of a block
  int slices, tiles;
  int64_t shared_bytes;
};

// The best of with_slide_cuts. No lanes: an image is too wide for any.
template <typename Bytes>
SlideTile choose_slide_tile(const SlideDevice& device, int groups, int piece_bytes, int strips,
                            int most_threads, int group_bytes, int halo, int strip_columns,
                            const Bytes& bytes, int64_t most_blocks = INT32_MAX) {
  SlideTile best = {};
  double best_cost = 0;
  const auto take = [&](const SlideCut& cut) {
    const int slices = ceil_divide(groups, cut.lanes);
    const int lanes = round_up(ceil_divide(groups, slices), cut.granule);
    const int all_tiles = ceil_divide(std::max(strips, cut.strips), cut.strips);
    // Threads in all, lanes that lie idle included; columns read twice; and sectors of memory in part.
    const int warps = ceil_divide(lanes * cut.strips, 32);
    double cost = static_cast<double>(slices) * all_tiles * warps;
    cost *= 1 + 0.5 * halo / (cut.strips * strip_columns);
    const int bytes_of_pixel = lanes * group_bytes;
    if (lanes < groups && bytes_of_pixel < 128) cost *= 1.0 + (128 - bytes_of_pixel) / 256.0;
    // Blocks that may be too few for the device.
    cost *= std::max(
        1.0, device.multiprocessors * kSlideWarps / (static_cast<double>(most_blocks) * slices * warps));
    if (best.lanes == 0 || cost < best_cost) {
      best = {lanes, cut.strips, slices, all_tiles, lanes * cut.lane_bytes};
      best_cost = cost;
    }
  };
  with_slide_cuts(groups, piece_bytes, strips, most_threads, group_bytes, bytes, most_blocks, take);
  return best;
}

// The number of ranges of the units, as many as blocks of the tile are resident at once, but no more than
// `most`.
inline int slide_ranges(const SlideDevice& device, const SlideTile& tile, int most_threads_resident,
                        int64_t most) {
  const int resident =
      resident_blocks(device, tile.lanes * tile.strips, tile.shared_bytes, most_threads_resident);
  return static_cast<int>(std::clamp<int64_t>(resident / (int64_t{tile.slices} * tile.tiles), 1, most));
}

}  // namespace torchgraft::depthwise::cuda
