// multi_tensor_sgd on CPU: all tensors are cut into chunks, and threads take chunks, whichever tensor they
// belong to. A model has hundreds of small tensors, and a loop over tensors would leave threads idle.
//
// Each element is read once and written once, before the next one is read, so that a tensor may be its own
// gradient. What does not lie straight in memory is copied, and copied back.

#include <torchgraft/cpu.h>
#include <torchgraft/dispatch.h>
#include <torchgraft/layout.h>
#include <torchgraft/registration.h>

#include <algorithm>
#include <string>
#include <vector>

namespace torchgraft {
namespace {

// So many elements are a chunk: three tensors of them fit a second-level cache.
constexpr int64_t kChunk = 16384;

// The numbers of a step.
struct Step {
  double learning_rate, momentum_decay, dampening, weight_decay;
  bool nesterov, is_first;
};

// Part of a tensor: which, and from which element on.
struct Chunk {
  size_t tensor;
  int64_t begin;
};

// One function a dtype, because `target_clones` does not apply to templates.
#define STEP_CHUNK(T)                                                                                     \
  TORCHGRAFT_CLONES void step_chunk(T* parameter, const T* grad, T* momentum, int64_t count, Step step) { \
    using A = accumulate_t<T>;                                                                            \
    const A rate = static_cast<A>(step.learning_rate), decay = static_cast<A>(step.momentum_decay);       \
    const A share = static_cast<A>(1 - step.dampening), weight = static_cast<A>(step.weight_decay);       \
    for (int64_t i = 0; i < count; ++i) {                                                                 \
      const A before = static_cast<A>(parameter[i]);                                                      \
      const A decayed = static_cast<A>(grad[i]) + weight * before;                                        \
      const A moved = step.is_first ? decayed : decay * static_cast<A>(momentum[i]) + share * decayed;    \
      momentum[i] = static_cast<T>(moved);                                                                \
      parameter[i] = static_cast<T>(before - rate * (step.nesterov ? decayed + decay * moved : moved));   \
    }                                                                                                     \
  }
STEP_CHUNK(double)
STEP_CHUNK(float)
STEP_CHUNK(Half)
STEP_CHUNK(BFloat16)
#undef STEP_CHUNK

bool same_sizes(const Tensor& left, const Tensor& right) {
  return std::ranges::equal(left.sizes(), right.sizes());
}

// Raises for lists that do not fit each other, before anything is written.
void check_lists(const std::vector<Tensor>& parameters, const std::vector<Tensor>& others,
                 const std::string& name) {
  TORCHGRAFT_CHECK(others.size() == parameters.size(), name, " must have as many elements as parameters");
  for (size_t i = 0; i < parameters.size(); ++i) {
    check_memory(others[i], name.c_str());
    check_same_kind(others[i], name.c_str(), parameters[0], "parameters");
    TORCHGRAFT_CHECK(same_sizes(others[i], parameters[i]), name, " must have the sizes of parameters");
  }
}

std::vector<Tensor> straight(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> found;
  for (const Tensor& tensor : tensors) found.push_back(to_contiguous(tensor));
  return found;
}

// Moves copies to where they belong; what is no copy is there already.
void copy_back(const std::vector<Tensor>& copies, std::vector<Tensor>& tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].is_contiguous()) torch::stable::copy_(tensors[i], copies[i]);
  }
}

void multi_tensor_sgd_cpu(std::vector<Tensor> parameters, std::vector<Tensor> grads,
                          std::vector<Tensor> momentum, double learning_rate, double momentum_decay,
                          double dampening, double weight_decay, bool nesterov, bool is_first) {
  if (parameters.empty() && grads.empty() && momentum.empty()) return;
  check_lists(parameters, parameters, "parameters");
  check_lists(parameters, grads, "grads");
  check_lists(parameters, momentum, "momentum");
  dispatch_floating(parameters[0].scalar_type(), "multi_tensor_sgd", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const std::vector<Tensor> to = straight(parameters), from = straight(grads),
                              averages = straight(momentum);
    std::vector<Chunk> chunks;
    for (size_t i = 0; i < to.size(); ++i) {
      for (int64_t begin = 0; begin < to[i].numel(); begin += kChunk) chunks.push_back({i, begin});
    }
    const Step step = {learning_rate, momentum_decay, dampening, weight_decay, nesterov, is_first};
    parallel_for(0, static_cast<int64_t>(chunks.size()), 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const auto [tensor, begin] = chunks[i];
        const int64_t count = std::min(kChunk, to[tensor].numel() - begin);
        step_chunk(mutable_data_of<T>(to[tensor]) + begin, data_of<T>(from[tensor]) + begin,
                   mutable_data_of<T>(averages[tensor]) + begin, count, step);
      }
    });
    copy_back(to, parameters);
    copy_back(averages, momentum);
  });
}

}  // namespace

TORCHGRAFT_KERNEL(gallery_multi_tensor_sgd, CPU, multi_tensor_sgd, multi_tensor_sgd_cpu)

}  // namespace torchgraft
