// Products of matrices by cuBLAS: of float32 in the precision that PyTorch's recurrent layers may have.
#pragma once

#include "../../host.h"

namespace torchgraft::lltm::cuda {

// As torchgraft/precision.py sets it for the calls of one thread.
enum class Products : int {
  by_pytorch = 0,  // in what its switch of matrix products says
  float32 = 1,
  tf32 = 2,
};

// result = left @ right for matrices, whose rows have no gaps in the result, or of factors in parts, as
// multiply_kept; with a result of float for factors of two bytes.
void multiply(const Tensor& left, const Tensor& right, Tensor& result);

}  // namespace torchgraft::lltm::cuda
