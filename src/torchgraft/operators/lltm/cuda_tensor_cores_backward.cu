// The recurrence of a whole sequence back, with weight_hh in float16 or bfloat16, on tensor cores.
//
// Groups of blocks, their rows and units are as going forward (cuda_tensor_cores_forward.cu), and a block
// keeps the same of weight_hh: the rows of its own 96 gates. A step is
//
//     own gradients of gates -> what they give to the gradients of h of all units
//     -> to each block what is for its units -> they meet -> own gradients of h, a sum over the group's
//     blocks
//
// so that what crosses blocks is 4 bytes a unit and row, as going forward, where all gradients of gates would
// be three times as much. The sum is in the order of the blocks. A warp owns kTiles times 16 units of the
// product and all of its depth, 96: no sums of parts.
//
// Gradients of gates enter the product as two halves (cuda_tensor_cores.cuh), which in float16 hold them
// divided by a power of two near the largest of the block's row: gradients may be of any size.
//
// Budget of a step on an H200, 512 units and 5 to 8 rows: 384 products a block, 0.33 us; 16 KB each way and a
// barrier, about 1 us; a third of a microsecond for sums and units. With 64 rows of 1024 units 1536 products,
// 1.3 us; 64 KB each way through L2, 2 us; the barrier of the grid, 1 us.

#include <cooperative_groups.h>

#include "cuda_recurrence.h"
#include "cuda_tensor_cores.cuh"
#include "cuda_unit.cuh"

namespace torchgraft::lltm::cuda {
namespace {

constexpr int kUnits = 32;
constexpr int kDepth = 3 * kUnits;
constexpr int kDepthTiles = kDepth / 16;
constexpr int kTileRows = 4;
// Of the gradients of gates: eight rows of a matrix begin in different banks.
constexpr int kPitch = kDepth + 8;

template <int kTilesOfWarp, int kWarpsOfBlock, int kTilesInRegisters, bool kInCluster>
struct Shape {
  static constexpr int kTiles = kTilesOfWarp;  // of 16 units, a warp
  static constexpr int kWarps = kWarpsOfBlock;
  static constexpr int kKept =
      kTilesInRegisters;  // of the six tiles of the depth; the others lie in shared memory
  static constexpr bool kCluster = kInCluster;
  static constexpr int kBlock = 32 * kWarps;
  static constexpr int kUnitsOfWarp = 16 * kTiles;
  // Of a warp's results: four rows begin in different banks.
  static constexpr int kResultsPitch = kUnitsOfWarp + (kTiles == 1 ? 24 : 8);
  static constexpr int64_t kWeightBytes = int64_t{kTiles} * (kDepthTiles - kKept) * kBlock * 16;
  static constexpr int64_t kResultBytes = int64_t{kWarps} * kTileRows * kResultsPitch * 4;

  static_assert(kBlock <= 512 && 4 * kTiles * kKept <= 96, "what registers hold");

  static int64_t shared_bytes(int64_t rows, int64_t blocks) {
    const int64_t padded = ceil_divide<int64_t>(rows, kTileRows) * kTileRows;
    const int64_t received = kCluster ? 2 * blocks * padded * kUnits * 4 : 0;
    return kWeightBytes + kResultBytes + received + padded * (2 * kPitch * 2 + 4);
  }
};

// What a gradient of h came out as NaN: an infinite weight times the halves of a number may be infinities of
// both signs, where there is only one.
template <typename T>
__device__ __noinline__ float multiply_again(const T* high, const T* weight, int units, int count) {
  float sum = 0;
#pragma unroll 1
  for (int k = 0; k < kDepth; ++k) {
    if (k % kUnits >= count) continue;
    const float value = static_cast<float>(high[k]) + static_cast<float>(high[kPitch + k]);
    sum += value * static_cast<float>(weight[(int64_t{k / kUnits} * units + k % kUnits) * units]);
  }
  return sum;
}

template <typename T, typename S>
class Recurrence {
 public:
  __device__ __forceinline__ Recurrence(const HalvesBackward<T>& pass, int group_blocks, int group_rows,
                                        float* exchanged)
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
    results_ =
        reinterpret_cast<float*>(weights_ + S::kWeightBytes / 16) + warp_ * kTileRows * S::kResultsPitch;
    received_ = reinterpret_cast<float*>(weights_ + (S::kWeightBytes + S::kResultBytes) / 16);
    gates_grad_ = reinterpret_cast<T*>(received_ + (S::kCluster ? 2 * received_size() : 0));
    scales_ = reinterpret_cast<float*>(gates_grad_ + 2 * padded_rows_ * kPitch);
  }

