// The recurrence of a whole sequence in clusters of blocks that keep weight_hh in registers, in float.
//
// A cluster owns some rows of the batch for all steps, and never waits for another. A block of it owns 32
// units, a lane one of them, and a warp an eighth of the depth of a step's products: a thread holds what
// weight_hh has for that, up to 192 numbers, from the first step to the last. A step is
//
//     forward   h of all units, L2 to shared memory -> sums of an eighth each -> own h, c, activations
//     back      own gradients of gates -> those of all units, L2 to shared memory -> own gradients of h
//
// with a barrier of the cluster, 0.2 us, where the others' results are needed. Numbers of a row are read from
// shared memory four at a time, by all lanes the same, so one access serves 12 multiply-adds a lane (back:
// 4), and arithmetic bounds the product: 3 * rows * units * 32 multiply-adds a block, 0.22 us a row for 512
// units. The rest of a step is the way of h through L2, about 1 us.
//
// Up to 512 units, in 16 blocks.

#include <cooperative_groups.h>

#include <type_traits>

#include "cuda_recurrence.h"
#include "cuda_unit.cuh"

namespace torchgraft::lltm::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kBlock = 32 * kWarps;
constexpr int kUnits = 32;
constexpr int kMostUnits = 512;

// What is written before arrive() is seen by all of the cluster after wait().
__device__ void arrive() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cooperative_groups::this_cluster().barrier_arrive();
#endif
}

__device__ void wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cooperative_groups::this_cluster().barrier_wait();
#endif
}

// What a thread has to do.
struct Share {
  __device__ Share(int cluster, int cluster_rows, int64_t batch, int64_t units)
      : lane(static_cast<int>(threadIdx.x) % 32),
        warp(static_cast<int>(threadIdx.x) / 32),
        unit(static_cast<int>(blockIdx.x) % cluster * kUnits + lane),
        first_row(static_cast<int>(blockIdx.x) / cluster * cluster_rows),
        rows(min(cluster_rows, static_cast<int>(batch) - first_row)),
        has_unit(unit < units) {}

  int lane;
  int warp;
  int unit;       // of its elements, one in each row that the warp owns
  int first_row;  // of the cluster
  int rows;       // of the cluster; a warp owns every eighth
  bool has_unit;
};

// Brings `count` rows to shared memory, each padded with zeros. From L2, as other blocks write them while
// this kernel runs.
__device__ __forceinline__ void stage_rows(const float* rows, float* staged, int count, int depth, int pitch,
                                           bool is_aligned) {
  for (int i = static_cast<int>(threadIdx.x) * 4; i < count * pitch; i += kBlock * 4) {
    const int row = i / pitch;
    const int k = i % pitch;
    const float* from = rows + static_cast<int64_t>(row) * depth + k;
    float4 four = {};
    if (is_aligned) {
      if (k < depth) four = __ldcg(reinterpret_cast<const float4*>(from));
    } else {
      if (k < depth) four.x = __ldcg(from);
      if (k + 1 < depth) four.y = __ldcg(from + 1);
      if (k + 2 < depth) four.z = __ldcg(from + 2);
      if (k + 3 < depth) four.w = __ldcg(from + 3);
    }
    *reinterpret_cast<float4*>(staged + i) = four;
  }
}

// sums[warp][row][column][lane] of the warp's part of each row.
template <int kColumns, int kDepth>
__device__ __forceinline__ void multiply_rows(const float (&weights)[kColumns][kDepth], const float* staged,
                                              float* sums, const Share& share) {
  constexpr int kPitch = kDepth * kWarps;
  // With one column two sums, so that one multiply-add need not wait for the last.
  constexpr int kChains = kColumns == 1 ? 2 : 1;
#pragma unroll 2
  for (int row = 0; row < share.rows; ++row) {
    const float* from = staged + row * kPitch + share.warp * kDepth;
    float sum[kColumns][kChains] = {};
#pragma unroll
    for (int k = 0; k < kDepth; k += 4) {
      const float4 four = *reinterpret_cast<const float4*>(from + k);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        float& chain = sum[c][k / 4 % kChains];
        chain += four.x * weights[c][k];
        chain += four.y * weights[c][k + 1];
        chain += four.z * weights[c][k + 2];
        chain += four.w * weights[c][k + 3];
      }
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      float total = sum[c][0];
      if constexpr (kChains == 2) total += sum[c][1];
      sums[((share.warp * share.rows + row) * kColumns + c) * 32 + share.lane] = total;
    }
  }
}

template <int kColumns>
__device__ __forceinline__ float sum_of_warps(const float* sums, const Share& share, int row, int column) {
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) {
    sum += sums[((warp * share.rows + row) * kColumns + column) * 32 + share.lane];
  }
  return sum;
}

