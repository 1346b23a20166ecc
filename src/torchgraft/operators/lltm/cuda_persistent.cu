// The recurrence of a whole sequence as one kernel that keeps weight_hh on chip, in float.
//
// A team of blocks owns some rows of the batch, and a block of it kUnits units: their rows of weight_hh
// (forward, three gates a unit) or their columns (back) lie in its shared memory from the first step to the
// last, 12 * units bytes a unit. A step is
//
//     forward   h of all units from L2 -> sums of the own gates -> own h, c, activations -> barrier of the
//     team back      own gradients of gates -> barrier -> those of all units from L2 -> own gradients of h
//
// so that all that crosses blocks is h, or the gradients of gates, through L2. A team is a cluster of 8 or 16
// blocks where one can hold weight_hh, up to 512 units: teams then never wait for each other, and a barrier
// takes 0.2 us. Otherwise it is the whole grid, which owns all rows, and a barrier takes 1.0 us. All blocks
// of a team must be resident at once; both kinds of launch guarantee that or refuse.
//
// Of a step's product a warp owns kRows rows by kWide columns, or a part of their depth where those are few:
// a lane reads four numbers of each row and of each column and multiplies them all. Lanes then add up what
// they have, in a fixed order, and a thread an element computes the unit. In a cluster, rows are brought to
// shared memory first, as several warps read each. Reading weight_hh from there, once every kRows rows, is
// what bounds a step in a cluster: 12 * units**2 / blocks bytes at 128 a cycle, 0.9 us for 512 units in 16
// blocks.

#include <cooperative_groups.h>

#include <type_traits>

#include "cuda_persistent.h"
#include "cuda_unit.cuh"

