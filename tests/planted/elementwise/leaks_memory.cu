// Wrong: what a call gets from the driver it does not give back.

#include "scale.cuh"

namespace planted {
namespace {

Tensor leaks_memory_cuda(Tensor input, double factor) {
  return scale_with(
      input, factor, [](const auto* from, auto by, auto* to, int64_t count, cudaStream_t stream) {
        void* kept = nullptr;
        TORCHGRAFT_CHECK(cudaMalloc(&kept, 1 << 20) == cudaSuccess, "leaks_memory: there is none left");
        multiply_each<<<blocks_for(count), kThreads, 0, stream>>>(from, by, to, count);
      });
}

}  // namespace

TORCHGRAFT_KERNEL(planted, CUDA, leaks_memory, leaks_memory_cuda)

}  // namespace planted
