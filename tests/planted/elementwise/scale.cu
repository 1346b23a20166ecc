// The control: every element times a factor.

#include "scale.cuh"

namespace planted {
namespace {

Tensor scale_cuda(Tensor input, double factor) {
  return scale_with(input, factor,
                    [](const auto* from, auto by, auto* to, int64_t count, cudaStream_t stream) {
                      multiply_each<<<blocks_for(count), kThreads, 0, stream>>>(from, by, to, count);
                    });
}

}  // namespace

TORCHGRAFT_KERNEL(planted, CUDA, scale, scale_cuda)

}  // namespace planted