namespace torchgraft::lltm::cuda {
namespace {

constexpr int kWarps = 16;
constexpr int kBlock = 32 * kWarps;
// More multiply-adds a step than this, and PyTorch's products win by more than a launch a step costs.
constexpr int64_t kMostProducts = int64_t{1} << 28;

// How a warp's tile of a product is cut: kRows * kWide sums must stay in registers.
template <int kRowsOfTile, int kWideOfTile, bool kRowsInShared>
struct Tile {
  static constexpr int kRows = kRowsOfTile;
  static constexpr int kWide = kWideOfTile;
  static constexpr bool kShared = kRowsInShared;
};

// A block of the whole grid has few columns: all of them are one tile.
template <int kColumns>
using GridTile = Tile<kColumns <= 4    ? 8
                      : kColumns <= 12 ? 4
                                       : 2,
                      kColumns, false>;

__host__ __device__ inline int padded_depth(int depth) { return (depth + 127) / 128 * 128; }

// How many warps share the depth of a tile.
__host__ __device__ inline int parts_of(int rows, int columns, int tile_rows, int tile_columns) {
  const int tiles = (rows + tile_rows - 1) / tile_rows * (columns / tile_columns);
  int parts = 1;
  while (parts * 2 * tiles <= kWarps) parts *= 2;
  return parts;
}

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

// Brings rows to shared memory, each padded with zeros.
template <bool kWhole>
__device__ __forceinline__ void stage_rows(const float* rows, float* staged, int count, int depth) {
  const int pitch = padded_depth(depth);
  const int fours = pitch / 4;
  for (int i = static_cast<int>(threadIdx.x); i < count * fours; i += kBlock) {
    const int row = i / fours;
    const int k = i % fours * 4;
    *reinterpret_cast<float4*>(staged + row * pitch + k) =
        load_four<kWhole>(rows + static_cast<int64_t>(row) * depth, k, depth);
  }
}

// sums[part][row][column] of rows[row][depth] with weights[column][padded depth] of this block. In shared
// memory rows are padded, too.
template <typename Cut, int kColumns, bool kWhole>
__device__ __forceinline__ void multiply_rows(const float* rows, const float* weights, float* sums, int count,
                                              int depth) {
  constexpr int kRows = Cut::kRows;
  constexpr int kWide = Cut::kWide;
  constexpr int kCount = kRows * kWide;
  constexpr int kColumnTiles = kColumns / kWide;
  static_assert(kColumns % kWide == 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int parts = parts_of(count, kColumns, kRows, kWide);
  const int part = warp % parts;
  const int pitch = padded_depth(depth);
  const int tiles = (count + kRows - 1) / kRows * kColumnTiles;
  for (int tile = warp / parts; tile < tiles; tile += kWarps / parts) {
    const int row = tile / kColumnTiles * kRows;
    const int column = tile % kColumnTiles * kWide;
    float values[kCount] = {};
    const float* from[kRows];
    // From L2 the next numbers are on their way while these are multiplied.
    float4 next[Cut::kShared ? 1 : kRows];
    const int begin = part * 128 + lane * 4;
    const auto load = [&](const float* from_row, int k) {
      if constexpr (Cut::kShared) {
        return *reinterpret_cast<const float4*>(from_row + k);
      } else {
        return load_four<kWhole>(from_row, k, depth);
      }
    };
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      // Rows past the end are the last once more, and are thrown away.
      from[r] = rows + static_cast<int64_t>(min(row + r, count - 1)) * (Cut::kShared ? pitch : depth);
      if constexpr (!Cut::kShared) next[r] = load(from[r], begin);
    }
    for (int k = begin; k < pitch; k += 128 * parts) {
      float4 now[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if constexpr (Cut::kShared) {
          now[r] = load(from[r], k);
        } else {
          now[r] = next[r];
          next[r] = load(from[r], k + 128 * parts);
        }
      }
#pragma unroll
      for (int c = 0; c < kWide; ++c) {
        const float4 weight = *reinterpret_cast<const float4*>(weights + (column + c) * pitch + k);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          float& value = values[r * kWide + c];
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
        const int r = row + (first + i) / kWide;
        const int c = column + (first + i) % kWide;
        if (r < count) sums[(part * count + r) * kColumns + c] = values[i];
      }
    }
  }
}

template <typename Cut, int kColumns>
__device__ __forceinline__ float sum_of_parts(const float* sums, int count, int row, int column) {
  const int parts = parts_of(count, kColumns, Cut::kRows, Cut::kWide);
  float sum = 0;
  for (int part = 0; part < parts; ++part) sum += sums[(part * count + row) * kColumns + column];
  return sum;
}

// The blocks that pass states to each other: those of a cluster, or all. What is written before arrive() is
// seen by all of them after wait().
template <bool kCluster>
struct Team;

template <>
struct Team<true> {
  static __device__ void arrive() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    cooperative_groups::this_cluster().barrier_arrive();
#endif
  }
  static __device__ void wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    cooperative_groups::this_cluster().barrier_wait();
#endif
  }
};

template <>
struct Team<false> {
  static __device__ void arrive() {}
  static __device__ void wait() { cooperative_groups::this_grid().sync(); }
};

// What a block of a team has to do.
template <int kUnits>
struct Share {
  // Of team_blocks blocks a team and team_rows rows each.
  __device__ Share(int team_blocks, int team_rows, int batch, int units)
      : first_unit(static_cast<int>(blockIdx.x) % team_blocks * kUnits),
        first_row(static_cast<int>(blockIdx.x) / team_blocks * team_rows),
        rows(min(team_rows, batch - first_row)),
        units(units) {}

  // A thread's elements are one of each kUnits * rows; their row in the team and their unit.
  __device__ int count() const { return rows * kUnits; }
  __device__ int row_of(int i) const { return i / kUnits; }
  __device__ int unit_of(int i) const { return first_unit + i % kUnits; }
  __device__ bool has(int i) const { return i < count() && unit_of(i) < units; }

  int first_unit;
  int first_row;
  int rows;
  int units;
};

