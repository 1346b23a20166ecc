// Says how a sliding kernel cuts each problem of standard input, one a line: the kernel's name, and then the
// numbers that are read below. A plan is written as names and numbers. Of the kernels without tensor cores
// it is the parts of a plan that are asked.

#include <iostream>
#include <string>

#include "cuda/slide/columns_plan.h"
#include "cuda/slide/correlate_mma_plan.h"
#include "cuda/slide/weight_grad_mma_plan.h"
#include "plans.h"

namespace {

using namespace torchgraft::depthwise;
using namespace torchgraft::depthwise::cuda;

template <typename Shape>
void plan_correlate(const Geometry& geometry, bool transposed, const SlideDevice& device) {
  const SlideCorrelateMmaPlan plan = plan_slide_correlate_mma<Shape>(geometry, transposed, device);
  const SlideCorrelateMmaCut& cut = plan.cut;
  write("threads", plan.threads, "bytes", plan.shared_bytes, "blocks", plan.blocks, "slices", cut.slices,
        "octets", cut.octets, "tiles", cut.tiles, "pairs", cut.pairs, "images", cut.images, "columns",
        cut.columns, "copied", std::min(cut.columns, cut.source_width), "room",
        plan.threads / (2 * cut.octets) * Shape::kLoadTurns, "ranges", cut.ranges, "granules", cut.granules,
        "granule_rows", cut.granule_rows, "phases", slide_correlate_mma_phases(geometry, transposed),
        "padding_y", cut.padding_y, "most_threads", Shape::kMostThreads, "most_bytes", Shape::kMostBytes);
}

template <typename Shape>
void plan_weight_grad(const Geometry& geometry, const SlideDevice& device) {
  const SlideWeightGradMmaTile tile = SlideWeightGradMmaTiles<Shape>(geometry, device).fastest();
  const Problem problem = {geometry, false, true, 2, 16, true};
  write("supported", supports_slide_weight_grad_mma(problem), "threads", tile.threads, "bytes",
        tile.shared_bytes, "groups", tile.groups, "slabs", tile.slabs, "octets", tile.octets, "tiles",
        tile.tiles, "streams", tile.streams, "ranges", tile.ranges, "rows", tile.rows, "period",
        slide_weight_grad_mma_period(geometry.height), "group_pixels", tile.group_pixels, "most_threads",
        Shape::kThreads);
}

// Rows of a range, of `rows` in all, for so many units and threads.
void plan_columns() {
  int64_t units = 0, at_once = 0;
  int rows = 0;
  std::cin >> units >> rows >> at_once;
  write("rows", column_rows_of_range(units, rows, at_once));
}

// The block for so many groups of channels.
void plan_columns_weight_grad() {
  int groups = 0;
  std::cin >> groups;
  const ColumnBlock block = column_block(groups);
  write("lanes", block.lanes, "slices", block.slices, "strips", block.strips);
}

// The tile of float32 with k = 3 and stride 1, and its ranges of so many units.
void plan_slide_weight_grad(const SlideDevice& device) {
  constexpr int kKernel = 3, kStride = 1, kBytes = 4, kHalo = kKernel - kStride, kBlocks = 2;
  constexpr int kChannels = slide_weight_grad_channels(kKernel);
  constexpr int kColumns = slide_weight_grad_columns(kStride);
  constexpr int kThreads = slide_weight_grad_threads(kKernel);
  int groups = 0, strips = 0;
  int64_t most_blocks = 0, units = 0;
  std::cin >> groups >> strips >> most_blocks >> units;
  const SlideTile tile = choose_slide_tile(
      device, groups, 16, strips, kThreads, kChannels * kBytes, kHalo, kColumns,
      [](int of_block) { return slide_weight_grad_lane_bytes(kKernel, kStride, kBytes, of_block); },
      most_blocks);
  const int ranges = tile.lanes == 0 ? 0 : slide_ranges(device, tile, kThreads * kBlocks, units);
  write("lanes", tile.lanes, "strips", tile.strips, "slices", tile.slices, "tiles", tile.tiles, "bytes",
        tile.shared_bytes, "ranges", ranges);
}

template <int kKernel, int kStride>
void plan(const std::string& kernel, const Geometry& geometry, bool transposed, const SlideDevice& device) {
  if (kernel == "slide_correlate_mma") {
    plan_correlate<SlideCorrelateMmaShape<kKernel, kStride>>(geometry, transposed, device);
  } else {
    plan_weight_grad<SlideWeightGradMmaShape<kKernel, kStride>>(geometry, device);
  }
}

}  // namespace

int main() {
  std::string kernel;
  bool transposed = false;
  SlideDevice device = {};
  Geometry sizes = {};
  sizes.multiplier = 1;
  while (std::cin >> kernel) {
    if (kernel == "slide_columns") {
      plan_columns();
      continue;
    }
    if (kernel == "slide_columns_weight_grad") {
      plan_columns_weight_grad();
      continue;
    }
    std::cin >> device.multiprocessors >> device.shared_of_block >> device.shared_of_multiprocessor;
    if (kernel == "slide_weight_grad") {
      plan_slide_weight_grad(device);
      continue;
    }
    std::cin >> transposed >> sizes.batch >> sizes.channels >> sizes.height >> sizes.width;
    const int64_t longest = longest_side(sizes);
    const bool is_strided = sizes.height.stride == 2;
    const auto of_stride = [&]<int kKernel>(std::integral_constant<int, kKernel>) {
      if (is_strided) return plan<kKernel, 2>(kernel, sizes, transposed, device);
      plan<kKernel, 1>(kernel, sizes, transposed, device);
    };
    if (longest <= 3) {
      of_stride(std::integral_constant<int, 3>{});
    } else if (longest <= 5) {
      of_stride(std::integral_constant<int, 5>{});
    } else {
      of_stride(std::integral_constant<int, 7>{});
    }
  }
}
