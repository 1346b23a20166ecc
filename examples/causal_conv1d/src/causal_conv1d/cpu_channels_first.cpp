// causal_conv1d on CPU where neighbouring times are neighbours in memory: a lane of a vector is a time.
//
// A row, a channel of an item, goes through buffers of the first level of the cache, a tile of time after the
// other, in the dtype that sums are kept in. Backward a row leaves its sums for the gradients of weight and
// bias.

#include "cpu_vectors.h"

namespace causal_conv1d {
namespace {

template <typename T, int kBytes, int kWidth>
struct RowsOf {
  using A = accumulate_t<T>;
  using Lanes = Vectors<A, kBytes>;
  using V = typename Lanes::V;
  static constexpr int64_t kPast = kWidth - 1;
  static constexpr int64_t kLanes = Lanes::kLanes;
  static constexpr int64_t kTile = 512;
  // Whole vectors are read and computed, also beyond a tile.
  static constexpr int64_t kRoom = kTile + 2 * kPast + 2 * kLanes;

  // Times from `begin` - kPast to before `end`.
  template <typename Call>
  static TORCHGRAFT_INLINE void load_values(const Call& call, int64_t item, int64_t channel, int64_t begin,
                                            int64_t end, A* values) {
    const int64_t first = begin == 0 ? 0 : begin - kPast;
    for (int64_t time = begin - kPast; time < first; ++time) {
      values[time - begin + kPast] = static_cast<A>(element_at<T>(call, item, channel, time));
    }
    const T* input = call.input.data + item * call.input.batch + channel * call.input.channel;
    Lanes::widen(input + first, values + first - begin + kPast, end - first);
  }

  template <typename Call>
  static TORCHGRAFT_INLINE void load_weights(const Call& call, int64_t channel, A (&weight)[kWidth],
                                             A& bias) {
    for (int64_t tap = 0; tap < kWidth; ++tap) {
      weight[tap] = static_cast<A>(call.weight[channel * kWidth + tap]);
    }
    bias = call.bias == nullptr ? A{0} : static_cast<A>(call.bias[channel]);
  }

  static TORCHGRAFT_INLINE void sum_up(V& sum, const A* values, const A (&weight)[kWidth], A bias) {
    sum = V{} + bias;
    TORCHGRAFT_UNROLL
    for (int tap = 0; tap < kWidth; ++tap) {
      V value;
      load(value, values + tap);
      sum += weight[tap] * value;
    }
  }

  // The gradient of what lies at a place of a tile, of which the first `known` gradients of sums are there.
  static TORCHGRAFT_INLINE A result_at(int64_t i, const A* grads, int64_t known, const A (&weight)[kWidth]) {
    A result = 0;
    for (int64_t tap = 0; tap < kWidth; ++tap) {
      const int64_t other = i + kPast - tap;
      if (other >= 0 && other < known) result += weight[tap] * grads[other];
    }
    return result;
  }

  static TORCHGRAFT_INLINE void forward_row(const Forward<T>& call, int64_t item, int64_t channel) {
    alignas(64) A values[kRoom] = {}, results[kRoom];
    A weight[kWidth], bias;
    load_weights(call, channel, weight, bias);
    T* output = call.output.data + item * call.output.batch + channel * call.output.channel;
    for (int64_t begin = 0; begin < call.sizes.length; begin += kTile) {
      const int64_t count = std::min(kTile, call.sizes.length - begin);
      load_values(call, item, channel, begin, begin + count, values);
      for (int64_t i = 0; i < count; i += kLanes) {
        V sum;
        sum_up(sum, values + i, weight, bias);
        if (call.silu) Lanes::silu(sum);
        store(sum, results + i);
      }
      Lanes::narrow(results, output + begin, count);
    }
    store_final_state(call, item, channel);
  }

