// Launches of cuda_planes.cuh and cuda_weight_grad_planes.cuh.

#include "cuda_planes.h"

#include "cuda_planes.cuh"
#include "cuda_weight_grad_planes.cuh"

namespace torchgraft::depthwise::cuda {
template <typename T>
void launch_large_planes(const T* source, const T* weight, const T* bias, T* result, const Geometry& geometry,
                         bool transposed, cudaStream_t stream) {
  const LargeKernelPlan plan = plan_large_kernel(geometry, transposed);
  const PlanesParameters parameters = planes_parameters(plan.tiling, geometry, transposed);
  const char* name = transposed ? "depthwise_conv2d_input_grad" : "depthwise_conv2d";
  const auto kernel = !transposed                ? large_kernel_planes<T, false, false>
                      : geometry.multiplier == 1 ? large_kernel_planes<T, true, false>
                                                 : large_kernel_planes<T, true, true>;
  kernel<<<grid_of(planes_blocks(parameters), name), round_to_warps(plan.tiling.patches()),
           plan.elements * sizeof(float), stream>>>(source, weight, bias, result, parameters, plan.kernel);
  check_launch(name);
}

template <typename T>
int launch_large_weight_grad_planes(const T* output_grad, const T* input, float* partial,
                                    const Geometry& geometry, cudaStream_t stream) {
  const LargeWeightGradPlan plan = plan_large_weight_grad(geometry);
  const WeightGradParameters parameters = weight_grad_parameters(plan.tiling, geometry);
  const char* name = "depthwise_conv2d_weight_grad";
  const int64_t blocks = geometry.output_channels() * plan.groups.blocks * parameters.chunks.count;
  large_weight_grad_planes<T><<<grid_of(blocks, name), plan.threads, plan.elements * sizeof(float), stream>>>(
      output_grad, input, partial, parameters, plan.groups);
  check_launch(name);
  return parameters.chunks.count;
}

template void launch_large_planes(const float*, const float*, const float*, float*, const Geometry&, bool,
                                  cudaStream_t);
template void launch_large_planes(const Half*, const Half*, const Half*, Half*, const Geometry&, bool,
                                  cudaStream_t);
template void launch_large_planes(const BFloat16*, const BFloat16*, const BFloat16*, BFloat16*,
                                  const Geometry&, bool, cudaStream_t);
template int launch_large_weight_grad_planes(const float*, const float*, float*, const Geometry&,
                                             cudaStream_t);
template int launch_large_weight_grad_planes(const Half*, const Half*, float*, const Geometry&, cudaStream_t);
template int launch_large_weight_grad_planes(const BFloat16*, const BFloat16*, float*, const Geometry&,
                                             cudaStream_t);

}  // namespace torchgraft::depthwise::cuda
