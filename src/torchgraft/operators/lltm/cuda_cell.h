// A cell's whole step as one kernel, where the products are small.
#pragma once

#include <cuda_runtime.h>
#include <torchgraft/dispatch.h>

#include <cstdint>

namespace torchgraft::lltm::cuda {

// T is one of float, Half, BFloat16. All tensors are contiguous; there are rows and units.
template <typename T>
struct CellPass {
  const T* input;      // (batch, features)
  const T* h;          // (batch, units)
  const T* c;          // (batch, units)
  const T* weight_ih;  // (3 units, features)
  const T* weight_hh;  // (3 units, units)
  const T* bias;       // (3 units), or null
  float* activations;  // (batch, 3 units)
  T* h_after;          // (batch, units)
  T* c_after;          // (batch, units)
  int64_t batch;
  int64_t features;
  int64_t units;
};

// Whether one kernel takes less time than two products of PyTorch's and an elementwise one. Those take the
// launch of three, 12 us on an H200, and in float with few rows PyTorch's products take 15 us each. This one
// has no tensor cores.
template <typename T>
bool takes_cell(int64_t batch, int64_t features, int64_t units) {
  constexpr int64_t kProducts = sizeof(T) == 2 ? int64_t{1} << 22 : int64_t{1} << 27;
  constexpr int64_t kSize = int64_t{1} << 19;  // so that the products fit, and a grid
  return batch < kSize && features < kSize && units < kSize &&
         batch * (features + units) < kProducts / (3 * units);
}

template <typename T>
void launch_cell(const CellPass<T>& pass, cudaStream_t stream);

}  // namespace torchgraft::lltm::cuda
