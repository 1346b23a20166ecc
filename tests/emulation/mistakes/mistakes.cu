// Kernels with one mistake each, that the emulator must see, and the same without it.
//
// Each gets n numbers of float and writes as many. `sum` kernels give every number the sum of its block's 64.

#include <cooperative_groups.h>
#include <torchgraft/dispatch.h>
#include <torchgraft/layout.h>
#include <torchgraft/registration.h>
#include <torchgraft/cuda.cuh>
#include <torchgraft/ptx.cuh>

#include <atomic>

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

// The sum of a block, with all that a declaration of shared memory may hold.
__global__ void declare_kernel(const float* from, float* to) {
  __shared__ unsigned long long first, second;
  __shared__ float pairs[2][kThreads / 2], sums[2], all;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + thread;
  pairs[thread % 2][thread / 2] = from[index];
  if (thread == 0) first = 3;
  if (thread == 1) second = 4;
  __syncthreads();
  if (thread < 2) {
    sums[thread] = 0;
    for (int i = 0; i < kThreads / 2; ++i) sums[thread] += pairs[thread][i];
  }
  __syncthreads();
  if (thread == 0) all = sums[0] + sums[1];
  __syncthreads();
  to[index] = first * second == 12 ? all : -1;
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

// Each number of a warp reversed, through shared memory.
template <bool kMistake>
__global__ void reverse_kernel(const float* from, float* to) {
  __shared__ float values[kThreads];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads;
  values[thread] = from[first + thread];
  // The mistake: lanes meet, but a vote does not order memory.
  if (kMistake) {
    __any_sync(0xffffffff, 1);
  } else {
    __syncwarp();
  }
  to[first + thread] = values[thread ^ 31];
}

// Numbers as they are; or those of all blocks in the same place.
template <bool kMistake>
__global__ void write_kernel(const float* from, float* to) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  to[kMistake ? threadIdx.x : index] = from[index];
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

// Two blocks of a cluster give each other their numbers, sixteen bytes a thread.
template <bool kMistake>
__global__ void send_kernel(const float* from, float* to) {
  float* values = shared_memory<float>();
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(values));
  const uint32_t barrier = address + kThreads * sizeof(float);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    ptx::mbarrier_init(barrier, 1);
    // The mistake: more is expected than comes.
    ptx::mbarrier_arrive_expect_tx(barrier, kThreads * sizeof(float) + (kMistake ? 16 : 0));
    ptx::fence_mbarrier_init();
  }
  const auto cluster = cooperative_groups::this_cluster();
  cluster.sync();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads;
  if (thread < kThreads / 4) {
    const uint32_t other = cluster.block_rank() ^ 1;
    const auto four = *reinterpret_cast<const uint4*>(from + first + 4 * thread);
    ptx::st_async(ptx::mapa(address + 16 * static_cast<uint32_t>(thread), other), four,
                  ptx::mapa(barrier, other));
  }
  ptx::mbarrier_wait(barrier, 0);
  to[first + thread] = values[thread];
}

// Beside an array that it declares a block asks for as much as there is without asking.
__global__ void declared_kernel(const float* from, float* to) {
  __shared__ float values[kThreads];
  values[threadIdx.x] = from[threadIdx.x];
  to[static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x] = values[threadIdx.x];
}

