// Which kernel computes a pass over volumes on CUDA, and how its work is cut into blocks. Host code alone, so
// that every limit is tested without a GPU.
//
// Four techniques compute each pass, and a fifth input gradients:
//
//   channels_last   up to 27 taps of kSwept sizes, halves and float32, channels_last_3d as they are. A thread
//                   owns channels, and sweeps along depth.
//   sweep           kernels of kSwept sizes, halves and float32. A block owns a tile of rows and columns and
//                   sweeps along depth; every source plane comes into shared memory once.
//   phases          input gradients with a stride of 2 and sides up to 7, one kernel a channel, in halves and
//                   float32. A thread owns neighbouring results of all phases of the stride.
//   runs            sides up to 7, strides of 1 and 2 in any mixture, one kernel a channel, in halves and
//                   float32; input gradients of stride 1. It serves small volumes of kSwept sizes, too. A
//                   thread owns neighbouring results of a row.
//   gather          every size, stride, padding, dilation and dtype. A thread gathers one result.
//
// sweep, runs and gather take contiguous volumes alone; others are brought into that layout, and results
// back.
#pragma once

#include <torchgraft/choice.h>
#include <torchgraft/numbers.h>

#include <algorithm>
#include <cstdint>

#include "../../depthwise_conv2d/sizes.h"

// The kernels and strides that sweeps are compiled for: depth, height and width of the kernel, stride along
// depth, and stride along height and width.
#define TORCHGRAFT_SWEPT(ROW) \
  ROW(3, 3, 3, 1, 1)          \
  ROW(3, 3, 3, 1, 2)          \
  ROW(3, 3, 3, 2, 2)          \
  ROW(5, 5, 5, 1, 1)          \
  ROW(5, 5, 5, 2, 2)          \
  ROW(7, 7, 7, 1, 1)          \
  ROW(1, 3, 3, 1, 1)          \
  ROW(3, 1, 1, 1, 1)          \
  ROW(5, 1, 1, 1, 1)

namespace torchgraft::depthwise::volumes {

struct Problem {
  Geometry geometry;
  bool transposed;  // the input gradient, and not the forward pass
  bool channels_last;
  int element_bytes;
};

// Neighbouring results of one direction that a thread owns, and the sources that they are made of: a forward
// pass or, transposed, an input gradient. With stride 1 an input gradient is a forward pass with the kernel
// turned around, so only those with a stride are transposed.
template <int kKernel, int kStride, bool kTransposed, int kResults>
struct Reach {
  static_assert(!kTransposed || kResults % kStride == 0, "threads begin at the same phase of the stride");
  // Result 0 lies so far behind a place on which a source's first tap falls: the padding modulo the stride.
  // Sweeps take paddings of which this holds.
  static constexpr int kPhase = kTransposed ? (kKernel - 1) / 2 % kStride : 0;
  static constexpr int kBefore = kTransposed ? (kKernel - 1 - kPhase) / kStride : 0;
  static constexpr int kSources =
      kTransposed ? kBefore + (kResults - 1 + kPhase) / kStride + 1 : (kResults - 1) * kStride + kKernel;
  // Sources from one thread to the next.
  static constexpr int kStep = kTransposed ? kResults / kStride : kResults * kStride;

  // The tap by which a source counts for a result; outside [0, kKernel) there is none.
  static constexpr int tap(int source, int result) {
    return kTransposed ? result + kPhase - kStride * (source - kBefore) : source - kStride * result;
  }
  static constexpr bool meets(int source, int result) {
    return tap(source, result) >= 0 && tap(source, result) < kKernel;
  }
  // The position of the first source of the first thread.
  static constexpr int origin(int padding) {
    return kTransposed ? (padding - kPhase) / kStride - kBefore : -padding;
  }
  // By so much it lies before a position that is aligned, with the padding that keeps sizes.
  static constexpr int kLead = -origin((kKernel - 1) / 2);
};

// Padding in front of the sources of a pass that is not transposed: an input gradient of stride 1 is a
// forward pass with the kernel turned around.
inline int padding_of(const Extent& extent, bool turned) {
  return static_cast<int>(turned ? extent.kernel - 1 - extent.padding : extent.padding);
}

// A sweep along depth: a step reads kPlanes source planes and completes kDone result planes, of the kSlots
// that are in flight.
template <int kKernel, int kStride_, bool kTransposed>
struct DepthReach {
  static_assert(kKernel >= kStride_, "every result has a source plane");
  static constexpr int kStride = kStride_;
  static constexpr bool kIsTransposed = kTransposed;
  static constexpr int kSlots = kTransposed ? kKernel : ceil_divide(kKernel, kStride);
  static constexpr int kPlanes = kTransposed ? 1 : kStride;
  static constexpr int kDone = kTransposed ? kStride : 1;

