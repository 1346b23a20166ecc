// Chains of multiply-adds in registers: how many operations a second the GPU's scalar units can do.
//
// A thread keeps eight chains, eight blocks of 256 threads fill a multiprocessor; nothing is read, and each
// chain is written once at the end.

#include <torch/csrc/stable/library.h>
#include <torchgraft/dispatch.h>
#include <torchgraft/layout.h>
#include <torchgraft/cuda.cuh>

namespace torchgraft {
namespace {

constexpr int kThreads = 256;
constexpr int kChains = 8;
constexpr int kBlocks = 132 * 8 * 8;

template <typename T>
__global__ void __launch_bounds__(kThreads)
    multiply_adds_kernel(T factor, T* __restrict__ result, int64_t steps) {
  T sums[kChains];
#pragma unroll
  for (int i = 0; i < kChains; ++i) sums[i] = static_cast<T>(i) + static_cast<T>(threadIdx.x);
  for (int64_t step = 0; step < steps; step += 8) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int i = 0; i < kChains; ++i) sums[i] = sums[i] * factor + factor;
    }
  }
#pragma unroll
  for (int i = 0; i < kChains; ++i)
    result[(int64_t{blockIdx.x} * kChains + i) * kThreads + threadIdx.x] = sums[i];
}

Tensor multiply_adds_cuda(Tensor like, int64_t steps) {
  const bool is_double = like.scalar_type() == ScalarType::Double;
  TORCHGRAFT_CHECK(is_double || like.scalar_type() == ScalarType::Float,
                   "multiply_adds: like must be float64 or float32");
  TORCHGRAFT_CHECK(steps % 8 == 0, "multiply_adds: steps must be a multiple of 8");
  const Launch scope(like);
  const int64_t size = int64_t{kBlocks} * kThreads * kChains;
  const int64_t stride = 1;
  Tensor result = empty_strided(&size, &stride, 1, like);
  if (is_double) {
    multiply_adds_kernel<<<kBlocks, kThreads, 0, scope.stream()>>>(
        0.5, static_cast<double*>(result.mutable_data_ptr()), steps);
  } else {
    multiply_adds_kernel<<<kBlocks, kThreads, 0, scope.stream()>>>(
        0.5f, static_cast<float*>(result.mutable_data_ptr()), steps);
  }
  check_launch("multiply_adds");
  return result;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(torchgraft, CUDA, library) {
  library.impl("multiply_adds", TORCH_BOX(&multiply_adds_cuda));
}

}  // namespace torchgraft
