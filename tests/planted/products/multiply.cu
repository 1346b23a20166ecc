// The control: two tensors of the same sizes, element by element.

#include <torchgraft/dispatch.h>
#include <torchgraft/layout.h>
#include <torchgraft/registration.h>

#include <algorithm>
#include <torchgraft/cuda.cuh>

namespace planted {
namespace {

using namespace torchgraft;

constexpr int kThreads = 256;

template <typename T>
__global__ void multiply_pairs(const T* left, const T* right, T* to, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  to[i] = static_cast<T>(static_cast<accumulate_t<T>>(left[i]) * static_cast<accumulate_t<T>>(right[i]));
}

Tensor multiply_cuda(Tensor left, Tensor right) {
  check_same_kind(left, "left", right, "right");
  TORCHGRAFT_CHECK(left.dim() == right.dim() &&
                       std::equal(left.sizes().begin(), left.sizes().end(), right.sizes().begin()),
                   "left and right must have the same sizes");
  return dispatch_floating(left.scalar_type(), "multiply", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Launch scope(left);
    const Tensor one = to_contiguous(left);
    const Tensor other = to_contiguous(right);
    Tensor output = torch::stable::new_empty(one, one.sizes());
    const int64_t count = output.numel();
    if (count == 0) return output;
    multiply_pairs<<<grid_of(ceil_divide<int64_t>(count, kThreads), "multiply"), kThreads, 0,
                     scope.stream()>>>(static_cast<const T*>(one.const_data_ptr()),
                                       static_cast<const T*>(other.const_data_ptr()),
                                       static_cast<T*>(output.mutable_data_ptr()), count);
    check_launch("multiply");
    return output;
  });
}

}  // namespace

TORCHGRAFT_KERNEL(planted, CUDA, multiply, multiply_cuda)

}  // namespace planted
