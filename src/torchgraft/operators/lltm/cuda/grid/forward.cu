// The recurrence of a whole sequence on the whole grid, with weight_hh in shared memory, in float.
//
// A block owns kUnits units: their rows of weight_hh (forward, three gates a unit) or their columns (back)
// lie in its shared memory from the first step to the last, 12 * units bytes a unit. A step is
//
//     forward   h of all units from L2 -> sums of the own gates -> own h, c, activations -> grid barrier
//     back      own gradients of gates -> grid barrier -> those of all from L2 -> own gradients of h
//
// so that all that crosses blocks is h, or the gradients of gates, through L2. Of a step's product a warp
// owns kRows rows of the batch, or a part of their depth where rows are few: a lane reads four numbers of
// each row and multiplies them with as many of each column from shared memory, each of which serves all kRows
// rows. Lanes then add up what they have, in a fixed order, and a thread an element computes the unit.
//
// The budget of a step, on an H200: 1.0 us for the barrier, batch * units * 4 bytes a block from L2 (times
// three going back), 3 * batch * units**2 / blocks multiply-adds a block, of which shared memory lets it do
// half of the peak: 14 us for 64 rows of 1024 units. It takes 19 us forward and 17 to 23 back, as reading
// rows from L2 and multiplying them do not overlap well with so few warps. All blocks must be resident at
// once, which a cooperative launch guarantees or refuses.

#include <cooperative_groups.h>

#include <type_traits>

#include "../groups.cuh"
#include "../kernels.h"
#include "../unit.cuh"

