// The CPU kernels of causal_conv1d take these beside the call: pieces of packed sequences, and the units of
// work that they are shared out in.
#pragma once

#include <torchgraft/dispatch.h>
#include <torchgraft/numbers.h>

#include <algorithm>
#include <vector>

#include "../sizes.h"

namespace torchgraft::causal_conv1d {

// A sequence: `length` elements of an item, from `begin` on.
struct Segment {
  int64_t item;
  int64_t begin;
  int64_t length;
  // The rows of the initial and of the final state that belong to it; negative: it has none.
  int64_t initial_row;
  int64_t final_row;
  // Whether it is padding: its results are zero.
  bool is_padding;
};

// The times [from, to) of a segment, counted from its beginning.
struct Piece {
  Segment segment;
  int64_t from;
  int64_t to;
};

// Times in a piece, and channels in a tile if channels are side by side; otherwise a tile is one channel.
struct Blocks {
  int64_t times;
  int64_t channels;
};
// `width` is that of a kernel compiled for one width, or 0 for a kernel of any. A wide weight reads up to 255
// elements on either side of a piece, so its pieces are longer and its tiles narrower: a tile of a piece
// stays in the second level of the cache.
constexpr Blocks blocks_of(int64_t width, bool channels_last) {
  if (!channels_last) return {width == 0 ? 1024 : 512, 1};
  return width == 0 ? Blocks{256, 16} : Blocks{64, 64};
}
// The width for which a kernel was compiled that takes a weight of `width`.
constexpr int64_t compiled_width(int64_t width) { return width >= 2 && width <= 4 ? width : 0; }

// Work for threads. Unit `u` is tile `u % tiles` of the pieces of group `u / tiles`, which begin at
// `groups[u / tiles]`. Groups follow from the sizes alone: so sums have the same bits on any number of
// threads.
struct Work {
  std::vector<Piece> pieces;
  std::vector<int64_t> groups;
  int64_t tiles;
  int64_t grain;

  int64_t units() const { return (static_cast<int64_t>(groups.size()) - 1) * tiles; }
};

// Units of work from `begin` to before `end`. Backward, each group leaves its sums for the gradients of
// weight and bias in `partials` (groups, channels, width + 1).
template <typename T>
void run_channels_first(const Forward<T>& call, const Work& work, int64_t begin, int64_t end);
template <typename T>
void run_channels_last(const Forward<T>& call, const Work& work, int64_t begin, int64_t end);
template <typename T>
void run_channels_first(const Backward<T>& call, const Work& work, int64_t begin, int64_t end,
                        accumulate_t<T>* partials);
template <typename T>
void run_channels_last(const Backward<T>& call, const Work& work, int64_t begin, int64_t end,
                       accumulate_t<T>* partials);

// Units of a step of decoding: unit `u` is tile `u % tiles` of the channels of item `u / tiles`.
template <typename T>
void run_update(const Update<T>& call, int64_t begin, int64_t end);
inline int64_t update_tiles(int64_t channels, int64_t width) {
  return ceil_divide(channels, blocks_of(compiled_width(width), true).channels);
}

}  // namespace torchgraft::causal_conv1d
