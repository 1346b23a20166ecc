// The kernels gather_small and gather_columns_nhwc: up to 5 x 5 taps a result, or a kernel of 7 x 7, all
// unrolled, with the weights of a channel in registers; where the kernel is square and every result meets all
// of it, no tap is tested. A thread owns one result, for what is bound by latency: every load of the thread
// is in flight at once. Or four of a column that meet the same taps of neighbouring sources, so that they
// share these: 4.5 loads a result for 3 x 3, and 10 for 5 x 5. Lanes lie along the fastest dimension,
// whatever its size. In NHWC a block of threads with four results owns some channels, and turns their weights
// to [tap][channel] in shared memory. Bound by instructions and the latency that few warps hide:
// (64,96,56x56,k3,dilation 2) predicted 0.05 ms, measured on an H200 0.06 fp32 and bf16, both layouts (floors
// 0.037 and 0.019); k5 0.12, k7 0.25; (8,64,28x28,k3, dilation 2) 6.7 us, of which 4.6 an empty kernel takes.
#pragma once

#include "../stencil.cuh"
#include "../supports.h"
#include "axis.cuh"

namespace torchgraft::depthwise::cuda {

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

}  // namespace torchgraft::depthwise::cuda
