// shift and its gradients on CUDA: host functions and registration. The kernels are in cuda_planes.cu,
// cuda_channels_last.cu and, for what those do not serve, cuda_direct.cu.

#include <torchgraft/registration.h>
#include <torchgraft/cuda.cuh>
#include <torchgraft/relayout.cuh>

#include <tuple>

#include "cuda_kernels.h"
#include "cuda_policy.h"

namespace torchgraft::shift {
namespace {

template <typename T>
const T* data(const Tensor& tensor) {
  return static_cast<const T*>(tensor.const_data_ptr());
}

template <typename T>
T* mutable_data(Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

template <typename T>
cuda::Problem problem_of(const cuda::Arguments<T>& arguments, cuda::Pass pass) {
  const Device& device = current_device();
  return {arguments.geometry,
          pass,
          arguments.layout == Layout::channels_last,
          sizeof(T),
          device.multiprocessors,
          device.shared_of_block,
          device.shared_of_multiprocessor};
}

// A kernel and how it cuts its work.
struct Chosen {
  cuda::Kernel kernel;
  cuda::Plan plan;

  explicit Chosen(const cuda::Problem& problem)
      : kernel(choose(cuda::kRules, problem).kernel), plan(plan_of(kernel, problem)) {}
};

template <typename T>
void launch(const cuda::Arguments<T>& arguments, cuda::Pass pass, const Chosen& chosen,
            accumulate_t<T>* partial, cudaStream_t stream) {
  switch (chosen.kernel) {
    case cuda::Kernel::planes:
      return cuda::launch_planes(arguments, pass, chosen.plan, partial, stream);
    case cuda::Kernel::channels_last:
      return cuda::launch_channels_last(arguments, pass, chosen.plan, partial, stream);
    case cuda::Kernel::direct:
      return cuda::launch_direct(arguments, pass, chosen.plan, partial, stream);
  }
}

// Where nothing but images is computed.
template <typename T>
void resample(const cuda::Arguments<T>& arguments, cuda::Pass pass, cudaStream_t stream) {
  launch<T>(arguments, pass, Chosen(problem_of(arguments, pass)), nullptr, stream);
}

// The offsets' gradients too.
template <typename T>
void resample_and_sum(const cuda::Arguments<T>& arguments, cuda::Pass pass, Tensor& x_grad, Tensor& y_grad,
                      const Launch& scope) {
  const Geometry& geometry = arguments.geometry;
  const Chosen chosen(problem_of(arguments, pass));
  const int64_t parts = chosen.plan.parts;
  Tensor partial = empty_workspace<accumulate_t<T>>(2 * geometry.channels * parts, x_grad);
  launch(arguments, pass, chosen, mutable_data<accumulate_t<T>>(partial), scope.stream());
  cuda::launch_add_parts(arguments, data<accumulate_t<T>>(partial), parts, mutable_data<T>(x_grad),
                         mutable_data<T>(y_grad), scope.stream());
}

Tensor empty_offsets(int64_t channels, const Tensor& like) {
  const int64_t stride = 1;
  return empty_strided(&channels, &stride, 1, like);
}

Tensor shift_cuda(Tensor input, Tensor x_offset, Tensor y_offset, int64_t stride) {
  const Geometry geometry = forward_geometry(input, x_offset, y_offset, stride);
  return dispatch_floating(input.scalar_type(), "shift", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Launch scope(input);
    const Layout layout = layout_of(input);
    Tensor output =
        empty_images(geometry.batch, geometry.channels, geometry.steps, geometry.width, layout, input);
    if (geometry.results() == 0) return output;
    input = to_layout(input, layout, scope.stream());
    x_offset = to_contiguous(x_offset);
    y_offset = to_contiguous(y_offset);
    resample<T>({data<T>(input), nullptr, data<T>(x_offset), data<T>(y_offset), mutable_data<T>(output),
                 geometry, layout},
                cuda::Pass::forward, scope.stream());
    return output;
  });
}

Tensor input_grad_cuda(Tensor output_grad, Tensor x_offset, Tensor y_offset, int64_t height,
                       bool channels_last, int64_t stride) {
  const Geometry geometry = input_grad_geometry(output_grad, x_offset, y_offset, height, stride);
  return dispatch_floating(output_grad.scalar_type(), "shift_input_grad", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Launch scope(output_grad);
    const Layout layout = channels_last ? Layout::channels_last : Layout::contiguous;
    Tensor input_grad =
        empty_images(geometry.batch, geometry.channels, height, geometry.width, layout, output_grad);
    if (geometry.results() == 0) return torch::stable::zero_(input_grad);
    output_grad = to_layout(output_grad, layout, scope.stream());
    x_offset = to_contiguous(x_offset);
    y_offset = to_contiguous(y_offset);
    resample<T>({data<T>(output_grad), nullptr, data<T>(x_offset), data<T>(y_offset),
                 mutable_data<T>(input_grad), geometry, layout},
                cuda::Pass::input_grad, scope.stream());
    return input_grad;
  });
}

std::tuple<Tensor, Tensor> offset_grad_cuda(Tensor output_grad, Tensor input, Tensor x_offset,
                                            Tensor y_offset, int64_t stride) {
  const Geometry geometry = backward_geometry(output_grad, input, x_offset, y_offset, stride);
  return dispatch_floating(input.scalar_type(), "shift_offset_grad", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Launch scope(input);
    const Layout layout = layout_of(input);
    Tensor x_grad = empty_offsets(geometry.channels, input);
    Tensor y_grad = empty_offsets(geometry.channels, input);
    if (geometry.results() == 0) {
      return std::make_tuple(torch::stable::zero_(x_grad), torch::stable::zero_(y_grad));
    }
    output_grad = to_layout(output_grad, layout, scope.stream());
    input = to_layout(input, layout, scope.stream());
    x_offset = to_contiguous(x_offset);
    y_offset = to_contiguous(y_offset);
    resample_and_sum<T>({data<T>(output_grad), data<T>(input), data<T>(x_offset), data<T>(y_offset), nullptr,
                         geometry, layout},
                        cuda::Pass::offset_grad, x_grad, y_grad, scope);
    return std::make_tuple(x_grad, y_grad);
  });
}

