// mul_constant on CPU: one pass through memory, in vectors, on all threads.

#include <torchgraft/cpu.h>
#include <torchgraft/dispatch.h>
#include <torchgraft/layout.h>
#include <torchgraft/registration.h>

namespace torchgraft {
namespace {

// Another thread joins in only for at least this many elements.
constexpr int64_t kGrain = 32768;

// One function a dtype, because `target_clones` does not apply to templates.
#define MUL_CONSTANT_ROW(T)                                                                    \
  TORCHGRAFT_CLONES void mul_constant_row(const T* input, accumulate_t<T> constant, T* output, \
                                          int64_t count) {                                     \
    for (int64_t i = 0; i < count; ++i) {                                                      \
      output[i] = static_cast<T>(static_cast<accumulate_t<T>>(input[i]) * constant);           \
    }                                                                                          \
  }
MUL_CONSTANT_ROW(double)
MUL_CONSTANT_ROW(float)
MUL_CONSTANT_ROW(Half)
MUL_CONSTANT_ROW(BFloat16)
#undef MUL_CONSTANT_ROW

Tensor mul_constant_cpu(Tensor input, double constant) {
  return dispatch_floating(input.scalar_type(), "mul_constant", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Tensor source = to_dense(input, "input");
    Tensor output = empty_as(source);

    const T* from = data_of<T>(source, "input");
    T* to = mutable_data_of<T>(output);
    const auto factor = static_cast<accumulate_t<T>>(constant);
    parallel_for(0, output.numel(), kGrain, [&](int64_t begin, int64_t end) {
      mul_constant_row(from + begin, factor, to + begin, end - begin);
    });
    return output;
  });
}

}  // namespace

TORCHGRAFT_KERNEL(torchgraft, CPU, mul_constant, mul_constant_cpu)

}  // namespace torchgraft
