// Which kernel serves a pass of a shift on CUDA. Host code alone, so that it is tested without a GPU. How a
// kernel works, and what it reaches, is told in its own file.
#pragma once

#include <torchgraft/choice.h>

#include "cuda_channels_last.h"
#include "cuda_planes.h"
#include "cuda_problem.h"

namespace torchgraft::shift::cuda {

enum class Kernel { planes, channels_last, direct };

struct Rule {
  const char* name;
  Kernel kernel;
  bool (*supports)(const Problem&);
  bool (*pays)(const Problem&);
};

inline bool always(const Problem&) { return true; }

inline constexpr Rule kRules[] = {
    {"planes", Kernel::planes, planes::supports, planes::pays},
    {"channels_last", Kernel::channels_last, channels_last::supports, always},
    {"direct", Kernel::direct, always, always},
};

inline Plan plan_direct(const Problem& problem) {
  // Blocks for several rounds on a large device; a part is worth 32 rows.
  constexpr int64_t kWanted = 4096;
  const int64_t rows = problem.geometry.batch * problem.geometry.steps;
  const int64_t parts =
      std::clamp<int64_t>(kWanted / problem.geometry.channels, 1, std::max<int64_t>(rows / 32, 1));
  Plan plan;
  plan.parts = rows > 0 ? divide_up(rows, divide_up(rows, parts)) : 1;
  return plan;
}

// Of a kernel that supports the problem.
inline Plan plan_of(Kernel kernel, const Problem& problem) {
  switch (kernel) {
    case Kernel::planes:
      return planes::plan(problem);
    case Kernel::channels_last:
      return *channels_last::plan(problem);
    case Kernel::direct:
      break;
  }
  return plan_direct(problem);
}

}  // namespace torchgraft::shift::cuda