  static TORCHGRAFT_INLINE void backward_row(const Backward<T>& call, int64_t item, int64_t channel,
                                             A* sums_to) {
    alignas(64) A values[kRoom] = {}, grads[kRoom] = {}, results[kRoom];
    A weight[kWidth], bias;
    load_weights(call, channel, weight, bias);
    const int64_t length = call.sizes.length;
    const T* output_grad =
        call.output_grad.data + item * call.output_grad.batch + channel * call.output_grad.channel;
    T* input_grad = call.input_grad.data + item * call.input_grad.batch + channel * call.input_grad.channel;
    // Of each tap, and of the bias; the last times of a row, no whole vector, by themselves.
    V sums[kWidth + 1] = {};
    A rests[kWidth + 1] = {};
    // An empty row has a past too.
    for (int64_t begin = 0; begin < std::max<int64_t>(length, 1); begin += kTile) {
      const int64_t count = std::min(kTile, length - begin);
      // Gradients of the next few sums are computed here and in the next tile.
      const int64_t known = std::min(count + kPast, length - begin);
      load_values(call, item, channel, begin, begin + known, values);
      Lanes::widen(output_grad + begin, grads, known);
      for (int64_t i = 0; call.silu && i < known; i += kLanes) {
        V slope, grad;
        sum_up(slope, values + i, weight, bias);
        Lanes::silu_slope(slope);
        load(grad, grads + i);
        store(V(grad * slope), grads + i);
      }

      int64_t i = 0;
      for (; i + kLanes <= count; i += kLanes) {
        V grad, value;
        load(grad, grads + i);
        TORCHGRAFT_UNROLL
        for (int tap = 0; tap < kWidth; ++tap) {
          load(value, values + i + tap);
          sums[tap] += grad * value;
        }
        sums[kWidth] += grad;
      }
      for (; i < count; ++i) {
        for (int tap = 0; tap < kWidth; ++tap) rests[tap] += grads[i] * values[i + tap];
        rests[kWidth] += grads[i];
      }

      for (i = 0; i < count; i += kLanes) {
        V result = {}, grad;
        TORCHGRAFT_UNROLL
        for (int tap = 0; tap < kWidth; ++tap) {
          load(grad, grads + i + kPast - tap);
          result += weight[tap] * grad;
        }
        store(result, results + i);
      }
      // At the ends of a row some taps meet nothing.
      if (begin == 0) {
        for (i = -kPast; i < 0; ++i) {
          store_initial_state_grad(call, item, channel, i, result_at(i, grads, known, weight));
        }
      }
      for (i = std::max<int64_t>(known - kPast, 0); i < count; ++i) {
        results[i] = result_at(i, grads, known, weight) + final_state_grad_at(call, item, channel, begin + i);
      }
      Lanes::narrow(results, input_grad + begin, count);
    }
    for (int j = 0; j <= kWidth; ++j) {
      A total = rests[j];
      for (int lane = 0; lane < kLanes; ++lane) total += sums[j][lane];
      sums_to[j] = total;
    }
  }
};

template <typename T, int kBytes, int kWidth>
struct ForwardRows {
  static TORCHGRAFT_INLINE void run(const Forward<T>& call, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      RowsOf<T, kBytes, kWidth>::forward_row(call, row / call.sizes.channels, row % call.sizes.channels);
    }
  }
};

template <typename T, int kBytes, int kWidth>
struct BackwardRows {
  static TORCHGRAFT_INLINE void run(const Backward<T>& call, int64_t begin, int64_t end,
                                    accumulate_t<T>* partials) {
    for (int64_t row = begin; row < end; ++row) {
      RowsOf<T, kBytes, kWidth>::backward_row(call, row / call.sizes.channels, row % call.sizes.channels,
                                              partials + row * (kWidth + 1));
    }
  }
};

}  // namespace

CAUSAL_CONV1D_RUN_ALL(run_channels_first, ForwardRows, BackwardRows)

}  // namespace causal_conv1d
