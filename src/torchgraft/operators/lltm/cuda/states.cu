// Two tensors of states as new ones, in one launch: h and c after a sequence, and their gradients before it
// and after it. Each is a few numbers, and a launch of its own would take as long as both.

#include <torchgraft/cuda.cuh>

#include "dynamic_dtype.cuh"
#include "kernels.h"

namespace torchgraft::lltm::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    states_copy(DynamicInput one, DynamicInput other, DynamicOutput into_one, DynamicOutput into_other,
                int64_t count) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= count) return;
  into_one.store(index, one ? one[index] : 0.0f);
  into_other.store(index, other ? other[index] : 0.0f);
}

}  // namespace

std::array<Tensor, 2> copies_of_states(const std::optional<Tensor>& one, const std::optional<Tensor>& other,
                                       const Sizes& sizes, ScalarType dtype, const Tensor& like,
                                       cudaStream_t stream) {
  if (dtype == ScalarType::Double) {
    return {state_or_zeros(one, sizes, dtype, like), state_or_zeros(other, sizes, dtype, like)};
  }
  std::array<Tensor, 2> copies = {empty_of({sizes.batch, sizes.units}, dtype, like),
                                  empty_of({sizes.batch, sizes.units}, dtype, like)};
  const int64_t count = sizes.batch * sizes.units;
  if (count == 0) return copies;
  const auto contiguous = [](const std::optional<Tensor>& state) {
    return state.has_value() ? std::optional<Tensor>(to_contiguous(*state)) : std::nullopt;
  };
  const std::optional<Tensor> first = contiguous(one);
  const std::optional<Tensor> second = contiguous(other);
  states_copy<<<grid_of(ceil_divide<int64_t>(count, kThreads), "lltm"), kThreads, 0, stream>>>(
      DynamicInput(first), DynamicInput(second), DynamicOutput(copies[0]), DynamicOutput(copies[1]), count);
  check_launch("lltm");
  return copies;
}

}  // namespace torchgraft::lltm::cuda
