// Forward and input gradient for any geometry, layout and dtype, 32 bits inside an image.
//
// Every result gathers its sources. Along one direction, its tap number i is tap `phase + i * period` of the
// weight and meets the source `source + i * step`. In the forward pass the period is one and the source
// begins where the stride takes it; the input gradient of stride one steps backwards; the input gradient of
// other strides meets only every (stride / gcd(stride, dilation))-th tap, and which of them is told by the
// phase of the position. Layouts differ in pitches and in what lanes lie along.
//
// gather_small: up to 5 x 5 taps a result, or a kernel of 7 x 7, all unrolled, with the weights of a channel
// in registers; where the kernel is square and every result meets all of it, no tap is tested. A thread owns
// one result, for what is bound by latency: every load of the thread is in flight at once. Or four of a
// column that meet the same taps of neighbouring sources, so that they share these: 4.5 loads a result for
// 3 x 3, and 10 for 5 x 5. Lanes lie along the fastest dimension, whatever its size. In NHWC a block of
// threads with four results owns some channels, and turns their weights to [tap][channel] in shared memory.
// Bound by instructions and the latency that few warps hide: (64,96,56x56,k3,dilation 2) predicted 0.05 ms,
// measured on an H200 0.06 fp32 and bf16, both layouts (floors 0.037 and 0.019); k5 0.12, k7 0.25;
// (8,64,28x28,k3, dilation 2) 6.7 us, of which 4.6 an empty kernel takes.
//
// gather_large: any kernel whose weights of a block's channels fit shared memory. They lie there as
// [phase of the row][row][phase of the column][column][channel]. A thread owns one result at a time, of one
// channel or of four; 3 x 3 or 3 x 5 taps of it have their loads in flight together. In NCHW a block owns one
// channel. Bound by instructions, some six a tap, and in NHWC by two accesses to L1 a tap.
#pragma once

#include <numeric>

#include "../index.cuh"
#include "../kernels.h"
#include "../problem.cuh"
#include "../stencil.cuh"
#include "../supports.h"
#include "modulo.h"

