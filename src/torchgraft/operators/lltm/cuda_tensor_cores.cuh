// What the recurrences on tensor cores share: numbers in two halves, and the fragments of weight_hh that a
// thread keeps.
//
// A number of float that goes into a product is the sum of two of T, `high` and `low`: 22 bits of it in
// float16 and 16 in bfloat16. Side by side as two columns of one product, both are multiplied with weight_hh
// in T, exactly, and summed in float; a lane holds the two sums next to each other and adds them.
#pragma once

#include <torchgraft/dispatch.h>
#include <torchgraft/cuda.cuh>
#include <torchgraft/ptx.cuh>

#include <algorithm>
#include <optional>
#include <type_traits>

#include "cuda_recurrence.h"

namespace torchgraft::lltm::cuda {

template <typename T>
struct Split {
  __device__ explicit Split(float value) : high(static_cast<T>(value)) {
    const float rounded = static_cast<float>(high);
    low = static_cast<T>(isinf(rounded) ? 0.0f : value - rounded);
  }

  T high;
  T low;
};

// How large a number is; zero of one that is not finite.
__device__ __forceinline__ float finite_size(float value) {
  const float size = fabsf(value);
  return size <= 3.4e38f ? size : 0.0f;
}

// The largest finite number of those of a row that a thread sees: `first` and each `stride` on.
template <typename T>
__device__ __forceinline__ float largest_finite(const T* row, int64_t count, int first, int stride) {
  float largest = 0.0f;
  for (int64_t k = first; k < count; k += stride) {
    largest = fmaxf(largest, finite_size(static_cast<float>(row[k])));
  }
  return largest;
}

__device__ __forceinline__ float largest_of_warp(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  return value;
}

// The power of two that brings a number, not a negative one, to 2**14 and above, as far as there is such a
// power: the products of what is scaled so lie in the middle of what float16 holds.
__device__ __forceinline__ float power_to_fill_half(float number) {
  return __uint_as_float((268u - max(__float_as_uint(number) >> 23, 15u)) << 23);
}

// sums += a * b, 16 x 16 with 16 x 8.
template <typename T>
__device__ __forceinline__ void multiply_add(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<T, Half>) {
    ptx::mma_m16n8k16_f16(sums, a, b0, b1, sums);
  } else {
    ptx::mma_m16n8k16_bf16(sums, a, b0, b1, sums);
  }
#endif
}

// Two numbers of T as a register of a fragment.
template <typename T>
__device__ __forceinline__ uint32_t pair_of(T first, T second) {
  return uint32_t{second.x} << 16 | first.x;
}

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// What a group of blocks is, and how its blocks meet: one block that meets nobody; a cluster, through shared
// memory; some blocks of a cooperative grid, through device memory.
enum class Way { block, cluster, grid };

// The two barriers of a block in a cluster, which count the bytes that all of its blocks write into its
// memory: those that a step waits for, in turn. A step's barrier is `step % 2`.
struct StepBarriers {
  uint32_t address;  // in shared memory

  // By one thread, before the blocks of the cluster meet for the first time.
  __device__ __forceinline__ void start([[maybe_unused]] uint32_t bytes) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    for (uint32_t i = 0; i < 2; ++i) {
      ptx::mbarrier_init(address + 8 * i, 1);
      ptx::mbarrier_arrive_expect_tx(address + 8 * i, bytes);
    }
    ptx::fence_mbarrier_init();
#endif
  }

  // Waits for what was written in the step before. The barrier then waits for the step after this one:
  // nothing of that comes before this block has written what belongs to this step.
  __device__ __forceinline__ void wait([[maybe_unused]] int64_t step, [[maybe_unused]] uint32_t bytes) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    const uint32_t barrier = address + 8 * static_cast<uint32_t>(step % 2);
    ptx::mbarrier_wait(barrier, static_cast<uint32_t>((step - 1) / 2 % 2));
    if (threadIdx.x == 0) ptx::mbarrier_arrive_expect_tx(barrier, bytes);
#endif
  }
};

// A barrier of the blocks of a group on the grid, in which `arrived`, zero at first, counts arrivals.
__device__ __forceinline__ void meet_on_grid(uint32_t* arrived, uint32_t expected) {
  __syncthreads();
  if (threadIdx.x == 0) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700
    ptx::fence_gpu();
    atomicAdd(arrived, 1u);
    while (static_cast<int32_t>(ptx::load_relaxed(arrived) - expected) < 0) {
    }
    ptx::fence_gpu();
#endif
  }
  __syncthreads();
}

// How the blocks of a launch share out units and rows: a group has all units of its rows.
struct Groups {
  int blocks;  // of a group, S::kUnits units each
  int rows;    // of a group
  int64_t count;
};

