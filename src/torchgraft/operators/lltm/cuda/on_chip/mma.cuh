// What the kernels on tensor cores share.
//
// A number of float that goes into a product is two halves (split.cuh), side by side as two columns of the
// product. Both are multiplied with weight_hh, exactly, and summed in float; a lane holds the two sums next
// to each other and adds them. A thread keeps its part of weight_hh as fragments.
#pragma once

#include <cooperative_groups.h>
#include <torchgraft/dispatch.h>
#include <torchgraft/cuda.cuh>
#include <torchgraft/ptx.cuh>

#include <optional>
#include <type_traits>

#include "../mma_weight.h"
#include "../split.cuh"
#include "../unit.cuh"
#include "member.cuh"

namespace torchgraft::lltm::cuda {

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
#else
  __trap();  // not chosen where this is compiled for less
#endif
}

// Two numbers of T as a register of a fragment.
template <typename T>
__device__ __forceinline__ uint32_t pair_of(T first, T second) {
  return uint32_t{second.x} << 16 | first.x;
}

// Two numbers next to each other; zeros where they are not there.
template <typename T>
__device__ __forceinline__ uint32_t load_pair(const T* from, bool is_there) {
  return is_there ? *reinterpret_cast<const uint32_t*>(from) : 0u;
}

// This thread's fragments of weight_hh: of each column of tiles the first kKept tiles lie in registers, and
// the others in shared memory.
template <int kTiles, int kColumns, int kKept, int kBlock>
class WeightFragments {
 public:
  static constexpr int64_t kSharedBytes = int64_t{kColumns} * (kTiles - kKept) * kBlock * 16;

  // All three with indices that are constant once loops are unrolled.
  __device__ __forceinline__ void store(uint4* shared, int tile, int column, const uint32_t (&fragment)[4]) {
    if (tile < kKept) {
#pragma unroll
      for (int e = 0; e < 4; ++e) kept_[tile < kKept ? tile : 0][column][e] = fragment[e];
    } else {
      shared[place_of(tile, column)] = make_uint4(fragment[0], fragment[1], fragment[2], fragment[3]);
    }
  }
  __device__ __forceinline__ void load(const uint4* shared, int tile, int column,
                                       uint32_t (&fragment)[4]) const {
    if (tile < kKept) {
#pragma unroll
      for (int e = 0; e < 4; ++e) fragment[e] = kept_[tile < kKept ? tile : 0][column][e];
    } else {
      const uint4 four = shared[place_of(tile, column)];
      fragment[0] = four.x;
      fragment[1] = four.y;
      fragment[2] = four.z;
      fragment[3] = four.w;
    }
  }

 private:
  __device__ __forceinline__ static int place_of(int tile, int column) {
    return ((tile - kKept) * kColumns + column) * kBlock + static_cast<int>(threadIdx.x);
  }

  uint32_t kept_[kKept][kColumns][4];
};

// A barrier of the blocks of a group on the grid, which counts in `arrivals`, zero at first.
__device__ __forceinline__ void sync_group_of_grid(uint32_t* arrivals, uint32_t expected) {
  __syncthreads();
  if (threadIdx.x == 0) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700
    ptx::fence_gpu();
    atomicAdd(arrivals, 1u);
    while (static_cast<int32_t>(ptx::load_relaxed(arrivals) - expected) < 0) {
    }
    ptx::fence_gpu();
#endif
  }
  __syncthreads();
}

// A group's arrivals have a cache line of their own.
constexpr int64_t kArrivalBytes = 128;

// Who a thread is, and what both directions have in shared memory first: barriers, and what registers do not
// hold of weight_hh.
class MmaMember : protected GroupMember {
 protected:
  template <typename S, typename Pass>
  __device__ __forceinline__ MmaMember(Tag<S>, const Pass& pass, bool is_reverse, int group_blocks,
                                       int group_rows, uint32_t* arrivals)
      : GroupMember(pass, is_reverse, group_blocks, group_rows, S::kUnits),
        padded_rows_((group_rows + kTileRows - 1) / kTileRows * kTileRows),
        barriers_{shared_address(shared_memory<uint4>())},
        weights_(shared_memory<uint4>() + S::kBarrierBytes / 16),
        arrivals_(arrivals + kArrivalBytes / 4 * (static_cast<int>(blockIdx.x) / group_blocks)) {}

  // No block may write into another's memory before that has been initialised, and runs.
  template <typename S>
  __device__ __forceinline__ void start_group([[maybe_unused]] uint32_t bytes_of_step) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if constexpr (S::kGroup == Group::cluster) {
      if (warp_ == 0) barriers_.start(bytes_of_step);
      cooperative_groups::this_cluster().sync();
      return;
    }
#endif
    __syncthreads();
  }

  // Waits for what the group's blocks sent in the step before.
  template <typename S>
  __device__ __forceinline__ void wait_for_group(int64_t step,
                                                 [[maybe_unused]] uint32_t bytes_of_step) const {
    if constexpr (S::kGroup == Group::cluster) {
      barriers_.wait(step, bytes_of_step);
    } else {
      __syncthreads();
    }
  }

  int padded_rows_;
  CountedBarriers barriers_;
  uint4* weights_;
  uint32_t* arrivals_;
};

// Launches a kernel; groups on the grid get so many bytes of device memory to exchange numbers in.
template <typename S, typename Pass, typename T, typename Exchanged>
void launch_mma(void (*kernel)(Pass, MmaWeightView<T>, int, int, uint32_t*, Exchanged*), const Pass& pass,
                const MmaWeight& weight, const Groups& groups, int64_t exchanged_bytes, cudaStream_t stream) {
  uint32_t* arrivals = nullptr;
  Exchanged* memory = nullptr;
  std::optional<Tensor> workspace;
  if (S::kGroup == Group::grid) {
    const int64_t bytes = kArrivalBytes * groups.count + exchanged_bytes;
    workspace = empty_workspace<float>(ceil_divide<int64_t>(bytes, sizeof(float)), weight.matrix);
    arrivals = static_cast<uint32_t*>(workspace->mutable_data_ptr());
    memory = reinterpret_cast<Exchanged*>(arrivals + kArrivalBytes / 4 * groups.count);
    const auto cleared = static_cast<size_t>(kArrivalBytes * groups.count);
    TORCHGRAFT_CHECK(cudaMemsetAsync(arrivals, 0, cleared, stream) == cudaSuccess,
                     "lltm: memory could not be cleared");
  }
  launch_groups<S>(kernel, groups, stream, pass, MmaWeightView<T>(weight), groups.blocks, groups.rows,
                   arrivals, memory);
}

}  // namespace torchgraft::lltm::cuda
