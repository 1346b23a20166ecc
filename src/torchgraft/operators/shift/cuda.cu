// shift and its gradients on CUDA: registration of the host functions of host.h, and of the kernels that
// serve them, which lie in cuda/.

#include <torchgraft/registration.h>
#include <torchgraft/cuda.cuh>
#include <torchgraft/relayout.cuh>

#include "cuda/dispatch.h"
#include "host.h"

namespace torchgraft::shift {
namespace {

class Cuda {
 public:
  explicit Cuda(const Tensor& tensor) : scope_(tensor) {}

  Tensor to_layout(const Tensor& tensor, Layout layout) const {
    return torchgraft::to_layout(tensor, layout, scope_.stream());
  }

  template <typename T>
  void forward(const T* input, const T* x_offset, const T* y_offset, T* output, const Geometry& geometry,
               Layout layout) const {
    cuda::resample<T>({input, /*input=*/nullptr, x_offset, y_offset, output, geometry, layout},
                      cuda::Pass::forward, scope_.stream());
  }
  template <typename T>
  void input_grad(const T* output_grad, const T* x_offset, const T* y_offset, T* input_grad,
                  const Geometry& geometry, Layout layout) const {
    cuda::resample<T>({output_grad, /*input=*/nullptr, x_offset, y_offset, input_grad, geometry, layout},
                      cuda::Pass::input_grad, scope_.stream());
  }
  template <typename T>
  void grads(const T* output_grad, const T* input, const T* x_offset, const T* y_offset, T* input_grad,
             T* x_grad, T* y_grad, const Geometry& geometry, Layout layout, const Tensor& like) const {
    const cuda::Pass pass = input_grad == nullptr ? cuda::Pass::offset_grad : cuda::Pass::grads;
    cuda::resample_and_sum<T>({output_grad, input, x_offset, y_offset, input_grad, geometry, layout}, pass,
                              x_grad, y_grad, like, scope_.stream());
  }

 private:
  Launch scope_;
};

}  // namespace

TORCHGRAFT_KERNELS(shift, cuda::kRules)
TORCHGRAFT_KERNELS(shift_input_grad, cuda::kRules)
TORCHGRAFT_KERNELS(shift_offset_grad, cuda::kRules)
TORCHGRAFT_KERNELS(shift_grads, cuda::kRules)

TORCHGRAFT_KERNEL(torchgraft, CUDA, shift, forward_on<Cuda>)
TORCHGRAFT_KERNEL(torchgraft, CUDA, shift_input_grad, input_grad_on<Cuda>)
TORCHGRAFT_KERNEL(torchgraft, CUDA, shift_offset_grad, offset_grad_on<Cuda>)
TORCHGRAFT_KERNEL(torchgraft, CUDA, shift_grads, grads_on<Cuda>)

}  // namespace torchgraft::shift
