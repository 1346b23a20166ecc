// shift and its gradients on CPU: host functions and registration. The kernels are in cpu_planes.cpp and
// cpu_channels_last.cpp.

#include <torchgraft/layout.h>
#include <torchgraft/registration.h>

#include <tuple>
#include <vector>

#include "cpu_kernels.h"

namespace torchgraft::shift {
namespace {

using cpu::Backward;
using cpu::Forward;

template <typename T>
const T* data(const Tensor& tensor) {
  return static_cast<const T*>(tensor.const_data_ptr());
}

template <typename T>
T* mutable_data(const Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

template <typename T>
void run_backward(const Backward<T>& pass, Layout layout) {
  layout == Layout::contiguous ? cpu::backward_planes(pass) : cpu::backward_channels_last(pass);
}

Tensor forward_cpu(Tensor input, Tensor x_offset, Tensor y_offset, int64_t stride) {
  const Geometry geometry = forward_geometry(input, x_offset, y_offset, stride);
  return dispatch_floating(input.scalar_type(), "shift", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Layout layout = layout_of(input);
    Tensor output =
        empty_images(geometry.batch, geometry.channels, geometry.steps, geometry.width, layout, input);
    if (geometry.results() == 0) return output;
    input = to_layout(input, layout);
    x_offset = to_contiguous(x_offset);
    y_offset = to_contiguous(y_offset);
    const Forward<T> pass = {data<T>(input), data<T>(x_offset), data<T>(y_offset), mutable_data<T>(output),
                             geometry};
    layout == Layout::contiguous ? cpu::forward_planes(pass) : cpu::forward_channels_last(pass);
    return output;
  });
}

Tensor input_grad_cpu(Tensor output_grad, Tensor x_offset, Tensor y_offset, int64_t height,
                      bool channels_last, int64_t stride) {
  const Geometry geometry = input_grad_geometry(output_grad, x_offset, y_offset, height, stride);
  return dispatch_floating(output_grad.scalar_type(), "shift_input_grad", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Layout layout = channels_last ? Layout::channels_last : Layout::contiguous;
    Tensor input_grad =
        empty_images(geometry.batch, geometry.channels, height, geometry.width, layout, output_grad);
    if (geometry.results() == 0) return torch::stable::zero_(input_grad);
    output_grad = to_layout(output_grad, layout);
    x_offset = to_contiguous(x_offset);
    y_offset = to_contiguous(y_offset);
    run_backward<T>({data<T>(output_grad), nullptr, data<T>(x_offset), data<T>(y_offset),
                     mutable_data<T>(input_grad), nullptr, geometry},
                    layout);
    return input_grad;
  });
}

// One of the gradients of the offsets: its partial sums, added up image by image.
template <typename T>
Tensor sum_images(const double* sums, const Geometry& geometry, const Tensor& like) {
  const int64_t step = 1;
  Tensor result = empty_strided(&geometry.channels, &step, 1, like);
  T* to = mutable_data<T>(result);
  for (int64_t channel = 0; channel < geometry.channels; ++channel) {
    double sum = 0;
    for (int64_t image = 0; image < geometry.batch; ++image) {
      sum += sums[image * 2 * geometry.channels + channel];
    }
    to[channel] = static_cast<T>(static_cast<accumulate_t<T>>(sum));
  }
  return result;
}

std::tuple<Tensor, Tensor, Tensor> backward_cpu(Tensor output_grad, Tensor input, Tensor x_offset,
                                                Tensor y_offset, int64_t stride, bool with_input_grad,
                                                const char* name) {
  const Geometry geometry = backward_geometry(output_grad, input, x_offset, y_offset, stride);
  return dispatch_floating(input.scalar_type(), name, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Layout layout = layout_of(input);
    Tensor input_grad;
    if (with_input_grad) {
      input_grad =
          empty_images(geometry.batch, geometry.channels, geometry.height, geometry.width, layout, input);
    }
    std::vector<double> partial_sums(2 * geometry.planes());
    input = to_layout(input, layout);
    output_grad = to_layout(output_grad, layout);
    x_offset = to_contiguous(x_offset);
    y_offset = to_contiguous(y_offset);
    if (geometry.results() > 0) {
      run_backward<T>(
          {data<T>(output_grad), data<T>(input), data<T>(x_offset), data<T>(y_offset),
           with_input_grad ? mutable_data<T>(input_grad) : nullptr, partial_sums.data(), geometry},
          layout);
    } else if (with_input_grad) {
      torch::stable::zero_(input_grad);
    }
    return std::make_tuple(input_grad, sum_images<T>(partial_sums.data(), geometry, x_offset),
                           sum_images<T>(partial_sums.data() + geometry.channels, geometry, x_offset));
  });
}

std::tuple<Tensor, Tensor> offset_grad_cpu(Tensor output_grad, Tensor input, Tensor x_offset, Tensor y_offset,
                                           int64_t stride) {
  auto [none, x_grad, y_grad] =
      backward_cpu(output_grad, input, x_offset, y_offset, stride, false, "shift_offset_grad");
  return {x_grad, y_grad};
}

std::tuple<Tensor, Tensor, Tensor> grads_cpu(Tensor output_grad, Tensor input, Tensor x_offset,
                                             Tensor y_offset, int64_t stride) {
  return backward_cpu(output_grad, input, x_offset, y_offset, stride, true, "shift_grads");
}

}  // namespace

TORCHGRAFT_KERNEL(torchgraft, CPU, shift, forward_cpu)
TORCHGRAFT_KERNEL(torchgraft, CPU, shift_input_grad, input_grad_cpu)
TORCHGRAFT_KERNEL(torchgraft, CPU, shift_offset_grad, offset_grad_cpu)
TORCHGRAFT_KERNEL(torchgraft, CPU, shift_grads, grads_cpu)

}  // namespace torchgraft::shift
