// Which kernel serves a shift on CUDA: the first rule whose kernel supports the problem (supports.h) and pays
// for it. Host code alone, so that it is tested without a GPU.
#pragma once

#include <torchgraft/choice.h>

#include "supports.h"

namespace torchgraft::shift::cuda {

enum class Kernel { planes, channels_last, direct };

struct Rule {
  const char* name;
  Kernel kernel;
  bool (*supports)(const Problem&);
  bool (*pays)(const Problem&);
};

// A tile of longer rows is one row of results, whose sources are read twice.
inline bool planes_pays(const Problem& problem) { return busy_rows(problem) >= kFewestRows; }

inline constexpr Rule kRules[] = {
    {"planes", Kernel::planes, supports_planes, planes_pays},
    {"channels_last", Kernel::channels_last, supports_channels_last, always},
    {"direct", Kernel::direct, always, always},
};

// How a kernel that supports the problem cuts its work.
inline Plan plan_of(Kernel kernel, const Problem& problem) {
  switch (kernel) {
    case Kernel::planes:
      return plan_planes(problem);
    case Kernel::channels_last:
      return *plan_channels_last(problem);
    case Kernel::direct:
      break;
  }
  return plan_direct(problem);
}

}  // namespace torchgraft::shift::cuda
