// The control: the sum of each row of a matrix.

#include "rows.cuh"

namespace planted {
namespace {

template <typename T>
__global__ void sum_row(const T* from, T* to, int64_t columns) {
  __shared__ accumulate_t<T> shares[kThreads];
  shares[threadIdx.x] = share_of(from + blockIdx.x * columns, columns);
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) shares[threadIdx.x] += shares[threadIdx.x + half];
  }
  if (threadIdx.x == 0) to[blockIdx.x] = static_cast<T>(shares[0]);
}

Tensor row_sum_cuda(Tensor input) {
  return sum_rows_with(input,
                       [](const auto* from, auto* to, unsigned rows, int64_t columns, cudaStream_t stream) {
                         sum_row<<<rows, kThreads, 0, stream>>>(from, to, columns);
                       });
}

}  // namespace

TORCHGRAFT_KERNEL(planted, CUDA, row_sum, row_sum_cuda)

}  // namespace planted
