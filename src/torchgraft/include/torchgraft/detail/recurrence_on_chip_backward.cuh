// A recurrence back as one kernel on tensor cores, for cells whose weights fit into a cluster.
//
// Clusters and their rows are as going forward (recurrence_on_chip_forward.cuh). A block keeps the rows of
// weight_hh of its own gates. A step is
//
//     own gradients of message gates -> their part of the gradients of all units' messages
//     -> to each block what is for its units -> they meet -> own gradient of the message, a sum over blocks
//
// so that 4 bytes a unit and row go to a block: all gradients of gates would be as many times as much as
// there are gates. The sum is in the order of the blocks, so that results are the same each time. A warp
// makes the products of every eighth tile of 16 units, over all of the depth.
//
// Gradients enter the product as two halves (recurrence_split.cuh), with a scale for the block's row.
#pragma once

#include "recurrence_cluster.cuh"
#include "recurrence_products.cuh"

namespace torchgraft::recurrence {

// Where numbers are kept for the products at the end: as they are, or each as two of bfloat16.
struct Kept {
  float* numbers;
  BFloat16* high;
  BFloat16* low;

  __device__ __forceinline__ void store(int64_t place, float value) const {
    if (numbers != nullptr) {
      numbers[place] = value;
    } else {
      const Split<BFloat16> both(value);
      high[place] = both.high;
      low[place] = both.low;
    }
  }
};

template <typename Cell>
struct BackwardPass {
  ScaledWeight weight;                             // (gates * units, units), a row a gate
  const float* gates;                              // (steps, batch, gates * units)
  const float* message_gates;                      // likewise, where gates are apart
  const float* states;                             // (states, steps, batch, units), after each step
  const float* output_grad;                        // (steps, batch, units), or null
  const float* initial[Cell::kStates];             // (batch, units) each
  const float* parameters[Cell::kParameters + 1];  // (units) each
  Kept gates_grad;                                 // (steps, batch, gates * units)
  Kept message_gates_grad;                         // likewise, where gates are apart
  Kept messages;                                   // (steps, batch, units): that each step was told
  float* bias_sums[2];                // (batch, gates * units) each: the sums of both over the steps
  float* state_grads[Cell::kStates];  // (batch, units) each: of the last states, becomes that of the first
  float* message_grad;                // (batch, units): becomes that of the first message
  float* parameter_grads[Cell::kParameters + 1];  // (batch, units) each: sums over the steps
  int64_t steps;
  int64_t batch;
  int64_t units;
  bool reverse;
};

template <typename Cell, Weights kWeights>
class BackwardShape {
  static constexpr int kGates = Cell::kGates;

 public:
  static constexpr int kHalves = static_cast<int>(kWeights);
  static constexpr int kMostBlocks = most_blocks(kGates * kHalves);
  static constexpr int kTiles = kGates * kUnits / 16;                  // of the depth, 16 numbers each
  static constexpr int kColumns = kMostBlocks * kUnits / 16 / kWarps;  // tiles of 16 units of a warp
  static constexpr int kKept = kept_tiles(kTiles, kColumns* kHalves);
  using OwnWeights = Fragments<kTiles, kColumns * kHalves, kKept, kThreads>;
  static constexpr int kBarrierBytes = 128;
  // A row of gradients of gates, and of a warp's results, padded so that rows begin in different banks.
  static constexpr int kPitch = kGates * kUnits + 8;
  static constexpr int kResultsPitch = 16 + 8;
  static constexpr int kResultBytes = kWarps * kTileRows * kResultsPitch * 4;
  // Numbers of a unit that a step needs of device memory: gates, states before, the gradient of the output.
  static constexpr int kPrefetched = kGates * (1 + Cell::kGatesApart) + Cell::kStates + 1;

  static constexpr int columns_of(int64_t blocks) {
    return static_cast<int>((blocks * kUnits / 16 + kWarps - 1) / kWarps);
  }

  static constexpr int64_t shared_bytes(int64_t rows, int64_t blocks) {
    const int64_t padded = (rows + kTileRows - 1) / kTileRows * kTileRows;
    return kBarrierBytes + OwnWeights::shared_bytes(columns_of(blocks) * kHalves) + kResultBytes +
           padded * (2 * blocks * kUnits * 4 + 2 * (2 * kPitch * 2 + 4)) +
           4 * kUnits *
               (rows * (kStages * kPrefetched + Cell::kStates + Cell::kParameters +
                        kGates * (1 + Cell::kGatesApart)) +
                kGates + Cell::kParameters);
  }
};

template <typename Cell, Weights kWeights>
class BackwardOnChip : Member {
  using S = BackwardShape<Cell, kWeights>;
  using Unit = typename Cell::Backward;
  static constexpr int kGates = Cell::kGates;
  static constexpr int kAllGates = kGates * (1 + Cell::kGatesApart);
  static constexpr int kStates = Cell::kStates;
  static constexpr int kParameters = Cell::kParameters;

