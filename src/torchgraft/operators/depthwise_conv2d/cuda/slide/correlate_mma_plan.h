// How slide_correlate_mma cuts channels, columns and images into blocks, and rows into ranges: host code
// alone, so that tests ask it on any machine.
#pragma once

#include "../phases.h"
#include "plan.h"

namespace torchgraft::depthwise::cuda {

constexpr int kQuad = 4;   // channels of a warp
constexpr int kOctet = 8;  // channels of a piece of results, which are two warps'

// Everything that is tuned stands here. Taps that a smaller kernel lacks are zero.
template <int kKernelSize, int kStrideSize>
struct SlideCorrelateMmaShape {
  static constexpr int kKernel = kKernelSize;
  static constexpr int kStride = kStrideSize;
  static constexpr int kTiles = 2;                               // of a warp, 16 pairs each
  static constexpr int kMostThreads = kKernel == 3 ? 384 : 256;  // of a block
  static constexpr int kBlocks = 2;                              // resident, of so many threads
  static constexpr int kStages = kStride == 1 ? 8 : 5;           // rows of the ring
  static constexpr int64_t kMostBytes = 96 << 10;                // of a block's shared memory

  static constexpr int kSlices = ceil_divide(kKernel + kStride, 2);
  static constexpr int kWarm = (kKernel - 1) / kStride;  // steps before the first row of results ends
  static constexpr int kWarpPairs = 16 * kTiles;
  // Eight bytes of a row are a thread's, so many times.
  static constexpr int kLoadTurns = kTiles * kStride + 1;
  // Warps copy all columns under their pairs, those too that only the last window reaches, of any image.
  static_assert(2 * kStride * (kWarpPairs - 1) + 2 * kSlices <= 32 * kLoadTurns, "rows are copied in part");
  // A thread stores a pixel's eight channels, which are two warps'.
  static_assert(kTiles <= 2, "one piece of results a thread");
};

// The sizes of a pass, with a dilation of its largest phase, and how they are cut.
struct SlideCorrelateMmaCut {
  int batch, channels;
  int source_height, source_width, result_height, result_width;
  int kernel_height, kernel_width;
  bool flipped;
  int padding_y, padding_x;
  int slices, tiles, ranges;   // blockIdx.x counts slices of channels fastest, and ranges slowest
  int octets;                  // of a slice's channels
  int images;                  // side by side
  int pairs;                   // of results in a row of an image, or of its tile
  int columns;                 // of the sources under them
  int quad_bytes;              // of a row in shared memory, of four channels
  int granules, granule_rows;  // ranges begin at multiples of granule_rows
};

struct SlideCorrelateMmaPlan {
  SlideCorrelateMmaCut cut;
  int threads;
  int64_t shared_bytes, blocks;
};

// The cut of a pass as far as the pass alone decides it.
inline SlideCorrelateMmaCut slide_correlate_mma_sizes(const Geometry& geometry, bool transposed) {
  const PassAxis height(geometry.height, transposed);
  const PassAxis width(geometry.width, transposed);
  SlideCorrelateMmaCut cut = {};
  cut.batch = static_cast<int>(geometry.batch);
  cut.channels = static_cast<int>(geometry.channels);
  cut.source_height = height.source;
  cut.source_width = width.source;
  cut.result_height = height.result;
  cut.result_width = width.result;
  cut.kernel_height = height.kernel;
  cut.kernel_width = width.kernel;
  cut.flipped = transposed;
  cut.padding_y = height.padding;
  cut.padding_x = width.padding;
  if (is_dilated(geometry)) {
    const PhaseAxis phased_height(geometry.height, transposed);
    const PhaseAxis phased_width(geometry.width, transposed);
    cut.source_height = phased_height.phase_source;
    cut.source_width = phased_width.phase_source;
    cut.result_height = phased_height.phase_result;
    cut.result_width = phased_width.phase_result;
    cut.padding_y = phased_height.padding;
    cut.padding_x = phased_width.padding;
  }
  return cut;
}

// The number of dense convolutions that a dilation makes of a pass.
inline int slide_correlate_mma_phases(const Geometry& geometry, bool transposed) {
  if (!is_dilated(geometry)) return 1;
  return PhaseAxis(geometry.height, transposed).result_phases() *
         PhaseAxis(geometry.width, transposed).result_phases();
}

// Chooses how many channels and columns a block owns, by what each choice should cost.
template <typename Shape>
class SlideCorrelateMmaBlocks {
 public:
  SlideCorrelateMmaBlocks(const Geometry& geometry, bool transposed)
      : sizes_(slide_correlate_mma_sizes(geometry, transposed)),
        octets_(sizes_.channels / kOctet),
        pairs_(ceil_divide(sizes_.result_width, 2)) {
    const int64_t largest_image =
        geometry.channels * std::max(geometry.input_pixels(), geometry.output_pixels());
    most_images_ = std::min<int64_t>(geometry.batch, INT32_MAX / largest_image);
  }

