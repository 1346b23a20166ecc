// How channels fall into vectors, for all passes on CPU. A block is one vector of channels of an image, or of
// several images where an image has few channels.
#pragma once

#include <torchgraft/numbers.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "rows.h"

namespace torchgraft::depthwise::cpu {

// Taps that take less time than the memory they read, which is fastest in its own order.
inline constexpr int64_t kFewTaps = 9;

struct Blocks {
  Layout layout;
  int64_t batch;
  int64_t image_channels;  // destination channels of one image
  int64_t lanes;           // of a register
  int64_t fold;            // images that a block takes channels of
  int64_t channels;        // destination channels of these images
  int64_t count;           // blocks that hold them

  // Lanes of a block: half of sixteen where they hold all channels that there are, side by side.
  int64_t block_lanes() const {
    const bool half = lanes == kMostLanes && channels <= kMostLanes / 2;
    return layout == Layout::channels_last && half ? kMostLanes / 2 : lanes;
  }

  // The first of a block's channels. Where they lie side by side the last block is a whole one too, and makes
  // again what the one before has made.
  int64_t begin(int64_t block) const {
    const int64_t begin = block * lanes;
    return layout == Layout::channels_last && channels >= lanes ? std::min(begin, channels - lanes) : begin;
  }

  // Whether vectors of channels lie side by side in images of T themselves, and pass through no scratch,
  // where loops read elements of S.
  template <typename T, typename S = accumulate_t<T>>
  bool are_direct(int64_t multiplier) const {
    return layout == Layout::channels_last && std::is_same_v<T, S> && multiplier == 1;
  }

  // How many of the blocks [block, end) a row takes along, `most` at most. The last block, which may make
  // again what the one before has made, goes by itself unless it `may_overlap`: where it adds to memory it
  // must not.
  int64_t together(int64_t block, int64_t end, int64_t most, bool may_overlap) const {
    const int64_t whole = may_overlap ? end : std::min(channels / lanes, end);
    return std::clamp<int64_t>(whole - block, 1, most);
  }

  // The channels of one block, from `image` on, in images of so many channels and pixels; `channel_of` turns
  // a destination channel into one of theirs.
  template <typename T, typename Channel>
  Channels<T> channels_of(int64_t block, T* images, int64_t image, int64_t channels_of_image, int64_t pixels,
                          const Channel& channel_of) const {
    const bool contiguous = layout == Layout::contiguous;
    const int64_t elements = channels_of_image * pixels;
    const int64_t first = begin(block);
    const int64_t end = std::min(first + lanes, std::min(fold, batch - image) * image_channels);
    // For a small plane all of this takes as long as its sums: so offsets are not set to zero first, and
    // there is no division for each lane.
    Channels<T> result;
    result.image = images + image * elements;
    result.count = end - first;
    result.pixel_step = contiguous ? 1 : channels_of_image;
    int64_t offset = first / image_channels * elements;
    int64_t channel = first % image_channels;
    for (int64_t lane = 0; lane < result.count; ++lane) {
      result.offsets[lane] = offset + channel_of(channel) * (contiguous ? pixels : 1);
      if (++channel == image_channels) {
        channel = 0;
        offset += elements;
      }
    }
    std::fill(result.offsets.begin() + result.count, result.offsets.end(), 0);
    return result;
  }
};

template <typename T>
Blocks make_blocks(Layout layout, int64_t source_channels, int64_t destination_channels, int64_t batch) {
  // Of one channel both layouts are one, and planes can share a vector.
  if (source_channels == 1 && destination_channels == 1) layout = Layout::contiguous;
  const int64_t lanes = vector_bytes() / static_cast<int64_t>(sizeof(accumulate_t<T>));
  const int64_t fold = folded_images<T>(layout, lanes, source_channels, destination_channels, batch);
  const int64_t channels = fold * destination_channels;
  return {layout, batch, destination_channels, lanes, fold, channels, ceil_divide(channels, lanes)};
}

}  // namespace torchgraft::depthwise::cpu
