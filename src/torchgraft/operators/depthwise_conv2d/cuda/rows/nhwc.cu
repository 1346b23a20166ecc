// Forward pass and input gradient on rows in NHWC, of any stride and dilation.
//
// A thread owns one, two or four neighbouring channels of four or eight results of a row, which lie as far
// apart as it takes for neighbours to share their sources (SharingSteps). Lanes lie along channels, so that
// warps read and write whole lines of memory. A thread takes up to eight taps at a time: it reads the sources
// that these meet, each once, and adds each to all results that it counts for. The weights of a block's
// channels lie in shared memory, tap by tap. Taps and steps are known only at run time: one kernel serves all
// sizes.
//
// In halves four channels of eight results take 128 bytes from memory and to it, for which an H200 has some
// 195 cycles of a multiprocessor a warp; k = 7 takes some 375 instructions, 94 cycles, and k = 31 some 1,500.
#include "../kernels.h"

#include <torchgraft/device.cuh>
#include <torchgraft/packed.cuh>

#include "../index.cuh"
#include "../problem.cuh"
#include "nhwc.cuh"

namespace torchgraft::depthwise::cuda {
namespace {

struct NhwcParameters {
  int source, result, kernel, padding, dilation;
  FastDivisor stride;
  int channels;
  int result_step, source_step, tap_step;  // SharingSteps
  int transposed;
  int pitch;                  // of the weights of a tap
  int units, units_of_block;  // of a row
  FastDivisor lanes, parts, channel_groups, classes, taps;
  int tile, tile_pitch;  // of results in shared memory, if they are turned: where it begins, in floats
};

// Brings the weights of a block's channels into shared memory: tap by tap, those of a tap side by side.
template <typename T>
__device__ void load_pixel_weights(const Rounded<T>& weight, float* weights, const FastDivisor& taps,
                                   int first_channel, int channels, int pitch) {
  const int count = channels * taps.divisor();
  const int64_t first = static_cast<int64_t>(first_channel) * taps.divisor();
  weight.with_numbers([&](const auto* numbers) {
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kPixelThreads) {
      const int channel = taps.divide(i);
      weights[(i - channel * taps.divisor()) * pitch + channel] =
          static_cast<float>(read_rounded<T>(numbers + first + i));
    }
  });
}

// A run of taps of one row of sources: where its first source lies, and its first weight.
template <typename T>
struct PixelRun {
  const T* row;          // of the thread's channels
  const float* weights;  // the same
  int source, sources, source_step, channels;
  int weight_step;  // from tap to tap, which may lead back
};

template <typename T, int kChannels, int kResults>
class PixelSums {
 public:
  __device__ explicit PixelSums(const float (&bias)[kChannels]) {
#pragma unroll
    for (int i = 0; i < kResults; ++i) {
#pragma unroll
      for (int k = 0; k < kChannels; ++k) sums_[i][k] = bias[k];
    }
  }

  // Adds all taps of a run.
  __device__ __forceinline__ void add(PixelRun<T> run, int taps) {
#pragma unroll 1
    for (int left = taps; left > 0; left -= kPixelTapsAtOnce) {
      switch (min(left, kPixelTapsAtOnce)) {
        case 1:
          add_taps<1>(run);
          break;
        case 2:
          add_taps<2>(run);
          break;
        case 3:
          add_taps<3>(run);
          break;
        case 4:
          add_taps<4>(run);
          break;
        case 5:
          add_taps<5>(run);
          break;
        case 6:
          add_taps<6>(run);
          break;
        case 7:
          add_taps<7>(run);
          break;
        default:
          add_taps<kPixelTapsAtOnce>(run);
      }
      run.source += kPixelTapsAtOnce * run.source_step;
      run.weights += kPixelTapsAtOnce * run.weight_step;
    }
  }

  __device__ const float (&values() const)[kResults][kChannels] { return sums_; }

