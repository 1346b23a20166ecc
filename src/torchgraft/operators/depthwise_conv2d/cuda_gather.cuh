// Forward and input gradient for any geometry, layout and dtype, 32 bits inside an image.
//
// Every result gathers its sources. Along one direction, tap number j of a result meets the source
// origin + j * source_step with tap first_tap + j * tap_step of the weight. In the forward pass tap_step is
// one and the origin moves with the stride; the input gradient of stride one walks the kernel backwards; the
// input gradient of other strides meets only every (stride / gcd(stride, dilation))-th tap, and which one is
// the first depends on the phase of the position. Layouts differ in pitches and in what lanes lie along.
//
// gather_small: at most 3 x 3 or 5 x 5 taps a result, all unrolled, weights in registers. A thread owns one
// result, for what is bound by latency: every load of the thread is in flight at once. Or four of one column,
// a dilation apart, so that they share the rows of sources: 4.5 loads a result for 3 x 3, and 10 for 5 x 5.
// Lanes lie along the fastest dimension, whatever its size. Bound by instructions, some 90 a result for one
// and 45 for four: (64,96,56x56,k3,dilation 2) predicted 0.05 ms fp32 and bf16 NCHW (floors 0.037 and 0.019).
//
// gather_large: any kernel whose weights of the block's channels fit shared memory, turned there to
// [tap][channel]; a thread owns one result or four of a column, of one channel or of four. In NCHW a block
// owns one channel. Bound by loads from L1, one a tap.
#pragma once

#include <array>
#include <numeric>

#include "cuda_channels_last.cuh"
#include "cuda_gather.h"

