// The recurrence of a whole sequence forward in float, up to 512 units, with weight_hh in registers.
//
// A group of blocks owns some rows of the batch for all steps, and never waits for another group. Up to 128
// units a group is one block, which has all of weight_hh in its registers; up to 256 units a cluster of at
// most four blocks of 64 units, or for one or two rows of at most eight blocks of 32; up to 512 units a
// cluster of at most sixteen blocks of 32. A thread holds its part of weight_hh, up to 192 numbers, from the
// first step to the last. A step is
//
//     h of all units in shared memory -> sums, each warp's of a part of the depth -> own c, h
//     -> own h to all blocks of the group
//
// Four bytes a unit and row go to a block, written into its shared memory sixteen bytes a message, where
// barriers count them. What a step needs of device memory comes two steps ahead, into shared memory, as
// registers are full.
//
// Rows are multiplied a tile at a time: while as many warps as a tile has rows compute its units, and their
// results are on their way, the other warps multiply the next tile. docs/lltm.md has the budget of a step,
// and what it took.

#include "tiles.cuh"

namespace torchgraft::lltm::cuda {
namespace {

template <typename S>
class Forward : TileMember {
 public:
  __device__ __forceinline__ Forward(const ForwardPass& pass, int group_blocks, int group_rows)
      : TileMember(Tag<S>{}, pass, pass.reverse, group_blocks, group_rows), pass_(pass) {
    buffers_ = memory<S>();
    sums_ = buffers_ + 2 * group_rows * S::kDepth;
    gates_ = sums_ + 2 * S::kSums;
    c_ = gates_ + kStages * 3 * group_rows * S::kUnits;
    bias_ = c_ + group_rows * S::kUnits;
  }

  __device__ __forceinline__ void run(bool is_aligned) {
    load_first();
    visit_weight(pass_.weight, is_aligned,
                 [&](const auto* weight, auto at_once) { load_weights(weight, at_once); });
    start_group<S>();

    float* sums = sums_;
    float* next_sums = sums_ + S::kSums;
    int64_t first = first_;
    for (int step = 0; step < steps_; ++step) {
      for (int tile = 0; tile < tiles_; ++tile) {
        multiply(step, tile, sums);
        __syncthreads();
        for (int row = own_row_of<S>(tile); row < end_of(tile); row += S::kRowsAtOnce) {
          compute_unit(step, first, tile, row, sums);
        }
        float* const other = sums;
        sums = next_sums;
        next_sums = other;
      }
      first += stride_;
    }
  }

 private:
  // Two buffers: the other blocks write the h of one step while this block may still read the step before.
  __device__ __forceinline__ float* h_of(int step, int row) const {
    return buffers_ + (step % 2 * group_rows_ + row) * S::kDepth;
  }
  __device__ __forceinline__ float* gates_of(int step, int row) const {
    return gates_ + (step % kStages * group_rows_ + row) * 3 * S::kUnits + column_;
  }
  __device__ __forceinline__ float* c_of(int row) const { return c_ + row * S::kUnits + column_; }

  // Where a thread's unit is not there nothing comes.
  __device__ __forceinline__ void prefetch(int step, int64_t first, int row) const {
    if (step >= steps_ || !has_unit()) return;
    copy_gates_async(gates_of(step, row), S::kUnits, pass_.activations, first, row);
  }

  // Zeros where there is no h, where there is no unit, and for parts of the depth that are not multiplied.
  __device__ __forceinline__ void load_first() const {
    for (int row = own_row_; row < rows_; row += S::kRowsAtOnce) {
      prefetch(0, first_, row);
      prefetch(1, first_ + stride_, row);
      *c_of(row) = has_unit() ? pass_.c0[state_of(row)] : 0.0f;
      if (has_unit()) continue;
#pragma unroll
      for (int i = 0; i < 3 * kStages; ++i) gates_of(i / 3, row)[i % 3 * S::kUnits] = 0.0f;
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
    if constexpr (S::kGroup == Group::cluster) {
      barriers_of(tile * S::kBarriers + part()).wait(step, bytes_of<S>(tile, part()), column_ == 0);
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
    if (S::kGroup == Group::cluster && part() * S::kPart >= units_) return;
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
  __device__ __forceinline__ void compute_unit(int step, int64_t first, int tile, int row,
                                               const float* sums) const {
    wait_for_copies<1>();
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
      pass_.output.store(first + state, h);
      (pass_.cells + first)[state] = c;
      store_gates(pass_.activations, first, row, gates);
    }
    prefetch(step + kStages, first + kStages * stride_, row);
    commit_copies();
  }

  // By a whole warp: its h for a step to all blocks of the group. Eight lanes have four units each. Every
  // block begins with another one, as messages to the same block wait for each other.
  __device__ __forceinline__ void publish(int step, int tile, int row, float h) const {
    const int begin = unit_ - lane_;
    float* to = h_of(step, row) + begin;
    if constexpr (S::kGroup == Group::block) {
      to[lane_] = h;
    } else {
      const int chunk = lane_ % 8 * 4;
      float4 four;
      four.x = __shfl_sync(0xffffffffu, h, chunk);
      four.y = __shfl_sync(0xffffffffu, h, chunk + 1);
      four.z = __shfl_sync(0xffffffffu, h, chunk + 2);
      four.w = __shfl_sync(0xffffffffu, h, chunk + 3);
      const uint32_t barrier = barrier_of(tile * S::kBarriers + begin / S::kPart, step);
      constexpr int kMostBlocks = S::kDepth / S::kUnits;
#pragma unroll
      for (int i = 0; i < kMostBlocks; i += 4) {
        const int nth = i + lane_ / 8;
        const int block = rank_ + nth < group_blocks_ ? rank_ + nth : rank_ + nth - group_blocks_;
        if (nth < group_blocks_) send<S::kGroup>(to + chunk, four, block, barrier);
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
__global__ void __launch_bounds__(S::kBlock, 1)
    on_chip_forward(ForwardPass pass, int group_blocks, int group_rows, bool is_aligned) {
  Forward<S>(pass, group_blocks, group_rows).run(is_aligned);
}

}  // namespace

int resident_on_chip_forward(const Problem&, Kernel kernel, int64_t blocks, int64_t shared_bytes) {
  return with_shape(OnChipForwardShapes{}, kernel, [&]<typename S>(Tag<S>) {
    return resident_groups<S>(reinterpret_cast<const void*>(on_chip_forward<S>), blocks, shared_bytes);
  });
}

void launch_on_chip_forward(const Problem& problem, Kernel kernel, ForwardTensors& tensors) {
  const ForwardPass pass(tensors);
  with_shape(OnChipForwardShapes{}, kernel, [&]<typename S>(Tag<S>) {
    const Groups groups = *fitting_groups<S>(problem);
    launch_groups<S>(on_chip_forward<S>, groups, tensors.stream, pass, groups.blocks, groups.rows,
                     reads_float4(pass));
  });
}

}  // namespace torchgraft::lltm::cuda
