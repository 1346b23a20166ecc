// Forward and input gradient for every geometry, layout and dtype: what no faster kernel serves.
//
// A thread owns one result at a time; lanes lie along the fastest dimension, x (NCHW) or the channel (NHWC),
// so that their loads fall together. It visits only the taps that lie inside the image, and in the input
// gradient only those congruent with its position: tap * dilation = position + padding (modulo stride), which
// is every (stride / gcd(stride, dilation))-th one. Every source is read once for each tap, from L1 but for
// the first time. Bound: instructions, some ten a tap. Predicted: (128,144,56x56,k3) fp32 0.5 ms; it is not
// the one to run there.
#pragma once

#include <numeric>

#include "cuda_stencil.cuh"

namespace torchgraft::depthwise::cuda {

// One direction; Index is int where all positions and all offsets inside an image fit, else int64_t.
template <typename Index>
struct DirectAxis {
  Index source, result, kernel, stride, padding, dilation;
  // Only the transposed direction: gcd(stride, dilation), stride and dilation over it, and the inverse of the
  // latter modulo the former.
  Index common, tap_step, source_step, inverse;
};

// The taps of one result along one direction: `count` of them from `tap`, each `tap_step` behind the last,
// while the source moves by `source_step`.
template <typename Index>
struct DirectTaps {
  Index count, tap, tap_step, source, source_step;
};

template <bool kTransposed, typename Index>
__device__ DirectTaps<Index> taps_of(const DirectAxis<Index>& axis, Index result) {
  if constexpr (!kTransposed) {
    const Index origin = result * axis.stride - axis.padding;
    const Index begin = origin < 0 ? (axis.dilation - 1 - origin) / axis.dilation : 0;
    const Index end = origin < axis.source ? (axis.source - 1 - origin) / axis.dilation + 1 : 0;
    const Index last = end < axis.kernel ? end : axis.kernel;
    if (last <= begin) return {};
    return {last - begin, begin, 1, origin + begin * axis.dilation, axis.dilation};
  } else {
    const Index position = result + axis.padding;
    if (position % axis.common != 0) return {};
    const Index residue = position / axis.common % axis.tap_step * axis.inverse % axis.tap_step;
    // The first tap that does not reach past the last source, then the first congruent one.
    const Index past = position - axis.stride * (axis.source - 1);
    Index begin = past > 0 ? (past + axis.dilation - 1) / axis.dilation : 0;
    const Index offset = residue - begin % axis.tap_step;
    begin += offset < 0 ? offset + axis.tap_step : offset;
    Index last = position / axis.dilation;
    if (last >= axis.kernel) last = axis.kernel - 1;
    if (last < begin) return {};
    return {(last - begin) / axis.tap_step + 1, begin, axis.tap_step,
            (position - begin * axis.dilation) / axis.stride, -axis.source_step};
  }
}

template <typename Index>
struct DirectParameters {
  DirectAxis<Index> height, width;
  Index source_channels, result_channels;
  Index multiplier;
  int64_t results;
};

constexpr int kDirectThreads = 256;

template <typename T, typename Index, bool kTransposed, bool kChannelsLast>
__global__ void __launch_bounds__(kDirectThreads)
    direct_kernel(const T* __restrict__ source, const T* __restrict__ weight, const T* __restrict__ bias,
                  T* __restrict__ result, DirectParameters<Index> parameters) {
  using Accumulate = accumulate_t<T>;
  const DirectAxis<Index>& height = parameters.height;
  const DirectAxis<Index>& width = parameters.width;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kDirectThreads;
  const int64_t source_plane = static_cast<int64_t>(height.source) * width.source;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kDirectThreads + threadIdx.x; i < parameters.results;
       i += threads) {
    Index rest = static_cast<Index>(i);
    const auto next = [&rest](Index size) {
      const Index index = rest % size;
      rest /= size;
      return index;
    };
    Index channel, x, y;
    if constexpr (kChannelsLast) {
      channel = next(parameters.result_channels);
      x = next(width.result);
      y = next(height.result);
    } else {
      x = next(width.result);
      y = next(height.result);
      channel = next(parameters.result_channels);
    }
    const T* image = source + rest * source_plane * parameters.source_channels;

    const DirectTaps<Index> rows = taps_of<kTransposed>(height, y);
    const DirectTaps<Index> columns = taps_of<kTransposed>(width, x);
    const Index summed_channels = kTransposed ? parameters.multiplier : 1;
    Accumulate sum = bias == nullptr ? Accumulate(0) : static_cast<Accumulate>(bias[channel]);
    for (Index j = 0; j < summed_channels; ++j) {
      const Index source_channel =
          kTransposed ? channel * parameters.multiplier + j : channel / parameters.multiplier;
      const Index weight_channel = kTransposed ? source_channel : channel;
      const T* plane = image + (kChannelsLast ? source_channel : source_channel * source_plane);
      const Index pixel = kChannelsLast ? parameters.source_channels : 1;
      const T* taps = weight + static_cast<int64_t>(weight_channel) * height.kernel * width.kernel;
      for (Index row = 0; row < rows.count; ++row) {
        const T* weight_row = taps + (rows.tap + row * rows.tap_step) * width.kernel + columns.tap;
        const T* source_row =
            plane + ((rows.source + row * rows.source_step) * width.source + columns.source) * pixel;
        for (Index column = 0; column < columns.count; ++column) {
          sum += static_cast<Accumulate>(weight_row[column * columns.tap_step]) *
                 static_cast<Accumulate>(source_row[column * columns.source_step * pixel]);
        }
      }
    }
    result[i] = static_cast<T>(sum);
  }
}

