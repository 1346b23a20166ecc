// depthwise_conv2d, input gradient. Which kernels serve is told in cuda_choice.h.

#include "cuda_correlate.cuh"

namespace torchgraft::depthwise::cuda {

template <typename T>
void input_grad(const T* output_grad, const T* weight, T* input_grad, const Geometry& geometry, Layout layout,
                cudaStream_t stream) {
  constexpr const T* kNoBias = nullptr;
  correlate<T, /*kTransposed=*/true>(output_grad, weight, kNoBias, input_grad, geometry, layout, stream);
}

template void input_grad(const double*, const double*, double*, const Geometry&, Layout, cudaStream_t);
template void input_grad(const float*, const float*, float*, const Geometry&, Layout, cudaStream_t);
template void input_grad(const Half*, const Half*, Half*, const Geometry&, Layout, cudaStream_t);
template void input_grad(const BFloat16*, const BFloat16*, BFloat16*, const Geometry&, Layout, cudaStream_t);

}  // namespace torchgraft::depthwise::cuda
