// weight_hh as tensor cores multiply it: in two bytes, with rows that begin at sixteen bytes.
//
// PyTorch's products are slow without that, and kernels load more at once with it. Weights of another type
// than is multiplied are converted, each row, or column, times a power of two. That rounds numbers of
// bfloat16 below 2**-39 of the largest in the row up to that, and drops the bits of float beyond eleven, as
// in tf32.
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

// (3 padded, padded), of T, Half or BFloat16: weight_hh itself where it can be.
template <typename T>
MmaWeight row_scaled_weight(const Tensor& weight, cudaStream_t stream);

// (padded, 3 padded), transposed: a row has what a unit of h is multiplied with for all gates.
template <typename T>
MmaWeight column_scaled_weight(const Tensor& weight, cudaStream_t stream);

// `count` rows of `columns` numbers as halves in float16, (count, padded) each, divided by `scales` (count),
// which are powers of two.
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
