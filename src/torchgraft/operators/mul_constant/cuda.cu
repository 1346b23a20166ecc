// mul_constant on CUDA: one pass through memory, sixteen bytes a thread and access.
//
// A block owns 256 x sixteen bytes, a thread the sixteen bytes at its own index; nothing is shared. Each byte
// is read once and written once, so memory bounds it: floor = 2 x bytes / copy bandwidth. What does not fill
// sixteen bytes, at most seven elements at the end, or an input that does not start on a sixteen-byte
// boundary, goes one element a thread.

#include <torchgraft/dispatch.h>
#include <torchgraft/layout.h>
#include <torchgraft/registration.h>
#include <torchgraft/cuda.cuh>

namespace torchgraft {
namespace {

constexpr int kThreads = 256;

template <typename T, int kElements>
__global__ void __launch_bounds__(kThreads)
    mul_constant_kernel(const T* __restrict__ input, accumulate_t<T> constant, T* __restrict__ output,
                        int64_t count) {
  using Access = Vector<T, kElements>;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= count) return;
  Access values = reinterpret_cast<const Access*>(input)[index];
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    values[i] = static_cast<T>(static_cast<accumulate_t<T>>(values[i]) * constant);
  }
  reinterpret_cast<Access*>(output)[index] = values;
}

template <typename T, int kElements>
void launch(const T* input, double constant, T* output, int64_t count, cudaStream_t stream) {
  if (count == 0) return;
  const int64_t blocks = ceil_divide<int64_t>(count, kThreads);
  TORCHGRAFT_CHECK(blocks <= INT32_MAX, "mul_constant: input is too large for one launch");
  mul_constant_kernel<T, kElements><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      input, static_cast<accumulate_t<T>>(constant), output, count);
  check_launch("mul_constant");
}

Tensor mul_constant_cuda(Tensor input, double constant) {
  return dispatch_floating(input.scalar_type(), "mul_constant", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Launch scope(input);
    const Tensor source = to_dense(input, "input");
    Tensor output = empty_as(source);

    const T* from = data_of<T>(source, "input");
    T* to = mutable_data_of<T>(output);
    const int64_t count = output.numel();
    TORCHGRAFT_CHECK(is_aligned(to, 16), "mul_constant: a result must begin at a multiple of sixteen bytes");
    const int64_t whole = is_aligned(from, 16) ? count / kVectorElements<T> : 0;
    const int64_t done = whole * kVectorElements<T>;
    launch<T, kVectorElements<T>>(from, constant, to, whole, scope.stream());
    launch<T, 1>(from + done, constant, to + done, count - done, scope.stream());
    return output;
  });
}

}  // namespace

TORCHGRAFT_KERNEL(torchgraft, CUDA, mul_constant, mul_constant_cuda)

}  // namespace torchgraft
