// The recurrence of a whole sequence forward, in float16 and bfloat16, on tensor cores.
//
// A group of blocks owns some rows of the batch for all steps. A block of it owns 32 units, and its warps
// share them out: two halves of 16 units, their three gates each, times kDepthWarps parts of the depth. A
// thread keeps its part of weight_hh as fragments, 96 registers at the most (of a block 96 KB of weight_hh
// for 512 units, 192 KB for 1024), from the first step to the last. A step is
//
//     h of all units in shared memory -> sums of a part of the depth each -> own h, c, activations
//     -> own h to all blocks of the group -> they meet
//
// Within h the rows of the batch are columns of the product, two each: the higher and the lower half of h
// (cuda_tensor_cores.cuh), so a tile of eight columns serves four rows. c, the sums and the activations are
// float; of h only the result is rounded. A cell that does not forget multiplies errors: over 512 steps with
// h rounded to bfloat16 a fifth of the results were wrong in simulation, with two halves of bfloat16 still
// some. So products are of float16, 22 bits of h: bfloat16 has fewer digits, and its larger range is given
// back by a power of two for each row of weight_hh. What that leaves out of it is below 2**-39 of the largest
// in its row.
//
// Up to 512 units a group is a cluster. A block writes its h, 128 bytes a row, into the shared memory of all
// of them, of which each has two buffers, so that one barrier a step is enough. Budget of a step on an H200,
// 512 units and 5 to 8 rows: 384 products a block, 0.33 us; 16 KB each way between multiprocessors and a
// barrier, about 1 us; a quarter of a microsecond for sums and units.
//
// Up to 1024 units a group is blocks of one cooperative grid, which meet with all others: they exchange h
// through L2, where a block reads 4 * units bytes a row. For 64 rows of 1024 units, 4 groups of 32 blocks:
// 1536 products a block, 1.3 us; 64 KB a block from L2, 1.6 us; the barrier, 1 us.

#include <cooperative_groups.h>

#include "cuda_recurrence.h"
#include "cuda_tensor_cores.cuh"
#include "cuda_unit.cuh"

namespace torchgraft::lltm::cuda {
namespace {

constexpr int kUnits = 32;
constexpr int kGates = 3 * kUnits;
// So that the four rows of a tile lie in different banks.
constexpr int kSumsPitch = kGates + 8;
constexpr int kTileRows = 4;

template <int kTilesOfWarp, int kDepthWarpsOfBlock, int kTilesInRegisters, bool kInCluster>
struct Shape {
  static constexpr int kTiles = kTilesOfWarp;  // of 16 of the depth, a warp
  static constexpr int kDepthWarps = kDepthWarpsOfBlock;
  static constexpr int kKept = kTilesInRegisters;  // the others lie in shared memory
  static constexpr bool kCluster = kInCluster;
  static constexpr int kWarps = 2 * kDepthWarps;
  static constexpr int kBlock = 32 * kWarps;
  static constexpr int kDepth = 16 * kTiles * kDepthWarps;
  static constexpr int kPitch = kDepth + 8;  // of T: eight rows of a matrix begin in different banks
  static constexpr int kBuffers = kCluster ? 2 : 1;
  static constexpr int64_t kWeightBytes = int64_t{3} * (kTiles - kKept) * kBlock * 16;

  static_assert(kTiles % 2 == 0 && kKept % 2 == 0, "two tiles a load of a matrix");
  static_assert(kBlock <= 512 && 12 * kKept <= 96, "what registers hold");

  static int64_t shared_bytes(int64_t rows, int64_t) {
    const int64_t padded = ceil_divide<int64_t>(rows, kTileRows) * kTileRows;
    const int64_t of_row = int64_t{kBuffers} * 2 * kPitch * 2 + int64_t{kDepthWarps} * kSumsPitch * 4;
    return kWeightBytes + padded * (of_row + 4);
  }
};

// The sum of a gate that came out as NaN: an infinite weight times the halves of a number may be infinities
// of both signs, where there is only one.
template <typename T>
__device__ __noinline__ float multiply_again(const Half* high, const Half* low, const T* weight, int units) {
  float sum = 0;
#pragma unroll 1
  for (int k = 0; k < units; ++k) {
    sum += (static_cast<float>(high[k]) + static_cast<float>(low[k])) * static_cast<float>(weight[k]);
  }
  return sum;
}

// The power of two that brings the largest finite number of a row, of which the lanes of a warp have seen a
// part each, to 2**14 and above.
__device__ __forceinline__ float factor_for(float largest) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
  }
  return __uint_as_float((268u - max(__float_as_uint(largest) >> 23, 15u)) << 23);
}

