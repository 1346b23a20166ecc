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
