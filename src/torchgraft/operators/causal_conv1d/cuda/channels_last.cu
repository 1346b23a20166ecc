// causal_conv1d on CUDA where neighbouring channels are neighbours in memory.
//
// A thread owns four channels, two of float64, which it reads and writes as one vector, and walks along a
// stretch of time: it holds their last width - 1 inputs, and backward as many gradients, in registers. So all
// is read once, but for the width - 1 elements on which two stretches meet. Loads of several steps are under
// way together.
//
// Backward a gradient of the input is complete width - 1 steps after its time. A block owns 32 vectors of
// channels and eight stretches, and adds up what these give to the gradients of weight and bias.

#include "kernels.cuh"

namespace torchgraft::causal_conv1d {
namespace {

constexpr int kThreads = 256;
constexpr int kLanes = 32;
constexpr int kStretches = kThreads / kLanes;
// Fewer steps would read more of a stretch twice than the additional threads are worth.
constexpr int kFewestSteps = 8;
// A stretch takes so many steps to begin: for its weights, and the steps that it reads twice.
constexpr int kStepsToBegin = 8;
constexpr int kMost = INT32_MAX / 2;

template <typename T>
inline constexpr int kVector = sizeof(T) == 8 ? 2 : 4;
// Backward, more would not fit the registers of two blocks.
template <typename T>
inline constexpr int kVectorBackward = sizeof(T) == 8   ? 1
                                       : sizeof(T) == 2 ? 4
                                                        : 2;
// Steps whose loads are under way together: of small elements more, for as many bytes.
template <typename T>
inline constexpr int kUnrolled = sizeof(T) == 2 ? 8 : 4;
constexpr int kUnrolledBackward = 4;

// Weight and bias of the channels of a thread.
template <int kWidth, int kCount, typename A>
struct Weights {
  A taps[kWidth][kCount];
  A bias[kCount];

  template <typename T>
  __device__ Weights(const T* weight, const T* bias_of, int channel) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int tap = 0; tap < kWidth; ++tap) {
        taps[tap][i] = static_cast<A>(weight[(channel + i) * kWidth + tap]);
      }
      bias[i] = bias_of == nullptr ? A{0} : static_cast<A>(bias_of[channel + i]);
    }
  }
};

// The last values of each channel, the oldest first.
template <int kSize, int kCount, typename A>
struct Window {
  A values[kSize][kCount];

  __device__ void push(const A (&next)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int j = 0; j + 1 < kSize; ++j) values[j][i] = values[j + 1][i];
      values[kSize - 1][i] = next[i];
    }
  }
};

// The inputs just before a time.
template <int kWidth, int kCount, typename T, typename A>
__device__ void load_window(Window<kWidth - 1, kCount, A>& window, const View<const T>& input,
                            const View<const T>& initial_state, int item, int channel, int time) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const T* from = channel_of(input, item, channel + i);
    const T* state = channel_of(initial_state, item, channel + i);
#pragma unroll
    for (int j = 0; j < kWidth - 1; ++j) {
      window.values[j][i] = static_cast<A>(
          element_at<kWidth>(from, input.time, state, initial_state.time, time - kWidth + 1 + j));
    }
  }
}

template <int kWidth, int kCount, typename A>
__device__ void sum_up(A (&sums)[kCount], const Weights<kWidth, kCount, A>& weights,
                       const Window<kWidth - 1, kCount, A>& window, const A (&newest)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    sums[i] = weights.bias[i];
#pragma unroll
    for (int j = 0; j < kWidth - 1; ++j) sums[i] += weights.taps[j][i] * window.values[j][i];
    sums[i] += weights.taps[kWidth - 1][i] * newest[i];
  }
}

template <typename T, int kCount, typename A>
__device__ void store_vector(T* to, const A (&values)[kCount]) {
  Vector<T, kCount> stored;
#pragma unroll
  for (int i = 0; i < kCount; ++i) stored[i] = static_cast<T>(values[i]);
  *reinterpret_cast<Vector<T, kCount>*>(to) = stored;
}

