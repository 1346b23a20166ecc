// The recurrence of a whole sequence back in float, up to 512 units, with weight_hh in registers.
//
// Groups of blocks, their rows and their tiles are as going forward (forward.cu). A step is
//
//     own gradients of h -> own gradients of gates -> their part of the gradients of h of all units
//     -> to each block what is for its units; a block adds up what all blocks sent it, in order
//
// so that here too four bytes a unit and row go to a block: all gradients of gates would be three times as
// much.

#include <optional>

#include "tiles.cuh"

namespace torchgraft::lltm::cuda {
namespace {

template <typename S>
class Backward : TileMember {
 public:
  __device__ __forceinline__ Backward(const BackwardPass& pass, int group_blocks, int group_rows)
      : TileMember(Tag<S>{}, pass, !pass.reverse, group_blocks, group_rows), pass_(pass) {
    received_ = memory<S>();
    gates_grad_ = received_ + 2 * group_blocks * group_rows * S::kUnits;
    values_ = gates_grad_ + 2 * kMostTileRows * S::kDepth;
    c_grad_ = values_ + kStages * 5 * group_rows * S::kUnits;
    first_of_warp_ = (warp_ + rank_) % S::kWarps * S::kUnitsOfWarp;
  }

  __device__ __forceinline__ void run(bool is_aligned) {
    load_first();
    visit_weight(pass_.weight, is_aligned,
                 [&](const auto* weight, auto at_once) { load_weights(weight, at_once); });
    start_group<S>();

    // A tile's units are computed before the tile in front of it is multiplied, so that other warps multiply
    // meanwhile; but after it where what they need would not have come by then.
    const bool is_early = tiles_ >= S::kTiles;
    float* gates = gates_grad_;
    float* next_gates = gates_grad_ + kMostTileRows * S::kDepth;
    int64_t first = first_;
    compute_gate_grads(0, first, 0, gates);
    for (int step = 0; step < steps_; ++step) {
      for (int tile = 0; tile < tiles_; ++tile) {
        const bool is_last = tile + 1 == tiles_;
        const int next_tile = is_last ? 0 : tile + 1;
        const int next_step = is_last ? step + 1 : step;
        if (is_last) first += stride_;
        __syncthreads();
        if (is_early) compute_gate_grads(next_step, first, next_tile, next_gates);
        multiply(step, tile, gates);
        if (!is_early) {
          if (S::kGroup == Group::block) __syncthreads();
          compute_gate_grads(next_step, first, next_tile, next_gates);
        }
        float* const other = gates;
        gates = next_gates;
        next_gates = other;
      }
    }

    if constexpr (S::kGroup == Group::block) __syncthreads();
    for (int row = own_row_; row < rows_; row += S::kRowsAtOnce) {
      receive(steps_, row / tile_rows_, row);
      if (!has_unit()) continue;
      pass_.h_grad[state_of(row)] = sum_of_blocks(steps_, row);
      pass_.c_grad[state_of(row)] = *c_grad_of(row);
    }
  }

 private:
  // Of the four that this lane gives sums to, and which part of the depth it has.
  __device__ __forceinline__ int first_unit() const { return first_of_warp_ + lane_ % S::kQuads * 4; }
  __device__ __forceinline__ int part() const { return lane_ / S::kQuads; }

  // Of a row's units in this block: what a block of the group gives, twice, as some give the next while this
  // one reads.
  __device__ __forceinline__ float* received_of(int step, int block, int row) const {
    return received_ + ((step % 2 * group_blocks_ + block) * group_rows_ + row) * S::kUnits;
  }
  __device__ __forceinline__ float* values_of(int step, int row) const {
    return values_ + (step % kStages * group_rows_ + row) * 5 * S::kUnits + column_;
  }
  __device__ __forceinline__ float* c_grad_of(int row) const { return c_grad_ + row * S::kUnits + column_; }

  // Activations, c, and the gradient of the output. Where a thread's unit is not there nothing comes.
  __device__ __forceinline__ void prefetch(int step, int64_t first, int row) const {
    if (step >= steps_ || !has_unit()) return;
    const int state = state_of(row);
    float* to = values_of(step, row);
    copy_gates_async(to, S::kUnits, pass_.activations, first, row);
    copy_async<4>(to + 3 * S::kUnits, pass_.cells + first + state);
    if (pass_.output_grad) {
      copy_async<4>(to + 4 * S::kUnits, pass_.output_grad.floats() + first + state);
    }
  }

