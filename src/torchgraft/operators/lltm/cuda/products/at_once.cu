// Products by cuBLAS: of float32 in a precision that this thread has been told, of two bytes with sums in
// float, and those never deeper than cuBLAS gets right.
//
// PyTorch's own products of float32 follow its switch of matrix products, which belongs to the process: to
// turn it for a call of ours would turn it for all threads. So where a precision is asked for, cuBLAS is
// called as PyTorch calls it, by the same function with the same handle, and the mode of the handle is
// turned, which only this thread has, and PyTorch sets anew before each product of its own.
//
// Of two bytes, where a result has few tiles and the factors are deep, cuBLAS shares the depth out among
// blocks (split-K), and may leave out what is over: up to 63 of the depth, or whole 64s, without a word. (On
// an H200 with cuBLAS 13, of 159,000 products of random sizes 92 were short, of depths from 3,585 on and of
// at most 30 tiles of 128 x 128; of float32, tf32 and float64 none of 120,000. Others found the same on an
// H100 and on GB200.) So such a depth is shared out here, in parts that cuBLAS has no reason to share out
// again.

#include "multiply.h"

#include <torchgraft/cublas.h>
#include <torchgraft/cuda.cuh>
#include <torchgraft/device.cuh>

#include <algorithm>
#include <climits>
#include <optional>

#include "../policy.h"

namespace torchgraft::lltm::cuda {
namespace {

thread_local Products products = Products::by_pytorch;

// A matrix as cuBLAS takes it, by columns: read so, one that lies in rows is its own transpose.
struct ByColumns {
  const float* data;
  Cublas::Operation operation;
  int pitch;
};

// Nothing where its numbers lie neither row by row nor column by column, or are too many for 32 bits.
std::optional<ByColumns> by_columns(const Tensor& matrix) {
  const int64_t rows = matrix.size(0);
  const int64_t columns = matrix.size(1);
  if (rows > INT_MAX || columns > INT_MAX) return std::nullopt;
  // The stride of one row, or of one column, says nothing.
  const int64_t row_step = rows == 1 ? columns : matrix.stride(0);
  const int64_t column_step = columns == 1 ? rows : matrix.stride(1);
  if ((columns == 1 || matrix.stride(1) == 1) && row_step >= columns && row_step <= INT_MAX) {
    return ByColumns{data<float>(matrix), Cublas::plain, static_cast<int>(row_step)};
  }
  if ((rows == 1 || matrix.stride(0) == 1) && column_step >= rows && column_step <= INT_MAX) {
    return ByColumns{data<float>(matrix), Cublas::transposed, static_cast<int>(column_step)};
  }
  return std::nullopt;
}

// The mode of a handle, for a scope.
class MathMode {
 public:
  MathMode(const Cublas& library, void* handle, Cublas::MathMode mode) : library_(library), handle_(handle) {
    check(library_.get_math_mode(handle_, &before_));
    check(library_.set_math_mode(handle_, mode));
  }
  ~MathMode() { static_cast<void>(library_.set_math_mode(handle_, before_)); }
  MathMode(const MathMode&) = delete;
  MathMode& operator=(const MathMode&) = delete;

  static void check(int status) {
    constexpr int kAllocationFailed = 3;
    TORCHGRAFT_CHECK(status != kAllocationFailed, "lltm: CUDA out of memory in a product of cuBLAS");
    TORCHGRAFT_CHECK(status == 0, "lltm: a product of cuBLAS failed with status ", status);
  }

 private:
  const Cublas& library_;
  void* handle_;
  int before_ = Cublas::float32;
};

// Of three dimensions the factors are in parts already, of so many units that there are tiles for all blocks.
bool is_in_parts(const Tensor& left, const Tensor& result) {
  if (left.dim() != 2 || left.element_size() != 2) return false;
  const MatrixProblem problem = {result.size(0), result.size(1), left.size(1),
                                 current_device().multiprocessors};
  return choose(kMatrixRules, problem).in_parts;
}

constexpr int kThreads = 256;

// A row of blocks a row: the sum of `count` matrices of float, one after the other.
__global__ void __launch_bounds__(kThreads)
    products_in_parts(const float* parts, int64_t count, float* result, int64_t columns, int64_t pitch) {
  const int64_t column = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (column >= columns) return;
  const int64_t distance = gridDim.y * columns;
  const int64_t place = blockIdx.y * columns + column;
  float sum = 0.0f;
#pragma unroll 8
  for (int64_t part = 0; part < count; ++part) sum += parts[part * distance + place];
  result[blockIdx.y * pitch + column] = sum;
}

void multiply_in_parts(const Tensor& left, const Tensor& right, Tensor& result) {
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
  multiply_kept(
      torch::stable::transpose(view(narrow(factor, 1, 0, whole * share), {rows, whole, share}), 0, 1),
      view(narrow(other, 0, 0, whole * share), {whole, share, columns}), of_whole);
  if (rest > 0) {
    Tensor of_rest = torch::stable::select(sums, 0, whole);
    multiply_kept(narrow(factor, 1, whole * share, rest), narrow(other, 0, whole * share, rest), of_rest);
  }
  const Launch scope(result);
  const dim3 grid(grid_of(ceil_divide<int64_t>(columns, kThreads), "lltm"), static_cast<unsigned>(rows));
  products_in_parts<<<grid, kThreads, 0, scope.stream()>>>(
      data<float>(sums), count, mutable_data<float>(result), columns, result.stride(0));
  check_launch("lltm");
}

}  // namespace

// Of the cell, whose small samples are deep enough for parts; the others' products are the same.
TORCHGRAFT_KERNELS(lltm_cell, kMatrixRules)

void multiply(const Tensor& left, const Tensor& right, Tensor& result) {
  if (is_in_parts(left, result)) return multiply_in_parts(left, right, result);
  const bool is_ours = products != Products::by_pytorch && left.scalar_type() == ScalarType::Float &&
                       result.scalar_type() == ScalarType::Float && left.dim() == 2 && cublas().is_found();
  const auto one = is_ours ? by_columns(left) : std::nullopt;
  const auto other = is_ours ? by_columns(right) : std::nullopt;
  const auto into = is_ours ? by_columns(result) : std::nullopt;
  if (!one || !other || !into || into->operation != Cublas::plain) {
    multiply_kept(left, right, result);
    return;
  }
  if (result.numel() == 0) return;
  const int64_t depth = left.size(1);
  if (depth == 0) {
    torch::stable::zero_(result);
    return;
  }
  const float alpha = 1.0f;
  const float beta = 0.0f;
  void* const handle = cublas_handle();
  const MathMode mode(cublas(), handle, products == Products::tf32 ? Cublas::tf32 : Cublas::float32);
  // Of the transpose of the result, which lies in columns, the factors change places.
  MathMode::check(cublas().sgemm(handle, other->operation, one->operation, static_cast<int>(right.size(1)),
                                 static_cast<int>(left.size(0)), static_cast<int>(depth), &alpha, other->data,
                                 other->pitch, one->data, one->pitch, &beta, mutable_data<float>(result),
                                 into->pitch));
}

}  // namespace torchgraft::lltm::cuda

// Exported: what products of this thread are made in from now on, as Products has it; returns what it was
// before.
extern "C" __attribute__((visibility("default"))) int torchgraft_set_products(int products) {
  using torchgraft::lltm::cuda::Products;
  const Products before = torchgraft::lltm::cuda::products;
  torchgraft::lltm::cuda::products = static_cast<Products>(products);
  return static_cast<int>(before);
}
