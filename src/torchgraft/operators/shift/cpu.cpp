// shift and its gradients on CPU: registration of the host functions of host.h. The kernels are in
// cpu/planes.cpp and cpu/channels_last.cpp.

#include <torchgraft/registration.h>

#include <vector>

#include "cpu/kernels.h"
#include "host.h"

namespace torchgraft::shift {
namespace {

template <typename T>
void run_backward(const cpu::Backward<T>& pass, Layout layout) {
  layout == Layout::contiguous ? cpu::backward_planes(pass) : cpu::backward_channels_last(pass);
}

// One of the gradients of the offsets: its partial sums, added up image by image.
template <typename T>
void sum_images(const double* sums, const Geometry& geometry, T* result) {
  for (int64_t channel = 0; channel < geometry.channels; ++channel) {
    double sum = 0;
    for (int64_t image = 0; image < geometry.batch; ++image) {
      sum += sums[image * 2 * geometry.channels + channel];
    }
    result[channel] = static_cast<T>(static_cast<accumulate_t<T>>(sum));
  }
}

class Cpu {
 public:
  explicit Cpu(const Tensor&) {}

  Tensor to_layout(const Tensor& tensor, Layout layout) const {
    return torchgraft::to_layout(tensor, layout);
  }

  template <typename T>
  void forward(const T* input, const T* x_offset, const T* y_offset, T* output, const Geometry& geometry,
               Layout layout) const {
    const cpu::Forward<T> pass = {input, x_offset, y_offset, output, geometry};
    layout == Layout::contiguous ? cpu::forward_planes(pass) : cpu::forward_channels_last(pass);
  }
  template <typename T>
  void input_grad(const T* output_grad, const T* x_offset, const T* y_offset, T* input_grad,
                  const Geometry& geometry, Layout layout) const {
    run_backward<T>({output_grad, /*input=*/nullptr, x_offset, y_offset, input_grad,
                     /*partial_sums=*/nullptr, geometry},
                    layout);
  }
  template <typename T>
  void grads(const T* output_grad, const T* input, const T* x_offset, const T* y_offset, T* input_grad,
             T* x_grad, T* y_grad, const Geometry& geometry, Layout layout, const Tensor&) const {
    std::vector<double> partial_sums(2 * geometry.planes());
    run_backward<T>({output_grad, input, x_offset, y_offset, input_grad, partial_sums.data(), geometry},
                    layout);
    sum_images(partial_sums.data(), geometry, x_grad);
    sum_images(partial_sums.data() + geometry.channels, geometry, y_grad);
  }
};

}  // namespace

TORCHGRAFT_KERNEL(torchgraft, CPU, shift, forward_on<Cpu>)
TORCHGRAFT_KERNEL(torchgraft, CPU, shift_input_grad, input_grad_on<Cpu>)
TORCHGRAFT_KERNEL(torchgraft, CPU, shift_offset_grad, offset_grad_on<Cpu>)
TORCHGRAFT_KERNEL(torchgraft, CPU, shift_grads, grads_on<Cpu>)

}  // namespace torchgraft::shift
