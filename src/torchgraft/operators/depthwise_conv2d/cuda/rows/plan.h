// How the kernels of rows cut their work: which rows, and which part of each, a block stages in shared
// memory, and how its threads share them out. Host code alone, so that every limit is tested without a GPU.
#pragma once

#include <torchgraft/numbers.h>

#include <algorithm>
#include <cstdint>

#include "../problem.h"

namespace torchgraft::depthwise::cuda {

constexpr int kRowVectorBytes = 16;
constexpr int kRowWarp = 32;

// ---------------------------------------------------------------- rows_stream and rows_stream_weight_grad

// With more taps than these a chunk's neighbours no longer hold all that it reads.
constexpr int kStreamTaps = 8;
constexpr int kStreamOwnLeast = 8;  // elements of a chunk, or twice as many
constexpr int kStreamThreads = 256;
// Weight gradient: blocks are small, so that while one waits for memory others compute.
constexpr int kStreamWeightGradThreads = 128;

// The chunks of a row, which may begin at any element of a vector.
inline int stream_chunks(int length, int own, int vector) {
  const int shift = length % vector == 0 ? 0 : vector - 1;
  return ceil_divide(length + shift, own);
}

// ---------------------------------------------------------------- rows_window

constexpr int kWindowMostThreads = 256;
// Taps that a thread takes at a time; rows of weights in shared memory are this many numbers longer or less,
// and four more, so that rows lie in different banks.
constexpr int kWindowTaps = 8;
// Tiles in shared memory are no larger than this, so that a multiprocessor holds several blocks.
constexpr int64_t kRowsSharedBytes = 24 << 10;

// Chunks of sixteen bytes in shared memory are in groups of four, within which they are permuted (place_of).
constexpr int kPermutedChunks = 4;

// The elements of a row in shared memory: whole groups.
inline int row_pitch(int64_t elements, int element_bytes) {
  const int group = kPermutedChunks * kRowVectorBytes / element_bytes;
  return static_cast<int>(round_up(elements, int64_t{group}));
}

// Whether a thread owns sixteen results, and not eight: with many taps it then reads less of shared memory
// for each, and rows are long enough that few of them are outside.
inline bool has_long_windows(const PassAxis& axis) {
  constexpr int kTaps = 24, kResults = 400;
  return axis.kernel >= kTaps && axis.result >= kResults;
}

struct RowsWindowPlan {
  int threads;   // of a block, each with one chunk of a row
  int rows;      // of a tile
  int chunks;    // of each of its rows
  int segments;  // tiles side by side that make up a row
  int pitch;     // between rows in shared memory, in elements
  int weight_pitch;
  int64_t shared_bytes;
};

// `own` results of a chunk; `shift`: elements by which the first chunk may begin before its row.
inline RowsWindowPlan plan_rows_window(const PassAxis& axis, int64_t rows, int own, int shift,
                                       int element_bytes, int multiprocessors) {
  constexpr int kChunksOfMultiprocessor = 1024;
  const int chunks = static_cast<int>(ceil_divide(int64_t{axis.result} + shift, int64_t{own}));
  const bool has_many = rows * chunks >= int64_t{multiprocessors} * kChunksOfMultiprocessor;
  RowsWindowPlan plan = {};
  plan.weight_pitch = round_up(axis.kernel, kWindowTaps) + 4;
  const auto fill = [&](int threads) {
    plan.segments = ceil_divide(chunks, threads);
    plan.chunks = ceil_divide(chunks, plan.segments);
    plan.pitch =
        row_pitch(plan.chunks * own + axis.kernel / kWindowTaps * kWindowTaps + kWindowTaps, element_bytes);
    const int64_t bytes_of_row =
        int64_t{plan.pitch} * element_bytes + int64_t{sizeof(float)} * plan.weight_pitch;
    plan.rows = static_cast<int>(std::clamp<int64_t>(
        std::min<int64_t>(threads / plan.chunks, kRowsSharedBytes / bytes_of_row), 1, rows));
    plan.threads = round_up(plan.rows * plan.chunks, kRowWarp);
    plan.shared_bytes = plan.rows * bytes_of_row;
    // The share of threads that have a chunk.
    return static_cast<double>(plan.rows) * chunks / (static_cast<double>(plan.segments) * plan.threads);
  };
  // Several blocks of a multiprocessor should be at different steps: larger ones only where fewer threads
  // idle.
  constexpr int kThreads[] = {128, 160, 192, 224, 256, 96};
  constexpr double kGain = 1.05;
  int best = kThreads[0];
  double most = 0;
  for (const int threads : kThreads) {
    const double share = fill(has_many ? threads : threads / 2);
    if (share <= most * kGain) continue;
    best = threads;
    most = share;
  }
  fill(has_many ? best : best / 2);
  return plan;
}

// ---------------------------------------------------------------- rows_spread

constexpr int kSpreadThreads = 256;
constexpr int kSpreadOutputs = 4;  // of a thread at a time
constexpr int64_t kSpreadMostStride = 8;
constexpr int64_t kSpreadSharedBytes = 48 << 10;

struct RowsSpreadPlan {
  int lanes;     // threads that share a row
  int rows;      // of a tile
  int results;   // of each of its rows
  int segments;  // tiles side by side that make up a row
  int sources;   // staged of each row
  int pitch, weight_pitch;
  int64_t shared_bytes;
};

inline RowsSpreadPlan plan_rows_spread(const Extent& extent, bool transposed, int element_bytes) {
  const PassAxis axis(extent, transposed);
  const bool gathers = transposed && extent.stride > 1;  // a result takes every stride-th tap
  const int stride = static_cast<int>(extent.stride), dilation = static_cast<int>(extent.dilation);
  RowsSpreadPlan plan = {};
  constexpr int kBytesOfTile = 8 << 10, kLeastResults = 128, kLeastLanes = 4;
  const int most = std::max(kBytesOfTile / element_bytes / (gathers ? 1 : stride), kLeastResults);
  plan.segments = ceil_divide(axis.result, most);
  plan.results = ceil_divide(axis.result, plan.segments);
  plan.lanes = kLeastLanes;
  while (plan.lanes < kSpreadThreads && plan.lanes * kSpreadOutputs < plan.results) plan.lanes *= 2;
  plan.rows = kSpreadThreads / plan.lanes;
  plan.sources = gathers ? (plan.results - 1) / stride + 2 + (axis.kernel - 1) / stride
                         : (plan.results - 1) * stride + (axis.kernel - 1) * dilation + 1;
  plan.pitch = row_pitch(plan.sources, element_bytes);
  plan.weight_pitch = axis.kernel | 1;
  const int64_t bytes_of_row =
      int64_t{plan.pitch} * element_bytes + int64_t{sizeof(float)} * plan.weight_pitch;
  while (plan.rows > 1 && plan.rows * bytes_of_row > kRowsSharedBytes) plan.rows /= 2;
  plan.shared_bytes = plan.rows * bytes_of_row;
  return plan;
}

// ---------------------------------------------------------------- rows_weight_grad

constexpr int kRowsWeightGradThreads = 512;  // at most

// Taps and positions of a thread, by the taps of a kernel.
constexpr int rows_weight_grad_taps(int64_t kernel, bool is_unit_step) {
  constexpr int64_t kManyTaps = 128;  // for which eight taps would take more threads than a block should have
  if (kernel <= 4) return 4;
  return kernel <= 8 || (!is_unit_step && kernel <= kManyTaps) ? 8 : 16;
}

struct RowsWeightGradPlan {
  int taps;               // of a thread
  int own;                // positions that a thread takes at a time
  int groups;             // of taps
  int lanes;              // threads of each group, which share the positions of a tile
  int rows;               // of a tile: the same channel of so many items
  int outputs;            // of each row of a tile
  int segments;           // tiles side by side that make up a row
  int sources;            // staged of each row
  int grad_pitch, pitch;  // between rows in shared memory, in elements
  int64_t shared_bytes;
  int64_t tiles;  // of a channel

