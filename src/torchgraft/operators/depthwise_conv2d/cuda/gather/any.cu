// Forward and input gradient for every geometry, layout and dtype in 64 bits: images and kernels that are too
// large for all other kernels.
//
// A thread owns one result at a time; lanes lie along the fastest dimension, x (NCHW) or the channel (NHWC),
// so that their loads fall together. It visits only the taps that lie inside the image, and in the input
// gradient only those congruent with its position: tap * dilation = position + padding (modulo stride), which
// is every (stride / gcd(stride, dilation))-th one. Every source is read once for each tap, from L1 but for
// the first time. Bound: instructions, some twenty a tap.
#include <numeric>

#include "../kernels.h"
#include "../stencil.cuh"
#include "modulo.h"

namespace torchgraft::depthwise::cuda {

// One direction.
struct DirectAxis {
  int64_t source, result, kernel, stride, padding, dilation;
  // Only the transposed direction: gcd(stride, dilation), stride and dilation over it, and the inverse of the
  // latter modulo the former.
  int64_t common, tap_step, source_step, inverse;
};

// The taps of one result along one direction: `count` of them from `tap`, each `tap_step` behind the last,
// while the source moves by `source_step`.
struct DirectTaps {
  int64_t count, tap, tap_step, source, source_step;
};

// a * b modulo `modulus`, of numbers that are smaller. Strides are below 2**40: where 64 bits do not hold a
// product, half of a factor's bits are multiplied at a time.
__device__ inline int64_t multiply_modulo(int64_t a, int64_t b, int64_t modulus) {
  constexpr int kHalfBits = 20;
  static_assert(kLargestSize <= int64_t{1} << (2 * kHalfBits));
  if (modulus >> 31 == 0) return a * b % modulus;
  const int64_t low = b & ((int64_t{1} << kHalfBits) - 1);
  return ((a * (b >> kHalfBits) % modulus << kHalfBits) + a * low) % modulus;
}

template <bool kTransposed>
__device__ DirectTaps taps_of(const DirectAxis& axis, int64_t result) {
  if constexpr (!kTransposed) {
    const int64_t origin = result * axis.stride - axis.padding;
    const int64_t begin = origin < 0 ? (axis.dilation - 1 - origin) / axis.dilation : 0;
    const int64_t end = origin < axis.source ? (axis.source - 1 - origin) / axis.dilation + 1 : 0;
    const int64_t last = end < axis.kernel ? end : axis.kernel;
    if (last <= begin) return {};
    return {last - begin, begin, 1, origin + begin * axis.dilation, axis.dilation};
  } else {
    const int64_t position = result + axis.padding;
    if (position % axis.common != 0) return {};
    const int64_t residue =
        multiply_modulo(position / axis.common % axis.tap_step, axis.inverse, axis.tap_step);
    // The first tap that does not reach past the last source, then the first congruent one.
    const int64_t past = position - axis.stride * (axis.source - 1);
    int64_t begin = past > 0 ? (past + axis.dilation - 1) / axis.dilation : 0;
    const int64_t offset = residue - begin % axis.tap_step;
    begin += offset < 0 ? offset + axis.tap_step : offset;
    int64_t last = position / axis.dilation;
    if (last >= axis.kernel) last = axis.kernel - 1;
    if (last < begin) return {};
    return {(last - begin) / axis.tap_step + 1, begin, axis.tap_step,
            (position - begin * axis.dilation) / axis.stride, -axis.source_step};
  }
}

struct DirectParameters {
  DirectAxis height, width;
  int64_t source_channels, result_channels;
  int64_t multiplier;
  int64_t results;
};

constexpr int kDirectThreads = 256;

template <typename T, bool kTransposed, bool kChannelsLast>
__global__ void __launch_bounds__(kDirectThreads)
    gather_any(const T* __restrict__ source, Rounded<T> weight, Rounded<T> bias, T* __restrict__ result,
               DirectParameters parameters) {
  using Accumulate = accumulate_t<T>;
  const DirectAxis& height = parameters.height;
  const DirectAxis& width = parameters.width;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kDirectThreads;
  const int64_t source_plane = static_cast<int64_t>(height.source) * width.source;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kDirectThreads + threadIdx.x; i < parameters.results;
       i += threads) {
    int64_t rest = i;
    const auto next = [&rest](int64_t size) {
      const int64_t index = rest % size;
      rest /= size;
      return index;
    };
    int64_t channel, x, y;
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

    const DirectTaps rows = taps_of<kTransposed>(height, y);
    const DirectTaps columns = taps_of<kTransposed>(width, x);
    const int64_t summed_channels = kTransposed ? parameters.multiplier : 1;
    Accumulate sum = bias.or_zero(true, channel);
    for (int64_t j = 0; j < summed_channels; ++j) {
      const int64_t source_channel =
          kTransposed ? channel * parameters.multiplier + j : channel / parameters.multiplier;
      const int64_t weight_channel = kTransposed ? source_channel : channel;
      const T* plane = image + (kChannelsLast ? source_channel : source_channel * source_plane);
      const int64_t pixel = kChannelsLast ? parameters.source_channels : 1;
      const Rounded<T> taps = weight + weight_channel * height.kernel * width.kernel;
      for (int64_t row = 0; row < rows.count; ++row) {
        const Rounded<T> weight_row = taps + ((rows.tap + row * rows.tap_step) * width.kernel + columns.tap);
        const T* source_row =
            plane + ((rows.source + row * rows.source_step) * width.source + columns.source) * pixel;
        for (int64_t column = 0; column < columns.count; ++column) {
          sum += weight_row[column * columns.tap_step] *
                 static_cast<Accumulate>(source_row[column * columns.source_step * pixel]);
        }
      }
    }
    result[i] = static_cast<T>(sum);
  }
}

