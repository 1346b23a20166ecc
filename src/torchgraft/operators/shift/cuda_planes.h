// How the kernel of contiguous images (cuda_planes.cu) cuts its work, and where it can.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

#include "cuda_problem.h"

namespace torchgraft::shift::cuda::planes {

// What may be tuned: columns of a thread, bytes of a tile's sources (and as many of its results) that keep a
// thread busy, and tiles in shared memory.
constexpr int kColumns = 5;
constexpr int64_t bytes_of_thread(Pass pass) { return has_sums(pass) ? 64 : 128; }
constexpr int kStages = 2;

constexpr int kMostThreads = 128;  // of a block
constexpr int kAhead = 16;         // tiles that are worked out at once
// Of 32 and 64 threads, where tiles are small.
constexpr bool has_narrow_blocks(int element_bytes, bool strided) { return element_bytes != 8 && !strided; }
// Threads that are resident at once on a multiprocessor, by registers.
constexpr int resident_threads(int element_bytes, Pass pass) {
  return element_bytes == 8 ? 512 : (pass == Pass::grads ? 768 : 1024);
}

// Of all that is to be known of a tile, in shared memory: the size of Tile in cuda_planes.cu.
constexpr int tile_bytes(int element_bytes) { return element_bytes == 8 ? 128 : 112; }
// Of shared memory, next to a launch's.
inline int64_t declared_bytes(const Problem& problem) {
  return 2 * kAhead * tile_bytes(problem.element_bytes) + 2 * kMostThreads / 32 * problem.sum_bytes();
}

// What a block's shared memory holds, in elements.
struct Room {
  int64_t margin, input_place, stage, results;
  int64_t bytes;

  Room(int64_t tile_rows, int64_t source_rows, int64_t width, Pass pass, int element_bytes) {
    // An offset leads up to a row and two elements beyond; what is read there is thrown away.
    constexpr int64_t kBeyond = kColumns + 4;
    const int64_t piece = 16 / element_bytes;
    const auto whole_pieces = [&](int64_t elements) { return divide_up(elements, piece) * piece; };
    margin = whole_pieces(width + kBeyond);
    input_place = 2 * margin + whole_pieces(source_rows * width) + 2 * piece;
    stage = input_place + (has_sums(pass) ? whole_pieces(tile_rows * width + piece + kBeyond) : 0);
    results = has_images(pass) ? whole_pieces(tile_rows * width + piece) : 0;
    bytes = (kStages * stage + results) * element_bytes;
  }
};

// A tile of a plane, and how many there are of all planes.
struct Tiles {
  int64_t rows;         // of results
  int64_t source_rows;  // that they need
  int64_t count;
  int64_t shared_bytes;
};

// Rows of sources that keep all threads of a block busy: as few as a single row of results may need two.
inline int64_t busy_rows(const Problem& problem) {
  return kMostThreads * bytes_of_thread(problem.pass) / (problem.geometry.width * problem.element_bytes);
}
constexpr int64_t kFewestRows = 2;

// Tiles that keep threads busy, or where rows are too long for that, of one row of results. Nothing where
// positions are too large for 32 bits, or shared memory too small.
inline std::optional<Tiles> cut(const Problem& problem) {
  constexpr int64_t kLimit = int64_t{1} << 30;
  const Geometry& geometry = problem.geometry;
  const int64_t width = geometry.width;
  const int64_t rows = problem.result_rows();
  const int64_t stride = stride_of(geometry);
  const bool from_one_row = problem.transposed() && stride > 1;
  if (width >= kLimit || geometry.height >= kLimit / (2 * width + 2)) return std::nullopt;

  const int64_t stage_rows = std::max(busy_rows(problem), kFewestRows);
  const int64_t most_rows = from_one_row ? stage_rows : (stage_rows - 2) / stride + 1;
  Tiles tiles;
  tiles.rows = divide_up(rows, divide_up(rows, std::min(most_rows, rows)));
  tiles.source_rows = from_one_row ? (tiles.rows - 1) / stride + 2 : (tiles.rows - 1) * stride + 2;
  tiles.count = geometry.planes() * divide_up(rows, tiles.rows);
  tiles.shared_bytes = Room(tiles.rows, tiles.source_rows, width, problem.pass, problem.element_bytes).bytes;
  const bool fits =
      tiles.count < kLimit && tiles.shared_bytes <= problem.shared_of_block - declared_bytes(problem);
  return fits ? std::optional(tiles) : std::nullopt;
}

inline bool supports(const Problem& problem) { return !problem.channels_last && cut(problem).has_value(); }

// Rows of results of a thread: as few as give all threads work; or a few more, where lanes would often meet
// in a bank of shared memory.
inline int rows_of_thread(int64_t tile_rows, int64_t width, int threads, int element_bytes) {
  const int64_t chunks = divide_up(width, kColumns);
  const int64_t groups = std::max<int64_t>(threads / chunks, 1);
  const int64_t fewest = divide_up(tile_rows, groups);
  int64_t best = fewest;
  int64_t least_cost = std::numeric_limits<int64_t>::max();
  for (int64_t rows = fewest; rows <= fewest + fewest / 4 + 1; ++rows) {
    int lanes_of_bank[32] = {};
    int conflicts = 0;
    for (int64_t lane = 0; lane < 32; ++lane) {
      const int64_t element = lane / chunks * rows * width + lane % chunks * kColumns;
      const int64_t bank = element * element_bytes / 4 % 32;
      conflicts = std::max(conflicts, ++lanes_of_bank[bank]);
    }
    // What is done but once takes as long as three rows.
    const int64_t cost = (rows + 3) * (2 + conflicts);
    if (cost >= least_cost) continue;
    least_cost = cost;
    best = rows;
  }
  return static_cast<int>(best);
}

// Of what it supports.
inline Plan plan(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  const Tiles tiles = *cut(problem);
  Plan plan;
  plan.tile_rows = static_cast<int>(tiles.rows);
  plan.stage_rows = static_cast<int>(tiles.source_rows);
  plan.shared_bytes = tiles.shared_bytes;
  plan.threads = kMostThreads;
  while (has_narrow_blocks(problem.element_bytes, stride_of(geometry) > 1) && plan.threads > 32 &&
         std::max(tiles.rows, tiles.source_rows) * geometry.width * problem.element_bytes <=
             plan.threads / 2 * bytes_of_thread(problem.pass)) {
    plan.threads /= 2;
  }
  plan.step = rows_of_thread(tiles.rows, geometry.width, plan.threads, problem.element_bytes);
  const int resident = resident_blocks(problem, plan.threads, plan.shared_bytes + declared_bytes(problem),
                                       resident_threads(problem.element_bytes, problem.pass));
  // All blocks take as many tiles: no few of them run on alone.
  plan.blocks = static_cast<int>(divide_up(tiles.count, divide_up(tiles.count, resident)));
  plan.parts = geometry.batch * divide_up(problem.result_rows(), tiles.rows);
  return plan;
}

}  // namespace torchgraft::shift::cuda::planes
