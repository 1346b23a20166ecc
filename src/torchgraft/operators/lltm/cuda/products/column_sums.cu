// The sums of a matrix' columns, as of the bias: blocks sum shares of the rows, and one kernel adds those up,
// in their order.

#include <torchgraft/cuda.cuh>
#include <torchgraft/device.cuh>

#include <algorithm>

#include "../kernels.h"
#include "../split.cuh"

namespace torchgraft::lltm::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kLanes = 32;
constexpr int kRowsOfBlock = kThreads / kLanes;
constexpr int kInFlight = 8;  // elements of a thread
// At most so many blocks a multiprocessor, and so many shares.
constexpr int64_t kBlocksOfSums = 8;
constexpr int64_t kMostShares = 256;

// The sums of a matrix' columns over a share of its rows; and its largest finite magnitude as bits, which are
// ordered as such numbers are. A lane owns a column, and the warps share out the rows.
template <typename T, bool kLargest>
__global__ void __launch_bounds__(kThreads)
    products_column_sums_of_shares(const T* matrix, int64_t rows, int64_t columns, T* sums,
                                   unsigned* largest) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kLanes + threadIdx.x;
  const int64_t share = ceil_divide<int64_t>(rows, gridDim.y);
  const int64_t begin = blockIdx.y * share;
  const int64_t end = begin + share < rows ? begin + share : rows;
  T sum = T(0);
  float size = 0.0f;
  for (int64_t first = begin + threadIdx.y; first < end; first += kRowsOfBlock * kInFlight) {
    T values[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int64_t row = first + i * kRowsOfBlock;
      values[i] = row < end && column < columns ? matrix[row * columns + column] : T(0);
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      sum += values[i];
      if constexpr (kLargest) size = fmaxf(size, finite_magnitude(values[i]));
    }
  }
  __shared__ T of_warps[kRowsOfBlock][kLanes];
  of_warps[threadIdx.y][threadIdx.x] = sum;
  if constexpr (kLargest) {
    size = largest_of_warp(size);
    if (threadIdx.x == 0 && size > 0.0f) atomicMax(largest, __float_as_uint(size));
  }
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
#pragma unroll
  for (int warp = 1; warp < kRowsOfBlock; ++warp) sum += of_warps[warp][threadIdx.x];
  sums[blockIdx.y * columns + column] = sum;
}

// Adds the shares' sums up, in their order.
template <typename A, typename T>
__global__ void __launch_bounds__(kThreads)
    products_column_sums(const A* sums, int64_t shares, int64_t columns, T* results) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kLanes + threadIdx.x;
  A sum = A(0);
  if (column < columns) {
#pragma unroll 4
    for (int64_t share = threadIdx.y; share < shares; share += kRowsOfBlock) {
      sum += sums[share * columns + column];
    }
  }
  __shared__ A of_warps[kRowsOfBlock][kLanes];
  of_warps[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
#pragma unroll
  for (int warp = 1; warp < kRowsOfBlock; ++warp) sum += of_warps[warp][threadIdx.x];
  results[column] = static_cast<T>(sum);
}

}  // namespace

template <typename T>
Tensor column_sums(const Tensor& matrix, float* largest, cudaStream_t stream) {
  using A = accumulate_t<T>;
  const int64_t rows = matrix.size(0);
  const int64_t columns = matrix.size(1);
  Tensor result = empty_of({columns}, dtype_of<T>(), matrix);
  const int64_t tiles = ceil_divide<int64_t>(columns, kLanes);
  const int64_t blocks = kBlocksOfSums * current_device().multiprocessors;
  const int64_t shares =
      std::clamp<int64_t>(std::min(blocks / tiles, rows / (kRowsOfBlock * kInFlight)), 1, kMostShares);
  Tensor sums = empty_of({shares, columns}, matrix.scalar_type(), matrix);
  const dim3 block(kLanes, kRowsOfBlock);
  const dim3 grid(grid_of(tiles, "lltm_grads"), static_cast<unsigned>(shares));
  auto* const bits = reinterpret_cast<unsigned*>(largest);
  if constexpr (std::is_same_v<A, float>) {
    const auto kernel = largest == nullptr ? products_column_sums_of_shares<float, false>
                                           : products_column_sums_of_shares<float, true>;
    kernel<<<grid, block, 0, stream>>>(data<float>(matrix), rows, columns, mutable_data<float>(sums), bits);
  } else {
    products_column_sums_of_shares<A, false>
        <<<grid, block, 0, stream>>>(data<A>(matrix), rows, columns, mutable_data<A>(sums), bits);
  }
  check_launch("lltm_grads");
  products_column_sums<A, T>
      <<<grid.x, block, 0, stream>>>(data<A>(sums), shares, columns, mutable_data<T>(result));
  check_launch("lltm_grads");
  return result;
}

template Tensor column_sums<double>(const Tensor&, float*, cudaStream_t);
template Tensor column_sums<float>(const Tensor&, float*, cudaStream_t);
template Tensor column_sums<Half>(const Tensor&, float*, cudaStream_t);
template Tensor column_sums<BFloat16>(const Tensor&, float*, cudaStream_t);

}  // namespace torchgraft::lltm::cuda
