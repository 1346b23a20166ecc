// causal_conv1d and its gradient on CPU: host functions, work for threads, registration.
//
// The kernels lie in cpu_channels_first.cpp and cpu_channels_last.cpp, by how the input lies in memory.
// Backward, each unit of work leaves its sums for the gradients of weight and bias, which are added up here
// in their order: on any number of threads the bits are the same.

#include <torchgraft/cpu.h>
#include <torchgraft/registration.h>

#include <vector>

#include "cpu_vectors.h"

namespace causal_conv1d {
namespace {

// Another thread joins in only for at least this many elements.
constexpr int64_t kGrain = 8192;

// Units of work: parts of the batch and the time, each of all channels, one after the other.
struct Work {
  int64_t parts;
  int64_t units;
  int64_t grain;
};

Work work_of(const Sizes& sizes) {
  const int64_t parts = sizes.batch * (sizes.channels_last ? count_stretches(sizes) : 1);
  const int64_t units = parts * (sizes.channels_last ? count_tiles(sizes) : sizes.channels);
  const int64_t elements = sizes.batch * sizes.channels * std::max<int64_t>(sizes.length, 1);
  return {parts, units, std::max<int64_t>(kGrain * units / std::max<int64_t>(elements, 1), 1)};
}

std::tuple<Tensor, Tensor> causal_conv1d_cpu(Tensor input, Tensor weight, std::optional<Tensor> bias,
                                             std::optional<Tensor> initial_state, bool silu) {
  return forward(input, weight, bias, initial_state, silu, []<typename T>(const Forward<T>& call) {
    const Work work = work_of(call.sizes);
    parallel_for(0, work.units, work.grain, [&](int64_t begin, int64_t end) {
      call.sizes.channels_last ? run_channels_last(call, begin, end) : run_channels_first(call, begin, end);
    });
  });
}

std::tuple<Tensor, Tensor, Tensor, Tensor> causal_conv1d_backward_cpu(
    Tensor output_grad, std::optional<Tensor> final_state_grad, Tensor input, Tensor weight,
    std::optional<Tensor> bias, std::optional<Tensor> initial_state, bool silu) {
  return backward(output_grad, final_state_grad, input, weight, bias, initial_state, silu,
                  []<typename T>(const Backward<T>& call) {
                    using A = accumulate_t<T>;
                    const Work work = work_of(call.sizes);
                    const int64_t channels = call.sizes.channels, width = call.sizes.width,
                                  columns = width + 1;
                    std::vector<A> partials(static_cast<size_t>(work.parts * channels * columns));
                    parallel_for(0, work.units, work.grain, [&](int64_t begin, int64_t end) {
                      call.sizes.channels_last ? run_channels_last(call, begin, end, partials.data())
                                               : run_channels_first(call, begin, end, partials.data());
                    });
                    for (int64_t column = 0; column < channels * columns; ++column) {
                      A sum = 0;
                      for (int64_t part = 0; part < work.parts; ++part)
                        sum += partials[part * channels * columns + column];
                      const int64_t channel = column / columns, tap = column % columns;
                      (tap < width ? call.weight_grad[channel * width + tap] : call.bias_grad[channel]) =
                          static_cast<T>(sum);
                    }
                  });
}

}  // namespace

TORCHGRAFT_KERNEL(causal_conv1d, CPU, causal_conv1d, causal_conv1d_cpu)
TORCHGRAFT_KERNEL(causal_conv1d, CPU, causal_conv1d_backward, causal_conv1d_backward_cpu)

}  // namespace causal_conv1d
