// The arithmetic of causal_conv1d's CPU kernels, on a tile: some times of one channel, or of several channels
// that lie side by side.
//
// A tile is copied into buffers in the dtype of the sums. There the neighbour in time is `kStep` elements
// away: 1 if a lane of a vector is a time, and the channels of a tile if a lane is a channel. So one sum
// computes both layouts: sum over taps of weight[tap] * buffer[i + tap * kStep]. With reversed weights the
// same sum is the gradient of the input.
#pragma once

#include "kernels.h"
#include "silu.h"

namespace torchgraft::causal_conv1d {

// An element of a segment at a time from -(width - 1) on: of the initial state if that is negative.
template <typename T, typename Call>
T element_at(const Call& call, const Segment& segment, int64_t channel, int64_t time) {
  const View<const T>& input = call.input;
  const View<const T>& state = call.initial_state;
  if (time >= 0)
    return input
        .data[segment.item * input.batch + channel * input.channel + (segment.begin + time) * input.time];
  if (state.data == nullptr || segment.initial_row < 0) return static_cast<T>(0.0f);
  return state.data[segment.initial_row * state.batch + channel * state.channel +
                    (time + call.sizes.width - 1) * state.time];
}

// Returns the final state's part of the gradient at a time of a segment.
template <typename T>
accumulate_t<T> final_state_grad_at(const Backward<T>& call, const Segment& segment, int64_t channel,
                                    int64_t time) {
  const View<const T>& grad = call.final_state_grad;
  const int64_t place = time - segment.length + call.sizes.width - 1;
  if (grad.data == nullptr || segment.final_row < 0 || place < 0) return 0;
  return static_cast<accumulate_t<T>>(
      grad.data[segment.final_row * grad.batch + channel * grad.channel + place * grad.time]);
}

template <typename T>
void store_final_state(const Forward<T>& call, const Segment& segment, int64_t channel) {
  const View<T>& state = call.final_state;
  if (segment.final_row < 0) return;
  const int64_t past = call.sizes.width - 1;
  for (int64_t j = 0; j < past; ++j) {
    state.data[segment.final_row * state.batch + channel * state.channel + j * state.time] =
        segment.is_padding ? static_cast<T>(0.0f)
                           : element_at<T>(call, segment, channel, segment.length - past + j);
  }
}

// kWidth is the width of the weight, or 0 for any.
template <typename T, int kBytes, int kWidth, bool kChannelsLast>
struct Tile {
  using A = accumulate_t<T>;
  using Lanes = Silu<A, kBytes>;
  using V = typename Lanes::V;
  static constexpr int64_t kLanes = Lanes::kLanes;
  static constexpr Blocks kBlocks = blocks_of(kWidth, kChannelsLast);
  static constexpr int64_t kStep = kBlocks.channels;
  static_assert(!kChannelsLast || kStep % kLanes == 0, "a tile of channels is made of whole vectors");
  // Times of one vector, and vectors of one time.
  static constexpr int64_t kTimes = kChannelsLast ? 1 : kLanes;
  static constexpr int64_t kVectors = kChannelsLast ? kStep / kLanes : 1;
  // So many sums at once hide the latency of the additions, and stay in registers.
  static constexpr int kBlock = kWidth == 0 ? 8 : 4;
  // Taps of which the gradients are summed at once.
  static constexpr int kTaps = kWidth == 0 ? 8 : kWidth;

  // Buffers of one thread. Whole vectors and blocks are read and computed, also beyond a tile.
  struct Scratch {
    explicit Scratch(int64_t weight_width)
        : width(weight_width),
          past(weight_width - 1),
          times(kBlocks.times + 2 * past + (kBlock + 1) * kTimes + kTaps),
          memory(static_cast<size_t>((3 * times + 3 * (width + 1) + kLanes) * kStep + 3 * kLanes)) {
      A* at = memory.data();
      const auto take = [&](int64_t count) {
        A* const taken = at;
        at += count * kStep;
        return taken;
      };
      values = take(times);
      // Times before the tile are read, too, and not used.
      grads = take(times) + past * kStep;
      results = take(times);
      weights = take(width + 1);
      reversed = take(width + 1);
      sums = take(width + 1 + kLanes);
    }

