// The recurrence of a whole sequence back, with weight_hh in float16, bfloat16 or, where tf32 is permitted,
// float, on tensor cores.
//
// Groups of blocks and their rows are as going forward (cuda_tensor_cores_forward.cu), always 32 units a
// block: it keeps of weight_hh the rows of its own 96 gates. A step is
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
// divided by a power of two near the largest of the block's row: gradients may be of any size. weight_hh of
// float, where tf32 is permitted, becomes float16, eleven bits as tf32 has; there each column of a block's
// rows of it is multiplied by a power of two, which its sums are divided by.
//
// Cycles of a step on an H200, as the first warp of a block counts them, and microseconds without counting:
//
//     rows, units                  1, 512   32, 512   128, 256   64, 1024
//     waits for sums                  405      1069       1010         90
//     sums, units                     714       780       2124       3030
//     barrier of the block             23       113         23        462
//     products, to the others         890      1640       1582       6003
//     meets the others, results       324       362        369       3771
//     all                            2356      3964       5108      13356
//     microseconds                    1.5       2.4        2.9        6.8
//
// Predicted were 1.7 us for 32 rows of 512 units and 4.3 us for 64 of 1024. The float kernels
// take 1.1, 3.4, 3.4 and 16.9 us.

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

template <int kTilesOfWarp, int kWarpsOfBlock, int kTilesInRegisters, Way kWayOfGroup>
struct Shape {
  static constexpr int kTiles = kTilesOfWarp;  // of 16 units, a warp
  static constexpr int kWarps = kWarpsOfBlock;
  static constexpr int kKept =
      kTilesInRegisters;  // of the six tiles of the depth; the others lie in shared memory
  static constexpr Way kWay = kWayOfGroup;
  static constexpr int kUnits = 32;
  static constexpr int kBlock = 32 * kWarps;
  static constexpr int kUnitsOfWarp = 16 * kTiles;
  // Of a warp's results: four rows begin in different banks.
  static constexpr int kResultsPitch = kUnitsOfWarp + (kTiles == 1 ? 24 : 8);
  static constexpr int64_t kBarrierBytes = kWay == Way::cluster ? 16 : 0;  // of two barriers
  // Steps that activations come ahead: a step on the grid is as long as they take.
  static constexpr int kAhead = kWay == Way::grid ? 1 : 2;
  static constexpr int64_t kWeightBytes = int64_t{kTiles} * (kDepthTiles - kKept) * kBlock * 16;
  static constexpr int64_t kResultBytes = int64_t{kWarps} * kTileRows * kResultsPitch * 4;

  static_assert(kBlock <= 512 && 4 * kTiles * kKept <= 96, "what registers hold");

  static int64_t shared_bytes(int64_t rows, int64_t blocks) {
    const int64_t padded = ceil_divide<int64_t>(rows, kTileRows) * kTileRows;
    const int64_t received = kWay != Way::grid ? 2 * blocks * padded * kUnits * 4 : 0;
    return kBarrierBytes + kWeightBytes + kResultBytes + received + 2 * padded * (2 * kPitch * 2 + 4);
  }
};

