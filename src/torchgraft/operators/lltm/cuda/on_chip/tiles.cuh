// What the kernels on chip in float share: who a thread is in its block and its group of blocks, the barriers
// of tiles of rows, and how four numbers go to a block.
#pragma once

#include <cooperative_groups.h>

#include <cstring>
#include <type_traits>

#include "../groups.cuh"
#include "../unit.cuh"
#include "exchange.cuh"

namespace torchgraft::lltm::cuda {

__device__ __forceinline__ float element_of(const float4& four, int i) {
  return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
}

// The bits of four numbers from `from` on, of which the first `count` are there: all or none where they are
// loaded at once.
template <bool kAtOnce, typename Bits>
__device__ __forceinline__ void load_four(Bits (&four)[4], const Bits* from, int count) {
  if constexpr (kAtOnce) {
    if (count > 0) memcpy(four, __builtin_assume_aligned(from, sizeof(four)), sizeof(four));
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i < count) four[i] = from[i];
    }
  }
}

// Calls `function` with a pointer to the bits of weight_hh and whether four are loaded at once, as a type.
template <typename Function>
__device__ __forceinline__ void visit_weight(const DynamicInput& weight, bool at_once,
                                             const Function& function) {
  weight.visit([&](const auto* bits) {
    if (at_once) {
      function(bits, std::true_type{});
    } else {
      function(bits, std::false_type{});
    }
  });
}

// Four numbers into the shared memory of a block of the group, at the place that is `to` in this one's: in a
// cluster so that the block's barrier counts them.
template <Group kGroup>
__device__ __forceinline__ void send(float* to, const float4& four, [[maybe_unused]] int block,
                                     [[maybe_unused]] uint32_t barrier) {
  if constexpr (kGroup == Group::cluster) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    const uint4 bits = make_uint4(__float_as_uint(four.x), __float_as_uint(four.y), __float_as_uint(four.z),
                                  __float_as_uint(four.w));
    const auto rank = static_cast<uint32_t>(block);
    ptx::st_async(ptx::mapa(shared_address(to), rank), bits, ptx::mapa(barrier, rank));
#endif
  } else {
    *reinterpret_cast<float4*>(to) = four;
  }
}

// What a thread is to its block and to its group of blocks, forward and back. A warp computes 32 units of a
// row at a time, a lane one of them, always of the same rows.
template <typename S>
class Member {
 protected:
  static constexpr int kRowsAtOnce = S::kWarps / S::kUnitWarps;
  static_assert(S::kWarps % S::kUnitWarps == 0 && (kRowsAtOnce & (kRowsAtOnce - 1)) == 0,
                "a warp's rows are of the same units");

  __device__ __forceinline__ Member(int64_t steps, int64_t batch, int64_t units, bool forward,
                                    int group_blocks, int group_rows)
      : steps_(static_cast<int>(steps)),
        units_(static_cast<int>(units)),
        first_(forward ? 0 : (steps - 1) * batch * units),
        stride_((forward ? 1 : -1) * batch * units),
        group_blocks_(group_blocks),
        group_rows_(group_rows),
        rank_(static_cast<int>(blockIdx.x) % group_blocks),
        first_row_(static_cast<int>(blockIdx.x) / group_blocks * group_rows),
        rows_(min(group_rows, static_cast<int>(batch) - first_row_)),
        tile_rows_(tile_rows_of(group_rows, S::kTiles)),
        tiles_((rows_ + tile_rows_ - 1) / tile_rows_),
        lane_(static_cast<int>(threadIdx.x) % 32),
        warp_(static_cast<int>(threadIdx.x) / 32),
        own_row_(warp_ / S::kUnitWarps),
        column_(warp_ % S::kUnitWarps * 32 + lane_),
        unit_(rank_ * S::kUnits + column_),
        barriers_(shared_address(shared_memory<float>())) {}

  // Of shared memory behind the barriers.
  __device__ __forceinline__ float* memory() const {
    return shared_memory<float>() + barrier_bytes_of(group_rows_, S::kTiles, S::kBarriers) / 4;
  }

  __device__ __forceinline__ int end_of(int tile) const { return min((tile + 1) * tile_rows_, rows_); }
  // The first row of a tile whose units this warp computes, or one past the tile's end.
  __device__ __forceinline__ int own_row_of(int tile) const {
    const int first = tile * tile_rows_;
    return first + ((own_row_ - first) & (kRowsAtOnce - 1));
  }
  __device__ __forceinline__ bool has_unit() const { return unit_ < units_; }
  // Of this thread's unit of a row among those of a step.
  __device__ __forceinline__ int state_of(int row) const { return (first_row_ + row) * units_ + unit_; }
  // Of the first gate of it among those of a step.
  __device__ __forceinline__ int gate_of(int row) const { return 3 * state_of(row) - 2 * unit_; }

  __device__ __forceinline__ CountedBarriers barriers_of(int tile, int part) const {
    return {barriers_ + 16 * static_cast<uint32_t>(tile * S::kBarriers + part)};
  }
  __device__ __forceinline__ uint32_t barrier_of(int tile, int part, int step) const {
    return barriers_of(tile, part).address + 8 * static_cast<uint32_t>(step % 2);
  }
  // What the blocks of a cluster, this one among them, write into this one's memory for a barrier: of a part
  // of the group's units, or where there are no parts what all blocks have for this one's.
  __device__ __forceinline__ uint32_t bytes_of(int tile, int part) const {
    int numbers = group_blocks_ * S::kUnits;
    if constexpr (S::kBarriers > 1) numbers = max(min(numbers - part * S::kPart, S::kPart), 0);
    return static_cast<uint32_t>((end_of(tile) - tile * tile_rows_) * numbers * 4);
  }

  // No block may write into another's memory before that has been initialised.
  __device__ __forceinline__ void start_group() const {
    wait_for_all_copies();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if constexpr (S::kGroup == Group::cluster) {
      if (warp_ == 0) {
        for (int tile = 0; tile < tiles_; ++tile) {
#pragma unroll 1
          for (int part = 0; part < S::kBarriers; ++part) barriers_of(tile, part).start(bytes_of(tile, part));
        }
      }
      cooperative_groups::this_cluster().sync();
      return;
    }
#endif
    __syncthreads();
  }

  int steps_;
  int units_;
  int64_t first_;   // of the first step among the numbers of all, one a unit
  int64_t stride_;  // from a step's to those of the next
  int group_blocks_;
  int group_rows_;
  int rank_;
  int first_row_;
  int rows_;
  int tile_rows_;
  int tiles_;
  int lane_;
  int warp_;
  int own_row_;  // the first of those whose units this warp computes
  int column_;   // of this thread's unit among the block's
  int unit_;
  uint32_t barriers_;
};

// Whether weight_hh is read four numbers at a time.
template <typename Pass>
bool reads_float4(const Pass& pass) {
  return pass.units % 4 == 0 && is_aligned(pass.weight.data(), pass.weight.is_float() ? 16 : 8);
}

}  // namespace torchgraft::lltm::cuda
