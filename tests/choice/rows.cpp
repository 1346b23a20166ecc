// Says how depthwise_conv2d's kernels of rows cut their work, for each line of standard input, as
// `name=number` pairs. A line is "window", "spread", "gathers" or "weight_grad", and then the batch,
// channels, length, kernel, stride, padding on both sides, dilation, and bytes of an element.

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
    } else {
      const auto plan = cuda::plan_rows_spread(extent, kind == "gathers", element_bytes);
      std::cout << "lanes=" << plan.lanes << " rows=" << plan.rows << " results=" << plan.results
                << " segments=" << plan.segments << " sources=" << plan.sources
                << " bytes=" << plan.shared_bytes << '\n';
    }
  }
}