namespace torchgraft::depthwise::cuda {

// One direction. A thread's results lie `spacing` apart and the sources that they begin at `result_step`.
struct GatherAxis {
  int source, result, kernel;
  int taps;  // of a result, at most
  int source_step, tap_step, result_step;
  FastDivisor spacing;
  // Without phases, the source of tap number 0 is result * scale + origin.
  int scale, origin, first_tap;
  // With phases, scale is zero: result + origin = stride * source + dilation * tap, where
  // common = gcd(stride, dilation), period = stride / common, and inverse is that of dilation / common modulo
  // period. The last tap number meets the first such tap, `last` sources behind number 0.
  FastDivisor stride, common, period;
  int dilation, inverse, last;
};

struct GatherTaps {
  int source, tap;  // of tap number 0
};

__device__ inline GatherTaps gather_taps(const GatherAxis& axis, int result) {
  if (axis.scale != 0) return {result * axis.scale + axis.origin, axis.first_tap};
  const int position = result + axis.origin;
  const int quotient = axis.stride.divide(position);
  const int remainder = position - quotient * axis.stride.divisor();
  const int part = axis.common.divide(remainder);
  constexpr int kNoTap = -1;  // and all others come before it
  if (part * axis.common.divisor() != remainder) return {0, kNoTap};
  const int product = part * axis.inverse;
  const int tap = product - axis.period.divide(product) * axis.period.divisor();
  const int source = quotient - axis.stride.divide(tap * axis.dilation - remainder);
  return {source - axis.last, tap + axis.first_tap};
}

// What lies between neighbours, in elements.
struct Pitches {
  int64_t image, channel;
  int row, pixel;
};

struct GatherParameters {
  GatherAxis height, width;
  Pitches source_pitches, result_pitches;
  int taps;                       // of a channel of the weight
  int summed;                     // source channels of a result: the multiplier in the input gradient
  FastDivisor results_of_source;  // the multiplier in the forward pass
  FastDivisor channels, columns, row_groups;  // of the result
  bool channels_last;
  int count;  // threads with results in gather_small; groups of results of a channel in gather_large
  // Of gather_large.
  FastDivisor weight_taps, slices;
  int turns;  // groups of results of a thread
};

// The quotient; `rest` keeps the remainder.
__device__ inline int split(int& rest, const FastDivisor& divisor) {
  const int quotient = divisor.divide(rest);
  rest -= quotient * divisor.divisor();
  return quotient;
}

// Groups of results of a thread are numbered through each stretch of kResults * spacing rows.
template <int kResults>
__device__ int first_row(const GatherAxis& height, int group) {
  if constexpr (kResults == 1) return group;
  return group + height.spacing.divide(group) * (kResults - 1) * height.spacing.divisor();
}

__device__ inline bool is_inside(int position, int size) {
  return static_cast<unsigned>(position) < static_cast<unsigned>(size);
}

constexpr int kGatherThreads = 256;

template <typename T, int kTaps, int kResults>
__global__ void __launch_bounds__(kGatherThreads, kTaps* kResults > 16 ? 1 : 2)
    gather_small(const T* __restrict__ source, const T* __restrict__ weight, const T* __restrict__ bias,
                 T* __restrict__ result, const __grid_constant__ GatherParameters parameters) {
  using Accumulate = accumulate_t<T>;
  const GatherAxis& height = parameters.height;
  const GatherAxis& width = parameters.width;
  const Pitches& source_pitches = parameters.source_pitches;
  const Pitches& result_pitches = parameters.result_pitches;
  const int index = static_cast<int>(blockIdx.x) * kGatherThreads + static_cast<int>(threadIdx.x);
  if (index >= parameters.count) return;
  int channel, x, group, image;
  if (parameters.channels_last) {
    channel = index;
    x = split(channel, parameters.channels);
    group = split(x, parameters.columns);
    image = split(group, parameters.row_groups);
  } else {
    x = index;
    group = split(x, parameters.columns);
    channel = split(group, parameters.row_groups);
    image = split(channel, parameters.channels);
  }
  const int y = first_row<kResults>(height, group);
  const GatherTaps rows = gather_taps(height, y);
  const GatherTaps columns = gather_taps(width, x);

  bool is_column[kTaps];
  int column_offsets[kTaps];
#pragma unroll
  for (int j = 0; j < kTaps; ++j) {
    const int position = columns.source + j * width.source_step;
    is_column[j] =
        is_inside(position, width.source) && is_inside(columns.tap + j * width.tap_step, width.kernel);
    column_offsets[j] = position * source_pitches.pixel;
  }

  Accumulate sums[kResults];
#pragma unroll
  for (int i = 0; i < kResults; ++i) {
    sums[i] = bias == nullptr ? Accumulate(0) : static_cast<Accumulate>(bias[channel]);
  }
  // Several source channels of one result, or several results of one source channel; never both.
  const int first_channel = parameters.results_of_source.divide(channel) * parameters.summed;
  const T* channel_source = source + image * source_pitches.image + first_channel * source_pitches.channel;
  const T* channel_weight = weight + static_cast<int64_t>(channel) * parameters.summed * parameters.taps +
                            rows.tap * width.kernel + columns.tap;
#pragma unroll 1
  for (int summed = 0; summed < parameters.summed; ++summed) {
    Accumulate taps[kTaps][kTaps];
#pragma unroll
    for (int i = 0; i < kTaps; ++i) {
      const bool is_row = is_inside(rows.tap + i * height.tap_step, height.kernel);
      const T* weight_row = channel_weight + i * height.tap_step * width.kernel;
#pragma unroll
      for (int j = 0; j < kTaps; ++j) {
        taps[i][j] =
            is_row && is_column[j] ? static_cast<Accumulate>(weight_row[j * width.tap_step]) : Accumulate(0);
      }
    }
#pragma unroll
    for (int i = 0; i < kTaps + kResults - 1; ++i) {
      const int position = rows.source + i * height.source_step;
      const bool is_row = is_inside(position, height.source);
      const T* source_row = channel_source + position * source_pitches.row;
      Accumulate values[kTaps];
#pragma unroll
      for (int j = 0; j < kTaps; ++j) {
        values[j] =
            is_row && is_column[j] ? static_cast<Accumulate>(source_row[column_offsets[j]]) : Accumulate(0);
      }
#pragma unroll
      for (int k = 0; k < kResults; ++k) {
        const int tap = i - k;
        if (tap < 0 || tap >= kTaps) continue;
        // A source that is not finite must not meet the zeros beside the kernel.
        if (!is_inside(rows.tap + tap * height.tap_step, height.kernel)) continue;
#pragma unroll
        for (int j = 0; j < kTaps; ++j) sums[k] += taps[tap][j] * values[j];
      }
    }
    channel_source += source_pitches.channel;
    channel_weight += parameters.taps;
  }

  T* thread_result =
      result + image * result_pitches.image + channel * result_pitches.channel + x * result_pitches.pixel;
#pragma unroll
  for (int k = 0; k < kResults; ++k) {
    const int row = y + k * height.spacing.divisor();
    if (row < height.result) thread_result[row * result_pitches.row] = static_cast<T>(sums[k]);
  }
}

constexpr int kColumnsAtATime = 4;

template <typename T, int kCount, int kResults>
__global__ void __launch_bounds__(kGatherThreads)
    gather_large(const T* __restrict__ source, const T* __restrict__ weight, const T* __restrict__ bias,
                 T* __restrict__ result, const __grid_constant__ GatherParameters parameters) {
  using Accumulate = accumulate_t<T>;
  const GatherAxis& height = parameters.height;
  const GatherAxis& width = parameters.width;
  const Pitches& source_pitches = parameters.source_pitches;
  const Pitches& result_pitches = parameters.result_pitches;
  const int lanes = static_cast<int>(blockDim.x);
  const int rows_of_block = static_cast<int>(blockDim.y);
  const int thread = static_cast<int>(threadIdx.y) * lanes + static_cast<int>(threadIdx.x);
  int slice = static_cast<int>(blockIdx.x);
  const int stretch = split(slice, parameters.slices);
  const int block_channel = slice * lanes * kCount;
  const int block_channels = min(lanes * kCount, parameters.channels.divisor() - block_channel);
  const int channel = block_channel + static_cast<int>(threadIdx.x) * kCount;
  const int pitch = lanes * kCount;
  Accumulate* shared_weight = shared_memory<Accumulate>();

  for (int turn = 0; turn < parameters.turns; ++turn) {
    const int index = (stretch * parameters.turns + turn) * rows_of_block + static_cast<int>(threadIdx.y);
    const bool active = index < parameters.count && channel < parameters.channels.divisor();
    int x = active ? index : 0;
    int group = split(x, parameters.columns);
    const int image = split(group, parameters.row_groups);
    const int y = first_row<kResults>(height, group);
    const GatherTaps rows = gather_taps(height, y);
    const GatherTaps columns = gather_taps(width, x);

    Accumulate sums[kResults][kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      sums[0][k] = active && bias != nullptr ? static_cast<Accumulate>(bias[channel + k]) : Accumulate(0);
#pragma unroll
      for (int i = 1; i < kResults; ++i) sums[i][k] = sums[0][k];
    }
    const int first_channel = parameters.results_of_source.divide(channel) * parameters.summed;
    const T* channel_source = source + image * source_pitches.image + first_channel * source_pitches.channel;

    for (int summed = 0; summed < parameters.summed; ++summed, channel_source += source_pitches.channel) {
      if (turn == 0 || parameters.summed > 1) {
        __syncthreads();
        for (int i = thread; i < block_channels * parameters.taps; i += lanes * rows_of_block) {
          int tap = i;
          const int weight_channel = split(tap, parameters.weight_taps);
          shared_weight[tap * pitch + weight_channel] = static_cast<Accumulate>(
              weight[(static_cast<int64_t>(block_channel + weight_channel) * parameters.summed + summed) *
                         parameters.taps +
                     tap]);
        }
        __syncthreads();
      }
      if (!active) continue;
      const Accumulate* thread_weight = shared_weight + threadIdx.x * kCount;
#pragma unroll 1
      for (int i = 0; i < height.taps; ++i) {
        const int tap_row = rows.tap + i * height.tap_step;
        if (!is_inside(tap_row, height.kernel)) continue;
        bool is_row[kResults];
        int row_offsets[kResults];
#pragma unroll
        for (int k = 0; k < kResults; ++k) {
          const int position = rows.source + i * height.source_step + k * height.result_step;
          is_row[k] = is_inside(position, height.source);
          row_offsets[k] = position * source_pitches.row;
        }
#pragma unroll 1
        for (int first = 0; first < width.taps; first += kColumnsAtATime) {
#pragma unroll
          for (int j = 0; j < kColumnsAtATime; ++j) {
            const int tap = columns.tap + (first + j) * width.tap_step;
            const int position = columns.source + (first + j) * width.source_step;
            const bool is_column = is_inside(tap, width.kernel) && is_inside(position, width.source);
            Accumulate taps[kCount] = {};
            if (is_column) load_channels(thread_weight + (tap_row * width.kernel + tap) * pitch, taps);
            const int column_offset = position * source_pitches.pixel;
#pragma unroll
            for (int k = 0; k < kResults; ++k) {
              Accumulate values[kCount] = {};
              if (is_column && is_row[k]) {
                load_channels(channel_source + (row_offsets[k] + column_offset), values);
              }
#pragma unroll
              for (int m = 0; m < kCount; ++m) sums[k][m] += taps[m] * values[m];
            }
          }
        }
      }
    }
    if (!active) continue;
    T* thread_result =
        result + image * result_pitches.image + channel * result_pitches.channel + x * result_pitches.pixel;
#pragma unroll
    for (int k = 0; k < kResults; ++k) {
      const int row = y + k * height.spacing.divisor();
      if (row >= height.result) continue;
      Vector<T, kCount> vector;
#pragma unroll
      for (int m = 0; m < kCount; ++m) vector[m] = static_cast<T>(sums[k][m]);
      *reinterpret_cast<Vector<T, kCount>*>(thread_result + row * result_pitches.row) = vector;
    }
  }
}

// `shares_rows`: whether the results of a thread are to begin one source_step apart.
inline GatherAxis gather_axis(const Extent& extent, bool transposed, bool shares_rows) {
  const int stride = static_cast<int>(extent.stride);
  const int dilation = static_cast<int>(extent.dilation);
  const int padding = static_cast<int>(extent.padding);
  GatherAxis axis = {};
  axis.kernel = static_cast<int>(extent.kernel);
  axis.source = static_cast<int>(transposed ? extent.output : extent.input);
  axis.result = static_cast<int>(transposed ? extent.input : extent.output);
  int spacing = 1;
  if (!transposed || stride == 1) {
    axis.taps = axis.kernel;
    axis.source_step = dilation;
    axis.scale = transposed ? 1 : stride;
    axis.tap_step = transposed ? -1 : 1;
    axis.first_tap = transposed ? axis.kernel - 1 : 0;
    axis.origin = transposed ? padding - (axis.kernel - 1) * dilation : -padding;
    if (shares_rows) spacing = dilation / axis.scale;
    axis.result_step = spacing * axis.scale;
  } else {
    const int common = std::gcd(stride, dilation);
    const int period = stride / common;
    axis.taps = ceil_divide(axis.kernel, period);
    axis.source_step = dilation / common;
    axis.tap_step = -period;
    axis.first_tap = (axis.taps - 1) * period;
    axis.origin = padding;
    axis.stride = FastDivisor(stride);
    axis.common = FastDivisor(common);
    axis.period = FastDivisor(period);
    axis.dilation = dilation;
    axis.inverse = static_cast<int>(inverse_modulo(axis.source_step, period));
    axis.last = (axis.taps - 1) * axis.source_step;
    axis.result_step = shares_rows ? axis.source_step : 1;
    spacing = stride * axis.result_step;
  }
  axis.spacing = FastDivisor(spacing);
  return axis;
}

// Of a column of results, for threads that own `results` of them.
inline int64_t row_groups(const GatherAxis& height, int results) {
  const int64_t spacing = height.spacing.divisor();
  return results == 1 ? height.result : ceil_divide(int64_t{height.result}, results * spacing) * spacing;
}

constexpr int64_t kGatherSharedBytes = 48 * 1024;
constexpr int kResultsOfThread = 4;  // where it does not own one

// Everything but what depends on which kernel is launched.
inline GatherParameters gather_parameters(const Geometry& geometry, Layout layout, bool transposed,
                                          bool shares_rows, int results) {
  const auto pitches = [layout](int64_t channels, int64_t height, int64_t width) {
    const int64_t image = channels * height * width;
    return layout == Layout::channels_last
               ? Pitches{image, 1, static_cast<int>(width * channels), static_cast<int>(channels)}
               : Pitches{image, height * width, static_cast<int>(width), 1};
  };
  const Pitches input = pitches(geometry.channels, geometry.height.input, geometry.width.input);
  const Pitches output = pitches(geometry.output_channels(), geometry.height.output, geometry.width.output);
  const int multiplier = static_cast<int>(geometry.multiplier);
  GatherParameters parameters = {};
  parameters.height = gather_axis(geometry.height, transposed, shares_rows);
  parameters.width = gather_axis(geometry.width, transposed, false);
  parameters.source_pitches = transposed ? output : input;
  parameters.result_pitches = transposed ? input : output;
  parameters.taps = static_cast<int>(geometry.taps());
  parameters.summed = transposed ? multiplier : 1;
  parameters.results_of_source = FastDivisor(transposed ? 1 : multiplier);
  parameters.channels =
      FastDivisor(static_cast<int>(transposed ? geometry.channels : geometry.output_channels()));
  parameters.columns = FastDivisor(parameters.width.result);
  parameters.row_groups = FastDivisor(static_cast<int>(row_groups(parameters.height, results)));
  parameters.channels_last = layout == Layout::channels_last;
  parameters.weight_taps = FastDivisor(parameters.taps);
  parameters.turns = 1;
  return parameters;
}

// Calls launch(images of a launch, source, result) until all images are done; a launch has fewer than 2**31
// units of `units_of_image`.
template <typename T, typename Launch>
void for_each_part(const T* source, T* result, const GatherParameters& parameters, int64_t batch,
                   int64_t units_of_image, Launch&& launch) {
  constexpr int64_t kMostUnits = (int64_t{1} << 31) - (1 << 16);
  const int64_t most = std::max<int64_t>(kMostUnits / units_of_image, 1);
  for (int64_t first = 0; first < batch; first += most) {
    launch(std::min(most, batch - first), source + first * parameters.source_pitches.image,
           result + first * parameters.result_pitches.image);
  }
}

inline const char* gather_name(bool transposed) {
  return transposed ? "depthwise_conv2d_input_grad" : "depthwise_conv2d";
}

template <typename T, int kTaps, int kResults>
void launch_gather_small(const T* source, const T* weight, const T* bias, T* result, const Geometry& geometry,
                         Layout layout, bool transposed, cudaStream_t stream) {
  GatherParameters parameters = gather_parameters(geometry, layout, transposed, kResults > 1, kResults);
  const int64_t threads_of_image =
      int64_t{parameters.channels.divisor()} * parameters.columns.divisor() * parameters.row_groups.divisor();
  for_each_part(source, result, parameters, geometry.batch, threads_of_image,
                [&](int64_t images, const T* part_source, T* part_result) {
                  parameters.count = static_cast<int>(images * threads_of_image);
                  const unsigned grid = static_cast<unsigned>(ceil_divide(parameters.count, kGatherThreads));
                  gather_small<T, kTaps, kResults><<<grid, kGatherThreads, 0, stream>>>(
                      part_source, weight, bias, part_result, parameters);
                });
  check_launch(gather_name(transposed));
}

template <typename T, int kCount, int kResults>
void launch_gather_large(const T* source, const T* weight, const T* bias, T* result, const Geometry& geometry,
                         Layout layout, bool transposed, cudaStream_t stream) {
  constexpr int64_t kBlocks = 2048;  // enough for all of a large device
  constexpr int64_t kMostTurns = 8;
  constexpr int64_t kMostChannels = 64;  // of a block
  GatherParameters parameters = gather_parameters(geometry, layout, transposed, false, kResults);
  const int64_t tap_bytes = static_cast<int64_t>(sizeof(accumulate_t<T>)) * kCount * parameters.taps;
  const int64_t lanes_of_image = parameters.channels.divisor() / kCount;
  const int64_t most_lanes =
      layout == Layout::channels_last
          ? std::clamp<int64_t>(kGatherSharedBytes / tap_bytes, 1, kMostChannels / kCount)
          : 1;
  const int slices = static_cast<int>(ceil_divide(lanes_of_image, most_lanes));
  const int lanes = static_cast<int>(ceil_divide<int64_t>(lanes_of_image, slices));
  const int rows = kGatherThreads / lanes;
  parameters.slices = FastDivisor(slices);
  const int64_t groups_of_image = int64_t{parameters.columns.divisor()} * parameters.row_groups.divisor();
  const char* name = gather_name(transposed);
  for_each_part(
      source, result, parameters, geometry.batch, groups_of_image,
      [&](int64_t images, const T* part_source, T* part_result) {
        parameters.count = static_cast<int>(images * groups_of_image);
        const int64_t blocks = ceil_divide(images * groups_of_image, int64_t{rows}) * slices;
        // The more turns, the smaller a part of a block's work is turning the weights.
        parameters.turns = static_cast<int>(
            parameters.summed > 1 ? 1 : std::clamp<int64_t>(blocks / kBlocks, 1, kMostTurns));
        const int64_t grid = ceil_divide(images * groups_of_image, int64_t{rows} * parameters.turns) * slices;
        gather_large<T, kCount, kResults>
            <<<grid_of(grid, name), dim3(lanes, rows), static_cast<size_t>(tap_bytes * lanes), stream>>>(
                part_source, weight, bias, part_result, parameters);
      });
  check_launch(name);
}

template <typename T>
void launch_gather(const T* source, const T* weight, const T* bias, T* result, const Geometry& geometry,
                   Layout layout, bool transposed, cudaStream_t stream) {
  const Extent& height = geometry.height;
  const GatherAxis rows = gather_axis(height, transposed, false);
  const GatherAxis columns = gather_axis(geometry.width, transposed, false);
  const int taps = std::max(rows.taps, columns.taps);
  const int64_t results =
      geometry.batch * (transposed ? geometry.channels * geometry.input_pixels()
                                   : geometry.output_channels() * geometry.output_pixels());
  // Below this there are too few threads for more than one result each.
  constexpr int64_t kManyResults = int64_t{1} << 20;
  const bool many = results >= kManyResults;
  const auto launch = [&](auto launcher) {
    launcher(source, weight, bias, result, geometry, layout, transposed, stream);
  };
  if (taps <= 5 && (layout == Layout::contiguous || !many)) {
    if constexpr (!std::is_same_v<T, double>) {
      // Results of a thread lie a dilation apart: most of them must lie in the image.
      bool shares_rows = many && (transposed || height.dilation % height.stride == 0);
      if (shares_rows) {
        const GatherAxis spaced = gather_axis(height, transposed, true);
        shares_rows = row_groups(spaced, kResultsOfThread) * kResultsOfThread * 3 <= int64_t{rows.result} * 4;
      }
      if (shares_rows) {
        return launch(taps <= 3 ? launch_gather_small<T, 3, kResultsOfThread>
                                : launch_gather_small<T, 5, kResultsOfThread>);
      }
    }
    return launch(taps <= 3 ? launch_gather_small<T, 3, 1> : launch_gather_small<T, 5, 1>);
  }
  if constexpr (!std::is_same_v<T, double>) {
    if (layout == Layout::channels_last && can_take_four_channels<T>(geometry, source, result) &&
        geometry.taps() * kChannels * int64_t{sizeof(accumulate_t<T>)} <= kGatherSharedBytes) {
      return launch(many ? launch_gather_large<T, kChannels, kResultsOfThread>
                         : launch_gather_large<T, kChannels, 1>);
    }
    if (many) return launch(launch_gather_large<T, 1, kResultsOfThread>);
  }
  launch(launch_gather_large<T, 1, 1>);
}

}  // namespace torchgraft::depthwise::cuda
