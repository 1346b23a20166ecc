// Strips of NCHW planes: how planes are cut, and the launch. The kernel is in strip.cuh.

#include "../kernels.h"

#include "strip.cuh"

namespace torchgraft::depthwise::cuda {
namespace {

// A pass as the kernel sees it: the input gradient of stride 1 is a forward pass with the kernel turned
// around.
struct StripAxis {
  int source, result, padding;
};

StripAxis strip_axis(const Extent& extent, bool transposed) {
  const int input = static_cast<int>(extent.input);
  const int output = static_cast<int>(extent.output);
  const int padding = static_cast<int>(extent.padding);
  if (!transposed) return {input, output, padding};
  return {output, input, extent.stride == 1 ? static_cast<int>(extent.kernel) - 1 - padding : padding};
}

constexpr int floor_divide(int numerator, int denominator) {
  return numerator >= 0 ? numerator / denominator : -ceil_divide(-numerator, denominator);
}

// Rows of results of a stretch. A stretch reads kernel - 1 rows that another one reads too; it should be long
// for that, but not so long that warps are too few to keep the device busy, or all of them end at once.
int stretch_rows(int rows, int kernel, int64_t warps_of_stretch) {
  constexpr int64_t kBusyWarps = 12, kManyWarps = 128;  // of a multiprocessor
  const int64_t multiprocessors = current_device().multiprocessors;
  const int64_t busy =
      std::min<int64_t>(ceil_divide(multiprocessors * kBusyWarps, warps_of_stretch), std::max(rows / 4, 1));
  const int64_t many = std::min<int64_t>(ceil_divide(multiprocessors * kManyWarps, warps_of_stretch),
                                         std::max(rows / (8 * (kernel - 1)), 1));
  return ceil_divide(rows, static_cast<int>(std::max(busy, many)));
}

template <typename Strip>
void launch(const typename Strip::T* source, const typename Strip::T* weight, const typename Strip::T* bias,
            typename Strip::T* result, const Geometry& geometry, bool transposed, cudaStream_t stream) {
  const StripAxis height = strip_axis(geometry.height, transposed);
  const StripAxis width = strip_axis(geometry.width, transposed);
  StripParameters parameters = {};

  // With unit 0 at the left end of the results, its sources begin where the kernel's middle lies; or, where
  // results and sources change places, its results lie around that place.
  const int shift = width.padding - Strip::kReach;
  if (Strip::kTransposed) {
    const int units = floor_divide(shift, Strip::kResults);
    parameters.first_source_column = units * Strip::kSources;
    parameters.first_result_column = units * Strip::kResults - shift;
  } else {
    parameters.first_source_column = -shift;
  }
  const int units = ceil_divide(width.result - parameters.first_result_column, Strip::kResults);
  const bool sources_outside = parameters.first_source_column > 0 ||
                               parameters.first_source_column + units * Strip::kSources < width.source;
  constexpr int kLanes = 32;
  parameters.halo_lanes = sources_outside || units > kLanes ? Strip::kHaloLanes : 0;
  const int segments = ceil_divide(units, kLanes - 2 * parameters.halo_lanes);
  parameters.units = ceil_divide(units, segments);
  const int lanes = parameters.units + 2 * parameters.halo_lanes;
  parameters.lanes = FastDivisor(lanes);
  parameters.segments = FastDivisor(segments);
  parameters.strips_of_warp = StripRing<Strip>::strips(lanes);

  const int64_t channels = transposed ? geometry.channels : geometry.output_channels();
  const int64_t planes = geometry.batch * channels;
  const int phase = Strip::kTransposed ? height.padding % Strip::kStride : 0;
  const int rows = stretch_rows(height.result + phase, Strip::kKernel,
                                ceil_divide<int64_t>(planes * segments, parameters.strips_of_warp));
  if (Strip::kTransposed) {
    parameters.result_rows = ceil_divide(rows, Strip::kStride) * Strip::kStride;
    parameters.source_step = parameters.result_rows / Strip::kStride;
    parameters.source_rows = parameters.source_step + Strip::kReach;
    parameters.first_source_row = height.padding / Strip::kStride - Strip::kReach;
    parameters.first_result_row = -phase;
  } else {
    parameters.result_rows = rows;
    parameters.source_step = rows * Strip::kStride;
    parameters.source_rows = (rows - 1) * Strip::kStride + Strip::kKernel;
    parameters.first_source_row = -height.padding;
  }
  const int stretches = ceil_divide(height.result + phase, parameters.result_rows);
  parameters.stretches = FastDivisor(stretches);
  parameters.strips = static_cast<int>(planes * segments * stretches);
  parameters.channels = FastDivisor(static_cast<int>(channels));
  parameters.multiplier = FastDivisor(static_cast<int>(geometry.multiplier));
  parameters.source_height = height.source;
  parameters.source_width = width.source;
  parameters.result_height = height.result;
  parameters.result_width = width.result;
  parameters.flipped = transposed && !Strip::kTransposed;

  const char* name = transposed ? "depthwise_conv2d_input_grad" : "depthwise_conv2d";
  const int warps = ceil_divide(parameters.strips, parameters.strips_of_warp);
  strips_correlate<Strip>
      <<<ceil_divide(warps, kStripThreads / kLanes), kStripThreads, StripRing<Strip>::kBytes, stream>>>(
          source, weight, bias, result, parameters);
  check_launch(name);
}

// Whether every lane's sources, and results, lie on boundaries of as many elements.
template <typename Strip>
bool is_strip_aligned(const void* source, const void* result, const StripAxis& width) {
  return width.padding == Strip::kReach && width.source % Strip::kSources == 0 &&
         width.result % Strip::kResults == 0 &&
         is_aligned(source, Strip::kSources * sizeof(typename Strip::T)) &&
         is_aligned(result, Strip::kResults * sizeof(typename Strip::T));
}

// Four sources or results a lane if rows are made for it, else two, else the fewest.
template <typename T, int kKernel, int kStride, bool kTransposed>
void launch_widest(const T* source, const T* weight, const T* bias, T* result, const Geometry& geometry,
                   bool transposed, cudaStream_t stream) {
  constexpr int kSourcesOfResult = kTransposed ? 1 : kStride;
  using Wide = Strip<T, kKernel, kStride, kTransposed, 4 / kSourcesOfResult, true>;
  using Narrow = Strip<T, kKernel, kStride, kTransposed, 2 / kSourcesOfResult, true>;
  using Any = Strip<T, kKernel, kStride, kTransposed, kTransposed ? kStride : 1, false>;
  const StripAxis width = strip_axis(geometry.width, transposed);
  if (is_strip_aligned<Wide>(source, result, width)) {
    launch<Wide>(source, weight, bias, result, geometry, transposed, stream);
  } else if (is_strip_aligned<Narrow>(source, result, width)) {
    launch<Narrow>(source, weight, bias, result, geometry, transposed, stream);
  } else {
    launch<Any>(source, weight, bias, result, geometry, transposed, stream);
  }
}

}  // namespace

template <typename T>
void launch_strips_correlate(const Correlation<T>& pass) {
  const auto& [source, weight, bias, result, geometry, layout, transposed, stream] = pass;
  with_small_kernel(geometry, [&](auto kernel, auto stride) {
    if constexpr (stride > 1) {
      if (transposed) {
        launch_widest<T, kernel, stride, true>(source, weight, bias, result, geometry, transposed, stream);
        return;
      }
    }
    launch_widest<T, kernel, stride, false>(source, weight, bias, result, geometry, transposed, stream);
  });
}

template void launch_strips_correlate(const Correlation<float>&);
template void launch_strips_correlate(const Correlation<Half>&);
template void launch_strips_correlate(const Correlation<BFloat16>&);

}  // namespace torchgraft::depthwise::cuda
