// What the kernels on chip in float share: who a thread is in its block and its group of blocks, the barriers
// of tiles of rows, and how four numbers go to a block.
#pragma once

#include <cooperative_groups.h>

#include "../unit.cuh"
#include "../weights.cuh"
#include "member.cuh"

namespace torchgraft::lltm::cuda {

// Writes four numbers into the shared memory of a block of the group, to the place that is `to` in this
// block. In a cluster the other block's barrier counts their bytes.
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

// A group's rows are multiplied a tile at a time, and each tile has barriers of its own.
class TileMember : protected GroupMember {
 protected:
  template <typename S, typename Pass>
  __device__ __forceinline__ TileMember(Tag<S>, const Pass& pass, bool is_reverse, int group_blocks,
                                        int group_rows)
      : GroupMember(pass, is_reverse, group_blocks, group_rows, S::kUnits),
        steps_(static_cast<int>(pass.steps)),
        tile_rows_(tile_rows_of(group_rows, S::kTiles)),
        tiles_((rows_ + tile_rows_ - 1) / tile_rows_),
        barriers_(shared_address(shared_memory<float>())) {
    static_assert((S::kRowsAtOnce & (S::kRowsAtOnce - 1)) == 0);
  }

  // Shared memory behind the barriers.
  template <typename S>
  __device__ __forceinline__ float* memory() const {
    return shared_memory<float>() + barrier_bytes_of(group_rows_, S::kTiles, S::kBarriers) / 4;
  }

  __device__ __forceinline__ int end_of(int tile) const { return min((tile + 1) * tile_rows_, rows_); }
  // The first row of a tile whose units this warp computes, or one past the tile's end.
  template <typename S>
  __device__ __forceinline__ int own_row_of(int tile) const {
    const int first = tile * tile_rows_;
    return first + ((own_row_ - first) & (S::kRowsAtOnce - 1));
  }

  // `index`: of a tile and, where a tile has several, of a part of the depth.
  __device__ __forceinline__ CountedBarriers barriers_of(int index) const {
    return {barriers_ + 16 * static_cast<uint32_t>(index)};
  }
  __device__ __forceinline__ uint32_t barrier_of(int index, int step) const {
    return barriers_of(index).address + 8 * static_cast<uint32_t>(step % 2);
  }
  // How many bytes the blocks of a cluster, this one among them, write into this one's memory for a barrier:
  // for a part of the group's units, or where there are no parts what all blocks have for this one's.
  template <typename S>
  __device__ __forceinline__ uint32_t bytes_of(int tile, int part) const {
    int numbers = group_blocks_ * S::kUnits;
    if constexpr (S::kBarriers > 1) numbers = max(min(numbers - part * S::kPart, S::kPart), 0);
    return static_cast<uint32_t>((end_of(tile) - tile * tile_rows_) * numbers * 4);
  }

  // No block may write into another's memory before that has been initialised.
  template <typename S>
  __device__ __forceinline__ void start_group() const {
    wait_for_all_copies();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if constexpr (S::kGroup == Group::cluster) {
      if (warp_ == 0) {
        for (int tile = 0; tile < tiles_; ++tile) {
#pragma unroll 1
          for (int part = 0; part < S::kBarriers; ++part) {
            barriers_of(tile * S::kBarriers + part).start(bytes_of<S>(tile, part));
          }
        }
      }
      cooperative_groups::this_cluster().sync();
      return;
    }
#endif
    __syncthreads();
  }

  int steps_;
  int tile_rows_;
  int tiles_;
  uint32_t barriers_;
};

}  // namespace torchgraft::lltm::cuda