std::tuple<Tensor, Tensor, Tensor> grads_cuda(Tensor output_grad, Tensor input, Tensor x_offset,
                                              Tensor y_offset, int64_t stride) {
  const Geometry geometry = backward_geometry(output_grad, input, x_offset, y_offset, stride);
  return dispatch_floating(input.scalar_type(), "shift_grads", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Launch scope(input);
    const Layout layout = layout_of(input);
    Tensor input_grad =
        empty_images(geometry.batch, geometry.channels, geometry.height, geometry.width, layout, input);
    Tensor x_grad = empty_offsets(geometry.channels, input);
    Tensor y_grad = empty_offsets(geometry.channels, input);
    if (geometry.results() == 0) {
      return std::make_tuple(torch::stable::zero_(input_grad), torch::stable::zero_(x_grad),
                             torch::stable::zero_(y_grad));
    }
    output_grad = to_layout(output_grad, layout, scope.stream());
    input = to_layout(input, layout, scope.stream());
    x_offset = to_contiguous(x_offset);
    y_offset = to_contiguous(y_offset);
    resample_and_sum<T>({data<T>(output_grad), data<T>(input), data<T>(x_offset), data<T>(y_offset),
                         mutable_data<T>(input_grad), geometry, layout},
                        cuda::Pass::grads, x_grad, y_grad, scope);
    return std::make_tuple(input_grad, x_grad, y_grad);
  });
}

}  // namespace

TORCHGRAFT_KERNELS(shift, cuda::kRules)
TORCHGRAFT_KERNELS(shift_input_grad, cuda::kRules)
TORCHGRAFT_KERNELS(shift_offset_grad, cuda::kRules)
TORCHGRAFT_KERNELS(shift_grads, cuda::kRules)

TORCHGRAFT_KERNEL(torchgraft, CUDA, shift, shift_cuda)
TORCHGRAFT_KERNEL(torchgraft, CUDA, shift_input_grad, input_grad_cuda)
TORCHGRAFT_KERNEL(torchgraft, CUDA, shift_offset_grad, offset_grad_cuda)
TORCHGRAFT_KERNEL(torchgraft, CUDA, shift_grads, grads_cuda)

}  // namespace torchgraft::shift
