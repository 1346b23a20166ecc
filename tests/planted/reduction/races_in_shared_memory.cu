// Wrong: all threads of a block add to one number, and none waits for another.

#include "rows.cuh"

namespace planted {
namespace {

template <typename T>
__global__ void sum_row(const T* from, T* to, int64_t columns) {
  __shared__ accumulate_t<T> sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  sum += share_of(from + blockIdx.x * columns, columns);
  __syncthreads();
  if (threadIdx.x == 0) to[blockIdx.x] = static_cast<T>(sum);
}

Tensor races_in_shared_memory_cuda(Tensor input) {
  return sum_rows_with(input,
                       [](const auto* from, auto* to, unsigned rows, int64_t columns, cudaStream_t stream) {
                         sum_row<<<rows, kThreads, 0, stream>>>(from, to, columns);
                       });
}

}  // namespace

TORCHGRAFT_KERNEL(planted, CUDA, races_in_shared_memory, races_in_shared_memory_cuda)

}  // namespace planted
