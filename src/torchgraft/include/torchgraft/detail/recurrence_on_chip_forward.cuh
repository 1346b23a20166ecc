// A recurrence forward as one kernel on tensor cores, for cells whose weights fit into a cluster.
//
// A block keeps weight_hh of its units, all gates of them, as fragments from the first step to the last: in
// registers, and in shared memory what those have no room for. Its eight warps are two times 16 units and
// four parts of the depth. A step is
//
//     message of all units in shared memory -> sums of a part of the depth -> own gates, states, message
//     -> own message to all blocks of the cluster -> they meet
//
// Rows of the batch are columns of the product, two each, the higher and the lower half of a message in
// float (recurrence_split.cuh), so a tile of eight columns holds four rows. A block's units of a row, a line,
// have a scale of their own, since a message may have any size. All else is float.
#pragma once

#include "recurrence_cluster.cuh"

namespace torchgraft::recurrence {

// Pointers of a pass; a cell has at least as many states and numbers of a unit as are used.
template <typename Cell>
struct ForwardPass {
  ScaledWeight weight;         // (gates * units, units), a row a gate
  float* gates;                // (steps, batch, gates * units): of the inputs, and what is kept of them
  const float* bias;           // (gates * units), added to those; or null
  float* message_gates;        // likewise, what is kept where gates are apart
  const float* message_bias;   // (gates * units), where gates are apart
  const float* first_message;  // (batch, units)
  const float* initial[Cell::kStates];             // (batch, units) each
  const float* parameters[Cell::kParameters + 1];  // (units) each
  float* states;                                   // (states, steps, batch, units)
  float* output;                                   // (steps, batch, units)
  int64_t steps;
  int64_t batch;
  int64_t units;
  bool reverse;
};

template <typename Cell, Weights kWeights>
class ForwardShape {
  static constexpr int kGates = Cell::kGates;

 public:
  static constexpr int kHalves = static_cast<int>(kWeights);
  static constexpr int kDepthWarps = 4;
  static constexpr int kMostBlocks = most_blocks(kGates * kHalves);
  static constexpr int kLines = kMostBlocks / kDepthWarps;  // of a warp's depth
  static constexpr int kTiles = kLines * kUnits / 16;
  static constexpr int kFragments = kGates * kHalves;  // of a tile
  static constexpr int kKept = kept_tiles(kTiles, kFragments);
  using OwnWeights = Fragments<kTiles, kFragments, kKept, kThreads>;
  // The sums of a row, padded so that the four rows of a tile lie in different banks.
  static constexpr int kSumsPitch = kDepthWarps * kGates * kUnits + 8;
  static constexpr int kBarrierBytes = 128;
  // Numbers of each unit: the scales of its weights, its bias, that of its message gates, its own numbers.
  static constexpr int kOfUnit = kGates * (2 + Cell::kGatesApart) + Cell::kParameters;

  // A line has both halves of its numbers, and behind those of a row the scales of its lines, sixteen bytes
  // each.
  static constexpr int64_t line_bytes() { return 2 * kLine + 16; }
  // Lines of a part of the depth; all parts have as many, though the last ones may have no block.
  static constexpr int lines_of(int64_t blocks) {
    return static_cast<int>((blocks + kDepthWarps - 1) / kDepthWarps);
  }

  static constexpr int64_t shared_bytes(int64_t rows, int64_t blocks) {
    const int64_t padded = (rows + kTileRows - 1) / kTileRows * kTileRows;
    return kBarrierBytes + OwnWeights::shared_bytes(kFragments) +
           padded * (2 * kDepthWarps * lines_of(blocks) * line_bytes() + 2 * 4 * kSumsPitch) +
           4 * kUnits * (rows * (kStages * kGates + Cell::kStates) + kOfUnit);
  }
};

template <typename Cell, Weights kWeights>
class ForwardOnChip : Member {
  using S = ForwardShape<Cell, kWeights>;
  using Unit = typename Cell::Forward;
  static constexpr int kGates = Cell::kGates;
  static constexpr int kStates = Cell::kStates;

