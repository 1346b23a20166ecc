// The recurrence of a whole sequence forward, in float16, bfloat16 and, where tf32 is permitted, float, on
// tensor cores.
//
// A group of blocks owns some rows of the batch for all steps. A block owns kUnits units, and its warps share
// them out: 16 units each, their three gates, times kDepthWarps parts of the depth. A thread keeps its part
// of weight_hh as fragments, at most 192 registers (192 KB a block), from the first step to the last. A step
// is
//
//     h of all units in shared memory -> sums of a part of the depth each -> own h, c, activations
//     -> own h to all blocks of the group -> they meet
//
// Rows of the batch are columns of the product, two each, the higher and the lower half of h, so a tile of
// eight columns holds four rows. c, the sums and the activations are float; only the result of h is rounded.
// Products are of float16, with 21 bits of h. Each row of weights of bfloat16 or float is multiplied by a
// power of two.
//
// Up to 128 units a group is one block. Up to 256 it is a cluster of two blocks of 128 units, or where rows
// are few of four of 64; up to 512 of eight of 64. A block writes its h, 128 bytes a row and 32 units, into
// the shared memory of all of them, where barriers count the bytes. Up to 1024 units a group is blocks of 32
// units of a cooperative grid, which exchange h through L2 and count arrivals in device memory.
//
// Registers hold weight_hh and little else: gates of inputs come into shared memory two steps ahead, c lies
// there, and the gates, the bias and the scales of a unit are read while the block meets. docs/lltm.md has
// where a step's time goes.

#include "mma.cuh"

namespace torchgraft::lltm::cuda {
namespace {

// In shared memory 32 higher halves and 32 lower ones of a row lie together: what a warp writes to a block at
// once. Chunks of eight are swizzled within such a line, so that the rows of a matrix lie in different banks.
constexpr int kLine = 2 * kWarpUnits;
__device__ __forceinline__ int swizzled(int chunk, int row) { return chunk ^ row % kTileRows; }

template <typename S>
class Recurrence : MmaMember {
 public:
  __device__ __forceinline__ Recurrence(const ForwardPass& pass, const MmaWeightView<Half>& weight,
                                        int group_blocks, int group_rows, uint32_t* arrivals, Half* exchanged)
      : MmaMember(Tag<S>{}, pass, pass.reverse, group_blocks, group_rows, arrivals),
        pass_(pass),
        mma_weight_(weight),
        exchanged_(exchanged) {
    buffers_ = reinterpret_cast<Half*>(weights_ + S::kWeightBytes / 16);
    sums_ = reinterpret_cast<float*>(buffers_ + S::kBuffers * buffer_size());
    row_scales_ = sums_ + S::kSumBuffers * sums_size();
    gates_ = row_scales_ + padded_rows_;
    c_ = gates_ + kStages * 3 * group_rows * S::kUnits;
    bias_ = c_ + group_rows * S::kUnits;
    weight_scales_ = bias_ + 3 * S::kUnits;
  }

  __device__ __forceinline__ void run() {
    prefetch_rows(0, first_);
    prefetch_rows(1, first_ + stride_);
    load_units();
    load_first();
    load_weights();
    find_peers();
    start_group<S>(bytes_of_step());

    const bool has_row = own_row_ < rows_;
    int64_t first = first_;
    for (int64_t step = 0; step < pass_.steps; ++step) {
      const bool is_last = step + 1 == pass_.steps;
      const Half* h = buffers_ + (S::kBuffers == 2 ? step & 1 : 0) * buffer_size();
      Half* next = buffers_ + (S::kBuffers == 2 ? (step + 1) & 1 : 0) * buffer_size();
      if (step > 0) receive(step);
      multiply(step, h);
      wait_for_copies<1>();
      // What does not need the sums is there by the time that they are.
      Unit own = {};
      if (has_row) own = unit_of(step, own_row_);
      __syncthreads();
      float h_after = 0.0f;
      if (has_row) {
        h_after = compute_unit(step, own_row_, own);
        if (!is_last) publish(step, own_row_, h_after, next);
      }
      if constexpr (!S::kOneRow) {
#pragma unroll 1
        for (int row = own_row_ + S::kRowsAtOnce; row < rows_; row += S::kRowsAtOnce) {
          Unit other = unit_of(step, row);
          const float h_of_other = compute_unit(step, row, other);
          if (!is_last) publish(step, row, h_of_other, next);
          store_results(first, row, other, h_of_other);
        }
      }
      if constexpr (S::kGroup == Group::grid) {
        if (!is_last) {
          sync_group_of_grid(arrivals_, static_cast<uint32_t>((step + 1) * group_blocks_));
          begin_staging(step, next);
        }
      }
      // While h is under way, the results of the warp's first row leave, and what it needs after the next
      // step begins to come.
      if (has_row) store_results(first, own_row_, own, h_after);
      prefetch_rows(step + kStages, first + kStages * stride_);
      first += stride_;
    }
  }