  __device__ __forceinline__ void store(T* row, int first, int step, int results, int channels) const {
#pragma unroll
    for (int i = 0; i < kResults; ++i) {
      const int place = first + i * step;
      if (place < results) Packed<T, kChannels>(sums_[i]).store(row + place * channels);
    }
  }

 private:
  template <int kTaps>
  __device__ __forceinline__ void add_taps(const PixelRun<T>& run) {
    constexpr int kSources = kResults + kTaps - 1;
    Packed<T, kChannels> sources[kSources];
#pragma unroll
    for (int i = 0; i < kSources; ++i) {
      const int place = run.source + i * run.source_step;
      sources[i] = {};
      if (is_inside(place, run.sources)) sources[i].load(run.row + place * run.channels);
    }
    Vector<float, kChannels> weights[kTaps];
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
      weights[tap] = *reinterpret_cast<const Vector<float, kChannels>*>(run.weights + tap * run.weight_step);
    }
#pragma unroll
    for (int i = 0; i < kSources; ++i) {
#pragma unroll
      for (int k = 0; k < kChannels; ++k) {
        const float source = sources[i][k];
#pragma unroll
        for (int tap = 0; tap < kTaps; ++tap) {
          const int result = i - tap;
          if (result < 0 || result >= kResults) continue;
          sums_[result][k] = fmaf(source, weights[tap][k], sums_[result][k]);
        }
      }
    }
  }

  float sums_[kResults][kChannels];
};

// Results of a block on their way to NCHW: positions as the block's slots have them, channels side by side.
template <typename T, int kChannels, int kResults>
class TurnedTile {
 public:
  __device__ TurnedTile(const NhwcParameters& parameters, T* tile, int slots)
      : parameters_(parameters), tile_(tile), slots_(slots) {}

  __device__ __forceinline__ void put(const float (&sums)[kResults][kChannels], int slot, int channel) {
#pragma unroll
    for (int i = 0; i < kResults; ++i) {
      const int at = parameters_.result_step == 1 ? slot * kResults + i : i * slots_ + slot;
      Vector<T, kChannels> values;
#pragma unroll
      for (int k = 0; k < kChannels; ++k) values[k] = static_cast<T>(sums[i][k]);
      *reinterpret_cast<Vector<T, kChannels>*>(tile_ + at * parameters_.tile_pitch + channel) = values;
    }
  }

  // Writes the results of the slots' units, from a first unit on, to the block's rows. Lanes lie along them.
  __device__ __forceinline__ void write(T* rows, int first_unit, int units, int channels) const {
    constexpr int kLanes = 32, kWarps = kPixelThreads / kLanes;
    const int lane = static_cast<int>(threadIdx.x) % kLanes, warp = static_cast<int>(threadIdx.x) / kLanes;
    for (int at = lane; at < slots_ * kResults; at += kLanes) {
      int result = first_unit * kResults + at, slot = at / kResults;
      if (parameters_.result_step != 1) {
        const int turn = at / slots_;
        slot = at - turn * slots_;
        int of_class = first_unit + slot;
        const int group = split(of_class, parameters_.classes);
        result = (group * kResults + turn) * parameters_.result_step + of_class;
      }
      if (first_unit + slot >= units || result >= parameters_.result) continue;
#pragma unroll 4
      for (int channel = warp; channel < channels; channel += kWarps) {
        rows[channel * parameters_.result + result] = tile_[at * parameters_.tile_pitch + channel];
      }
    }
  }

 private:
  const NhwcParameters& parameters_;
  T* const tile_;
  const int slots_;
};

