// Which kernel serves a pass of a shift on CUDA: a table, asked from the top. The first rule whose kernel
// supports the problem and pays for it is the one. Host code alone, so that it is tested without a GPU. What
// a kernel supports stands beside how it cuts its work.
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

inline bool supports_always(const Problem&) { return true; }
inline bool pays_always(const Problem&) { return true; }

// Of longer rows a tile is one row of results, and its sources are read twice.
inline bool planes_pays(const Problem& problem) { return planes::busy_rows(problem) >= planes::kFewestRows; }

inline constexpr Rule kRules[] = {
    {"planes", Kernel::planes, planes::supports, planes_pays},
    {"channels_last", Kernel::channels_last, channels_last::supports, pays_always},
    {"direct", Kernel::direct, supports_always, pays_always},
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