 public:
  __device__ __forceinline__ BackwardOnChip(const BackwardPass<Cell>& pass, int blocks, int cluster_rows)
      : Member(pass.steps, pass.batch, pass.units, !pass.reverse, blocks, cluster_rows),
        pass_(pass),
        columns_(S::columns_of(blocks)) {
    auto* const memory = shared_memory<char>();
    barriers_ = {shared_address(memory)};
    weights_ = reinterpret_cast<uint4*>(memory + S::kBarrierBytes);
    results_ = reinterpret_cast<float*>(memory + S::kBarrierBytes +
                                        S::OwnWeights::shared_bytes(columns_ * S::kHalves)) +
               warp_ * kTileRows * S::kResultsPitch;
    received_ = reinterpret_cast<float*>(
        memory + S::kBarrierBytes + S::OwnWeights::shared_bytes(columns_ * S::kHalves) + S::kResultBytes);
    grads_ = reinterpret_cast<Half*>(received_ + 2 * received_size());
    scales_ = reinterpret_cast<float*>(grads_ + 2 * 2 * padded_rows_ * S::kPitch);
    values_ = scales_ + 2 * padded_rows_;
    state_grads_ = values_ + kStages * S::kPrefetched * cluster_rows_ * kUnits;
    parameter_grads_ = state_grads_ + kStates * cluster_rows_ * kUnits;
    bias_sums_ = parameter_grads_ + kParameters * cluster_rows_ * kUnits;
    of_units_ = bias_sums_ + kAllGates * cluster_rows_ * kUnits;
  }

  __device__ __forceinline__ void run() {
    prefetch_rows(0, first_);
    prefetch_rows(1, first_ + stride_);
    load_weights();
    load_units();
    start_cluster(barriers_, bytes_of_step());

    int64_t first = first_;
    for (int64_t step = 0; step < pass_.steps; ++step) {
      wait_for_copies<1>();
      if (step > 0) wait_for_cluster(barriers_, step, bytes_of_step());
      float results[Unit::kWrites] = {};
#pragma unroll 1
      for (int row = warp_ + kWarps; row < rows_; row += kWarps) {
        if (has_unit()) compute(step, row, results);
        share(step, row, results + kAllGates - kGates);
        if (has_unit()) store(first, row, results);
      }
      if (warp_ < rows_) {
        if (has_unit()) compute(step, warp_, results);
        share(step, warp_, results + kAllGates - kGates);
      }
      __syncthreads();
      multiply(step);
      // While the sums are under way, the results of the warp's first row leave.
      if (warp_ < rows_ && has_unit()) store(first, warp_, results);
      prefetch_rows(step + kStages, first + kStages * stride_);
      first += stride_;
    }
    finish();
  }

 private:
  __device__ __forceinline__ int received_size() const { return blocks_ * padded_rows_ * kUnits; }
  __device__ __forceinline__ float* values_of(int64_t step, int row) const {
    return values_ + ((step & 1) * cluster_rows_ + row) * S::kPrefetched * kUnits + lane_;
  }
  // There are two, as a warp may be a step ahead of one that still multiplies. A row has two halves.
  __device__ __forceinline__ Half* grads_of(int64_t step, int half_row) const {
    return grads_ + ((step & 1) * 2 * padded_rows_ + half_row) * S::kPitch;
  }
  __device__ __forceinline__ float* scale_of(int64_t step, int row) const {
    return scales_ + (step & 1) * padded_rows_ + row;
  }
  __device__ __forceinline__ float* state_grads_of(int row) const {
    return state_grads_ + row * kStates * kUnits + lane_;
  }
  __device__ __forceinline__ float* bias_sums_of(int row) const {
    return bias_sums_ + row * kAllGates * kUnits + lane_;
  }
  __device__ __forceinline__ float* parameter_grads_of(int row) const {
    return parameter_grads_ + row * kParameters * kUnits + lane_;
  }

