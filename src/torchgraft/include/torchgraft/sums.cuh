// CUDA kernels: sums over threads and over blocks whose bits are the same at each run on one GPU.
//
// A sum of floating-point numbers depends on the order of its additions: atomics add in the order in which
// blocks happen to run. Here threads are added in a fixed order, by shuffles and in shared memory, and blocks
// leave partial sums in memory that a second kernel adds up in their order.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda.cuh"
#include "dispatch.h"

namespace torchgraft {

namespace internal {
constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffff;
}  // namespace internal

// Several sums over the threads that differ only in threadIdx.x. Each of these threads gets the sums. All
// threads of the block must call it. blockDim.x is a power of two up to 32, or a multiple of 32 up to
// kMostThreads with blockDim.y equal to 1. If a kernel calls it several times, `turn` must alternate between
// 0 and 1, so that no thread writes where another still reads.
template <int kMostThreads = 1024, typename A, int kSums>
__device__ void sum_over_x(A (&sums)[kSums], int turn = 0) {
  using internal::kWarp;
#pragma unroll
  for (int s = 0; s < kSums; ++s) {
    for (int offset = min(static_cast<int>(blockDim.x), kWarp) / 2; offset > 0; offset /= 2) {
      sums[s] += __shfl_xor_sync(internal::kAllLanes, sums[s], offset);
    }
  }
  if (blockDim.x <= kWarp) return;
  __shared__ A of_warps[2][kMostThreads / internal::kWarp][kSums];
  if (threadIdx.x % kWarp == 0) {
#pragma unroll
    for (int s = 0; s < kSums; ++s) of_warps[turn][threadIdx.x / kWarp][s] = sums[s];
  }
  __syncthreads();
#pragma unroll
  for (int s = 0; s < kSums; ++s) {
    sums[s] = 0;
    for (int warp = 0; warp < static_cast<int>(blockDim.x) / kWarp; ++warp) {
      sums[s] += of_warps[turn][warp][s];
    }
  }
}

// Each of several sums over the threads that differ in threadIdx.y alone; whether this thread has them
// afterwards, which one of these threads does. blockDim is as for sum_over_x, and its threads are a multiple
// of 32.
template <typename A, int kFirst, int kSecond>
__device__ bool sum_over_y(A (&sums)[kFirst][kSecond]) {
  using internal::kWarp;
  if (blockDim.x > kWarp) return true;
  const int thread = threadIdx.y * blockDim.x + threadIdx.x;
  const int warps = static_cast<int>(blockDim.x * blockDim.y) / kWarp;
  __shared__ A of_warps[kFirst][kSecond][internal::kWarp];
#pragma unroll
  for (int v = 0; v < kFirst; ++v) {
#pragma unroll
    for (int e = 0; e < kSecond; ++e) {
      for (int offset = blockDim.x; offset < kWarp; offset *= 2) {
        sums[v][e] += __shfl_xor_sync(internal::kAllLanes, sums[v][e], offset);
      }
    }
  }
  for (int warp = 0; warp < warps; ++warp) {
    if (thread / kWarp == warp) {
#pragma unroll
      for (int v = 0; v < kFirst; ++v) {
#pragma unroll
        for (int e = 0; e < kSecond; ++e) {
          A& sum = of_warps[v][e][thread % kWarp];
          if (warp > 0) sums[v][e] += sum;
          sum = sums[v][e];
        }
      }
    }
    __syncthreads();
  }
  return thread / kWarp == warps - 1 && thread % kWarp < static_cast<int>(blockDim.x);
}

namespace internal {

// The results of several sums, as one argument of a kernel.
template <typename T, int kSums>
struct Results {
  T* each[kSums];
};

// A row of threads adds up every thirty-second part, and the first row the sums of all. The columns of all
// sums stand side by side.
template <typename T, int kSums>
__global__ void __launch_bounds__(kWarp* kWarp)
    sum_partials(const accumulate_t<T>* __restrict__ partials, int parts, int64_t columns,
                 Results<T, kSums> results) {
  using A = accumulate_t<T>;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  const int64_t all = kSums * columns;
  __shared__ A sums[kWarp][kWarp];
  A sum = 0;
  if (column < all) {
    for (int part = threadIdx.y; part < parts; part += kWarp) sum += partials[part * all + column];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= all) return;
  for (int y = 1; y < kWarp; ++y) sum += sums[y][threadIdx.x];
  // An index that is known when it is compiled: the array stays in registers.
#pragma unroll
  for (int s = 0; s < kSums; ++s) {
    const int64_t at = column - s * columns;
    if (at >= 0 && at < columns && results.each[s] != nullptr) results.each[s][at] = static_cast<T>(sum);
  }
}

}  // namespace internal

// For each s, results[s][c] = the sum of partials[part][s][c] over all parts, on a stream: the gradients of a
// weight and of a bias, in one launch. Each part is what a block has written to a workspace
// (`empty_workspace`): a row of `columns` sums for each s, one behind the other. Without parts the results
// are zero. A result that is a null pointer is not wanted, and is not written.
template <typename T, int kSums>
void sum_partials(const accumulate_t<T>* partials, int parts, int64_t columns, T* const (&results)[kSums],
                  cudaStream_t stream, const char* kernel) {
  if (columns == 0) return;
  internal::Results<T, kSums> all;
  for (int s = 0; s < kSums; ++s) all.each[s] = results[s];
  const unsigned groups = grid_of(ceil_divide<int64_t>(kSums * columns, internal::kWarp), kernel);
  internal::sum_partials<T, kSums>
      <<<groups, dim3(internal::kWarp, internal::kWarp), 0, stream>>>(partials, parts, columns, all);
  check_launch(kernel);
}

// The same for one sum: each part is a row of `columns` sums.
template <typename T>
  requires(!std::is_pointer_v<T>)
void sum_partials(const accumulate_t<T>* partials, int parts, int64_t columns, T* result, cudaStream_t stream,
                  const char* kernel) {
  T* const results[] = {result};
  sum_partials<T>(partials, parts, columns, results, stream, kernel);
}

}  // namespace torchgraft
