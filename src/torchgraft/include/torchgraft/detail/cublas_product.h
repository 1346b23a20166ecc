// A product of float32 matrices by cuBLAS in a precision that the caller asks for.
//
// PyTorch's own products follow its switch of matrix products, which belongs to the process: turning it for a
// call of ours would turn it for all threads. So cuBLAS is called as PyTorch calls it, by the same function
// with the same handle. The mode of the handle is turned, which only this thread has, and which PyTorch sets
// anew before each product of its own.
#pragma once

#include <torchgraft/cublas.h>

#include <algorithm>
#include <climits>

#include "../checks.h"
#include "../data.h"

namespace torchgraft::internal {

// A matrix as cuBLAS takes it, by columns: read so, one that lies in rows is its own transpose.
struct ByColumns {
  const float* data;
  Cublas::Operation operation;
  int pitch;

  // Of one that is contiguous, or the transpose of such a matrix.
  explicit ByColumns(const Tensor& matrix) : data(data_of<float>(matrix)) {
    const bool lies_in_rows = matrix.is_contiguous();
    TORCHGRAFT_CHECK(lies_in_rows || (matrix.stride(0) == 1 && matrix.stride(1) == matrix.size(0)),
                     "a factor must lie row by row, or column by column");
    operation = lies_in_rows ? Cublas::plain : Cublas::transposed;
    pitch = static_cast<int>(matrix.size(lies_in_rows ? 1 : 0));
  }
};

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
    TORCHGRAFT_CHECK(status != kAllocationFailed, "CUDA out of memory in a product of cuBLAS");
    TORCHGRAFT_CHECK(status == 0, "a product of cuBLAS failed with status ", status);
  }

 private:
  const Cublas& library_;
  void* handle_;
  int before_ = Cublas::float32;
};

// Whether cuBLAS is there, and counts such matrices.
inline bool can_multiply(const Tensor& left, const Tensor& right) {
  return cublas().is_found() && std::max({left.size(0), left.size(1), right.size(1)}) <= INT_MAX;
}

// result = left @ right, or with `adds` that much more; the result is contiguous.
inline void multiply(Cublas::MathMode mode, const Tensor& left, const Tensor& right, Tensor& result,
                     bool adds = false) {
  // Of no rows: their own product, or one that adds up over them.
  if (left.numel() == 0) {
    if (!adds) torch::stable::zero_(result);
    return;
  }
  TORCHGRAFT_CHECK(result.is_contiguous(), "a product must lie row by row");
  const ByColumns one(left);
  const ByColumns other(right);
  const int columns = static_cast<int>(right.size(1));
  const float alpha = 1.0f;
  const float beta = adds ? 1.0f : 0.0f;
  void* const handle = cublas_handle();
  const MathMode scope(cublas(), handle, mode);
  // Of the transpose of the result, which lies in columns, the factors change places.
  MathMode::check(cublas().sgemm(handle, other.operation, one.operation, columns,
                                 static_cast<int>(left.size(0)), static_cast<int>(left.size(1)), &alpha,
                                 other.data, other.pitch, one.data, one.pitch, &beta,
                                 mutable_data_of<float>(result), columns));
}

}  // namespace torchgraft::internal
