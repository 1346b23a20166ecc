// Says how a sliding kernel cuts each problem of standard input, one a line: the kernel's name, and then the
// numbers that are read below. A plan is written as names and numbers.

#include <iostream>
#include <string>

#include "cuda/slide/correlate_mma_plan.h"
#include "cuda/slide/weight_grad_mma_plan.h"

namespace {

using namespace torchgraft::depthwise;
using namespace torchgraft::depthwise::cuda;

std::istream& operator>>(std::istream& in, Extent& extent) {
  return in >> extent.input >> extent.output >> extent.kernel >> extent.stride >> extent.padding >>
         extent.dilation;
}

template <typename... Values>
void write(const Values&... values) {
  bool is_name = true;
  ((std::cout << values << (is_name ? '=' : ' '), is_name = !is_name), ...);
  std::cout << '\n';
}

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
  while (std::cin >> kernel >> transposed >> device.multiprocessors >> device.shared_of_block >>
         device.shared_of_multiprocessor >> sizes.batch >> sizes.channels >> sizes.height >> sizes.width) {
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
