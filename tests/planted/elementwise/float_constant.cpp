// Wrong: the factor is a float also where everything else is a double.

#include "scale.h"

namespace planted {
namespace {

Tensor float_constant_cpu(Tensor input, double factor) {
  const float narrow = static_cast<float>(factor);
  return scale_with(input, narrow, multiply_each);
}

}  // namespace

TORCHGRAFT_KERNEL(planted, CPU, float_constant, float_constant_cpu)

}  // namespace planted
