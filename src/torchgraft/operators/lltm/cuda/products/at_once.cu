// A product of cuBLAS: of float32 in a precision that this thread has been told, of two bytes with sums in
// float.

#include <torchgraft/detail/cublas_product.h>
#include <torchgraft/cuda.cuh>

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

}  // namespace

void launch_products_at_once(const Tensor& left, const Tensor& right, Tensor& result) {
  if (products == Products::by_pytorch || left.scalar_type() != ScalarType::Float ||
      !internal::can_multiply(left, right)) {
    multiply_by_pytorch(left, right, result);
    return;
  }
  internal::multiply(products == Products::tf32 ? Cublas::tf32 : Cublas::float32, left, right, result);
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