template <int kDepth>
__global__ void __launch_bounds__(kBlock, 1)
    cluster_forward(ForwardPass pass, int cluster, int cluster_rows, bool is_aligned) {
  constexpr int kPitch = kDepth * kWarps;
  const int units = static_cast<int>(pass.units);
  const Share share(cluster, cluster_rows, pass.batch, units);
  float* staged = shared_memory<float>();
  float* sums = staged + cluster_rows * kPitch;

  float weights[3][kDepth];
#pragma unroll
  for (int g = 0; g < 3; ++g) {
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      const int k = share.warp * kDepth + d;
      const bool is_there = share.has_unit && k < units;
      weights[g][d] =
          is_there ? pass.weight[(static_cast<int64_t>(g) * units + share.unit) * units + k] : 0.0f;
    }
  }

  const float* h = pass.h0;
  const float* c = pass.c0;
  for (int64_t step = 0; step < pass.steps; ++step) {
    const int64_t t = pass.reverse ? pass.steps - 1 - step : step;
    const int64_t first = t * pass.batch;
    const auto fetch = [&](int row, float (&values)[4]) {
      const int64_t place = share.first_row + row;
#pragma unroll
      for (int g = 0; g < 3; ++g) {
        values[g] = pass.activations[((first + place) * 3 + g) * units + share.unit];
        if (pass.bias != nullptr) values[g] += pass.bias[g * units + share.unit];
      }
      values[3] = c[place * units + share.unit];
    };
    const auto advance = [&](int row, float (&values)[4]) {
#pragma unroll
      for (int g = 0; g < 3; ++g) values[g] += sum_of_warps<3>(sums, share, row, g);
      pass.output[(first + share.first_row + row) * units + share.unit] =
          step_forward(values[0], values[1], values[2], values[3]);
    };
    const auto keep = [&](int row, const float (&values)[4]) {
      const int64_t place = first + share.first_row + row;
#pragma unroll
      for (int g = 0; g < 3; ++g) pass.activations[(place * 3 + g) * units + share.unit] = values[g];
      pass.cells[place * units + share.unit] = values[3];
    };

    // What the warp's first row needs is on its way during the product, and its last results leave while the
    // cluster meets.
    const bool has_element = share.has_unit && share.warp < share.rows;
    float values[4] = {};
    if (has_element) fetch(share.warp, values);
    stage_rows(h + static_cast<int64_t>(share.first_row) * units, staged, share.rows, units, kPitch,
               is_aligned);
    __syncthreads();
    multiply_rows(weights, staged, sums, share);
    __syncthreads();
    if (has_element) {
      for (int row = share.warp + kWarps; row < share.rows; row += kWarps) {
        float others[4];
        fetch(row, others);
        advance(row, others);
        keep(row, others);
      }
      advance(share.warp, values);
    }
    arrive();
    if (has_element) keep(share.warp, values);
    wait();
    h = pass.output + first * units;
    c = pass.cells + first * units;
  }
}

// A thread holds kDepth numbers of weight_hh: an eighth of 3 * units.
template <int kDepth>
__global__ void __launch_bounds__(kBlock, 1)
    cluster_backward(BackwardPass pass, int cluster, int cluster_rows, bool is_aligned) {
  constexpr int kPitch = kDepth * kWarps;
  const int units = static_cast<int>(pass.units);
  const int depth = 3 * units;
  const Share share(cluster, cluster_rows, pass.batch, units);
  float* staged = shared_memory<float>();
  float* sums = staged + cluster_rows * kPitch;

  float weights[1][kDepth];
#pragma unroll
  for (int d = 0; d < kDepth; ++d) {
    const int k = share.warp * kDepth + d;
    const bool is_there = share.has_unit && k < depth;
    weights[0][d] = is_there ? pass.weight[static_cast<int64_t>(k) * units + share.unit] : 0.0f;
  }

  const bool has_element = share.has_unit && share.warp < share.rows;
  // Activations, c, and the gradients of the output and of c.
  const auto fetch = [&](int64_t step, int row, float (&values)[6]) {
    const int64_t t = pass.reverse ? step : pass.steps - 1 - step;
    const int64_t place = t * pass.batch + share.first_row + row;
#pragma unroll
    for (int g = 0; g < 3; ++g) values[g] = pass.activations[(place * 3 + g) * units + share.unit];
    values[3] = pass.cells[place * units + share.unit];
    values[4] = pass.output_grad == nullptr ? 0.0f : pass.output_grad[place * units + share.unit];
    values[5] = pass.c_grad[static_cast<int64_t>(share.first_row + row) * units + share.unit];
  };
  float values[6] = {};
  if (has_element) fetch(0, share.warp, values);
  for (int64_t step = 0; step < pass.steps; ++step) {
    const int64_t t = pass.reverse ? step : pass.steps - 1 - step;
    const auto go_back = [&](int row, float (&of)[6]) {
      const int64_t state = static_cast<int64_t>(share.first_row + row) * units + share.unit;
      of[4] += step == 0 ? pass.h_grad[state] : sum_of_warps<1>(sums, share, row, 0);
      step_back(of[0], of[1], of[2], of[3], of[4], of[5]);
      const int64_t place = t * pass.batch + share.first_row + row;
#pragma unroll
      for (int g = 0; g < 3; ++g) pass.gates_grad[(place * 3 + g) * units + share.unit] = of[g];
      pass.c_grad[state] = of[5];
    };
    if (has_element) {
      for (int row = share.warp + kWarps; row < share.rows; row += kWarps) {
        float others[6];
        fetch(step, row, others);
        go_back(row, others);
      }
      go_back(share.warp, values);
    }
    arrive();
    if (has_element && step + 1 < pass.steps) fetch(step + 1, share.warp, values);
    wait();
    stage_rows(pass.gates_grad + (t * pass.batch + share.first_row) * depth, staged, share.rows, depth,
               kPitch, is_aligned);
    __syncthreads();
    multiply_rows(weights, staged, sums, share);
    __syncthreads();
  }
  if (has_element) {
    for (int row = share.warp; row < share.rows; row += kWarps) {
      pass.h_grad[static_cast<int64_t>(share.first_row + row) * units + share.unit] =
          sum_of_warps<1>(sums, share, row, 0);
    }
  }
}

