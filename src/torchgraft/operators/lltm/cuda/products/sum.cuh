// A kernel that adds up products of parts, and rounds the sum.
#pragma once

#include <torchgraft/cuda.cuh>

#include "../../host.h"
#include "../split.cuh"

namespace torchgraft::lltm::cuda {

constexpr int kSumThreads = 256;

// The sum of `count` matrices of float that are `distance` apart, divided by the power of two for `largest`
// where that is not null. A thread has kElements elements, and reads kElements * kParts numbers at once.
template <typename T, int kElements, int kParts>
__global__ void __launch_bounds__(kSumThreads) products_sum(const float* sums, int count, int64_t distance,
                                                            const float* largest, T* results, int64_t size) {
  const float power = largest == nullptr ? 1.0f : 1.0f / power_to_fill_half(*largest);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kSumThreads * kElements + threadIdx.x;
  float values[kElements] = {};
#pragma unroll kParts
  for (int part = 0; part < count; ++part) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const int64_t index = first + i * kSumThreads;
      if (index < size) values[i] += sums[part * distance + index];
    }
  }
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    const int64_t index = first + i * kSumThreads;
    if (index < size) results[index] = static_cast<T>(values[i] * power);
  }
}

// `sums` has a first dimension more than `result`, which has elements, and may have more rows.
template <typename T, int kElements, int kParts>
void launch_products_sum(const Tensor& sums, const float* largest, Tensor& result, cudaStream_t stream) {
  const int64_t size = result.numel();
  const unsigned blocks = grid_of(ceil_divide<int64_t>(size, kSumThreads * kElements), "lltm");
  products_sum<T, kElements, kParts><<<blocks, kSumThreads, 0, stream>>>(
      data<float>(sums), static_cast<int>(sums.size(0)), sums.size(1) * sums.size(2), largest,
      mutable_data<T>(result), size);
  check_launch("lltm");
}

}  // namespace torchgraft::lltm::cuda
