// What each kernel can compute at all, and how it cuts its work: host code alone, so that it is tested
// without a GPU. policy.h says where a kernel pays.
#pragma once

#include <torchgraft/numbers.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

#include "problem.h"

namespace torchgraft::shift::cuda {

constexpr int kColumns = 5;  // of results of a thread; odd, so that chunks of fewer lanes differ in banks

// ---------------------------------------------------------------- planes: contiguous images

// What may be tuned: bytes of a tile's sources (and as many of its results) that keep a thread busy, and
// tiles in shared memory.
constexpr int64_t bytes_of_thread(Pass pass) { return has_sums(pass) ? 64 : 128; }
constexpr int kStages = 2;

constexpr int kTileThreads = 128;  // of a block
constexpr int kTilesAhead = 16;    // tiles that are worked out at once
// Of 32 and 64 threads, where tiles are small.
constexpr bool has_narrow_blocks(int element_bytes, bool strided) { return element_bytes != 8 && !strided; }
// Threads that are resident at once on a multiprocessor, by registers.
constexpr int planes_resident_threads(int element_bytes, Pass pass) {
  return element_bytes == 8 ? 512 : (pass == Pass::grads ? 768 : 1024);
}

// Of all that is to be known of a tile, in shared memory: the size of PlanesTile in planes_tile.cuh.
constexpr int tile_bytes(int element_bytes) { return element_bytes == 8 ? 128 : 112; }
// Of shared memory, next to a launch's.
inline int64_t planes_declared_bytes(const Problem& problem) {
  return 2 * kTilesAhead * tile_bytes(problem.element_bytes) + 2 * kTileThreads / 32 * problem.sum_bytes();
}

// What a block's shared memory holds, in elements.
struct Room {
  int64_t margin, input_place, stage, results;
  int64_t bytes;