 public:
  __device__ __forceinline__ ForwardOnChip(const ForwardPass<Cell>& pass, int blocks, int cluster_rows)
      : Member(pass.steps, pass.batch, pass.units, pass.reverse, blocks, cluster_rows),
        pass_(pass),
        part_lines_(S::lines_of(blocks)),
        lines_(S::kDepthWarps * part_lines_) {
    auto* const memory = shared_memory<char>();
    barriers_ = {shared_address(memory)};
    weights_ = reinterpret_cast<uint4*>(memory + S::kBarrierBytes);
    messages_ =
        reinterpret_cast<Half*>(memory + S::kBarrierBytes + S::OwnWeights::shared_bytes(S::kFragments));
    scales_ = reinterpret_cast<float*>(messages_ + 2 * padded_rows_ * lines_ * kLine);
    sums_ = scales_ + 2 * padded_rows_ * lines_ * 4;
    gates_ = sums_ + 2 * padded_rows_ * S::kSumsPitch;
    states_ = gates_ + kStages * cluster_rows_ * kGates * kUnits;
    of_units_ = states_ + cluster_rows_ * kStates * kUnits;
  }

  __device__ __forceinline__ void run() {
    prefetch_rows(0, first_);
    prefetch_rows(1, first_ + stride_);
    load_units();
    load_first_message();
    load_weights();
    start_cluster(barriers_, bytes_of_step());

    int64_t first = first_;
    for (int64_t step = 0; step < pass_.steps; ++step) {
      if (step > 0) wait_for_cluster(barriers_, step, bytes_of_step());
      multiply(step);
      wait_for_copies<1>();
      __syncthreads();
      const bool is_last = step + 1 == pass_.steps;
#pragma unroll 1
      for (int row = warp_; row < rows_; row += kWarps) {
        float results[Unit::kWrites];
        float message = 0.0f;
        if (has_unit()) {
          compute(step, first, row, results);
          message = results[kGates + kStates];
        }
        if (!is_last) publish(step, row, message);
        if (has_unit()) store(first, row, results);
      }
      prefetch_rows(step + kStages, first + kStages * stride_);
      first += stride_;
    }
  }

 private:
  __device__ __forceinline__ Half* message_of(int64_t step, int row) const {
    return messages_ + ((step & 1) * padded_rows_ + row) * lines_ * kLine;
  }
  __device__ __forceinline__ float* scale_of(int64_t step, int row, int line) const {
    return scales_ + (((step & 1) * padded_rows_ + row) * lines_ + line) * 4;
  }
  // There are two, as a warp may write those of the next step while another reads.
  __device__ __forceinline__ float* sums_of(int64_t step, int row) const {
    return sums_ + ((step & 1) * padded_rows_ + row) * S::kSumsPitch;
  }
  __device__ __forceinline__ float* gates_of(int64_t step, int row) const {
    return gates_ + ((step & 1) * cluster_rows_ + row) * kGates * kUnits + lane_;
  }
  __device__ __forceinline__ float* states_of(int row) const {
    return states_ + row * kStates * kUnits + lane_;
  }

  // The gates of inputs, of all rows of this warp.
  __device__ __forceinline__ void prefetch_rows(int64_t step, int64_t first) const {
    if (step < pass_.steps && has_unit()) {
#pragma unroll 1
      for (int row = warp_; row < rows_; row += kWarps) {
        const float* from = pass_.gates + kGates * first + gate_of(row, kGates);
        float* to = gates_of(step, row);
#pragma unroll
        for (int g = 0; g < kGates; ++g) copy_async<4>(to + g * kUnits, from + g * units_);
      }
    }
    commit_copies();
  }

