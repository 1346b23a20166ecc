// Which kernel computes a shift on CUDA: the first row of the table (kernel_table.h) whose kernel supports
// the problem (supports.h) and pays for it. Host code alone, so that it is tested without a GPU.
#pragma once

#include <torchgraft/choice.h>
#include <torchgraft/detail/threshold.h>

#include "kernel_table.h"
#include "supports.h"

namespace torchgraft::shift::cuda {

// Rows of sources that keep a block busy, from which planes pay. Where rows are so long that fewer do, a tile
// is one row of results, whose sources are read twice.
TORCHGRAFT_THRESHOLD(kPlanesRows, kFewestRows);

inline bool planes_pays(const Problem& problem) { return busy_rows(problem) >= kPlanesRows; }

#define TORCHGRAFT_KERNEL_VALUE(NAME, ...) NAME,
enum class Kernel { TORCHGRAFT_SHIFT_KERNELS(TORCHGRAFT_KERNEL_VALUE) };
#undef TORCHGRAFT_KERNEL_VALUE

struct Rule {
  Kernel kernel;
  const char* name;
  bool (*supports)(const Problem&);
  bool (*pays)(const Problem&);
  Plan (*plan)(const Problem&);
};

#define TORCHGRAFT_RULE(NAME, LAUNCH, SUPPORTS, PAYS, PLAN) {Kernel::NAME, #NAME, SUPPORTS, PAYS, PLAN},
inline constexpr Rule kRules[] = {TORCHGRAFT_SHIFT_KERNELS(TORCHGRAFT_RULE)};
#undef TORCHGRAFT_RULE

}  // namespace torchgraft::shift::cuda
