// Says how the kernels of volumes cut each problem of standard input, one a line: what is asked, and then the
// numbers that are read below.

#include <iostream>
#include <string>

#include "../depthwise_conv2d/sizes.h"
#include "cuda/plan.h"

namespace {

using namespace torchgraft::depthwise;
using namespace torchgraft::depthwise::volumes;

template <typename... Values>
void write(const Values&... values) {
  bool is_name = true;
  ((std::cout << values << (is_name ? '=' : ' '), is_name = !is_name), ...);
  std::cout << '\n';
}

template <int kTaps, int kStride>
ThreadShape shape_of(int element_bytes, int most_threads, int stages) {
  using Side = Reach<kTaps, kStride, false, 4>;
  return {.columns = 4,
          .rows = 4,
          .step_columns = Side::kStep,
          .step_rows = Side::kStep,
          .source_columns = Side::kSources,
          .source_rows = Side::kSources,
          .most_threads = most_threads,
          .most_units = 32,
          .most_packs = 16,
          .source_stages = stages,
          .result_stages = 0,
          .pack_bytes = element_bytes * 0};
}

void ask_tile() {
  int64_t rows = 0, columns = 0, volumes = 0;
  int element_bytes = 0, taps = 0, stride = 0, most_threads = 0, stages = 0;
  std::cin >> rows >> columns >> volumes >> element_bytes >> taps >> stride >> most_threads >> stages;
  const auto make = taps == 3 && stride == 1   ? shape_of<3, 1>
                    : taps == 3                ? shape_of<3, 2>
                    : taps == 5 && stride == 1 ? shape_of<5, 1>
                    : taps == 5                ? shape_of<5, 2>
                                               : shape_of<7, 1>;
  const ThreadShape shape = make(element_bytes, most_threads, stages);
  const TileSizes tile = plan_tile(rows, columns, volumes, element_bytes, shape);
  write("units", tile.units, "groups", tile.row_groups, "packs", tile.packs, "wide", tile.tiles_wide, "high",
        tile.tiles_high, "threads", tile.threads, "rows", tile.rows, "pitch", tile.pitch, "bytes",
        shared_bytes_of(tile, shape, element_bytes), "step", shape.step_columns, "sources",
        shape.source_columns);
}

void ask_stretch() {
  int64_t planes = 0, tiles = 0, overlap = 0;
  Occupancy device = {};
  std::cin >> planes >> tiles >> overlap >> device.multiprocessors >> device.resident >> device.warps;
  write("planes", planes_of_stretch(planes, tiles, overlap, device));
}

void ask_piece() {
  int64_t columns = 0;
  int element_bytes = 0, alignment = 0;
  std::cin >> columns >> element_bytes >> alignment;
  write("piece", piece_of_rows(columns, element_bytes, alignment));
}

std::istream& operator>>(std::istream& in, Extent& extent) {
  return in >> extent.input >> extent.output >> extent.kernel >> extent.stride >> extent.padding >>
         extent.dilation;
}

void ask_kernel() {
  Problem problem = {};
  Geometry& geometry = problem.geometry;
  std::cin >> problem.transposed >> problem.channels_last >> problem.element_bytes >> geometry.batch >>
      geometry.channels >> geometry.multiplier >> geometry.depth >> geometry.height >> geometry.width;
  std::cout << "correlation="
            << (problem.transposed ? torchgraft::choose(kInputGradRules, problem).name
                                   : torchgraft::choose(kCorrelationRules, problem).name)
            << " weight_grad=" << torchgraft::choose(kWeightGradRules, problem).name
            << " fits_32=" << offsets_fit_32(geometry) << '\n';
}

}  // namespace

int main() {
  std::string asked;
  while (std::cin >> asked) {
    if (asked == "tile") ask_tile();
    if (asked == "stretch") ask_stretch();
    if (asked == "piece") ask_piece();
    if (asked == "kernel") ask_kernel();
  }
  return 0;
}