// kTurned: results in NCHW.
template <typename T, int kChannels, int kResults, bool kTurned>
__global__ void __launch_bounds__(kPixelThreads, 2)
    rows_nhwc(const T* __restrict__ source, Rounded<T> weight, Rounded<T> bias, T* __restrict__ result,
              const __grid_constant__ NhwcParameters parameters) {
  float* const weights = shared_memory<float>();
  int part = static_cast<int>(blockIdx.x);
  int group = split(part, parameters.parts);
  const int image = split(group, parameters.channel_groups);
  const int lanes = parameters.lanes.divisor(), first_channel = group * lanes * kChannels;
  const int channels = min(lanes * kChannels, parameters.channels - first_channel);
  load_pixel_weights(weight, weights, parameters.taps, first_channel, channels, parameters.pitch);
  __syncthreads();

  int lane = static_cast<int>(threadIdx.x);
  const int slot = split(lane, parameters.lanes), slots = kPixelThreads / lanes;
  const int channel = lane * kChannels;
  const bool has_channels = slot < slots && channel < channels;
  const int own = first_channel + channel;
  float of_bias[kChannels];
  bias.widen(has_channels, own, of_bias);
  const T* const from = source + static_cast<int64_t>(image) * parameters.source * parameters.channels + own;
  T* const to = result + static_cast<int64_t>(image) * parameters.result * parameters.channels;
  TurnedTile<T, kChannels, kResults> tile(parameters, reinterpret_cast<T*>(weights + parameters.tile), slots);
  const int tap_step = parameters.tap_step, stride = parameters.stride.divisor();
  const int end = min(parameters.units, (part + 1) * parameters.units_of_block);
#pragma unroll 1
  for (int first_unit = part * parameters.units_of_block; first_unit < end; first_unit += slots) {
    const int unit = first_unit + slot;
    const bool has_unit = has_channels && unit < end;
    int of_class = unit;
    const int of_group = split(of_class, parameters.classes);
    const int x = of_group * kResults * parameters.result_step + of_class;
    // An input gradient has one run of taps, whose first one falls on a source.
    int run = 0, run_end = has_unit ? min(tap_step, parameters.kernel) : 0, first_source = 0;
    if (parameters.transposed != 0) {
      for (; run < run_end; ++run) {
        const int place = x + parameters.padding + (stride - run) * parameters.dilation;
        first_source = parameters.stride.divide(place);
        if (first_source * stride == place) break;
      }
      first_source -= parameters.dilation;
      run_end = min(run_end, run + 1);
    }
    PixelSums<T, kChannels, kResults> sums(of_bias);
#pragma unroll 1
    for (; run < run_end; ++run) {
      const int taps = (parameters.kernel - run + tap_step - 1) / tap_step;
      PixelRun<T> at = {from,
                        weights + channel + run * parameters.pitch,
                        x * stride - parameters.padding + run * parameters.dilation,
                        parameters.source,
                        parameters.source_step,
                        parameters.channels,
                        tap_step * parameters.pitch};
      if (parameters.transposed != 0) {
        // The sources of later taps lie in front: they are walked from the last tap on.
        at.source = first_source - (taps - 1) * parameters.source_step;
        at.weights += (taps - 1) * at.weight_step;
        at.weight_step = -at.weight_step;
      }
      sums.add(at, taps);
    }
    if constexpr (kTurned) {
      if (has_unit) tile.put(sums.values(), slot, channel);
      __syncthreads();
      tile.write(to + static_cast<int64_t>(first_channel) * parameters.result, first_unit, end, channels);
      __syncthreads();
    } else {
      if (has_unit) sums.store(to + own, x, parameters.result_step, parameters.result, parameters.channels);
    }
  }
}

