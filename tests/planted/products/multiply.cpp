// The control: two tensors of the same sizes, element by element.

#include "pairs.h"

namespace planted {
namespace {

Tensor multiply_cpu(Tensor left, Tensor right) {
  TORCHGRAFT_CHECK(same_sizes(left, right), "left and right must have the same sizes");
  return multiply_straight(to_contiguous(left), to_contiguous(right));
}

}  // namespace

TORCHGRAFT_KERNEL(planted, CPU, multiply, multiply_cpu)

// Operators that are wrong in their declaration alone.
TORCHGRAFT_KERNEL(planted, CPU, wrong_gradient, multiply_cpu)
TORCHGRAFT_KERNEL(planted, CPU, forgets_a_gradient, multiply_cpu)
TORCHGRAFT_KERNEL(planted, CPU, wrong_second_gradient, multiply_cpu)
TORCHGRAFT_KERNEL(planted, CPU, computes_all_gradients, multiply_cpu)
TORCHGRAFT_KERNEL(planted, CPU, contiguous_gradients_only, multiply_cpu)

}  // namespace planted