template <typename T>
__device__ __forceinline__ float largest_finite(const T* row, int count, int lane) {
  float largest = 0.0f;
  for (int k = lane; k < count; k += 32) {
    const float size = fabsf(static_cast<float>(row[k]));
    // Not of NaN, either.
    if (size <= 3.4e38f) largest = fmaxf(largest, size);
  }
  return largest;
}

template <typename T, typename S>
class Recurrence {
 public:
  __device__ __forceinline__ Recurrence(const HalvesForward<T>& pass, int group_blocks, int group_rows,
                                        Half* exchanged)
      : pass_(pass),
        exchanged_(exchanged),
        units_(static_cast<int>(pass.units)),
        group_blocks_(group_blocks),
        rank_(static_cast<int>(blockIdx.x) % group_blocks),
        first_row_(static_cast<int>(blockIdx.x) / group_blocks * group_rows),
        rows_(min(group_rows, static_cast<int>(pass.batch) - first_row_)),
        padded_rows_((group_rows + kTileRows - 1) / kTileRows * kTileRows),
        lane_(static_cast<int>(threadIdx.x) % 32),
        warp_(static_cast<int>(threadIdx.x) / 32),
        unit_(rank_ * kUnits + lane_) {
    weights_ = shared_memory<uint4>();
    buffers_ = reinterpret_cast<Half*>(weights_ + S::kWeightBytes / 16);
    sums_ = reinterpret_cast<float*>(buffers_ + S::kBuffers * buffer_size());
    row_scales_ = sums_ + S::kDepthWarps * padded_rows_ * kSumsPitch;
  }

  __device__ __forceinline__ void run() {
    find_scales();
    load_weights();
    load_first();
    meet_first();

    const bool has_element = unit_ < units_ && warp_ < rows_;
#pragma unroll
    for (int g = 0; g < 3; ++g) {
      const bool has_bias = pass_.bias != nullptr && unit_ < units_;
      bias_[g] = has_bias ? static_cast<float>(pass_.bias[g * units_ + unit_]) : 0.0f;
    }
    float c = has_element ? static_cast<float>(pass_.c0[state_of(warp_)]) : 0.0f;
    float gates[3] = {};
    if (has_element) fetch(first_of(0), warp_, gates);
    for (int64_t step = 0; step < pass_.steps; ++step) {
      const bool is_last = step + 1 == pass_.steps;
      const int64_t first = first_of(step);
      const Half* h = buffers_ + (S::kCluster ? step % 2 : 0) * buffer_size();
      Half* next = buffers_ + (S::kCluster ? (step + 1) % 2 : 0) * buffer_size();
      multiply(h);
      __syncthreads();
      for (int row = warp_ + S::kWarps; row < rows_; row += S::kWarps) {
        float others[3] = {};
        float of_others = 0;
        if (unit_ < units_) {
          fetch(first, row, others);
          of_others = step == 0 ? static_cast<float>(pass_.c0[state_of(row)])
                                : pass_.cells[first_of(step - 1) * units_ + state_of(row)];
        }
        advance(step, row, h, others, of_others, next);
        if (unit_ < units_) keep(first, row, others, of_others);
      }
      if (warp_ < rows_) advance(step, warp_, h, gates, c, next);
      // While the group meets, the results of the warp's first row leave, and what it needs next comes.
      if (is_last) {
        if (has_element) keep(first, warp_, gates, c);
        break;
      }
      if constexpr (S::kCluster) {
        arrive();
      } else {
        cooperative_groups::this_grid().sync();
        begin_staging(step, next);
      }
      if (has_element) {
        keep(first, warp_, gates, c);
        fetch(first_of(step + 1), warp_, gates);
      }
      if constexpr (S::kCluster) {
        wait();
      } else {
        finish_staging();
      }
    }
  }

 private:
  __device__ __forceinline__ int buffer_size() const { return 2 * padded_rows_ * S::kPitch; }
  __device__ __forceinline__ int64_t first_of(int64_t step) const {
    return (pass_.reverse ? pass_.steps - 1 - step : step) * pass_.batch;
  }
  __device__ __forceinline__ int64_t state_of(int row) const {
    return int64_t{first_row_ + row} * units_ + unit_;
  }

