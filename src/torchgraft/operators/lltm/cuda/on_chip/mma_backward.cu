// The recurrence of a whole sequence back, with weight_hh in float16, bfloat16 or, where tf32 is permitted,
// float, on tensor cores.
//
// Groups of blocks and their rows are as going forward (mma_forward.cu): clusters of two blocks of 128 units,
// of eight of 64, and of blocks of 32 where rows are few, below 129 units and on the grid. A block keeps the
// rows of weight_hh of its own gates. A step is
//
//     own gradients of gates -> their part of the gradients of h of all units
//     -> to each block what is for its units -> they meet -> own gradients of h, a sum over the group's
//     blocks
//
// so that 4 bytes a unit and row go to a block, as going forward: all gradients of gates would be three times
// as much. The sum is in the order of the blocks. A warp owns kTiles times 16 units of the product and all of
// its depth.
//
// Gradients of gates enter the product as two halves (split.cuh). Halves of float16 are divided by a power of
// two near the largest of the block's row, since gradients may have any size; where several warps have a row
// they meet once more for it. What follows from a unit's activations and c alone, the slopes, is computed
// while the gradient of its h is on its way.

#include "mma.cuh"

namespace torchgraft::lltm::cuda {
namespace {

template <typename Element, typename S>
class Recurrence : MmaMember {
  static constexpr bool kScaledRows = std::is_same_v<Element, Half>;
  static constexpr int kUnits = S::kUnits;
  static constexpr int kPitch = S::kPitch;

 public:
  __device__ __forceinline__ Recurrence(const BackwardPass& pass, const MmaWeightView<Element>& weight,
                                        int group_blocks, int group_rows, uint32_t* arrivals,
                                        float* exchanged)
      : MmaMember(Tag<S>{}, pass, !pass.reverse, group_blocks, group_rows, arrivals),
        pass_(pass),
        mma_weight_(weight),
        exchanged_(exchanged) {
    results_ =
        reinterpret_cast<float*>(weights_ + S::kWeightBytes / 16) + warp_ * kTileRows * S::kResultsPitch;
    received_ = reinterpret_cast<float*>(weights_ + (S::kWeightBytes + S::kResultBytes) / 16);
    gates_grad_ =
        reinterpret_cast<Element*>(received_ + (S::kGroup != Group::grid ? 2 * received_size() : 0));
    scales_ = reinterpret_cast<float*>(gates_grad_ + 4 * padded_rows_ * kPitch);
    values_ = scales_ + 2 * padded_rows_ * S::kWarpsOfRow;
    c_grad_ = values_ + kStages * S::kPrefetched * group_rows * kUnits;
  }

  __device__ __forceinline__ void run() {
    prefetch_rows(0, first_);
    prefetch_rows(1, first_ + stride_);
    load_weights();
    for (int i = static_cast<int>(threadIdx.x); i < 4 * padded_rows_ * kPitch; i += S::kBlock) {
      gates_grad_[i] = Element(0.0f);
    }
    for (int i = static_cast<int>(threadIdx.x); i < 2 * padded_rows_ * S::kWarpsOfRow; i += S::kBlock) {
      scales_[i] = 1.0f;
    }
    for (int row = own_row_; row < rows_; row += S::kRowsAtOnce) {
      *c_grad_of(row) = has_unit() ? pass_.c_grad[state_of(row)] : 0.0f;
    }
    start_group<S>(bytes_of_step());

    // All warps take the same number of turns, as they may have to meet in each; their first rows come last.
    const int turns = (rows_ + S::kRowsAtOnce - 1) / S::kRowsAtOnce;
    DynamicInput::Bits output_grad;
    if (own_row_ < rows_) load_output_grad(first_, own_row_, output_grad);
    int64_t first = first_;
    for (int64_t step = 0; step < pass_.steps; ++step) {
      wait_for_copies<1>();
      // What does not need the gradient of h is done by the time that comes.
      const Slopes<float> own_slopes =
          own_row_ < rows_ ? slopes_of(step, own_row_) : Slopes<float>(0.0f, 0.0f, 0.0f, 0.0f);
      if (S::kGroup != Group::grid && step > 0) wait_for_group<S>(step, bytes_of_step());
      float values[3];
#pragma unroll 1
      for (int turn = turns - 1; turn >= 0; --turn) {
        const int row = own_row_ + turn * S::kRowsAtOnce;
        if (row < rows_) {
          if (turn > 0) {
            DynamicInput::Bits of_other;
            load_output_grad(first, row, of_other);
            compute_gate_grads(step, row, slopes_of(step, row), pass_.output_grad.value_of(of_other), values);
          } else {
            compute_gate_grads(step, row, own_slopes, pass_.output_grad.value_of(output_grad), values);
          }
        }
        if constexpr (kScaledRows && S::kWarpsOfRow > 1) __syncthreads();
        if (row < rows_) store(step, row, values);
        if (turn > 0 && row < rows_ && has_unit()) store_gates(pass_.gates_grad, first, row, values);
      }
      __syncthreads();
      multiply(step);
      if constexpr (S::kGroup == Group::grid) {
        sync_group_of_grid(arrivals_, static_cast<uint32_t>((step + 1) * group_blocks_));
      }
      // While sums are under way, the results of the warp's first row leave, and what it needs after the next
      // step begins to come.
      if (own_row_ < rows_) {
        if (has_unit()) store_gates(pass_.gates_grad, first, own_row_, values);
        if (step + 1 < pass_.steps) load_output_grad(first + stride_, own_row_, output_grad);
      }
      prefetch_rows(step + kStages, first + kStages * stride_);
      first += stride_;
    }
    if constexpr (S::kGroup != Group::grid) wait_for_group<S>(pass_.steps, bytes_of_step());
    for (int row = own_row_; row < rows_; row += S::kRowsAtOnce) {
      if (unit_ >= units_) continue;
      pass_.h_grad[state_of(row)] = sum_of_blocks(pass_.steps, row);
      pass_.c_grad[state_of(row)] = *c_grad_of(row);
    }
  }