template <int kCount, typename T, typename A>
__device__ void widen(A (&to)[kCount], const Packed<T, kCount>& from) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) to[i] = from[i];
}

template <typename T, int kWidth, int kCount>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(Forward<T> call, FastDivisor vectors, FastDivisor stretches, int steps, int count) {
  using A = accumulate_t<T>;
  const int index = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (index >= count) return;
  const int rest = vectors.divide(index), channel = (index - rest * vectors.divisor()) * kCount;
  const int item = stretches.divide(rest), stretch = rest - item * stretches.divisor();
  const int begin = stretch * steps, end = min(begin + steps, static_cast<int>(call.sizes.length));

  const Weights<kWidth, kCount, A> weights(call.weight, call.bias, channel);
  Window<kWidth - 1, kCount, A> window;
  load_window<kWidth, kCount>(window, call.input, call.initial_state, item, channel, begin);
  const T* input = channel_of(call.input, item, channel);
  T* output = channel_of(call.output, item, channel);
  // The next steps; all of them are in the stretch where they are `whole`.
  const auto walk = [&](int first, auto is_whole) {
    const T* from = input + first * call.input.time;
    T* to = output + first * call.output.time;
    Packed<T, kCount> loaded[kUnrolled<T>] = {};
#pragma unroll
    for (int u = 0; u < kUnrolled<T>; ++u) {
      if (is_whole || first + u < end) loaded[u].load(from + u * call.input.time);
    }
#pragma unroll
    for (int u = 0; u < kUnrolled<T>; ++u) {
      if (!is_whole && first + u >= end) break;
      A newest[kCount], sums[kCount];
      widen(newest, loaded[u]);
      sum_up(sums, weights, window, newest);
      if (call.silu) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) sums[i] = silu<T>(sums[i]);
      }
      store_vector<T, kCount>(to + u * call.output.time, sums);
      window.push(newest);
    }
  };
  int first = begin;
  for (; first + kUnrolled<T> <= end; first += kUnrolled<T>) walk(first, std::true_type{});
  if (first < end) walk(first, std::false_type{});

  if (stretch == stretches.divisor() - 1) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      T* final_state = channel_of(call.final_state, item, channel + i);
#pragma unroll
      for (int j = 0; j < kWidth - 1; ++j) {
        final_state[j * call.final_state.time] = static_cast<T>(window.values[j][i]);
      }
    }
  }
}

// Adds the gradient of a place of the final state to that of the element which it holds.
template <typename T, int kCount, typename A>
__device__ void add_final_state_grad(A (&results)[kCount], const Backward<T>& call, int item, int channel,
                                     int place) {
  if (call.final_state_grad.data == nullptr) return;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const T* grads = channel_of(call.final_state_grad, item, channel + i);
    results[i] += static_cast<A>(grads[place * call.final_state_grad.time]);
  }
}

// The arrays of a thread of the backward pass. They are no members of what uses them: the compiler would keep
// all members in memory until it has unrolled the loops.
template <int kWidth, int kCount, typename A>
struct BackwardArrays {
  const Weights<kWidth, kCount, A>& weights;
  Window<kWidth - 1, kCount, A>& inputs;
  Window<kWidth - 1, kCount, A>& grads;
  A (&sums)[kWidth + 1][kCount];  // for each channel of each tap, and then of the bias
};

// The way of a thread of the backward pass along its stretch, which adds to its sums.
template <typename T, int kWidth, int kCount>
class BackwardStretch {
 public:
  using A = accumulate_t<T>;

  // The stretch begins at `begin`, and ends before `end`.
  __device__ __forceinline__ BackwardStretch(const Backward<T>& call,
                                             const BackwardArrays<kWidth, kCount, A>& arrays, int item,
                                             int channel, int begin, int end)
      : call_(call),
        arrays_(arrays),
        item_(item),
        channel_(channel),
        begin_(begin),
        end_(end),
        earliest_(begin == 0 ? -kPast : begin),
        behind_(end + kPast),
        length_(static_cast<int>(call.sizes.length)),
        input_(channel_of(call.input, item, channel)),
        output_grad_(channel_of(call.output_grad, item, channel)),
        input_grad_(channel_of(call.input_grad, item, channel)) {}