  __device__ __forceinline__ static void arrive() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    cooperative_groups::this_cluster().barrier_arrive();
#endif
  }
  __device__ __forceinline__ static void wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    cooperative_groups::this_cluster().barrier_wait();
#endif
  }

  __device__ __forceinline__ uint32_t weights_at(int gate, int unit, int k) const {
    if (unit >= units_ || k >= units_) return 0;
    const T* from = pass_.weight + (int64_t{gate} * units_ + unit) * units_ + k;
    if constexpr (std::is_same_v<T, Half>) {
      if (pass_.is_paired) return *reinterpret_cast<const uint32_t*>(from);
      return pair_of(from[0], k + 1 < units_ ? from[1] : T(0.0f));
    } else {
      uint32_t both = 0;
      if (pass_.is_paired) {
        both = *reinterpret_cast<const uint32_t*>(from);
      } else {
        both = pair_of(from[0], k + 1 < units_ ? from[1] : T(0.0f));
      }
      const float factor = sums_[gate * kUnits + unit % kUnits];
      return pair_of(Half(__uint_as_float(both << 16) * factor),
                     Half(__uint_as_float(both & 0xffff0000u) * factor));
    }
  }

  // Factors of the rows of weight_hh for the time of loading, in the place of sums, and of h0; none are
  // needed in float16.
  __device__ __forceinline__ void find_scales() {
#pragma unroll
    for (int g = 0; g < 3; ++g) weight_scales_[g] = 1.0f;
    if constexpr (std::is_same_v<T, BFloat16>) {
      for (int row = warp_; row < kGates; row += S::kWarps) {
        const int unit = rank_ * kUnits + row % kUnits;
        float largest = 0.0f;
        if (unit < units_) {
          const T* from = pass_.weight + (int64_t{row / kUnits} * units_ + unit) * units_;
          largest = largest_finite(from, units_, lane_);
        }
        const float factor = factor_for(largest);
        if (lane_ == 0) sums_[row] = factor;
      }
      for (int row = warp_; row < padded_rows_; row += S::kWarps) {
        float largest = 0.0f;
        if (row < rows_) largest = largest_finite(first_h(row), units_, lane_);
        const float factor = factor_for(largest);
        if (lane_ == 0) row_scales_[row] = 1.0f / factor;
      }
      __syncthreads();
#pragma unroll
      for (int g = 0; g < 3; ++g) weight_scales_[g] = 1.0f / sums_[g * kUnits + lane_];
    }
  }

  __device__ __forceinline__ const T* first_h(int row) const {
    return pass_.h0 + int64_t{first_row_ + row} * units_;
  }

  __device__ __forceinline__ void load_weights() {
    const int unit = rank_ * kUnits + warp_ / S::kDepthWarps * 16 + lane_ / 4;
    const int begin = warp_ % S::kDepthWarps * S::kTiles * 16 + lane_ % 4 * 2;
#pragma unroll
    for (int k = 0; k < S::kTiles; ++k) {
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) {
        uint32_t fragment[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          fragment[e] = weights_at(gate, unit + e % 2 * 8, begin + k * 16 + e / 2 * 8);
        }
        if (k < S::kKept) {
#pragma unroll
          for (int e = 0; e < 4; ++e) kept_[k][gate][e] = fragment[e];
        } else {
          weights_[((k - S::kKept) * 3 + gate) * S::kBlock + static_cast<int>(threadIdx.x)] =
              make_uint4(fragment[0], fragment[1], fragment[2], fragment[3]);
        }
      }
      // A tile at a time: all loads at once would need more registers than there are.
      __syncwarp();
    }
  }

  // h0 of all units, in both of its halves; zeros where there is none, in all buffers.
  __device__ __forceinline__ void load_first() {
    for (int i = static_cast<int>(threadIdx.x); i < S::kBuffers * buffer_size(); i += S::kBlock) {
      const int row = i / S::kPitch / 2;
      const int k = i % S::kPitch;
      const bool is_there = i / S::kPitch % 2 == 0 && row < rows_ && k < units_;
      if constexpr (std::is_same_v<T, Half>) {
        buffers_[i] = is_there ? first_h(row)[k] : Half(0.0f);
      } else {
        buffers_[i] = Half(is_there ? static_cast<float>(first_h(row)[k]) / row_scales_[row] : 0.0f);
      }
    }
  }

  // No block may write into another's memory before that has been initialised.
  __device__ __forceinline__ void meet_first() {
    if constexpr (S::kCluster) {
      arrive();
      wait();
    } else {
      __syncthreads();
    }
  }

  // The fragments of both halves of four rows a tile, kColumns tiles from `tile` on; sums of this warp's part
  // of the depth.
  template <int kColumns>
  __device__ __forceinline__ void multiply_tiles(const Half* h, int tile) {
    // Two chains of sums a gate, so that a product seldom waits for the last.
    float sums[2][3][4] = {};
    const int part = warp_ % S::kDepthWarps;
    const uint32_t address =
        shared_address(h + (tile * 8 + lane_ % 8) * S::kPitch + part * S::kTiles * 16 + lane_ / 8 * 8);
#pragma unroll
    for (int k = 0; k < S::kTiles; k += 2) {
      uint32_t columns[kColumns][4];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        ptx::ldmatrix(columns[c], address + static_cast<uint32_t>(2 * (c * 8 * S::kPitch + k * 16)));
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
            multiply_add<Half>(sums[kColumns == 2 ? c : i][gate], fragment, columns[c][2 * i],
                               columns[c][2 * i + 1]);
          }
        }
      }
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int row = (tile + c) * kTileRows + lane_ % 4;
      float* to = sums_ + (part * padded_rows_ + row) * kSumsPitch + warp_ / S::kDepthWarps * 16 + lane_ / 4;
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float sum = sums[c][gate][2 * half] + sums[c][gate][2 * half + 1];
          if constexpr (kColumns == 1) sum += sums[1][gate][2 * half] + sums[1][gate][2 * half + 1];
          to[gate * kUnits + half * 8] = sum;
        }
      }
    }
  }

  __device__ __forceinline__ void multiply(const Half* h) {
    const int tiles = (rows_ + kTileRows - 1) / kTileRows;
    int tile = 0;
    for (; tile + 1 < tiles; tile += 2) multiply_tiles<2>(h, tile);
    if (tile < tiles) multiply_tiles<1>(h, tile);
  }

  __device__ __forceinline__ void fetch(int64_t first, int row, float (&gates)[3]) const {
#pragma unroll
    for (int g = 0; g < 3; ++g) {
      gates[g] = pass_.activations[((first + first_row_ + row) * 3 + g) * units_ + unit_] + bias_[g];
    }
  }

  // By a whole warp: its row's units of this step, and their h to all blocks of the group.
  __device__ __forceinline__ void advance(int64_t step, int row, const Half* h, float (&gates)[3], float& c,
                                          Half* next) {
    float h_after = 0;
    if (unit_ < units_) {
#pragma unroll
      for (int g = 0; g < 3; ++g) {
        float sum = 0;
#pragma unroll
        for (int part = 0; part < S::kDepthWarps; ++part) {
          sum += sums_[(part * padded_rows_ + row) * kSumsPitch + g * kUnits + lane_];
        }
        if (!isnan(sum)) {
          sum *= weight_scales_[g];
        } else {
          const Half* high = h + 2 * row * S::kPitch;
          sum = multiply_again(high, high + S::kPitch, pass_.weight + (int64_t{g} * units_ + unit_) * units_,
                               units_);
        }
        if (std::is_same_v<T, BFloat16> && step == 0) sum *= row_scales_[row];
        gates[g] += sum;
      }
      h_after = step_forward(gates[0], gates[1], gates[2], c);
      pass_.output[first_of(step) * units_ + state_of(row)] = static_cast<T>(h_after);
    }
    if (step + 1 < pass_.steps) publish(step, row, h_after, next);
  }

  __device__ __forceinline__ void publish(int64_t step, int row, float h, Half* next) {
    const Split<Half> split(h);
    // On the grid `next` is what others of this warp may still multiply again with.
    __syncwarp();
    Half* high = next + 2 * row * S::kPitch + rank_ * kUnits;
    high[lane_] = split.high;
    high[S::kPitch + lane_] = split.low;
    __syncwarp();
    const int half = lane_ % 8 / 4;
    Half* from = high + half * S::kPitch + lane_ % 4 * 8;
    const uint4 chunk = *reinterpret_cast<const uint4*>(from);
    if constexpr (S::kCluster) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
      const auto cluster = cooperative_groups::this_cluster();
      for (int block = lane_ / 8; block < group_blocks_; block += 4) {
        if (block != rank_) *reinterpret_cast<uint4*>(cluster.map_shared_rank(from, block)) = chunk;
      }
#endif
    } else if (lane_ < 8) {
      Half* to =
          exchanged_of(step) + (2 * row + half) * group_blocks_ * kUnits + rank_ * kUnits + lane_ % 4 * 8;
      __stcg(reinterpret_cast<uint4*>(to), chunk);
    }
  }

  // Of this group's rows on the grid, both halves: what the blocks exchange after a step. There are two, as
  // some blocks write the next while others read.
  __device__ __forceinline__ Half* exchanged_of(int64_t step) const {
    return exchanged_ + (step % 2 * pass_.batch + first_row_) * 2 * group_blocks_ * kUnits;
  }

  __device__ __forceinline__ void begin_staging(int64_t step, Half* h) const {
    const Half* from = exchanged_of(step);
    const int chunks = group_blocks_ * (kUnits / 8);
    for (int i = static_cast<int>(threadIdx.x); i < 2 * rows_ * chunks; i += S::kBlock) {
      const int row = i / chunks;
      Half* to = h + row * S::kPitch + i % chunks * 8;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
      ptx::cp_async_cg(shared_address(to), from + int64_t{i} * 8);
#endif
    }
  }

  __device__ __forceinline__ static void finish_staging() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    ptx::cp_async_wait_all();