template <typename T, int kChannels, int kResults, bool kTurned>
void launch(const Correlation<T>& pass, const SharingSteps& steps) {
  const Geometry& geometry = pass.geometry;
  const Extent& width = geometry.width;
  const int taps = static_cast<int>(width.kernel);
  NhwcParameters parameters = {};
  parameters.source = static_cast<int>(pass.transposed ? width.output : width.input);
  parameters.result = static_cast<int>(pass.transposed ? width.input : width.output);
  parameters.kernel = taps;
  parameters.padding = static_cast<int>(width.padding);
  parameters.dilation = static_cast<int>(width.dilation);
  parameters.stride = FastDivisor(static_cast<int>(width.stride));
  parameters.channels = static_cast<int>(geometry.channels);
  parameters.result_step = steps.results;
  parameters.source_step = steps.sources;
  parameters.tap_step = steps.taps;
  parameters.transposed = pass.transposed ? 1 : 0;
  const PixelLanes dealt =
      pixel_lanes(ceil_divide<int64_t>(geometry.channels, kChannels), most_pixel_lanes(taps, kChannels));
  parameters.pitch = pixel_pitch(dealt.lanes, kChannels);
  const PixelUnits units(parameters.result, steps.results, kResults);
  parameters.units = units.count();
  // Blocks enough for the device; as few of them as that takes, because each loads weights.
  constexpr int64_t kBlocksOfMultiprocessor = 12;
  const int64_t wanted = ceil_divide<int64_t>(current_device().multiprocessors * kBlocksOfMultiprocessor,
                                              geometry.batch * dealt.groups);
  parameters.units_of_block = static_cast<int>(
      round_up(ceil_divide<int64_t>(parameters.units, wanted), static_cast<int64_t>(dealt.slots())));
  const int parts = ceil_divide(parameters.units, parameters.units_of_block);
  parameters.lanes = FastDivisor(dealt.lanes);
  parameters.parts = FastDivisor(parts);
  parameters.channel_groups = FastDivisor(dealt.groups);
  parameters.classes = FastDivisor(units.classes);
  parameters.taps = FastDivisor(taps);
  constexpr int kWordsOfVector = 4;
  parameters.tile = round_up(taps * parameters.pitch, kWordsOfVector);
  parameters.tile_pitch = parameters.pitch;
  const unsigned grid = grid_of(geometry.batch * dealt.groups * parts, pass.name());
  const int64_t bytes =
      int64_t{parameters.tile} * static_cast<int64_t>(sizeof(float)) +
      (kTurned ? int64_t{dealt.slots()} * kResults * parameters.tile_pitch * static_cast<int64_t>(sizeof(T))
               : 0);
  const auto kernel = rows_nhwc<T, kChannels, kResults, kTurned>;
  require_shared_memory(kernel, bytes, pass.name());
  kernel<<<grid, kPixelThreads, bytes, pass.stream>>>(pass.source, pass.weight, pass.bias, pass.result,
                                                      parameters);
  check_launch(pass.name());
}

template <typename T, bool kTurned>
void launch(const Correlation<T>& pass) {
  const Extent& width = pass.geometry.width;
  const Problem problem = make_problem(pass);
  // Turned results are written one by one, whatever their alignment.
  const int alignment = kTurned ? common_alignment(pass.source) : problem.alignment;
  with_pixel_channels<T>(pass.geometry.channels, alignment, [&]<int kChannels>() {
    if (owns_one_result(width, pass.transposed)) {
      const SharingSteps steps(static_cast<int>(width.dilation));
      return launch<T, kChannels, kPixelOneResult, kTurned>(pass, steps);
    }
    const SharingSteps steps(width, pass.transposed);
    const int results = pixel_results(problem, steps.results, kChannels);
    results == kPixelManyResults ? launch<T, kChannels, kPixelManyResults, kTurned>(pass, steps)
                                 : launch<T, kChannels, kPixelFewResults, kTurned>(pass, steps);
  });
}

}  // namespace

template <typename T>
void launch_rows_nhwc(const Correlation<T>& pass) {
  launch<T, false>(pass);
}
template <typename T>
void launch_rows_nhwc_turned(const Correlation<T>& pass) {
  launch<T, true>(pass);
}

#define TORCHGRAFT_INSTANCES(T)                          \
  template void launch_rows_nhwc(const Correlation<T>&); \
  template void launch_rows_nhwc_turned(const Correlation<T>&);
TORCHGRAFT_INSTANCES(float)
TORCHGRAFT_INSTANCES(Half)
TORCHGRAFT_INSTANCES(BFloat16)
#undef TORCHGRAFT_INSTANCES

}  // namespace torchgraft::depthwise::cuda
