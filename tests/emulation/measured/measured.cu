// Three kernels that compute the same, the numbers of a tensor times two: the policy always chooses the
// slowest.

#include <torchgraft/choice.h>
#include <torchgraft/layout.h>
#include <torchgraft/registration.h>
#include <torchgraft/cuda.cuh>

namespace emulated_measured {
namespace {

using namespace torchgraft;

struct Problem {
  int64_t count;
};

struct Rule {
  const char* name;
  bool (*supports)(const Problem&);
  bool (*pays)(const Problem&);
  int work;
};

bool is_even(const Problem& problem) { return problem.count % 2 == 0; }
bool never(const Problem&) { return false; }

constexpr Rule kRules[] = {
    {"quick", is_even, never, 1}, {"slow", always, always, 100000}, {"middle", always, never, 10000}};
TORCHGRAFT_KERNELS(doubled, kRules)

constexpr int kThreads = 32;

__global__ void __launch_bounds__(kThreads)
    doubled_kernel(const float* from, float* to, int count, int work) {
  const int index = static_cast<int>(threadIdx.x);
  float sum = 0;
  for (int i = 0; i < work; ++i) sum += static_cast<float>(i % 2);
  if (index < count) to[index] = 2 * from[index] + 0 * sum;
}

Tensor doubled_with(const Tensor& input, int work) {
  Tensor output = empty_as(input);
  const Launch launch(input);
  doubled_kernel<<<1, kThreads, 0, launch.stream()>>>(static_cast<const float*>(input.const_data_ptr()),
                                                      static_cast<float*>(output.mutable_data_ptr()),
                                                      static_cast<int>(input.numel()), work);
  return output;
}

Tensor doubled_cuda(Tensor input) {
  const int64_t count = input.numel();
  return doubled_with(input, choose(kRules, Problem{count}).work);
}

// It stands for PyTorch's operator.
Tensor doubled_by_pytorch(Tensor input) {
  TORCHGRAFT_CHECK(input.numel() <= 8, "more than eight numbers");
  return doubled_with(input, 2000);
}

}  // namespace

TORCHGRAFT_KERNEL_BESIDE(emulated_measured, CUDA, doubled, doubled_cuda, &doubled_by_pytorch)

}  // namespace emulated_measured