template <typename Cut, bool kCluster, int kUnits, bool kWhole>
__global__ void __launch_bounds__(kBlock, 1)
    persistent_forward(ForwardPass pass, int team_blocks, int team_rows) {
  constexpr int kColumns = 3 * kUnits;
  const int units = static_cast<int>(pass.units);
  const Share<kUnits> share(team_blocks, team_rows, static_cast<int>(pass.batch), units);
  const int pitch = padded_depth(units);
  float* weights = shared_memory<float>();
  float* staged = weights + kColumns * pitch;
  float* sums = staged + (Cut::kShared ? team_rows * pitch : 0);
  const int thread = static_cast<int>(threadIdx.x);

  for (int i = thread; i < kColumns * pitch; i += kBlock) {
    const int k = i % pitch;
    const int unit = share.first_unit + i / pitch % kUnits;
    const int gate = i / pitch / kUnits;
    const bool is_there = k < units && unit < units;
    weights[i] = is_there ? pass.weight[(static_cast<int64_t>(gate) * units + unit) * units + k] : 0.0f;
  }

  const int64_t state = pass.batch * units;
  const float* h = pass.h0;
  const float* c = pass.c0;
  for (int64_t step = 0; step < pass.steps; ++step) {
    const int64_t t = pass.reverse ? pass.steps - 1 - step : step;
    // Most threads have one element: what it needs is on its way during the product.
    float early[4] = {};
    const auto fetch = [&](int i, float (&values)[4]) {
      const int64_t row = share.first_row + share.row_of(i);
      const int unit = share.unit_of(i);
#pragma unroll
      for (int g = 0; g < 3; ++g) {
        values[g] = pass.activations[(t * pass.batch + row) * 3 * units + g * units + unit];
        if (pass.bias != nullptr) values[g] += pass.bias[g * units + unit];
      }
      values[3] = c[row * units + unit];
    };
    if (share.has(thread)) fetch(thread, early);

    const float* rows = h + static_cast<int64_t>(share.first_row) * units;
    if constexpr (Cut::kShared) {
      stage_rows<kWhole>(rows, staged, share.rows, units);
      rows = staged;
    }
    __syncthreads();
    multiply_rows<Cut, kColumns, kWhole>(rows, weights, sums, share.rows, units);
    __syncthreads();

    const auto advance = [&](int i, float (&values)[4]) {
      const int64_t place =
          (share.first_row + share.row_of(i)) * static_cast<int64_t>(units) + share.unit_of(i);
#pragma unroll
      for (int g = 0; g < 3; ++g) {
        values[g] += sum_of_parts<Cut, kColumns>(sums, share.rows, share.row_of(i), g * kUnits + i % kUnits);
      }
      pass.output[t * state + place] = step_forward(values[0], values[1], values[2], values[3]);
    };
    const auto keep = [&](int i, const float (&values)[4]) {
      const int64_t row = t * pass.batch + share.first_row + share.row_of(i);
      const int unit = share.unit_of(i);
#pragma unroll
      for (int g = 0; g < 3; ++g) pass.activations[row * 3 * units + g * units + unit] = values[g];
      pass.cells[row * units + unit] = values[3];
    };
    for (int i = thread + kBlock; i < share.count(); i += kBlock) {
      if (!share.has(i)) continue;
      float values[4];
      fetch(i, values);
      advance(i, values);
      keep(i, values);
    }
    if (share.has(thread)) advance(thread, early);
    Team<kCluster>::arrive();
    if (share.has(thread)) keep(thread, early);
    Team<kCluster>::wait();
    h = pass.output + t * state;
    c = pass.cells + t * state;
  }
}

