// Which sources a result of the kernels of gather.cuh meets, along each direction, and what a launch passes
// to those kernels.
#pragma once

#include <numeric>

#include "../index.cuh"
#include "../kernels.h"
#include "../problem.cuh"
#include "modulo.h"

namespace torchgraft::depthwise::cuda {

constexpr int kGatherThreads = 256;  // of a block

// One direction of a pass.
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

// Where the taps of a result begin: the source of number 0, and its phase, which lies behind the kernel if
// there are no taps.
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

// The numbers of the taps, begin <= i < end, whose source is inside the image.
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

// Elements between neighbouring images, channels, rows and pixels.
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

}  // namespace torchgraft::depthwise::cuda
