// What both directions share on the grid: the product of rows of the batch, or of gradients of gates, with a
// block's part of weight_hh, in float, and the launch.
//
// A warp owns kRows rows of the batch, or a part of their depth where rows are few. A lane reads four numbers
// of each row from L2 and multiplies them with four of each column from shared memory; each of those is used
// for all kRows rows. Lanes then add up what they have, in a fixed order.
#pragma once

#include <cooperative_groups.h>

#include <type_traits>

#include "../groups.cuh"
#include "../unit.cuh"

namespace torchgraft::lltm::cuda {

constexpr int kWarps = Grid1::kWarps;
constexpr int kBlock = Grid1::kBlock;

template <int kColumns>
inline constexpr int kRowsFor = grid_rows_of(kColumns);

// Sums every value over the lanes of a warp: lanes exchange halves of their values as long as their number is
// even. The sum of value `first + i` ends in values[i] of the lane, for i below left_after; where `is_owner`
// is false another lane has the same sums.
template <int kCount, int kOffset>
__device__ __forceinline__ void add_lanes(float* values, int lane, int& first, bool& is_owner) {
  if constexpr (kOffset > 0) {
    if constexpr (kCount % 2 == 0) {
      constexpr int kHalf = kCount / 2;
      const bool upper = (lane & kOffset) != 0;
#pragma unroll
      for (int i = 0; i < kHalf; ++i) {
        const float given = upper ? values[i] : values[i + kHalf];
        const float kept = upper ? values[i + kHalf] : values[i];
        values[i] = kept + __shfl_xor_sync(0xffffffffu, given, kOffset);
      }
      if (upper) first += kHalf;
      add_lanes<kHalf, kOffset / 2>(values, lane, first, is_owner);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] += __shfl_xor_sync(0xffffffffu, values[i], kOffset);
      is_owner = is_owner && (lane & kOffset) == 0;
      add_lanes<kCount, kOffset / 2>(values, lane, first, is_owner);
    }
  }
}

template <int kCount, int kOffset = 16>
constexpr int left_after() {
  if constexpr (kOffset == 0) {
    return kCount;
  } else if constexpr (kCount % 2 == 0) {
    return left_after<kCount / 2, kOffset / 2>();
  } else {
    return left_after<kCount, kOffset / 2>();
  }
}

// Four numbers of a row, from L2: other blocks write them while this kernel runs.
template <bool kWhole>
__device__ __forceinline__ float4 load_four(const float* row, int k, int depth) {
  if constexpr (kWhole) {
    return k < depth ? __ldcg(reinterpret_cast<const float4*>(row + k)) : float4{};
  } else {
    float4 four = {};
    if (k < depth) four.x = __ldcg(row + k);
    if (k + 1 < depth) four.y = __ldcg(row + k + 1);
    if (k + 2 < depth) four.z = __ldcg(row + k + 2);
    if (k + 3 < depth) four.w = __ldcg(row + k + 3);
    return four;
  }
}

// sums[part][row][column] of rows (batch, depth) with weights[column][padded depth] of this block.
template <int kColumns, bool kWhole>
__device__ __forceinline__ void multiply_rows(const float* rows, const float* weights, float* sums, int batch,
                                              int depth) {
  constexpr int kRows = kRowsFor<kColumns>;
  constexpr int kCount = kRows * kColumns;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int parts = parts_of(kWarps, batch, kRows);
  const int part = warp % parts;
  const int pitch = padded_depth(depth);
  for (int row = warp / parts * kRows; row < batch; row += kWarps / parts * kRows) {
    float values[kCount] = {};
    const float* from[kRows];
    float4 next[kRows];
    const int begin = part * 128 + lane * 4;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      // Rows past the end repeat the last one, and are thrown away.
      from[r] = rows + static_cast<int64_t>(min(row + r, batch - 1)) * depth;
      next[r] = load_four<kWhole>(from[r], begin, depth);
    }
    for (int k = begin; k < pitch; k += 128 * parts) {
      float4 now[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        now[r] = next[r];
        next[r] = load_four<kWhole>(from[r], k + 128 * parts, depth);
      }
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const float4 weight = *reinterpret_cast<const float4*>(weights + c * pitch + k);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          float& value = values[r * kColumns + c];
          value += now[r].x * weight.x;
          value += now[r].y * weight.y;
          value += now[r].z * weight.z;
          value += now[r].w * weight.w;
        }
      }
    }
    int first = 0;
    bool is_owner = true;
    add_lanes<kCount, 16>(values, lane, first, is_owner);
    if (is_owner) {
#pragma unroll
      for (int i = 0; i < left_after<kCount>(); ++i) {
        const int r = (first + i) / kColumns;
        const int c = (first + i) % kColumns;
        if (row + r < batch) sums[(part * batch + row + r) * kColumns + c] = values[i];
      }
    }
  }
}

template <int kColumns>
__device__ __forceinline__ float sum_of_parts(const float* sums, int batch, int row, int column) {
  const int parts = parts_of(kWarps, batch, kRowsFor<kColumns>);
  float sum = 0;
  for (int part = 0; part < parts; ++part) sum += sums[(part * batch + row) * kColumns + column];
  return sum;
}

// Calls `function(Tag<S>{}, kWhole)` with the shape of a kernel, and whether it reads four numbers at a time.
template <typename Function>
auto with_grid_shape(const Problem& problem, Kernel kernel, const Function& function) {
  return with_shape(GridShapes{}, kernel, [&](auto shape) {
    return problem.reads_float4 ? function(shape, std::true_type{}) : function(shape, std::false_type{});
  });
}

template <typename S, typename Pass>
void launch_on_grid(void (*kernel)(Pass), const Problem& problem, const Pass& pass, cudaStream_t stream) {
  const int64_t shared_bytes = S::shared_bytes(problem.batch, problem.units, problem.backward);
  require_shared_memory(kernel, shared_bytes, "lltm");
  GroupsConfig<S> config(ceil_divide(problem.units, S::kUnits), shared_bytes, stream);
  cudaLaunchKernelEx(&*config, kernel, pass);
  check_launch("lltm");
}

}  // namespace torchgraft::lltm::cuda