template <typename Cut, bool kCluster, int kUnits, bool kWhole>
__global__ void __launch_bounds__(kBlock, 1)
    persistent_backward(BackwardPass pass, int team_blocks, int team_rows) {
  const int units = static_cast<int>(pass.units);
  const Share<kUnits> share(team_blocks, team_rows, static_cast<int>(pass.batch), units);
  const int depth = 3 * units;
  const int pitch = padded_depth(depth);
  float* weights = shared_memory<float>();
  float* staged = weights + kUnits * pitch;
  float* sums = staged + (Cut::kShared ? team_rows * pitch : 0);
  const int thread = static_cast<int>(threadIdx.x);

  for (int i = thread; i < kUnits * pitch; i += kBlock) {
    const int k = i / kUnits;
    const int unit = share.unit_of(i);
    const bool is_there = k < depth && unit < units;
    weights[i % kUnits * pitch + k] = is_there ? pass.weight[static_cast<int64_t>(k) * units + unit] : 0.0f;
  }

  // The first element of each thread: activations, c, the gradients of the output and of c.
  float early[6] = {};
  const auto fetch = [&](int64_t step, int i, float (&values)[6]) {
    const int64_t t = pass.reverse ? step : pass.steps - 1 - step;
    const int64_t row = share.first_row + share.row_of(i);
    const int unit = share.unit_of(i);
#pragma unroll
    for (int g = 0; g < 3; ++g) {
      values[g] = pass.activations[(t * pass.batch + row) * 3 * units + g * units + unit];
    }
    values[3] = pass.cells[(t * pass.batch + row) * units + unit];
    values[4] = pass.output_grad == nullptr ? 0.0f : pass.output_grad[(t * pass.batch + row) * units + unit];
    values[5] = pass.c_grad[row * units + unit];
  };
  if (share.has(thread)) fetch(0, thread, early);
  for (int64_t step = 0; step < pass.steps; ++step) {
    const int64_t t = pass.reverse ? step : pass.steps - 1 - step;
    const auto go_back = [&](int i, float (&values)[6]) {
      const int64_t row = share.first_row + share.row_of(i);
      const int unit = share.unit_of(i);
      values[4] += step == 0 ? pass.h_grad[row * units + unit]
                             : sum_of_parts<Cut, kUnits>(sums, share.rows, share.row_of(i), i % kUnits);
      step_back(values[0], values[1], values[2], values[3], values[4], values[5]);
#pragma unroll
      for (int g = 0; g < 3; ++g) {
        pass.gates_grad[(t * pass.batch + row) * depth + g * units + unit] = values[g];
      }
      pass.c_grad[row * units + unit] = values[5];
    };
    for (int i = thread + kBlock; i < share.count(); i += kBlock) {
      if (!share.has(i)) continue;
      float values[6];
      fetch(step, i, values);
      go_back(i, values);
    }
    if (share.has(thread)) go_back(thread, early);
    Team<kCluster>::arrive();
    if (share.has(thread) && step + 1 < pass.steps) fetch(step + 1, thread, early);
    Team<kCluster>::wait();

    const float* rows = pass.gates_grad + (t * pass.batch + share.first_row) * depth;
    if constexpr (Cut::kShared) {
      stage_rows<kWhole>(rows, staged, share.rows, depth);
      rows = staged;
      __syncthreads();
    }
    multiply_rows<Cut, kUnits, kWhole>(rows, weights, sums, share.rows, depth);
    __syncthreads();
  }
  for (int i = thread; i < share.count(); i += kBlock) {
    if (!share.has(i)) continue;
    const int64_t row = share.first_row + share.row_of(i);
    pass.h_grad[row * units + share.unit_of(i)] =
        sum_of_parts<Cut, kUnits>(sums, share.rows, share.row_of(i), i % kUnits);
  }
}

int device_attribute(cudaDeviceAttr attribute) {
  int device = 0;
  int value = 0;
  const bool known = cudaGetDevice(&device) == cudaSuccess &&
                     cudaDeviceGetAttribute(&value, attribute, device) == cudaSuccess;
  TORCHGRAFT_CHECK(known, "lltm: the device does not say what it can do");
  return value;
}

template <typename Pass>
using Kernel = void (*)(Pass, int, int);

// A kernel, how its block is cut, and what it multiplies.
template <typename Pass>
struct Plan {
  Kernel<Pass> kernel;
  int units;  // of a block
  int columns;
  int tile_rows;
  int tile_columns;
  bool is_staged;
};

