// A product of cuBLAS: of float32 in a precision that this thread has been told, of two bytes with sums in
// float.
//
// PyTorch's own products of float32 follow its switch of matrix products, which belongs to the process:
// turning it for a call of ours would turn it for all threads. So where a precision is asked for, cuBLAS is
// called as PyTorch calls it, by the same function with the same handle. The mode of the handle is turned,
// which only this thread has, and which PyTorch sets anew before each product of its own.

#include <torchgraft/cublas.h>
#include <torchgraft/cuda.cuh>

#include <algorithm>
#include <climits>

#include "../kernels.h"

namespace torchgraft::lltm::cuda {
namespace {

// As torchgraft/kernels/precision.py sets it for the calls of one thread.
enum class Products : int {
  by_pytorch = 0,  // in what its switch of matrix products says
  float32 = 1,
  tf32 = 2,
};
thread_local Products products = Products::by_pytorch;

// A matrix as cuBLAS takes it, by columns: read so, one that lies in rows is its own transpose.
struct ByColumns {
  const float* data;
  Cublas::Operation operation;
  int pitch;
};

// Of one that is contiguous, or the transpose of such a matrix.
ByColumns by_columns(const Tensor& matrix) {
  if (matrix.is_contiguous()) {
    return {data<float>(matrix), Cublas::plain, static_cast<int>(matrix.size(1))};
  }
  TORCHGRAFT_CHECK(matrix.stride(0) == 1 && matrix.stride(1) == matrix.size(0),
                   "lltm: a factor must lie row by row, or column by column");
  return {data<float>(matrix), Cublas::transposed, static_cast<int>(matrix.size(0))};
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

}  // namespace

void launch_products_at_once(const Tensor& left, const Tensor& right, Tensor& result) {
  if (products == Products::by_pytorch || left.scalar_type() != ScalarType::Float || !cublas().is_found() ||
      std::max({left.size(0), left.size(1), right.size(1)}) > INT_MAX) {
    multiply_by_pytorch(left, right, result);
    return;
  }
  // Of no rows: their own product, or one that adds up over them.
  if (left.numel() == 0) {
    torch::stable::zero_(result);
    return;
  }
  TORCHGRAFT_CHECK(result.is_contiguous(), "lltm: a product must lie row by row");
  const ByColumns one = by_columns(left);
  const ByColumns other = by_columns(right);
  const int columns = static_cast<int>(right.size(1));
  const float alpha = 1.0f;
  const float beta = 0.0f;
  void* const handle = cublas_handle();
  const MathMode mode(cublas(), handle, products == Products::tf32 ? Cublas::tf32 : Cublas::float32);
  // Of the transpose of the result, which lies in columns, the factors change places.
  MathMode::check(cublas().sgemm(handle, other.operation, one.operation, columns,
                                 static_cast<int>(left.size(0)), static_cast<int>(left.size(1)), &alpha,
                                 other.data, other.pitch, one.data, one.pitch, &beta,
                                 mutable_data<float>(result), columns));
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
