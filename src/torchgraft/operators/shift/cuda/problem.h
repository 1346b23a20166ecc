// What a choice of a kernel for a shift on CUDA may ask, and what a kernel is launched with.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../sizes.h"

namespace torchgraft::shift::cuda {

enum class Pass { forward, input_grad, offset_grad, grads };

constexpr bool is_transposed(Pass pass) { return pass != Pass::forward; }
constexpr bool has_images(Pass pass) { return pass != Pass::offset_grad; }
constexpr bool has_sums(Pass pass) { return pass == Pass::offset_grad || pass == Pass::grads; }

// A stride beyond the image gives the same results as any other one there; this one still divides fast.
inline int stride_of(const Geometry& geometry) {
  return static_cast<int>(std::min(geometry.stride, geometry.height + 1));
}

// One pass over images that are dense in one layout. No tensor is empty.
struct Problem {
  Geometry geometry;
  Pass pass;
  bool channels_last;
  int element_bytes;
  // Of the device; shared memory in bytes.
  int multiprocessors;
  int64_t shared_of_block;
  int64_t shared_of_multiprocessor;

  bool transposed() const { return is_transposed(pass); }
  int64_t source_rows() const { return transposed() ? geometry.steps : geometry.height; }
  int64_t result_rows() const { return transposed() ? geometry.height : geometry.steps; }
  int sum_bytes() const { return element_bytes == 8 ? 8 : 4; }

  Problem on_any_device() const {
    Problem other = *this;
    other.shared_of_block = 227 << 10;
    other.shared_of_multiprocessor = 228 << 10;
    return other;
  }
};

// How a kernel cuts its work; opaque but for the number of partial sums of a channel, along x and along y.
// `partial` lies [along x, along y][channel][part].
struct Plan {
  int64_t parts = 1;
  int blocks = 0;
  int threads = 0;
  int tile_rows = 0;    // planes: rows of results of a tile
  int stage_rows = 0;   // planes: rows of sources of a tile; channels_last: rows of the ring
  int step = 0;         // planes: rows of results of a thread
  int pixel_bytes = 0;  // channels_last: of a block's channels
  int span = 0;         // channels_last: rows by which offsets differ in one pass
  int64_t shared_bytes = 0;
};

// Blocks that are resident at once on the device, of kernels whose registers let so many threads be.
inline int resident_blocks(const Problem& problem, int threads, int64_t shared_bytes, int most_threads) {
  constexpr int kReservedBytes = 1024;
  constexpr int kMostBlocks = 32;
  const int64_t blocks = std::min({int64_t{kMostBlocks}, int64_t{most_threads / threads},
                                   problem.shared_of_multiprocessor / (shared_bytes + kReservedBytes)});
  return problem.multiprocessors * static_cast<int>(std::max<int64_t>(blocks, 1));
}

}  // namespace torchgraft::shift::cuda