  SlideCorrelateMmaPlan cheapest() const {
    SlideCorrelateMmaPlan best = {};
    double best_cost = 0;
    for (int slice_octets = std::min(octets_, Shape::kMostThreads / kOctetThreads); slice_octets > 0;
         --slice_octets) {
      const int slices = ceil_divide(octets_, slice_octets);
      if (ceil_divide(octets_, slices) < slice_octets) continue;
      for (int warps = 1; warps * slice_octets * kOctetThreads <= Shape::kMostThreads; ++warps) {
        const SlideCorrelateMmaPlan plan = of_warps(slices, slice_octets, warps);
        if (plan.shared_bytes > Shape::kMostBytes) continue;
        const double cost = cost_of(plan, warps);
        if (best.threads == 0 || cost < best_cost) {
          best = plan;
          best_cost = cost;
        }
      }
    }
    return best;
  }

 private:
  static constexpr int kOctetThreads = 2 * 32;
  static constexpr int64_t kPieceBytes = 16;

  // A block of `slice_octets` octets of channels, which has `warps` warps along the columns.
  SlideCorrelateMmaPlan of_warps(int slices, int slice_octets, int warps) const {
    const int room = warps * Shape::kWarpPairs;
    SlideCorrelateMmaPlan plan = {sizes_, warps * slice_octets * kOctetThreads, 0, 0};
    SlideCorrelateMmaCut& cut = plan.cut;
    cut.slices = slices;
    cut.octets = slice_octets;
    cut.tiles = ceil_divide(pairs_, room);
    cut.pairs = ceil_divide(pairs_, cut.tiles);
    cut.columns = 2 * Shape::kStride * (cut.pairs - 1) + 2 * Shape::kSlices;
    const int most_copied = warps * 32 * Shape::kLoadTurns;
    cut.images = cut.tiles > 1 ? 1
                               : static_cast<int>(std::min<int64_t>(
                                     most_images_, std::min(room / cut.pairs, most_copied / copied(cut))));
    // An odd number of pieces, so that the same column of neighbouring channels lies in different banks.
    cut.quad_bytes = static_cast<int>((cut.images * cut.columns * 8 / kPieceBytes | 1) * kPieceBytes);
    const int64_t row_bytes = int64_t{2} * slice_octets * cut.quad_bytes;
    const int64_t result_bytes = int64_t{2} * room * (slice_octets | 1) * kPieceBytes;
    plan.shared_bytes = Shape::kStages * row_bytes + 2 * result_bytes;
    return plan;
  }

  int copied(const SlideCorrelateMmaCut& cut) const { return std::min(cut.columns, sizes_.source_width); }

