// A part of contiguous_gradients_only: left is read as if it were contiguous.

#include "pairs.h"

namespace planted {
namespace {

Tensor reads_left_straight_cpu(Tensor left, Tensor right) {
  TORCHGRAFT_CHECK(same_sizes(left, right), "left and right must have the same sizes");
  return multiply_straight(left, to_contiguous(right));
}

}  // namespace

TORCHGRAFT_KERNEL(planted, CPU, reads_left_straight, reads_left_straight_cpu)

}  // namespace planted
