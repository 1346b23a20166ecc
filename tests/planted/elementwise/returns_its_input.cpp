// Wrong: times one gives the input itself, which its schema does not say.

#include "scale.h"

namespace planted {
namespace {

Tensor returns_its_input_cpu(Tensor input, double factor) {
  if (factor == 1) return input;
  return scale_with(input, factor, multiply_each);
}

}  // namespace

TORCHGRAFT_KERNEL(planted, CPU, returns_its_input, returns_its_input_cpu)

}  // namespace planted
