// Forward pass and input gradient: each family of kernels serves both, and is launched here. The input
// gradient gathers: each input position adds up the output gradients that it had a part in, so that nothing
// is written twice and no sum depends on timing.
#pragma once

#include "cuda_choice.h"
#include "cuda_direct.cuh"
#include "cuda_gather.h"
#include "cuda_kernels.cuh"
#include "cuda_pass.cuh"
#include "cuda_planes.h"
#include "cuda_slide_channels_last.h"
#include "cuda_slide_stream.cuh"
#include "cuda_slide_tensor_core.h"
#include "cuda_small_planes.h"
#include "cuda_strips.h"
#include "cuda_tensor_core.cuh"
#include "cuda_tensor_core_batch.h"
#include "cuda_tensor_core_large.h"
#include "cuda_tensor_core_weight_grad.cuh"
#include "cuda_whole_planes.h"
#include "cuda_window_channels_last.h"

namespace torchgraft::depthwise::cuda {

template <typename T, bool kTransposed>
void correlate(const T* source, const T* weight, const T* bias, T* result, const Geometry& geometry,
               Layout layout, cudaStream_t stream) {
  const Pass pass = make_pass(geometry, kTransposed, layout, source, static_cast<const T*>(result));
  const Kernel kernel = choose(pass).kernel;
  if constexpr (sizeof(T) == 2) {
    switch (kernel) {
      case Kernel::tensor_core_planes:
        return launch_tensor_core_planes(source, weight, bias, result, geometry, kTransposed, stream);
      case Kernel::slide_tensor_core:
        return launch_slide_tensor_core(source, weight, bias, result, geometry, kTransposed, stream);
      case Kernel::tensor_core_channels_last:
        return launch_tensor_core_channels_last(source, weight, bias, result, geometry, kTransposed, stream);
      case Kernel::batch_tensor_core:
        return launch_tensor_core_batch(source, weight, bias, result, geometry, kTransposed, stream);
      case Kernel::large_tensor_core:
        return launch_tensor_core_large(source, weight, bias, result, geometry, kTransposed, stream);
      default:
        break;
    }
  }
  if constexpr (std::is_same_v<T, float>) {
    if (kernel == Kernel::whole_planes) {
      return launch_whole_planes(source, weight, bias, result, geometry, kTransposed, stream);
    }
  }
  if constexpr (!std::is_same_v<T, double>) {
    switch (kernel) {
      case Kernel::small_planes:
        return launch_small_planes(source, weight, bias, result, geometry, kTransposed, stream);
      case Kernel::strips:
        return launch_strips(source, weight, bias, result, geometry, kTransposed, stream);
      case Kernel::large_planes:
        return launch_large_planes(source, weight, bias, result, geometry, kTransposed, stream);
      case Kernel::window_channels_last:
        return launch_window_channels_last<T, kTransposed>(source, weight, bias, result, geometry, stream);
      case Kernel::slide:
        return launch_slide_channels_last<T, kTransposed>(source, weight, bias, result, geometry, stream);
      default:
        break;
    }
  }
  if (kernel == Kernel::direct) {
    return launch_direct<T, kTransposed>(source, weight, bias, result, geometry, layout, stream);
  }
  launch_gather(kernel, source, weight, bias, result, geometry, layout, kTransposed, stream);
}

}  // namespace torchgraft::depthwise::cuda
