// What the CUDA kernels of this family share.
#pragma once

#include <torchgraft/dispatch.h>
#include <torchgraft/layout.h>
#include <torchgraft/registration.h>
#include <torchgraft/cuda.cuh>

namespace planted {

using namespace torchgraft;

inline constexpr int kThreads = 256;

// `launch(from, to, rows, columns, stream)` for a matrix, a block a row.
template <typename Launcher>
Tensor sum_rows_with(Tensor input, const Launcher& launch) {
  check_dim(input, 2, "input");
  return dispatch_floating(input.scalar_type(), "a planted operator", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Launch scope(input);
    const Tensor source = to_contiguous(input);
    const int64_t rows = source.size(0);
    const int64_t stride = 1;
    Tensor output = empty_strided(&rows, &stride, 1, source);
    if (rows == 0) return output;
    launch(static_cast<const T*>(source.const_data_ptr()), static_cast<T*>(output.mutable_data_ptr()),
           grid_of(rows, "a planted operator"), source.size(1), scope.stream());
    check_launch("a planted operator");
    return output;
  });
}

// What each thread of a block has of the sum of a row.
template <typename T>
__device__ accumulate_t<T> share_of(const T* row, int64_t columns) {
  accumulate_t<T> sum = 0;
  for (int64_t i = threadIdx.x; i < columns; i += kThreads) sum += static_cast<accumulate_t<T>>(row[i]);
  return sum;
}

}  // namespace planted
