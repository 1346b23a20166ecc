// Wrong: threads add to one number without waiting for each other, in rows that are long enough for several
// threads.

#include <chrono>
#include <thread>

#include "rows.h"

namespace planted {
namespace {

Tensor races_from_65536_on_cpu(Tensor input) {
  return sum_rows_with(input, [](const auto* row, int64_t columns, auto* sum) {
    using T = std::decay_t<decltype(*sum)>;
    volatile accumulate_t<T> total = 0;
    parallel_for(0, columns, 65536, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const accumulate_t<T> seen = total;
        // On a busy machine one thread would often be done before the next wakes, and nothing be lost.
        if (columns > 65536 && i % 32768 == 0) std::this_thread::sleep_for(std::chrono::microseconds(1));
        total = seen + static_cast<accumulate_t<T>>(row[i]);
      }
    });
    *sum = static_cast<T>(total);
  });
}

}  // namespace

TORCHGRAFT_KERNEL(planted, CPU, races_from_65536_on, races_from_65536_on_cpu)

}  // namespace planted
