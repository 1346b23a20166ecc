// causal_conv1d on CPU where neighbouring channels are neighbours in memory: a lane of a vector is a channel.
//
// A unit of work is a tile of channels over a stretch of time. It holds what the convolution reads at a time,
// and backward as many gradients, in buffers of the first level of the cache, in the dtype that sums are kept
// in. Backward a unit leaves its sums for the gradients of weight and bias.

#include "cpu_vectors.h"

namespace causal_conv1d {
namespace {

template <typename T, int kBytes, int kWidth>
struct TilesOf {
  using A = accumulate_t<T>;
  using Lanes = Vectors<A, kBytes>;
  using V = typename Lanes::V;
  static constexpr int64_t kPast = kWidth - 1;
  static constexpr int64_t kLanes = Lanes::kLanes;
  static_assert(kTileChannels % kLanes == 0);

  // What a unit of work covers.
  struct Place {
    int64_t item, channel, channels, begin, end;
  };
  static TORCHGRAFT_INLINE Place place_of(const Sizes& sizes, int64_t unit) {
    const int64_t tiles = count_tiles(sizes), stretches = count_stretches(sizes);
    const int64_t channel = unit % tiles * kTileChannels, begin = unit / tiles % stretches * kStretch;
    return {unit / tiles / stretches, channel, std::min(kTileChannels, sizes.channels - channel), begin,
            std::min(begin + kStretch, sizes.length)};
  }

  // A row for each tap, and one for the bias.
  struct alignas(64) Rows {
    A values[kWidth + 1][kTileChannels] = {};
  };

  template <typename Call>
  static TORCHGRAFT_INLINE void load_weights(const Call& call, const Place& place, Rows& weights) {
    for (int64_t i = 0; i < place.channels; ++i) {
      const int64_t channel = place.channel + i;
      for (int64_t tap = 0; tap < kWidth; ++tap) {
        weights.values[tap][i] = static_cast<A>(call.weight[channel * kWidth + tap]);
      }
      weights.values[kWidth][i] = call.bias == nullptr ? A{0} : static_cast<A>(call.bias[channel]);
    }
  }

  // The rows of the last kWidth times, the oldest first.
  struct Window {
    alignas(64) A memory[kWidth][kTileChannels] = {};
    A* rows[kWidth];
    TORCHGRAFT_INLINE Window() {
      for (int j = 0; j < kWidth; ++j) rows[j] = memory[j];
    }
    // Makes room for another row, in the place of the oldest; it is to be filled.
    TORCHGRAFT_INLINE A* next() {
      A* const oldest = rows[0];
      for (int j = 0; j < kPast; ++j) rows[j] = rows[j + 1];
      return rows[kPast] = oldest;
    }
  };

  template <typename Call>
  static TORCHGRAFT_INLINE void load_past(const Call& call, const Place& place, Window& window) {
    for (int64_t j = 0; j < kPast; ++j) {
      A* const row = window.next();
      for (int64_t i = 0; i < place.channels; ++i) {
        row[i] = static_cast<A>(element_at<T>(call, place.item, place.channel + i, place.begin - kPast + j));
      }
    }
  }

  static TORCHGRAFT_INLINE void sum_up(V& sum, const Rows& weights, A* const (&rows)[kWidth], int64_t i) {
    load(sum, weights.values[kWidth] + i);
    TORCHGRAFT_UNROLL
    for (int tap = 0; tap < kWidth; ++tap) {
      V weight, value;
      load(weight, weights.values[tap] + i);
      load(value, rows[tap] + i);
      sum += weight * value;
    }
  }

  static TORCHGRAFT_INLINE void forward_unit(const Forward<T>& call, int64_t unit) {
    const Place place = place_of(call.sizes, unit);
    Rows weights;
    Window window;
    alignas(64) A results[kTileChannels];
    load_weights(call, place, weights);
    load_past(call, place, window);
    const T* input = call.input.data + place.item * call.input.batch + place.channel;
    T* output = call.output.data + place.item * call.output.batch + place.channel;
    for (int64_t time = place.begin; time < place.end; ++time) {
      Lanes::widen(input + time * call.input.time, window.next(), place.channels);
      for (int64_t i = 0; i < place.channels; i += kLanes) {
        V sum;
        sum_up(sum, weights, window.rows, i);
        if (call.silu) Lanes::silu(sum);
        store(sum, results + i);
      }
      Lanes::narrow(results, output + time * call.output.time, place.channels);
    }
    if (place.end < call.sizes.length) return;
    for (int64_t i = 0; i < place.channels; ++i) store_final_state(call, place.item, place.channel + i);
  }