    int64_t width;
    int64_t past;
    int64_t times;
    std::vector<A> memory;
    // From `past` times before the tile on.
    A* values;
    // From the first time of the tile on; gradients of the sums before SiLU.
    A* grads;
    A* results;
    // (width + 1, kStep): the weight of each tap, and the bias.
    A* weights;
    // (width, kStep): the taps from the last to the first.
    A* reversed;
    // (width + 1, kStep): the gradients of the weight and of the bias.
    A* sums;
  };

  static TORCHGRAFT_INLINE int64_t taps_of(const Scratch& scratch) {
    return kWidth == 0 ? scratch.width : kWidth;
  }

  template <typename Call>
  static TORCHGRAFT_INLINE void load_weights(const Call& call, int64_t channel, int64_t channels,
                                             Scratch& scratch) {
    const int64_t width = taps_of(scratch);
    for (int64_t i = 0; i < channels; ++i) {
      const T* weight = call.weight + (channel + i) * width;
      for (int64_t tap = 0; tap < width; ++tap) {
        const A value = static_cast<A>(weight[tap]);
        scratch.weights[tap * kStep + i] = value;
        scratch.reversed[(width - 1 - tap) * kStep + i] = value;
      }
      scratch.weights[width * kStep + i] =
          call.bias == nullptr ? A{0} : static_cast<A>(call.bias[channel + i]);
    }
  }

  static TORCHGRAFT_INLINE void widen(const T* from, A* to, int64_t count) {
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      V value;
      load_converted<V, A>(value, from + i);
      store(value, to + i);
    }
    for (; i < count; ++i) to[i] = static_cast<A>(from[i]);
  }

