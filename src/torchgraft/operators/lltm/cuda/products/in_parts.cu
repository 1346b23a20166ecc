// A deep product of matrices of two bytes, in parts of its depth that cuBLAS has no reason to share out
// again.
//
// Where a result has few tiles and the factors are deep, cuBLAS shares the depth out among blocks (split-K),
// and may leave out what is over: up to 63 of the depth, or whole 64s, without a word. (On an H200 with
// cuBLAS 13, of 159,000 products of random sizes 92 were short, from depths of 3,585 on and of at most 30
// tiles of 128 x 128; of float32, tf32 and float64 none of 120,000.)

#include <torchgraft/cuda.cuh>

#include <algorithm>

#include "../kernels.h"
#include "../supports.h"
#include "sum.cuh"

namespace torchgraft::lltm::cuda {

void launch_products_in_parts(const Tensor& left, const Tensor& right, Tensor& result) {
  using torch::stable::narrow;
  using torch::stable::view;
  const int64_t rows = left.size(0);
  const int64_t depth = left.size(1);
  const int64_t columns = right.size(1);
  const int64_t parts = std::max<int64_t>(ceil_divide(depth, kDeepest), 2);
  const int64_t share = ceil_divide(ceil_divide(depth, parts), kDepthStep) * kDepthStep;
  const int64_t whole = depth / share;
  const int64_t rest = depth - whole * share;
  const int64_t count = whole + (rest > 0 ? 1 : 0);
  Tensor sums = empty_of({count, rows, columns}, ScalarType::Float, result);
  // Factors that are cut along one dimension are views, whatever their strides.
  Tensor factor = left;
  Tensor other = right;
  Tensor of_whole = narrow(sums, 0, 0, whole);
  multiply_by_pytorch(
      torch::stable::transpose(view(narrow(factor, 1, 0, whole * share), {rows, whole, share}), 0, 1),
      view(narrow(other, 0, 0, whole * share), {whole, share, columns}), of_whole);
  if (rest > 0) {
    Tensor of_rest = torch::stable::select(sums, 0, whole);
    multiply_by_pytorch(narrow(factor, 1, whole * share, rest), narrow(other, 0, whole * share, rest),
                        of_rest);
  }
  const Launch scope(result);
  // Few elements and many parts.
  launch_products_sum<float, /*kElements=*/1, /*kParts=*/8>(sums, nullptr, result, scope.stream());
}

}  // namespace torchgraft::lltm::cuda
