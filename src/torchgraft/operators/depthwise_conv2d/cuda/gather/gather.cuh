// Forward and input gradient for any geometry, layout and dtype, 32 bits inside an image.
//
// Every result gathers its sources. Along one direction, its tap number i is tap `phase + i * period` of the
// weight and meets the source `source + i * step`. In the forward pass the period is one and the source
// begins where the stride takes it; the input gradient of stride one steps backwards; the input gradient of
// other strides meets only every (stride / gcd(stride, dilation))-th tap, and which of them is told by the
// phase of the position. Layouts differ in pitches and in what lanes lie along.
//
// axis.cuh holds the arithmetic of a direction, small.cuh the kernels of few taps, large.cuh the kernel of
// any number of taps; this file launches them.
#pragma once

#include "../kernels.h"
#include "../problem.cuh"
#include "../supports.h"
#include "axis.cuh"
#include "large.cuh"
#include "small.cuh"

namespace torchgraft::depthwise::cuda {

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