  int threads() const { return groups * lanes; }
};

inline RowsWeightGradPlan plan_rows_weight_grad(const Extent& extent, int64_t batch, int element_bytes) {
  constexpr int kOutputs = 1024, kOutputsOfManyTaps = 2048, kLeastOutputs = 128;
  const bool is_unit_step = extent.stride == 1 && extent.dilation == 1;
  const int kernel = static_cast<int>(extent.kernel), output = static_cast<int>(extent.output);
  const int stride = static_cast<int>(extent.stride), dilation = static_cast<int>(extent.dilation);
  RowsWeightGradPlan plan = {};
  plan.taps = rows_weight_grad_taps(kernel, is_unit_step);
  plan.own = plan.taps == 16 ? 16 : 8;
  plan.groups = ceil_divide(kernel, plan.taps);
  plan.lanes = plan.groups == 1 ? 128 : plan.groups == 2 ? 64 : kRowWarp;
  // Each lane has at least one share of a tile.
  const int of_lanes = std::max(plan.lanes * plan.own, kOutputs);
  const int most = std::max((plan.groups > 2 ? kOutputsOfManyTaps : of_lanes) / stride, kLeastOutputs);
  plan.segments = ceil_divide(output, most);
  plan.outputs = round_up(ceil_divide(output, plan.segments), plan.own);
  plan.segments = ceil_divide(output, plan.outputs);
  plan.grad_pitch = row_pitch(plan.outputs, element_bytes);
  // With neighbouring positions threads read the window of all taps that they own, even behind the last one.
  plan.sources = is_unit_step
                     ? plan.outputs + round_up(plan.groups * plan.taps, kRowVectorBytes / element_bytes)
                     : (plan.outputs - 1) * stride + (kernel - 1) * dilation + 1;
  plan.pitch = row_pitch(plan.sources, element_bytes);
  const int64_t bytes_of_row = (int64_t{plan.grad_pitch} + plan.pitch) * element_bytes;
  plan.rows = static_cast<int>(std::clamp<int64_t>(
      std::min<int64_t>(most / plan.grad_pitch, kRowsSharedBytes / bytes_of_row), 1, batch));
  // Sums of warps lie there in the end.
  plan.shared_bytes = std::max<int64_t>(plan.rows * bytes_of_row,
                                        int64_t{sizeof(float)} * plan.threads() / kRowWarp * plan.taps);
  plan.tiles = ceil_divide<int64_t>(batch, plan.rows) * plan.segments;
  return plan;
}

// How many blocks share the tiles of a channel: a few for each multiprocessor to have several blocks at once,
// but no more than there is room for partial sums.
inline int64_t parts_of_rows(int64_t channels, int64_t most_chunks, int multiprocessors) {
  constexpr int64_t kBlocksOfMultiprocessor = 24;
  return std::clamp<int64_t>(ceil_divide(kBlocksOfMultiprocessor * multiprocessors, channels), 1,
                             most_chunks);
}

}  // namespace torchgraft::depthwise::cuda
