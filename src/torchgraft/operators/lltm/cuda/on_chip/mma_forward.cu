// The recurrence of a whole sequence forward, in float16, bfloat16 and, where tf32 is permitted, float, on
// tensor cores.
//
// A group of blocks owns some rows of the batch for all steps. A block of it owns kUnits units, and its warps
// share them out: 16 units each, their three gates, times kDepthWarps parts of the depth. A thread keeps its
// part of weight_hh as fragments, 192 registers at the most (192 KB a block), from the first step to the
// last. A step is
//
//     h of all units in shared memory -> sums of a part of the depth each -> own h, c, activations
//     -> own h to all blocks of the group -> they meet
//
// Within h the rows of the batch are columns of the product, two each: the higher and the lower half of h
// (mma.cuh), so a tile of eight columns serves four rows. c, the sums and the activations are
// float; of h only the result is rounded. A cell that does not forget multiplies errors: over 512 steps with
// h rounded to bfloat16 a fifth of the results were wrong in simulation, with two halves of bfloat16 still
// some. So products are of float16, 22 bits of h: bfloat16 has fewer digits, and its larger range is given
// back by a power of two for each row of weight_hh. What that leaves out of it is below 2**-39 of the largest
// in its row. weight_hh of float, where tf32 is permitted, is rounded in the same way, to the eleven bits
// that tf32 has too; h, in two halves, is more precise than that.
//
// Up to 128 units a group is one block, which has all of weight_hh in its registers and meets nobody. Up to
// 256 it is a cluster of two blocks of 128 units, or where rows are few of four of 64; up to 512 of eight of
// 64. A block writes its h, 128 bytes a row and 32 units, into the shared memory of all of them, of which
// each has two buffers, and a barrier in each counts the bytes that came. Nothing waits for writes to device
// memory, as the barrier of a cluster does: with that a step of 1 row of 512 units took half as long again.
//
// Up to 1024 units a group is blocks of one cooperative grid, of 32 units: they exchange h through L2, where
// a block reads 4 * units bytes a row, and a counter in device memory says who is there.
//
// What bounds a step is exchange, 500 cycles from a block's write until another goes on and two a message of
// sixteen bytes, and products, of which mma.sync makes no more than 60 % of the tensor cores' rate. Blocks
// that own twice as many units are half as many a group, so that a group has half as many rows: one tile of
// columns where there were two, and fewer and shorter messages. Of 32 rows of 512 units a cluster has 3: 384
// messages from a block where clusters of sixteen blocks, of which seven fit on an H200, would have 5 rows
// and 640.
//
// With 192 registers of weight_hh there are none for much else. Gates of inputs come into shared memory two
// steps before, c lies there; and the gates, the bias and the scales of a unit are read while the block
// meets. On an H200, microseconds a step:
//
//     rows, units                17, 200   32, 512   128, 256   64, 1024
//     a group: blocks, rows         4, 1      8, 3       2, 2     32, 16
//     predicted                      0.9       1.5        1.4        4.5
//     measured                       0.9       1.4        1.3        5.5
//     half as many units a block               2.0        1.9        6.0
//
// (Of 1024 units the last had a quarter of weight_hh in shared memory.) Of a warp's time in a step of 32 rows
// of 512 units, sampled: products 36 %, of which a third waits for h out of shared memory; waits for h of the
// others 18; units 17; results and what comes next 13; h to the others 10; barrier of the block 4. On the
// grid the meeting of all blocks is 2 us. Sending what a block has for another as one bulk copy took 4 %
// longer (45 % with one row).

#include "mma.cuh"

