// Wrong: launched on the default stream, whichever is current.

#include "scale.cuh"

namespace planted {
namespace {

Tensor uses_default_stream_cuda(Tensor input, double factor) {
  return scale_with(input, factor, [](const auto* from, auto by, auto* to, int64_t count, cudaStream_t) {
    multiply_each<<<blocks_for(count), kThreads>>>(from, by, to, count);
  });
}

}  // namespace

TORCHGRAFT_KERNEL(planted, CUDA, uses_default_stream, uses_default_stream_cuda)

}  // namespace planted
