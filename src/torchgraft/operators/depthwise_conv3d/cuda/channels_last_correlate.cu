// Forward pass, and input gradient, of volumes in channels_last_3d, with kernels of up to 27 taps.
//
// A thread (channels_last.cuh) keeps the weights of its channels in registers, and the sums of all result
// planes in flight; sources are read through the caches, those of a plane all at once, each by all threads
// that it counts for at about the same time.
//
// Measured on an H100 (PyTorch 2.11; floors are the time of a copy), bf16 (8,54,16x56x56), k 3: forward 110
// us (3.8 floors), PyTorch 1,217; input gradient 103 us, PyTorch 868.
#include "channels_last.cuh"

namespace torchgraft::depthwise::volumes {
namespace {

// The arrays that a thread computes with. They are no members of what uses them: the compiler would keep all
// members in memory until it has unrolled the loops.
template <typename Traits>
struct ChannelsCorrelateArrays {
  float (&taps)[Traits::kTaps][Traits::kChannels];
  float (&first_sums)[Traits::kChannels];
  float (&sums)[Traits::Depth::kSlots][Traits::kRows][Traits::kColumns][Traits::kChannels];
};

// Loads the taps of a thread's channels, and what its sums begin with.
template <typename Traits>
__device__ __forceinline__ void load_weights(const ChannelsCorrelateArrays<Traits>& arrays,
                                             const Rounded<typename Traits::T>& weight,
                                             const Rounded<typename Traits::T>& bias, int channel,
                                             bool turned) {
  constexpr int kTaps = Traits::kTaps;
#pragma unroll
  for (int i = 0; i < Traits::kChannels; ++i) {
    arrays.first_sums[i] = bias.or_zero(true, channel + i);
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
      arrays.taps[tap][i] =
          weight[static_cast<int64_t>(channel + i) * kTaps + (turned ? kTaps - 1 - tap : tap)];
    }
  }
}

// The sweep of a thread along the depth of its tile.
template <typename Traits>
class ChannelsCorrelate {
 public:
  using T = typename Traits::T;

  __device__ __forceinline__ ChannelsCorrelate(const T* source, T* result,
                                               const ChannelsParameters& parameters, const ChannelsTile& tile,
                                               int channel, const ChannelsCorrelateArrays<Traits>& arrays)
      : taps_(arrays.taps),
        first_sums_(arrays.first_sums),
        sums_(arrays.sums),
        result_(result),
        parameters_(parameters),
        tile_(tile),
        channel_(channel),
        source_row_(parameters.origin_row + tile.row / Traits::kRows * Rows::kStep),
        source_column_(parameters.origin_column + tile.column / Traits::kColumns * Columns::kStep),
        plane_elements_(static_cast<int64_t>(parameters.source_rows) * parameters.source_columns *
                        parameters.channels),
        channels_(parameters.channels),
        volume_(source + tile.image * parameters.source_planes * plane_elements_ + channel) {}

  __device__ __forceinline__ void run() {
#pragma unroll
    for (int slot = 0; slot < Depth::kSlots; ++slot) start(slot);
    const typename Depth::Stretch stretch(tile_.first_plane, tile_.end_plane, parameters_.padding_depth,
                                          parameters_.source_planes);
    int plane = stretch.first_source;
    for (int step = stretch.first_step; step < stretch.end_step; ++step) {
#pragma unroll
      for (int of_step = 0; of_step < Depth::kPlanes; ++of_step, ++plane) {
        if (plane < 0 || plane >= stretch.end_source) continue;
        add_plane(plane, of_step);
      }
      store(step);
      move_sums();
    }
  }

 private:
  using Depth = typename Traits::Depth;
  using Rows = typename Traits::Rows;
  using Columns = typename Traits::Columns;
  static constexpr int kChannels = Traits::kChannels, kTaps = Traits::kTaps;

  __device__ __forceinline__ void start(int slot) {
#pragma unroll
    for (int i = 0; i < Traits::kRows * Traits::kColumns * kChannels; ++i) {
      sums_[slot][i / (Traits::kColumns * kChannels)][i / kChannels % Traits::kColumns][i % kChannels] =
          first_sums_[i % kChannels];
    }
  }

  // Reads the sources of a plane, and adds them to all result planes that they count for.
  __device__ __forceinline__ void add_plane(int plane, int of_step) {
    Window<T, kChannels, Rows::kSources, Columns::kSources> window;
    window.load(volume_ + plane * plane_elements_, true, source_row_, source_column_, parameters_.source_rows,
                parameters_.source_columns, channels_);
#pragma unroll
    for (int i = 0; i < Rows::kSources; ++i) {
#pragma unroll
      for (int j = 0; j < Columns::kSources; ++j) {
#pragma unroll
        for (int slot = 0; slot < Depth::kSlots; ++slot) {
          const int depth_tap = Depth::tap(slot, of_step);
          if (depth_tap < Traits::kKernelDepth) add_source(window.words[i][j], i, j, slot, depth_tap);
        }
      }
    }
  }

  // Adds one source to the results of a plane.
  __device__ __forceinline__ void add_source(const Packed<T, kChannels>& source, int i, int j, int slot,
                                             int depth_tap) {
#pragma unroll
    for (int row = 0; row < Traits::kRows; ++row) {
#pragma unroll
      for (int column = 0; column < Traits::kColumns; ++column) {
        if (!Rows::meets(i, row) || !Columns::meets(j, column)) continue;
        const int tap = (depth_tap * Traits::kKernelHeight + Rows::tap(i, row)) * Traits::kKernelWidth +
                        Columns::tap(j, column);
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
          float& sum = sums_[slot][row][column][c];
          sum = fmaf(source[c], taps_[tap][c], sum);
        }
      }
    }
  }