  // The states before the first step, of this warp's rows; and what the block's units have for all rows.
  __device__ __forceinline__ void load_units() {
    if (!has_unit()) return;
    for (int row = warp_; row < rows_; row += kWarps) {
#pragma unroll
      for (int s = 0; s < kStates; ++s) states_of(row)[s * kUnits] = pass_.initial[s][state_of(row)];
    }
    if (warp_ != 0) return;
    float* to = of_units_ + lane_;
#pragma unroll
    for (int g = 0; g < kGates; ++g) {
      to[g * kUnits] = pass_.weight.scales[g * pass_.weight.padded + unit_];
      to[(kGates + g) * kUnits] = pass_.bias != nullptr ? pass_.bias[g * units_ + unit_] : 0.0f;
    }
    to += 2 * kGates * kUnits;
    if constexpr (Cell::kGatesApart) {
#pragma unroll
      for (int g = 0; g < kGates; ++g) to[g * kUnits] = pass_.message_bias[g * units_ + unit_];
      to += kGates * kUnits;
    }
#pragma unroll
    for (int p = 0; p < Cell::kParameters; ++p) to[p * kUnits] = pass_.parameters[p][unit_];
  }

  // The first line of this warp's part of the depth.
  __device__ __forceinline__ int first_line() const { return warp_ % S::kDepthWarps * part_lines_; }

  __device__ __forceinline__ void load_weights() {
    const int unit = rank_ * kUnits + warp_ / S::kDepthWarps * 16 + lane_ / 4;
    const int begin = first_line() * kUnits + lane_ % 4 * 2;
    const int padded = pass_.weight.padded;
#pragma unroll
    for (int k = 0; k < S::kTiles; ++k) {
      if (k >= 2 * part_lines_) break;
#pragma unroll
      for (int i = 0; i < S::kFragments; ++i) {
        const Half* from = pass_.weight.halves[i % S::kHalves];
        uint32_t fragment[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int row = unit + e % 2 * 8;
          const int column = begin + k * 16 + e / 2 * 8;
          fragment[e] = pair_at(from + (int64_t{i / S::kHalves} * padded + row) * padded + column,
                                row < padded && column < padded);
        }
        fragments_.store(weights_, S::kFragments, k, i, fragment);
      }
    }
  }

  // The message that the first step is told, a row a warp; zeros where there is no row or unit.
  __device__ __forceinline__ void load_first_message() {
    for (int row = warp_; row < padded_rows_; row += kWarps) {
      for (int line = 0; line < lines_; ++line) {
        const int unit = line * kUnits + lane_;
        const bool is_there = row < rows_ && unit < units_;
        const float value = is_there ? pass_.first_message[(first_row_ + row) * units_ + unit] : 0.0f;
        const float scale = power_below_largest(fabsf(value));
        const Split<Half> split(value * one_over(scale));
        Half* const to = message_of(0, row) + line * kLine + lane_ % 8;
        to[swizzled(lane_ / 8, row) * 8] = split.high;
        to[swizzled(lane_ / 8 + 4, row) * 8] = split.low;
        if (lane_ == 0) *scale_of(0, row, line) = scale;
        if (row >= rows_ || line >= blocks_) {
          // Nobody sends these.
          message_of(1, row)[line * kLine + lane_] = message_of(1, row)[line * kLine + 32 + lane_] =
              Half(0.0f);
          if (lane_ == 0) *scale_of(1, row, line) = 0.0f;
        }
      }
    }
  }

  // Bytes that the blocks of a cluster, this one among them, write into this one's memory.
  __device__ __forceinline__ uint32_t bytes_of_step() const {
    return static_cast<uint32_t>(rows_ * blocks_ * S::line_bytes());
  }

  // The sums of this warp's part of the depth, of its units, for four rows at a time.
  __device__ __forceinline__ void multiply(int64_t step) {
    if (part_lines_ == 1) {
      multiply_lines<1>(step);
    } else if (part_lines_ == 2) {
      multiply_lines<2>(step);
    } else if constexpr (S::kLines > 2) {
      if (part_lines_ == 3) {
        multiply_lines<3>(step);
      } else {
        multiply_lines<4>(step);
      }
    }
  }

