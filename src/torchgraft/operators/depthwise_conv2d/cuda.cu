// depthwise_conv2d and its two gradients on CUDA: host functions and registration. The kernels are in
// cuda_forward.cu, cuda_input_grad.cu and cuda_weight_grad.cu.

#include <torchgraft/dispatch.h>
#include <torchgraft/layout.h>
#include <torchgraft/registration.h>
#include <torchgraft/cuda.cuh>
#include <torchgraft/relayout.cuh>

#include "cuda_choice.h"
#include "cuda_kernels.cuh"
#include "geometry.h"

namespace torchgraft::depthwise {
namespace {

// The layout that kernels are given.
template <typename T>
Layout layout_of_kernels(const Geometry& geometry, Layout asked) {
  return cuda::planes_pay(geometry, sizeof(T)) ? Layout::contiguous : asked;
}

Tensor forward_cuda(Tensor input, Tensor weight, std::optional<Tensor> bias, int64_t stride_height,
                    int64_t stride_width, int64_t padding_top, int64_t padding_left, int64_t padding_bottom,
                    int64_t padding_right, int64_t dilation_height, int64_t dilation_width) {
  const Geometry geometry =
      forward_geometry(input, weight, bias,
                       {stride_height, stride_width, padding_top, padding_left, padding_bottom, padding_right,
                        dilation_height, dilation_width});
  return dispatch_floating(input.scalar_type(), "depthwise_conv2d", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Launch scope(input);
    const Layout asked = layout_of(input);
    const Layout layout = layout_of_kernels<T>(geometry, asked);
    Tensor output = empty_images(geometry.batch, geometry.output_channels(), geometry.height.output,
                                 geometry.width.output, layout, input);
    const auto finished = [&] { return layout == asked ? output : relayout(output, asked, scope.stream()); };
    if (geometry.batch == 0) return finished();
    input = to_layout(input, layout, scope.stream());
    weight = to_contiguous(weight);
    if (bias) bias = to_contiguous(*bias);
    cuda::forward(static_cast<const T*>(input.const_data_ptr()),
                  static_cast<const T*>(weight.const_data_ptr()),
                  bias ? static_cast<const T*>(bias->const_data_ptr()) : nullptr,
                  static_cast<T*>(output.mutable_data_ptr()), geometry, layout, scope.stream());
    return finished();
  });
}

Tensor input_grad_cuda(Tensor output_grad, Tensor weight, int64_t channels, int64_t height, int64_t width,
                       bool channels_last, int64_t stride_height, int64_t stride_width, int64_t padding_top,
                       int64_t padding_left, int64_t padding_bottom, int64_t padding_right,
                       int64_t dilation_height, int64_t dilation_width) {
  const Geometry geometry =
      input_grad_geometry(output_grad, weight, channels, height, width,
                          {stride_height, stride_width, padding_top, padding_left, padding_bottom,
                           padding_right, dilation_height, dilation_width});
  return dispatch_floating(output_grad.scalar_type(), "depthwise_conv2d_input_grad", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Launch scope(output_grad);
    const Layout asked = channels_last ? Layout::channels_last : Layout::contiguous;
    const Layout layout = layout_of_kernels<T>(geometry, asked);
    Tensor result = empty_images(geometry.batch, channels, height, width, layout, output_grad);
    const auto finished = [&] { return layout == asked ? result : relayout(result, asked, scope.stream()); };
    if (geometry.batch == 0) return finished();
    output_grad = to_layout(output_grad, layout, scope.stream());
    weight = to_contiguous(weight);
    cuda::input_grad(static_cast<const T*>(output_grad.const_data_ptr()),
                     static_cast<const T*>(weight.const_data_ptr()),
                     static_cast<T*>(result.mutable_data_ptr()), geometry, layout, scope.stream());
    return finished();
  });
}

Tensor weight_grad_cuda(Tensor output_grad, Tensor input, int64_t kernel_height, int64_t kernel_width,
                        int64_t stride_height, int64_t stride_width, int64_t padding_top,
                        int64_t padding_left, int64_t padding_bottom, int64_t padding_right,
                        int64_t dilation_height, int64_t dilation_width) {
  const Geometry geometry =
      weight_grad_geometry(output_grad, input, kernel_height, kernel_width,
                           {stride_height, stride_width, padding_top, padding_left, padding_bottom,
                            padding_right, dilation_height, dilation_width});
  return dispatch_floating(input.scalar_type(), "depthwise_conv2d_weight_grad", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Launch scope(input);
    const Layout layout = layout_of_kernels<T>(geometry, layout_of(input));
    Tensor result =
        empty_images(geometry.output_channels(), 1, kernel_height, kernel_width, Layout::contiguous, input);
    if (geometry.batch == 0) {
      torch::stable::zero_(result);
      return result;
    }
    input = to_layout(input, layout, scope.stream());
    output_grad = to_layout(output_grad, layout, scope.stream());
    const int64_t partial_sums = cuda::weight_grad_workspace(geometry, layout);
    const Tensor workspace = empty_workspace<accumulate_t<T>>(partial_sums, input);
    cuda::weight_grad(
        static_cast<const T*>(output_grad.const_data_ptr()), static_cast<const T*>(input.const_data_ptr()),
        static_cast<T*>(result.mutable_data_ptr()),
        static_cast<accumulate_t<T>*>(workspace.mutable_data_ptr()), geometry, layout, scope.stream());
    return result;
  });
}

}  // namespace

TORCHGRAFT_KERNEL(torchgraft, CUDA, depthwise_conv2d, forward_cuda)
TORCHGRAFT_KERNEL(torchgraft, CUDA, depthwise_conv2d_input_grad, input_grad_cuda)
TORCHGRAFT_KERNEL(torchgraft, CUDA, depthwise_conv2d_weight_grad, weight_grad_cuda)

}  // namespace torchgraft::depthwise
