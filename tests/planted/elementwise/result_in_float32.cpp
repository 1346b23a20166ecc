// Wrong: a result in float16 is given in the float32 in which it was computed.

#include "scale.h"

namespace planted {
namespace {

Tensor result_in_float32_cpu(Tensor input, double factor) {
  if (input.scalar_type() == ScalarType::Half) {
    return scale_with(torch::stable::to(input, ScalarType::Float), factor, multiply_each);
  }
  return scale_with(input, factor, multiply_each);
}

}  // namespace

TORCHGRAFT_KERNEL(planted, CPU, result_in_float32, result_in_float32_cpu)

}  // namespace planted
