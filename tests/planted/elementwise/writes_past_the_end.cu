// Wrong: one thread more writes than there are elements.

#include "scale.cuh"

namespace planted {
namespace {

template <typename T>
__global__ void multiply_one_more(const T* from, accumulate_t<T> by, T* to, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i <= count) to[i] = times(from[i < count ? i : 0], by);
}

Tensor writes_past_the_end_cuda(Tensor input, double factor) {
  return scale_with(input, factor,
                    [](const auto* from, auto by, auto* to, int64_t count, cudaStream_t stream) {
                      multiply_one_more<<<blocks_for(count + 1), kThreads, 0, stream>>>(from, by, to, count);
                    });
}

}  // namespace

TORCHGRAFT_KERNEL(planted, CUDA, writes_past_the_end, writes_past_the_end_cuda)

}  // namespace planted