namespace torchgraft::lltm::cuda {
namespace {

// Of a row of the batch 32 higher halves and 32 lower ones lie together in shared memory, what a warp writes
// to a block at once. Chunks of eight change places within such a line, so that the rows of a matrix lie in
// different banks.
constexpr int kLine = 2 * kWarpUnits;
__device__ __forceinline__ int swizzled(int chunk, int row) { return chunk ^ row % kTileRows; }

// The sum of a gate that came out as NaN: an infinite weight times the halves of a number may be infinities
// of both signs, where there is only one.
__device__ __noinline__ float recompute_sum(const Half* h, int row, DynamicInput weight, int64_t first,
                                            int units) {
  float sum = 0;
#pragma unroll 1
  for (int k = 0; k < units; ++k) {
    const Half* high = h + k / kWarpUnits * kLine + swizzled(k % kWarpUnits / 8, row) * 8 + k % 8;
    const float both = static_cast<float>(high[0]) + static_cast<float>(high[kWarpUnits]);
    sum += both * weight[first + k];
  }
  return sum;
}

template <typename S>
class Recurrence {
 public:
  __device__ __forceinline__ Recurrence(const ForwardPass& pass, const MmaWeightView<Half>& factor,
                                        int group_blocks, int group_rows, uint32_t* arrivals, Half* exchanged)
      : pass_(pass),
        mma_weight_(factor),
        arrivals_(arrivals),
        exchanged_(exchanged),
        units_(static_cast<int>(pass.units)),
        first_(pass.reverse ? (pass.steps - 1) * pass.batch * pass.units : 0),
        stride_((pass.reverse ? -1 : 1) * pass.batch * pass.units),
        group_blocks_(group_blocks),
        rank_(static_cast<int>(blockIdx.x) % group_blocks),
        first_row_(static_cast<int>(blockIdx.x) / group_blocks * group_rows),
        rows_(min(group_rows, static_cast<int>(pass.batch) - first_row_)),
        group_rows_(group_rows),
        padded_rows_((group_rows + kTileRows - 1) / kTileRows * kTileRows),
        lane_(static_cast<int>(threadIdx.x) % 32),
        warp_(static_cast<int>(threadIdx.x) / 32),
        own_row_(warp_ / S::kWarpsOfRow),
        column_(warp_ % S::kWarpsOfRow * kWarpUnits),
        unit_(rank_ * S::kUnits + column_ + lane_) {
    barriers_ = shared_address(shared_memory<uint4>());
    weights_ = shared_memory<uint4>() + S::kBarrierBytes / 16;
    buffers_ = reinterpret_cast<Half*>(weights_ + S::kWeightBytes / 16);
    sums_ = reinterpret_cast<float*>(buffers_ + S::kBuffers * buffer_size());
    row_scales_ = sums_ + S::kSumBuffers * sums_size();
    gates_ = row_scales_ + padded_rows_;
    c_ = gates_ + kStages * 3 * group_rows * S::kUnits;
    bias_ = c_ + group_rows * S::kUnits;
    weight_scales_ = bias_ + 3 * S::kUnits;
    arrivals_ += kArrivalBytes / 4 * (static_cast<int>(blockIdx.x) / group_blocks);
  }

