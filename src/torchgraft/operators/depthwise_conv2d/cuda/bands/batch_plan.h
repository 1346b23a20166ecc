// How bands_batch cuts a pass into blocks, and in which pieces a block loads its sources. Host code alone, so
// that every limit is tested without a GPU.
#pragma once

#include "../supports.h"

namespace torchgraft::depthwise::cuda {

struct BatchPlan {
  // A block owns so many channels of so many images, a multiple of kBatchImages.
  int channels_of_block, images_of_block;
  int chunks;  // blocks that share the images of a channel
  int64_t blocks;
  int64_t bytes;  // of shared memory that a block takes
  // Elements that one copy moves, which divide a row. If it is 1, a thread reads `vector` elements of the run
  // of memory that the block's channels of one image are, and splits them up.
  int piece, vector;
};

// The most shared memory that a block may take if `shape.blocks` of them run on a multiprocessor. Each block
// takes one KB more than it asks for.
inline int64_t batch_most_bytes(const BatchShape& shape, int64_t shared_of_multiprocessor,
                                int64_t shared_of_block) {
  constexpr int64_t kReservedBytes = 1024;
  return std::min(shared_of_multiprocessor / shape.blocks - kReservedBytes, shared_of_block);
}

// The channels that a block owns: several if planes are small, as many as fit `most_bytes` with one tile of
// images.
inline int64_t batch_channels(const Geometry& geometry, bool transposed, const BatchShape& shape,
                              int64_t most_bytes) {
  constexpr int64_t kSmallPlane = 8 * 8;
  constexpr int64_t kChannelsOfSmallPlanes = 8;
  if (std::max(geometry.input_pixels(), geometry.output_pixels()) > kSmallPlane) return 1;
  int64_t channels = std::min(kChannelsOfSmallPlanes, geometry.channels);
  while (channels > 1 && batch_bytes(geometry, transposed, shape, channels, kBatchImages) > most_bytes) {
    --channels;
  }
  return channels;
}

// `source_alignment` is the greatest power of two, at most 16, that the address of the sources is a multiple
// of.
inline BatchPlan batch_plan(const Geometry& geometry, bool transposed, const BatchShape& shape,
                            int source_alignment, int multiprocessors, int64_t most_bytes) {
  const auto bytes = [&](int64_t channels, int64_t tiles) {
    return batch_bytes(geometry, transposed, shape, channels, tiles * kBatchImages);
  };
  BatchPlan plan = {};
  const int64_t channels = batch_channels(geometry, transposed, shape, most_bytes);
  const int64_t channel_groups = ceil_divide(geometry.channels, channels);
  const int64_t tiles = ceil_divide<int64_t>(geometry.batch, kBatchImages);
  // As few chunks as give every multiprocessor its blocks and fit shared memory.
  int64_t chunks = std::min(tiles, ceil_divide(int64_t{multiprocessors} * shape.blocks, channel_groups));
  while (chunks < tiles && bytes(channels, ceil_divide(tiles, chunks)) > most_bytes) ++chunks;
  const int64_t tiles_of_block = ceil_divide(tiles, chunks);
  plan.channels_of_block = static_cast<int>(channels);
  plan.images_of_block = static_cast<int>(tiles_of_block * kBatchImages);
  plan.chunks = static_cast<int>(ceil_divide(tiles, tiles_of_block));
  plan.blocks = channel_groups * plan.chunks;
  plan.bytes = bytes(channels, tiles_of_block);

  const PassAxis height(geometry.height, transposed);
  const PassAxis width(geometry.width, transposed);
  plan.piece = 8;
  while (plan.piece > 1 && (width.source % plan.piece != 0 || source_alignment % (2 * plan.piece) != 0)) {
    plan.piece /= 2;
  }
  const int64_t plane = int64_t{height.source} * width.source;
  plan.vector =
      source_alignment == 16 && geometry.channels * plane % 8 == 0 && channels * plane % 8 == 0 ? 8 : 1;
  return plan;
}

}  // namespace torchgraft::depthwise::cuda
