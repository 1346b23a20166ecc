// The sizes that a launch of channels_last follows from its plan (supports.h): how a row of the images is cut
// among groups of channels, threads and copies, and how the ring lies in shared memory. Host code alone, so
// that it is tested without a GPU.
#pragma once

#include <torchgraft/numbers.h>

#include <algorithm>
#include <cstdint>

#include "supports.h"

namespace torchgraft::shift::cuda {

// The largest power of two that divides all these bits, and at most sixteen: the bytes of one copy if the
// bits are those of an address and of the bytes of a pixel.
inline int bytes_of_copy(uint64_t bits) {
  bits |= 16;
  return static_cast<int>(bits & (~bits + 1));
}

// Sizes are in elements unless a name says bytes.
struct ChannelsLastSizes {
  int group;                // channels of a block
  int groups;               // of channels
  int piece_bytes;          // of one copy
  int pieces, last_pieces;  // copies for a pixel: in all groups of channels but the last, and in the last
  int chunks;               // threads along a row
  int row_pitch;            // of the ring
  int ring_elements;        // the zeros in front of the ring, its rows, and a row of zeros
  int slots_of_row;         // slots by which one row of results moves the sources in the ring

  // `address` is where the source begins.
  ChannelsLastSizes(const Plan& plan, const Geometry& geometry, int element_bytes, uint64_t address) {
    const int width = static_cast<int>(geometry.width);
    const int channels = static_cast<int>(geometry.channels);
    group = plan.pixel_bytes / element_bytes;
    groups = ceil_divide(channels, group);
    // Asynchronous copies take at least four bytes; an element of two is copied by itself.
    const uint64_t pixel_bytes =
        static_cast<uint64_t>(geometry.channels) * static_cast<uint64_t>(element_bytes);
    piece_bytes = std::max(bytes_of_copy(address | pixel_bytes), element_bytes);
    const int piece = piece_bytes / element_bytes;
    pieces = std::min(group, channels) / piece;
    last_pieces = (channels - (groups - 1) * group) / piece;
    chunks = ceil_divide(width, kColumns);
    row_pitch = (width + kMargin) * group;
    ring_elements = kMargin * group + (plan.stage_rows + 1) * row_pitch;
    slots_of_row = stride_of(geometry) % plan.stage_rows;
  }
};

}  // namespace torchgraft::shift::cuda
