// A step of decoding on CPU: a lane of a vector is a channel, in whichever order the state and the input lie.
//
// A unit of work is a tile of channels of an item: it gathers what the convolution reads from the state and
// the input, computes, scatters the results, and writes the state last.

#include "units.h"

namespace torchgraft::causal_conv1d {
namespace {

template <typename T, int kBytes, int kWidth, bool kChannelsLast>
struct UpdateUnits {
  using Of = Tile<T, kBytes, kWidth, kChannelsLast>;
  using A = typename Of::A;

  // Where the element at a time lies in the state: before the input if the time is negative.
  static int64_t place_of(const Update<T>& call, int64_t item, int64_t time) {
    if (call.cache_lengths == nullptr) return call.state_length + time;
    const int64_t place = (call.cache_lengths[item] + time) % call.state_length;
    return place < 0 ? place + call.state_length : place;
  }

  static TORCHGRAFT_INLINE void compute(const Update<T>& call, int64_t item, int64_t row, int64_t channel,
                                        int64_t channels, typename Of::Scratch& scratch) {
    const T* const input = call.input.data + item * call.input.batch + channel * call.input.channel;
    T* const output = call.output.data + item * call.output.batch + channel * call.output.channel;
    for (int64_t from = 0; from < call.length; from += Of::kBlocks.times) {
      const int64_t count = std::min<int64_t>(Of::kBlocks.times, call.length - from);
      for (int64_t i = 0; row >= 0 && i < scratch.past + count; ++i) {
        const int64_t time = from - scratch.past + i;
        const T* at = time >= 0 ? input + time * call.input.time
                                : call.state.data + row * call.state.batch + channel * call.state.channel +
                                      place_of(call, item, time) * call.state.time;
        const int64_t step = time >= 0 ? call.input.channel : call.state.channel;
        for (int64_t c = 0; c < channels; ++c)
          scratch.values[i * Of::kStep + c] = static_cast<A>(at[c * step]);
      }
      if (row >= 0) Of::compute(call.silu, count, scratch);
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t c = 0; c < channels; ++c) {
          const A value = row >= 0 ? scratch.results[i * Of::kStep + c] : A{0};
          output[(from + i) * call.output.time + c * call.output.channel] = static_cast<T>(value);
        }
      }
    }
  }

  static void write_state(const Update<T>& call, int64_t item, int64_t row, int64_t channel) {
    const int64_t length = call.length, kept = call.state_length;
    T* const state = call.state.data + row * call.state.batch + channel * call.state.channel;
    const T* const input = call.input.data + item * call.input.batch + channel * call.input.channel;
    // Without a circular buffer what stays moves to the front.
    for (int64_t j = 0; call.cache_lengths == nullptr && j + length < kept && length > 0; ++j) {
      state[j * call.state.time] = state[(j + length) * call.state.time];
    }
    for (int64_t time = std::max<int64_t>(length - kept, 0); time < length; ++time) {
      const int64_t place = call.cache_lengths == nullptr ? kept - length + time : place_of(call, item, time);
      state[place * call.state.time] = input[time * call.input.time];
    }
  }

  static TORCHGRAFT_INLINE void run(const Update<T>& call, int64_t begin, int64_t end) {
    typename Of::Scratch scratch(call.width);
    const int64_t tiles = update_tiles(call.channels, call.width);
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t item = unit / tiles, channel = unit % tiles * Of::kStep;
      const int64_t channels = std::min<int64_t>(Of::kStep, call.channels - channel);
      const int64_t row = call.rows == nullptr ? item : call.rows[item];
      Of::load_weights(call, channel, channels, scratch);
      compute(call, item, row, channel, channels, scratch);
      for (int64_t c = 0; row >= 0 && c < channels; ++c) write_state(call, item, row, channel + c);
    }
  }
};

#define CAUSAL_CONV1D_UPDATE(T)                                                         \
  TORCHGRAFT_VECTOR_CLONES(void run(const Update<T>& call, int64_t begin, int64_t end), \
                           run_width<kVectorBytes, UpdateUnits, T, true>(call.width, call, begin, end);)
CAUSAL_CONV1D_UPDATE(double)
CAUSAL_CONV1D_UPDATE(float)
CAUSAL_CONV1D_UPDATE(Half)
CAUSAL_CONV1D_UPDATE(BFloat16)
#undef CAUSAL_CONV1D_UPDATE

}  // namespace

template <typename T>
void run_update(const Update<T>& call, int64_t begin, int64_t end) {
  run(call, begin, end);
}
template void run_update(const Update<double>& call, int64_t begin, int64_t end);
template void run_update(const Update<float>& call, int64_t begin, int64_t end);
template void run_update(const Update<Half>& call, int64_t begin, int64_t end);
template void run_update(const Update<BFloat16>& call, int64_t begin, int64_t end);

}  // namespace torchgraft::causal_conv1d