  __device__ __forceinline__ void prefetch_rows(int64_t step, int64_t first) const {
    if (step < pass_.steps && has_unit()) {
      const int64_t all = pass_.steps * pass_.batch * units_;
#pragma unroll 1
      for (int row = warp_; row < rows_; row += kWarps) {
        float* to = values_of(step, row);
        const int64_t gate = kGates * first + gate_of(row, kGates);
#pragma unroll
        for (int g = 0; g < kGates; ++g) copy_async<4>(to + g * kUnits, pass_.gates + gate + g * units_);
        to += kGates * kUnits;
        if constexpr (Cell::kGatesApart) {
#pragma unroll
          for (int g = 0; g < kGates; ++g) {
            copy_async<4>(to + g * kUnits, pass_.message_gates + gate + g * units_);
          }
          to += kGates * kUnits;
        }
        const bool is_first = step + 1 == pass_.steps;  // of the recurrence
        const int64_t before = first + stride_ + state_of(row);
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
          copy_async<4>(to + s * kUnits,
                        is_first ? pass_.initial[s] + state_of(row) : pass_.states + s * all + before);
        }
        to += kStates * kUnits;
        if (pass_.output_grad != nullptr) copy_async<4>(to, pass_.output_grad + first + state_of(row));
      }
    }
    commit_copies();
  }

  // Bytes that a cluster's blocks, this one among them, write into this one's memory.
  __device__ __forceinline__ uint32_t bytes_of_step() const {
    return static_cast<uint32_t>(blocks_ * rows_ * kUnits * 4);
  }