template <typename Pass>
using Kernel = void (*)(Pass, int, int, bool);

// Launches as few rows a cluster as there is room for all clusters at once; whether any number of rows fits.
template <typename Pass>
bool launch(Kernel<Pass> kernel, const Pass& pass, int columns, int pitch, bool is_aligned,
            cudaStream_t stream) {
  const void* function = reinterpret_cast<const void*>(kernel);
  const int cluster = static_cast<int>(ceil_divide<int64_t>(pass.units, kUnits));
  const int64_t row_bytes = static_cast<int64_t>(sizeof(float)) * (pitch + kWarps * columns * 32);
  const int64_t most_bytes = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  const int64_t most_clusters = device_attribute(cudaDevAttrMultiProcessorCount) / cluster;
  if (most_clusters == 0) return false;
  if (cluster > 8 &&
      cudaFuncSetAttribute(function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }

  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(cluster);
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.blockDim = dim3(kBlock);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  const int64_t least = ceil_divide(pass.batch, most_clusters);
  // Multiprocessors come in groups, and those of a group that are too few for a cluster stay idle, so a few
  // rows more than `least` may be needed.
  for (int64_t rows = least; rows <= 2 * least + 2 && rows * row_bytes <= most_bytes; ++rows) {
    const int64_t clusters = ceil_divide(pass.batch, rows);
    config.gridDim = dim3(static_cast<unsigned>(clusters * cluster));
    config.dynamicSmemBytes = static_cast<size_t>(rows * row_bytes);
    int resident = 0;
    const bool fits = cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(rows * row_bytes)) == cudaSuccess &&
                      cudaOccupancyMaxActiveClusters(&resident, kernel, &config) == cudaSuccess;
    if (!fits) {
      cudaGetLastError();
      return false;
    }
    if (resident < clusters) continue;
    cudaLaunchKernelEx(&config, kernel, pass, cluster, static_cast<int>(rows), is_aligned);
    check_launch("lltm");
    return true;
  }
  return false;
}

template <typename Pass>
bool can_be_tried(const Pass& pass) {
  return pass.units <= kMostUnits && pass.batch > 0 && pass.batch < 65536 &&
         device_attribute(cudaDevAttrClusterLaunch) != 0;
}

}  // namespace

bool launch_clusters(const ForwardPass& pass, cudaStream_t stream) {
  if (!can_be_tried(pass)) return false;
  const bool aligned = pass.units % 4 == 0 && is_aligned(pass.h0, 16) && is_aligned(pass.output, 16);
  if (pass.units <= 128) return launch(cluster_forward<16>, pass, 3, 16 * kWarps, aligned, stream);
  if (pass.units <= 256) return launch(cluster_forward<32>, pass, 3, 32 * kWarps, aligned, stream);
  return launch(cluster_forward<64>, pass, 3, 64 * kWarps, aligned, stream);
}

bool launch_clusters(const BackwardPass& pass, cudaStream_t stream) {
  if (!can_be_tried(pass)) return false;
  const bool aligned = pass.units % 4 == 0 && is_aligned(pass.gates_grad, 16);
  if (pass.units <= 128) return launch(cluster_backward<48>, pass, 1, 48 * kWarps, aligned, stream);
  if (pass.units <= 256) return launch(cluster_backward<96>, pass, 1, 96 * kWarps, aligned, stream);
  return launch(cluster_backward<192>, pass, 1, 192 * kWarps, aligned, stream);
}

}  // namespace torchgraft::lltm::cuda