 private:
  __device__ __forceinline__ int received_size() const { return group_blocks_ * padded_rows_ * kUnits; }
  __device__ __forceinline__ float* values_of(int64_t step, int row) const {
    return values_ + ((step & 1) * group_rows_ + row) * S::kPrefetched * kUnits + column_;
  }
  __device__ __forceinline__ float* c_grad_of(int row) const { return c_grad_ + row * kUnits + column_; }

  // Activations and c, of all rows of this warp.
  __device__ __forceinline__ void prefetch_rows(int64_t step, int64_t first) const {
    if (step < pass_.steps && has_unit()) {
#pragma unroll 1
      for (int row = own_row_; row < rows_; row += S::kRowsAtOnce) {
        float* to = values_of(step, row);
        copy_gates_async(to, kUnits, pass_.activations, first, row);
        copy_async<4>(to + 3 * kUnits, pass_.cells + first + state_of(row));
      }
    }
    commit_copies();
  }
  // Two bytes cannot be fetched.
  __device__ __forceinline__ void load_output_grad(int64_t first, int row, DynamicInput::Bits& bits) const {
    if (pass_.output_grad && has_unit()) pass_.output_grad.load(first + state_of(row), bits);
  }

  // What the blocks of a cluster, this one among them, write into this one's memory.
  __device__ __forceinline__ uint32_t bytes_of_step() const {
    return static_cast<uint32_t>(group_blocks_ * rows_ * kUnits * 4);
  }

  __device__ __forceinline__ void load_weights() {
    const int begin = rank_ * kUnits + lane_ % 4 * 2;
    const int padded = mma_weight_.padded;
    unit_scale_ = has_unit() ? mma_weight_.scale_of(unit_) : 1.0f;
#pragma unroll
    for (int k = 0; k < S::kDepthTiles; ++k) {
#pragma unroll
      for (int tile = 0; tile < S::kTiles; ++tile) {
        uint32_t fragment[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int unit = warp_ * S::kUnitsOfWarp + tile * 16 + lane_ / 4 + e % 2 * 8;
          const int gate = k * 16 / kUnits;
          const int from = begin + k * 16 % kUnits + e / 2 * 8;
          fragment[e] = load_pair(mma_weight_.elements + (unit * 3 + gate) * padded + from,
                                  unit < padded && from < padded);
        }
        fragments_.store(weights_, k, tile, fragment);
      }
    }
  }

  // What the blocks gave to the gradient of h before a step.
  __device__ __forceinline__ float sum_of_blocks(int64_t step, int row) const {
    const int place = row * kUnits + column_;
    const int size = padded_rows_ * kUnits;
    constexpr bool kOfGrid = S::kGroup == Group::grid;
    const float* from =
        (kOfGrid ? exchanged_to(rank_, step) : received_ + (step & 1) * received_size()) + place;
    constexpr int kMostBlocks = S::kMostUnits / kUnits;
    // As many at a time as registers are left for.
    constexpr int kAtOnce = kMostBlocks < 16 ? kMostBlocks : 16;
    const float sum = sum_of_loads<kAtOnce>(
        group_blocks_, [&](int block) { return kOfGrid ? __ldcg(from + block * size) : from[block * size]; });
    return sum * unit_scale_;
  }

