// Wrong: threads add their shares in the order in which they happen to be done.

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>

#include "rows.h"

namespace planted {
namespace {

Tensor sum_in_any_order_cpu(Tensor input) {
  return sum_rows_with(input, [](const auto* row, int64_t columns, auto* sum) {
    using T = std::decay_t<decltype(*sum)>;
    constexpr int64_t kShare = 1024;
    std::mutex mutex;
    accumulate_t<T> total = 0;
    parallel_for(0, (columns + kShare - 1) / kShare, 1, [&](int64_t begin, int64_t end) {
      for (int64_t share = begin; share < end; ++share) {
        const auto part = sum_of(row, share * kShare, std::min(columns, (share + 1) * kShare));
        // A share takes a microsecond, less than a thread takes to wake on a busy machine: without a wait one
        // thread would often be done before the next begins, and the order would be right by chance.
        std::this_thread::sleep_for(std::chrono::microseconds(1));
        const std::lock_guard<std::mutex> guard(mutex);
        total += part;
      }
    });
    *sum = static_cast<T>(total);
  });
}

}  // namespace

TORCHGRAFT_KERNEL(planted, CPU, sum_in_any_order, sum_in_any_order_cpu)

}  // namespace planted