namespace torchgraft::lltm::cuda {
namespace {

constexpr int kWarps = Grid1::kWarps;
constexpr int kBlock = Grid1::kBlock;

template <int kColumns>
inline constexpr int kRowsFor = grid_rows_of(kColumns);

// The sum of every value over the lanes of a warp: lanes exchange halves of what they hold as long as there
// are halves. Value `first + i` ends in values[i] of the lane, for i below what is returned; where `is_owner`
// is false another lane has the same.
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
      // Rows past the end are the last once more, and are thrown away.
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

template <int kUnits, bool kWhole>
__global__ void __launch_bounds__(kBlock, 1) grid_forward(ForwardPass pass) {
  constexpr int kColumns = 3 * kUnits;
  const int units = static_cast<int>(pass.units);
  const int batch = static_cast<int>(pass.batch);
  const int pitch = padded_depth(units);
  const int first_unit = static_cast<int>(blockIdx.x) * kUnits;
  float* weights = shared_memory<float>();
  float* sums = weights + kColumns * pitch;

  const float* weight = pass.weight.floats();
  for (int i = static_cast<int>(threadIdx.x); i < kColumns * pitch; i += kBlock) {
    const int k = i % pitch;
    const int unit = first_unit + i / pitch % kUnits;
    const int gate = i / pitch / kUnits;
    const bool is_there = k < units && unit < units;
    weights[i] = is_there ? weight[(static_cast<int64_t>(gate) * units + unit) * units + k] : 0.0f;
  }
  __syncthreads();

  const auto grid = cooperative_groups::this_grid();
  const int64_t state = static_cast<int64_t>(batch) * units;
  const float* bias = pass.bias.floats();
  float* output = pass.output.floats();
  const float* h = pass.h0.floats();
  const float* c = pass.c0.floats();
  for (int64_t step = 0; step < pass.steps; ++step) {
    const int64_t t = pass.reverse ? pass.steps - 1 - step : step;
    multiply_rows<kColumns, kWhole>(h, weights, sums, batch, units);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < batch * kUnits; i += kBlock) {
      const int row = i / kUnits;
      const int unit = first_unit + i % kUnits;
      if (unit >= units) continue;
      const int64_t place = static_cast<int64_t>(row) * units + unit;
      float* activations = pass.activations + (t * batch + row) * 3 * units + unit;
      float gates[3];
#pragma unroll
      for (int g = 0; g < 3; ++g) {
        gates[g] = activations[g * units] + sum_of_parts<kColumns>(sums, batch, row, g * kUnits + i % kUnits);
        if (bias != nullptr) gates[g] += bias[g * units + unit];
      }
      float c_after = c[place];
      const float h_after = step_forward(gates[0], gates[1], gates[2], c_after);
#pragma unroll
      for (int g = 0; g < 3; ++g) activations[g * units] = gates[g];
      pass.cells[t * state + place] = c_after;
      output[t * state + place] = h_after;
    }
    h = output + t * state;
    c = pass.cells + t * state;
    if (step + 1 < pass.steps) grid.sync();
  }
}

template <int kUnits, bool kWhole>
__global__ void __launch_bounds__(kBlock, 1) grid_backward(BackwardPass pass) {
  const int units = static_cast<int>(pass.units);
  const int batch = static_cast<int>(pass.batch);
  const int depth = 3 * units;
  const int pitch = padded_depth(depth);
  const int first_unit = static_cast<int>(blockIdx.x) * kUnits;
  float* weights = shared_memory<float>();
  float* sums = weights + kUnits * pitch;

  const float* weight = pass.weight.floats();
  const float* output_grad = pass.output_grad.floats();
  for (int i = static_cast<int>(threadIdx.x); i < kUnits * pitch; i += kBlock) {
    const int k = i / kUnits;
    const int unit = first_unit + i % kUnits;
    const bool is_there = k < depth && unit < units;
    weights[i % kUnits * pitch + k] = is_there ? weight[static_cast<int64_t>(k) * units + unit] : 0.0f;
  }
  __syncthreads();

  const auto grid = cooperative_groups::this_grid();
  const int64_t state = static_cast<int64_t>(batch) * units;
  for (int64_t step = 0; step < pass.steps; ++step) {
    const int64_t t = pass.reverse ? step : pass.steps - 1 - step;
    for (int i = static_cast<int>(threadIdx.x); i < batch * kUnits; i += kBlock) {
      const int row = i / kUnits;
      const int unit = first_unit + i % kUnits;
      if (unit >= units) continue;
      const int64_t place = static_cast<int64_t>(row) * units + unit;
      const int64_t first = (t * batch + row) * 3 * units + unit;
      float gates[3];
#pragma unroll
      for (int g = 0; g < 3; ++g) gates[g] = pass.activations[first + g * units];
      float h_grad = step == 0 ? pass.h_grad[place] : sum_of_parts<kUnits>(sums, batch, row, i % kUnits);
      if (output_grad != nullptr) h_grad += output_grad[t * state + place];
      float c_grad = pass.c_grad[place];
      step_back(gates[0], gates[1], gates[2], pass.cells[t * state + place], h_grad, c_grad);
#pragma unroll
      for (int g = 0; g < 3; ++g) pass.gates_grad[first + g * units] = gates[g];
      pass.c_grad[place] = c_grad;
    }
    grid.sync();
    multiply_rows<kUnits, kWhole>(pass.gates_grad + t * 3 * state, weights, sums, batch, depth);
    __syncthreads();
  }
  for (int i = static_cast<int>(threadIdx.x); i < batch * kUnits; i += kBlock) {
    const int row = i / kUnits;
    const int unit = first_unit + i % kUnits;
    if (unit >= units) continue;
    pass.h_grad[static_cast<int64_t>(row) * units + unit] =
        sum_of_parts<kUnits>(sums, batch, row, i % kUnits);
  }
}

// Calls `function(Tag<S>{}, kWhole)` with the shape of a kernel, and whether it reads four numbers at a time.
template <typename Function>
auto with_shape(const Problem& problem, Kernel kernel, const Function& function) {
  const auto with_whole = [&](auto shape) {
    return problem.reads_four ? function(shape, std::true_type{}) : function(shape, std::false_type{});
  };
  switch (kernel) {
    case Kernel::grid_1:
      return with_whole(Tag<Grid1>{});
    case Kernel::grid_2:
      return with_whole(Tag<Grid2>{});
    case Kernel::grid_4:
      return with_whole(Tag<Grid4>{});
    case Kernel::grid_8:
      return with_whole(Tag<Grid8>{});
    default:
      fail("lltm: no kernel on the grid");
  }
}

template <typename S, typename Pass>
void launch(void (*kernel)(Pass), const Problem& problem, const Pass& pass, cudaStream_t stream) {
  const int64_t shared_bytes = S::shared_bytes(problem.batch, problem.units, problem.backward);
  require_shared_memory(kernel, shared_bytes, "lltm");
  GroupsConfig<S> config(divide_up(problem.units, S::kUnits), shared_bytes, stream);
  cudaLaunchKernelEx(&*config, kernel, pass);
  check_launch("lltm");
}

}  // namespace

int resident_on_grid(const Problem& problem, Kernel kernel, int64_t shared_bytes) {
  return with_shape(problem, kernel, [&](auto tag, auto whole) {
    using S = typename decltype(tag)::type;
    const void* const function = problem.backward
                                     ? reinterpret_cast<const void*>(grid_backward<S::kUnits, whole>)
                                     : reinterpret_cast<const void*>(grid_forward<S::kUnits, whole>);
    return resident_groups<S>(function, 1, shared_bytes);
  });
}

void launch_grid(const Problem& problem, Kernel kernel, const ForwardPass& pass, cudaStream_t stream) {
  with_shape(problem, kernel, [&](auto tag, auto whole) {
    using S = typename decltype(tag)::type;
    launch<S>(grid_forward<S::kUnits, whole>, problem, pass, stream);
  });
}

void launch_grid(const Problem& problem, Kernel kernel, const BackwardPass& pass, cudaStream_t stream) {
  with_shape(problem, kernel, [&](auto tag, auto whole) {
    using S = typename decltype(tag)::type;
    launch<S>(grid_backward<S::kUnits, whole>, problem, pass, stream);
  });
}

}  // namespace torchgraft::lltm::cuda
