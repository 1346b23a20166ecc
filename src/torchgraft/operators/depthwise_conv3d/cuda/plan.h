// Which kernel computes a pass over volumes on CUDA, and how its work is cut into blocks. Host code alone, so
// that every limit is tested without a GPU.
//
// Two techniques compute each pass:
//
//   sweep   kernels of kSwept sizes, halves and float32. A block owns a tile of rows and columns and sweeps
//           along depth; every source plane comes into shared memory once.
//   any     every size, stride, padding, dilation and dtype. A thread gathers one result.
//
// Both take contiguous volumes; those that are channels_last_3d are brought into that layout, and results
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
  int element_bytes;
  int multiprocessors = 132;
  int64_t shared_bytes = 48 << 10;  // of shared memory that a block of the device can have

  Problem on_any_device() const {
    Problem other = *this;
    other.shared_bytes = 227 << 10;
    return other;
  }
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

// Whether the offsets of a volume, and numbers of planes and of all volumes, are far from the end of 32 bits.
inline bool volumes_fit_32(const Geometry& geometry) {
  constexpr int64_t kLimit = int64_t{1} << 30;
  return geometry.input_pixels() < kLimit && geometry.output_pixels() < kLimit &&
         geometry.batch * geometry.output_channels() < kLimit;
}

inline bool supports_sweep_weight_grad(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  return problem.element_bytes < 8 && is_swept_size(geometry) && fits_sweep(geometry.depth) &&
         fits_sweep(geometry.height) && fits_sweep(geometry.width) && volumes_fit_32(geometry);
}

inline bool supports_sweep(const Problem& problem) {
  if (!supports_sweep_weight_grad(problem)) return false;
  if (!problem.transposed) return true;
  const auto has_phase = [](const Extent& extent) {
    return (extent.padding - (extent.kernel - 1) / 2) % extent.stride == 0;
  };
  const Geometry& geometry = problem.geometry;
  return geometry.multiplier == 1 && has_phase(geometry.height) && has_phase(geometry.width);
}

enum class Kernel { sweep, any };
struct Rule {
  Kernel kernel;
  const char* name;
  bool (*supports)(const Problem&);
  bool (*pays)(const Problem&);
};
inline constexpr Rule kCorrelationRules[] = {{Kernel::sweep, "sweep_correlate", supports_sweep, always},
                                             {Kernel::any, "gather_volumes", always, always}};
inline constexpr Rule kWeightGradRules[] = {
    {Kernel::sweep, "sweep_weight_grad", supports_sweep_weight_grad, always},
    {Kernel::any, "gather_volumes_weight_grad", always, always}};

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

inline int64_t shared_bytes_of(const TileSizes& tile, const ThreadShape& shape, int element_bytes) {
  const int64_t results = int64_t{tile.packs} * tile.units * shape.columns * tile.row_groups * shape.rows;
  return int64_t{tile.packs} * shape.pack_bytes +
         element_bytes * (shape.source_stages * int64_t{tile.plane()} + shape.result_stages * results);
}

// The largest share of busy threads decides, and of equals the fewest sources that two tiles read.
inline TileSizes plan_tile(int64_t result_rows, int64_t result_columns, int64_t volumes, int element_bytes,
                           const ThreadShape& shape) {
  const int vector = 16 / element_bytes;
  const int64_t all_units = ceil_divide<int64_t>(result_columns, shape.columns);
  const int64_t all_groups = ceil_divide<int64_t>(result_rows, shape.rows);
  const int64_t tiles_wide = ceil_divide<int64_t>(all_units, shape.most_units);
  int64_t units = ceil_divide(all_units, tiles_wide);
  // Every tile begins at an aligned column.
  while (tiles_wide > 1 && units * shape.step_columns % vector != 0) ++units;
  const auto tile_of = [&](int64_t groups, int64_t packs) {
    TileSizes tile;
    tile.units = static_cast<int>(units);
    tile.row_groups = static_cast<int>(groups);
    tile.packs = static_cast<int>(packs);
    tile.tiles_wide = static_cast<int>(tiles_wide);
    tile.tiles_high = static_cast<int>(ceil_divide(all_groups, groups));
    tile.threads = static_cast<int>(round_up<int64_t>(units * groups * packs, kWarpThreads));
    tile.rows = static_cast<int>((groups - 1) * shape.step_rows + shape.source_rows);
    // The last piece that a thread reads may be four elements longer than what it needs.
    tile.pitch = static_cast<int>(
        round_up<int64_t>(vector + (units - 1) * shape.step_columns + shape.source_columns + 4, vector));
    return tile;
  };
  TileSizes best = tile_of(1, 1);
  double best_score = 0;
  for (int64_t groups = 1; groups <= all_groups && units * groups <= shape.most_threads; ++groups) {
    TileSizes tile = tile_of(groups, 1);
    if (shared_bytes_of(tile, shape, element_bytes) > kSharedBytes) break;
    if (tile.tiles_high == 1 && tiles_wide == 1) {
      int64_t packs = std::clamp<int64_t>(shape.most_threads / (units * groups), 1,
                                          std::min<int64_t>(volumes, shape.most_packs));
      while (packs > 1 && shared_bytes_of(tile_of(groups, packs), shape, element_bytes) > kSharedBytes) {
        --packs;
      }
      tile = tile_of(groups, packs);
    }
    const double busy = static_cast<double>(all_units * all_groups * tile.packs) /
                        static_cast<double>(tiles_wide * tile.tiles_high * tile.threads);
    const double read = static_cast<double>(tile.rows) / static_cast<double>(groups * shape.step_rows);
    // Small blocks meet more often than they need to for what they compute.
    constexpr double kOfMoreReads = 0.2, kOfSmallBlocks = 0.9;
    const double score = busy / (1 + kOfMoreReads * (read - 1)) *
                         (tile.threads < std::min(shape.most_threads, 3 * kWarpThreads) ? kOfSmallBlocks : 1);
    if (score <= best_score) continue;
    best_score = score;
    best = tile;
  }
  return best;
}

// Cuts depth into equal stretches, so that so many blocks are enough, but none shorter than `least`.
inline int64_t planes_of_stretch(int64_t planes, int64_t blocks_of_depth, int64_t wanted_blocks,
                                 int64_t least) {
  const int64_t stretches = std::clamp<int64_t>(wanted_blocks / std::max<int64_t>(blocks_of_depth, 1), 1,
                                                std::max<int64_t>(planes / std::max<int64_t>(least, 1), 1));
  return ceil_divide(planes, stretches);
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