 private:
  __device__ __forceinline__ int buffer_size() const { return padded_rows_ * S::kRow; }
  __device__ __forceinline__ int sums_size() const { return padded_rows_ * S::kSumsPitch; }
  __device__ __forceinline__ float* sums_of(int64_t step) const {
    return sums_ + (S::kSumBuffers == 2 ? (step & 1) * sums_size() : 0);
  }
  __device__ __forceinline__ float* gates_of(int64_t step, int row) const {
    return gates_ + ((step & 1) * group_rows_ + row) * 3 * S::kUnits + column_;
  }
  __device__ __forceinline__ float* c_of(int row) const { return c_ + row * S::kUnits + column_; }

  // The gates of inputs, of all rows of this warp.
  __device__ __forceinline__ void prefetch_rows(int64_t step, int64_t first) const {
    if (step < pass_.steps && has_unit()) {
#pragma unroll 1
      for (int row = own_row_; row < rows_; row += S::kRowsAtOnce) {
        copy_gates_async(gates_of(step, row), S::kUnits, pass_.activations, first, row);
      }
    }
    commit_copies();
  }

  // c0 of this warp's rows; the bias and the scales of weight_hh of all units.
  __device__ __forceinline__ void load_units() {
    for (int row = own_row_; row < rows_; row += S::kRowsAtOnce) {
      *c_of(row) = has_unit() ? pass_.c0[state_of(row)] : 0.0f;
    }
    for (int i = static_cast<int>(threadIdx.x); i < 3 * S::kUnits; i += S::kBlock) {
      const int gate = i / S::kUnits;
      const int unit = rank_ * S::kUnits + i % S::kUnits;
      const bool is_there = unit < units_;
      bias_[i] = is_there && pass_.bias ? pass_.bias[gate * units_ + unit] : 0.0f;
      weight_scales_[i] = is_there ? mma_weight_.scale_of(gate * mma_weight_.padded + unit) : 1.0f;
    }
  }

  __device__ __forceinline__ void load_weights() {
    const int unit = rank_ * S::kUnits + warp_ / S::kDepthWarps * 16 + lane_ / 4;
    const int begin = warp_ % S::kDepthWarps * S::kTiles * 16 + lane_ % 4 * 2;
    const int padded = mma_weight_.padded;
#pragma unroll
    for (int k = 0; k < S::kTiles; ++k) {
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) {
        uint32_t fragment[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int row = unit + e % 2 * 8;
          const int column = begin + k * 16 + e / 2 * 8;
          fragment[e] = load_pair(mma_weight_.elements + (gate * padded + row) * padded + column,
                                  row < padded && column < padded);
        }
        fragments_.store(weights_, k, gate, fragment);
      }
    }
  }

