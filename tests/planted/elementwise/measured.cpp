// Kernels of which the policy always chooses a slow one: where the choice is measured, the quick one is
// chosen for an even number of elements, and PyTorch's for an odd one, which it cannot compute for seven.

#include <chrono>
#include <thread>

#include <torchgraft/choice.h>

#include "scale.h"

namespace planted {
namespace {

struct Problem {
  int64_t count;
};

struct Rule {
  const char* name;
  bool (*supports)(const Problem&);
  bool (*pays)(const Problem&);
};

bool always(const Problem&) { return true; }
bool never(const Problem&) { return false; }
bool is_even(const Problem& problem) { return problem.count % 2 == 0; }

constexpr Rule kRules[] = {{"quick", is_even, never}, {"slow", always, always}};
TORCHGRAFT_KERNELS(measured, kRules)

Tensor measured_cpu(Tensor input, double factor) {
  return scale_with(input, factor, [](const auto* from, auto by, auto* to, int64_t count) {
    multiply_each(from, by, to, count);
    if (&choose(kRules, Problem{count}) == &kRules[1]) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
}

// The same, and adds the input to `total`: a second call would add it again.
TORCHGRAFT_KERNELS(added, kRules)
Tensor added_cpu(Tensor total, Tensor input) {
  auto* const sums = static_cast<float*>(total.mutable_data_ptr());
  const auto* const values = static_cast<const float*>(input.const_data_ptr());
  for (int64_t i = 0; i < input.numel(); ++i) sums[i] += values[i];
  return measured_cpu(input, 2.0);
}

Tensor measured_by_pytorch(Tensor input, double factor) {
  TORCHGRAFT_CHECK(input.numel() != 7, "not for seven elements");
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return scale_with(input, factor, multiply_each);
}

}  // namespace

TORCHGRAFT_KERNEL_BESIDE(planted, CPU, measured, measured_cpu, &measured_by_pytorch)
TORCHGRAFT_KERNEL(planted, CPU, added, added_cpu)

}  // namespace planted