  // The tap by which a source plane of a step counts for a slot; from kKernel on there is none.
  static constexpr int tap(int slot, int plane) {
    return kTransposed ? slot : (kSlots - 1 - slot) * kStride + plane;
  }
  // The result plane in a slot that a step completes.
  static constexpr int result(int step, int slot, int padding) {
    return kTransposed ? step * kStride - padding + slot : step - (kSlots - 1);
  }

  // The steps that the result planes of a stretch take, and the source planes that they read.
  struct Stretch {
    int first_step, end_step, first_source, end_source;

    constexpr Stretch(int first_result, int end_result, int padding, int sources)
        : first_step(kTransposed ? floor_divide(first_result + padding - kKernel + kStride, kStride)
                                 : first_result),
          end_step(kTransposed ? (end_result - 1 + padding) / kStride + 1 : end_result + kSlots - 1),
          first_source(kTransposed ? first_step : first_step * kStride - padding),
          end_source(
              std::min(sources, kTransposed ? end_step : (end_result - 1) * kStride - padding + kKernel)) {}
  };
};

inline bool is_swept_size(const Geometry& geometry) {
  const Extent &depth = geometry.depth, &height = geometry.height, &width = geometry.width;
#define TORCHGRAFT_IS_SWEPT(DEPTH, HEIGHT, WIDTH, STRIDE_DEPTH, STRIDE)                  \
  if (depth.kernel == DEPTH && height.kernel == HEIGHT && width.kernel == WIDTH &&       \
      depth.stride == STRIDE_DEPTH && height.stride == STRIDE && width.stride == STRIDE) \
    return true;
  TORCHGRAFT_SWEPT(TORCHGRAFT_IS_SWEPT)
#undef TORCHGRAFT_IS_SWEPT
  return false;
}

inline bool fits_sweep(const Extent& extent) {
  return extent.dilation == 1 && extent.padding < extent.kernel;
}

// Whether 32 bits hold every place along each direction, padding included, and every offset within a volume.
inline bool offsets_fit_32(const Geometry& geometry) {
  constexpr int64_t kLimit = int64_t{1} << 30;
  const auto fits = [](const Extent& extent) {
    return extent.input < kLimit && extent.padding < kLimit && extent.output < kLimit &&
           extent.stride < kLimit && extent.dilation < kLimit && extent.kernel < kLimit &&
           extent.output * extent.stride < kLimit && extent.kernel * extent.dilation < kLimit;
  };
  return fits(geometry.depth) && fits(geometry.height) && fits(geometry.width) &&
         geometry.input_pixels() < kLimit && geometry.output_pixels() < kLimit && geometry.taps() < kLimit;
}

// Whether the offsets of a volume, and numbers of planes and of all volumes, are far from the end of 32 bits.
inline bool volumes_fit_32(const Geometry& geometry) {
  constexpr int64_t kLimit = int64_t{1} << 30;
  return geometry.input_pixels() < kLimit && geometry.output_pixels() < kLimit &&
         geometry.batch * geometry.output_channels() < kLimit;
}

inline bool is_swept_weight_grad(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  return problem.element_bytes < 8 && is_swept_size(geometry) && fits_sweep(geometry.depth) &&
         fits_sweep(geometry.height) && fits_sweep(geometry.width) && volumes_fit_32(geometry);
}

inline bool is_swept(const Problem& problem) {
  if (!is_swept_weight_grad(problem)) return false;
  if (!problem.transposed) return true;
  const auto has_phase = [](const Extent& extent) {
    return (extent.padding - (extent.kernel - 1) / 2) % extent.stride == 0;
  };
  const Geometry& geometry = problem.geometry;
  return geometry.multiplier == 1 && has_phase(geometry.height) && has_phase(geometry.width);
}

inline bool supports_sweep(const Problem& problem) { return !problem.channels_last && is_swept(problem); }
inline bool supports_sweep_weight_grad(const Problem& problem) {
  return !problem.channels_last && is_swept_weight_grad(problem);
}

// The taps whose weights, or sums, fit the registers of a thread that owns a word of channels.
constexpr int kMostTapsOfChannelsLast = 27;

// Whether volumes that are channels_last_3d have kernels that take them as they are.
inline bool has_channels_last(const Geometry& geometry) {
  constexpr int64_t kLimit = int64_t{1} << 30;
  return geometry.multiplier == 1 && geometry.taps() <= kMostTapsOfChannelsLast &&
         geometry.batch * geometry.input_pixels() < kLimit &&
         geometry.batch * geometry.output_pixels() < kLimit;
}
inline bool supports_channels_last(const Problem& problem) {
  return problem.channels_last && has_channels_last(problem.geometry) && is_swept(problem);
}
inline bool supports_channels_last_weight_grad(const Problem& problem) {
  return problem.channels_last && has_channels_last(problem.geometry) && is_swept_weight_grad(problem);
}
// The longest side of a kernel for which phases and runs are compiled.
constexpr int kMostSide = 7;

// Whether phases or runs are compiled for the kernel and its strides.
inline bool has_short_sides(const Problem& problem) {
  const auto fits = [](const Extent& extent) {
    return (extent.stride == 1 || extent.stride == 2) && extent.dilation == 1 && extent.kernel <= kMostSide;
  };
  const Geometry& geometry = problem.geometry;
  return problem.element_bytes < 8 && geometry.multiplier == 1 && fits(geometry.depth) &&
         fits(geometry.height) && fits(geometry.width) && offsets_fit_32(geometry) &&
         volumes_fit_32(geometry);
}

inline bool has_phases(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  return problem.transposed && has_short_sides(problem) &&
         (geometry.height.stride == 2 || geometry.width.stride == 2);
}
inline bool supports_phases(const Problem& problem) { return !problem.channels_last && has_phases(problem); }
inline bool supports_channels_last_phases(const Problem& problem) {
  return problem.channels_last && has_phases(problem);
}

// An input gradient of stride 1 is a forward pass with the kernel turned around.
inline bool supports_runs(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  const bool has_stride =
      geometry.depth.stride != 1 || geometry.height.stride != 1 || geometry.width.stride != 1;
  return !problem.channels_last && has_short_sides(problem) && !(problem.transposed && has_stride);
}
inline bool supports_runs_weight_grad(const Problem& problem) {
  constexpr int64_t kLimit = int64_t{1} << 30;
  const Geometry& geometry = problem.geometry;
  return !problem.channels_last && has_short_sides(problem) &&
         geometry.batch * geometry.output_pixels() < kLimit;
}
inline bool supports_gather(const Problem& problem) { return !problem.channels_last; }

// Up to so many products of a tap and an output a pass by runs or by phases takes less time than a sweep, in
// which a block stages plane after plane, and waits for each: (3,88,16x28x28,k3,s2) in bfloat16 takes 6.0 us
// forward and swept 10.6, its weight gradient 9.2 and 17.5; (8,48,4x64x64,k3x1x1) 16 and 12, and 18 and 14.
// From 124 problems drawn on an H200.
constexpr int64_t kMostProductsOfSmall = int64_t{1} << 24;

inline int64_t products_of(const Geometry& geometry) {
  return geometry.batch * geometry.output_channels() * geometry.output_pixels() * geometry.taps();
}
inline bool sweep_pays(const Problem& problem) {
  return !(supports_runs(problem) || supports_phases(problem)) ||
         products_of(problem.geometry) > kMostProductsOfSmall;
}
inline bool sweep_weight_grad_pays(const Problem& problem) {
  return !supports_runs_weight_grad(problem) || products_of(problem.geometry) > kMostProductsOfSmall;
}

enum class Kernel { channels_last, sweep, channels_last_phases, phases, runs, any };
struct Rule {
  Kernel kernel;
  const char* name;
  bool (*supports)(const Problem&);
  bool (*pays)(const Problem&);
};
inline constexpr Rule kCorrelationRules[] = {
    {Kernel::channels_last, "channels_last_correlate", supports_channels_last, always},
    {Kernel::sweep, "sweep_correlate", supports_sweep, sweep_pays},
    {Kernel::runs, "runs_correlate", supports_runs, always},
    {Kernel::any, "gather_volumes", supports_gather, always}};
inline constexpr Rule kInputGradRules[] = {
    {Kernel::channels_last, "channels_last_correlate", supports_channels_last, always},
    {Kernel::sweep, "sweep_correlate", supports_sweep, sweep_pays},
    {Kernel::channels_last_phases, "channels_last_phases_input_grad", supports_channels_last_phases, always},
    {Kernel::phases, "phases_input_grad", supports_phases, always},
    {Kernel::runs, "runs_correlate", supports_runs, always},
    {Kernel::any, "gather_volumes", supports_gather, always}};
inline constexpr Rule kWeightGradRules[] = {
    {Kernel::channels_last, "channels_last_weight_grad", supports_channels_last_weight_grad, always},
    {Kernel::sweep, "sweep_weight_grad", supports_sweep_weight_grad, sweep_weight_grad_pays},
    {Kernel::runs, "runs_weight_grad", supports_runs_weight_grad, always},
    {Kernel::any, "gather_volumes_weight_grad", supports_gather, always}};

// How results are shared out among threads and blocks. A thread owns a group of rows and a unit of columns of
// one volume; a block a tile of those. Tiles that hold whole planes may hold several volumes.
struct TileSizes {
  int units, row_groups, packs;  // of a tile
  int tiles_wide, tiles_high;    // of a plane
  int threads;                   // of a tile, a multiple of a warp
  int rows, pitch;               // of a source plane in shared memory, in elements
  int plane() const { return packs * rows * pitch; }
};

// What the threads of a kernel own, and what a block keeps in shared memory.
struct ThreadShape {
  int columns, rows;                         // results
  int step_columns, step_rows;               // sources from thread to thread
  int source_columns, source_rows;           // of a thread
  int most_threads, most_units, most_packs;  // of a tile
  int source_stages, result_stages;          // planes in shared memory
  int pack_bytes;                            // of shared memory that a volume takes beside
};

constexpr int kWarpThreads = 32;
// What every device gives a block without asking.
constexpr int64_t kSharedBytes = 48 << 10;

// A row of results in shared memory.
inline int result_pitch_of(const TileSizes& tile, const ThreadShape& shape, int element_bytes) {
  return round_up(tile.units * shape.columns, 16 / element_bytes);
}

inline int64_t shared_bytes_of(const TileSizes& tile, const ThreadShape& shape, int element_bytes) {
  const int64_t results =
      int64_t{tile.packs} * tile.row_groups * shape.rows * result_pitch_of(tile, shape, element_bytes);
  return int64_t{tile.packs} * shape.pack_bytes +
         element_bytes * (shape.source_stages * int64_t{tile.plane()} + shape.result_stages * results);
}

// A tile as high as so many groups of rows, where planes are cut into so many tiles along their width.
inline TileSizes tile_of(int64_t all_units, int64_t all_groups, int64_t tiles_wide, int64_t groups,
                         int64_t packs, int element_bytes, const ThreadShape& shape) {
  const int vector = 16 / element_bytes;
  int64_t units = ceil_divide(all_units, tiles_wide);
  // Every tile begins at an aligned column, of sources and of results.
  while (tiles_wide > 1 &&
         (units * shape.step_columns % vector != 0 || units * shape.columns % vector != 0)) {
    ++units;
  }
  // The last piece that a thread reads may be four elements longer than what it needs.
  const int64_t columns = vector + (units - 1) * shape.step_columns + shape.source_columns + 4;
  return {.units = static_cast<int>(units),
          .row_groups = static_cast<int>(groups),
          .packs = static_cast<int>(packs),
          .tiles_wide = static_cast<int>(ceil_divide(all_units, units)),
          .tiles_high = static_cast<int>(ceil_divide(all_groups, groups)),
          .threads = static_cast<int>(round_up<int64_t>(units * groups * packs, kWarpThreads)),
          .rows = static_cast<int>((groups - 1) * shape.step_rows + shape.source_rows),
          .pitch = static_cast<int>(round_up<int64_t>(columns, vector))};
}

// The more of its threads have results the better is a tile, and the fewer sources several tiles read.
inline double score_of(const TileSizes& tile, int64_t units_and_groups, const ThreadShape& shape) {
  const double busy = static_cast<double>(units_and_groups * tile.packs) /
                      (static_cast<double>(tile.tiles_wide) * tile.tiles_high * tile.threads);
  const double rows = static_cast<double>(tile.rows) / (tile.row_groups * shape.step_rows);
  const double columns = static_cast<double>((tile.units - 1) * shape.step_columns + shape.source_columns) /
                         (tile.units * shape.step_columns);
  constexpr double kOfMoreReads = 0.2, kOfSmallBlocks = 0.9;
  const bool is_small = tile.threads < std::min(shape.most_threads, 3 * kWarpThreads);
  return busy / (1 + kOfMoreReads * (rows * columns - 1)) * (is_small ? kOfSmallBlocks : 1);
}

inline TileSizes plan_tile(int64_t result_rows, int64_t result_columns, int64_t volumes, int element_bytes,
                           const ThreadShape& shape) {
  const int64_t all_units = ceil_divide<int64_t>(result_columns, shape.columns);
  const int64_t all_groups = ceil_divide<int64_t>(result_rows, shape.rows);
  const int64_t fewest_tiles = ceil_divide<int64_t>(all_units, shape.most_units);
  const auto make = [&](int64_t tiles_wide, int64_t groups, int64_t packs) {
    return tile_of(all_units, all_groups, tiles_wide, groups, packs, element_bytes, shape);
  };
  const auto fits = [&](const TileSizes& tile) {
    return tile.units * tile.row_groups * tile.packs <= shape.most_threads &&
           shared_bytes_of(tile, shape, element_bytes) <= kSharedBytes;
  };
  TileSizes best = make(fewest_tiles, 1, 1);
  double best_score = 0;
  constexpr int64_t kMoreTiles = 3;
  for (int64_t wide = fewest_tiles;
       wide <= all_units && (wide <= fewest_tiles + kMoreTiles || best_score == 0); ++wide) {
    for (int64_t groups = 1; groups <= all_groups; ++groups) {
      TileSizes tile = make(wide, groups, 1);
      if (!fits(tile)) break;
      // Tiles of whole planes have room for more volumes.
      while (tile.tiles_wide == 1 && tile.tiles_high == 1 &&
             tile.packs < std::min<int64_t>(volumes, shape.most_packs) &&
             fits(make(wide, groups, tile.packs + 1))) {
        tile = make(wide, groups, tile.packs + 1);
      }
      const double score = score_of(tile, all_units * all_groups, shape);
      if (score <= best_score) continue;
      best_score = score;
      best = tile;
    }
  }
  return best;
}

// What a plan of stretches knows of the device and of a block.
struct Occupancy {
  int multiprocessors;
  int64_t resident;  // blocks that a multiprocessor runs at once
  int warps;         // of a block
};

// The planes of a stretch, where `tiles` sweep all of depth: each of the stretches begins with `overlap`
// steps that complete no result. The busiest multiprocessor decides, and whether it has warps enough.
inline int64_t planes_of_stretch(int64_t planes, int64_t tiles, int64_t overlap, const Occupancy& device) {
  constexpr double kEnoughWarps = 16;
  constexpr int64_t kMostStretches = 64;
  int64_t best = planes;
  double least = 0;
  for (int64_t stretches = 1; stretches <= std::min(planes, kMostStretches); ++stretches) {
    const int64_t length = ceil_divide(planes, stretches);
    const int64_t blocks = ceil_divide<int64_t>(tiles * ceil_divide(planes, length), device.multiprocessors);
    const double warps = static_cast<double>(std::min(blocks, device.resident)) * device.warps;
    // One step more: the first copies are waited for.
    const double time =
        static_cast<double>(blocks * (length + overlap + 1)) / std::min(1.0, warps / kEnoughWarps);
    if (stretches > 1 && time >= least) continue;
    least = time;
    best = length;
  }
  return best;
}

// The widest piece in bytes, of 16, 8, 4 and one element, of which rows of so many elements are made, whose
// memory is so aligned.
inline int piece_of_rows(int64_t columns, int element_bytes, int alignment) {
  for (const int piece : {16, 8, 4}) {
    if (alignment % piece == 0 && columns * element_bytes % piece == 0) return piece;
  }
  return element_bytes;
}

}  // namespace torchgraft::depthwise::volumes
