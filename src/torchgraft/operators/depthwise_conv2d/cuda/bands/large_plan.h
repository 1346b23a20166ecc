// How bands_large cuts a pass into blocks, and a block's images into rounds. Host code alone, so that every
// limit is tested without a GPU.
#pragma once

#include "../supports.h"

namespace torchgraft::depthwise::cuda {

constexpr int kLargeWarps = 8;      // of a block
constexpr int kUnitsOfProduct = 8;  // of a warp at once

struct LargePlan {
  int octets;           // that the window of any result spans, as many as the kernel is compiled for
  int images_of_round;  // that a block holds in shared memory at once
  int rounds_of_block;
  int chunks;     // blocks that share the images of a channel
  int64_t bytes;  // of shared memory that a block takes
};

inline LargePlan large_plan(const Geometry& geometry, bool transposed, int multiprocessors) {
  constexpr int64_t kBytesForTwoBlocks = 48 << 10;  // of shared memory a block
  constexpr int64_t kBlocksOfMultiprocessor = 8;
  const auto bytes = [&](int64_t images) { return large_product_bytes(geometry, transposed, images); };
  LargePlan plan = {};
  plan.octets = large_product_octets(geometry, transposed);
  // As many images as give every warp a group of units, if two blocks of them fit a multiprocessor.
  const int pairs = ceil_divide(PhaseAxis(geometry.height, transposed).phase_result, 2);
  const int64_t wanted = std::max(1, kLargeWarps * kUnitsOfProduct / pairs);
  int64_t images = std::min(wanted, geometry.batch);
  while (images > 1 && bytes(images) > kBytesForTwoBlocks) --images;
  plan.images_of_round = static_cast<int>(images);
  plan.bytes = bytes(images);
  // Enough blocks to fill the device several times, against the cost of laying out the taps in each.
  const int64_t blocks = multiprocessors * kBlocksOfMultiprocessor;
  const int64_t rounds = ceil_divide(geometry.batch, images);
  const int64_t rounds_of_block = std::max<int64_t>(1, rounds * geometry.output_channels() / blocks);
  plan.rounds_of_block = static_cast<int>(rounds_of_block);
  plan.chunks = static_cast<int>(ceil_divide(rounds, rounds_of_block));
  return plan;
}

}  // namespace torchgraft::depthwise::cuda
