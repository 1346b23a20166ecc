// Wrong: all calls share one buffer, and any number of threads may call at once.

#include <thread>

#include "scale.h"

namespace planted {
namespace {

constexpr int64_t kElements = 1 << 16;
alignas(64) char buffer[kElements * sizeof(double)];

Tensor static_buffer_cpu(Tensor input, double factor) {
  TORCHGRAFT_CHECK(input.numel() <= kElements, "static_buffer: input is too large");
  return scale_with(input, factor, [](const auto* from, auto by, auto* to, int64_t count) {
    auto* results = reinterpret_cast<std::decay_t<decltype(to)>>(buffer);
    for (int64_t i = 0; i < count; ++i) results[i] = times(from[i], by);
    // As any longer kernel does now and then.
    std::this_thread::yield();
    for (int64_t i = 0; i < count; ++i) to[i] = results[i];
  });
}

}  // namespace

TORCHGRAFT_KERNEL(planted, CPU, static_buffer, static_buffer_cpu)

}  // namespace planted