  // On the grid: what the blocks of this group give to one of them. There are two of that, as some blocks
  // write the next while others read.
  __device__ __forceinline__ float* exchanged_to(int block, int64_t step) const {
    return exchanged_ +
           ((step & 1) * gridDim.x + static_cast<int64_t>(blockIdx.x) - rank_ + block) * received_size();
  }

  // Of two steps: a warp may be a step ahead of one that still multiplies.
  __device__ __forceinline__ Element* gates_grad_of(int64_t step) const {
    return gates_grad_ + (step & 1) * 2 * padded_rows_ * kPitch;
  }
  // Of a row: what each warp of it found.
  __device__ __forceinline__ float* scales_of(int64_t step, int row) const {
    return scales_ + ((step & 1) * padded_rows_ + row) * S::kWarpsOfRow;
  }
  // 2**e where the largest gradient of a row's gates is 2**e to 2**(e + 1).
  __device__ __forceinline__ float scale_of(int64_t step, int row) const {
    const float* scales = scales_of(step, row);
    float scale = scales[0];
#pragma unroll
    for (int i = 1; i < S::kWarpsOfRow; ++i) scale = fmaxf(scale, scales[i]);
    return scale;
  }

  __device__ __forceinline__ Slopes<float> slopes_of(int64_t step, int row) const {
    const float* from = values_of(step, row);
    return {from[0], from[kUnits], from[2 * kUnits], from[3 * kUnits]};
  }

  // By a whole warp: the gradients of its row's gates.
  __device__ __forceinline__ void compute_gate_grads(int64_t step, int row, const Slopes<float>& slopes,
                                                     float output_grad, float (&values)[3]) const {
    if (has_unit()) {
      const float h_grad = output_grad + (step == 0 ? pass_.h_grad[state_of(row)] : sum_of_blocks(step, row));
      float c_grad = *c_grad_of(row);
      slopes.step_back(values[0], values[1], values[2], h_grad, c_grad);
      *c_grad_of(row) = c_grad;
    } else {
      values[0] = values[1] = values[2] = 0.0f;
    }
    if constexpr (kScaledRows) {
      float largest = fmaxf(fmaxf(fabsf(values[0]), fabsf(values[1])), fabsf(values[2]));
      // Their bits are in the same order; what is NaN counts for nothing.
      const uint32_t bits = isnan(largest) ? 0u : __float_as_uint(largest);
      uint32_t most = bits;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
      most = __reduce_max_sync(0xffffffffu, bits);
#endif
      // An infinite one stays so.
      const uint32_t exponent = min(max(most >> 23, 1u), 253u);
      if (lane_ == 0) scales_of(step, row)[column_ / kWarpUnits] = __uint_as_float(exponent << 23);
      __syncwarp();
    }
  }

  // By a whole warp: the same into the product's memory.
  __device__ __forceinline__ void store(int64_t step, int row, const float (&values)[3]) const {
    float factor = 1.0f;
    if constexpr (kScaledRows) factor = __uint_as_float((254u << 23) - __float_as_uint(scale_of(step, row)));
    Element* high = gates_grad_of(step) + 2 * row * kPitch + column_;
#pragma unroll
    for (int g = 0; g < 3; ++g) {
      const Split<Element> split(values[g] * factor);
      high[g * kUnits] = split.high;
      high[kPitch + g * kUnits] = split.low;
    }
  }

  // What this block's gates give to the gradient of h of all units after a step, to the blocks of those
  // units.
  __device__ __forceinline__ void multiply(int64_t step) {
    const int tiles = (rows_ + kTileRows - 1) / kTileRows;
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      const int row = tile * kTileRows + lane_ % 4;
      const float scale = kScaledRows ? scale_of(step, row) : 1.0f;
#pragma unroll
      for (int first = 0; first < S::kTiles; first += S::kTilesAtOnce) {
        multiply_tiles(step, tile, first, scale);
      }
      __syncwarp();
      send(step + 1, tile);
      __syncwarp();
    }
  }

