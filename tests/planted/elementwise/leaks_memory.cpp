// Wrong: what a call gets it does not give back.

#include "scale.h"

namespace planted {
namespace {

Tensor leaks_memory_cpu(Tensor input, double factor) {
  auto* kept = new volatile double[4];
  kept[0] = factor;
  return scale_with(input, kept[0], multiply_each);
}

}  // namespace

TORCHGRAFT_KERNEL(planted, CPU, leaks_memory, leaks_memory_cpu)

}  // namespace planted
