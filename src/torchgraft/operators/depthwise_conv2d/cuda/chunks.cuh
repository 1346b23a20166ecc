// What the kernels of the weight gradient share: how the batch is cut into chunks, and the second pass.
//
// The first pass writes partial[chunk][output channel][tap] to the workspace, each element once; the second
// adds up the chunks of each weight. Both add in an order that depends on the sizes and the device alone, so
// that a gradient is the same bit for bit on every run. Partial sums, which are few, are added up in double:
// of the long chains of additions only those inside a thread round.
#pragma once

#include <algorithm>

#include "kernels.h"
#include "stencil.cuh"
#include "supports.h"

namespace torchgraft::depthwise::cuda {

// Chunks that a first pass may use; the workspace has room for these.
inline int64_t most_chunks(const Geometry& geometry, Layout layout) {
  return most_chunks(geometry, layout == Layout::channels_last);
}

// Units of work, whatever a kernel counts in, cut into chunks of equal size, none of them empty.
struct Chunks {
  int64_t units;
  int64_t units_of_chunk;
  int count;
};

inline Chunks make_chunks(int64_t units, int64_t least_units_of_chunk, int64_t most) {
  const int64_t wanted = std::clamp<int64_t>(units / least_units_of_chunk, 1, most);
  const int64_t units_of_chunk = ceil_divide(units, wanted);
  return {units, units_of_chunk, static_cast<int>(ceil_divide(units, units_of_chunk))};
}

constexpr int kSumWeights = 32;  // of a block, one a lane
constexpr int kSumSlices = 16;   // of the chunks, one a warp

template <typename T>
__global__ void __launch_bounds__(kSumWeights* kSumSlices)
    sum_chunks(const accumulate_t<T>* __restrict__ partial, T* __restrict__ weight_grad, int64_t weights,
               int chunks) {
  double* slice_sums = shared_memory<double>();
  const int lane = static_cast<int>(threadIdx.x) % kSumWeights;
  const int slice = static_cast<int>(threadIdx.x) / kSumWeights;
  const int64_t weight = static_cast<int64_t>(blockIdx.x) * kSumWeights + lane;
  double sum = 0;
  if (weight < weights) {
#pragma unroll 4
    for (int chunk = slice; chunk < chunks; chunk += kSumSlices) sum += partial[chunk * weights + weight];
  }
  slice_sums[threadIdx.x] = sum;
  __syncthreads();
  if (slice != 0 || weight >= weights) return;
#pragma unroll
  for (int i = 1; i < kSumSlices; ++i) sum += slice_sums[i * kSumWeights + lane];
  weight_grad[weight] = static_cast<T>(sum);
}

template <typename T>
void launch_sum_chunks(const accumulate_t<T>* partial, T* weight_grad, const Geometry& geometry, int chunks,
                       cudaStream_t stream) {
  const int64_t weights = geometry.output_channels() * geometry.taps();
  const char* name = "depthwise_conv2d_weight_grad: sum";
  constexpr int kThreads = kSumWeights * kSumSlices;
  sum_chunks<T><<<grid_of(ceil_divide<int64_t>(weights, kSumWeights), name), kThreads,
                  kThreads * sizeof(double), stream>>>(partial, weight_grad, weights, chunks);
  check_launch(name);
}

template <typename T>
void launch_sum_chunks(const accumulate_t<T>* partial, const GradOfWeight<T>& weight_grad,
                       const Geometry& geometry, int chunks, cudaStream_t stream) {
  if (weight_grad.rounded != nullptr) {
    launch_sum_chunks<T>(partial, weight_grad.rounded, geometry, chunks, stream);
  } else {
    launch_sum_chunks<accumulate_t<T>>(partial, weight_grad.sums, geometry, chunks, stream);
  }
}

// Adds up `count` values that lie `stride` apart in shared memory, in order.
template <typename Accumulate>
__device__ Accumulate sum_in_order(const Accumulate* values, int count, int stride) {
  double sum = values[0];
  for (int i = 1; i < count; ++i) sum += values[i * stride];
  return static_cast<Accumulate>(sum);
}

}  // namespace torchgraft::depthwise::cuda
