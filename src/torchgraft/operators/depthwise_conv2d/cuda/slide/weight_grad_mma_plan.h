// How slide_weight_grad_mma cuts channels, columns and rows into blocks: host code alone, so that tests ask
// it on any machine.
#pragma once

#include "plan.h"

namespace torchgraft::depthwise::cuda {

constexpr int kSlideGroup = 8;  // channels, of one piece of sixteen bytes
constexpr int kSlidePieceBytes = 16;

template <int kKernelSize, int kStrideSize>
struct SlideWeightGradMmaShape {
  static constexpr int kKernel = kKernelSize;
  static constexpr int kStride = kStrideSize;
  // What may be tuned. Threads of a multiprocessor, and so of a block at most: 80, 128, 168 registers each.
  static constexpr int kThreads = kKernel == 3 ? 768 : kKernel == 5 ? 512 : 384;
  // Octets that a warp owns, by pairs: as many as registers hold, for each of them takes a loop's overhead.
  static constexpr int kPairs = kKernel == 3 || (kKernel == 5 && kStride == 1) ? 2 : 1;
  static constexpr int kRows =
      kKernel == 5 && kStride == 1 ? 1 : 2;  // of the output gradient between two barriers
  static constexpr int kStages = kRows == 1 ? 6 : kKernel == 3 ? 3 : 4;  // of so many rows, in shared memory

  static constexpr int kWarm = (kKernel - 1) / kStride;
  static constexpr int kColumnPairs = kKernel / 2;
  static constexpr int kRowPairs = (kKernel + 1) / 2;
  static constexpr int kTaps = kKernel * kKernel;
  static constexpr int kOctetsOfWarp = 2 * kPairs;
  static constexpr int kProducts = kKernel * kColumnPairs + kRowPairs;

  // Pixels of a row of `octets` octets in shared memory, of one phase of the stride and of all.
  static constexpr int phase_pixels(int octets) { return kOctetSize * octets + kWarm; }
  static constexpr int stream_pixels(int octets) { return kStride * phase_pixels(octets); }
};

// How a problem is cut into blocks.
struct SlideWeightGradMmaTile {
  int groups, octets, streams;
  int slabs, tiles, ranges;
  int rows;  // of a stream
  int threads;
  int group_pixels;
  int64_t shared_bytes;
};

// Rows of the output gradient in the sequence of all images, from one to the next: all rows of both lie
// within, and no tap joins the last one to a row of the next image.
inline int64_t slide_weight_grad_mma_period(const Extent& height) {
  return std::max(ceil_divide(height.input + height.padding, height.stride),
                  height.output - 1 + ceil_divide(height.kernel - height.padding, height.stride));
}

// Chooses the cut that should take the fewest clocks.
template <typename Shape>
class SlideWeightGradMmaTiles {
 public:
  SlideWeightGradMmaTiles(const Geometry& geometry, const SlideDevice& device)
      : device_(device),
        groups_(static_cast<int>(ceil_divide<int64_t>(geometry.channels, kSlideGroup))),
        octets_(static_cast<int>(ceil_divide<int64_t>(geometry.width.output, kOctetSize))),
        chunks_(most_chunks(geometry, /*channels_last=*/true)) {
    const int64_t period = slide_weight_grad_mma_period(geometry.height);
    rows_ = geometry.batch * period;
    input_pieces_ = static_cast<double>(geometry.input_pixels()) / static_cast<double>(period);
    grad_pieces_ = static_cast<double>(geometry.output_pixels()) / static_cast<double>(period);
  }

  // No threads: no block fits the device.
  SlideWeightGradMmaTile fastest() const {
    SlideWeightGradMmaTile best = {};
    double best_clocks = 0;
    const auto take = [&](const SlideWeightGradMmaTile& tile) {
      if (tile.shared_bytes > device_.shared_of_block) return;
      const double clocks = clocks_of(tile);
      if (best.threads == 0 || clocks < best_clocks) {
        best_clocks = clocks;
        best = tile;
      }
    };
    for (int groups = 1; groups <= std::min(kMostGroups, groups_); ++groups) {
      // Sectors of memory are 32 bytes.
      if (groups > 1 && groups % 2 == 1 && groups != groups_) continue;
      const int most_octets = kMostWarps / groups * Shape::kOctetsOfWarp;
      const int fewest = ceil_divide(octets_, most_octets);
      const int most_tiles = static_cast<int>(std::min<int64_t>(octets_, chunks_));
      for (int wanted = fewest; wanted <= most_tiles; ++wanted) {
        if (wanted > fewest + kMostTiles && best.threads > 0) break;
        const int octets = ceil_divide(octets_, wanted);
        for (int streams = 1; streams <= kMostStreams && streams * octets <= most_octets; ++streams) {
          take(tile_of(groups, octets, streams));
        }
      }
    }
    return best;
  }

