// weight_hh as tensor cores multiply it: in two bytes, with rows that begin at sixteen bytes.
//
// PyTorch's products are slow where they do not, and kernels load more at once where they do. What is not of
// the type that is multiplied is converted, each row, or column, times a power of two: what that leaves out
// of it is below 2**-39 of its largest number in bfloat16, and in float what is beyond eleven bits, as in
// tf32.
#pragma once

#include <cuda_runtime.h>

#include "../host.h"
#include "kernels.h"

namespace torchgraft::lltm::cuda {

struct MmaWeight {
  Tensor matrix;
  std::optional<Tensor> scales;  // of each row of `matrix`, in float, where it was multiplied by 1 / scale
  int64_t padded;                // units and what fills them up, with zeros
};

// (3 padded, padded): weight_hh itself where it can be.
MmaWeight row_scaled_weight(const Tensor& weight, ScalarType dtype, cudaStream_t stream);

// (padded, 3 padded), transposed: of each unit of h what it gives to all gates.
MmaWeight column_scaled_weight(const Tensor& weight, ScalarType dtype, cudaStream_t stream);

// `count` rows of `columns` numbers as their halves in float16, (count, padded) each, times the power of two
// that scales (count) divide by.
void split_rows(const DynamicInput& rows, int64_t count, int64_t columns, Half* high, Half* low,
                float* scales, int64_t padded, cudaStream_t stream);

// As kernels see it.
template <typename T>
struct MmaWeightView {
  const T* elements;
  const float* scales;  // or null
  int padded;

  explicit MmaWeightView(const MmaWeight& weight)
      : elements(data<T>(weight.matrix)),
        scales(data<float>(weight.scales)),
        padded(static_cast<int>(weight.padded)) {}

  __device__ __forceinline__ float scale_of(int row) const { return scales == nullptr ? 1.0f : scales[row]; }
};

}  // namespace torchgraft::lltm::cuda