  static TORCHGRAFT_INLINE void narrow(const A* from, T* to, int64_t count) {
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      V value;
      load(value, from + i);
      store_converted<A>(value, to + i);
    }
    for (; i < count; ++i) to[i] = static_cast<T>(from[i]);
  }

  // The times [from, to) of a segment, from memory where they lie as in a buffer.
  static TORCHGRAFT_INLINE void load_times(const View<const T>& view, const Segment& segment, int64_t channel,
                                           int64_t channels, int64_t from, int64_t to, A* buffer) {
    const T* at =
        view.data + segment.item * view.batch + channel * view.channel + (segment.begin + from) * view.time;
    if constexpr (kChannelsLast) {
      for (int64_t time = from; time < to; ++time, at += view.time, buffer += kStep)
        widen(at, buffer, channels);
    } else {
      widen(at, buffer, to - from);
    }
  }
  static TORCHGRAFT_INLINE void store_times(const A* buffer, const View<T>& view, const Segment& segment,
                                            int64_t channel, int64_t channels, int64_t from, int64_t to) {
    T* at =
        view.data + segment.item * view.batch + channel * view.channel + (segment.begin + from) * view.time;
    if constexpr (kChannelsLast) {
      for (int64_t time = from; time < to; ++time, at += view.time, buffer += kStep)
        narrow(buffer, at, channels);
    } else {
      narrow(buffer, at, to - from);
    }
  }
  static TORCHGRAFT_INLINE void store_zeros(const View<T>& view, const Piece& piece, int64_t channel,
                                            int64_t channels) {
    const Segment& segment = piece.segment;
    T* at = view.data + segment.item * view.batch + channel * view.channel +
            (segment.begin + piece.from) * view.time;
    for (int64_t time = piece.from; time < piece.to; ++time, at += view.time) {
      for (int64_t i = 0; i < channels; ++i) at[i * view.channel] = static_cast<T>(0.0f);
    }
  }

  // The elements of a segment from `past` before `from` to before `to`.
  template <typename Call>
  static TORCHGRAFT_INLINE void load_values(const Call& call, const Segment& segment, int64_t channel,
                                            int64_t channels, int64_t from, int64_t to, Scratch& scratch) {
    int64_t time = from - scratch.past;
    A* buffer = scratch.values;
    for (; time < std::min<int64_t>(to, 0); ++time, buffer += kStep) {
      for (int64_t i = 0; i < channels; ++i) {
        buffer[i] = static_cast<A>(element_at<T>(call, segment, channel + i, time));
      }
    }
    if (time < to) load_times(call.input, segment, channel, channels, time, to, buffer);
  }

  // sums[u] += sum over taps of weights[tap] * buffer[u * kTimes + tap].
  template <int kCount>
  static TORCHGRAFT_INLINE void add_taps(V (&sums)[kCount], const A* buffer, const A* weights,
                                         int64_t width) {
    const auto add = [&](int64_t tap) __attribute__((always_inline)) {
      V weight;
      if constexpr (kChannelsLast) {
        load(weight, weights + tap * kStep);
      } else {
        weight = V{} + weights[tap];
      }
      TORCHGRAFT_UNROLL
      for (int u = 0; u < kCount; ++u) {
        V value;
        load(value, buffer + (u * kTimes + tap) * kStep);
        sums[u] += weight * value;
      }
    };
    if constexpr (kWidth == 0) {
      for (int64_t tap = 0; tap < width; ++tap) add(tap);
    } else {
      TORCHGRAFT_UNROLL
      for (int tap = 0; tap < kWidth; ++tap) add(tap);
    }
  }

  // Calls `use(sums, place)` with the sums of `count` times; `place` is that of the first in a buffer.
  template <typename Use>
  static TORCHGRAFT_INLINE void for_sums(const A* buffer, const A* weights, const A* bias, int64_t width,
                                         int64_t count, const Use& use) {
    for (int64_t c = 0; c < kVectors * kLanes; c += kLanes) {
      V first = {};
      if (bias != nullptr) {
        if constexpr (kChannelsLast) {
          load(first, bias + c);
        } else {
          first = V{} + bias[0];
        }
      }
      int64_t time = 0;
      // A lane that is a time may lie beyond the last one. A block of channels' times is not begun for less.
      for (; kChannelsLast ? time + kBlock <= count : time < count; time += kBlock * kTimes) {
        V sums[kBlock];
        TORCHGRAFT_UNROLL
        for (int u = 0; u < kBlock; ++u) sums[u] = first;
        add_taps(sums, buffer + time * kStep + c, weights + c, width);
        TORCHGRAFT_UNROLL
        for (int u = 0; u < kBlock; ++u) use(sums[u], (time + u * kTimes) * kStep + c);
      }
      for (; kChannelsLast && time < count; ++time) {
        V sums[1] = {first};
        add_taps(sums, buffer + time * kStep + c, weights + c, width);
        use(sums[0], time * kStep + c);
      }
    }
  }

  // `results` of `count` times from `values`.
  static TORCHGRAFT_INLINE void compute(bool silu, int64_t count, Scratch& scratch) {
    const int64_t width = taps_of(scratch);
    const A* const bias = scratch.weights + width * kStep;
    for_sums(scratch.values, scratch.weights, bias, width, count,
             [&](V& sum, int64_t place) __attribute__((always_inline)) {
               if (silu) Lanes::silu(sum);
               store(sum, scratch.results + place);
             });
  }

  static TORCHGRAFT_INLINE void forward_piece(const Forward<T>& call, const Piece& piece, int64_t channel,
                                              int64_t channels, Scratch& scratch) {
    const Segment& segment = piece.segment;
    if (segment.is_padding) {
      store_zeros(call.output, piece, channel, channels);
    } else if (piece.from < piece.to) {
      load_values(call, segment, channel, channels, piece.from, piece.to, scratch);
      compute(call.silu, piece.to - piece.from, scratch);
      store_times(scratch.results, call.output, segment, channel, channels, piece.from, piece.to);
    }
    if (piece.to < segment.length) return;
    for (int64_t i = 0; i < channels; ++i) store_final_state(call, segment, channel + i);
  }

  // The gradient of what lies at `time`, of the gradients at times from 0 to before `length` alone: at the
  // ends of a sequence some taps meet nothing, and a product with zero would make NaN of an infinite weight.
  // `buffer` points to the gradient at `time`.
  static TORCHGRAFT_INLINE void sum_inside(V& sum, const A* buffer, const A* weights, int64_t width,
                                           int64_t time, int64_t length) {
    sum = V{};
    const auto add = [&](int64_t tap, V& product) __attribute__((always_inline)) {
      V grad;
      load(grad, buffer + tap * kStep);
      if constexpr (kChannelsLast) {
        load(product, weights + tap * kStep);
        product *= grad;
      } else {
        product = weights[tap] * grad;
      }
    };
    // Some lanes of the first taps and of the last ones have a time outside.
    const int64_t first = std::max<int64_t>(0, -(time + kTimes - 1)), last = std::min(width, length - time);
    const int64_t inside = std::min(std::max<int64_t>(0, -time), last);
    const int64_t outside = std::max(std::min(width, length - time - (kTimes - 1)), inside);
    V product;
    for (int64_t tap = inside; tap < outside; ++tap) {
      add(tap, product);
      sum += product;
    }
    if constexpr (!kChannelsLast) {
      V lane;
      TORCHGRAFT_UNROLL
      for (int i = 0; i < kLanes; ++i) lane[i] = static_cast<A>(i);
      const auto add_some_lanes = [&](int64_t from, int64_t to) __attribute__((always_inline)) {
        for (int64_t tap = from; tap < to; ++tap) {
          add(tap, product);
          const A least = static_cast<A>(-(time + tap)), beyond = static_cast<A>(length - time - tap);
          sum += ((lane >= least) & (lane < beyond)) ? product : V{};
        }
      };
      add_some_lanes(first, inside);
      add_some_lanes(outside, last);
    }
  }

  static TORCHGRAFT_INLINE void add_products(int64_t count, Scratch& scratch) {
    const int64_t width = taps_of(scratch);
    if constexpr (kChannelsLast) {
      for (int64_t c = 0; c < kStep; c += kLanes) {
        for (int64_t first = 0; first < width; first += kTaps) {
          V sums[kTaps] = {}, bias = {};
          for (int64_t time = 0; time < count; ++time) {
            V grad;
            load(grad, scratch.grads + time * kStep + c);
            TORCHGRAFT_UNROLL
            for (int j = 0; j < kTaps; ++j) {
              V value;
              load(value, scratch.values + (time + first + j) * kStep + c);
              sums[j] += grad * value;
            }
            bias += grad;
          }
          for (int64_t j = 0; j < std::min<int64_t>(kTaps, width - first); ++j) {
            add_to(scratch.sums + (first + j) * kStep + c, sums[j]);
          }
          if (first == 0) add_to(scratch.sums + width * kStep + c, bias);
        }
      }
    } else {
      const int64_t whole = count / kLanes * kLanes;
      for (int64_t first = 0; first < width; first += kTaps) {
        V sums[kTaps] = {};
        for (int64_t time = 0; time < whole; time += kLanes) {
          V grad;
          load(grad, scratch.grads + time);
          TORCHGRAFT_UNROLL
          for (int j = 0; j < kTaps; ++j) {
            V value;
            load(value, scratch.values + time + first + j);
            sums[j] += grad * value;
          }
        }
        for (int64_t j = 0; j < std::min<int64_t>(kTaps, width - first); ++j) {
          scratch.sums[first + j] += total_of(sums[j]);
        }
      }
      V bias = {};
      for (int64_t time = 0; time < whole; time += kLanes) {
        V grad;
        load(grad, scratch.grads + time);
        bias += grad;
      }
      A rest = total_of(bias);
      for (int64_t time = whole; time < count; ++time) rest += scratch.grads[time];
      scratch.sums[width] += rest;
      // The last times are no whole vector; the taps of one time are.
      const A bias_grad = scratch.sums[width];
      for (int64_t tap = 0; whole < count && tap < width; tap += kLanes) {
        V sum;
        load(sum, scratch.sums + tap);
        for (int64_t time = whole; time < count; ++time) {
          V value;
          load(value, scratch.values + time + tap);
          sum += scratch.grads[time] * value;
        }
        store(sum, scratch.sums + tap);
      }
      scratch.sums[width] = bias_grad;
    }
  }

  static TORCHGRAFT_INLINE void add_to(A* place, const V& sum) {
    V before;
    load(before, place);
    before += sum;
    store(before, place);
  }
  static TORCHGRAFT_INLINE A total_of(const V& sum) {
    A total = 0;
    for (int lane = 0; lane < kLanes; ++lane) total += sum[lane];
    return total;
  }

  static TORCHGRAFT_INLINE void backward_piece(const Backward<T>& call, const Piece& piece, int64_t channel,
                                               int64_t channels, Scratch& scratch) {
    const Segment& segment = piece.segment;
    const int64_t width = taps_of(scratch), past = width - 1, length = segment.length,
                  count = piece.to - piece.from;
    if (segment.is_padding) {
      store_zeros(call.input_grad, piece, channel, channels);
      if (piece.from == 0) store_state_grad(call, segment, channel, channels, true, scratch);
      return;
    }
    // The gradients of the next few sums are computed here and in the next piece.
    const int64_t known = std::min(piece.to + past, length);
    load_values(call, segment, channel, channels, piece.from, known, scratch);
    if (piece.from < known)
      load_times(call.output_grad, segment, channel, channels, piece.from, known, scratch.grads);
    if (call.silu) {
      for_sums(scratch.values, scratch.weights, scratch.weights + width * kStep, width, known - piece.from,
               [&](V& slope, int64_t place) __attribute__((always_inline)) {
                 Lanes::silu_slope(slope);
                 V grad;
                 load(grad, scratch.grads + place);
                 store(V(grad * slope), scratch.grads + place);
               });
    }
    add_products(count, scratch);
    if (piece.from == 0) store_state_grad(call, segment, channel, channels, false, scratch);
    const int64_t inside = std::max<int64_t>(std::min(piece.to, length - past) - piece.from, 0);
    for_sums(scratch.grads, scratch.reversed, nullptr, width, inside,
             [&](V& sum, int64_t place)
                 __attribute__((always_inline)) { store(sum, scratch.results + place); });
    for (int64_t i = inside; i < count; i += kTimes) {
      for (int64_t c = 0; c < kVectors * kLanes; c += kLanes) {
        V sum;
        sum_inside(sum, scratch.grads + i * kStep + c, scratch.reversed + c, width, piece.from + i, length);
        store(sum, scratch.results + i * kStep + c);
      }
    }
    for (int64_t i = inside; i < count; ++i) {
      for (int64_t c = 0; c < channels; ++c) {
        scratch.results[i * kStep + c] += final_state_grad_at(call, segment, channel + c, piece.from + i);
      }
    }
    store_times(scratch.results, call.input_grad, segment, channel, channels, piece.from, piece.to);
  }

  // The gradient of the initial state of a segment, whose first gradients of sums are in the buffer.
  static TORCHGRAFT_INLINE void store_state_grad(const Backward<T>& call, const Segment& segment,
                                                 int64_t channel, int64_t channels, bool is_zero,
                                                 Scratch& scratch) {
    if (segment.initial_row < 0) return;
    const View<T>& view = call.initial_state_grad;
    const int64_t width = taps_of(scratch), past = width - 1;
    for (int64_t i = 0; i < past; i += kTimes) {
      V sums[kVectors];
      for (int64_t c = 0; c < kVectors; ++c) {
        sum_inside(sums[c], scratch.grads + (i - past) * kStep + c * kLanes, scratch.reversed + c * kLanes,
                   width, i - past, is_zero ? 0 : segment.length);
      }
      for (int64_t time = i; time < std::min(i + kTimes, past); ++time) {
        for (int64_t c = 0; c < channels; ++c) {
          const A sum = kChannelsLast ? sums[c / kLanes][c % kLanes] : sums[0][time - i];
          const A more = is_zero ? A{0} : final_state_grad_at(call, segment, channel + c, time - past);
          view.data[segment.initial_row * view.batch + (channel + c) * view.channel + time * view.time] =
              static_cast<T>(sum + more);
        }
      }
    }
  }
};

}  // namespace torchgraft::causal_conv1d
