// How the kernels of rows in NHWC share out results, taps and channels: host code alone, so that tests ask it
// on any machine.
#pragma once

#include <numeric>

#include "../problem.h"

namespace torchgraft::depthwise::cuda {

constexpr int kPixelThreads = 256;
constexpr int kPixelTapsAtOnce = 8;
constexpr int64_t kPixelSharedBytes = 48 << 10;
constexpr int64_t kPixelMostTaps = 256;

// The results of a row that lie `results` apart have the same taps, and their sources lie `sources` apart: so
// neighbours among them share all sources but one. A result uses every `taps`-th tap of such a run; a forward
// pass has as many runs of taps.
struct SharingSteps {
  int results, sources, taps;

  // Of neighbouring results that share nothing.
  constexpr SharingSteps(int dilation) : results(1), sources(dilation), taps(1) {}
  constexpr SharingSteps(const Extent& extent, bool transposed)
      : results(static_cast<int>(transposed ? spread(extent) : shrunk(extent))),
        sources(static_cast<int>(transposed ? shrunk(extent) : spread(extent))),
        taps(static_cast<int>(extent.stride / std::gcd(extent.stride, extent.dilation))) {}

 private:
  static constexpr int64_t shrunk(const Extent& extent) {
    return extent.dilation / std::gcd(extent.stride, extent.dilation);
  }
  static constexpr int64_t spread(const Extent& extent) { return shrunk(extent) * extent.stride; }
};

// The units of a row, if a thread owns so many results of one.
struct PixelUnits {
  int classes, groups;  // classes are counted fastest

  constexpr PixelUnits(int results, int step, int owned)
      : classes(std::min(results, step)), groups(ceil_divide(ceil_divide(results, step), owned)) {}
  constexpr int count() const { return classes * groups; }
};

// How the threads of a block are dealt: so many lanes along neighbouring channels, of which several groups of
// blocks have a part each.
struct PixelLanes {
  int lanes, groups;

  int slots() const { return kPixelThreads / lanes; }
};

constexpr int kLanesOfSectors = 4;

// About as many in each group, and no more than `most`. Several groups are of whole sectors of memory, so
// that no two blocks write to the same one.
inline PixelLanes pixel_lanes(int64_t words, int most) {
  const int64_t groups = ceil_divide<int64_t>(words, most);
  if (groups == 1) return {static_cast<int>(words), 1};
  const int lanes = static_cast<int>(round_up(ceil_divide(words, groups), int64_t{kLanesOfSectors}));
  return {lanes, static_cast<int>(ceil_divide<int64_t>(words, lanes))};
}

// The weights of a tap in shared memory: those of the lanes of a block, and one word between taps, so that
// those of neighbouring taps lie in other banks.
inline int pixel_pitch(int lanes, int channels_of_lane) { return (lanes + 1) * channels_of_lane; }

// The most lanes whose weights fit shared memory, of 32.
inline int most_pixel_lanes(int64_t taps, int channels_of_lane) {
  constexpr int64_t kWarp = 32;
  const int64_t words = kPixelSharedBytes / (taps * channels_of_lane * static_cast<int64_t>(sizeof(float)));
  return static_cast<int>(std::min(kWarp, (words - 1) / kLanesOfSectors * kLanesOfSectors));
}
static_assert(kPixelSharedBytes / (kPixelMostTaps * 4 * 4) >= 5, "a word, or four lanes of whole sectors");

// The taps whose sums a thread of a weight gradient keeps, and the groups of them in a row of the kernel: of
// each run so many.
struct PixelTaps {
  int owned, groups_of_run, runs;

