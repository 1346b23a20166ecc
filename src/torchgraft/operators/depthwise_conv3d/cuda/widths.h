// Kernels of volumes that are compiled for each width of a convolution's kernel, up to kMostSide.
#pragma once

#include <torchgraft/dispatch.h>

#include "plan.h"

namespace torchgraft::depthwise::volumes {

// Calls use.operator()<kWide>() for the width of the kernel.
template <typename Use>
void with_width(const Extent& width, const char* name, const Use& use) {
  switch (width.kernel) {
#define TORCHGRAFT_CASE(WIDE) \
  case WIDE:                  \
    return use.template operator()<WIDE>();
    TORCHGRAFT_CASE(1)
    TORCHGRAFT_CASE(2)
    TORCHGRAFT_CASE(3)
    TORCHGRAFT_CASE(4)
    TORCHGRAFT_CASE(5)
    TORCHGRAFT_CASE(6)
    TORCHGRAFT_CASE(7)
#undef TORCHGRAFT_CASE
    default:
      fail(name, ": no kernel is compiled for this width");
  }
}

}  // namespace torchgraft::depthwise::volumes