  __device__ __forceinline__ void run() {
    load_weights();
    for (int i = static_cast<int>(threadIdx.x); i < 2 * padded_rows_ * kPitch; i += S::kBlock) {
      gates_grad_[i] = T(0.0f);
    }
    for (int i = static_cast<int>(threadIdx.x); i < padded_rows_; i += S::kBlock) scales_[i] = 1.0f;
    // No block may write into another's memory before that runs.
    __syncthreads();
    if constexpr (S::kCluster) {
      arrive();
      wait();
    }

    const bool has_element = unit_ < units_ && warp_ < rows_;
    float values[6] = {};
    if (has_element) {
      fetch(0, warp_, values);
      values[5] = pass_.c_grad[state_of(warp_)];
    }
    for (int64_t step = 0; step < pass_.steps; ++step) {
      for (int row = warp_ + S::kWarps; row < rows_; row += S::kWarps) {
        float others[6] = {};
        if (unit_ < units_) {
          fetch(step, row, others);
          others[5] = pass_.c_grad[state_of(row)];
        }
        go_back(step, row, others);
        if (unit_ < units_) {
          keep(step, row, others);
          pass_.c_grad[state_of(row)] = others[5];
        }
      }
      if (warp_ < rows_) go_back(step, warp_, values);
      __syncthreads();
      multiply(step);
      // While the group meets, the results of the warp's first row leave, and what it needs next comes.
      if constexpr (S::kCluster) arrive();
      if (has_element) {
        keep(step, warp_, values);
        if (step + 1 < pass_.steps) fetch(step + 1, warp_, values);
      }
      if constexpr (S::kCluster) {
        wait();
      } else {
        cooperative_groups::this_grid().sync();
      }
    }
    if (has_element) pass_.c_grad[state_of(warp_)] = values[5];
    for (int row = warp_; row < rows_; row += S::kWarps) {
      if (unit_ < units_) pass_.h_grad[state_of(row)] = sum_of_blocks(pass_.steps, row);
    }
  }

