// Wrong: the place of a row is counted in 32 bits.

#include "scale.cuh"

namespace planted {
namespace {

template <typename T>
__global__ void multiply_rows(const T* from, accumulate_t<T> by, T* to, int64_t columns, uint32_t row_stride,
                              int64_t column_stride, int64_t to_row_stride, int64_t to_column_stride) {
  const uint32_t row = blockIdx.y * row_stride;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= columns) return;
  to[blockIdx.y * to_row_stride + column * to_column_stride] = times(from[row + column * column_stride], by);
}

Tensor counts_in_32_bits_cuda(Tensor input, double factor) {
  if (input.dim() != 2 || input.numel() == 0 || input.size(0) > 65535) {
    return scale_with(input, factor,
                      [](const auto* from, auto by, auto* to, int64_t count, cudaStream_t stream) {
                        multiply_each<<<blocks_for(count), kThreads, 0, stream>>>(from, by, to, count);
                      });
  }
  return dispatch_floating(input.scalar_type(), "counts_in_32_bits", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Launch scope(input);
    Tensor output = torch::stable::empty_like(input);
    const dim3 blocks(blocks_for(input.size(1)), static_cast<unsigned>(input.size(0)));
    multiply_rows<<<blocks, kThreads, 0, scope.stream()>>>(
        static_cast<const T*>(input.const_data_ptr()), static_cast<accumulate_t<T>>(factor),
        static_cast<T*>(output.mutable_data_ptr()), input.size(1), static_cast<uint32_t>(input.stride(0)),
        input.stride(1), output.stride(0), output.stride(1));
    check_launch("counts_in_32_bits");
    return output;
  });
}

}  // namespace

TORCHGRAFT_KERNEL(planted, CUDA, counts_in_32_bits, counts_in_32_bits_cuda)

}  // namespace planted
