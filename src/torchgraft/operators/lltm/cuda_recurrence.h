// The recurrence of a whole sequence as one kernel, forward and back.
#pragma once

#include <cuda_runtime.h>
#include <torchgraft/checks.h>
#include <torchgraft/dispatch.h>

#include <cstdint>

namespace torchgraft::lltm::cuda {

// What is given and what is asked for in T, what is kept in float. Kernels of T that is not float, and of
// float where tf32 is permitted, compute on tensor cores.
template <typename T>
struct ForwardPass {
  const T* weight;     // weight_hh, (3 units, units)
  const T* bias;       // (3 units), or null
  const T* h0;         // (batch, units)
  const T* c0;         // (batch, units)
  float* activations;  // (steps, batch, 3 units), in which the gates of the inputs come
  T* output;           // (steps, batch, units)
  float* cells;        // (steps, batch, units)
  int64_t steps;
  int64_t batch;
  int64_t units;
  bool reverse;
};

template <typename T>
struct BackwardPass {
  const T* weight;           // weight_hh, (3 units, units)
  const float* activations;  // (steps, batch, 3 units)
  const float* cells;        // (steps, batch, units)
  const T* output_grad;      // (steps, batch, units), or null
  float* gates_grad;         // (steps, batch, 3 units)
  float* h_grad;             // (batch, units): of the last h, becomes that of the first
  float* c_grad;             // (batch, units), likewise
  int64_t steps;
  int64_t batch;
  int64_t units;
  bool reverse;
};

inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0;
  int value = 0;
  const bool known = cudaGetDevice(&device) == cudaSuccess &&
                     cudaDeviceGetAttribute(&value, attribute, device) == cudaSuccess;
  TORCHGRAFT_CHECK(known, "lltm: the device does not say what it can do");
  return value;
}

// Each launches the pass where the current device can hold all blocks at once that wait for each other, and
// says whether it did. In clusters it is faster where both can.
bool launch_clusters(const ForwardPass<float>& pass, cudaStream_t stream);
bool launch_clusters(const BackwardPass<float>& pass, cudaStream_t stream);
bool launch_grid(const ForwardPass<float>& pass, cudaStream_t stream);
bool launch_grid(const BackwardPass<float>& pass, cudaStream_t stream);

// Likewise; `like` is a tensor on the device, for what blocks exchange through its memory. Where it does not
// launch, nothing was written.
template <typename T>
bool launch_tensor_cores(const ForwardPass<T>& pass, const Tensor& like, cudaStream_t stream);
template <typename T>
bool launch_tensor_cores(const BackwardPass<T>& pass, const Tensor& like, cudaStream_t stream);

}  // namespace torchgraft::lltm::cuda
