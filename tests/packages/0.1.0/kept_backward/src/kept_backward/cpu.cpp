// kept_backward on CPU: one pass through memory, on all threads.

#include <torchgraft/arguments.h>
#include <torchgraft/cpu.h>
#include <torchgraft/dispatch.h>
#include <torchgraft/layout.h>
#include <torchgraft/registration.h>

namespace kept_backward {

using namespace torchgraft;

namespace {

// A thread is worth waking for this many elements and no fewer.
constexpr int64_t kGrain = 32768;

// One function a dtype, because instruction sets cannot be chosen for templates (torchgraft/cpu.h).
#define FORWARD_ROW(T)                                                                                   \
  TORCHGRAFT_CLONES void forward_row(const T* input, accumulate_t<T> factor, T* output, int64_t count) { \
    for (int64_t i = 0; i < count; ++i) {                                                                \
      const auto value = static_cast<accumulate_t<T>>(input[i]);                                         \
      output[i] = static_cast<T>(factor * value * value);                                                \
    }                                                                                                    \
  }
FORWARD_ROW(double)
FORWARD_ROW(float)
FORWARD_ROW(Half)
FORWARD_ROW(BFloat16)
#undef FORWARD_ROW

Tensor kept_backward_cpu(Tensor input, double factor) {
  return dispatch_floating(input.scalar_type(), "kept_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Tensor source = to_dense(input, "input");
    Tensor output = empty_as(source);
    const T* from = data_of<T>(source);
    T* to = mutable_data_of<T>(output);
    const auto rounded = static_cast<accumulate_t<T>>(factor);
    parallel_for(0, output.numel(), kGrain, [&](int64_t begin, int64_t end) {
      forward_row(from + begin, rounded, to + begin, end - begin);
    });
    return output;
  });
}

#define BACKWARD_ROW(T)                                                                             \
  TORCHGRAFT_CLONES void backward_row(const T* output_grad, const T* input, accumulate_t<T> factor, \
                                      T* input_grad, int64_t count) {                               \
    using A = accumulate_t<T>;                                                                      \
    for (int64_t i = 0; i < count; ++i) {                                                           \
      const A slope = 2 * factor * static_cast<A>(input[i]);                                        \
      input_grad[i] = static_cast<T>(slope * static_cast<A>(output_grad[i]));                       \
    }                                                                                               \
  }
BACKWARD_ROW(double)
BACKWARD_ROW(float)
BACKWARD_ROW(Half)
BACKWARD_ROW(BFloat16)
#undef BACKWARD_ROW

Tensor kept_backward_backward_cpu(Tensor output_grad, Tensor input, double factor) {
  check_alike(input, "input", output_grad, "output_grad");
  TORCHGRAFT_CHECK(output_grad.sizes().equals(input.sizes()), "output_grad must have the sizes of input");
  return dispatch_floating(input.scalar_type(), "kept_backward_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    // Contiguous, so that both run through memory in the same order.
    const Tensor source = to_contiguous(input, "input"), grads = to_contiguous(output_grad, "output_grad");
    Tensor input_grad = empty_as(source);
    const T* from = data_of<T>(source);
    const T* grad = data_of<T>(grads);
    T* to = mutable_data_of<T>(input_grad);
    const auto rounded = static_cast<accumulate_t<T>>(factor);
    parallel_for(0, input_grad.numel(), kGrain, [&](int64_t begin, int64_t end) {
      backward_row(grad + begin, from + begin, rounded, to + begin, end - begin);
    });
    return input_grad;
  });
}

}  // namespace

TORCHGRAFT_KERNEL(kept_backward, CPU, kept_backward, kept_backward_cpu)
TORCHGRAFT_KERNEL(kept_backward, CPU, kept_backward_backward, kept_backward_backward_cpu)

}  // namespace kept_backward