  __device__ __forceinline__ void run() {
    int first = begin_;
    walk<false>(first);
    for (first += kUnrolledBackward; first + kUnrolledBackward <= end_; first += kUnrolledBackward)
      walk<true>(first);
    for (; first < behind_; first += kUnrolledBackward) walk<false>(first);
  }

 private:
  static constexpr int kPast = kWidth - 1;

  // Takes the next steps. They are whole where all that they read and complete lies in the stretch: then
  // nothing need be asked.
  template <bool kWhole>
  __device__ __forceinline__ void walk(int first) {
    const T* from = input_ + first * call_.input.time;
    const T* grads_from = output_grad_ + first * call_.output_grad.time;
    Packed<T, kCount> inputs[kUnrolledBackward] = {}, output_grads[kUnrolledBackward] = {};
#pragma unroll
    for (int u = 0; u < kUnrolledBackward; ++u) {
      const int time = first + u;
      if (kWhole || (time < behind_ && time < length_)) {
        inputs[u].load(from + u * call_.input.time);
        output_grads[u].load(grads_from + u * call_.output_grad.time);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnrolledBackward; ++u) {
      const int time = first + u;
      if (!kWhole && time >= behind_) break;
      A newest[kCount] = {}, grad[kCount] = {};
      if (kWhole || time < length_) {
        widen(newest, inputs[u]);
        widen(grad, output_grads[u]);
        if (call_.silu) multiply_by_slopes(grad, newest);
        if (kWhole || time < end_) add_products(grad, newest);
      }
      A results[kCount] = {};
      multiply<kWhole>(results, grad, time);
      arrays_.inputs.push(newest);
      arrays_.grads.push(grad);
      complete<kWhole>(results, time);
    }
  }

  // Makes gradients of the sums before SiLU of those behind it.
  __device__ __forceinline__ void multiply_by_slopes(A (&grad)[kCount], const A (&newest)[kCount]) const {
    A before[kCount];
    sum_up(before, arrays_.weights, arrays_.inputs, newest);
#pragma unroll
    for (int i = 0; i < kCount; ++i) grad[i] *= silu_slope<T>(before[i]);
  }

  __device__ __forceinline__ void add_products(const A (&grad)[kCount], const A (&newest)[kCount]) const {
    auto& sums = arrays_.sums;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int j = 0; j < kPast; ++j) sums[j][i] += grad[i] * arrays_.inputs.values[j][i];
      sums[kPast][i] += grad[i] * newest[i];
      sums[kWidth][i] += grad[i];
    }
  }

  // Computes the gradient of the input that is complete with `time`.
  template <bool kWhole>
  __device__ __forceinline__ void multiply(A (&results)[kCount], const A (&grad)[kCount], int time) const {
    const auto& earlier = arrays_.grads.values;
#pragma unroll
    for (int tap = 0; tap < kWidth; ++tap) {
      // Products with what lies outside are left out, rather than made zero: the weight may be infinite.
      if (!kWhole && !is_inside(time - tap, length_)) continue;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        results[i] +=
            arrays_.weights.taps[tap][i] * (tap == 0 ? grad[i] : earlier[kWidth - 1 - max(tap, 1)][i]);
      }
    }
  }

  // Stores the gradient that is complete with `time`, of the input or of the past.
  template <bool kWhole>
  __device__ __forceinline__ void complete(A (&results)[kCount], int time) const {
    const int complete = time - kPast;
    if (!kWhole && complete < earliest_) return;
    if (!kWhole && time >= length_) add_final_state_grad<T>(results, call_, item_, channel_, time - length_);
    if (kWhole || complete >= 0) {
      store_vector<T, kCount>(input_grad_ + complete * call_.input_grad.time, results);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        channel_of(call_.initial_state_grad, item_, channel_ + i)[time * call_.initial_state_grad.time] =
            static_cast<T>(results[i]);
      }
    }
  }

  const Backward<T>& call_;
  const BackwardArrays<kWidth, kCount, A> arrays_;
  const int item_, channel_;  // channel_: the first one
  const int begin_, end_;
  // A stretch completes the gradients of its own times; the first one those of the past too.
  const int earliest_, behind_;
  const int length_;
  const T* input_;
  const T* output_grad_;
  T* input_grad_;
};