// What it is compiled for.
__global__ void architecture_kernel(float* to) {
  to[static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x] = __CUDA_ARCH__;
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

template <Mistake kMistake, unsigned kBlock = kThreads>
Tensor sum(Tensor input) {
  return on(input, [](const float* from, float* to, unsigned blocks, cudaStream_t stream) {
    sum_kernel<kMistake><<<blocks, kBlock, 0, stream>>>(from, to);
  });
}

Tensor declare(Tensor input) {
  return on(input, [](const float* from, float* to, unsigned blocks, cudaStream_t stream) {
    declare_kernel<<<blocks, kThreads, 0, stream>>>(from, to);
  });
}

template <bool kMistake>
Tensor shuffle(Tensor input) {
  return on(input, [](const float* from, float* to, unsigned blocks, cudaStream_t stream) {
    shuffle_kernel<kMistake><<<blocks, kThreads, 0, stream>>>(from, to);
  });
}

template <bool kMistake>
Tensor reverse(Tensor input) {
  return on(input, [](const float* from, float* to, unsigned blocks, cudaStream_t stream) {
    reverse_kernel<kMistake><<<blocks, kThreads, 0, stream>>>(from, to);
  });
}

template <bool kMistake>
Tensor write(Tensor input) {
  return on(input, [](const float* from, float* to, unsigned blocks, cudaStream_t stream) {
    write_kernel<kMistake><<<blocks, kThreads, 0, stream>>>(from, to);
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

template <bool kMistake, unsigned kBlocksOfCluster = 2>
Tensor send(Tensor input) {
  return on(input, [](const float* from, float* to, unsigned blocks, cudaStream_t stream) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = kBlocksOfCluster;
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = kThreads * sizeof(float) + 8;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    cudaLaunchKernelEx(&config, send_kernel<kMistake>, from, to);
  });
}

Tensor declared(Tensor input) {
  return on(input, [](const float* from, float* to, unsigned blocks, cudaStream_t stream) {
    declared_kernel<<<blocks, kThreads, 48 * 1024, stream>>>(from, to);
  });
}

// All numbers are what the kernel is compiled for, but the first two: what a host function takes it to be
// compiled for, and what the device is.
Tensor architecture(Tensor input) {
  return on(input, [](const float*, float* to, unsigned blocks, cudaStream_t stream) {
    const int compiled_for = architecture_of_kernels();
    architecture_kernel<<<blocks, kThreads, 0, stream>>>(to);
    to[0] = static_cast<float>(compiled_for);
    to[1] = static_cast<float>(current_device().architecture);
  });
}

// Twice whether a block may have a number of bytes of shared memory, then the error that is left behind.
Tensor allowed(Tensor input) {
  return on(input, [](const float* from, float* to, unsigned, cudaStream_t) {
    const auto kernel = reinterpret_cast<const void*>(architecture_kernel);
    // What host functions share with other threads is no access of a kernel's.
    static std::atomic<bool> wanted{false};
    static std::atomic<int64_t> calls{0};
    wanted.store(true);
    if (wanted.load() && calls.fetch_add(1) < 0) calls.exchange(0);
    for (int i = 0; i < 2; ++i) to[i] = allow_shared_memory(kernel, static_cast<int64_t>(from[i])) ? 1 : 0;
    to[2] = static_cast<float>(cudaGetLastError());
  });
}

}  // namespace

// One operator a kernel: with a mistake, or the same without it.
#define MISTAKES(EACH)                                       \
  EACH(sum, (sum<Mistake::none>))                            \
  EACH(no_barrier, (sum<Mistake::no_barrier>))               \
  EACH(barrier_in_branch, (sum<Mistake::barrier_in_branch>)) \
  EACH(early_return, (sum<Mistake::early_return>))           \
  EACH(overrun, (sum<Mistake::overrun>))                     \
  EACH(unwritten, (sum<Mistake::unwritten>))                 \
  EACH(declare, declare)                                     \
  EACH(shuffle, (shuffle<false>))                            \
  EACH(shuffle_of_half_a_warp, (shuffle<true>))              \
  EACH(reverse, (reverse<false>))                            \
  EACH(vote_for_a_barrier, (reverse<true>))                  \
  EACH(write, (write<false>))                                \
  EACH(blocks_write_over_each_other, (write<true>))          \
  EACH(copy, (copy<true>))                                   \
  EACH(copy_not_waited_for, (copy<false>))                   \
  EACH(matrix, (matrix<0>))                                  \
  EACH(matrix_off_its_boundary, (matrix<1>))                 \
  EACH(matrix_outside, (matrix<512>))                        \
  EACH(send, (send<false>))                                  \
  EACH(more_bytes_expected, (send<true>))                    \
  EACH(too_much_shared_memory, (matrix<0, 64 * 1024>))       \
  EACH(too_much_declared, declared)                          \
  EACH(too_many_threads, (sum<Mistake::none, 2 * kThreads>)) \
  EACH(too_large_cluster, (send<false, 16>))                 \
  EACH(empty_cluster, (send<false, 0>))                      \
  EACH(architecture, architecture)                           \
  EACH(allowed, allowed)

#define DEFINE(NAME, FUNCTION) library.def(#NAME "(Tensor input) -> Tensor");
#define IMPLEMENT(NAME, FUNCTION) library.impl(#NAME, TORCH_BOX(&FUNCTION));

// One process may load both.
#ifdef EMULATION_RACES
STABLE_TORCH_LIBRARY(watched_mistakes, library){
    MISTAKES(DEFINE)} STABLE_TORCH_LIBRARY_IMPL(watched_mistakes, CPU, library){MISTAKES(IMPLEMENT)}
#else
STABLE_TORCH_LIBRARY(emulated_mistakes,
                     library){MISTAKES(DEFINE)} STABLE_TORCH_LIBRARY_IMPL(emulated_mistakes, CPU, library) {
  MISTAKES(IMPLEMENT)
}
#endif

}  // namespace emulated_mistakes
