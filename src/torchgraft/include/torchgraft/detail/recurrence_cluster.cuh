// The place of a thread in a recurrence whose weights stay on the chip, and where these weights lie.
//
// A cluster owns some rows of the batch for all steps, and each of its blocks kUnits units of them. Up to
// kUnits units a cluster is one block, which has nobody to wait for.
#pragma once

#include <cooperative_groups.h>
#include <torchgraft/ptx.cuh>

#include <cstdint>

#include "../async_copy.cuh"
#include "../cuda.cuh"
#include "../mma.cuh"
#include "counted_barriers.cuh"
#include "recurrence_split.cuh"

namespace torchgraft::recurrence {

// A thread's fragments of weights: of each column of tiles the first kKept tiles lie in registers, and the
// others in shared memory, `columns` next to each other. Indices are constant once loops are unrolled.
template <int kTiles, int kColumns, int kKept, int kThreads>
class Fragments {
 public:
  static constexpr int64_t shared_bytes(int64_t columns) {
    return columns * (kTiles - kKept) * kThreads * 16;
  }

  __device__ __forceinline__ void store(uint4* shared, int columns, int tile, int column,
                                        const uint32_t (&fragment)[4]) {
    if (tile < kKept) {
#pragma unroll
      for (int e = 0; e < 4; ++e) kept_[tile < kKept ? tile : 0][column][e] = fragment[e];
    } else {
      shared[place_of(columns, tile, column)] =
          make_uint4(fragment[0], fragment[1], fragment[2], fragment[3]);
    }
  }
  __device__ __forceinline__ void load(const uint4* shared, int columns, int tile, int column,
                                       uint32_t (&fragment)[4]) const {
    if (tile < kKept) {
#pragma unroll
      for (int e = 0; e < 4; ++e) fragment[e] = kept_[tile < kKept ? tile : 0][column][e];
    } else {
      const uint4 four = shared[place_of(columns, tile, column)];
      fragment[0] = four.x;
      fragment[1] = four.y;
      fragment[2] = four.z;
      fragment[3] = four.w;
    }
  }

 private:
  __device__ __forceinline__ static int place_of(int columns, int tile, int column) {
    return ((tile - kKept) * columns + column) * kThreads + static_cast<int>(threadIdx.x);
  }

  uint32_t kept_[kKept][kColumns][4];
};

// A block's shape. Eight warps make the products; then each computes the units of some rows, one unit a lane.
inline constexpr int kUnits = 32;       // of a block
inline constexpr int kMostBlocks = 16;  // of a cluster; more than eight only on devices that take so many
inline constexpr int kWarps = 8;
inline constexpr int kThreads = 32 * kWarps;
inline constexpr int kTileRows = 4;       // rows of the batch in a tile; a row has two columns, high and low
inline constexpr int kLine = 2 * kUnits;  // `high` and `low` of a block's units: see recurrence_split.cuh
// Numbers of device memory that a step needs are copied to shared memory so many steps ahead.
inline constexpr int kStages = 2;
// Registers of a thread that hold weights, of the 255 that it has.
inline constexpr int kWeightRegisters = 160;

// How many float16 numbers stand for a weight. One is enough for weights of float16 and bfloat16, whose rows
// are scaled by a power of two; two hold 22 bits of a float.
enum class Weights : int { in_one_half = 1, in_two_halves = 2 };

// How many blocks a cluster may have so that its weights fit on the chip; zero if they cannot. `halves`: the
// gates of the cell times the float16 numbers of a weight.
constexpr int most_blocks(int halves) {
  return halves <= 10 ? kMostBlocks : halves <= 20 ? kMostBlocks / 2 : 0;
}

// How many of so many tiles stay in registers, an even number, if a tile takes 4 registers a column.
constexpr int kept_tiles(int tiles, int columns) {
  const int kept = kWeightRegisters / (4 * columns) / 2 * 2;
  return kept < tiles ? kept : tiles;
}

// A thread's place in its cluster: its block, the rows of the batch, and its unit. Indices within a step fit
// 32 bits.
class Member {
 protected:
  __device__ __forceinline__ Member(int64_t steps, int64_t batch, int64_t units, bool from_the_end,
                                    int blocks, int cluster_rows)
      : units_(static_cast<int>(units)),
        first_(from_the_end ? (steps - 1) * batch * units : 0),
        stride_((from_the_end ? -1 : 1) * batch * units),
        blocks_(blocks),
        cluster_rows_(cluster_rows),
        rank_(static_cast<int>(blockIdx.x) % blocks),
        first_row_(static_cast<int>(blockIdx.x) / blocks * cluster_rows),
        rows_(min(cluster_rows, static_cast<int>(batch) - first_row_)),
        padded_rows_((cluster_rows + kTileRows - 1) / kTileRows * kTileRows),
        lane_(static_cast<int>(threadIdx.x) % 32),
        warp_(static_cast<int>(threadIdx.x) / 32),
        unit_(rank_ * kUnits + lane_) {}