#endif
    __syncthreads();
  }

  __device__ __forceinline__ void keep(int64_t first, int row, const float (&gates)[3], float c) const {
#pragma unroll
    for (int g = 0; g < 3; ++g) {
      pass_.activations[((first + first_row_ + row) * 3 + g) * units_ + unit_] = gates[g];
    }
    pass_.cells[first * units_ + state_of(row)] = c;
  }

  HalvesForward<T> pass_;
  Half* exchanged_;
  int units_;
  int group_blocks_;
  int rank_;
  int first_row_;
  int rows_;
  int padded_rows_;
  int lane_;
  int warp_;
  int unit_;
  uint4* weights_;
  Half* buffers_;
  float* sums_;
  float* row_scales_;       // of h0
  float weight_scales_[3];  // of the gates of this thread's unit
  float bias_[3];
  uint32_t kept_[S::kKept][3][4];
};

template <typename T, typename S>
__global__ void __launch_bounds__(S::kBlock, 1)
    tensor_core_forward(HalvesForward<T> pass, int group_blocks, int group_rows, Half* exchanged) {
  Recurrence<T, S>(pass, group_blocks, group_rows, exchanged).run();
}

template <typename T, typename S>
bool launch_of(const HalvesForward<T>& pass, const Tensor& like, cudaStream_t stream) {
  const auto exchanged_bytes = [&](const Groups& groups) {
    return S::kCluster ? 0 : int64_t{2} * 2 * 2 * pass.batch * groups.blocks * kUnits;
  };
  return launch_groups<S>(tensor_core_forward<T, S>, pass, like, stream, exchanged_bytes);
}