  // h0 of all units, in both of its halves, a row a warp; zeros where there is none, in all buffers.
  __device__ __forceinline__ void load_first() {
    auto* const all = reinterpret_cast<uint4*>(buffers_);
    for (int i = static_cast<int>(threadIdx.x); i < S::kBuffers * buffer_size() / 8; i += S::kBlock) {
      all[i] = make_uint4(0u, 0u, 0u, 0u);
    }
    __syncthreads();
#pragma unroll 1
    for (int row = warp_; row < rows_; row += S::kWarps) {
      constexpr int kLines = S::kDepth / kWarpUnits;
      const int64_t first = int64_t{first_row_ + row} * units_ + lane_;
      pass_.h0.visit([&](const auto* h0) {
        std::remove_cvref_t<decltype(*h0)> bits[kLines] = {};
#pragma unroll
        for (int line = 0; line < kLines; ++line) {
          if (line * kWarpUnits + lane_ < units_) bits[line] = h0[first + line * kWarpUnits];
        }
        float largest = 0.0f;
#pragma unroll
        for (int line = 0; line < kLines; ++line) {
          largest = fmaxf(largest, finite_magnitude(pass_.h0.value_of(bits[line])));
        }
        const float factor = power_to_fill_half(largest_of_warp(largest));
        if (lane_ == 0) row_scales_[row] = 1.0f / factor;
        Half* const to = buffers_ + row * S::kRow + lane_ % 8;
#pragma unroll
        for (int line = 0; line < kLines; ++line) {
          const Split<Half> split(pass_.h0.value_of(bits[line]) * factor);
          to[line * kLine + swizzled(lane_ / 8, row) * 8] = split.high;
          to[line * kLine + swizzled(lane_ / 8 + 4, row) * 8] = split.low;
        }
      });
    }
  }

  // The distances from this block's shared memory to the same place in the blocks that this lane writes to.
  __device__ __forceinline__ void find_peers() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if constexpr (S::kGroup == Group::cluster) {
#pragma unroll
      for (int i = 0; i < S::kPeers; ++i) {
        const int block = min(lane_ / 8 + 4 * i, group_blocks_ - 1);
        peers_[i] = ptx::mapa(barriers_.address, static_cast<uint32_t>(block)) - barriers_.address;
      }
    }
#endif
  }

  // What the blocks of a cluster, this one among them, write into this one's memory.
  __device__ __forceinline__ uint32_t bytes_of_step() const {
    return static_cast<uint32_t>(rows_ * group_blocks_ * 2 * S::kUnits * 2);
  }

  // Waits for what the blocks published in the step before.
  __device__ __forceinline__ void receive(int64_t step) const {
    if constexpr (S::kGroup == Group::grid) wait_for_all_copies();
    wait_for_group<S>(step, bytes_of_step());
  }