namespace torchgraft::depthwise::cuda {

// One direction.
struct GatherAxis {
  int source, result, kernel;
  int taps;  // of a result, at most: number 0 to taps - 1
  int step;  // of the source from tap to tap, backwards in the input gradient
  // Without phases, tap number 0 of a result meets the source result * scale + origin.
  int scale, origin;
  // With phases, scale is zero and result + origin = stride * source + dilation * tap, where
  // common = gcd(stride, dilation), period = stride / common, and `inverse` is that of dilation / common
  // modulo period.
  int dilation, inverse;
  FastDivisor stride, common, period;
  FastDivisor step_size;  // without its sign
};

// Where the taps of a result begin: the source of number 0, and its phase; behind the kernel if there are
// none.
struct GatherOrigin {
  int source, phase;
};

__device__ inline GatherOrigin gather_origin(const GatherAxis& axis, int result) {
  if (axis.scale != 0) return {result * axis.scale + axis.origin, 0};
  const int position = result + axis.origin;
  const int quotient = axis.stride.divide(position);
  const int remainder = position - quotient * axis.stride.divisor();
  if (axis.dilation == 1) return {quotient, remainder};
  int part = remainder;
  const int product = split(part, axis.common) * axis.inverse;
  if (part != 0) return {0, axis.kernel};
  const int phase = product - axis.period.divide(product) * axis.period.divisor();
  return {quotient - axis.stride.divide(phase * axis.dilation - remainder), phase};
}

// Those numbers, begin <= i < end, whose source is inside the image.
struct GatherTaps {
  int source, phase;
  int begin, end;
};

__device__ inline GatherTaps gather_taps(const GatherAxis& axis, int result) {
  const GatherOrigin origin = gather_origin(axis, result);
  if (origin.phase >= axis.kernel) return {};
  GatherTaps taps = {origin.source, origin.phase, 0, axis.taps};
  if (taps.phase + (axis.taps - 1) * axis.period.divisor() >= axis.kernel) --taps.end;
  const int front = axis.step > 0 ? taps.source : axis.source - 1 - taps.source;
  const int back = axis.source - 1 - front;
  if (front < 0) taps.begin = axis.step_size.divide(axis.step_size.divisor() - 1 - front);
  taps.end = back < 0 ? 0 : min(taps.end, axis.step_size.divide(back) + 1);
  return taps;
}

// What lies between neighbours, in elements; a row and a pixel are of the same image.
struct GatherPitches {
  int image, channel, row, pixel;
};

struct GatherParameters {
  GatherAxis height, width;
  GatherPitches source, result;
  FastDivisor channels, columns, rows;  // of the result; of gather_small, groups of rows
  FastDivisor results_of_source;        // the multiplier in the forward pass
  int count;   // of gather_small, threads that own results; of gather_large, results of a channel
  int summed;  // source channels of a result: the multiplier in the input gradient
  int taps, weights_of_result;  // of a channel of the weight; of all that a result sums
  // Of gather_small: elements between the sources of two taps; rows between the results of a thread, with the
  // sign of the step, and without.
  int row_step, column_step;
  int spacing;
  FastDivisor spacing_size;
  // Of gather_large.
  int weight_taps;  // of a row in shared memory, missing taps included
  FastDivisor kernel_taps, kernel_width;
  FastDivisor slices;
  int turns;  // results of a thread
};

constexpr int kGatherThreads = 256;

template <typename T, int kCount>
__device__ void load_channels(const T* pointer, accumulate_t<T> (&values)[kCount]) {
  const Vector<T, kCount> vector = *reinterpret_cast<const Vector<T, kCount>*>(pointer);
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = static_cast<accumulate_t<T>>(vector[i]);
}

// Where a thread's results and their sources begin. Groups of results are numbered through each stretch of
// kResults * spacing rows; backwards, a group begins last.
template <int kResults>
__device__ int first_result_row(const GatherParameters& parameters, int group) {
  if constexpr (kResults == 1) return group;
  const int spacing = parameters.spacing_size.divisor();
  const int row = group + parameters.spacing_size.divide(group) * (kResults - 1) * spacing;
  return parameters.spacing < 0 ? row + (kResults - 1) * spacing : row;
}

// The taps of one column of results. kExact: the kernel is kTaps x kTaps and all results meet all taps;
// otherwise they meet at most kTaps along either direction, of any phase.
template <int kTaps, bool kExact>
struct GatherWindow {
  GatherOrigin row, column;

  __device__ GatherWindow(const GatherParameters& parameters, int y, int x) {
    const GatherAxis& height = parameters.height;
    const GatherAxis& width = parameters.width;
    if constexpr (kExact) {
      row = {y * height.scale + height.origin, 0};
      column = {x * width.scale + width.origin, 0};
    } else {
      row = gather_origin(height, y);
      column = gather_origin(width, x);
    }
  }

  __device__ static bool has(const GatherAxis& axis, const GatherOrigin& origin, int number) {
    return kExact || origin.phase + number * axis.period.divisor() < axis.kernel;
  }

  // The taps, each by load(its place among the weights of a channel); zero where there is none.
  template <typename T, typename Load>
  __device__ void load_taps(const GatherParameters& parameters, T (&taps)[kTaps][kTaps], Load&& load) const {
    const GatherAxis& height = parameters.height;
    const GatherAxis& width = parameters.width;
#pragma unroll
    for (int i = 0; i < kTaps; ++i) {
#pragma unroll
      for (int j = 0; j < kTaps; ++j) {
        if constexpr (kExact) {
          taps[i][j] = load(i * kTaps + j);
        } else {
          const int tap = (row.phase + i * height.period.divisor()) * width.kernel + column.phase +
                          j * width.period.divisor();
          taps[i][j] = T(0.0F);
          if (has(height, row, i) && has(width, column, j)) taps[i][j] = load(tap);
        }
      }
    }
  }