// What a gradient of h came out as NaN: an infinite weight times the halves of a number may be infinities of
// both signs, where there is only one.
template <typename Factor, typename T>
__device__ __noinline__ float multiply_again(const Factor* high, const T* weight, int units, int count) {
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
  // What is multiplied.
  using Factor = std::conditional_t<std::is_same_v<T, BFloat16>, BFloat16, Half>;
  static constexpr bool kScaledRows = std::is_same_v<Factor, Half>;
  static constexpr bool kScaledWeights = std::is_same_v<T, float>;

 public:
  __device__ __forceinline__ Recurrence(const BackwardPass<T>& pass, int group_blocks, int group_rows,
                                        uint32_t* arrived, float* exchanged)
      : pass_(pass),
        arrived_(arrived),
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
    barriers_ = shared_address(shared_memory<uint4>());
    weights_ = shared_memory<uint4>() + S::kBarrierBytes / 16;
    results_ =
        reinterpret_cast<float*>(weights_ + S::kWeightBytes / 16) + warp_ * kTileRows * S::kResultsPitch;
    received_ = reinterpret_cast<float*>(weights_ + (S::kWeightBytes + S::kResultBytes) / 16);
    gates_grad_ = reinterpret_cast<Factor*>(received_ + (S::kWay != Way::grid ? 2 * received_size() : 0));
    arrived_ += kArrivedBytes / 4 * (static_cast<int>(blockIdx.x) / group_blocks);
    scales_ = reinterpret_cast<float*>(gates_grad_ + 4 * padded_rows_ * kPitch);
  }

  __device__ __forceinline__ void run() {
    load_weights();
    for (int i = static_cast<int>(threadIdx.x); i < 4 * padded_rows_ * kPitch; i += S::kBlock) {
      gates_grad_[i] = Factor(0.0f);
    }
    for (int i = static_cast<int>(threadIdx.x); i < 2 * padded_rows_; i += S::kBlock) scales_[i] = 1.0f;
    meet_first();

    const bool has_element = unit_ < units_ && warp_ < rows_;
    float values[6] = {};
    float coming[5] = {};
    if (has_element) {
      fetch(0, warp_, values);
      values[5] = pass_.c_grad[state_of(warp_)];
      if (S::kAhead == 2 && pass_.steps > 1) fetch(1, warp_, coming);
    }
    for (int64_t step = 0; step < pass_.steps; ++step) {
      if (S::kWay != Way::grid && step > 0) receive(step);
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
      if constexpr (S::kWay == Way::grid) {
        meet_on_grid(arrived_, static_cast<uint32_t>((step + 1) * group_blocks_));
      }
      // While sums are under way, the results of the warp's first row leave, and what it needs after the next
      // step begins to come.
      if (has_element) {
        keep(step, warp_, values);
        if constexpr (S::kAhead == 2) {
#pragma unroll
          for (int i = 0; i < 5; ++i) values[i] = coming[i];
          if (step + 2 < pass_.steps) fetch(step + 2, warp_, coming);
        } else if (step + 1 < pass_.steps) {
          fetch(step + 1, warp_, values);
        }
      }
    }
    if (has_element) pass_.c_grad[state_of(warp_)] = values[5];
    if constexpr (S::kWay != Way::grid) receive(pass_.steps);
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

  // No block may write into another's memory before that runs.
  __device__ __forceinline__ void meet_first() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if constexpr (S::kWay == Way::cluster) {
      if (threadIdx.x == 0) StepBarriers{barriers_}.start(bytes_of_step());
      cooperative_groups::this_cluster().sync();
      return;
    }
#endif
    __syncthreads();
  }

  // What the blocks of a cluster, this one among them, write into this one's memory.
  __device__ __forceinline__ uint32_t bytes_of_step() const {
    return static_cast<uint32_t>(group_blocks_ * ((rows_ + kTileRows - 1) / kTileRows * kTileRows) * kUnits *
                                 4);
  }

  // Waits for what the blocks gave in the step before.
  __device__ __forceinline__ void receive(int64_t step) const {
    if constexpr (S::kWay == Way::cluster) {
      StepBarriers{barriers_}.wait(step, bytes_of_step());
    } else {
      __syncthreads();
    }
  }

  // Of the k-th of this block's gates, to a unit.
  __device__ __forceinline__ T weight_at(int k, int unit) const {
    const int from = rank_ * kUnits + k % kUnits;
    if (from >= units_ || unit >= units_) return T(0.0f);
    return pass_.weight[(int64_t{k / kUnits} * units_ + from) * units_ + unit];
  }

  // Of the columns that this thread has in each tile: what brings the largest finite number of each, of which
  // the lanes that have the same have seen a part each, to 2**14 and above.
  __device__ __forceinline__ void find_factors(float (&factors)[S::kTiles][2]) {
#pragma unroll
    for (int tile = 0; tile < S::kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int unit = warp_ * S::kUnitsOfWarp + tile * 16 + lane_ / 4 + half * 8;
        float largest = 0.0f;
#pragma unroll 12
        for (int k = lane_ % 4; k < kDepth; k += 4) {
          largest = fmaxf(largest, finite_size(static_cast<float>(weight_at(k, unit))));
        }
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
        factors[tile][half] = power_to_fill_half(largest);
        weight_scales_[tile][half] = 1.0f / factors[tile][half];
      }
    }
  }

  __device__ __forceinline__ void load_weights() {
    [[maybe_unused]] float factors[S::kTiles][2];
    if constexpr (kScaledWeights) find_factors(factors);
#pragma unroll
    for (int k = 0; k < kDepthTiles; ++k) {
#pragma unroll
      for (int tile = 0; tile < S::kTiles; ++tile) {
        uint32_t fragment[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int unit = warp_ * S::kUnitsOfWarp + tile * 16 + lane_ / 4 + e % 2 * 8;
          const int depth = k * 16 + lane_ % 4 * 2 + e / 2 * 8;
          if constexpr (kScaledWeights) {
            const float factor = factors[tile][e % 2];
            fragment[e] =
                pair_of(Half(weight_at(depth, unit) * factor), Half(weight_at(depth + 1, unit) * factor));
          } else {
            fragment[e] = pair_of(weight_at(depth, unit), weight_at(depth + 1, unit));
          }
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
  __device__ __forceinline__ void fetch(int64_t step, int row, float* values) const {
    const int64_t place = first_of(step) + first_row_ + row;
#pragma unroll
    for (int g = 0; g < 3; ++g) values[g] = pass_.activations[(place * 3 + g) * units_ + unit_];
    values[3] = pass_.cells[place * units_ + unit_];
    values[4] =
        pass_.output_grad == nullptr ? 0.0f : static_cast<float>(pass_.output_grad[place * units_ + unit_]);
  }

  __device__ __forceinline__ void keep(int64_t step, int row, const float (&values)[6]) const {
    const int64_t place = first_of(step) + first_row_ + row;
#pragma unroll
    for (int g = 0; g < 3; ++g) pass_.gates_grad[(place * 3 + g) * units_ + unit_] = values[g];
  }

  // What the blocks gave to the gradient of h before a step.
  __device__ __forceinline__ float sum_of_blocks(int64_t step, int row) const {
    const int place = row * kUnits + lane_;
    const int size = padded_rows_ * kUnits;
    float sum = 0;
    if constexpr (S::kWay != Way::grid) {
      const float* from = received_ + step % 2 * received_size() + place;
#pragma unroll 8
      for (int block = 0; block < group_blocks_; ++block) sum += from[block * size];
    } else {
      const float* from = exchanged_to(rank_, step) + place;
      // As many loads at a time as registers are left for: from L2 each takes a third of a microsecond.
#pragma unroll 16
      for (int block = 0; block < group_blocks_; ++block) sum += __ldcg(from + block * size);
    }
    return sum;
  }

  // On the grid: what the blocks of this group give to one of them.
  // There are two of that, as some blocks write the next while others read.
  __device__ __forceinline__ float* exchanged_to(int block, int64_t step) const {
    return exchanged_ +
           (step % 2 * gridDim.x + static_cast<int64_t>(blockIdx.x) - rank_ + block) * received_size();
  }

  // Of two steps: a warp may be a step ahead of one that still multiplies.
  __device__ __forceinline__ Factor* gates_grad_of(int64_t step) const {
    return gates_grad_ + step % 2 * 2 * padded_rows_ * kPitch;
  }
  __device__ __forceinline__ float* scales_of(int64_t step) const {
    return scales_ + step % 2 * padded_rows_;
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
    if constexpr (kScaledRows) {
      float largest = fmaxf(fmaxf(fabsf(values[0]), fabsf(values[1])), fabsf(values[2]));
      // Their bits are in the same order; what is NaN counts for nothing.
      const uint32_t bits = isnan(largest) ? 0u : __float_as_uint(largest);
      uint32_t most = bits;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
      most = __reduce_max_sync(0xffffffffu, bits);
#endif
      // 2**e where largest is 2**e to 2**(e + 1); an infinite one stays so.
      const uint32_t exponent = min(max(most >> 23, 1u), 253u);
      factor = __uint_as_float((254u - exponent) << 23);
      if (lane_ == 0) scales_of(step)[row] = __uint_as_float(exponent << 23);
    }
    Factor* high = gates_grad_of(step) + 2 * row * kPitch + lane_;
#pragma unroll
    for (int g = 0; g < 3; ++g) {
      const Split<Factor> split(values[g] * factor);
      high[g * kUnits] = split.high;
      high[kPitch + g * kUnits] = split.low;
    }
  }

  // What this block's gates give to the gradient of h of all units after a step, to the blocks of those
  // units.
  __device__ __forceinline__ void multiply(int64_t step) {
    const int tiles = (rows_ + kTileRows - 1) / kTileRows;
    for (int tile = 0; tile < tiles; ++tile) {
      // Where tiles are few two chains of sums each, so that a product seldom waits for the last.
      constexpr int kChains = S::kTiles <= 2 ? 2 : 1;
      float sums[kChains][S::kTiles][4] = {};
      const uint32_t address =
          shared_address(gates_grad_of(step) + (tile * 8 + lane_ % 8) * kPitch + lane_ / 8 * 8);
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
            multiply_add<Factor>(sums[kChains == 2 ? i : 0][t], fragment, columns[2 * i], columns[2 * i + 1]);
          }
        }
      }
      const int row = tile * kTileRows + lane_ % 4;
      const float scale = kScaledRows ? scales_of(step)[row] : 1.0f;
      float all = 0;
#pragma unroll
      for (int t = 0; t < S::kTiles; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float sum = sums[0][t][2 * half] + sums[0][t][2 * half + 1];
          if constexpr (kChains == 2) sum += sums[1][t][2 * half] + sums[1][t][2 * half + 1];
          if constexpr (kScaledWeights) sum *= weight_scales_[t][half];
          all += sum;
          results_[lane_ % 4 * S::kResultsPitch + t * 16 + half * 8 + lane_ / 4] = sum * scale;
        }
      }
      if (isnan(all)) repair(step, row, scale);
      __syncwarp();
      give(step + 1, tile);
      __syncwarp();
    }
  }

  // Of this lane's results those that are NaN, again.
  __device__ __forceinline__ void repair(int64_t step, int row, float scale) const {
#pragma unroll 1
    for (int at = lane_ / 4; at < S::kUnitsOfWarp; at += 8) {
      float& result = results_[lane_ % 4 * S::kResultsPitch + at];
      const int unit = warp_ * S::kUnitsOfWarp + at;
      if (isnan(result) && unit < units_) {
        result = scale * multiply_again(gates_grad_of(step) + 2 * row * kPitch,
                                        pass_.weight + int64_t{rank_} * kUnits * units_ + unit, units_,
                                        units_ - rank_ * kUnits);
      }
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
      const uint4 four = *reinterpret_cast<const uint4*>(results_ + row * S::kResultsPitch + i % kChunks * 4);
      const int64_t place = (rank_ * padded_rows_ + tile * kTileRows + row) * kUnits + unit % kUnits;
      if constexpr (S::kWay == Way::block) {
        *reinterpret_cast<uint4*>(received_ + step % 2 * received_size() + place) = four;
      } else if constexpr (S::kWay == Way::cluster) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        const float* to = received_ + step % 2 * received_size() + place;
        const auto rank = static_cast<uint32_t>(block);
        const uint32_t barrier = barriers_ + 8 * static_cast<uint32_t>(step % 2);
        ptx::st_async(ptx::mapa(shared_address(to), rank), four, ptx::mapa(barrier, rank));
#endif
      } else {
        ptx::store_relaxed(exchanged_to(block, step) + place, four);
      }
    }
  }

  BackwardPass<T> pass_;
  uint32_t* arrived_;
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
  uint32_t barriers_;
  uint4* weights_;
  float* results_;   // of this warp
  float* received_;  // but on the grid: what the blocks of the group gave to this one, twice
  Factor* gates_grad_;
  float* scales_;                      // of the rows
  float weight_scales_[S::kTiles][2];  // of this thread's columns, where they are scaled
  uint32_t kept_[S::kKept][S::kTiles][4];
};