inline DirectAxis direct_axis(const Extent& extent, bool transposed) {
  const int64_t common = std::gcd(extent.stride, extent.dilation);
  const int64_t tap_step = extent.stride / common;
  const int64_t source_step = extent.dilation / common;
  return {transposed ? extent.output : extent.input,
          transposed ? extent.input : extent.output,
          extent.kernel,
          extent.stride,
          extent.padding,
          extent.dilation,
          common,
          tap_step,
          source_step,
          inverse_modulo(source_step, tap_step)};
}

template <typename T, bool kTransposed>
void launch(const Correlation<T>& pass) {
  const auto& [source, weight, bias, result, geometry, layout, transposed, stream] = pass;
  const int64_t result_channels = kTransposed ? geometry.channels : geometry.output_channels();
  const int64_t source_channels = kTransposed ? geometry.output_channels() : geometry.channels;
  const int64_t result_pixels = kTransposed ? geometry.input_pixels() : geometry.output_pixels();
  const DirectParameters parameters = {direct_axis(geometry.height, kTransposed),
                                       direct_axis(geometry.width, kTransposed),
                                       source_channels,
                                       result_channels,
                                       geometry.multiplier,
                                       geometry.batch * result_channels * result_pixels};
  // Threads stride through the results, so that no tensor is too large for one launch.
  const unsigned grid = static_cast<unsigned>(
      std::min<int64_t>(ceil_divide<int64_t>(parameters.results, kDirectThreads), 1 << 20));
  if (layout == Layout::channels_last) {
    gather_any<T, kTransposed, true>
        <<<grid, kDirectThreads, 0, stream>>>(source, weight, bias, result, parameters);
  } else {
    gather_any<T, kTransposed, false>
        <<<grid, kDirectThreads, 0, stream>>>(source, weight, bias, result, parameters);
  }
  check_launch(pass.name());
}

template <typename T>
void launch_gather_any(const Correlation<T>& pass) {
  if (pass.transposed) return launch<T, true>(pass);
  launch<T, false>(pass);
}

template void launch_gather_any(const Correlation<double>&);
template void launch_gather_any(const Correlation<float>&);
template void launch_gather_any(const Correlation<Half>&);
template void launch_gather_any(const Correlation<BFloat16>&);

}  // namespace torchgraft::depthwise::cuda
