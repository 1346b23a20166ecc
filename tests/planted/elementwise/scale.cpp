// The control: every element times a factor.

#include "scale.h"

namespace planted {
namespace {

Tensor scale_cpu(Tensor input, double factor) { return scale_with(input, factor, multiply_each); }

}  // namespace

TORCHGRAFT_KERNEL(planted, CPU, scale, scale_cpu)

// Operators that are wrong in their declaration alone.
TORCHGRAFT_KERNEL(planted, CPU, fake_with_wrong_strides, scale_cpu)
TORCHGRAFT_KERNEL(planted, CPU, fake_that_fixes_a_size, scale_cpu)
TORCHGRAFT_KERNEL(planted, CPU, fake_in_float32, scale_cpu)
TORCHGRAFT_KERNEL(planted, CPU, gradient_laid_out_otherwise, scale_cpu)
TORCHGRAFT_KERNEL(planted, CPU, formula_looks_at_values, scale_cpu)
TORCHGRAFT_KERNEL(planted, CPU, forgets_its_state, scale_cpu)
TORCHGRAFT_KERNEL(planted, CPU, no_gradient, scale_cpu)
TORCHGRAFT_KERNEL(planted, CPU, silent_zero_tangent, scale_cpu)
TORCHGRAFT_KERNEL(planted, CPU, wrong_vmap, scale_cpu)

}  // namespace planted