// x such that value * x = 1 modulo `modulus`; value and modulus have no common divisor.
inline int64_t inverse_modulo(int64_t value, int64_t modulus) {
  int64_t remainder = modulus, next_remainder = value % modulus;
  int64_t inverse = 0, next_inverse = 1;
  while (next_remainder != 0) {
    const int64_t quotient = remainder / next_remainder;
    remainder = std::exchange(next_remainder, remainder - quotient * next_remainder);
    inverse = std::exchange(next_inverse, inverse - quotient * next_inverse);
  }
  return inverse < 0 ? inverse + modulus : inverse;
}

template <typename Index>
DirectAxis<Index> direct_axis(const Extent& extent, bool transposed) {
  const int64_t common = std::gcd(extent.stride, extent.dilation);
  const int64_t tap_step = extent.stride / common;
  const int64_t source_step = extent.dilation / common;
  return {static_cast<Index>(transposed ? extent.output : extent.input),
          static_cast<Index>(transposed ? extent.input : extent.output),
          static_cast<Index>(extent.kernel),
          static_cast<Index>(extent.stride),
          static_cast<Index>(extent.padding),
          static_cast<Index>(extent.dilation),
          static_cast<Index>(common),
          static_cast<Index>(tap_step),
          static_cast<Index>(source_step),
          static_cast<Index>(inverse_modulo(source_step, tap_step))};
}

template <typename T, typename Index, bool kTransposed>
void launch_direct_indexed(const T* source, const T* weight, const T* bias, T* result,
                           const Geometry& geometry, Layout layout, cudaStream_t stream) {
  const int64_t result_channels = kTransposed ? geometry.channels : geometry.output_channels();
  const int64_t source_channels = kTransposed ? geometry.output_channels() : geometry.channels;
  const int64_t result_pixels = kTransposed ? geometry.input_pixels() : geometry.output_pixels();
  const DirectParameters<Index> parameters = {direct_axis<Index>(geometry.height, kTransposed),
                                              direct_axis<Index>(geometry.width, kTransposed),
                                              static_cast<Index>(source_channels),
                                              static_cast<Index>(result_channels),
                                              static_cast<Index>(geometry.multiplier),
                                              geometry.batch * result_channels * result_pixels};
  // Threads stride through the results, so that no tensor is too large for one launch.
  const unsigned grid = static_cast<unsigned>(
      std::min<int64_t>(ceil_divide<int64_t>(parameters.results, kDirectThreads), 1 << 20));
  if (layout == Layout::channels_last) {
    direct_kernel<T, Index, kTransposed, true>
        <<<grid, kDirectThreads, 0, stream>>>(source, weight, bias, result, parameters);
  } else {
    direct_kernel<T, Index, kTransposed, false>
        <<<grid, kDirectThreads, 0, stream>>>(source, weight, bias, result, parameters);
  }
  check_launch(kTransposed ? "depthwise_conv2d_input_grad" : "depthwise_conv2d");
}

template <typename T, bool kTransposed>
void launch_direct(const T* source, const T* weight, const T* bias, T* result, const Geometry& geometry,
                   Layout layout, cudaStream_t stream) {
  // The inverse modulo the stride multiplies two numbers below it.
  constexpr int64_t kLargestStride = 3'000'000'000;
  TORCHGRAFT_CHECK(!kTransposed || std::max(geometry.height.stride, geometry.width.stride) <= kLargestStride,
                   "depthwise_conv2d_input_grad: stride is too large");
  constexpr int64_t kLimit = int64_t{1} << 31;
  const bool fits_32 = positions_fit_32(geometry) && geometry.height.stride < (1 << 15) &&
                       geometry.width.stride < (1 << 15) && geometry.taps() < kLimit &&
                       geometry.batch * geometry.channels * geometry.input_pixels() < kLimit &&
                       geometry.batch * geometry.output_channels() * geometry.output_pixels() < kLimit;
  if (fits_32) {
    launch_direct_indexed<T, int, kTransposed>(source, weight, bias, result, geometry, layout, stream);
  } else {
    launch_direct_indexed<T, int64_t, kTransposed>(source, weight, bias, result, geometry, layout, stream);
  }
}

}  // namespace torchgraft::depthwise::cuda