 private:
  __device__ __forceinline__ int received_size() const { return group_blocks_ * padded_rows_ * kUnits; }
  __device__ __forceinline__ int64_t first_of(int64_t step) const {
    return (pass_.reverse ? step : pass_.steps - 1 - step) * pass_.batch;
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

  // Of the k-th of this block's gates, to a unit.
  __device__ __forceinline__ T weight_at(int k, int unit) const {
    const int from = rank_ * kUnits + k % kUnits;
    if (from >= units_ || unit >= units_) return T(0.0f);
    return pass_.weight[(int64_t{k / kUnits} * units_ + from) * units_ + unit];
  }

  __device__ __forceinline__ void load_weights() {
#pragma unroll
    for (int k = 0; k < kDepthTiles; ++k) {
#pragma unroll
      for (int tile = 0; tile < S::kTiles; ++tile) {
        uint32_t fragment[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int unit = warp_ * S::kUnitsOfWarp + tile * 16 + lane_ / 4 + e % 2 * 8;
          const int depth = k * 16 + lane_ % 4 * 2 + e / 2 * 8;
          fragment[e] = pair_of(weight_at(depth, unit), weight_at(depth + 1, unit));
        }
        if (k < S::kKept) {
#pragma unroll
          for (int e = 0; e < 4; ++e) kept_[k < S::kKept ? k : 0][tile][e] = fragment[e];
        } else {
          weights_[((k - S::kKept) * S::kTiles + tile) * S::kBlock + static_cast<int>(threadIdx.x)] =
              make_uint4(fragment[0], fragment[1], fragment[2], fragment[3]);
        }
      }
      // A tile at a time: all loads at once would need more registers than there are.
      __syncwarp();
    }
  }

  // Activations, c, and the gradient of the output; that of c stays what it is.
  __device__ __forceinline__ void fetch(int64_t step, int row, float (&values)[6]) const {
    const int64_t place = first_of(step) + first_row_ + row;
#pragma unroll
    for (int g = 0; g < 3; ++g) values[g] = pass_.activations[(place * 3 + g) * units_ + unit_];
    values[3] = pass_.cells[place * units_ + unit_];
    values[4] = pass_.output_grad == nullptr ? 0.0f : pass_.output_grad[place * units_ + unit_];
  }

  __device__ __forceinline__ void keep(int64_t step, int row, const float (&values)[6]) const {
    const int64_t place = first_of(step) + first_row_ + row;
#pragma unroll
    for (int g = 0; g < 3; ++g) pass_.gates_grad[(place * 3 + g) * units_ + unit_] = values[g];
  }

  // What the blocks gave to the gradient of h before a step. There are two of what they give, as some blocks
  // write the next while others read.
  __device__ __forceinline__ float sum_of_blocks(int64_t step, int row) const {
    const float* from = (S::kCluster ? received_ : exchanged_to(rank_)) +
                        (step % 2 * (S::kCluster ? 1 : gridDim.x) * received_size() + row * kUnits + lane_);
    float sum = 0;
    // As many loads at a time as registers are left for: from L2 each takes a third of a microsecond.
#pragma unroll 16
    for (int block = 0; block < group_blocks_; ++block) {
      const float* part = from + block * padded_rows_ * kUnits;
      sum += S::kCluster ? *part : __ldcg(part);
    }
    return sum;
  }

  // On the grid: what the blocks of this group give to one of them.
  __device__ __forceinline__ float* exchanged_to(int block) const {
    return exchanged_ + (static_cast<int64_t>(blockIdx.x) - rank_ + block) * received_size();
  }

  // By a whole warp: the gradients of its row's gates, also into the product's memory.
  __device__ __forceinline__ void go_back(int64_t step, int row, float (&values)[6]) {
    if (unit_ < units_) {
      values[4] += step == 0 ? pass_.h_grad[state_of(row)] : sum_of_blocks(step, row);
      step_back(values[0], values[1], values[2], values[3], values[4], values[5]);
    } else {
      values[0] = values[1] = values[2] = 0.0f;
    }
    float factor = 1.0f;
    if constexpr (std::is_same_v<T, Half>) {
      float largest = fmaxf(fmaxf(fabsf(values[0]), fabsf(values[1])), fabsf(values[2]));
#pragma unroll
      for (int offset = 16; offset > 0; offset /= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
      }
      // 2**e where largest is 2**e to 2**(e + 1); an infinite one stays so.
      const uint32_t exponent = min(max(__float_as_uint(largest) >> 23, 1u), 253u);
      factor = __uint_as_float((254u - exponent) << 23);
      if (lane_ == 0) scales_[row] = __uint_as_float(exponent << 23);
    }
    T* high = gates_grad_ + 2 * row * kPitch + lane_;
#pragma unroll
    for (int g = 0; g < 3; ++g) {
      const Split<T> split(values[g] * factor);
      high[g * kUnits] = split.high;
      high[kPitch + g * kUnits] = split.low;
    }
  }

  // What this block's gates give to the gradient of h of all units after a step, to the blocks of those
  // units.
  __device__ __forceinline__ void multiply(int64_t step) {
    const int tiles = (rows_ + kTileRows - 1) / kTileRows;
    for (int tile = 0; tile < tiles; ++tile) {
      float sums[S::kTiles][4] = {};
      const uint32_t address = shared_address(gates_grad_ + (tile * 8 + lane_ % 8) * kPitch + lane_ / 8 * 8);
#pragma unroll
      for (int k = 0; k < kDepthTiles; k += 2) {
        uint32_t columns[4];
        ptx::ldmatrix(columns, address + static_cast<uint32_t>(2 * k * 16));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int t = 0; t < S::kTiles; ++t) {
            uint32_t fragment[4];
            if (k + i < S::kKept) {
#pragma unroll
              for (int e = 0; e < 4; ++e) fragment[e] = kept_[k + i < S::kKept ? k + i : 0][t][e];
            } else {
              const uint4 four =
                  weights_[((k + i - S::kKept) * S::kTiles + t) * S::kBlock + static_cast<int>(threadIdx.x)];
              fragment[0] = four.x;
              fragment[1] = four.y;
              fragment[2] = four.z;
              fragment[3] = four.w;
            }
            multiply_add<T>(sums[t], fragment, columns[2 * i], columns[2 * i + 1]);
          }
        }
      }
      const int row = tile * kTileRows + lane_ % 4;
      const float scale = std::is_same_v<T, Half> ? scales_[row] : 1.0f;
#pragma unroll
      for (int t = 0; t < S::kTiles; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float sum = sums[t][2 * half] + sums[t][2 * half + 1];
          const int at = t * 16 + half * 8 + lane_ / 4;
          const int unit = warp_ * S::kUnitsOfWarp + at;
          if (isnan(sum) && unit < units_) {
            sum = multiply_again(gates_grad_ + 2 * row * kPitch,
                                 pass_.weight + int64_t{rank_} * kUnits * units_ + unit, units_,
                                 units_ - rank_ * kUnits);
          }
          results_[lane_ % 4 * S::kResultsPitch + at] = sum * scale;
        }
      }
      __syncwarp();
      give(step + 1, tile);
      __syncwarp();
    }
  }

  // Four units of a row at a time.
  __device__ __forceinline__ void give(int64_t step, int tile) const {
    constexpr int kChunks = S::kUnitsOfWarp / 4;
#pragma unroll
    for (int i = lane_; i < kTileRows * kChunks; i += 32) {
      const int unit = warp_ * S::kUnitsOfWarp + i % kChunks * 4;
      const int block = unit / kUnits;
      const int row = i / kChunks;
      if (block >= group_blocks_) continue;
      const float4 four =
          *reinterpret_cast<const float4*>(results_ + row * S::kResultsPitch + i % kChunks * 4);
      const int64_t place = (rank_ * padded_rows_ + tile * kTileRows + row) * kUnits + unit % kUnits;
      if constexpr (S::kCluster) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        float* to = received_ + step % 2 * received_size() + place;
        *reinterpret_cast<float4*>(cooperative_groups::this_cluster().map_shared_rank(to, block)) = four;
#endif
      } else {
        float* to = exchanged_to(block) + step % 2 * gridDim.x * received_size() + place;
        __stcg(reinterpret_cast<float4*>(to), four);
      }
    }
  }

  HalvesBackward<T> pass_;
  float* exchanged_;
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
  float* results_;   // of this warp
  float* received_;  // in a cluster: what its blocks gave to this one, twice
  T* gates_grad_;
  float* scales_;  // of the rows
  uint32_t kept_[S::kKept][S::kTiles][4];
};