  // The messages of all lines are on their way before the first is multiplied.
  template <int kCount>
  __device__ __forceinline__ void multiply_lines(int64_t step) {
    const int part = warp_ % S::kDepthWarps;
#pragma unroll 1
    for (int tile = 0; tile * kTileRows < rows_; ++tile) {
      const int row = tile * kTileRows;
      const uint32_t address = shared_address(message_of(step, row + lane_ % 8 / 2) + first_line() * kLine +
                                              swizzled(lane_ % 2 * 4 + lane_ / 8, lane_ % 8 / 2) * 8);
      const float* from = scale_of(step, row + lane_ % 4, first_line());
      uint32_t columns[kCount][4];
      float scales[kCount];
#pragma unroll
      for (int line = 0; line < kCount; ++line) {
        ptx::ldmatrix(columns[line], address + static_cast<uint32_t>(2 * kLine * line));
        scales[line] = from[4 * line];
      }
      float sums[kGates][2] = {};
#pragma unroll
      for (int line = 0; line < kCount; ++line) {
        float of_line[kGates][4] = {};
#pragma unroll
        for (int i = 0; i < 2 * S::kHalves; ++i) {
          const int k = i / S::kHalves;
#pragma unroll
          for (int g = 0; g < kGates; ++g) {
            uint32_t fragment[4];
            fragments_.load(weights_, S::kFragments, 2 * line + k, g * S::kHalves + i % S::kHalves, fragment);
            multiply_add<Half>(of_line[g], fragment, columns[line][2 * k], columns[line][2 * k + 1],
                               of_line[g]);
          }
        }
#pragma unroll
        for (int g = 0; g < kGates; ++g) {
          sums[g][0] = fmaf(of_line[g][0] + of_line[g][1], scales[line], sums[g][0]);
          sums[g][1] = fmaf(of_line[g][2] + of_line[g][3], scales[line], sums[g][1]);
        }
      }
      float* to =
          sums_of(step, row + lane_ % 4) + part * kGates * kUnits + warp_ / S::kDepthWarps * 16 + lane_ / 4;
#pragma unroll
      for (int g = 0; g < kGates; ++g) {
        to[g * kUnits] = sums[g][0];
        to[g * kUnits + 8] = sums[g][1];
      }
    }
  }

  // This thread's unit of a row after a step; the sums of its gates are kept where they are apart.
  __device__ __forceinline__ void compute(int64_t step, int64_t first, int row,
                                          float (&results)[Unit::kWrites]) const {
    float given[Unit::kReads];
    const float* of_input = gates_of(step, row);
    const float* of_message = sums_of(step, row) + lane_;
    const float* of_unit = of_units_ + lane_;
#pragma unroll
    for (int g = 0; g < kGates; ++g) {
      float sum = 0.0f;
#pragma unroll
      for (int part = 0; part < S::kDepthWarps; ++part) sum += of_message[(part * kGates + g) * kUnits];
      given[g] = of_input[g * kUnits] + of_unit[(kGates + g) * kUnits];
      given[kGates + g] = sum * of_unit[g * kUnits];
    }
    int count = 2 * kGates;
    of_unit += 2 * kGates * kUnits;
    if constexpr (Cell::kGatesApart) {
#pragma unroll
      for (int g = 0; g < kGates; ++g) given[count + g] = of_unit[g * kUnits];
      count += kGates;
      of_unit += kGates * kUnits;
    }
    float* const states = states_of(row);
#pragma unroll
    for (int s = 0; s < kStates; ++s) given[count + s] = states[s * kUnits];
    count += kStates;
#pragma unroll
    for (int p = 0; p < Cell::kParameters; ++p) given[count + p] = of_unit[p * kUnits];
    Unit::template unit<CudaMath>(given, results);
    if constexpr (Cell::kGatesApart) {
      float* const kept = pass_.gates + kGates * first + gate_of(row, kGates);
#pragma unroll
      for (int g = 0; g < kGates; ++g) kept[g * units_] = given[g];
    }
#pragma unroll
    for (int s = 0; s < kStates; ++s) states[s * kUnits] = results[kGates + s];
  }