// In clusters where there are such, as they meet in a fifth of the time.
template <typename T>
bool launch_any(HalvesForward<T> pass, const Tensor& like, cudaStream_t stream) {
  if (!may_be_grouped(pass.batch, pass.units)) return false;
  pass.is_paired = pass.units % 2 == 0 && is_aligned(pass.weight, 4);
  if (pass.units <= 128 && launch_of<T, Shape<2, 4, 2, true>>(pass, like, stream)) return true;
  if (pass.units <= 256 && launch_of<T, Shape<4, 4, 4, true>>(pass, like, stream)) return true;
  if (pass.units <= 512) {
    return launch_of<T, Shape<8, 4, 8, true>>(pass, like, stream) ||
           launch_of<T, Shape<8, 4, 8, false>>(pass, like, stream);
  }
  return launch_of<T, Shape<8, 8, 6, false>>(pass, like, stream);
}

}  // namespace

bool launch_tensor_cores(const HalvesForward<Half>& pass, const Tensor& like, cudaStream_t stream) {
  return launch_any(pass, like, stream);
}

bool launch_tensor_cores(const HalvesForward<BFloat16>& pass, const Tensor& like, cudaStream_t stream) {
  return launch_any(pass, like, stream);
}

}  // namespace torchgraft::lltm::cuda
