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

// By a kernel that takes the pass. Every kernel has its case here, and what none of them launches is an
// error: a kernel of the weight gradient, or one that is not compiled for T.
template <typename T, bool kTransposed>
void launch_correlation(Kernel kernel, const T* source, const T* weight, const T* bias, T* result,
                        const Geometry& geometry, Layout layout, cudaStream_t stream) {
  constexpr bool kIsHalf = sizeof(T) == 2;
  constexpr bool kIsFloat = std::is_same_v<T, float>;
  // float64 is for checking gradients, not for speed.
  constexpr bool kIsFast = kIsHalf || kIsFloat;
  switch (kernel) {
    case Kernel::small_planes:
      if constexpr (kIsFast) {
        return launch_small_planes(source, weight, bias, result, geometry, kTransposed, stream);
      }
      break;
    case Kernel::tensor_core_planes:
      if constexpr (kIsHalf) {
        return launch_tensor_core_planes(source, weight, bias, result, geometry, kTransposed, stream);
      }
      break;
    case Kernel::window_channels_last:
      if constexpr (kIsFast) {
        return launch_window_channels_last<T, kTransposed>(source, weight, bias, result, geometry, stream);
      }
      break;
    case Kernel::slide_tensor_core:
      if constexpr (kIsHalf) {
        return launch_slide_tensor_core(source, weight, bias, result, geometry, kTransposed, stream);
      }
      break;
    case Kernel::tensor_core_channels_last:
      if constexpr (kIsHalf) {
        return launch_tensor_core_channels_last(source, weight, bias, result, geometry, kTransposed, stream);
      }
      break;
    case Kernel::batch_tensor_core:
      if constexpr (kIsHalf) {
        return launch_tensor_core_batch(source, weight, bias, result, geometry, kTransposed, stream);
      }
      break;
    case Kernel::large_tensor_core:
      if constexpr (kIsHalf) {
        return launch_tensor_core_large(source, weight, bias, result, geometry, kTransposed, stream);
      }
      break;
    case Kernel::strips:
      if constexpr (kIsFast) {
        return launch_strips(source, weight, bias, result, geometry, kTransposed, stream);
      }
      break;
    case Kernel::whole_planes:
      if constexpr (kIsFloat) {
        return launch_whole_planes(source, weight, bias, result, geometry, kTransposed, stream);
      }
      break;
    case Kernel::large_planes:
      if constexpr (kIsFast) {
        return launch_large_planes(source, weight, bias, result, geometry, kTransposed, stream);
      }
      break;
    case Kernel::slide:
      if constexpr (kIsFast) {
        return launch_slide_channels_last<T, kTransposed>(source, weight, bias, result, geometry, stream);
      }
      break;
    case Kernel::gather_columns:
    case Kernel::gather_columns_channels_last:
      if constexpr (kIsFast) {
        return launch_gather(kernel, source, weight, bias, result, geometry, layout, kTransposed, stream);
      }
      break;
    case Kernel::gather_small:
    case Kernel::gather_large:
      return launch_gather(kernel, source, weight, bias, result, geometry, layout, kTransposed, stream);
    case Kernel::direct:
      return launch_direct<T, kTransposed>(source, weight, bias, result, geometry, layout, stream);
    case Kernel::weight_grad_small_planes:
    case Kernel::weight_grad_tensor_core_planes:
    case Kernel::weight_grad_tensor_core_slide:
    case Kernel::weight_grad_tensor_core_channels_last:
    case Kernel::weight_grad_strips:
    case Kernel::weight_grad_large_planes:
    case Kernel::weight_grad_slide:
    case Kernel::weight_grad_general:
    case Kernel::weight_grad_direct:
      break;
  }
  fail_without_launcher(kernel, static_cast<int>(sizeof(T)));
}

template <typename T, bool kTransposed>
void correlate(const T* source, const T* weight, const T* bias, T* result, const Geometry& geometry,
               Layout layout, cudaStream_t stream) {
  const Pass pass = make_pass(geometry, kTransposed, layout, source, static_cast<const T*>(result));
  launch_correlation<T, kTransposed>(choose(pass).kernel, source, weight, bias, result, geometry, layout,
                                     stream);
}

}  // namespace torchgraft::depthwise::cuda