template <typename T, typename S>
__global__ void __launch_bounds__(S::kBlock, 1)
    tensor_core_backward(BackwardPass<T> pass, int group_blocks, int group_rows, uint32_t* arrived,
                         float* exchanged) {
  Recurrence<T, S>(pass, group_blocks, group_rows, arrived, exchanged).run();
}

template <typename T, typename S>
bool launch_of(const BackwardPass<T>& pass, const Tensor& like, cudaStream_t stream) {
  const auto exchanged_bytes = [&](const Groups& groups) {
    const int64_t rows = ceil_divide(groups.rows, kTileRows) * kTileRows;
    return int64_t{2} * groups.count * groups.blocks * groups.blocks * rows * kUnits * 4;
  };
  return launch_groups<S>(tensor_core_backward<T, S>, pass, like, stream, exchanged_bytes);
}

}  // namespace

// In clusters where there are such, as they meet in a fifth of the time.
template <typename T>
bool launch_tensor_cores(const BackwardPass<T>& pass, const Tensor& like, cudaStream_t stream) {
  if (!may_be_grouped(pass.batch, pass.units)) return false;
  if (pass.units <= kUnits) return launch_of<T, Shape<1, 8, 6, Way::block>>(pass, like, stream);
  if (pass.units <= 128 && launch_of<T, Shape<1, 8, 6, Way::cluster>>(pass, like, stream)) return true;
  if (pass.units <= 256 && launch_of<T, Shape<2, 8, 6, Way::cluster>>(pass, like, stream)) return true;
  if (pass.units <= 512) {
    return launch_of<T, Shape<4, 8, 6, Way::cluster>>(pass, like, stream) ||
           launch_of<T, Shape<4, 8, 6, Way::grid>>(pass, like, stream);
  }
  return launch_of<T, Shape<4, 16, 4, Way::grid>>(pass, like, stream);
}

template bool launch_tensor_cores(const BackwardPass<Half>&, const Tensor&, cudaStream_t);
template bool launch_tensor_cores(const BackwardPass<BFloat16>&, const Tensor&, cudaStream_t);
template bool launch_tensor_cores(const BackwardPass<float>&, const Tensor&, cudaStream_t);

}  // namespace torchgraft::lltm::cuda
