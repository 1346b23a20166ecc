// Says how depthwise_conv2d's kernels of strips cut their work, for each line of standard input. "rows" is
// followed by the rows of results, the kernel's side, the warps of a stretch of whole rows and the
// multiprocessors: the answer is the rows of a stretch. "weight_grad" is followed by the rows of results, the
// channels, the strips of a channel, the strips of a warp, the most chunks and the multiprocessors: the
// answer is the rows of a stretch, the stretches and the chunks.

#include "cuda/strips/plan.h"

#include <iostream>
#include <string>

int main() {
  using namespace torchgraft::depthwise;
  std::string kind;
  while (std::cin >> kind) {
    if (kind == "rows") {
      int rows, kernel, multiprocessors;
      int64_t warps;
      std::cin >> rows >> kernel >> warps >> multiprocessors;
      std::cout << cuda::strip_rows(rows, kernel, warps, multiprocessors) << '\n';
    } else {
      Geometry geometry = {};
      geometry.multiplier = 1;
      int64_t strips, most_chunks;
      int strips_of_warp, multiprocessors;
      std::cin >> geometry.height.output >> geometry.channels >> strips >> strips_of_warp >> most_chunks >>
          multiprocessors;
      const cuda::StripsWeightGradPlan plan =
          cuda::plan_strips_weight_grad(geometry, strips, strips_of_warp, most_chunks, multiprocessors);
      std::cout << plan.rows << ' ' << plan.stretches << ' ' << plan.chunks << '\n';
    }
  }
}