template <typename T, typename S>
__global__ void __launch_bounds__(S::kBlock, 1)
    tensor_core_backward(HalvesBackward<T> pass, int group_blocks, int group_rows, float* exchanged) {
  Recurrence<T, S>(pass, group_blocks, group_rows, exchanged).run();
}

template <typename T, typename S>
bool launch_of(const HalvesBackward<T>& pass, const Tensor& like, cudaStream_t stream) {
  const auto exchanged_bytes = [&](const Groups& groups) {
    const int64_t rows = ceil_divide(groups.rows, kTileRows) * kTileRows;
    return S::kCluster ? 0 : 2 * groups.count * groups.blocks * groups.blocks * rows * kUnits * 4;
  };
  return launch_groups<S>(tensor_core_backward<T, S>, pass, like, stream, exchanged_bytes);
}

// In clusters where there are such, as they meet in a fifth of the time.
template <typename T>
bool launch_any(const HalvesBackward<T>& pass, const Tensor& like, cudaStream_t stream) {
  if (!may_be_grouped(pass.batch, pass.units)) return false;
  if (pass.units <= 128 && launch_of<T, Shape<1, 8, 6, true>>(pass, like, stream)) return true;
  if (pass.units <= 256 && launch_of<T, Shape<2, 8, 6, true>>(pass, like, stream)) return true;
  if (pass.units <= 512) {
    return launch_of<T, Shape<4, 8, 6, true>>(pass, like, stream) ||
           launch_of<T, Shape<4, 8, 6, false>>(pass, like, stream);
  }
  return launch_of<T, Shape<4, 16, 4, false>>(pass, like, stream);
}

}  // namespace

bool launch_tensor_cores(const HalvesBackward<Half>& pass, const Tensor& like, cudaStream_t stream) {
  return launch_any(pass, like, stream);
}

bool launch_tensor_cores(const HalvesBackward<BFloat16>& pass, const Tensor& like, cudaStream_t stream) {
  return launch_any(pass, like, stream);
}

}  // namespace torchgraft::lltm::cuda