template <typename T, int kWidth, int kCount>
__global__ void __launch_bounds__(kThreads, 2)
    backward_kernel(Backward<T> call, accumulate_t<T>* partials, FastDivisor groups,
                    FastDivisor stretch_groups, int steps) {
  using A = accumulate_t<T>;
  constexpr int kSums = kCount * (kWidth + 1);
  const int channels = static_cast<int>(call.sizes.channels), length = static_cast<int>(call.sizes.length);
  const int lane = static_cast<int>(threadIdx.x) % kLanes, turn = static_cast<int>(threadIdx.x) / kLanes;
  const int part = groups.divide(static_cast<int>(blockIdx.x));
  const int channel = ((static_cast<int>(blockIdx.x) - part * groups.divisor()) * kLanes + lane) * kCount;
  const int item = stretch_groups.divide(part);
  const int begin = ((part - item * stretch_groups.divisor()) * kStretches + turn) * steps;

  A sums[kWidth + 1][kCount] = {};
  if (channel < channels && (begin < length || begin == 0)) {
    const Weights<kWidth, kCount, A> weights(call.weight, call.bias, channel);
    Window<kWidth - 1, kCount, A> inputs, grads = {};
    load_window<kWidth, kCount>(inputs, call.input, call.initial_state, item, channel, begin);
    BackwardStretch<T, kWidth, kCount>(call, {weights, inputs, grads, sums}, item, channel, begin,
                                       min(begin + steps, length))
        .run();
  }

  // In the order of time, so that the bits are the same at each run.
  __shared__ A of_stretches[kStretches][kSums][kLanes];
#pragma unroll
  for (int j = 0; j <= kWidth; ++j) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) of_stretches[turn][i * (kWidth + 1) + j][lane] = sums[j][i];
  }
  __syncthreads();
  if (channel >= channels) return;
  A* const to = partials + (static_cast<int64_t>(part) * channels + channel) * (kWidth + 1);
  for (int j = turn; j < kSums; j += kStretches) {
    A total = 0;
#pragma unroll
    for (int other = 0; other < kStretches; ++other) total += of_stretches[other][j][lane];
    to[j] = total;
  }
}

// Whether the channels of each item and time can be read as vectors.
template <int kCount, typename T, typename... Views>
bool has_vectors(const Sizes& sizes, const Views&... views) {
  return sizes.channels % kCount == 0 && ((is_aligned(views.data, kCount * sizeof(T)) &&
                                           views.batch % kCount == 0 && views.time % kCount == 0) &&
                                          ...);
}

template <int kCount, typename Function>
void dispatch(const Sizes& sizes, bool vectors, const Function& function) {
  dispatch_width(sizes.width, [&](auto width) {
    if (vectors) {
      function(width, std::integral_constant<int, kCount>{});
    } else {
      function(width, std::integral_constant<int, 1>{});
    }
  });
}

// How many steps of time a thread takes. A wave is what the device runs at once, and a call takes as long as
// its waves: a last wave of a few threads takes as long as a full one. So the stretches are cut such that
// they fill the waves, one or several, in the least time. A cut of an item is `stretches` of them, and a cut
// of all items takes `size` of the `resident` blocks or threads of a wave.
int steps_of(int64_t length, int stretches, int64_t size, int64_t resident) {
  constexpr int64_t kMoreWaves = 8;
  int64_t best = length, least = INT64_MAX;
  const int64_t fewest = ceil_divide(size, resident);
  for (int64_t waves = fewest; waves < fewest + kMoreWaves; ++waves) {
    const int64_t cuts = std::max<int64_t>(waves * resident / size, 1);
    const int64_t steps = std::max<int64_t>(ceil_divide(length, cuts * stretches), kFewestSteps);
    const int64_t used = ceil_divide(ceil_divide(length, steps), int64_t{stretches});
    const int64_t time = ceil_divide(used * size, resident) * (steps + kStepsToBegin);
    if (time < least) {
      best = steps;
      least = time;
    }
  }
  return static_cast<int>(best);
}