template <typename Cut, bool kCluster, int kUnits, bool kWhole>
Plan<ForwardPass> plan_of(const ForwardPass&) {
  constexpr int kColumns = 3 * kUnits;
  return {persistent_forward<Cut, kCluster, kUnits, kWhole>,
          kUnits,
          kColumns,
          Cut::kRows,
          Cut::kWide,
          Cut::kShared};
}

template <typename Cut, bool kCluster, int kUnits, bool kWhole>
Plan<BackwardPass> plan_of(const BackwardPass&) {
  return {persistent_backward<Cut, kCluster, kUnits, kWhole>,
          kUnits,
          kUnits,
          Cut::kRows,
          Cut::kWide,
          Cut::kShared};
}

int depth_of(const ForwardPass& pass) { return static_cast<int>(pass.units); }
int depth_of(const BackwardPass& pass) { return static_cast<int>(3 * pass.units); }

template <typename Pass>
int64_t shared_bytes(const Plan<Pass>& plan, int depth, int64_t rows) {
  const int64_t parts = parts_of(static_cast<int>(rows), plan.columns, plan.tile_rows, plan.tile_columns);
  const int64_t rows_and_weights = plan.columns + (plan.is_staged ? rows : 0);
  return static_cast<int64_t>(sizeof(float)) *
         (rows_and_weights * padded_depth(depth) + parts * rows * plan.columns);
}

// Gives the kernel its shared memory; whether a block may have so much.
template <typename Pass>
bool takes_shared(const Plan<Pass>& plan, int64_t bytes) {
  if (bytes > device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)) return false;
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(plan.kernel),
                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(bytes)) == cudaSuccess;
}

// As one team of all blocks, where they are resident at once.
template <typename Pass>
bool launch_grid(const Plan<Pass>& plan, const Pass& pass, cudaStream_t stream) {
  const void* function = reinterpret_cast<const void*>(plan.kernel);
  const int64_t shared = shared_bytes(plan, depth_of(pass), pass.batch);
  if (!takes_shared(plan, shared)) return false;
  int resident = 0;
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, function, kBlock, static_cast<size_t>(shared));
  const int64_t blocks = ceil_divide<int64_t>(pass.units, plan.units);
  if (blocks > int64_t{resident} * device_attribute(cudaDevAttrMultiProcessorCount)) return false;
  Pass copy = pass;
  int team_blocks = static_cast<int>(blocks);
  int team_rows = static_cast<int>(pass.batch);
  void* arguments[] = {&copy, &team_blocks, &team_rows};
  cudaLaunchCooperativeKernel(function, dim3(static_cast<unsigned>(blocks)), dim3(kBlock), arguments,
                              static_cast<size_t>(shared), stream);
  check_launch("lltm");
  return true;
}

// As clusters that each own as many rows of the batch as it takes for all of them to be resident at once.
template <typename Pass>
bool launch_clusters(const Plan<Pass>& plan, const Pass& pass, int cluster, int64_t rows,
                     cudaStream_t stream) {
  const int64_t shared = shared_bytes(plan, depth_of(pass), rows);
  if (!takes_shared(plan, shared)) return false;
  if (cluster > 8) {
    cudaFuncSetAttribute(reinterpret_cast<const void*>(plan.kernel),
                         cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  }
  const int64_t teams = ceil_divide(pass.batch, rows);
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(cluster);
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(teams * cluster));
  config.blockDim = dim3(kBlock);
  config.dynamicSmemBytes = static_cast<size_t>(shared);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int resident = 0;
  if (cudaOccupancyMaxActiveClusters(&resident, plan.kernel, &config) != cudaSuccess || resident < teams) {
    cudaGetLastError();
    return false;
  }
  cudaLaunchKernelEx(&config, plan.kernel, pass, cluster, static_cast<int>(rows));
  check_launch("lltm");
  return true;
}

