// Says how a kernel cuts each problem of standard input, one a line: the kernel's name, and then the numbers
// that are read below. A plan is written as names and numbers. A multiprocessor has one KB more of shared
// memory than a block can have.

#include <iostream>
#include <string>

#include "cuda/bands/batch_plan.h"
#include "cuda/bands/large_plan.h"
#include "cuda/bands/small_plan.h"
#include "cuda/diagonals/nchw_plan.h"
#include "cuda/diagonals/nhwc_plan.h"
#include "cuda/problem.h"
#include "plans.h"

namespace {

using namespace torchgraft::depthwise;
using namespace torchgraft::depthwise::cuda;

void plan_batch(const Problem& problem) {
  const BatchShape& shape = kBatchShapes[batch_shape(problem.geometry, problem.transposed)];
  const int64_t most_bytes = batch_most_bytes(shape, problem.shared_bytes + 1024, problem.shared_bytes);
  const BatchPlan plan = batch_plan(problem.geometry, problem.transposed, shape, problem.alignment,
                                    problem.multiprocessors, most_bytes);
  write("channels", plan.channels_of_block, "images", plan.images_of_block, "chunks", plan.chunks, "blocks",
        plan.blocks, "fits", plan.bytes <= most_bytes, "piece", plan.piece, "vector", plan.vector);
}

void plan_large(const Problem& problem) {
  const LargePlan plan = large_plan(problem.geometry, problem.transposed, problem.multiprocessors);
  write("octets", plan.octets, "images", plan.images_of_round, "rounds", plan.rounds_of_block, "chunks",
        plan.chunks, "two_fit", plan.bytes <= 48 << 10);
}

void plan_small(const Problem& problem) {
  const SmallPlan plan = SmallPlanner(problem.geometry, problem.transposed, problem.alignment).plan();
  write("taps", plan.tap_rows, "pairs", plan.pairs, "images", plan.tile_images, "bands", plan.bands, "blocks",
        plan.column_blocks, "padded", plan.padded_columns, "tiles_x", plan.tiles_x, "tiles_y", plan.tiles_y,
        "source_unit", plan.source_unit, "result_unit", plan.result_unit, "lead", plan.lead, "stages",
        plan.stages, "whole_rows", plan.whole_rows);
}

template <int kTapRows, int kOctets>
void plan_nchw(const Problem& problem) {
  const NchwSizes sizes = nchw_sizes(problem.geometry, problem.alignment, problem.alignment);
  const NchwPlan plan =
      NchwPlanner<TapBlock<kTapRows, kOctets>>(sizes, problem.multiprocessors, problem.shared_bytes).plan();
  write("channels", plan.channels_of_block, "planes", plan.planes, "bands", plan.bands, "strips", plan.strips,
        "splits", plan.splits, "row_groups", plan.row_groups, "row_blocks", plan.row_blocks, "column_blocks",
        plan.column_blocks, "columns", plan.columns_of_block, "shift", plan.shift, "input_unit",
        plan.input.unit, "grad_unit", plan.grad.unit, "places", plan.input.places > 0, "threads",
        plan.threads, "tiles", plan.tiles, "most_chunks", plan.most_chunks, "fits",
        plan.bytes <= static_cast<size_t>(problem.shared_bytes));
}

void plan_nhwc(const Problem& problem, int tap_rows) {
  const NhwcPlan plan =
      NhwcPlanner(problem.geometry, tap_rows, problem.multiprocessors, problem.shared_bytes).plan();
  write("slabs", plan.slabs, "planes", plan.planes, "bands", plan.bands, "segments", plan.segments, "strips",
        plan.strips, "tiles", plan.tiles, "most_chunks", plan.most_chunks, "fits",
        plan.bytes <= problem.shared_bytes);
}

}  // namespace

int main() {
  std::string kernel, direction;
  Problem problem = {};
  Geometry& sizes = problem.geometry;
  while (std::cin >> kernel >> direction >> problem.channels_last >> problem.element_bytes >>
         problem.alignment >> problem.tensor_cores >> problem.shared_bytes >> problem.multiprocessors >>
         sizes.batch >> sizes.channels >> sizes.multiplier >> sizes.height >> sizes.width) {
    problem.transposed = direction == "input_grad";
    if (kernel == "bands_batch") {
      plan_batch(problem);
    } else if (kernel == "bands_large") {
      plan_large(problem);
    } else if (kernel == "bands_small") {
      plan_small(problem);
    } else if (kernel == "diagonals_nchw_7x2") {
      plan_nchw<7, 2>(problem);
    } else if (kernel == "diagonals_nchw_8x5") {
      plan_nchw<8, 5>(problem);
    } else if (kernel == "diagonals_nhwc_7") {
      plan_nhwc(problem, 7);
    } else {
      return 1;
    }
  }
}
