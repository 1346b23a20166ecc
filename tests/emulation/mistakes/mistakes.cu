// Kernels with one mistake each, that the emulator must see, and the same without it.
//
// Each gets n numbers of float and writes as many. `sum` kernels give every number the sum of its block's 64.

#include <torchgraft/dispatch.h>
#include <torchgraft/layout.h>
#include <torchgraft/registration.h>
#include <torchgraft/cuda.cuh>
#include <torchgraft/ptx.cuh>

namespace emulated_mistakes {
namespace {

using namespace torchgraft;

constexpr int kThreads = 64;

enum class Mistake {
  none,
  no_barrier,         // between writing shared memory and reading what others wrote
  barrier_in_branch,  // that half of the block takes
  early_return,       // of one thread, in front of a barrier
  overrun,            // of shared memory, by one
  unwritten,          // shared memory is read
};

template <Mistake kMistake>
__global__ void __launch_bounds__(kThreads) sum_kernel(const float* from, float* to) {
  __shared__ float values[kThreads];
  const int thread = static_cast<int>(threadIdx.x);
  if (kMistake == Mistake::early_return && thread == 5) return;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + thread;
  if (kMistake != Mistake::unwritten || thread != 7) values[thread] = from[index];
  if (kMistake == Mistake::overrun && thread == 0) values[thread + kThreads] = 1;
  if (kMistake == Mistake::barrier_in_branch) {
    if (thread < 32) __syncthreads();
  } else if (kMistake != Mistake::no_barrier) {
    __syncthreads();
  }
  float sum = 0;
  for (int i = 0; i < kThreads; ++i) sum += values[i];
  to[index] = sum;
}

// The sum of a warp's numbers, by shuffles.
template <bool kMistake>
__global__ void shuffle_kernel(const float* from, float* to) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  float sum = from[index];
  // The mistake: half of the warp comes here, and the mask names all of it.
  if (!kMistake || threadIdx.x % 32 < 16) {
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffff, sum, offset);
  }
  if (kMistake) __syncwarp();
  to[index] = sum;
}

// Copies through shared memory, four bytes a thread.
template <bool kWaits>
__global__ void copy_kernel(const float* from, float* to) {
  float* values = shared_memory<float>();
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  ptx::cp_async_ca<4>(static_cast<uint32_t>(__cvta_generic_to_shared(values + threadIdx.x)), from + index);
  ptx::cp_async_commit_group();
  if (kWaits) ptx::cp_async_wait_group<0>();
  __syncthreads();
  to[index] = values[threadIdx.x ^ 1];
}

// A warp's instruction on rows that must begin on a boundary of sixteen bytes.
__global__ void matrix_kernel(float* to, int offset) {
  auto* halves = shared_memory<uint16_t>();
  for (int i = static_cast<int>(threadIdx.x); i < 512; i += kThreads) halves[i] = static_cast<uint16_t>(i);
  __syncthreads();
  uint32_t matrices[4];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  ptx::ldmatrix(matrices, static_cast<uint32_t>(__cvta_generic_to_shared(halves + lane * 8 + offset)));
  to[static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x] = static_cast<float>(matrices[0] & 0xffff);
}

template <typename Launch_>
Tensor on(const Tensor& input, Launch_&& launch) {
  const Launch scope(input);
  Tensor output = empty_as(input);
  const auto blocks = grid_of(input.numel() / kThreads, "mistakes");
  launch(static_cast<const float*>(input.const_data_ptr()), static_cast<float*>(output.mutable_data_ptr()),
         blocks, scope.stream());
  check_launch("mistakes");
  return output;
}

template <Mistake kMistake>
Tensor sum(Tensor input) {
  return on(input, [](const float* from, float* to, unsigned blocks, cudaStream_t stream) {
    sum_kernel<kMistake><<<blocks, kThreads, 0, stream>>>(from, to);
  });
}

template <bool kMistake>
Tensor shuffle(Tensor input) {
  return on(input, [](const float* from, float* to, unsigned blocks, cudaStream_t stream) {
    shuffle_kernel<kMistake><<<blocks, kThreads, 0, stream>>>(from, to);
  });
}

template <bool kWaits>
Tensor copy(Tensor input) {
  return on(input, [](const float* from, float* to, unsigned blocks, cudaStream_t stream) {
    copy_kernel<kWaits><<<blocks, kThreads, kThreads * sizeof(float), stream>>>(from, to);
  });
}

template <int kOffset, size_t kBytes = 1040>
Tensor matrix(Tensor input) {
  return on(input, [](const float*, float* to, unsigned blocks, cudaStream_t stream) {
    matrix_kernel<<<blocks, kThreads, kBytes, stream>>>(to, kOffset);
  });
}

}  // namespace

STABLE_TORCH_LIBRARY(emulated_mistakes, library) {
  for (const char* name : {"sum", "no_barrier", "barrier_in_branch", "early_return", "overrun", "unwritten",
                           "shuffle", "shuffle_of_half_a_warp", "copy", "copy_not_waited_for", "matrix",
                           "matrix_off_its_boundary", "matrix_outside", "too_much_shared_memory"}) {
    library.def((std::string(name) + "(Tensor input) -> Tensor").c_str());
  }
}

STABLE_TORCH_LIBRARY_IMPL(emulated_mistakes, CPU, library) {
  library.impl("sum", TORCH_BOX(&sum<Mistake::none>));
  library.impl("no_barrier", TORCH_BOX(&sum<Mistake::no_barrier>));
  library.impl("barrier_in_branch", TORCH_BOX(&sum<Mistake::barrier_in_branch>));
  library.impl("early_return", TORCH_BOX(&sum<Mistake::early_return>));
  library.impl("overrun", TORCH_BOX(&sum<Mistake::overrun>));
  library.impl("unwritten", TORCH_BOX(&sum<Mistake::unwritten>));
  library.impl("shuffle", TORCH_BOX(&shuffle<false>));
  library.impl("shuffle_of_half_a_warp", TORCH_BOX(&shuffle<true>));
  library.impl("copy", TORCH_BOX(&copy<true>));
  library.impl("copy_not_waited_for", TORCH_BOX(&copy<false>));
  library.impl("matrix", TORCH_BOX(&matrix<0>));
  library.impl("matrix_off_its_boundary", TORCH_BOX(&matrix<1>));
  library.impl("matrix_outside", TORCH_BOX((&matrix<512>)));
  library.impl("too_much_shared_memory", TORCH_BOX((&matrix<0, 64 * 1024>)));
}

}  // namespace emulated_mistakes
