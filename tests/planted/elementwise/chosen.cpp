// Four kernels between which torchgraft/choice.h chooses. The one in pairs is wrong, and pays nowhere: only
// where it is forced does a call fall on it. The huge one supports no size that any sample has, and the newer
// one needs a device that there is none of.

#include <torchgraft/choice.h>

#include "scale.h"

namespace planted {
namespace {

struct Problem {
  int64_t count;
  bool is_newer_device = false;

  Problem on_any_device() const { return {count, true}; }
};

struct Rule {
  const char* name;
  bool (*supports)(const Problem&);
  bool (*pays)(const Problem&);
};

bool always(const Problem&) { return true; }
bool never(const Problem&) { return false; }
bool is_even(const Problem& problem) { return problem.count % 2 == 0; }
bool is_huge(const Problem& problem) { return problem.count >= int64_t{1} << 40; }
bool is_even_and_newer(const Problem& problem) { return is_even(problem) && problem.is_newer_device; }

constexpr Rule kRules[] = {
    {"pairs", is_even, never},
    {"huge", is_huge, always},
    {"newer", is_even_and_newer, always},
    {"plain", always, always},
};
TORCHGRAFT_KERNELS(chosen, kRules)

Tensor chosen_cpu(Tensor input, double factor) {
  return scale_with(input, factor, [](const auto* from, auto by, auto* to, int64_t count) {
    multiply_each(from, by, to, count);
    const bool in_pairs = &choose(kRules, Problem{count}) == &kRules[0];
    // Wrong: the last element is copied and not multiplied.
    if (in_pairs && count > 0) to[count - 1] = from[count - 1];
  });
}

}  // namespace

TORCHGRAFT_KERNEL(planted, CPU, chosen, chosen_cpu)

}  // namespace planted
