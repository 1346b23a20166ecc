// Products of a recurrence on CUDA whose factors are numbers of two bytes, with sums in float.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "../cuda.cuh"
#include "../numbers.h"
#include "recurrence.h"
#include "recurrence_split.cuh"

namespace torchgraft::recurrence {

// As numbers of a call that tensor cores multiply as they are.
inline bool has_two_bytes(ScalarType dtype) {
  return dtype == ScalarType::Half || dtype == ScalarType::BFloat16;
}

// result = left @ right for matrices of two bytes, or as many pairs of them as there are in the first
// dimension.
inline void multiply_to_float(const Tensor& left, const Tensor& right, Tensor& result) {
  using torch::stable::detail::from;
  const char* const name = left.dim() == 3 ? "aten::bmm" : "aten::mm";
  std::array<StableIValue, 4> stack = {from(left), from(right), from(result.scalar_type()), from(result)};
  check_call(torch_call_dispatcher(name, "dtype_out", stack.data(), TORCH_ABI_VERSION),
             "recurrence: a product");
  torch::stable::detail::to<Tensor>(stack[0]);
}

// The sum of products with as much depth. A deep product is cut: where it has few tiles, cuBLAS 13 leaves out
// a part of the depth now and then.
inline void multiply_two_bytes(const std::vector<std::pair<Tensor, Tensor>>& products, Tensor& result) {
  using torch::stable::narrow;
  using torch::stable::select;
  using torch::stable::view;
  constexpr int64_t kDeepest = 2048, kDepthStep = 64;
  const int64_t rows = result.size(0), columns = result.size(1), depth = products[0].first.size(1);
  if (depth == 0) {
    torch::stable::zero_(result);
    return;
  }
  const int64_t share = round_up(ceil_divide(depth, ceil_divide(depth, kDeepest)), kDepthStep);
  const int64_t whole = depth / share, rest = depth - whole * share;
  const int64_t of_one = whole + (rest > 0 ? 1 : 0);
  const int64_t count = static_cast<int64_t>(products.size()) * of_one;
  Tensor sums =
      count == 1 ? view(result, {1, rows, columns}) : empty_contiguous({count, rows, columns}, result);
  int64_t place = 0;
  for (auto [left, right] : products) {
    if (whole > 0) {
      // Factors that are cut along one dimension are views, whatever their strides.
      Tensor parts = narrow(sums, 0, place, whole);
      multiply_to_float(
          torch::stable::transpose(view(narrow(left, 1, 0, whole * share), {rows, whole, share}), 0, 1),
          view(narrow(right, 0, 0, whole * share), {whole, share, columns}), parts);
    }
    if (rest > 0) {
      Tensor part = select(sums, 0, place + whole);
      multiply_to_float(narrow(left, 1, whole * share, rest), narrow(right, 0, whole * share, rest), part);
    }
    place += of_one;
  }
  if (count > 1) {
    const int64_t first = 0;
    torch::stable::sum_out(result, sums, torch::headeronly::IntHeaderOnlyArrayRef(&first, 1));
  }
}

inline constexpr int kSplitThreads = 256;

static __global__ void __launch_bounds__(kSplitThreads)
    split_halves(const Half* numbers, BFloat16* high, BFloat16* low, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kSplitThreads + threadIdx.x;
  if (i >= count) return;
  const Split<BFloat16> both(static_cast<float>(numbers[i]));
  high[i] = both.high;
  low[i] = both.low;
}

// Matrices of as many rows and columns, one behind the other in memory.
inline Factor empty_factor(int64_t rows, int64_t columns, const Tensor& like) {
  Tensor both = empty_contiguous({2, rows, columns}, like, aoti_torch_dtype_bfloat16());
  return {torch::stable::select(both, 0, 0), torch::stable::select(both, 0, 1)};
}

// A matrix of float16 as two of bfloat16, whose bits are more.
inline Factor in_two(const Tensor& matrix, cudaStream_t stream) {
  const Factor result = empty_factor(matrix.size(0), matrix.size(1), matrix);
  const int64_t count = matrix.numel();
  if (count > 0) {
    split_halves<<<grid_of(ceil_divide<int64_t>(count, kSplitThreads), "a recurrence"), kSplitThreads, 0,
                   stream>>>(data_of<Half>(matrix), mutable_data_of<BFloat16>(result.matrix),
                             mutable_data_of<BFloat16>(*result.rest), count);
    check_launch("a recurrence");
  }
  return result;
}

}  // namespace torchgraft::recurrence
