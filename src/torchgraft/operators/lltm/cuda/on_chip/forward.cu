// The recurrence of a whole sequence in float, up to 512 units: groups of blocks keep weight_hh in registers.
//
// A group of blocks owns some rows of the batch for all steps, and never waits for another. Up to 128 units
// it is one block, which has all of weight_hh in its registers and meets nobody; up to 256 units a cluster of
// at most four blocks of 64 units, or where it has one or two rows of at most eight blocks of 32; up to 512
// units a cluster of at most sixteen blocks of 32. A thread holds its part of weight_hh, up to 192 numbers,
// from the first step to the last. A step is
//
//     forward   h of all units in shared memory -> sums, each warp's of a part of the depth -> own c, h
//               -> own h to all blocks of the group
//     back      own gradients of h -> own gradients of gates -> what they give to the gradients of h of all
//               units -> to each block what is for its units; a block adds up what all gave it, in order
//
// so that in both directions 4 bytes a unit and row go to a block: all gradients of gates would be three
// times as much. They are written into its shared memory sixteen bytes a message, where barriers count them;
// nothing waits for writes to device memory, as the barrier of a cluster does. What a step needs of device
// memory comes two steps ahead, into shared memory, as registers are full.
//
// Rows are multiplied a tile at a time, and tiles follow each other: while units of one are computed by as
// many warps as it has rows, and their results are on their way, the others multiply the next. So where a
// group has several tiles arithmetic bounds a step, 3 * units**2 / blocks multiply-adds a row at 128 a clock,
// of which loads of h, barriers and the units' arithmetic, some 300 instructions for 32 units, leave two
// thirds. Where it has one row the way of h bounds it: a message takes about two cycles of both blocks, and
// 500 until it is there (on_chip/mma_forward.cu).
//
// Microseconds of a step on an H200, where of clusters of sixteen blocks seven fit:
//
//     rows, units             16, 128   256, 96   1, 512   32, 512   128, 256
//     a group's rows                1         2        1         5          5
//     its tiles, forward            1     1 + 1        1     3 + 2      3 + 2
//     multiply-adds, cycles       384       432      384      1920       1920
//     forward, predicted          0.6       0.6      0.9       1.5        1.6
//     forward                     0.8       1.5      1.0       2.6        2.6
//     back, predicted             0.6       0.8      0.9       1.6        1.7
//     back                        1.0       1.8      1.1       3.4        3.4
//     by a cluster's barrier      1.6       3.6      1.8       3.9        4.7   forward
//
// One row of 512 units takes what was predicted: the way of h. Where arithmetic should bound a step, counters
// show the multiply-adds' pipe busy 39 % of the time, and issue slots 55 %, on the busiest multiprocessor
// 74 %: half of the instructions are others, and two warps a scheduler do not hide the barriers of the block
// (a fifth of all waiting) and the latency of one instruction after the other (a sixth); no bank is met
// twice. Sixteen warps of half as many weights each spilled, and left no registers to load h ahead. Three
// tiles of two rows at the most took 17 % longer, barriers that acquire within the block only the same.

#include <cooperative_groups.h>

#include <cstring>
#include <type_traits>

#include "../../host.h"
#include "../groups.cuh"
#include "../kernels.h"
#include "../unit.cuh"

