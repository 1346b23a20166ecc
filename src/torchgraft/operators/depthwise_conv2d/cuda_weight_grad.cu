// depthwise_conv2d, weight gradient: two passes (cuda_weight_grad_sums.cuh). Blocks sum chunks of the batch
// into the workspace, then the chunks of each weight are added up, in a fixed order. Which kernels serve is
// told in cuda_choice.h; some make both passes themselves.

#include "cuda_choice.h"
#include "cuda_kernels.cuh"
#include "cuda_pass.cuh"
#include "cuda_planes.h"
#include "cuda_slide_stream.cuh"
#include "cuda_slide_weight_grad.h"
#include "cuda_small_planes.h"
#include "cuda_tensor_core_weight_grad.cuh"
#include "cuda_weight_grad_direct.cuh"
#include "cuda_weight_grad_general.h"
#include "cuda_weight_grad_strips.h"

namespace torchgraft::depthwise::cuda {

int64_t weight_grad_workspace(const Geometry& geometry, Layout layout) {
  return most_chunks(geometry, layout) * geometry.output_channels() * geometry.taps();
}

template <typename T>
void weight_grad(const T* output_grad, const T* input, T* weight_grad, accumulate_t<T>* workspace,
                 const Geometry& geometry, Layout layout, cudaStream_t stream) {
  constexpr bool kIsHalf = sizeof(T) == 2;
  constexpr bool kIsFast = !std::is_same_v<T, double>;
  const auto sum = [&](int chunks) { launch_sum_chunks(workspace, weight_grad, geometry, chunks, stream); };
  const Pass pass = make_pass(geometry, /*transposed=*/false, layout, output_grad, input);
  const Kernel kernel = choose_weight_grad(pass).kernel;
  switch (kernel) {
    case Kernel::weight_grad_small_planes:
      if constexpr (kIsFast) {
        return launch_weight_grad_small_planes(output_grad, input, weight_grad, workspace, geometry, stream);
      }
      break;
    case Kernel::weight_grad_tensor_core_planes:
      if constexpr (kIsHalf) {
        return sum(launch_tensor_core_weight_grad_planes(output_grad, input, workspace, geometry, stream));
      }
      break;
    case Kernel::weight_grad_tensor_core_slide:
      if constexpr (kIsHalf) {
        return launch_tensor_core_weight_grad_slide(output_grad, input, weight_grad, workspace, geometry,
                                                    stream);
      }
      break;
    case Kernel::weight_grad_tensor_core_channels_last:
      if constexpr (kIsHalf) {
        return sum(
            launch_tensor_core_weight_grad_channels_last(output_grad, input, workspace, geometry, stream));
      }
      break;
    case Kernel::weight_grad_strips:
      if constexpr (kIsFast) {
        return launch_weight_grad_strips(output_grad, input, weight_grad, workspace, geometry, stream);
      }
      break;
    case Kernel::weight_grad_large_planes:
      if constexpr (kIsFast) {
        return sum(launch_large_weight_grad_planes(output_grad, input, workspace, geometry, stream));
      }
      break;
    case Kernel::weight_grad_slide:
      if constexpr (kIsFast) {
        if (launch_slide_weight_grad(output_grad, input, weight_grad, workspace, geometry, stream)) return;
        // Of so few pixels that there are fewer chunks than a row takes blocks.
        if (takes_weight_grad_general(pass)) {
          return launch_weight_grad_general(output_grad, input, weight_grad, workspace, geometry, layout,
                                            stream);
        }
        return sum(launch_weight_grad_direct(output_grad, input, workspace, geometry, layout, stream));
      }
      break;
    case Kernel::weight_grad_general:
      return launch_weight_grad_general(output_grad, input, weight_grad, workspace, geometry, layout, stream);
    case Kernel::weight_grad_direct:
      return sum(launch_weight_grad_direct(output_grad, input, workspace, geometry, layout, stream));
    case Kernel::small_planes:
    case Kernel::tensor_core_planes:
    case Kernel::window_channels_last:
    case Kernel::slide_tensor_core:
    case Kernel::tensor_core_channels_last:
    case Kernel::batch_tensor_core:
    case Kernel::large_tensor_core:
    case Kernel::strips:
    case Kernel::whole_planes:
    case Kernel::large_planes:
    case Kernel::slide:
    case Kernel::gather_columns:
    case Kernel::gather_columns_channels_last:
    case Kernel::gather_small:
    case Kernel::gather_large:
    case Kernel::direct:
      break;
  }
  fail_without_launcher(kernel, static_cast<int>(sizeof(T)));
}

template void weight_grad(const double*, const double*, double*, double*, const Geometry&, Layout,
                          cudaStream_t);
template void weight_grad(const float*, const float*, float*, float*, const Geometry&, Layout, cudaStream_t);
template void weight_grad(const Half*, const Half*, Half*, float*, const Geometry&, Layout, cudaStream_t);
template void weight_grad(const BFloat16*, const BFloat16*, BFloat16*, float*, const Geometry&, Layout,
                          cudaStream_t);

}  // namespace torchgraft::depthwise::cuda