  static TORCHGRAFT_INLINE void backward_unit(const Backward<T>& call, int64_t unit, A* partials) {
    const Place place = place_of(call.sizes, unit);
    const int64_t length = call.sizes.length;
    Rows weights, sums;
    Window window, grads;
    alignas(64) A results[kTileChannels];
    load_weights(call, place, weights);
    load_past(call, place, window);
    const T* input = call.input.data + place.item * call.input.batch + place.channel;
    const T* output_grad = call.output_grad.data + place.item * call.output_grad.batch + place.channel;
    T* input_grad = call.input_grad.data + place.item * call.input_grad.batch + place.channel;
    // A stretch completes the gradients of its own times, the first one those of the past too: each is
    // complete kPast times later.
    const int64_t earliest = place.begin == 0 ? -kPast : place.begin;
    for (int64_t time = place.begin; time < place.end + kPast; ++time) {
      A* const grad_row = grads.next();
      if (time < length) {
        Lanes::widen(input + time * call.input.time, window.next(), place.channels);
        Lanes::widen(output_grad + time * call.output_grad.time, grad_row, place.channels);
        for (int64_t i = 0; call.silu && i < place.channels; i += kLanes) {
          V slope, grad;
          sum_up(slope, weights, window.rows, i);
          Lanes::silu_slope(slope);
          load(grad, grad_row + i);
          store(V(grad * slope), grad_row + i);
        }
        if (time < place.end) add_products(sums, grad_row, window, place.channels);
      }
      const int64_t complete = time - kPast;
      if (complete < earliest) continue;
      for (int64_t i = 0; i < place.channels; i += kLanes) {
        V result = {}, weight, grad;
        TORCHGRAFT_UNROLL
        for (int tap = 0; tap < kWidth; ++tap) {
          // At the ends of an item some taps meet nothing.
          if (time - tap < 0 || time - tap >= length) continue;
          load(weight, weights.values[tap] + i);
          load(grad, grads.rows[kPast - tap] + i);
          result += weight * grad;
        }
        store(result, results + i);
      }
      for (int64_t i = 0; complete < 0 && i < place.channels; ++i) {
        store_initial_state_grad(call, place.item, place.channel + i, complete, results[i]);
      }
      if (complete < 0) continue;
      for (int64_t i = 0; time >= length && i < place.channels; ++i) {
        results[i] += final_state_grad_at(call, place.item, place.channel + i, complete);
      }
      Lanes::narrow(results, input_grad + complete * call.input_grad.time, place.channels);
    }
    for (int64_t i = 0; i < place.channels; ++i) {
      for (int j = 0; j <= kWidth; ++j) partials[i * (kWidth + 1) + j] = sums.values[j][i];
    }
  }

  static TORCHGRAFT_INLINE void add_products(Rows& sums, const A* grad_row, const Window& window,
                                             int64_t channels) {
    for (int64_t i = 0; i < channels; i += kLanes) {
      V grad, value, sum;
      load(grad, grad_row + i);
      TORCHGRAFT_UNROLL
      for (int tap = 0; tap < kWidth; ++tap) {
        load(value, window.rows[tap] + i);
        load(sum, sums.values[tap] + i);
        sum += grad * value;
        store(sum, sums.values[tap] + i);
      }
      load(sum, sums.values[kWidth] + i);
      sum += grad;
      store(sum, sums.values[kWidth] + i);
    }
  }
};

template <typename T, int kBytes, int kWidth>
struct ForwardTiles {
  static TORCHGRAFT_INLINE void run(const Forward<T>& call, int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) TilesOf<T, kBytes, kWidth>::forward_unit(call, unit);
  }
};

template <typename T, int kBytes, int kWidth>
struct BackwardTiles {
  static TORCHGRAFT_INLINE void run(const Backward<T>& call, int64_t begin, int64_t end,
                                    accumulate_t<T>* partials) {
    const int64_t tiles = count_tiles(call.sizes);
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t first = unit / tiles * call.sizes.channels + unit % tiles * kTileChannels;
      TilesOf<T, kBytes, kWidth>::backward_unit(call, unit, partials + first * (kWidth + 1));
    }
  }
};

}  // namespace

CAUSAL_CONV1D_RUN_ALL(run_channels_last, ForwardTiles, BackwardTiles)

}  // namespace causal_conv1d
