// kept_kinds on CPU: copies, until its author writes what it computes.

#include <torchgraft/arguments.h>
#include <torchgraft/cpu.h>
#include <torchgraft/dispatch.h>
#include <torchgraft/layout.h>
#include <torchgraft/registration.h>
#include <torchgraft/text.h>

#include <optional>
#include <tuple>
#include <vector>

namespace kept_kinds {

using namespace torchgraft;

namespace {

// A thread is worth waking for this many elements and no fewer.
constexpr int64_t kGrain = 32768;

// What the kernel computes of each element goes here: until then it is a copy.
Tensor copied(const Tensor& tensor, const char* name) {
  return dispatch_floating(tensor.scalar_type(), "kept_kinds", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Tensor source = to_dense(tensor, name);
    Tensor output = empty_as(source);
    const T* from = data_of<T>(source);
    T* to = mutable_data_of<T>(output);
    parallel_for(0, output.numel(), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] = from[i];
    });
    return output;
  });
}

std::vector<Tensor> copied(const std::vector<Tensor>& tensors, const char* name) {
  std::vector<Tensor> copies;
  for (const Tensor& tensor : tensors) copies.push_back(copied(tensor, name));
  return copies;
}

std::tuple<Tensor, std::vector<Tensor>> kept_kinds_cpu(
    Tensor input, std::optional<Tensor> other, std::vector<Tensor> more, int64_t /*n*/,
    std::vector<int64_t> /*sizes*/, std::vector<double> /*scales*/, bool /*flag*/, Text /*mode*/,
    std::optional<ScalarType> /*dtype*/, std::optional<torch::stable::Device> /*device*/, double /*eps*/) {
  check_alike(input, "input", other, "other", more, "more");
  return {copied(input, "input"), copied(more, "more")};
}

}  // namespace

TORCHGRAFT_KERNEL(kept_kinds, CPU, kept_kinds, kept_kinds_cpu)

}  // namespace kept_kinds
