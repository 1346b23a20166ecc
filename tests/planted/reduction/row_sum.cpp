// The control: the sum of each row of a matrix.

#include "rows.h"

namespace planted {
namespace {

Tensor row_sum_cpu(Tensor input) {
  return sum_rows_with(input, [](const auto* row, int64_t columns, auto* sum) {
    *sum = static_cast<std::decay_t<decltype(*sum)>>(sum_of(row, 0, columns));
  });
}

}  // namespace

TORCHGRAFT_KERNEL(planted, CPU, row_sum, row_sum_cpu)

}  // namespace planted