  Room(int64_t tile_rows, int64_t source_rows, int64_t width, Pass pass, int element_bytes) {
    // An offset leads up to a row and two elements beyond; what is read there is thrown away.
    constexpr int64_t kBeyond = kColumns + 4;
    const int64_t piece = 16 / element_bytes;
    const auto whole_pieces = [&](int64_t elements) { return ceil_divide(elements, piece) * piece; };
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
  return kTileThreads * bytes_of_thread(problem.pass) / (problem.geometry.width * problem.element_bytes);
}
constexpr int64_t kFewestRows = 2;

// Tiles that keep threads busy, or where rows are too long for that, of one row of results. Nothing where
// positions are too large for 32 bits, or shared memory too small.
inline std::optional<Tiles> cut_planes(const Problem& problem) {
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
  tiles.rows = ceil_divide(rows, ceil_divide(rows, std::min(most_rows, rows)));
  tiles.source_rows = from_one_row ? (tiles.rows - 1) / stride + 2 : (tiles.rows - 1) * stride + 2;
  tiles.count = geometry.planes() * ceil_divide(rows, tiles.rows);
  tiles.shared_bytes = Room(tiles.rows, tiles.source_rows, width, problem.pass, problem.element_bytes).bytes;
  const bool fits =
      tiles.count < kLimit && tiles.shared_bytes <= problem.shared_of_block - planes_declared_bytes(problem);
  return fits ? std::optional(tiles) : std::nullopt;
}

inline bool supports_planes(const Problem& problem) {
  return !problem.channels_last && cut_planes(problem).has_value();
}

// Rows of results of a thread: as few as give all threads work; or a few more, where lanes would often meet
// in a bank of shared memory.
inline int rows_of_thread(int64_t tile_rows, int64_t width, int threads, int element_bytes) {
  const int64_t chunks = ceil_divide(width, kColumns);
  const int64_t groups = std::max<int64_t>(threads / chunks, 1);
  const int64_t fewest = ceil_divide(tile_rows, groups);
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

// For a problem that the kernel supports.
inline Plan plan_planes(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  const Tiles tiles = *cut_planes(problem);
  Plan plan;
  plan.tile_rows = static_cast<int>(tiles.rows);
  plan.stage_rows = static_cast<int>(tiles.source_rows);
  plan.shared_bytes = tiles.shared_bytes;
  plan.threads = kTileThreads;
  while (has_narrow_blocks(problem.element_bytes, stride_of(geometry) > 1) && plan.threads > 32 &&
         std::max(tiles.rows, tiles.source_rows) * geometry.width * problem.element_bytes <=
             plan.threads / 2 * bytes_of_thread(problem.pass)) {
    plan.threads /= 2;
  }
  plan.step = rows_of_thread(tiles.rows, geometry.width, plan.threads, problem.element_bytes);
  const int resident =
      resident_blocks(problem, plan.threads, plan.shared_bytes + planes_declared_bytes(problem),
                      planes_resident_threads(problem.element_bytes, problem.pass));
  // All blocks take as many tiles: no few of them run on alone.
  plan.blocks = static_cast<int>(ceil_divide(tiles.count, ceil_divide(tiles.count, resident)));
  plan.parts = geometry.batch * ceil_divide(problem.result_rows(), tiles.rows);
  return plan;
}

// ---------------------------------------------------------------- channels_last

constexpr int kMargin = kColumns + 1;  // pixels of zeros beside a row: all that a thread may read outside
// What may be tuned: rows of results that are taken between two barriers, and those that copies are ahead.
constexpr int rows_between_barriers(Pass pass) { return has_sums(pass) ? 1 : 2; }
constexpr int kRowsAhead = 4;
constexpr int kMostRowThreads = 512;
// Of a pixel's channels in a block; few where a row is long, and yet a sector.
constexpr int kPixelBytes = 128;
constexpr int kNarrowPixelBytes = 32;
constexpr int64_t kLeastSpan = 5;  // rows, of offsets in one pass
// Threads that are resident at once on a multiprocessor, by registers: of 96 and of 80 a thread.
constexpr int channels_last_resident_threads(Pass pass) { return has_sums(pass) ? 640 : 768; }

// How the kernel cuts its work; nothing if positions are too large for 32 bits, a row is too long for the
// threads of a block, or shared memory is too small for the rows that one result needs.
inline std::optional<Plan> cut_channels_last(const Problem& problem) {
  constexpr int64_t kLimit = int64_t{1} << 29;
  const Geometry& geometry = problem.geometry;
  const Pass pass = problem.pass;
  const int64_t rows = problem.result_rows();
  const int64_t source_rows = problem.source_rows();
  const int64_t stride = stride_of(geometry);
  // What a thread moves at once: four bytes; of double one element.
  const int64_t word_bytes = std::max(problem.element_bytes, 4);
  const int64_t word = word_bytes / problem.element_bytes;
  const int64_t channel_bytes = ceil_divide(geometry.channels, word) * word_bytes;
  const int64_t chunks = ceil_divide(geometry.width, kColumns);
  if (geometry.height >= kLimit || geometry.channels * geometry.width >= kLimit ||
      geometry.batch * rows >= kLimit) {
    return std::nullopt;
  }
  const auto threads_of_row = [&](int64_t pixel_bytes) { return chunks * pixel_bytes / word_bytes; };
  int64_t pixel_bytes = kPixelBytes;
  if (channel_bytes <= kNarrowPixelBytes || threads_of_row(pixel_bytes) > kMostRowThreads) {
    pixel_bytes = kNarrowPixelBytes;
  }
  if (threads_of_row(pixel_bytes) > kMostRowThreads) return std::nullopt;

  const int64_t row_bytes = (geometry.width + kMargin) * pixel_bytes;
  const int64_t margin_bytes = kMargin * pixel_bytes;
  const int64_t threads = ceil_divide(threads_of_row(pixel_bytes), 32) * 32;
  const int64_t sums = has_sums(pass) ? 2 * word * threads * problem.sum_bytes() : 0;
  for (const int blocks : {4, 3, 2, 1}) {
    const int64_t budget =
        std::min<int64_t>(problem.shared_of_multiprocessor / blocks - 1024, problem.shared_of_block) -
        margin_bytes - sums;
    // One slot more is the row of zeros.
    const int64_t ring = std::min(budget / row_bytes - 1, source_rows);
    // Copies overtake the last of the rows that are taken, by kRowsAhead, while the first one is read.
    const int64_t between = kRowsAhead + rows_between_barriers(pass) - 1;
    int64_t span =
        problem.transposed() && stride > 1 ? (ring - 2) * stride - between - 1 : ring - 2 - between * stride;
    if (ring >= source_rows) span = kLimit;
    if (ring < 1 || span < (blocks > 1 ? kLeastSpan : 0)) continue;
    const int64_t groups = ceil_divide(channel_bytes, pixel_bytes);
    if (groups >= kLimit / 1024) return std::nullopt;
    Plan plan;
    plan.pixel_bytes = static_cast<int>(pixel_bytes);
    plan.stage_rows = static_cast<int>(ring);
    plan.span = static_cast<int>(span);
    plan.threads = static_cast<int>(threads);
    plan.shared_bytes = margin_bytes + (ring + 1) * row_bytes + sums;
    const int64_t resident =
        resident_blocks(problem, plan.threads, plan.shared_bytes, channels_last_resident_threads(pass));
    plan.parts = std::clamp<int64_t>(resident / groups, 1, geometry.batch * rows);
    plan.blocks = static_cast<int>(groups * plan.parts);
    return plan;
  }
  return std::nullopt;
}

inline bool supports_channels_last(const Problem& problem) {
  return problem.channels_last && cut_channels_last(problem).has_value();
}

// For a problem that the kernel supports.
inline Plan plan_channels_last(const Problem& problem) { return *cut_channels_last(problem); }

// ---------------------------------------------------------------- direct: anything

inline Plan plan_direct(const Problem& problem) {
  // Blocks for several rounds on a large device; a part is worth 32 rows.
  constexpr int64_t kWanted = 4096;
  const int64_t rows = std::max<int64_t>(problem.geometry.batch * problem.geometry.steps, 1);
  const int64_t parts =
      std::clamp<int64_t>(kWanted / problem.geometry.channels, 1, std::max<int64_t>(rows / 32, 1));
  Plan plan;
  plan.parts = ceil_divide(rows, ceil_divide(rows, parts));
  return plan;
}

}  // namespace torchgraft::shift::cuda
