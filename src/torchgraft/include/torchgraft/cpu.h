// CPU kernels: threads, and code compiled for several instruction sets with the best chosen when the library loads.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <cstdint>

// A function so marked is compiled three times and the dynamic linker picks one. It must hold the hot loop itself:
// what it calls is cloned only if it is inlined into it (TORCHGRAFT_INLINE).
#if defined(__x86_64__) && defined(__linux__) && defined(__GLIBC__) && defined(__GNUC__) && \
    !defined(TORCHGRAFT_NO_CLONES)
#define TORCHGRAFT_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define TORCHGRAFT_CLONES
#endif

#define TORCHGRAFT_INLINE inline __attribute__((always_inline))

namespace torchgraft {

// `function(begin, end)` over pieces of [begin, end), on the threads of `torch.set_num_threads`. Below `grain`
// iterations it runs where it is called.
template <typename Function>
void parallel_for(int64_t begin, int64_t end, int64_t grain, const Function& function) {
  if (begin >= end) return;
  if (end - begin <= grain) {
    function(begin, end);
    return;
  }
  torch::stable::parallel_for(begin, end, grain, function);
}

}  // namespace torchgraft