  // Adds the taps of one source channel to the results.
  template <typename T, int kResults>
  __device__ void add(const T* source, const accumulate_t<T> (&taps)[kTaps][kTaps],
                      const GatherParameters& parameters, accumulate_t<T> (&sums)[kResults]) const {
    const GatherAxis& height = parameters.height;
    const GatherAxis& width = parameters.width;
    const int offset = row.source * parameters.source.row + column.source * parameters.source.pixel;
#pragma unroll
    for (int i = 0; i < kTaps + kResults - 1; ++i) {
      const bool is_row =
          is_inside(row.source + i * height.step, height.source) && (kResults > 1 || has(height, row, i));
      accumulate_t<T> values[kTaps];
#pragma unroll
      for (int j = 0; j < kTaps; ++j) {
        const bool is_source =
            is_row && has(width, column, j) && is_inside(column.source + j * width.step, width.source);
        values[j] =
            load_if(is_source, source + (offset + i * parameters.row_step + j * parameters.column_step));
      }
#pragma unroll
      for (int k = 0; k < kResults; ++k) {
        const int tap = i - k;
        if (tap < 0 || tap >= kTaps) continue;
        // What is not finite must not meet the zeros behind the kernel.
        if (kResults > 1 && !has(height, row, tap)) continue;
#pragma unroll
        for (int j = 0; j < kTaps; ++j) sums[k] += taps[tap][j] * values[j];
      }
    }
  }
};

template <typename T, int kResults>
__device__ void store_column(T* result, int y, int x, const GatherParameters& parameters,
                             const accumulate_t<T> (&sums)[kResults]) {
#pragma unroll
  for (int k = 0; k < kResults; ++k) {
    const int row = y + k * parameters.spacing;
    if (is_inside(row, parameters.height.result)) {
      result[row * parameters.result.row + x * parameters.result.pixel] = static_cast<T>(sums[k]);
    }
  }
}

constexpr int small_gather_blocks(int taps, int results) { return taps * results > 16 ? 1 : 2; }

// Of weights of T, and of wider ones: a thread waits for few loads, and would for the choice between them
// too.
template <typename T, typename Number, int kTaps, int kResults, bool kExact, bool kChannelsLast>
__global__ void __launch_bounds__(kGatherThreads, small_gather_blocks(kTaps, kResults))
    gather_small(const T* __restrict__ source, const Number* __restrict__ weight, Rounded<T> bias,
                 T* __restrict__ result, const __grid_constant__ GatherParameters parameters) {
  using Accumulate = accumulate_t<T>;
  const int index = static_cast<int>(blockIdx.x) * kGatherThreads + static_cast<int>(threadIdx.x);
  if (index >= parameters.count) return;
  // An image in NHWC, a plane in NCHW.
  int channel, x, group, image;
  if constexpr (kChannelsLast) {
    channel = index;
    x = split(channel, parameters.channels);
    group = split(x, parameters.columns);
    image = split(group, parameters.rows);
    source += static_cast<int64_t>(image) * parameters.source.image +
              parameters.results_of_source.divide(channel) * parameters.summed;
    result += static_cast<int64_t>(image) * parameters.result.image + channel;
  } else {
    x = index;
    group = split(x, parameters.columns);
    image = split(group, parameters.rows);
    channel = image;
    split(channel, parameters.channels);
    source += static_cast<int64_t>(parameters.results_of_source.divide(image) * parameters.summed) *
              parameters.source.channel;
    result += static_cast<int64_t>(image) * parameters.result.channel;
  }
  const int y = first_result_row<kResults>(parameters, group);

  Accumulate sums[kResults];
  const Accumulate start = bias.or_zero(true, channel);
#pragma unroll
  for (int k = 0; k < kResults; ++k) sums[k] = start;
  const GatherWindow<kTaps, kExact> window(parameters, y, x);
  weight += static_cast<int64_t>(channel) * parameters.weights_of_result;
  const int summed_channels = kExact ? 1 : parameters.summed;
#pragma unroll 1
  for (int summed = 0; summed < summed_channels; ++summed) {
    Accumulate taps[kTaps][kTaps];
    window.load_taps(parameters, taps,
                     [&](int tap) { return static_cast<Accumulate>(read_rounded<T>(weight + tap)); });
    window.add(kept(source), taps, parameters, sums);
    weight += parameters.taps;
    source += parameters.source.channel;
  }
  store_column(kept(result), y, x, parameters, sums);
}

// NHWC, for many results: a block owns some channels, and turns their weights once.
template <typename T, int kTaps, bool kExact>
__global__ void __launch_bounds__(kGatherThreads, small_gather_blocks(kTaps, kResultsOfThread))
    gather_columns_nhwc(const T* __restrict__ source, Rounded<T> weight, Rounded<T> bias,
                        T* __restrict__ result, const __grid_constant__ GatherParameters parameters) {
  using Accumulate = accumulate_t<T>;
  const int lanes = static_cast<int>(blockDim.x);
  const int rows_of_block = static_cast<int>(blockDim.y);
  const int lane = static_cast<int>(threadIdx.x);
  int slice = static_cast<int>(blockIdx.x);
  const int stretch = split(slice, parameters.slices);
  const int block_channel = slice * lanes;
  const int channel = block_channel + lane;
  const int channels = parameters.channels.divisor();

  // [source channel of a result][tap][lane]
  Accumulate* shared_weight = shared_memory<Accumulate>();
  const int taps_of_channel = parameters.kernel_taps.divisor();
  const Rounded<T> block_weight = weight + static_cast<int64_t>(block_channel) * taps_of_channel;
  const int count = min(lanes, channels - block_channel) * taps_of_channel;
  block_weight.with_numbers([&](const auto* numbers) {
    for (int i = static_cast<int>(threadIdx.y) * lanes + lane; i < count; i += lanes * rows_of_block) {
      int tap = i;
      const int block_lane = split(tap, parameters.kernel_taps);
      shared_weight[tap * lanes + block_lane] = static_cast<Accumulate>(read_rounded<T>(numbers + i));
    }
  });
  __syncthreads();
  if (channel >= channels) return;

  const Accumulate start = bias.or_zero(true, channel);
  source += parameters.results_of_source.divide(channel) * parameters.summed;
  result += channel;
#pragma unroll 1
  for (int turn = 0; turn < parameters.turns; ++turn) {
    const int index = (stretch * parameters.turns + turn) * rows_of_block + static_cast<int>(threadIdx.y);
    if (index >= parameters.count) return;
    int x = index;
    int group = split(x, parameters.columns);
    const int image = split(group, parameters.rows);
    const int y = first_result_row<kResultsOfThread>(parameters, group);
    Accumulate sums[kResultsOfThread];
#pragma unroll
    for (int k = 0; k < kResultsOfThread; ++k) sums[k] = start;
    const T* image_source = source + static_cast<int64_t>(image) * parameters.source.image;
    const GatherWindow<kTaps, kExact> window(parameters, y, x);
    const int summed_channels = kExact ? 1 : parameters.summed;
#pragma unroll 1
    for (int summed = 0; summed < summed_channels; ++summed) {
      Accumulate taps[kTaps][kTaps];
      const Accumulate* lane_weight = shared_weight + summed * parameters.taps * lanes + lane;
      window.load_taps(parameters, taps, [&](int tap) { return lane_weight[tap * lanes]; });
      window.add(kept(image_source + summed), taps, parameters, sums);
    }
    store_column(kept(result + static_cast<int64_t>(image) * parameters.result.image), y, x, parameters,
                 sums);
  }
}

template <typename T, int kCount, int kColumns, bool kChannelsLast>
__global__ void __launch_bounds__(kGatherThreads, 2)
    gather_large(const T* __restrict__ source, Rounded<T> weight, Rounded<T> bias, T* __restrict__ result,
                 const __grid_constant__ GatherParameters parameters) {
  using Accumulate = accumulate_t<T>;
  const GatherAxis& height = parameters.height;
  const GatherAxis& width = parameters.width;
  const int lanes = kChannelsLast ? static_cast<int>(blockDim.x) : 1;
  const int rows_of_block = static_cast<int>(blockDim.y);
  const int lane = kChannelsLast ? static_cast<int>(threadIdx.x) : 0;
  const int thread = static_cast<int>(threadIdx.y) * lanes + lane;
  int slice = static_cast<int>(blockIdx.x);
  const int stretch = split(slice, parameters.slices);
  const int pitch = lanes * kCount;  // of shared memory
  const int block_channel = slice * pitch;
  const int block_channels = min(pitch, parameters.channels.divisor() - block_channel);
  const int channel = block_channel + lane * kCount;
  Accumulate* shared_weight = shared_memory<Accumulate>();

  for (int turn = 0; turn < parameters.turns; ++turn) {
    const int index = (stretch * parameters.turns + turn) * rows_of_block + static_cast<int>(threadIdx.y);
    const bool active = index < parameters.count && channel < parameters.channels.divisor();
    int x = active ? index : 0;
    int y = split(x, parameters.columns);
    const int image = split(y, parameters.rows);
    const GatherTaps rows = gather_taps(height, y);
    const GatherTaps columns = gather_taps(width, x);

    Accumulate sums[kCount];
    bias.widen(active, channel, sums);
    const int source_channel = parameters.results_of_source.divide(channel) * parameters.summed;
    const T* channel_source = source + static_cast<int64_t>(image) * parameters.source.image +
                              static_cast<int64_t>(source_channel) * parameters.source.channel;
    const Accumulate* first_weight =
        shared_weight +
        (rows.phase * height.taps * parameters.weight_taps + columns.phase * width.taps) * pitch +
        lane * kCount;

    for (int summed = 0; summed < parameters.summed; ++summed, channel_source += parameters.source.channel) {
      if (turn == 0) {  // the only one where several channels are summed
        __syncthreads();
        const int count = block_channels * parameters.kernel_taps.divisor();
        weight.with_numbers([&](const auto* numbers) {
          for (int i = thread; i < count; i += lanes * rows_of_block) {
            int column = i;
            const int block_lane = split(column, parameters.kernel_taps);
            const int64_t first =
                (static_cast<int64_t>(block_channel + block_lane) * parameters.summed + summed) *
                parameters.kernel_taps.divisor();
            const T tap = read_rounded<T>(numbers + first + column);
            int row_phase = split(column, parameters.kernel_width);
            const int row = split(row_phase, height.period);
            int column_phase = column;
            const int phase_column = split(column_phase, width.period);
            shared_weight[((row_phase * height.taps + row) * parameters.weight_taps +
                           column_phase * width.taps + phase_column) *
                              pitch +
                          block_lane] = static_cast<Accumulate>(tap);
          }
        });
        __syncthreads();
      }
      if (!active) continue;
      const T* group_source = kept(channel_source);
#pragma unroll 1
      for (int first = 0; first < width.taps; first += kColumns) {
        bool is_column[kColumns];
#pragma unroll
        for (int j = 0; j < kColumns; ++j)
          is_column[j] = first + j >= columns.begin && first + j < columns.end;
        const int offset = rows.source * parameters.source.row +
                           (columns.source + first * width.step) * parameters.source.pixel;
        const Accumulate* group_weight = kept_shared(first_weight + first * pitch);
        // Three rows of three columns are in flight together, or two of more.
#pragma unroll(kColumns == 3 ? 3 : 2)
        for (int i = rows.begin; i < rows.end; ++i) {
          const Accumulate* row_weight = group_weight + i * (parameters.weight_taps * pitch);
          const int row_offset = offset + i * parameters.row_step;
#pragma unroll
          for (int j = 0; j < kColumns; ++j) {
            if (!is_column[j]) continue;
            Accumulate taps[kCount], values[kCount];
            load_channels(row_weight + j * pitch, taps);
            load_channels(group_source + (row_offset + j * parameters.column_step), values);
#pragma unroll
            for (int k = 0; k < kCount; ++k) sums[k] += taps[k] * values[k];
          }
        }
      }
    }
    if (!active) continue;
    Vector<T, kCount> vector;
#pragma unroll
    for (int k = 0; k < kCount; ++k) vector[k] = static_cast<T>(sums[k]);
    T* channel_result = result + static_cast<int64_t>(image) * parameters.result.image +
                        static_cast<int64_t>(channel) * parameters.result.channel;
    *reinterpret_cast<Vector<T, kCount>*>(channel_result +
                                          (y * parameters.result.row + x * parameters.result.pixel)) = vector;
  }
}

inline GatherAxis gather_axis(const Extent& extent, bool transposed) {
  const int stride = static_cast<int>(extent.stride);
  const int dilation = static_cast<int>(extent.dilation);
  const int padding = static_cast<int>(extent.padding);
  GatherAxis axis = {};
  axis.kernel = static_cast<int>(extent.kernel);
  axis.source = static_cast<int>(transposed ? extent.output : extent.input);
  axis.result = static_cast<int>(transposed ? extent.input : extent.output);
  int step = dilation;
  int period = 1;
  if (!transposed) {
    axis.scale = stride;
    axis.origin = -padding;
  } else {
    axis.origin = padding;
    const int common = std::gcd(stride, dilation);
    period = stride / common;
    step = dilation / common;
    if (stride == 1) {
      axis.scale = 1;
    } else {
      axis.dilation = dilation;
      axis.inverse = static_cast<int>(inverse_modulo(step, period));
      axis.stride = FastDivisor(stride);
      axis.common = FastDivisor(common);
    }
  }
  axis.taps = ceil_divide(axis.kernel, period);
  axis.period = FastDivisor(period);
  axis.step = transposed ? -step : step;
  axis.step_size = FastDivisor(step);
  return axis;
}

// Everything but what depends on which kernel is launched.
inline GatherParameters gather_parameters(const Geometry& geometry, Layout layout, bool transposed) {
  const auto pitches = [layout](int64_t channels, int64_t height, int64_t width) {
    const auto number = [](int64_t value) { return static_cast<int>(value); };
    const int image = number(channels * height * width);
    return layout == Layout::channels_last
               ? GatherPitches{image, 1, number(width * channels), number(channels)}
               : GatherPitches{image, number(height * width), number(width), 1};
  };
  const GatherPitches input = pitches(geometry.channels, geometry.height.input, geometry.width.input);
  const GatherPitches output =
      pitches(geometry.output_channels(), geometry.height.output, geometry.width.output);
  const int multiplier = static_cast<int>(geometry.multiplier);
  GatherParameters parameters = {};
  parameters.height = gather_axis(geometry.height, transposed);
  parameters.width = gather_axis(geometry.width, transposed);
  parameters.source = transposed ? output : input;
  parameters.result = transposed ? input : output;
  parameters.channels =
      FastDivisor(static_cast<int>(transposed ? geometry.channels : geometry.output_channels()));
  parameters.columns = FastDivisor(parameters.width.result);
  parameters.rows = FastDivisor(parameters.height.result);
  parameters.results_of_source = FastDivisor(transposed ? 1 : multiplier);
  parameters.summed = transposed ? multiplier : 1;
  parameters.taps = static_cast<int>(geometry.taps());
  parameters.weights_of_result = parameters.taps * parameters.summed;
  parameters.row_step = parameters.height.step * parameters.source.row;
  parameters.column_step = parameters.width.step * parameters.source.pixel;
  return parameters;
}

// Calls launch(images, source, result) for parts of the batch that have fewer than 2**31 units each.
template <typename T, typename Launch>
void for_each_part(const T* source, T* result, const GatherParameters& parameters, int64_t batch,
                   int64_t units_of_image, Launch&& launch) {
  constexpr int64_t kMostUnits = (int64_t{1} << 31) - (1 << 16);
  const int64_t most = std::max<int64_t>(kMostUnits / units_of_image, 1);
  for (int64_t first = 0; first < batch; first += most) {
    launch(std::min(most, batch - first), source + first * parameters.source.image,
           result + first * parameters.result.image);
  }
}

// Rows between the results of a thread, with the sign of the step.
inline int64_t gather_spacing(const GatherAxis& height) {
  return height.scale == 0 ? int64_t{height.step} * height.stride.divisor() : height.step / height.scale;
}

// Threads of the small kernels own kResultsOfThread results of a column.
inline void own_columns(GatherParameters& parameters) {
  parameters.spacing = static_cast<int>(gather_spacing(parameters.height));
  parameters.spacing_size = FastDivisor(std::abs(parameters.spacing));
  parameters.rows =
      FastDivisor(static_cast<int>(row_groups(parameters.height.result, parameters.spacing_size.divisor())));
}

template <typename T, int kTaps, int kResults, bool kExact, bool kChannelsLast>
void launch_results(const Correlation<T>& pass) {
  const auto& [source, weight, bias, result, geometry, layout, transposed, stream] = pass;
  GatherParameters parameters =
      gather_parameters(geometry, kChannelsLast ? Layout::channels_last : Layout::contiguous, transposed);
  if constexpr (kResults > 1) own_columns(parameters);
  const int64_t threads_of_image =
      int64_t{parameters.channels.divisor()} * parameters.columns.divisor() * parameters.rows.divisor();
  for_each_part(source, result, parameters, geometry.batch, threads_of_image,
                [&](int64_t images, const T* part_source, T* part_result) {
                  parameters.count = static_cast<int>(images * threads_of_image);
                  const unsigned grid = static_cast<unsigned>(ceil_divide(parameters.count, kGatherThreads));
                  weight.with_numbers([&](const auto* numbers) {
                    using Number = std::remove_cvref_t<decltype(*numbers)>;
                    gather_small<T, Number, kTaps, kResults, kExact, kChannelsLast>
                        <<<grid, kGatherThreads, 0, pass.stream>>>(part_source, numbers, pass.bias,
                                                                   part_result, parameters);
                  });
                });
  check_launch(pass.name());
}

// Threads of a block, along channels and along groups of results of a channel, and slices of the channels.
struct GatherBlock {
  int lanes, rows, slices;