  // Stores the result planes that a step completes.
  __device__ __forceinline__ void store(int step) const {
#pragma unroll
    for (int slot = 0; slot < Depth::kDone; ++slot) {
      const int done = Depth::result(step, slot, parameters_.padding_depth);
      if (done < tile_.first_plane || done >= tile_.end_plane) continue;
      const int64_t planes_before = static_cast<int64_t>(tile_.image) * parameters_.result_planes + done;
#pragma unroll
      for (int row = 0; row < Traits::kRows; ++row) {
#pragma unroll
        for (int column = 0; column < Traits::kColumns; ++column) {
          if (tile_.row + row >= parameters_.result_rows ||
              tile_.column + column >= parameters_.result_columns) {
            continue;
          }
          const int64_t place =
              (planes_before * parameters_.result_rows + tile_.row + row) * parameters_.result_columns +
              tile_.column + column;
          Packed<T, kChannels>(sums_[slot][row][column]).store(result_ + place * channels_ + channel_);
        }
      }
    }
  }

  // Moves the sums of planes that are not complete to the slots of the next step.
  __device__ __forceinline__ void move_sums() {
#pragma unroll
    for (int slot = 0; slot < Depth::kSlots; ++slot) {
      if (slot + Depth::kDone >= Depth::kSlots) {
        start(slot);
        continue;
      }
#pragma unroll
      for (int i = 0; i < Traits::kRows * Traits::kColumns * kChannels; ++i) {
        const int row = i / (Traits::kColumns * kChannels), column = i / kChannels % Traits::kColumns;
        sums_[slot][row][column][i % kChannels] = sums_[slot + Depth::kDone][row][column][i % kChannels];
      }
    }
  }

  float (&taps_)[kTaps][kChannels];
  float (&first_sums_)[kChannels];
  float (&sums_)[Depth::kSlots][Traits::kRows][Traits::kColumns][kChannels];
  T* result_;
  const ChannelsParameters& parameters_;
  const ChannelsTile tile_;
  const int channel_;
  const int source_row_, source_column_;
  const int64_t plane_elements_;  // of the source
  const int channels_;
  const T* volume_;
};

template <typename Traits>
__global__ void __launch_bounds__(kChannelsThreads, Traits::kBlocks)
    channels_last_correlate(const typename Traits::T* __restrict__ source, Rounded<typename Traits::T> weight,
                            Rounded<typename Traits::T> bias, typename Traits::T* __restrict__ result,
                            const __grid_constant__ ChannelsParameters parameters) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kChannelsThreads + threadIdx.x;
  const int words = parameters.words.divisor();
  if (index >= static_cast<int64_t>(parameters.units) * words) return;
  // A block begins in one unit, and counts words from there on.
  const int first_unit = static_cast<int>(static_cast<int64_t>(blockIdx.x) * kChannelsThreads / words);
  const int rest = static_cast<int>(index - static_cast<int64_t>(first_unit) * words);
  const int more_units = parameters.words.divide(rest);
  const int channel = (rest - more_units * words) * Traits::kChannels;
  const ChannelsTile tile = ChannelsTile::of(first_unit + more_units, parameters, Traits());
  float taps[Traits::kTaps][Traits::kChannels], first_sums[Traits::kChannels];
  float sums[Traits::Depth::kSlots][Traits::kRows][Traits::kColumns][Traits::kChannels];
  const ChannelsCorrelateArrays<Traits> arrays = {taps, first_sums, sums};
  load_weights(arrays, weight, bias, channel, parameters.turned);
  ChannelsCorrelate<Traits>(source, result, parameters, tile, channel, arrays).run();
}

template <typename Traits>
void launch(const Correlation<typename Traits::T>& pass) {
  ChannelsParameters parameters = parameters_of<Traits>(pass.geometry, pass.transposed);
  cut_depth<Traits>(parameters, pass.geometry, Traits::Depth::kSlots - 1,
                    occupancy_of(channels_last_correlate<Traits>, kChannelsThreads, 0));
  const int64_t threads = static_cast<int64_t>(parameters.units) * parameters.words.divisor();
  const unsigned grid = grid_of(ceil_divide<int64_t>(threads, kChannelsThreads), pass.name());
  channels_last_correlate<Traits><<<grid, kChannelsThreads, 0, pass.stream>>>(
      pass.source, pass.weight, pass.bias, pass.result, parameters);
  check_launch(pass.name());
}

}  // namespace

template <typename T>
void launch_channels_last(const Correlation<T>& pass) {
  const auto use = [&]<typename Traits>() { launch<Traits>(pass); };
  const auto with_channels = [&]<int kChannels>() {
    pass.transposed ? with_traits<T, kChannels, true>(pass.geometry, use)
                    : with_traits<T, kChannels, false>(pass.geometry, use);
  };
  if constexpr (sizeof(T) == 2) {
    if (has_words<T>(pass.geometry, pass.source, pass.result)) return with_channels.template operator()<2>();
  }
  with_channels.template operator()<1>();
}

template void launch_channels_last(const Correlation<float>&);
template void launch_channels_last(const Correlation<Half>&);
template void launch_channels_last(const Correlation<BFloat16>&);

}  // namespace torchgraft::depthwise::volumes
