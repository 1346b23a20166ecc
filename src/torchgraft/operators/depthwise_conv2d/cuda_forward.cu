// depthwise_conv2d, forward. Which kernels serve is told in cuda_choice.h.

#include "cuda_correlate.cuh"

namespace torchgraft::depthwise::cuda {

template <typename T>
void forward(const T* input, const T* weight, const T* bias, T* output, const Geometry& geometry,
             Layout layout, cudaStream_t stream) {
  correlate<T, /*kTransposed=*/false>(input, weight, bias, output, geometry, layout, stream);
}

template void forward(const double*, const double*, const double*, double*, const Geometry&, Layout,
                      cudaStream_t);
template void forward(const float*, const float*, const float*, float*, const Geometry&, Layout,
                      cudaStream_t);
template void forward(const Half*, const Half*, const Half*, Half*, const Geometry&, Layout, cudaStream_t);
template void forward(const BFloat16*, const BFloat16*, const BFloat16*, BFloat16*, const Geometry&, Layout,
                      cudaStream_t);

}  // namespace torchgraft::depthwise::cuda