  // The fragments of both halves of four rows a tile, kColumns tiles from `tile` on; sums of this warp's part
  // of the depth.
  template <int kColumns>
  __device__ __forceinline__ void multiply_tiles(const Half* h, int tile, float* sums_of_step) {
    // Two chains of sums a gate where there are registers for them, so that a product seldom waits for the
    // last.
    constexpr bool kHalved = kColumns == 1 && !S::kRegistersAreFull;
    float sums[kHalved ? 2 : kColumns][3][4] = {};
    const int part = warp_ % S::kDepthWarps;
    const uint32_t address =
        shared_address(h + (tile * kTileRows + lane_ % 8 / 2) * S::kRow + part * (S::kTiles / 2) * kLine +
                       swizzled(lane_ % 2 * 4 + lane_ / 8, lane_ % 8 / 2) * 8);
#pragma unroll
    for (int k = 0; k < S::kTiles; k += 2) {
      uint32_t columns[kColumns][4];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        ptx::ldmatrix(columns[c],
                      address + static_cast<uint32_t>(2 * (c * kTileRows * S::kRow + k / 2 * kLine)));
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
          uint32_t fragment[4];
          fragments_.load(weights_, k + i, gate, fragment);
#pragma unroll
          for (int c = 0; c < kColumns; ++c) {
            multiply_add<Half>(sums[kHalved ? i : c][gate], fragment, columns[c][2 * i],
                               columns[c][2 * i + 1]);
          }
        }
      }
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int row = (tile + c) * kTileRows + lane_ % 4;
      float* to =
          sums_of_step + row * S::kSumsPitch + part * S::kGates + warp_ / S::kDepthWarps * 16 + lane_ / 4;
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float sum = sums[c][gate][2 * half] + sums[c][gate][2 * half + 1];
          if constexpr (kHalved) sum += sums[1][gate][2 * half] + sums[1][gate][2 * half + 1];
          to[gate * S::kUnits + half * 8] = sum;
        }
      }
    }
  }

  __device__ __forceinline__ void multiply(int64_t step, const Half* h) {
    const int tiles = (rows_ + kTileRows - 1) / kTileRows;
    int tile = 0;
    if constexpr (!S::kRegistersAreFull) {
      for (; tile + 1 < tiles; tile += 2) multiply_tiles<2>(h, tile, sums_of(step));
    }
    for (; tile < tiles; ++tile) multiply_tiles<1>(h, tile, sums_of(step));
  }

  // This thread's unit of a row in a step: its gates without the part of h, its c, and what the sums of h are
  // multiplied by.
  struct Unit {
    float gates[3];
    float scales[3];
    float c;
  };
  __device__ __forceinline__ Unit unit_of(int64_t step, int row) const {
    const float* of_input = gates_of(step, row);
    const float row_scale = step == 0 ? row_scales_[row] : 1.0f;
    Unit unit;
#pragma unroll
    for (int g = 0; g < 3; ++g) {
      const int place = g * S::kUnits + column_;
      unit.gates[g] = of_input[g * S::kUnits] + bias_[place];
      unit.scales[g] = weight_scales_[place] * row_scale;
    }
    unit.c = *c_of(row);
    return unit;
  }

  // By a whole warp: its units of a row after this step; their h.
  __device__ __forceinline__ float compute_unit(int64_t step, int row, Unit& unit) {
    const float* sums_of_row = sums_of(step) + row * S::kSumsPitch + column_;
    float sums[3] = {};
#pragma unroll
    for (int g = 0; g < 3; ++g) {
#pragma unroll
      for (int part = 0; part < S::kDepthWarps; ++part) {
        sums[g] += sums_of_row[part * S::kGates + g * S::kUnits];
      }
    }
#pragma unroll
    for (int g = 0; g < 3; ++g) unit.gates[g] = fmaf(sums[g], unit.scales[g], unit.gates[g]);
    const float h_after = step_forward_quick(unit.gates[0], unit.gates[1], unit.gates[2], unit.c);
    *c_of(row) = unit.c;
    // Where there is no unit an infinite h0 times weights of zero is NaN.
    return has_unit() ? h_after : 0.0f;
  }

  // By a whole warp: its h to all blocks of the group. A lane has a quarter of one of the halves.
  __device__ __forceinline__ void publish(int64_t step, int row, float h, Half* next) const {
    const Split<Half> split(h);
    const int first = rank_ * S::kUnits + warp_ % S::kWarpsOfRow * kWarpUnits;
    Half* line = next + row * S::kRow + first / kWarpUnits * kLine;
    if constexpr (S::kGroup == Group::block) {
      Half* to = line + swizzled(lane_ / 8, row) * 8 + lane_ % 8;
      to[0] = split.high;
      to[kWarpUnits] = split.low;
      return;
    }
    const uint32_t both = pair_of(split.high, split.low);
    const uint32_t other = __shfl_xor_sync(0xffffffffu, both, 1);
    // Of two neighbours the first has the higher halves of both, the second the lower ones.
    const uint32_t pair =
        lane_ % 2 == 0 ? __byte_perm(both, other, 0x5410) : __byte_perm(both, other, 0x3276);
    const int half = lane_ % 8 / 4;
    const int begin = lane_ % 4 * 8;
    uint4 chunk;
    chunk.x = __shfl_sync(0xffffffffu, pair, begin + half);
    chunk.y = __shfl_sync(0xffffffffu, pair, begin + half + 2);
    chunk.z = __shfl_sync(0xffffffffu, pair, begin + half + 4);
    chunk.w = __shfl_sync(0xffffffffu, pair, begin + half + 6);
    if constexpr (S::kGroup == Group::cluster) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
      const uint32_t to = shared_address(line + swizzled(lane_ % 8, row) * 8);
      const uint32_t barrier = barriers_.address + 8 * static_cast<uint32_t>((step + 1) % 2);
#pragma unroll
      for (int i = 0; i < S::kPeers; ++i) {
        if (lane_ / 8 + 4 * i < group_blocks_) ptx::st_async(to + peers_[i], chunk, barrier + peers_[i]);
      }
#endif
    } else if (lane_ < 8) {
      const int to = 2 * (row * group_blocks_ * S::kUnits + first) + lane_ * 8;
      ptx::store_relaxed(exchanged_of(step) + to, chunk);
    }
  }

  // Of this group's rows on the grid, both halves: what the blocks exchange after a step. There are two, as
  // some blocks write the next while others read.
  __device__ __forceinline__ Half* exchanged_of(int64_t step) const {
    return exchanged_ + (step % 2 * pass_.batch + first_row_) * 2 * group_blocks_ * S::kUnits;
  }

  // On the grid: begins to copy what the blocks of the group published.
  __device__ __forceinline__ void begin_staging(int64_t step, Half* h) const {
    const Half* from = exchanged_of(step);
    const int chunks = group_blocks_ * (S::kUnits / 4);  // of a row
    for (int row = warp_; row < rows_; row += S::kWarps) {
      const uint32_t to =
          shared_address(h + row * S::kRow + lane_ / 8 * kLine + swizzled(lane_ % 8, row) * 8);
      // Four lines at a time.
      for (int chunk = lane_; chunk < chunks; chunk += 32) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
        ptx::cp_async_cg(to + static_cast<uint32_t>(2 * (chunk - lane_) / 8 * kLine),
                         from + (int64_t{row} * chunks + chunk) * 8);
#endif
      }
    }
  }

  __device__ __forceinline__ void store_results(int64_t first, int row, const Unit& unit, float h) const {
    if (unit_ >= units_) return;
    const int state = state_of(row);
    pass_.output.store(first + state, h);
    (pass_.cells + first)[state] = unit.c;
    store_gates(pass_.activations, first, row, unit.gates);
  }

  ForwardPass pass_;
  MmaWeightView<Half> mma_weight_;
  Half* exchanged_;
  uint32_t peers_[S::kPeers];
  Half* buffers_;
  float* sums_;
  float* row_scales_;  // of h0
  float* gates_;       // of the inputs
  float* c_;
  float* bias_;  // of the gates of all units, and what their sums are divided by
  float* weight_scales_;
  WeightFragments<S::kTiles, 3, S::kKept, S::kBlock> fragments_;
};