  __device__ __forceinline__ void run() {
    prefetch_rows(0, first_);
    prefetch_rows(1, first_ + stride_);
    load_units();
    load_first();
    load_weights();
    start_group();

    const bool has_row = own_row_ < rows_;
    int64_t first = first_;
    for (int64_t step = 0; step < pass_.steps; ++step) {
      const bool is_last = step + 1 == pass_.steps;
      const Half* h = buffers_ + (S::kBuffers == 2 ? step & 1 : 0) * buffer_size();
      Half* next = buffers_ + (S::kBuffers == 2 ? (step + 1) & 1 : 0) * buffer_size();
      if (step > 0) receive(step);
      multiply(step, h);
      wait_for_older_copies();
      // What does not need the sums is there by the time that they are.
      Unit own = {};
      if (has_row) own = unit_of(step, own_row_);
      __syncthreads();
      float h_after = 0.0f;
      if (has_row) {
        h_after = compute_unit(step, own_row_, h, own);
        if (!is_last) publish(step, own_row_, h_after, next);
      }
      if constexpr (!S::kOneRow) {
#pragma unroll 1
        for (int row = own_row_ + S::kFirstRows; row < rows_; row += S::kFirstRows) {
          Unit other = unit_of(step, row);
          const float h_of_other = compute_unit(step, row, h, other);
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
  // Of this thread's unit of a row among those of a step.
  __device__ __forceinline__ int state_of(int row) const { return (first_row_ + row) * units_ + unit_; }
  // Of the first gate of it among those of a step.
  __device__ __forceinline__ int gate_of(int row) const { return 3 * state_of(row) - 2 * unit_; }
  __device__ __forceinline__ float* gates_of(int64_t step, int row) const {
    return gates_ + ((step & 1) * group_rows_ + row) * 3 * S::kUnits + column_ + lane_;
  }
  __device__ __forceinline__ float* c_of(int row) const { return c_ + row * S::kUnits + column_ + lane_; }

  // The gates of inputs, of all rows of this warp.
  __device__ __forceinline__ void prefetch_rows(int64_t step, int64_t first) const {
    if (step < pass_.steps && unit_ < units_) {
#pragma unroll 1
      for (int row = own_row_; row < rows_; row += S::kFirstRows) {
        const float* from = pass_.activations + 3 * first + gate_of(row);
        float* to = gates_of(step, row);
#pragma unroll
        for (int g = 0; g < 3; ++g) copy_four_bytes_async(to + g * S::kUnits, from + g * units_);
      }
    }
    commit_copies();
  }

  // c0 of this warp's rows; the bias and the scales of weight_hh of all units.
  __device__ __forceinline__ void load_units() {
    for (int row = own_row_; row < rows_; row += S::kFirstRows) {
      *c_of(row) = unit_ < units_ ? pass_.c0[state_of(row)] : 0.0f;
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
        if (k < S::kKept) {
#pragma unroll
          for (int e = 0; e < 4; ++e) kept_[k < S::kKept ? k : 0][gate][e] = fragment[e];
        } else {
          weights_[((k - S::kKept) * 3 + gate) * S::kBlock + static_cast<int>(threadIdx.x)] =
              make_uint4(fragment[0], fragment[1], fragment[2], fragment[3]);
        }
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

  // No block may write into another's memory before that has been initialised.
  __device__ __forceinline__ void start_group() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if constexpr (S::kGroup == Group::cluster) {
      if (warp_ == 0) CountedBarriers{barriers_}.start(bytes_of_step());
#pragma unroll
      for (int i = 0; i < S::kPeers; ++i) {
        const int block = min(lane_ / 8 + 4 * i, group_blocks_ - 1);
        peers_[i] = ptx::mapa(barriers_, static_cast<uint32_t>(block)) - barriers_;
      }
      cooperative_groups::this_cluster().sync();
      return;
    }
#endif
    __syncthreads();
  }

  // What the blocks of a cluster, this one among them, write into this one's memory.
  __device__ __forceinline__ uint32_t bytes_of_step() const {
    return static_cast<uint32_t>(rows_ * group_blocks_ * 2 * S::kUnits * 2);
  }

  // Waits for what the blocks published in the step before.
  __device__ __forceinline__ void receive(int64_t step) const {
    if constexpr (S::kGroup == Group::cluster) {
      CountedBarriers{barriers_}.wait(step, bytes_of_step());
    } else {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
      if constexpr (S::kGroup == Group::grid) wait_for_all_copies();
#endif
      __syncthreads();
    }
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
          if (k + i < S::kKept) {
#pragma unroll
            for (int e = 0; e < 4; ++e) fragment[e] = kept_[k + i < S::kKept ? k + i : 0][gate][e];
          } else {
            const uint4 four =
                weights_[((k + i - S::kKept) * 3 + gate) * S::kBlock + static_cast<int>(threadIdx.x)];
            fragment[0] = four.x;
            fragment[1] = four.y;
            fragment[2] = four.z;
            fragment[3] = four.w;
          }
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

  // This thread's unit of a row in a step: its gates without what h gives to them, its c, and what the sums
  // of h are multiplied by.
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
      const int place = g * S::kUnits + column_ + lane_;
      unit.gates[g] = of_input[g * S::kUnits] + bias_[place];
      unit.scales[g] = weight_scales_[place] * row_scale;
    }
    unit.c = *c_of(row);
    return unit;
  }

  // By a whole warp: its units of a row after this step; their h.
  __device__ __forceinline__ float compute_unit(int64_t step, int row, const Half* h, Unit& unit) {
    const float* sums_of_row = sums_of(step) + row * S::kSumsPitch + column_ + lane_;
    float sums[3] = {};
#pragma unroll
    for (int g = 0; g < 3; ++g) {
#pragma unroll
      for (int part = 0; part < S::kDepthWarps; ++part) {
        sums[g] += sums_of_row[part * S::kGates + g * S::kUnits];
      }
    }
    if (isnan(sums[0] + sums[1] + sums[2]) && unit_ < units_) {
#pragma unroll
      for (int g = 0; g < 3; ++g) {
        if (!isnan(sums[g])) continue;
        unit.scales[g] = step == 0 ? row_scales_[row] : 1.0f;
        sums[g] = recompute_sum(h + row * S::kRow, row, pass_.weight, (int64_t{g} * units_ + unit_) * units_,
                                units_);
      }
    }
#pragma unroll
    for (int g = 0; g < 3; ++g) unit.gates[g] = fmaf(sums[g], unit.scales[g], unit.gates[g]);
    const float h_after = step_forward_quick(unit.gates[0], unit.gates[1], unit.gates[2], unit.c);
    *c_of(row) = unit.c;
    // Where there is no unit an infinite h0 times weights of zero is NaN.
    return unit_ < units_ ? h_after : 0.0f;
  }

  // By a whole warp: its h to all blocks of the group. A lane has a quarter of one of the halves.
  __device__ __forceinline__ void publish(int64_t step, int row, float h, Half* next) const {
    const Split<Half> split(h);
    const int first = rank_ * S::kUnits + column_;
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
      const uint32_t barrier = barriers_ + 8 * static_cast<uint32_t>((step + 1) % 2);
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
    float* to = pass_.activations + 3 * first + gate_of(row);
#pragma unroll
    for (int g = 0; g < 3; ++g) to[g * units_] = unit.gates[g];
  }

  ForwardPass pass_;
  MmaWeightView<Half> mma_weight_;
  uint32_t* arrivals_;
  Half* exchanged_;
  int units_;
  int64_t first_;   // of the first step among the numbers of all, one a unit
  int64_t stride_;  // from a step's to those of the next
  int group_blocks_;
  int rank_;
  int first_row_;
  int rows_;
  int group_rows_;
  int padded_rows_;
  int lane_;
  int warp_;
  int own_row_;
  int column_;  // of this thread's unit among the block's, less the lane
  int unit_;
  uint32_t barriers_;
  // From an address in this block's shared memory to the same place in those that this lane writes to.
  uint32_t peers_[S::kPeers];
  uint4* weights_;
  Half* buffers_;
  float* sums_;
  float* row_scales_;  // of h0
  float* gates_;       // of the inputs
  float* c_;
  float* bias_;  // of the gates of all units, and what their sums are divided by
  float* weight_scales_;
  uint32_t kept_[S::kKept][3][4];
};

template <typename S>
__global__ void __launch_bounds__(S::kBlock, 1)
    on_chip_mma_forward(ForwardPass pass, MmaWeightView<Half> factor, int group_blocks, int group_rows,
                        uint32_t* arrivals, Half* exchanged) {
  Recurrence<S>(pass, factor, group_blocks, group_rows, arrivals, exchanged).run();
}

}  // namespace

int resident_on_chip_mma_forward(const Problem&, Kernel kernel, int64_t blocks, int64_t shared_bytes) {
  return with_shape(MmaForwardShapes{}, kernel, [&](auto tag) {
    using S = typename decltype(tag)::type;
    return resident_groups<S>(reinterpret_cast<const void*>(on_chip_mma_forward<S>), blocks, shared_bytes);
  });
}

void launch_on_chip_mma_forward(const Problem& problem, Kernel kernel, ForwardTensors& tensors) {
  const MmaWeight weight = row_scaled_weight(tensors.weight_hh, ScalarType::Half, tensors.stream);
  with_shape(MmaForwardShapes{}, kernel, [&](auto tag) {
    using S = typename decltype(tag)::type;
    const Groups groups = *fitting_groups<S>(problem);
    const int64_t exchanged_bytes = int64_t{2} * 2 * 2 * problem.batch * groups.blocks * S::kUnits;
    launch_mma<S>(on_chip_mma_forward<S>, ForwardPass(tensors), weight, groups, exchanged_bytes,
                  tensors.stream);
  });
}

}  // namespace torchgraft::lltm::cuda
