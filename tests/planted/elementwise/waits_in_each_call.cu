// Wrong: the host waits until the kernel is done.

#include "scale.cuh"

namespace planted {
namespace {

Tensor waits_in_each_call_cuda(Tensor input, double factor) {
  return scale_with(
      input, factor, [](const auto* from, auto by, auto* to, int64_t count, cudaStream_t stream) {
        multiply_each<<<blocks_for(count), kThreads, 0, stream>>>(from, by, to, count);
        const cudaError_t error = cudaStreamSynchronize(stream);
        TORCHGRAFT_CHECK(error == cudaSuccess, "waits_in_each_call: ", cudaGetErrorString(error));
      });
}

}  // namespace

TORCHGRAFT_KERNEL(planted, CUDA, waits_in_each_call, waits_in_each_call_cuda)

}  // namespace planted