  PixelTaps(const Extent& width) {
    const int step = SharingSteps(width, /*transposed=*/false).taps;
    const int kernel = static_cast<int>(width.kernel);
    runs = std::min(kernel, step);
    const int longest = ceil_divide(kernel, step);
    groups_of_run = ceil_divide(longest, kPixelTapsAtOnce);
    const int needed = ceil_divide(longest, groups_of_run);
    owned = needed <= 4 ? std::max(needed, 2) : round_up(needed, 2);
  }
  int groups() const { return groups_of_run * runs; }
};

constexpr int kPixelManyResults = 8, kPixelFewResults = 4, kPixelOneResult = 1;

// What a block may need that turns its results: weights, and a tile of results.
constexpr int64_t kTurnedSharedBytes = 96 << 10;

// Whether a thread owns one result at a time: with a stride, results that have few taps and share few sources
// wait for memory once, where runs of taps would wait one after the other.
inline bool owns_one_result(const Extent& width, bool transposed) {
  constexpr int64_t kMostTaps = 16, kMostShared = 4;
  return !transposed && width.stride > 1 && width.kernel <= std::min(kMostTaps, kMostShared * width.stride);
}

// How many results of a row a thread of a forward pass or of an input gradient owns otherwise: many, unless
// that leaves more threads without work, or the device has too few threads to wait for memory.
inline int pixel_results(const Problem& problem, int step, int channels_of_lane) {
  constexpr int64_t kThreadsOfMultiprocessor = 512;
  constexpr double kOfMoreReads = 1.25;
  const int results = static_cast<int>(problem.result(problem.geometry.width));
  const int64_t rows =
      problem.geometry.batch * ceil_divide<int64_t>(problem.geometry.channels, channels_of_lane);
  const int many = PixelUnits(results, step, kPixelManyResults).count();
  const int few = PixelUnits(results, step, kPixelFewResults).count();
  const bool is_small = rows * many < kThreadsOfMultiprocessor * problem.multiprocessors;
  return is_small || many * 2 > few * kOfMoreReads ? kPixelFewResults : kPixelManyResults;
}

// How a weight gradient is shared out: threads with the same channels own other taps, or other parts of rows.
// A unit is a stretch of the results of a row that lie a step apart; a chunk has so many units, and its sums
// are added up by one block for each group of channels and each block of taps.
struct PixelWeightGradPlan {
  PixelLanes lanes;
  int groups_of_block, group_blocks;
  int classes, stretch, stretches;
  int units, units_of_chunk, chunks;

  PixelWeightGradPlan(const Geometry& geometry, const PixelTaps& taps, int channels_of_lane,
                      int multiprocessors, int64_t most_chunks) {
    constexpr int kManyChannels = 64, kFewChannels = 32;  // of a block
    constexpr int64_t kLeastStretch = 8, kMostStretch = 64, kStep = 4;
    constexpr int64_t kBlocksOfMultiprocessor = 4;
    // A second pass takes as long as so many steps of the first.
    constexpr int64_t kStepsOfSecondPass = 8;
    const int results = static_cast<int>(geometry.width.output);
    const int step = SharingSteps(geometry.width, /*transposed=*/false).results;
    const int64_t rows = geometry.batch;
    const int64_t words = ceil_divide<int64_t>(geometry.channels, channels_of_lane);
    classes = std::min(results, step);
    const int64_t of_class = ceil_divide(results, step);
    const bool is_small = rows * results * words < kLeastStretch * kPixelThreads * 2 * multiprocessors;
    lanes = pixel_lanes(words, (is_small ? kFewChannels : kManyChannels) / channels_of_lane);
    const int groups = taps.groups();
    group_blocks = ceil_divide(groups, lanes.slots());
    groups_of_block = ceil_divide(groups, group_blocks);
    const int64_t parts = lanes.slots() / groups_of_block,
                  blocks_of_chunk = int64_t{lanes.groups} * group_blocks;
    const int64_t wanted = ceil_divide(multiprocessors * kBlocksOfMultiprocessor, blocks_of_chunk);
    // Stretches so long that every part has one.
    const int64_t stretches_wanted = ceil_divide(wanted * parts, rows * classes);
    stretch = static_cast<int>(
        std::clamp(round_up(ceil_divide(of_class, stretches_wanted), kStep), kLeastStretch, kMostStretch));
    stretches = static_cast<int>(ceil_divide<int64_t>(of_class, stretch));
    units = static_cast<int>(rows * classes * stretches);
    const int64_t turns = ceil_divide<int64_t>(units, parts);
    const bool is_one = turns * (stretch / kStep + 1) <= kStepsOfSecondPass;
    const int64_t most = is_one ? 1 : std::clamp<int64_t>(std::min(wanted, turns), 1, most_chunks);
    units_of_chunk = static_cast<int>(ceil_divide<int64_t>(units, most));
    chunks = ceil_divide(units, units_of_chunk);
  }
};

}  // namespace torchgraft::depthwise::cuda
