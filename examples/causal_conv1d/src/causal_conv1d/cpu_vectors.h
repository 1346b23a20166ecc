// What the CPU kernels share: SiLU on vector registers, and rows of any dtype to and from rows of what sums
// are kept in.
#pragma once

#include <torchgraft/cpu_convert.h>
#include <torchgraft/numbers.h>

#include <limits>

#include "host.h"

namespace causal_conv1d {

// What a unit of work covers where channels are side by side; where times are, it is a row.
constexpr int64_t kTileChannels = 128;
constexpr int64_t kStretch = 64;

// Stretches of an item. An empty one has a past too.
inline int64_t count_stretches(const Sizes& sizes) {
  return std::max<int64_t>(ceil_divide(sizes.length, kStretch), 1);
}
inline int64_t count_tiles(const Sizes& sizes) { return ceil_divide(sizes.channels, kTileChannels); }

// Units of work from `begin` to before `end`. Backward, each part of the batch and the time leaves its sums
// for the gradients of weight and bias in `partials` (parts, channels, width + 1).
template <typename T>
void run_channels_first(const Forward<T>& call, int64_t begin, int64_t end);
template <typename T>
void run_channels_last(const Forward<T>& call, int64_t begin, int64_t end);
template <typename T>
void run_channels_first(const Backward<T>& call, int64_t begin, int64_t end, accumulate_t<T>* partials);
template <typename T>
void run_channels_last(const Backward<T>& call, int64_t begin, int64_t end, accumulate_t<T>* partials);

template <int kBytes, template <typename, int, int> typename Function, typename T, typename... Arguments>
TORCHGRAFT_INLINE void run_width(int64_t width, const Arguments&... arguments) {
  if (width == 2) return Compiled<kBytes>::template call<Function<T, kBytes, 2>>(arguments...);
  if (width == 3) return Compiled<kBytes>::template call<Function<T, kBytes, 3>>(arguments...);
  Compiled<kBytes>::template call<Function<T, kBytes, 4>>(arguments...);
}

// Defines what runs the units of a layout in one dtype, because functions for several instruction sets cannot
// be templates.
#define CAUSAL_CONV1D_RUN(T, NAME, FORWARD, BACKWARD)                                                \
  namespace {                                                                                        \
  TORCHGRAFT_VECTOR_CLONES(void run(const Forward<T>& call, int64_t begin, int64_t end),             \
                           run_width<kVectorBytes, FORWARD, T>(call.sizes.width, call, begin, end);) \
  TORCHGRAFT_VECTOR_CLONES(void run(const Backward<T>& call, int64_t begin, int64_t end,             \
                                    accumulate_t<T>* partials),                                      \
                           run_width<kVectorBytes, BACKWARD, T>(call.sizes.width, call, begin, end,  \
                                                                partials);)                          \
  }                                                                                                  \
  template <>                                                                                        \
  void NAME(const Forward<T>& call, int64_t begin, int64_t end) {                                    \
    run(call, begin, end);                                                                           \
  }                                                                                                  \
  template <>                                                                                        \
  void NAME(const Backward<T>& call, int64_t begin, int64_t end, accumulate_t<T>* partials) {        \
    run(call, begin, end, partials);                                                                 \
  }
#define CAUSAL_CONV1D_RUN_ALL(NAME, FORWARD, BACKWARD) \
  CAUSAL_CONV1D_RUN(double, NAME, FORWARD, BACKWARD)   \
  CAUSAL_CONV1D_RUN(float, NAME, FORWARD, BACKWARD)    \
  CAUSAL_CONV1D_RUN(Half, NAME, FORWARD, BACKWARD)     \
  CAUSAL_CONV1D_RUN(BFloat16, NAME, FORWARD, BACKWARD)

template <typename A>
struct Exponent;

template <>
struct Exponent<float> {
  using Bits = uint32_t;
  static constexpr float kRounding = 0x1.8p23f;  // adding it leaves a whole number in the last bits
  static constexpr float kMost = 88;
  static constexpr int kMantissaBits = 23;
  static constexpr int kBias = 127;
  static constexpr int kTerms = 7;
};

template <>
struct Exponent<double> {
  using Bits = uint64_t;
  static constexpr double kRounding = 0x1.8p52;
  static constexpr double kMost = 708;
  static constexpr int kMantissaBits = 52;
  static constexpr int kBias = 1023;
  static constexpr int kTerms = 13;
};

template <typename A, int kBytes>
struct Vectors {
  using V = Vector<A, kBytes>;
  using Bits = Vector<typename Exponent<A>::Bits, kBytes>;
  using E = Exponent<A>;
  static constexpr int64_t kLanes = kBytes / static_cast<int64_t>(sizeof(A));