template <typename S>
__global__ void __launch_bounds__(S::kBlock, 1)
    on_chip_mma_forward(ForwardPass pass, MmaWeightView<Half> weight, int group_blocks, int group_rows,
                        uint32_t* arrivals, Half* exchanged) {
  Recurrence<S>(pass, weight, group_blocks, group_rows, arrivals, exchanged).run();
}

}  // namespace

int resident_on_chip_mma_forward(const Problem&, Kernel kernel, int64_t blocks, int64_t shared_bytes) {
  return with_shape(MmaForwardShapes{}, kernel, [&]<typename S>(Tag<S>) {
    return resident_groups<S>(reinterpret_cast<const void*>(on_chip_mma_forward<S>), blocks, shared_bytes);
  });
}

void launch_on_chip_mma_forward(const Problem& problem, Kernel kernel, ForwardTensors& tensors) {
  const MmaWeight weight = row_scaled_weight<Half>(tensors.weight_hh, tensors.stream);
  with_shape(MmaForwardShapes{}, kernel, [&]<typename S>(Tag<S>) {
    const Groups groups = *fitting_groups<S>(problem);
    const int64_t exchanged_bytes = int64_t{2} * 2 * 2 * problem.batch * groups.blocks * S::kUnits;
    launch_mma<S>(on_chip_mma_forward<S>, ForwardPass(tensors), weight, groups, exchanged_bytes,
                  tensors.stream);
  });
}

}  // namespace torchgraft::lltm::cuda