// Stretches of an item. An empty one has a state too.
int count_stretches(const Sizes& sizes, int steps) {
  TORCHGRAFT_CHECK(sizes.length < kMost, "causal_conv1d: input is too long for one launch");
  return std::max(ceil_divide(static_cast<int>(sizes.length), steps), 1);
}

int product(int64_t left, int64_t right) {
  TORCHGRAFT_CHECK(left == 0 || right <= kMost / left, "causal_conv1d: input is too large for one launch");
  return static_cast<int>(left * right);
}

}  // namespace

template <typename T>
void forward_channels_last(const Forward<T>& call, cudaStream_t stream) {
  const Sizes& sizes = call.sizes;
  const bool has = has_vectors<kVector<T>, T>(sizes, call.input, call.output);
  dispatch<kVector<T>>(sizes, has, [&](auto width, auto vector) {
    const int vectors = product(sizes.channels / vector, 1);
    const auto kernel = forward_kernel<T, width, vector>;
    const int steps =
        steps_of(sizes.length, 1, sizes.batch * vectors, resident_blocks(kernel, kThreads) * kThreads);
    const int stretches = count_stretches(sizes, steps);
    const int count = product(product(sizes.batch, stretches), vectors);
    const unsigned blocks = grid_of(ceil_divide(count, kThreads), "causal_conv1d");
    kernel<<<blocks, kThreads, 0, stream>>>(call, FastDivisor(vectors), FastDivisor(stretches), steps, count);
  });
  check_launch("causal_conv1d");
}

template <typename T>
Partials backward_channels_last(const Backward<T>& call, const Tensor& like, cudaStream_t stream) {
  const Sizes& sizes = call.sizes;
  Partials partials;
  const bool has = has_vectors<kVectorBackward<T>, T>(sizes, call.input, call.output_grad, call.input_grad);
  dispatch<kVectorBackward<T>>(sizes, has, [&](auto width, auto vector) {
    const int groups = product(ceil_divide(sizes.channels, int64_t{kLanes} * vector), 1);
    const auto kernel = backward_kernel<T, width, vector>;
    // An empty batch has no blocks, and gradients of zero.
    const int steps = steps_of(sizes.length, kStretches, std::max<int64_t>(sizes.batch * groups, 1),
                               resident_blocks(kernel, kThreads));
    const int stretch_groups = ceil_divide(count_stretches(sizes, steps), kStretches);
    const int parts = product(sizes.batch, stretch_groups);
    partials = {empty_workspace<accumulate_t<T>>(parts * sizes.channels * (sizes.width + 1), like), parts};
    if (parts == 0) return;
    const unsigned blocks = grid_of(product(parts, groups), "causal_conv1d_backward");
    kernel<<<blocks, kThreads, 0, stream>>>(call, mutable_data_of<accumulate_t<T>>(partials.memory),
                                            FastDivisor(groups), FastDivisor(stretch_groups), steps);
  });
  check_launch("causal_conv1d_backward");
  return partials;
}

#define INSTANTIATE(T)                                                     \
  template void forward_channels_last<T>(const Forward<T>&, cudaStream_t); \
  template Partials backward_channels_last<T>(const Backward<T>&, const Tensor&, cudaStream_t);
INSTANTIATE(double)
INSTANTIATE(float)
INSTANTIATE(Half)
INSTANTIATE(BFloat16)
#undef INSTANTIATE

}  // namespace torchgraft::causal_conv1d