  static constexpr A inverse_factorial(int n) {
    double factorial = 1;
    for (int k = 2; k <= n; ++k) factorial *= k;
    return static_cast<A>(1 / factorial);
  }

  // x becomes 1 + exp(-x): infinite where exp is beyond the numbers; NaN stays NaN.
  static TORCHGRAFT_INLINE void one_and_exponential(V& x) {
    const V power = -x;
    V bounded = power < -E::kMost ? V{} - E::kMost : power;
    bounded = bounded > E::kMost ? V{} + E::kMost : bounded;
    // exp(n ln 2 + rest) = 2**n exp(rest), with |rest| <= ln 2 / 2, where a Taylor series is short. ln 2 is
    // taken in two parts, of which n times the first is exact.
    V scale = bounded * A(1.4426950408889634) + E::kRounding;
    const V whole = scale - E::kRounding;
    const V rest = bounded - whole * A(0x1.62ep-1) - whole * A(0x1.0bfbe8e7bcd5ep-15);
    V series = V{} + inverse_factorial(E::kTerms);
    TORCHGRAFT_UNROLL
    for (int k = E::kTerms - 1; k >= 0; --k) series = series * rest + inverse_factorial(k);
    scale = reinterpret_cast<V>((reinterpret_cast<Bits>(scale) << E::kMantissaBits) +
                                (typename E::Bits{E::kBias} << E::kMantissaBits));
    x = power > E::kMost ? V{} + std::numeric_limits<A>::infinity() : series * scale;
    x += A(1);
  }

  static TORCHGRAFT_INLINE void silu(V& x) {
    V divisor = x;
    one_and_exponential(divisor);
    x /= divisor;
  }

  // x becomes how SiLU changes with it.
  static TORCHGRAFT_INLINE void silu_slope(V& x) {
    V share = x;
    one_and_exponential(share);
    share = A(1) / share;
    x = share * (A(1) + x * (A(1) - share));
  }

  template <typename T>
  static TORCHGRAFT_INLINE void widen(const T* from, A* to, int64_t count) {
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      V value;
      load_converted<V, A>(value, from + i);
      store(value, to + i);
    }
    for (; i < count; ++i) to[i] = static_cast<A>(from[i]);
  }

  template <typename T>
  static TORCHGRAFT_INLINE void narrow(const A* from, T* to, int64_t count) {
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      V value;
      load(value, from + i);
      store_converted<A>(value, to + i);
    }
    for (; i < count; ++i) to[i] = static_cast<T>(from[i]);
  }
};

// An element at a time from -past on: of the state where that is negative.
template <typename T, typename Call>
T element_at(const Call& call, int64_t item, int64_t channel, int64_t time) {
  const View<const T>& input = call.input;
  const View<const T>& state = call.initial_state;
  if (time >= 0) return input.data[item * input.batch + channel * input.channel + time * input.time];
  if (state.data == nullptr) return static_cast<T>(0.0f);
  return state
      .data[item * state.batch + channel * state.channel + (time + call.sizes.width - 1) * state.time];
}

// What the final state adds to the gradient at a time.
template <typename T>
accumulate_t<T> final_state_grad_at(const Backward<T>& call, int64_t item, int64_t channel, int64_t time) {
  const View<const T>& grad = call.final_state_grad;
  const int64_t place = time - call.sizes.length + call.sizes.width - 1;
  if (grad.data == nullptr || place < 0) return 0;
  return static_cast<accumulate_t<T>>(
      grad.data[item * grad.batch + channel * grad.channel + place * grad.time]);
}

template <typename T>
void store_final_state(const Forward<T>& call, int64_t item, int64_t channel) {
  const View<T>& state = call.final_state;
  for (int64_t j = 0; j < call.sizes.width - 1; ++j) {
    state.data[item * state.batch + channel * state.channel + j * state.time] =
        element_at<T>(call, item, channel, call.sizes.length - call.sizes.width + 1 + j);
  }
}

template <typename T>
void store_initial_state_grad(const Backward<T>& call, int64_t item, int64_t channel, int64_t time,
                              accumulate_t<T> value) {
  const View<T>& grad = call.initial_state_grad;
  grad.data[item * grad.batch + channel * grad.channel + (time + call.sizes.width - 1) * grad.time] =
      static_cast<T>(value + final_state_grad_at(call, item, channel, time));
}

}  // namespace causal_conv1d