  // The cost counts what is moved: columns of other tiles again, sectors of 32 bytes in part, and pixels in
  // small parts; threads that have nothing to do; and room for blocks that is left over.
  double cost_of(const SlideCorrelateMmaPlan& plan, int warps) const {
    const int slices = plan.cut.slices;
    const int slice_octets = plan.cut.octets;
    const int tiles = plan.cut.tiles;
    const int room = warps * Shape::kWarpPairs;
    double cost = tiles == 1 ? 1.0 : 0.5 + 0.5 * tiles * copied(plan.cut) / sizes_.source_width;
    if (slices > 1 && slice_octets % 2 != 0) cost *= 1 + 0.5 / slice_octets;
    if (slices > 1 && slice_octets < 4) cost *= 1 + (4 - slice_octets) / 16.0;
    const double used =
        (1.0 * octets_ / (slices * slice_octets)) * (1.0 * pairs_ * plan.cut.images / (1.0 * tiles * room));
    cost *= 0.75 + 0.25 / used;
    const int most_threads = Shape::kMostThreads * Shape::kBlocks;
    return cost * (1.2 - 0.2 * (most_threads / plan.threads * plan.threads) / most_threads);
  }

  SlideCorrelateMmaCut sizes_;
  int octets_, pairs_;  // of a pixel, of a row of results
  int64_t most_images_;
};

// Cuts the rows of all images into ranges, as many as blocks are resident at once or fewer.
template <typename Shape>
void cut_slide_correlate_mma_rows(SlideCorrelateMmaPlan& plan, const SlideDevice& device, int phases) {
  SlideCorrelateMmaCut& cut = plan.cut;
  const int64_t blocks_of_range = int64_t{cut.slices} * cut.tiles * phases;
  const int resident =
      resident_blocks(device, plan.threads, plan.shared_bytes, Shape::kMostThreads * Shape::kBlocks);
  const int groups = ceil_divide(cut.batch, cut.images);
  const int rows = groups * cut.result_height;
  cut.ranges = static_cast<int>(std::clamp<int64_t>(resident / blocks_of_range, 1, rows));
  cut.granules = rows;
  cut.granule_rows = 1;
  // Ranges of whole images read no row twice, and may leave some room for blocks empty.
  const int processors = resident_blocks(device, Shape::kMostThreads, 0, Shape::kMostThreads);
  const auto rows_of_processor = [&](int ranges, int granule_rows) {
    const int64_t blocks = blocks_of_range * ranges;
    const int longest = ceil_divide(rows / granule_rows, ranges) * granule_rows;
    const double twice = granule_rows == 1 ? 0.5 * (Shape::kKernel - Shape::kStride) : 0.0;
    const double idle = 1.0 - static_cast<double>(std::min<int64_t>(blocks, resident)) / resident;
    return static_cast<double>(ceil_divide<int64_t>(blocks, processors)) * (longest + twice) *
           (1.0 + 0.3 * idle);
  };
  double fewest_rows = rows_of_processor(cut.ranges, 1);
  constexpr int kMostGroups = 4;  // of a range
  const int most_ranges = cut.ranges;
  for (int groups_of_range = 1; groups_of_range <= kMostGroups; ++groups_of_range) {
    const int ranges = ceil_divide(groups, groups_of_range);
    if (ranges > most_ranges || rows_of_processor(ranges, cut.result_height) >= fewest_rows) continue;
    fewest_rows = rows_of_processor(ranges, cut.result_height);
    cut.ranges = ranges;
    cut.granules = groups;
    cut.granule_rows = cut.result_height;
  }
  plan.blocks = blocks_of_range * cut.ranges;
}

template <typename Shape>
SlideCorrelateMmaPlan plan_slide_correlate_mma(const Geometry& geometry, bool transposed,
                                               const SlideDevice& device) {
  SlideCorrelateMmaPlan plan = SlideCorrelateMmaBlocks<Shape>(geometry, transposed).cheapest();
  cut_slide_correlate_mma_rows<Shape>(plan, device, slide_correlate_mma_phases(geometry, transposed));
  return plan;
}

}  // namespace torchgraft::depthwise::cuda