  // A tile of the depth is 16 units of a gate, which lie in a column of weight_hh.
  __device__ __forceinline__ void load_weights() {
    const int padded = pass_.weight.padded;
#pragma unroll
    for (int k = 0; k < S::kTiles; ++k) {
      const int gate = k / 2;
      const int begin = rank_ * kUnits + k % 2 * 16 + lane_ % 4 * 2;
#pragma unroll
      for (int i = 0; i < S::kColumns * S::kHalves; ++i) {
        const int column = i / S::kHalves;
        if (column < columns_) {
          const Half* from = pass_.weight.halves[i % S::kHalves] + int64_t{gate} * padded * padded;
          uint32_t fragment[4];
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int unit = (column * kWarps + warp_) * 16 + lane_ / 4 + e % 2 * 8;
            const int row = begin + e / 2 * 8;
            const bool is_there = unit < padded && row < padded;
            const Half* both = from + int64_t{row} * padded + unit;
            fragment[e] = is_there ? uint32_t{both[padded].x} << 16 | both[0].x : 0u;
          }
          fragments_.store(weights_, columns_ * S::kHalves, k, i, fragment);
        }
      }
    }
  }

  // The gradients of the last states, and what all rows have of a unit; zeros where there is no row.
  __device__ __forceinline__ void load_units() {
    for (int i = static_cast<int>(threadIdx.x); i < 2 * 2 * padded_rows_ * S::kPitch; i += kThreads) {
      grads_[i] = Half(0.0f);
    }
    for (int i = static_cast<int>(threadIdx.x); i < 2 * padded_rows_; i += kThreads) scales_[i] = 0.0f;
    __syncthreads();
    if (!has_unit()) return;
    for (int row = warp_; row < rows_; row += kWarps) {
#pragma unroll
      for (int s = 0; s < kStates; ++s) {
        state_grads_of(row)[s * kUnits] = pass_.state_grads[s][state_of(row)];
      }
#pragma unroll
      for (int p = 0; p < kParameters; ++p) parameter_grads_of(row)[p * kUnits] = 0.0f;
#pragma unroll
      for (int g = 0; g < kAllGates; ++g) bias_sums_of(row)[g * kUnits] = 0.0f;
    }
    if (warp_ != 0) return;
    float* const to = of_units_ + lane_;
#pragma unroll
    for (int g = 0; g < kGates; ++g) to[g * kUnits] = pass_.weight.scales[g * pass_.weight.padded + unit_];
#pragma unroll
    for (int p = 0; p < kParameters; ++p) to[(kGates + p) * kUnits] = pass_.parameters[p][unit_];
  }

  // The sum of what the blocks gave to the gradient of this thread's message before a step.
  __device__ __forceinline__ float sum_of_blocks(int64_t step, int row) const {
    const float* from = received_ + (step & 1) * received_size() + row * kUnits + lane_;
    float values[S::kMostBlocks];
#pragma unroll
    for (int block = 0; block < S::kMostBlocks; ++block) {
      values[block] = block < blocks_ ? from[block * padded_rows_ * kUnits] : 0.0f;
    }
    float sum = values[0];
#pragma unroll
    for (int block = 1; block < S::kMostBlocks; ++block) sum += values[block];
    return sum;
  }

  // The step back of this thread's unit of a row.
  __device__ __forceinline__ void compute(int64_t step, int row, float (&results)[Unit::kWrites]) const {
    float given[Unit::kReads];
    const float* values = values_of(step, row);
    float* const state_grads = state_grads_of(row);
    float* const parameter_grads = parameter_grads_of(row);
    constexpr int kGiven = kAllGates + kStates;
#pragma unroll
    for (int i = 0; i < kGiven; ++i) given[i] = values[i * kUnits];
#pragma unroll
    for (int p = 0; p < kParameters; ++p) given[kGiven + p] = of_units_[(kGates + p) * kUnits + lane_];
    constexpr int kGrads = kGiven + kParameters;
#pragma unroll
    for (int s = 0; s < kStates; ++s) given[kGrads + s] = state_grads[s * kUnits];
    given[kGrads + kStates] = step == 0 ? 0.0f : sum_of_blocks(step, row);
    given[kGrads + kStates + 1] = pass_.output_grad != nullptr ? values[kGiven * kUnits] : 0.0f;
#pragma unroll
    for (int p = 0; p < kParameters; ++p) given[kGrads + kStates + 2 + p] = parameter_grads[p * kUnits];
    Unit::template unit<CudaMath>(given, results);
#pragma unroll
    for (int s = 0; s < kStates; ++s) state_grads[s * kUnits] = results[kAllGates + s];
#pragma unroll
    for (int p = 0; p < kParameters; ++p) parameter_grads[p * kUnits] = results[kAllGates + kStates + p];
  }

  // By a whole warp: the gradients of a row's message gates, times the scales of their weights, to where the
  // block multiplies them.
  __device__ __forceinline__ void share(int64_t step, int row, const float* message_gates_grad) const {
    float scaled[kGates], largest = 0.0f;
#pragma unroll
    for (int g = 0; g < kGates; ++g) {
      scaled[g] = has_unit() ? message_gates_grad[g] * of_units_[g * kUnits + lane_] : 0.0f;
      largest = fmaxf(largest, finite_magnitude(scaled[g]));
    }
    const float scale = power_below_largest(largest);
    const float factor = one_over(scale);
    Half* const high = grads_of(step, 2 * row) + lane_;
#pragma unroll
    for (int g = 0; g < kGates; ++g) {
      const Split<Half> split(scaled[g] * factor);
      high[g * kUnits] = split.high;
      high[S::kPitch + g * kUnits] = split.low;
    }
    if (lane_ == 0) *scale_of(step, row) = scale;
  }

  __device__ __forceinline__ void store(int64_t first, int row, const float (&results)[Unit::kWrites]) const {
    const int64_t gate = kGates * first + gate_of(row, kGates);
    float* const sums = bias_sums_of(row);
#pragma unroll
    for (int g = 0; g < kGates; ++g) {
      pass_.gates_grad.store(gate + g * units_, results[g]);
      if constexpr (Cell::kGatesApart) {
        pass_.message_gates_grad.store(gate + g * units_, results[kGates + g]);
      }
    }
#pragma unroll
    for (int g = 0; g < kAllGates; ++g) sums[g * kUnits] += results[g];
    pass_.messages.store(first + state_of(row), results[kAllGates + kStates + kParameters]);
  }

  // Sends what this block's gates give to the gradients of all units' messages, to the blocks of those units.
  __device__ __forceinline__ void multiply(int64_t step) {
    if (columns_ == 1) {
      multiply_columns<1>(step);
    } else if (columns_ == 2) {
      multiply_columns<2>(step);
    } else if constexpr (S::kColumns > 2) {
      if (columns_ == 3) {
        multiply_columns<3>(step);
      } else {
        multiply_columns<4>(step);
      }
    }
  }
  template <int kCount>
  __device__ __forceinline__ void multiply_columns(int64_t step) {
#pragma unroll 1
    for (int tile = 0; tile * kTileRows < rows_; ++tile) {
      const int row = tile * kTileRows + lane_ % 4;
      const uint32_t address =
          shared_address(grads_of(step, tile * 2 * kTileRows + lane_ % 8) + lane_ / 8 * 8);
      uint32_t grads[S::kTiles / 2][4];
#pragma unroll
      for (int k = 0; k < S::kTiles; k += 2) {
        ptx::ldmatrix(grads[k / 2], address + static_cast<uint32_t>(2 * k * 16));
      }
      const float scale = *scale_of(step, row);
      // Two chains of sums a column, so that a product seldom waits for the last.
      float parts[kCount][2][4] = {};
#pragma unroll
      for (int k = 0; k < S::kTiles; ++k) {
#pragma unroll
        for (int half = 0; half < S::kHalves; ++half) {
#pragma unroll
          for (int c = 0; c < kCount; ++c) {
            uint32_t fragment[4];
            fragments_.load(weights_, columns_ * S::kHalves, k, c * S::kHalves + half, fragment);
            multiply_add<Half>(parts[c][k % 2], fragment, grads[k / 2][k % 2 * 2],
                               grads[k / 2][k % 2 * 2 + 1], parts[c][k % 2]);
          }
        }
      }
#pragma unroll
      for (int c = 0; c < kCount; ++c) {
        float sums[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float (&one)[4] = parts[c][0], (&other)[4] = parts[c][1];
          sums[i] = (one[2 * i] + one[2 * i + 1] + (other[2 * i] + other[2 * i + 1])) * scale;
        }
        send(step + 1, tile, c * kWarps + warp_, sums);
      }
    }
  }

  // By a whole warp: 16 units of four rows, four units of a row at a time. There are 16 such pieces.
  __device__ __forceinline__ void send(int64_t step, int tile, int unit_tile, const float (&sums)[2]) const {
    float* const own = results_ + lane_ % 4 * S::kResultsPitch + lane_ / 4;
    own[0] = sums[0];
    own[8] = sums[1];
    __syncwarp();
    const int row = tile * kTileRows + lane_ / 4;
    const int unit = unit_tile * 16 + lane_ % 4 * 4;
    const int block = unit / kUnits;
    if (lane_ < 16 && row < rows_ && block < blocks_) {
      const uint4 four =
          *reinterpret_cast<const uint4*>(results_ + lane_ / 4 * S::kResultsPitch + lane_ % 4 * 4);
      float* const to =
          received_ + (step & 1) * received_size() + (rank_ * padded_rows_ + row) * kUnits + unit % kUnits;
      if (blocks_ == 1) {
        *reinterpret_cast<uint4*>(to) = four;
      } else {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        const auto rank = static_cast<uint32_t>(block);
        const uint32_t barrier = barriers_.address + 8 * static_cast<uint32_t>(step & 1);
        ptx::st_async(ptx::mapa(shared_address(to), rank), four, ptx::mapa(barrier, rank));
#endif
      }
    }
    __syncwarp();
  }

  // After the last step: the gradients of the first states and message, and the sums over the steps.
  __device__ __forceinline__ void finish() const {
    wait_for_cluster(barriers_, pass_.steps, bytes_of_step());
    if (!has_unit()) return;
    for (int row = warp_; row < rows_; row += kWarps) {
      const int place = state_of(row);
      pass_.message_grad[place] = sum_of_blocks(pass_.steps, row);
#pragma unroll
      for (int s = 0; s < kStates; ++s) pass_.state_grads[s][place] = state_grads_of(row)[s * kUnits];
#pragma unroll
      for (int p = 0; p < kParameters; ++p)
        pass_.parameter_grads[p][place] = parameter_grads_of(row)[p * kUnits];
#pragma unroll
      for (int g = 0; g < kAllGates; ++g) {
        pass_.bias_sums[g / kGates][gate_of(row, kGates) + g % kGates * units_] =
            bias_sums_of(row)[g * kUnits];
      }
    }
  }

  BackwardPass<Cell> pass_;
  int columns_;  // tiles of 16 units of this warp
  CountedBarriers barriers_;
  uint4* weights_;
  float* results_;   // of this warp
  float* received_;  // what the cluster's blocks gave to this one, of two steps
  Half* grads_;      // of message gates, in halves
  float* scales_;    // of those, of a row
  float* values_;    // that come ahead
  float* state_grads_;
  float* parameter_grads_;
  float* bias_sums_;
  float* of_units_;
  typename S::OwnWeights fragments_;
};

template <typename Cell, Weights kWeights>
__global__ void __launch_bounds__(kThreads, 1)
    recurrence_backward(const BackwardPass<Cell> pass, int blocks, int cluster_rows) {
  BackwardOnChip<Cell, kWeights>(pass, blocks, cluster_rows).run();
}

}  // namespace torchgraft::recurrence