 private:
  static constexpr int kMostGroups = 8;  // of a block
  static constexpr int kMostStreams = 8;
  static constexpr int kMostTiles = 3;  // beyond the fewest
  static constexpr int kMostWarps = Shape::kThreads / 32;
  static_assert(kMostWarps * Shape::kOctetsOfWarp * kOctetSize >= kDiagonalColumns);

  // The cut into blocks of so many groups of channels, and octets of each of so many streams.
  SlideWeightGradMmaTile tile_of(int groups, int octets, int streams) const {
    const int slots = ceil_divide(streams * octets, Shape::kOctetsOfWarp) * Shape::kOctetsOfWarp;
    const int warps = groups * slots / Shape::kOctetsOfWarp;
    SlideWeightGradMmaTile tile = {};
    tile.groups = groups;
    tile.octets = octets;
    tile.streams = streams;
    tile.slabs = ceil_divide(groups_, groups);
    tile.tiles = ceil_divide(octets_, octets);
    tile.threads = warps * 32;
    tile.group_pixels = Shape::kStride * streams * Shape::stream_pixels(octets) + slots * kOctetSize;
    // Groups of a pixel lie in different banks.
    const int bank = groups == 1 ? 0 : groups == 2 ? 4 : groups <= 4 ? 2 : 1;
    while (tile.group_pixels % 8 != bank) ++tile.group_pixels;
    tile.shared_bytes =
        std::max(int64_t{Shape::kStages} * Shape::kRows * groups * tile.group_pixels * kSlidePieceBytes,
                 int64_t{warps} * Shape::kTaps * kSlideGroup * int64_t{sizeof(float)});
    const int64_t cuts = int64_t{tile.slabs} * tile.tiles;
    const int64_t most_ranges = std::min(chunks_ / tile.tiles, ceil_divide<int64_t>(rows_, streams));
    tile.ranges = static_cast<int>(
        std::clamp<int64_t>(resident(tile) * device_.multiprocessors / cuts, 1, most_ranges));
    tile.rows = static_cast<int>(ceil_divide(rows_, int64_t{tile.ranges} * streams));
    return tile;
  }

  // Blocks of a multiprocessor. A device that grants a block its shared memory runs one.
  int64_t resident(const SlideWeightGradMmaTile& tile) const {
    constexpr int kReservedBytes = 1024;  // of shared memory, a block
    return std::clamp<int64_t>(device_.shared_of_multiprocessor / (tile.shared_bytes + kReservedBytes), 1,
                               kMostWarps / (tile.threads / 32));
  }

  double clocks_of(const SlideWeightGradMmaTile& tile) const {
    constexpr double kProductClocks = 1.6;    // a multiprocessor
    constexpr double kStepClocks = 250;       // of a barrier, copies and loads that a block's warps wait for
    constexpr double kBytesOfClock = 17.75;   // that memory brings a multiprocessor
    constexpr double kMostBytesOfClock = 32;  // that one can take
    constexpr double kShortestRun = 2, kShortRun = 1.15;  // times as long as others, of one and two groups
    constexpr double kNotHidden = 0.25;                   // of the shorter of products and memory
    const int warps = tile.threads / 32;
    const int64_t multiprocessors = device_.multiprocessors;
    const int64_t blocks = int64_t{tile.slabs} * tile.tiles * tile.ranges;
    const int64_t waves = ceil_divide(blocks, resident(tile) * multiprocessors);
    const double together = static_cast<double>(ceil_divide(ceil_divide(blocks, waves), multiprocessors));
    // Runs of 16 and 32 bytes take longer.
    const double run = tile.groups == groups_ ? 1
                       : tile.groups == 1     ? kShortestRun
                       : tile.groups == 2     ? kShortRun
                                              : 1;
    const double halo = tile.tiles == 1 ? 0 : (Shape::kKernel - Shape::kStride) * Shape::kStride;
    const double step_bytes = run * kSlidePieceBytes * tile.groups * tile.streams *
                              ((input_pieces_ + grad_pieces_) / tile.tiles + halo);
    const double products = together * warps * Shape::kPairs * Shape::kProducts * kProductClocks +
                            kStepClocks / Shape::kRows / together;
    const double memory =
        std::max(together * step_bytes / kMostBytesOfClock,
                 static_cast<double>(blocks) / waves / device_.multiprocessors * step_bytes / kBytesOfClock);
    return static_cast<double>(waves * (tile.rows + Shape::kWarm + Shape::kRows * Shape::kStages)) *
           (std::max(products, memory) + kNotHidden * std::min(products, memory));
  }

  SlideDevice device_;
  int groups_, octets_;                // of a pixel, of a row of the output gradient
  int64_t rows_;                       // of the sequence of all images
  int64_t chunks_;                     // of partial sums, at most
  double input_pieces_, grad_pieces_;  // that are read, for a row of the output gradient
};

}  // namespace torchgraft::depthwise::cuda