  // `lane_bytes` of shared memory, `lanes_of_image` channels or groups of them, `groups` of all images.
  GatherBlock(int64_t lane_bytes, int64_t lanes_of_image, int64_t most_lanes, int64_t groups) {
    const int64_t fitting = std::clamp<int64_t>(kGatherSharedBytes / lane_bytes, 1, most_lanes);
    slices = static_cast<int>(ceil_divide(lanes_of_image, fitting));
    lanes = static_cast<int>(ceil_divide<int64_t>(lanes_of_image, slices));
    rows = static_cast<int>(std::min<int64_t>(ceil_divide<int64_t>(groups, 32) * 32, kGatherThreads / lanes));
  }

  // The more groups a thread owns, the smaller a part of a block's work is turning the weights; but blocks
  // must remain for all of a large device.
  int turns(int64_t groups) const {
    constexpr int64_t kBlocks = 2048;
    constexpr int64_t kMostTurns = 8;
    return static_cast<int>(
        std::clamp<int64_t>(ceil_divide<int64_t>(groups, rows) * slices / kBlocks, 1, kMostTurns));
  }
};

constexpr int64_t kMostGatherChannels = 64;  // of a block

template <typename T, int kTaps, bool kExact>
void launch_columns_nhwc(const Correlation<T>& pass) {
  const auto& [source, weight, bias, result, geometry, layout, transposed, stream] = pass;
  GatherParameters parameters = gather_parameters(geometry, Layout::channels_last, transposed);
  own_columns(parameters);
  parameters.kernel_taps = FastDivisor(parameters.weights_of_result);
  const int64_t lane_bytes = int64_t{sizeof(accumulate_t<T>)} * parameters.weights_of_result;
  const int64_t groups_of_image = int64_t{parameters.columns.divisor()} * parameters.rows.divisor();
  for_each_part(
      source, result, parameters, geometry.batch, groups_of_image,
      [&](int64_t images, const T* part_source, T* part_result) {
        const int64_t groups = images * groups_of_image;
        const GatherBlock block(lane_bytes, parameters.channels.divisor(), kMostGatherChannels, groups);
        parameters.count = static_cast<int>(groups);
        parameters.slices = FastDivisor(block.slices);
        parameters.turns = block.turns(groups);
        const int64_t grid = ceil_divide(groups, int64_t{block.rows} * parameters.turns) * block.slices;
        gather_columns_nhwc<T, kTaps, kExact><<<grid_of(grid, pass.name()), dim3(block.lanes, block.rows),
                                                static_cast<size_t>(lane_bytes * block.lanes), stream>>>(
            part_source, weight, bias, part_result, parameters);
      });
  check_launch(pass.name());
}

template <typename T, int kCount, int kColumns, bool kChannelsLast>
void launch_taps(const Correlation<T>& pass) {
  const auto& [source, weight, bias, result, geometry, layout, transposed, stream] = pass;
  GatherParameters parameters =
      gather_parameters(geometry, kChannelsLast ? Layout::channels_last : Layout::contiguous, transposed);
  const GatherAxis& height = parameters.height;
  const GatherAxis& width = parameters.width;
  parameters.kernel_taps = FastDivisor(static_cast<int>(geometry.taps()));
  parameters.kernel_width = FastDivisor(width.kernel);
  parameters.weight_taps = width.taps * width.period.divisor();
  const int64_t lane_bytes = static_cast<int64_t>(sizeof(accumulate_t<T>)) * kCount * parameters.weight_taps *
                             height.taps * height.period.divisor();
  const int64_t pixels_of_image = int64_t{parameters.columns.divisor()} * parameters.rows.divisor();
  for_each_part(source, result, parameters, geometry.batch, pixels_of_image,
                [&](int64_t images, const T* part_source, T* part_result) {
                  const int64_t pixels = images * pixels_of_image;
                  const GatherBlock block(lane_bytes, parameters.channels.divisor() / kCount,
                                          kChannelsLast ? kMostGatherChannels / kCount : 1, pixels);
                  parameters.count = static_cast<int>(pixels);
                  parameters.slices = FastDivisor(block.slices);
                  // The weights of several source channels are turned one after another, and none are
                  // kept for a second turn.
                  parameters.turns = parameters.summed > 1 ? 1 : block.turns(pixels);
                  const int64_t grid =
                      ceil_divide(pixels, int64_t{block.rows} * parameters.turns) * block.slices;
                  gather_large<T, kCount, kColumns, kChannelsLast>
                      <<<grid_of(grid, pass.name()), dim3(block.lanes, block.rows),
                         static_cast<size_t>(lane_bytes * block.lanes), stream>>>(part_source, weight, bias,
                                                                                  part_result, parameters);
                });
  check_launch(pass.name());
}

// Calls `launch` with the taps of a row as a constant, at most so many, and with whether the kernel is a
// square of just so many.
template <typename T, typename Launch>
void with_few_taps(const Correlation<T>& pass, const Launch& launch) {
  const int taps = static_cast<int>(gathered_taps(pass.geometry, pass.transposed));
  if (gathers_whole_square(pass.geometry, pass.transposed)) {
    if (taps == 3) return launch(std::integral_constant<int, 3>{}, std::true_type{});
    if (taps == 5) return launch(std::integral_constant<int, 5>{}, std::true_type{});
    if (taps == 7) return launch(std::integral_constant<int, 7>{}, std::true_type{});
  }
  TORCHGRAFT_CHECK(taps <= 5, pass.name(), ": ", taps, " taps of a row are too many");
  if (taps <= 2) return launch(std::integral_constant<int, 2>{}, std::false_type{});
  if (taps <= 3) return launch(std::integral_constant<int, 3>{}, std::false_type{});
  launch(std::integral_constant<int, 5>{}, std::false_type{});
}

template <typename T>
void launch_gather_columns(const Correlation<T>& pass) {
  with_few_taps(pass, [&](auto taps, auto is_exact) {
    launch_results<T, taps, kResultsOfThread, is_exact, false>(pass);
  });
}

template <typename T>
void launch_gather_columns_nhwc(const Correlation<T>& pass) {
  with_few_taps(pass, [&](auto taps, auto is_exact) { launch_columns_nhwc<T, taps, is_exact>(pass); });
}

template <typename T>
void launch_gather_small(const Correlation<T>& pass) {
  with_few_taps(pass, [&](auto taps, auto is_exact) {
    if constexpr (taps <= 5) {
      const auto launcher = pass.layout == Layout::channels_last
                                ? launch_results<T, taps, 1, is_exact, true>
                                : launch_results<T, taps, 1, is_exact, false>;
      launcher(pass);
    } else {
      fail(pass.name(), ": threads of one result take five taps of a row at most");
    }
  });
}

template <typename T>
void launch_gather_large(const Correlation<T>& pass) {
  // Columns of taps at a time, so that few are missing.
  const int taps_of_row = static_cast<int>(gathered_taps(pass.geometry.width, pass.transposed));
  const auto launch = [&](auto count, auto is_channels_last) {
    const bool fives = round_up(taps_of_row, 5) <= round_up(taps_of_row, 4);
    const auto launcher = taps_of_row <= 3 ? launch_taps<T, count, 3, is_channels_last>
                          : fives          ? launch_taps<T, count, 5, is_channels_last>
                                           : launch_taps<T, count, 4, is_channels_last>;
    launcher(pass);
  };
  constexpr std::integral_constant<int, 1> kOneChannel;
  if (pass.layout == Layout::contiguous) return launch(kOneChannel, std::false_type{});
  if constexpr (!std::is_same_v<T, double>) {
    if (gathers_channels_together(make_problem(pass))) {
      return launch(std::integral_constant<int, kGatherChannels>{}, std::true_type{});
    }
  }
  launch(kOneChannel, std::true_type{});
}

}  // namespace torchgraft::depthwise::cuda
