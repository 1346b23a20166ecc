// The gradients as PyTorch's products, from h before each step.

#include "../kernels.h"
#include "rows.cuh"

namespace torchgraft::lltm::cuda {

template <typename T>
Grads launch_products_plain(const GradTensors& tensors) {
  const Wanted& wanted = tensors.wanted;
  const ScalarType dtype = dtype_of<T>();
  const Tensor& gates_grad = tensors.gates_grad;
  GradFactors factors = {tensors.input, tensors.input,  tensors.weight_ih, gates_grad,
                         gates_grad,    tensors.c_grad, gates_grad};
  if (tensors.h.has_value()) {
    factors.h = *tensors.h;
    factors.h_grad = product(multiply, wanted.h, gates_grad, tensors.weight_hh, dtype);
  } else {
    if (wanted.weight_hh) factors.h = hidden_before<T>(tensors);
    factors.h_grad = converted(wanted.h, *tensors.h_grad, dtype);
  }
  factors.bias_grad =
      wanted.bias ? column_sums<T>(gates_grad, nullptr, tensors.stream) : empty_of({0}, dtype, gates_grad);
  return lltm::multiply_grads(multiply, factors, wanted);
}

template Grads launch_products_plain<double>(const GradTensors&);
template Grads launch_products_plain<float>(const GradTensors&);
template Grads launch_products_plain<Half>(const GradTensors&);
template Grads launch_products_plain<BFloat16>(const GradTensors&);

}  // namespace torchgraft::lltm::cuda