  // The same of some tiles of this warp's units, into its results.
  __device__ __forceinline__ void multiply_tiles(int64_t step, int tile, int first, float scale) {
    // Where tiles are few two chains of sums each, so that a product seldom waits for the last.
    constexpr int kChains = S::kTilesAtOnce <= 2 ? 2 : 1;
    float sums[kChains][S::kTilesAtOnce][4] = {};
    const uint32_t address =
        shared_address(gates_grad_of(step) + (tile * 8 + lane_ % 8) * kPitch + lane_ / 8 * 8);
#pragma unroll
    for (int k = 0; k < S::kDepthTiles; k += 2) {
      uint32_t columns[4];
      ptx::ldmatrix(columns, address + static_cast<uint32_t>(2 * k * 16));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int t = 0; t < S::kTilesAtOnce; ++t) {
          uint32_t fragment[4];
          fragments_.load(weights_, k + i, first + t, fragment);
          multiply_add<Element>(sums[kChains == 2 ? i : 0][t], fragment, columns[2 * i], columns[2 * i + 1]);
        }
      }
    }
#pragma unroll
    for (int t = 0; t < S::kTilesAtOnce; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float sum = sums[0][t][2 * half] + sums[0][t][2 * half + 1];
        if constexpr (kChains == 2) sum += sums[1][t][2 * half] + sums[1][t][2 * half + 1];
        results_[lane_ % 4 * S::kResultsPitch + (first + t) * 16 + half * 8 + lane_ / 4] = sum * scale;
      }
    }
  }

  // Four units of a row at a time.
  __device__ __forceinline__ void send(int64_t step, int tile) const {
    constexpr int kChunks = S::kUnitsOfWarp / 4;
    const int rows = rows_ - tile * kTileRows;
#pragma unroll
    for (int i = lane_; i < kTileRows * kChunks; i += 32) {
      const int unit = warp_ * S::kUnitsOfWarp + i % kChunks * 4;
      const int block = unit / kUnits;
      const int row = i / kChunks;
      if (block >= group_blocks_ || row >= rows) continue;
      const uint4 four = *reinterpret_cast<const uint4*>(results_ + row * S::kResultsPitch + i % kChunks * 4);
      const int64_t place = (rank_ * padded_rows_ + tile * kTileRows + row) * kUnits + unit % kUnits;
      if constexpr (S::kGroup == Group::cluster) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        const float* to = received_ + (step & 1) * received_size() + place;
        const auto rank = static_cast<uint32_t>(block);
        const uint32_t barrier = barriers_.address + 8 * static_cast<uint32_t>(step & 1);
        ptx::st_async(ptx::mapa(shared_address(to), rank), four, ptx::mapa(barrier, rank));
#endif
      } else {
        ptx::store_relaxed(exchanged_to(block, step) + place, four);
      }
    }
  }

  BackwardPass pass_;
  MmaWeightView<Element> mma_weight_;
  float* exchanged_;
  float* results_;   // of this warp
  float* received_;  // but on the grid: what the blocks of the group gave to this one, twice
  Element* gates_grad_;
  float* scales_;  // of the rows
  float* values_;  // that come ahead
  float* c_grad_;
  float unit_scale_;  // of what all gates give to this thread's unit
  WeightFragments<S::kDepthTiles, S::kTiles, S::kKept, S::kBlock> fragments_;
};

template <typename Element, typename S>
__global__ void __launch_bounds__(S::kBlock, 1)
    on_chip_mma_backward(BackwardPass pass, MmaWeightView<Element> weight, int group_blocks, int group_rows,
                         uint32_t* arrivals, float* exchanged) {
  Recurrence<Element, S>(pass, weight, group_blocks, group_rows, arrivals, exchanged).run();
}

// Calls `function(Tag<Element>{}, Tag<S>{})` with the type of what is multiplied, and the shape of a kernel.
template <typename Function>
auto with_element_and_shape(const Problem& problem, Kernel kernel, const Function& function) {
  return with_shape(MmaBackwardShapes{}, kernel, [&](auto shape) {
    return problem.is_bfloat16 ? function(Tag<BFloat16>{}, shape) : function(Tag<Half>{}, shape);
  });
}

}  // namespace

int resident_on_chip_mma_backward(const Problem& problem, Kernel kernel, int64_t blocks,
                                  int64_t shared_bytes) {
  return with_element_and_shape(problem, kernel, [&]<typename Element, typename S>(Tag<Element>, Tag<S>) {
    return resident_groups<S>(reinterpret_cast<const void*>(on_chip_mma_backward<Element, S>), blocks,
                              shared_bytes);
  });
}

void launch_on_chip_mma_backward(const Problem& problem, Kernel kernel, BackwardTensors& tensors) {
  with_element_and_shape(problem, kernel, [&]<typename Element, typename S>(Tag<Element>, Tag<S>) {
    const MmaWeight weight = column_scaled_weight<Element>(tensors.weight_hh, tensors.stream);
    const Groups groups = *fitting_groups<S>(problem);
    const int64_t rows = ceil_divide(groups.rows, kTileRows) * kTileRows;
    const int64_t exchanged_bytes =
        int64_t{2} * groups.count * groups.blocks * groups.blocks * rows * S::kUnits * 4;
    launch_mma<S>(on_chip_mma_backward<Element, S>, BackwardPass(tensors), weight, groups, exchanged_bytes,
                  tensors.stream);
  });
}

}  // namespace torchgraft::lltm::cuda