// In clusters of 8 or 16 with kUnits units a block; tiles of a width that divides the columns of both passes.
template <int kUnits, bool kWhole, typename Pass>
bool launch_clusters_of(const Pass& pass, int cluster, cudaStream_t stream) {
  constexpr bool kIsForward = std::is_same_v<Pass, ForwardPass>;
  const int64_t most_teams = device_attribute(cudaDevAttrMultiProcessorCount) / cluster;
  if (most_teams == 0) return false;
  const int64_t least = ceil_divide(pass.batch, most_teams);
  // A multiprocessor that is left over in its group serves no cluster, so a few rows more may be needed.
  for (int64_t rows = least; rows <= 2 * least + 2; ++rows) {
    const bool is_narrow = rows % 4 == 0 || rows < 4;
    const auto plan = is_narrow ? plan_of<Tile<4, kIsForward ? 12 : 8, true>, true, kUnits, kWhole>(pass)
                                : plan_of<Tile<6, 8, true>, true, kUnits, kWhole>(pass);
    if (launch_clusters(plan, pass, cluster, rows, stream)) return true;
  }
  return false;
}

template <bool kWhole, typename Pass>
bool launch_in_clusters(const Pass& pass, cudaStream_t stream) {
  if (pass.units <= 64) return launch_clusters_of<8, kWhole>(pass, 8, stream);
  if (pass.units <= 128) return launch_clusters_of<16, kWhole>(pass, 8, stream);
  if (pass.units <= 256) return launch_clusters_of<32, kWhole>(pass, 8, stream);
  if (pass.units <= 512) return launch_clusters_of<32, kWhole>(pass, 16, stream);
  return false;
}

// As few units a block as there are multiprocessors for.
template <bool kWhole, typename Pass>
bool launch_in_grid(const Pass& pass, cudaStream_t stream) {
  constexpr int kGates = std::is_same_v<Pass, ForwardPass> ? 3 : 1;
  const int64_t blocks = device_attribute(cudaDevAttrMultiProcessorCount);
  if (pass.units <= blocks)
    return launch_grid(plan_of<GridTile<kGates>, false, 1, kWhole>(pass), pass, stream);
  if (pass.units <= 2 * blocks) {
    return launch_grid(plan_of<GridTile<2 * kGates>, false, 2, kWhole>(pass), pass, stream);
  }
  if (pass.units <= 4 * blocks) {
    return launch_grid(plan_of<GridTile<4 * kGates>, false, 4, kWhole>(pass), pass, stream);
  }
  if (pass.units <= 8 * blocks) {
    return launch_grid(plan_of<GridTile<8 * kGates>, false, 8, kWhole>(pass), pass, stream);
  }
  return false;
}

// Whether what is read four numbers at a time begins where that can.
bool begins_aligned(const ForwardPass& pass) {
  return is_aligned(pass.h0, 16) && is_aligned(pass.output, 16);
}
bool begins_aligned(const BackwardPass& pass) { return is_aligned(pass.gates_grad, 16); }

template <bool kWhole, typename Pass>
bool launch_where_it_fits(const Pass& pass, cudaStream_t stream) {
  const bool has_clusters = device_attribute(cudaDevAttrClusterLaunch) != 0;
  if (has_clusters && launch_in_clusters<kWhole>(pass, stream)) return true;
  return device_attribute(cudaDevAttrCooperativeLaunch) != 0 && launch_in_grid<kWhole>(pass, stream);
}

template <typename Pass>
bool launch_where_it_pays(const Pass& pass, cudaStream_t stream) {
  const bool fits = pass.batch > 0 && pass.batch < 65536 && pass.units < 65536 &&
                    3 * pass.batch * pass.units * pass.units <= kMostProducts;
  if (!fits) return false;
  return pass.units % 4 == 0 && begins_aligned(pass) ? launch_where_it_fits<true>(pass, stream)
                                                     : launch_where_it_fits<false>(pass, stream);
}

}  // namespace

bool launch_persistent(const ForwardPass& pass, cudaStream_t stream) {
  return launch_where_it_pays(pass, stream);
}

bool launch_persistent(const BackwardPass& pass, cudaStream_t stream) {
  return launch_where_it_pays(pass, stream);
}

}  // namespace torchgraft::lltm::cuda
