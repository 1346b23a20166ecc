// Wrong: whether right has as many elements as left is never asked.

#include "pairs.h"

namespace planted {
namespace {

Tensor accepts_other_sizes_cpu(Tensor left, Tensor right) {
  return multiply_straight(to_contiguous(left), to_contiguous(right));
}

}  // namespace

TORCHGRAFT_KERNEL(planted, CPU, accepts_other_sizes, accepts_other_sizes_cpu)

}  // namespace planted