  __device__ __forceinline__ bool has_unit() const { return unit_ < units_; }
  // The index of this thread's unit of a row in a tensor of one number a unit, from the step's first number
  // on; and of its first gate in a tensor of so many gates a unit.
  __device__ __forceinline__ int state_of(int row) const { return (first_row_ + row) * units_ + unit_; }
  __device__ __forceinline__ int gate_of(int row, int gates) const {
    return (first_row_ + row) * gates * units_ + unit_;
  }
  __device__ __forceinline__ static int swizzled(int chunk, int row) { return chunk ^ row % kTileRows; }

  // No block may write into another's memory before that has been initialised, and runs.
  __device__ __forceinline__ void start_cluster(CountedBarriers barriers, uint32_t bytes) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (blocks_ > 1) {
      if (warp_ == 0) barriers.start(bytes);
      cooperative_groups::this_cluster().sync();
      return;
    }
#endif
    __syncthreads();
  }
  // Waits for what the cluster's blocks sent in the step before.
  __device__ __forceinline__ void wait_for_cluster(CountedBarriers barriers, int64_t step,
                                                   uint32_t bytes) const {
    if (blocks_ > 1) {
      barriers.wait(step, bytes);
    } else {
      __syncthreads();
    }
  }

  int units_;
  int64_t first_;   // the index of the first step's first number in a tensor of one number a unit
  int64_t stride_;  // from a step's to the next one's
  int blocks_;
  int cluster_rows_;
  int rank_;  // of this block in the cluster
  int first_row_;
  int rows_;  // of this cluster
  int padded_rows_;
  int lane_;
  int warp_;  // also the first row whose units it computes
  int unit_;
};

// Weights as halves, in rows of `padded` that begin at sixteen bytes; a row was divided by its scale.
struct ScaledWeight {
  const Half* halves[2];  // the second is null if there is one
  const float* scales;
  int padded;
};

__device__ __forceinline__ uint32_t pair_at(const Half* from, bool is_there) {
  return is_there ? *reinterpret_cast<const uint32_t*>(from) : 0u;
}

// 2**e where the largest finite magnitude of a warp's numbers is 2**e to 2**(e + 1). Infinite ones stay so
// when they are divided by that. If they counted, the numbers beside them would become zero, and zero times
// an infinite weight is NaN.
__device__ __forceinline__ float power_below_largest(float magnitude) {
  constexpr uint32_t kInfinity = 0xffu << 23;
  uint32_t most = __float_as_uint(magnitude);
  if (most >= kInfinity) most = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  most = __reduce_max_sync(0xffffffffu, most);
#endif
  return __uint_as_float(min(max(most >> 23, 1u), 253u) << 23);
}
// One over such a power.
__device__ __forceinline__ float one_over(float power) {
  return __uint_as_float((254u << 23) - __float_as_uint(power));
}

}  // namespace torchgraft::recurrence