  // The gradient of the last h is as if the first block had given it.
  __device__ __forceinline__ void load_first() const {
    for (int row = own_row_; row < rows_; row += S::kRowsAtOnce) {
      prefetch(0, first_, row);
      prefetch(1, first_ + stride_, row);
      if (!has_unit()) continue;
      *c_grad_of(row) = pass_.c_grad[state_of(row)];
      if (!pass_.output_grad) {
#pragma unroll
        for (int slot = 0; slot < kStages; ++slot) values_of(slot, row)[4 * S::kUnits] = 0.0f;
      }
      for (int block = 0; block < group_blocks_; ++block) {
        received_of(0, block, row)[column_] = block == 0 ? pass_.h_grad[state_of(row)] : 0.0f;
      }
    }
    // Those of units that are not there stay so.
    for (int i = static_cast<int>(threadIdx.x); i < 2 * kMostTileRows * S::kDepth; i += S::kBlock) {
      gates_grad_[i] = 0.0f;
    }
    if constexpr (S::kGroup == Group::block) __syncthreads();
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

  // Waits for the sums that the blocks sent for a tile in which this warp owns a row.
  __device__ __forceinline__ void receive(int step, int tile, int row) const {
    if constexpr (S::kGroup == Group::cluster) {
      const bool is_first = row == tile * tile_rows_ && column_ == 0;
      if (step > 0) barriers_of(tile).wait(step, bytes_of<S>(tile, 0), is_first);
    }
  }

  __device__ __forceinline__ float sum_of_blocks(int step, int row) const {
    const float* from = received_of(step, 0, row) + column_;
    constexpr int kMostBlocks = S::kMostUnits / S::kUnits;
    constexpr int kAtOnce = kMostBlocks < 8 ? kMostBlocks : 8;
    return sum_of_loads<kAtOnce>(group_blocks_,
                                 [&](int block) { return from[block * group_rows_ * S::kUnits]; });
  }

  // The gradients of the gates of this warp's rows of a tile, also for the product.
  __device__ __forceinline__ void compute_gate_grads(int step, int64_t first, int tile, float* gates) const {
    if (step == steps_) return;
    for (int row = own_row_of<S>(tile); row < end_of(tile); row += S::kRowsAtOnce) {
      wait_for_copies<1>();
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
#pragma unroll
        for (int g = 0; g < 3; ++g) of_row[g * S::kUnits] = values[g];
        store_gates(pass_.gates_grad, first, row, values);
        *c_grad_of(row) = c_grad;
      }
      prefetch(step + kStages, first + kStages * stride_, row);
      commit_copies();
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
      send<S::kGroup>(to, make_float4(all[0], all[1], all[2], all[3]), block, barrier_of(tile, step));
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
    on_chip_backward(BackwardPass pass, int group_blocks, int group_rows, bool is_aligned) {
  Backward<S>(pass, group_blocks, group_rows).run(is_aligned);
}

}  // namespace

int resident_on_chip_backward(const Problem&, Kernel kernel, int64_t blocks, int64_t shared_bytes) {
  return with_shape(OnChipBackwardShapes{}, kernel, [&]<typename S>(Tag<S>) {
    return resident_groups<S>(reinterpret_cast<const void*>(on_chip_backward<S>), blocks, shared_bytes);
  });
}

void launch_on_chip_backward(const Problem& problem, Kernel kernel, BackwardTensors& tensors) {
  tensors.output_grad = converted(tensors.output_grad, ScalarType::Float);
  const BackwardPass pass(tensors);
  with_shape(OnChipBackwardShapes{}, kernel, [&]<typename S>(Tag<S>) {
    const Groups groups = *fitting_groups<S>(problem);
    launch_groups<S>(on_chip_backward<S>, groups, tensors.stream, pass, groups.blocks, groups.rows,
                     reads_float4(pass));
  });
}

}  // namespace torchgraft::lltm::cuda
