// Runs units of work of causal_conv1d's CPU kernels, each of them tiles of the pieces of a group, compiled
// for several widths and instruction sets.
#pragma once

#include "tile.h"

namespace torchgraft::causal_conv1d {

// Runs `visit(group, channel, channels, scratch)` for each unit, with the weights of its channels loaded.
template <typename Of, typename Call, typename Visit>
TORCHGRAFT_INLINE void for_units(const Call& call, const Work& work, int64_t begin, int64_t end,
                                 const Visit& visit) {
  typename Of::Scratch scratch(call.sizes.width);
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t channel = unit % work.tiles * Of::kStep;
    const int64_t channels = std::min<int64_t>(Of::kStep, call.sizes.channels - channel);
    Of::load_weights(call, channel, channels, scratch);
    visit(unit / work.tiles, channel, channels, scratch);
  }
}

template <typename T, int kBytes, int kWidth, bool kChannelsLast>
struct ForwardUnits {
  using Of = Tile<T, kBytes, kWidth, kChannelsLast>;
  static TORCHGRAFT_INLINE void run(const Forward<T>& call, const Work& work, int64_t begin, int64_t end) {
    for_units<Of>(call, work, begin, end,
                  [&](int64_t group, int64_t channel, int64_t channels, typename Of::Scratch& scratch)
                      __attribute__((always_inline)) {
                        for (int64_t i = work.groups[group]; i < work.groups[group + 1]; ++i) {
                          Of::forward_piece(call, work.pieces[i], channel, channels, scratch);
                        }
                      });
  }
};

template <typename T, int kBytes, int kWidth, bool kChannelsLast>
struct BackwardUnits {
  using Of = Tile<T, kBytes, kWidth, kChannelsLast>;
  static TORCHGRAFT_INLINE void run(const Backward<T>& call, const Work& work, int64_t begin, int64_t end,
                                    accumulate_t<T>* partials) {
    const int64_t columns = call.sizes.width + 1;
    for_units<Of>(call, work, begin, end,
                  [&](int64_t group, int64_t channel, int64_t channels, typename Of::Scratch& scratch)
                      __attribute__((always_inline)) {
                        std::fill(scratch.sums, scratch.sums + columns * Of::kStep, accumulate_t<T>{0});
                        for (int64_t i = work.groups[group]; i < work.groups[group + 1]; ++i) {
                          Of::backward_piece(call, work.pieces[i], channel, channels, scratch);
                        }
                        auto* to = partials + (group * call.sizes.channels + channel) * columns;
                        for (int64_t c = 0; c < channels; ++c) {
                          for (int64_t j = 0; j < columns; ++j) *to++ = scratch.sums[j * Of::kStep + c];
                        }
                      });
  }
};

// Calls the function of the width that a call has.
template <int kBytes, template <typename, int, int, bool> typename Function, typename T, bool kChannelsLast,
          typename... Arguments>
TORCHGRAFT_INLINE void run_width(int64_t width, const Arguments&... arguments) {
  if (width == 2) return Compiled<kBytes>::template call<Function<T, kBytes, 2, kChannelsLast>>(arguments...);
  if (width == 3) return Compiled<kBytes>::template call<Function<T, kBytes, 3, kChannelsLast>>(arguments...);
  if (width == 4) return Compiled<kBytes>::template call<Function<T, kBytes, 4, kChannelsLast>>(arguments...);
  Compiled<kBytes>::template call<Function<T, kBytes, 0, kChannelsLast>>(arguments...);
}

// Defines what runs the units of a layout in one dtype, because functions for several instruction sets cannot
// be templates.
#define CAUSAL_CONV1D_RUN(T, NAME, CHANNELS_LAST)                                                           \
  namespace {                                                                                               \
  TORCHGRAFT_VECTOR_CLONES(void run(const Forward<T>& call, const Work& work, int64_t begin, int64_t end),  \
                           run_width<kVectorBytes, ForwardUnits, T, CHANNELS_LAST>(call.sizes.width, call,  \
                                                                                   work, begin, end);)      \
  TORCHGRAFT_VECTOR_CLONES(void run(const Backward<T>& call, const Work& work, int64_t begin, int64_t end,  \
                                    accumulate_t<T>* partials),                                             \
                           run_width<kVectorBytes, BackwardUnits, T, CHANNELS_LAST>(call.sizes.width, call, \
                                                                                    work, begin, end,       \
                                                                                    partials);)             \
  }                                                                                                         \
  template <>                                                                                               \
  void NAME(const Forward<T>& call, const Work& work, int64_t begin, int64_t end) {                         \
    run(call, work, begin, end);                                                                            \
  }                                                                                                         \
  template <>                                                                                               \
  void NAME(const Backward<T>& call, const Work& work, int64_t begin, int64_t end,                          \
            accumulate_t<T>* partials) {                                                                    \
    run(call, work, begin, end, partials);                                                                  \
  }
#define CAUSAL_CONV1D_RUN_ALL(NAME, CHANNELS_LAST) \
  CAUSAL_CONV1D_RUN(double, NAME, CHANNELS_LAST)   \
  CAUSAL_CONV1D_RUN(float, NAME, CHANNELS_LAST)    \
  CAUSAL_CONV1D_RUN(Half, NAME, CHANNELS_LAST)     \
  CAUSAL_CONV1D_RUN(BFloat16, NAME, CHANNELS_LAST)

}  // namespace torchgraft::causal_conv1d
