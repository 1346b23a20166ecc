// What the kernels of this family share: everything but the sum of a row.
#pragma once

#include <torchgraft/cpu.h>
#include <torchgraft/dispatch.h>
#include <torchgraft/layout.h>
#include <torchgraft/registration.h>

namespace planted {

using namespace torchgraft;

// `sum(row, columns, &result)` for each row of a matrix.
template <typename Sum>
Tensor sum_rows_with(Tensor input, const Sum& sum) {
  check_dim(input, 2, "input");
  return dispatch_floating(input.scalar_type(), "a planted operator", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Tensor source = to_contiguous(input);
    const int64_t rows = source.size(0);
    const int64_t columns = source.size(1);
    const int64_t stride = 1;
    Tensor output = empty_strided(&rows, &stride, 1, source);
    const T* from = static_cast<const T*>(source.const_data_ptr());
    T* to = static_cast<T*>(output.mutable_data_ptr());
    for (int64_t row = 0; row < rows; ++row) sum(from + row * columns, columns, to + row);
    return output;
  });
}

template <typename T>
accumulate_t<T> sum_of(const T* values, int64_t begin, int64_t end) {
  accumulate_t<T> sum = 0;
  for (int64_t i = begin; i < end; ++i) sum += static_cast<accumulate_t<T>>(values[i]);
  return sum;
}

}  // namespace planted
