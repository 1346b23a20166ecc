// Wrong: the sum is kept in the type of the elements, which for two bytes is not enough.

#include "rows.h"

namespace planted {
namespace {

Tensor sum_in_storage_type_cpu(Tensor input) {
  return sum_rows_with(input, [](const auto* row, int64_t columns, auto* sum) {
    using T = std::decay_t<decltype(*sum)>;
    T kept = static_cast<T>(0);
    for (int64_t i = 0; i < columns; ++i) kept = static_cast<T>(kept + row[i]);
    *sum = kept;
  });
}

}  // namespace

TORCHGRAFT_KERNEL(planted, CPU, sum_in_storage_type, sum_in_storage_type_cpu)

}  // namespace planted
