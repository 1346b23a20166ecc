// How the kernel of channels_last images (cuda_channels_last.cu) cuts its work, and where it can.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "cuda_problem.h"

namespace torchgraft::shift::cuda::channels_last {

constexpr int kColumns = 5;            // of a thread; odd, so that chunks of fewer lanes differ in banks
constexpr int kMargin = kColumns + 1;  // pixels of zeros beside a row: all that a thread may read outside
// What may be tuned: rows of results that are taken between two barriers, and those that copies are ahead.
constexpr int rows_between_barriers(Pass pass) { return has_sums(pass) ? 1 : 2; }
constexpr int kAhead = 4;
constexpr int kMostThreads = 512;
// Of a pixel's channels in a block; few where a row is long, and yet a sector.
constexpr int kPixelBytes = 128;
constexpr int kNarrowPixelBytes = 32;
constexpr int64_t kLeastSpan = 5;  // rows, of offsets in one pass
// Threads that are resident at once on a multiprocessor, by registers: of 96 and of 80 a thread.
constexpr int resident_threads(Pass pass) { return has_sums(pass) ? 640 : 768; }

// Nothing where positions are too large for 32 bits, a row too long for the threads of a block, or shared
// memory too small for the rows that one result needs.
inline std::optional<Plan> plan(const Problem& problem) {
  constexpr int64_t kLimit = int64_t{1} << 29;
  const Geometry& geometry = problem.geometry;
  const Pass pass = problem.pass;
  const int64_t rows = problem.result_rows();
  const int64_t source_rows = problem.source_rows();
  const int64_t stride = stride_of(geometry);
  // What a thread moves at once: four bytes; of double one element.
  const int64_t word_bytes = std::max(problem.element_bytes, 4);
  const int64_t word = word_bytes / problem.element_bytes;
  const int64_t channel_bytes = divide_up(geometry.channels, word) * word_bytes;
  const int64_t chunks = divide_up(geometry.width, kColumns);
  if (geometry.height >= kLimit || geometry.channels * geometry.width >= kLimit ||
      geometry.batch * rows >= kLimit) {
    return std::nullopt;
  }
  const auto threads_of_row = [&](int64_t pixel_bytes) { return chunks * pixel_bytes / word_bytes; };
  int64_t pixel_bytes = kPixelBytes;
  if (channel_bytes <= kNarrowPixelBytes || threads_of_row(pixel_bytes) > kMostThreads) {
    pixel_bytes = kNarrowPixelBytes;
  }
  if (threads_of_row(pixel_bytes) > kMostThreads) return std::nullopt;

  const int64_t row_bytes = (geometry.width + kMargin) * pixel_bytes;
  const int64_t margin_bytes = kMargin * pixel_bytes;
  const int64_t threads = divide_up(threads_of_row(pixel_bytes), 32) * 32;
  const int64_t sums = has_sums(pass) ? 2 * word * threads * problem.sum_bytes() : 0;
  for (const int blocks : {4, 3, 2, 1}) {
    const int64_t budget =
        std::min<int64_t>(problem.shared_of_multiprocessor / blocks - 1024, problem.shared_of_block) -
        margin_bytes - sums;
    // One slot more is the row of zeros.
    const int64_t ring = std::min(budget / row_bytes - 1, source_rows);
    // Copies overtake the last of the rows that are taken, by kAhead, while the first one is read.
    const int64_t between = kAhead + rows_between_barriers(pass) - 1;
    int64_t span =
        problem.transposed() && stride > 1 ? (ring - 2) * stride - between - 1 : ring - 2 - between * stride;
    if (ring >= source_rows) span = kLimit;
    if (ring < 1 || span < (blocks > 1 ? kLeastSpan : 0)) continue;
    const int64_t groups = divide_up(channel_bytes, pixel_bytes);
    if (groups >= kLimit / 1024) return std::nullopt;
    Plan plan;
    plan.pixel_bytes = static_cast<int>(pixel_bytes);
    plan.stage_rows = static_cast<int>(ring);
    plan.span = static_cast<int>(span);
    plan.threads = static_cast<int>(threads);
    plan.shared_bytes = margin_bytes + (ring + 1) * row_bytes + sums;
    const int64_t resident =
        resident_blocks(problem, plan.threads, plan.shared_bytes, resident_threads(pass));
    plan.parts = std::clamp<int64_t>(resident / groups, 1, geometry.batch * rows);
    plan.blocks = static_cast<int>(groups * plan.parts);
    return plan;
  }
  return std::nullopt;
}

inline bool supports(const Problem& problem) { return problem.channels_last && plan(problem).has_value(); }

}  // namespace torchgraft::shift::cuda::channels_last