namespace torchgraft::lltm::cuda {
namespace {

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
__device__ __forceinline__ void visit_weight(const Numbers& weight, bool at_once, const Function& function) {
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
template <Way kWay>
__device__ __forceinline__ void give(float* to, const float4& four, [[maybe_unused]] int block,
                                     [[maybe_unused]] uint32_t barrier) {
  if constexpr (kWay == Way::cluster) {
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

  __device__ __forceinline__ StepBarriers barriers_of(int tile, int part) const {
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
  __device__ __forceinline__ void meet_first() const {
    wait_for_all_fetches();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if constexpr (S::kWay == Way::cluster) {
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

template <typename S>
class Forward : Member<S> {
 public:
  __device__ __forceinline__ Forward(const ForwardPass& pass, int group_blocks, int group_rows)
      : Member<S>(pass.steps, pass.batch, pass.units, !pass.reverse, group_blocks, group_rows), pass_(pass) {
    buffers_ = memory();
    sums_ = buffers_ + 2 * group_rows * S::kDepth;
    gates_ = sums_ + 2 * S::kSums;
    c_ = gates_ + kSlots * 3 * group_rows * S::kUnits;
    bias_ = c_ + group_rows * S::kUnits;
  }

  __device__ __forceinline__ void run(bool is_aligned) {
    load_first();
    visit_weight(pass_.weight, is_aligned,
                 [&](const auto* weight, auto at_once) { load_weights(weight, at_once); });
    meet_first();

    float* sums = sums_;
    float* next_sums = sums_ + S::kSums;
    int64_t first = first_;
    for (int step = 0; step < steps_; ++step) {
      for (int tile = 0; tile < tiles_; ++tile) {
        multiply(step, tile, sums);
        __syncthreads();
        for (int row = own_row_of(tile); row < end_of(tile); row += kRowsAtOnce) {
          advance(step, first, tile, row, sums);
        }
        float* const other = sums;
        sums = next_sums;
        next_sums = other;
      }
      first += stride_;
    }
  }

 private:
  using Base = Member<S>;
  using Base::kRowsAtOnce, Base::end_of, Base::own_row_of, Base::has_unit, Base::state_of, Base::gate_of,
      Base::barriers_of, Base::barrier_of, Base::bytes_of, Base::meet_first, Base::memory, Base::steps_,
      Base::units_, Base::first_, Base::stride_, Base::group_blocks_, Base::group_rows_, Base::rank_,
      Base::first_row_, Base::rows_, Base::tile_rows_, Base::tiles_, Base::lane_, Base::warp_, Base::own_row_,
      Base::column_, Base::unit_;

  // Of a row: what the others write for one step while this block may still read that of the step before.
  __device__ __forceinline__ float* h_of(int step, int row) const {
    return buffers_ + (step % 2 * group_rows_ + row) * S::kDepth;
  }
  __device__ __forceinline__ float* gates_of(int step, int row) const {
    return gates_ + (step % kSlots * group_rows_ + row) * 3 * S::kUnits + column_;
  }
  __device__ __forceinline__ float* c_of(int row) const { return c_ + row * S::kUnits + column_; }

  // Where a thread's unit is not there nothing comes.
  __device__ __forceinline__ void fetch(int step, int64_t first, int row) const {
    if (step >= steps_ || !has_unit()) return;
    const float* from = pass_.activations + 3 * first + gate_of(row);
    float* to = gates_of(step, row);
#pragma unroll
    for (int g = 0; g < 3; ++g) fetch_four_bytes(to + g * S::kUnits, from + g * units_);
  }

  // Zeros where there is no h, where there is no unit, and for parts of the depth that are not multiplied.
  __device__ __forceinline__ void load_first() const {
    for (int row = own_row_; row < rows_; row += kRowsAtOnce) {
      fetch(0, first_, row);
      fetch(1, first_ + stride_, row);
      *c_of(row) = has_unit() ? pass_.c0[state_of(row)] : 0.0f;
      if (has_unit()) continue;
#pragma unroll
      for (int i = 0; i < 3 * kSlots; ++i) gates_of(i / 3, row)[i % 3 * S::kUnits] = 0.0f;
    }
    for (int i = static_cast<int>(threadIdx.x); i < 2 * group_rows_ * S::kDepth; i += S::kBlock) {
      const int row = i / S::kDepth;
      const int k = i % S::kDepth;
      buffers_[i] = row < rows_ && k < units_ ? pass_.h0[int64_t{first_row_ + row} * units_ + k] : 0.0f;
    }
    for (int i = static_cast<int>(threadIdx.x); i < 2 * S::kSums; i += S::kBlock) sums_[i] = 0.0f;
    for (int i = static_cast<int>(threadIdx.x); i < 3 * S::kUnits; i += S::kBlock) {
      const int unit = rank_ * S::kUnits + i % S::kUnits;
      const bool has_bias = pass_.bias && unit < units_;
      bias_[i] = has_bias ? pass_.bias[i / S::kUnits * units_ + unit] : 0.0f;
    }
  }

  __device__ __forceinline__ int part() const { return warp_ / S::kUnitWarps; }

  template <typename Bits, bool kAtOnce>
  __device__ __forceinline__ void load_weights(const Bits* weight, std::bool_constant<kAtOnce>) {
#pragma unroll
    for (int g = 0; g < 3; ++g) {
#pragma unroll
      for (int d = 0; d < S::kPart; d += 4) {
        const int k = part() * S::kPart + d;
        const Bits* from = weight + (int64_t{g} * units_ + unit_) * units_ + k;
        Bits four[4] = {};
        load_four<kAtOnce>(four, from, has_unit() ? units_ - k : 0);
#pragma unroll
        for (int e = 0; e < 4; ++e) weights_[g][d + e] = pass_.weight.value_of(four[e]);
      }
    }
  }

  // Waits for this warp's part of h of a tile, which the blocks published in the step before. Of one block
  // its barrier does where another tile has been multiplied since.
  __device__ __forceinline__ void receive(int step, int tile) const {
    if (step == 0) return;
    if constexpr (S::kWay == Way::cluster) {
      barriers_of(tile, part()).wait(step, bytes_of(tile, part()), column_ == 0);
    } else if (tiles_ == 1) {
      __syncthreads();
    }
  }

  // sums[row][part][gate][unit] of this warp's part of the depth.
  template <int kRows>
  __device__ __forceinline__ void multiply_rows(const float* h, float* sums) const {
    float sum[kRows][3] = {};
#pragma unroll
    for (int d = 0; d < S::kPart; d += 4) {
      float4 four[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) four[r] = *reinterpret_cast<const float4*>(h + r * S::kDepth + d);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int g = 0; g < 3; ++g) {
            sum[r][g] = fmaf(element_of(four[r], e), weights_[g][d + e], sum[r][g]);
          }
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int g = 0; g < 3; ++g) sums[(r * S::kDepthWarps * 3 + g) * S::kUnits] = sum[r][g];
    }
  }

  __device__ __forceinline__ void multiply(int step, int tile, float* sums) const {
    if (S::kWay == Way::cluster && part() * S::kPart >= units_) return;
    receive(step, tile);
    const int row = tile * tile_rows_;
    const float* h = h_of(step, row) + part() * S::kPart;
    float* to = sums + part() * 3 * S::kUnits + column_;
    switch (end_of(tile) - row) {
      case 3:
        return multiply_rows<3>(h, to);
      case 2:
        return multiply_rows<2>(h, to);
      default:
        return multiply_rows<1>(h, to);
    }
  }

  // By a whole warp: its units of a row in this step.
  __device__ __forceinline__ void advance(int step, int64_t first, int tile, int row,
                                          const float* sums) const {
    wait_for_fetch();
    const float* of_input = gates_of(step, row);
    const float* from = sums + (row - tile * tile_rows_) * S::kDepthWarps * 3 * S::kUnits + column_;
    float gates[3];
#pragma unroll
    for (int g = 0; g < 3; ++g) {
      float sum = 0;
#pragma unroll
      for (int p = 0; p < S::kDepthWarps; ++p) sum += from[(p * 3 + g) * S::kUnits];
      gates[g] = sum + (of_input[g * S::kUnits] + bias_[g * S::kUnits + column_]);
    }
    float c = *c_of(row);
    const float h = step_forward_quick(gates[0], gates[1], gates[2], c);
    *c_of(row) = c;
    // Where there is no unit an infinite h0 times weights of zero is NaN.
    if (step + 1 < steps_) publish(step + 1, tile, row, has_unit() ? h : 0.0f);
    // While h is under way.
    if (has_unit()) {
      const int state = state_of(row);
      pass_.output.put(first + state, h);
      (pass_.cells + first)[state] = c;
      float* to = pass_.activations + 3 * first + gate_of(row);
#pragma unroll
      for (int g = 0; g < 3; ++g) to[g * units_] = gates[g];
    }
    fetch(step + kSlots, first + kSlots * stride_, row);
    end_fetch();
  }

  // By a whole warp: its h for a step to all blocks of the group. Eight lanes have four units each. Every
  // block begins with another one, as messages to the same block wait for each other.
  __device__ __forceinline__ void publish(int step, int tile, int row, float h) const {
    const int begin = unit_ - lane_;
    float* to = h_of(step, row) + begin;
    if constexpr (S::kWay == Way::block) {
      to[lane_] = h;
    } else {
      const int chunk = lane_ % 8 * 4;
      float4 four;
      four.x = __shfl_sync(0xffffffffu, h, chunk);
      four.y = __shfl_sync(0xffffffffu, h, chunk + 1);
      four.z = __shfl_sync(0xffffffffu, h, chunk + 2);
      four.w = __shfl_sync(0xffffffffu, h, chunk + 3);
      const uint32_t barrier = barrier_of(tile, begin / S::kPart, step);
      constexpr int kMostBlocks = S::kDepth / S::kUnits;
#pragma unroll
      for (int i = 0; i < kMostBlocks; i += 4) {
        const int nth = i + lane_ / 8;
        const int block = rank_ + nth < group_blocks_ ? rank_ + nth : rank_ + nth - group_blocks_;
        if (nth < group_blocks_) give<S::kWay>(to + chunk, four, block, barrier);
      }
    }
  }

  ForwardPass pass_;
  float* buffers_;
  float* sums_;
  float* gates_;  // of the inputs
  float* c_;
  float* bias_;
  float weights_[3][S::kPart];
};

template <typename S>
class Backward : Member<S> {
 public:
  __device__ __forceinline__ Backward(const BackwardPass& pass, int group_blocks, int group_rows)
      : Member<S>(pass.steps, pass.batch, pass.units, pass.reverse, group_blocks, group_rows), pass_(pass) {
    received_ = memory();
    gates_grad_ = received_ + 2 * group_blocks * group_rows * S::kUnits;
    values_ = gates_grad_ + 2 * kMostTileRows * S::kDepth;
    c_grad_ = values_ + kSlots * 5 * group_rows * S::kUnits;
    first_of_warp_ = (warp_ + rank_) % S::kWarps * S::kUnitsOfWarp;
  }

  __device__ __forceinline__ void run(bool is_aligned) {
    load_first();
    visit_weight(pass_.weight, is_aligned,
                 [&](const auto* weight, auto at_once) { load_weights(weight, at_once); });
    meet_first();

    // A tile's units are computed before the tile in front of it is multiplied, so that other warps multiply
    // meanwhile; but after it where what they need would not have come by then.
    const bool is_early = tiles_ >= S::kTiles;
    float* gates = gates_grad_;
    float* next_gates = gates_grad_ + kMostTileRows * S::kDepth;
    int64_t first = first_;
    go_back(0, first, 0, gates);
    for (int step = 0; step < steps_; ++step) {
      for (int tile = 0; tile < tiles_; ++tile) {
        const bool is_last = tile + 1 == tiles_;
        const int next_tile = is_last ? 0 : tile + 1;
        const int next_step = is_last ? step + 1 : step;
        if (is_last) first += stride_;
        __syncthreads();
        if (is_early) go_back(next_step, first, next_tile, next_gates);
        multiply(step, tile, gates);
        if (!is_early) {
          if (S::kWay == Way::block) __syncthreads();
          go_back(next_step, first, next_tile, next_gates);
        }
        float* const other = gates;
        gates = next_gates;
        next_gates = other;
      }
    }

    if constexpr (S::kWay == Way::block) __syncthreads();
    for (int row = own_row_; row < rows_; row += kRowsAtOnce) {
      receive(steps_, row / tile_rows_, row);
      if (!has_unit()) continue;
      pass_.h_grad[state_of(row)] = sum_of_blocks(steps_, row);
      pass_.c_grad[state_of(row)] = *c_grad_of(row);
    }
  }

 private:
  using Base = Member<S>;
  using Base::kRowsAtOnce, Base::end_of, Base::own_row_of, Base::has_unit, Base::state_of, Base::gate_of,
      Base::barriers_of, Base::barrier_of, Base::bytes_of, Base::meet_first, Base::memory, Base::steps_,
      Base::units_, Base::first_, Base::stride_, Base::group_blocks_, Base::group_rows_, Base::rank_,
      Base::first_row_, Base::rows_, Base::tile_rows_, Base::tiles_, Base::lane_, Base::warp_, Base::own_row_,
      Base::column_, Base::unit_;

  // Of the four that this lane gives sums to, and which part of the depth it has.
  __device__ __forceinline__ int first_unit() const { return first_of_warp_ + lane_ % S::kQuads * 4; }
  __device__ __forceinline__ int part() const { return lane_ / S::kQuads; }

  // Of a row's units in this block: what a block of the group gives, twice, as some give the next while
  // this one reads.
  __device__ __forceinline__ float* received_of(int step, int block, int row) const {
    return received_ + ((step % 2 * group_blocks_ + block) * group_rows_ + row) * S::kUnits;
  }
  __device__ __forceinline__ float* values_of(int step, int row) const {
    return values_ + (step % kSlots * group_rows_ + row) * 5 * S::kUnits + column_;
  }
  __device__ __forceinline__ float* c_grad_of(int row) const { return c_grad_ + row * S::kUnits + column_; }

  // Activations, c, and the gradient of the output. Where a thread's unit is not there nothing comes.
  __device__ __forceinline__ void fetch(int step, int64_t first, int row) const {
    if (step >= steps_ || !has_unit()) return;
    const int state = state_of(row);
    float* to = values_of(step, row);
    const float* from = pass_.activations + 3 * first + gate_of(row);
#pragma unroll
    for (int g = 0; g < 3; ++g) fetch_four_bytes(to + g * S::kUnits, from + g * units_);
    fetch_four_bytes(to + 3 * S::kUnits, pass_.cells + first + state);
    if (pass_.output_grad) {
      fetch_four_bytes(to + 4 * S::kUnits, pass_.output_grad.floats() + first + state);
    }
  }

  // The gradient of the last h is as if the first block had given it.
  __device__ __forceinline__ void load_first() const {
    for (int row = own_row_; row < rows_; row += kRowsAtOnce) {
      fetch(0, first_, row);
      fetch(1, first_ + stride_, row);
      if (!has_unit()) continue;
      *c_grad_of(row) = pass_.c_grad[state_of(row)];
      if (!pass_.output_grad) {
#pragma unroll
        for (int slot = 0; slot < kSlots; ++slot) values_of(slot, row)[4 * S::kUnits] = 0.0f;
      }
      for (int block = 0; block < group_blocks_; ++block) {
        received_of(0, block, row)[column_] = block == 0 ? pass_.h_grad[state_of(row)] : 0.0f;
      }
    }
    // Those of units that are not there stay so.
    for (int i = static_cast<int>(threadIdx.x); i < 2 * kMostTileRows * S::kDepth; i += S::kBlock) {
      gates_grad_[i] = 0.0f;
    }
    if constexpr (S::kWay == Way::block) __syncthreads();
  }

  template <typename Bits, bool kAtOnce>
  __device__ __forceinline__ void load_weights(const Bits* weight, std::bool_constant<kAtOnce>) {
#pragma unroll
    for (int chunk = 0; chunk < S::kChunks; ++chunk) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int k = (chunk * S::kParts + part()) * 4 + e;
        const int unit = rank_ * S::kUnits + k % S::kUnits;
        const bool is_there = k < 3 * S::kUnits && unit < units_;
        const Bits* from = weight + (int64_t{k / S::kUnits} * units_ + unit) * units_ + first_unit();
        Bits four[4] = {};
        load_four<kAtOnce>(four, from, is_there ? units_ - first_unit() : 0);
#pragma unroll
        for (int u = 0; u < 4; ++u) weights_[chunk][e][u] = pass_.weight.value_of(four[u]);
      }
    }
  }

  // Waits for what the blocks gave to a tile, of which this warp owns a row.
  __device__ __forceinline__ void receive(int step, int tile, int row) const {
    if constexpr (S::kWay == Way::cluster) {
      const bool is_first = row == tile * tile_rows_ && column_ == 0;
      if (step > 0) barriers_of(tile, 0).wait(step, bytes_of(tile, 0), is_first);
    }
  }

  __device__ __forceinline__ float sum_of_blocks(int step, int row) const {
    float sum = 0;
    const float* from = received_of(step, 0, row) + column_;
#pragma unroll 8
    for (int block = 0; block < group_blocks_; ++block) sum += from[block * group_rows_ * S::kUnits];
    return sum;
  }

  // The gradients of the gates of this warp's rows of a tile, also for the product.
  __device__ __forceinline__ void go_back(int step, int64_t first, int tile, float* gates) const {
    if (step == steps_) return;
    for (int row = own_row_of(tile); row < end_of(tile); row += kRowsAtOnce) {
      wait_for_fetch();
      const float* from = values_of(step, row);
      const Slopes<float> slopes(from[0], from[S::kUnits], from[2 * S::kUnits], from[3 * S::kUnits]);
      // What does not need the gradient of h is done by the time that comes.
      receive(step, tile, row);
      if (has_unit()) {
        float values[3];
        float c_grad = *c_grad_of(row);
        const float h_grad = from[4 * S::kUnits] + sum_of_blocks(step, row);
        slopes.step_back(values[0], values[1], values[2], h_grad, c_grad);
        float* of_row = gates + (row - tile * tile_rows_) * S::kDepth + column_;
        float* to = pass_.gates_grad + 3 * first + gate_of(row);
#pragma unroll
        for (int g = 0; g < 3; ++g) of_row[g * S::kUnits] = to[g * units_] = values[g];
        *c_grad_of(row) = c_grad;
      }
      fetch(step + kSlots, first + kSlots * stride_, row);
      end_fetch();
    }
  }

  // What this block's gates give to this warp's units, of kRows rows of a tile from `row` on.
  template <int kRows>
  __device__ __forceinline__ void multiply_rows(int step, int tile, int row, const float* gates) const {
    float sums[kRows][4] = {};
#pragma unroll
    for (int chunk = 0; chunk < S::kChunks; ++chunk) {
      float4 four[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        four[r] = *reinterpret_cast<const float4*>(gates + r * S::kDepth + (chunk * S::kParts + part()) * 4);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int u = 0; u < 4; ++u) {
            sums[r][u] = fmaf(element_of(four[r], e), weights_[chunk][e][u], sums[r][u]);
          }
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; r += 2) {
      const bool is_pair = r + 1 < kRows;
      add_up(step + 1, tile, row + r, is_pair, sums[r], sums[is_pair ? r + 1 : r]);
    }
  }

  // The sums over all parts of the depth, to the blocks of the units. Of two rows either half of the warp
  // gets one.
  __device__ __forceinline__ void add_up(int step, int tile, int row, bool is_pair, const float (&sums)[4],
                                         const float (&second)[4]) const {
    const bool is_upper = lane_ >= 16;
    float all[4];
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      const float given = is_upper ? sums[u] : second[u];
      const float kept = is_upper ? second[u] : sums[u];
      all[u] = kept + __shfl_xor_sync(0xffffffffu, given, 16);
    }
#pragma unroll
    for (int offset = 8; offset >= S::kQuads; offset /= 2) {
#pragma unroll
      for (int u = 0; u < 4; ++u) all[u] += __shfl_xor_sync(0xffffffffu, all[u], offset);
    }
    const int block = first_unit() / S::kUnits;
    if (lane_ % 16 < S::kQuads && (is_pair || !is_upper) && block < group_blocks_) {
      float* to = received_of(step, rank_, row + lane_ / 16) + first_unit() % S::kUnits;
      give<S::kWay>(to, make_float4(all[0], all[1], all[2], all[3]), block, barrier_of(tile, 0, step));
    }
  }

  __device__ __forceinline__ void multiply(int step, int tile, const float* gates) const {
    if (first_of_warp_ >= group_blocks_ * S::kUnits) return;
    const int row = tile * tile_rows_;
    switch (end_of(tile) - row) {
      case 3:
        return multiply_rows<3>(step, tile, row, gates);
      case 2:
        return multiply_rows<2>(step, tile, row, gates);
      default:
        return multiply_rows<1>(step, tile, row, gates);
    }
  }

  BackwardPass pass_;
  float* received_;
  float* gates_grad_;  // of a tile, twice: the next one's are written while one is multiplied
  float* values_;
  float* c_grad_;
  // Of the units that this warp gives sums to: in every block another, as messages to the same block wait for
  // each other.
  int first_of_warp_;
  float weights_[S::kChunks][4][4];
};

template <typename S>
__global__ void __launch_bounds__(S::kBlock, 1)
    on_chip_forward(ForwardPass pass, int group_blocks, int group_rows, bool is_aligned) {
  Forward<S>(pass, group_blocks, group_rows).run(is_aligned);
}

template <typename S>
__global__ void __launch_bounds__(S::kBlock, 1)
    on_chip_backward(BackwardPass pass, int group_blocks, int group_rows, bool is_aligned) {
  Backward<S>(pass, group_blocks, group_rows).run(is_aligned);
}

// Whether weight_hh is read four numbers at a time.
template <typename Pass>
bool reads_four(const Pass& pass) {
  return pass.units % 4 == 0 && is_aligned(pass.weight.data(), pass.weight.is_float() ? 16 : 8);
}

// Calls `function(Tag<S>{})` with the shape of a kernel.
template <typename Function>
auto with_forward_shape(Kernel kernel, const Function& function) {
  switch (kernel) {
    case Kernel::on_chip_block_64:
      return function(Tag<ForwardBlock64>{});
    case Kernel::on_chip_block_96:
      return function(Tag<ForwardBlock96>{});
    case Kernel::on_chip_block_128:
      return function(Tag<ForwardBlock128>{});
    case Kernel::on_chip_cluster_8x32:
      return function(Tag<ForwardCluster8x32>{});
    case Kernel::on_chip_cluster_4x64:
      return function(Tag<ForwardCluster4x64>{});
    case Kernel::on_chip_cluster_16x32:
      return function(Tag<ForwardCluster16x32>{});
    default:
      fail("lltm: no kernel on chip going forward");
  }
}

template <typename Function>
auto with_backward_shape(Kernel kernel, const Function& function) {
  switch (kernel) {
    case Kernel::on_chip_block_64:
      return function(Tag<BackwardBlock64>{});
    case Kernel::on_chip_block_96:
      return function(Tag<BackwardBlock96>{});
    case Kernel::on_chip_block_128:
      return function(Tag<BackwardBlock128>{});
    case Kernel::on_chip_cluster_8x32:
      return function(Tag<BackwardCluster8x32>{});
    case Kernel::on_chip_cluster_4x64:
      return function(Tag<BackwardCluster4x64>{});
    case Kernel::on_chip_cluster_16x32:
      return function(Tag<BackwardCluster16x32>{});
    default:
      fail("lltm: no kernel on chip going back");
  }
}

}  // namespace

int resident_on_chip(const Problem& problem, Kernel kernel, int64_t blocks, int64_t shared_bytes) {
  if (problem.backward) {
    return with_backward_shape(kernel, [&](auto tag) {
      using S = typename decltype(tag)::type;
      return resident_groups<S>(reinterpret_cast<const void*>(on_chip_backward<S>), blocks, shared_bytes);
    });
  }
  return with_forward_shape(kernel, [&](auto tag) {
    using S = typename decltype(tag)::type;
    return resident_groups<S>(reinterpret_cast<const void*>(on_chip_forward<S>), blocks, shared_bytes);
  });
}

void launch_on_chip(const Problem& problem, Kernel kernel, const ForwardPass& pass, cudaStream_t stream) {
  with_forward_shape(kernel, [&](auto tag) {
    using S = typename decltype(tag)::type;
    const Groups groups = *fitting_groups<S>(problem);
    const auto function = on_chip_forward<S>;
    launch_groups<S>(
        reinterpret_cast<const void*>(function), groups, stream, [&](const cudaLaunchConfig_t& config) {
          cudaLaunchKernelEx(&config, function, pass, groups.blocks, groups.rows, reads_four(pass));
        });
  });
}

void launch_on_chip(const Problem& problem, Kernel kernel, BackwardPass pass,
                    const std::optional<Tensor>& output_grad, cudaStream_t stream) {
  const std::optional<Tensor> of_output = converted(output_grad, ScalarType::Float);
  pass.output_grad = Numbers(of_output);
  with_backward_shape(kernel, [&](auto tag) {
    using S = typename decltype(tag)::type;
    const Groups groups = *fitting_groups<S>(problem);
    const auto function = on_chip_backward<S>;
    launch_groups<S>(
        reinterpret_cast<const void*>(function), groups, stream, [&](const cudaLaunchConfig_t& config) {
          cudaLaunchKernelEx(&config, function, pass, groups.blocks, groups.rows, reads_four(pass));
        });
  });
}

}  // namespace torchgraft::lltm::cuda