// Of device memory for a group's arrivals: a line of its own.
constexpr int64_t kArrivedBytes = 128;

inline bool may_be_grouped(int64_t batch, int64_t units) {
  return batch > 0 && batch < 65536 && units <= 1024 &&
         device_attribute(cudaDevAttrComputeCapabilityMajor) >= 8;
}

// Launches `kernel` with as few rows a group as there is room for all groups at once; whether any number of
// rows fits, up to `most_rows`. S says how many units and threads a block has, what a group is, and the
// shared memory for so many rows. All blocks that meet are resident at once: a cluster is launched as one and
// waits for no other, a grid is launched cooperatively.
template <typename S, typename Pass, typename Exchanged, typename Bytes>
bool launch_groups(void (*kernel)(Pass, int, int, uint32_t*, Exchanged*), const Pass& pass,
                   const Tensor& like, cudaStream_t stream, const Bytes& exchanged_bytes,
                   int64_t most_rows = INT64_MAX) {
  constexpr bool kCluster = S::kWay == Way::cluster;
  constexpr bool kGrid = S::kWay == Way::grid;
  const int blocks = static_cast<int>(ceil_divide<int64_t>(pass.units, S::kUnits));
  const int64_t most_groups = device_attribute(cudaDevAttrMultiProcessorCount) / blocks;
  if (most_groups == 0 || (kCluster && device_attribute(cudaDevAttrClusterLaunch) == 0) ||
      (kGrid && device_attribute(cudaDevAttrCooperativeLaunch) == 0)) {
    return false;
  }
  const void* function = reinterpret_cast<const void*>(kernel);
  if (kCluster && blocks > 8 &&
      cudaFuncSetAttribute(function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }

  cudaLaunchAttribute attribute = {};
  if (kCluster) {
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = static_cast<unsigned>(blocks);
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
  } else if (kGrid) {
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
  }
  cudaLaunchConfig_t config = {};
  config.blockDim = dim3(S::kBlock);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = kCluster || kGrid ? 1 : 0;
  const int64_t most_bytes = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  // A block that meets no other may wait until there is room for it.
  constexpr int64_t kMostRowsOfBlock = 32;
  const int64_t even = ceil_divide(pass.batch, most_groups);
  const int64_t least = kCluster || kGrid ? even : std::min(even, kMostRowsOfBlock);
  // Multiprocessors come in groups of the hardware, and those of one that are too few for a cluster stay
  // idle, so a few rows more than `least` may be needed.
  const int64_t most = std::min(2 * least + 2, most_rows);
  for (int64_t rows = least; rows <= most && S::shared_bytes(rows, blocks) <= most_bytes; ++rows) {
    const Groups groups = {blocks, static_cast<int>(rows), ceil_divide(pass.batch, rows)};
    config.gridDim = dim3(static_cast<unsigned>(groups.count * blocks));
    config.dynamicSmemBytes = static_cast<size_t>(S::shared_bytes(rows, blocks));
    int resident = 0;
    bool fits = cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(config.dynamicSmemBytes)) == cudaSuccess;
    if (kCluster) {
      fits = fits && cudaOccupancyMaxActiveClusters(&resident, kernel, &config) == cudaSuccess;
    } else {
      fits = fits && cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, function, S::kBlock,
                                                                   config.dynamicSmemBytes) == cudaSuccess;
      resident *= static_cast<int>(most_groups);
    }
    if (!fits) {
      cudaGetLastError();
      return false;
    }
    if (resident < (kCluster || kGrid ? groups.count : 1)) continue;
    uint32_t* arrived = nullptr;
    Exchanged* memory = nullptr;
    std::optional<Tensor> workspace;
    if (kGrid) {
      const int64_t bytes = kArrivedBytes * groups.count + exchanged_bytes(groups);
      workspace = empty_workspace<float>(ceil_divide<int64_t>(bytes, sizeof(float)), like);
      arrived = static_cast<uint32_t*>(workspace->mutable_data_ptr());
      memory = reinterpret_cast<Exchanged*>(arrived + kArrivedBytes / 4 * groups.count);
      const auto cleared = static_cast<size_t>(kArrivedBytes * groups.count);
      TORCHGRAFT_CHECK(cudaMemsetAsync(arrived, 0, cleared, stream) == cudaSuccess,
                       "lltm: memory could not be cleared");
    }
    cudaLaunchKernelEx(&config, kernel, pass, blocks, groups.rows, arrived, memory);
    check_launch("lltm");
    return true;
  }
  return false;
}

}  // namespace torchgraft::lltm::cuda
