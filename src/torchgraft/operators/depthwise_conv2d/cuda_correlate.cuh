// Forward pass and input gradient: each family of kernels serves both, and is launched here. The input
// gradient gathers: each input position adds up the output gradients that it had a part in, so that nothing
// is written twice and no sum depends on timing.
#pragma once

#include "cuda_choice.h"
#include "cuda_direct.cuh"
#include "cuda_kernels.cuh"
#include "cuda_slide_stream.cuh"

namespace torchgraft::depthwise::cuda {

template <typename T, bool kTransposed>
void correlate(const T* source, const T* weight, const T* bias, T* result, const Geometry& geometry,
               Layout layout, cudaStream_t stream) {
  const Images images = {layout, static_cast<int>(sizeof(T)), common_alignment(source, result),
                         sizeof(T) == 2 && has_half_tensor_cores()};
  const Family family = choose(geometry, images, kTransposed);
  if constexpr (sizeof(T) == 2) {
    if (family == Family::tensor_core) {
      return launch_tensor_core(source, weight, bias, result, geometry, layout, kTransposed, stream);
    }
  }
  if constexpr (sizeof(T) == 2) {
    if (family == Family::large_tensor_core) {
      return launch_tensor_core_large(source, weight, bias, result, geometry, kTransposed, stream);
    }
  }
  if constexpr (!std::is_same_v<T, double>) {
    switch (family) {
      case Family::small_planes:
        return launch_small_planes(source, weight, bias, result, geometry, kTransposed, stream);
      case Family::strips:
        return launch_strips(source, weight, bias, result, geometry, kTransposed, stream);
      case Family::large_planes:
        return launch_large_planes(source, weight, bias, result, geometry, kTransposed, stream);
      case Family::slide:
        return launch_slide_channels_last<T, kTransposed>(source, weight, bias, result, geometry, stream);
      default:
        break;
    }
  }
  if (family == Family::general) {
    return launch_gather(source, weight, bias, result, geometry, layout, kTransposed, stream);
  }
  launch_direct<T, kTransposed>(source, weight, bias, result, geometry, layout, stream);
}

}  // namespace torchgraft::depthwise::cuda
