// Says how depthwise_conv2d's kernels of rows cut their work, for each line of standard input, as
// `name=number` pairs. A line is "window", "spread", "gathers", "weight_grad", "nhwc", "nhwc_gathers" or
// "nhwc_weight_grad", and then the batch, channels, length, kernel, stride, padding on both sides, dilation,
// and bytes of an element.

#include "cuda/rows/supports.h"

#include <iostream>
#include <string>

int main() {
  using namespace torchgraft::depthwise;
  std::string kind;
  int64_t batch, channels, length, kernel, stride, padding, dilation;
  int element_bytes;
  while (std::cin >> kind >> batch >> channels >> length >> kernel >> stride >> padding >> dilation >>
         element_bytes) {
    const int64_t output = (length + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1;
    const Extent extent = {length, output, kernel, stride, padding, dilation};
    if (kind == "window") {
      const cuda::PassAxis axis(extent, false);
      const int vector = cuda::kRowVectorBytes / element_bytes;
      const int own = cuda::has_long_windows(axis) ? 16 : 8;
      const int shift = axis.result % vector == 0 ? 0 : vector - 1;
      const auto plan = cuda::plan_rows_window(axis, batch * channels, own, shift, element_bytes, 132);
      std::cout << "own=" << own << " threads=" << plan.threads << " rows=" << plan.rows
                << " chunks=" << plan.chunks << " segments=" << plan.segments << " pitch=" << plan.pitch
                << " bytes=" << plan.shared_bytes << '\n';
    } else if (kind == "weight_grad") {
      const auto plan = cuda::plan_rows_weight_grad(extent, batch, element_bytes);
      std::cout << "taps=" << plan.taps << " own=" << plan.own << " groups=" << plan.groups
                << " lanes=" << plan.lanes << " rows=" << plan.rows << " outputs=" << plan.outputs
                << " segments=" << plan.segments << " sources=" << plan.sources << " tiles=" << plan.tiles
                << " bytes=" << plan.shared_bytes << '\n';
    } else if (kind == "nhwc_weight_grad") {
      const Geometry geometry = {batch, channels, 1, {1, 1, 1, 1, 0, 1}, extent};
      const cuda::PixelTaps taps(extent);
      const int channels_of_lane = channels % 4 == 0 ? 4 : channels % 2 == 0 ? 2 : 1;
      const cuda::PixelWeightGradPlan plan(geometry, taps, channels_of_lane, 132,
                                           cuda::most_chunks(geometry, true));
      const int step = cuda::SharingSteps(extent, false).results;
      std::cout << "owned=" << taps.owned << " groups=" << taps.groups() << " runs=" << taps.runs
                << " step=" << step << " lanes=" << plan.lanes.lanes
                << " channel_groups=" << plan.lanes.groups << " own=" << channels_of_lane
                << " groups_of_block=" << plan.groups_of_block << " group_blocks=" << plan.group_blocks
                << " classes=" << plan.classes << " stretch=" << plan.stretch
                << " stretches=" << plan.stretches << " units=" << plan.units
                << " units_of_chunk=" << plan.units_of_chunk << " chunks=" << plan.chunks
                << " most_chunks=" << cuda::most_chunks(geometry, true) << '\n';
    } else if (kind == "nhwc" || kind == "nhwc_gathers") {
      const bool transposed = kind == "nhwc_gathers";
      const cuda::SharingSteps steps(extent, transposed);
      const int results = static_cast<int>(transposed ? length : output);
      for (const int own : {4, 8}) {
        const cuda::PixelUnits units(results, steps.results, own);
        std::cout << "classes" << own << "=" << units.classes << " groups" << own << "=" << units.groups
                  << " ";
      }
      const int most = cuda::most_pixel_lanes(kernel, 4);
      const auto lanes = cuda::pixel_lanes((channels + 3) / 4, most);
      std::cout << "step=" << steps.results << " sources=" << steps.sources << " taps=" << steps.taps
                << " most=" << most << " lanes=" << lanes.lanes << " channel_groups=" << lanes.groups
                << " bytes=" << 4 * kernel * cuda::pixel_pitch(lanes.lanes, 4)
                << " one=" << cuda::owns_one_result(extent, transposed) << '\n';
    } else {
      const auto plan = cuda::plan_rows_spread(extent, kind == "gathers", element_bytes);
      std::cout << "lanes=" << plan.lanes << " rows=" << plan.rows << " results=" << plan.results
                << " segments=" << plan.segments << " sources=" << plan.sources
                << " bytes=" << plan.shared_bytes << '\n';
    }
  }
}
