// A small cell: its whole step in float as one kernel, and the products of its gradients as one.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace torchgraft::lltm::cuda {

// All tensors are contiguous; there are rows and units.
struct CellPass {
  const float* input;      // (batch, features)
  const float* h;          // (batch, units)
  const float* c;          // (batch, units)
  const float* weight_ih;  // (3 units, features)
  const float* weight_hh;  // (3 units, units)
  const float* bias;       // (3 units), or null
  float* activations;      // (batch, 3 units)
  float* h_after;          // (batch, units)
  float* c_after;          // (batch, units)
  int64_t batch;
  int64_t features;
  int64_t units;
};

// Whether one kernel takes less time than two products of PyTorch's and an elementwise one. In float, with
// few rows, PyTorch's products take 15 us each on an H200; of halves, which have tensor cores, they take less
// than this kernel: 12 us and 15 for 16 rows of 128 units.
inline bool takes_cell(int64_t batch, int64_t features, int64_t units) {
  constexpr int64_t kProducts = int64_t{1} << 27;
  constexpr int64_t kSize = int64_t{1} << 19;  // so that the products fit, and a grid
  return batch < kSize && features < kSize && units < kSize &&
         batch * (features + units) < kProducts / (3 * units);
}

void launch_cell(const CellPass& pass, cudaStream_t stream);

// result = left @ right.
template <typename T>
struct CellProduct {
  const float* left;     // (rows, depth), of which either lies contiguous
  int64_t row_stride;    // of left
  int64_t depth_stride;  // of left
  const T* right;        // (depth, columns), contiguous, or null for a column of ones
  T* result;             // (rows, columns), contiguous
  int64_t rows;
  int64_t columns;
  int64_t depth;
  int64_t first_tile;  // set by the launch
};

template <typename T>
struct CellProducts {
  CellProduct<T> each[5];
  int count;
};

template <typename T>
void launch_products(CellProducts<T> products, cudaStream_t stream);

}  // namespace torchgraft::lltm::cuda