  // By a whole warp: its message of a row to all blocks of the cluster. A lane has a quarter of one of the
  // halves, and each eight lanes write to other blocks.
  __device__ __forceinline__ void publish(int64_t step, int row, float message) const {
    const float scale = power_below_largest(fabsf(message));
    const Split<Half> split(message * one_over(scale));
    Half* const to = message_of(step + 1, row) + rank_ * kLine;
    float* const scale_to = scale_of(step + 1, row, rank_);
    if (blocks_ == 1) {
      to[swizzled(lane_ / 8, row) * 8 + lane_ % 8] = split.high;
      to[swizzled(lane_ / 8 + 4, row) * 8 + lane_ % 8] = split.low;
      if (lane_ == 0) *scale_to = scale;
      return;
    }
    const uint32_t both = uint32_t{split.low.x} << 16 | split.high.x;
    const uint32_t other = __shfl_xor_sync(0xffffffffu, both, 1);
    // The first of two neighbours has the higher halves of both, the second the lower ones.
    const uint32_t pair =
        lane_ % 2 == 0 ? __byte_perm(both, other, 0x5410) : __byte_perm(both, other, 0x3276);
    const int half = lane_ % 8 / 4;
    const int begin = lane_ % 4 * 8;
    uint4 chunk;
    chunk.x = __shfl_sync(0xffffffffu, pair, begin + half);
    chunk.y = __shfl_sync(0xffffffffu, pair, begin + half + 2);
    chunk.z = __shfl_sync(0xffffffffu, pair, begin + half + 4);
    chunk.w = __shfl_sync(0xffffffffu, pair, begin + half + 6);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    const uint32_t place = shared_address(to + swizzled(lane_ % 8, row) * 8);
    const uint32_t scale_place = shared_address(scale_to);
    const uint32_t barrier = barriers_.address + 8 * static_cast<uint32_t>((step + 1) % 2);
#pragma unroll
    for (int i = 0; i < S::kMostBlocks / 4; ++i) {
      const int block = lane_ / 8 + 4 * i;
      if (block < blocks_) {
        const auto rank = static_cast<uint32_t>(block);
        const uint32_t there = ptx::mapa(barrier, rank);
        ptx::st_async(ptx::mapa(place, rank), chunk, there);
        if (lane_ % 8 == 0) {
          ptx::st_async(ptx::mapa(scale_place, rank), make_uint4(__float_as_uint(scale), 0, 0, 0), there);
        }
      }
    }
#endif
  }

  __device__ __forceinline__ void store(int64_t first, int row, const float (&results)[Unit::kWrites]) const {
    float* const kept = (Cell::kGatesApart ? pass_.message_gates : pass_.gates) + kGates * first;
#pragma unroll
    for (int g = 0; g < kGates; ++g) kept[gate_of(row, kGates) + g * units_] = results[g];
    const int64_t place = first + state_of(row);
    const int64_t all = pass_.steps * pass_.batch * units_;
#pragma unroll
    for (int s = 0; s < kStates; ++s) pass_.states[s * all + place] = results[kGates + s];
    pass_.output[place] = results[kGates + kStates + 1];
  }

  ForwardPass<Cell> pass_;
  int part_lines_;  // of a warp's part of the depth
  int lines_;       // of all parts
  CountedBarriers barriers_;
  uint4* weights_;
  Half* messages_;
  float* scales_;
  float* sums_;
  float* gates_;
  float* states_;
  float* of_units_;
  typename S::OwnWeights fragments_;
};

template <typename Cell, Weights kWeights>
__global__ void __launch_bounds__(kThreads, 1)
    recurrence_forward(const ForwardPass<Cell> pass, int blocks, int cluster_rows) {
  ForwardOnChip<Cell, kWeights>(pass, blocks, cluster_rows).run();
}

}  // namespace torchgraft::recurrence
