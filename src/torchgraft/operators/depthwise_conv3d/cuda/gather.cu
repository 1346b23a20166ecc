// All three passes of volumes for any size, stride, padding, dilation and dtype. A thread gathers one result;
// those of a warp are neighbours, so that what they read is, too.
//
// The weight gradient: a block owns up to four or eight taps of a row of the kernel of one channel, and a
// part of the rows of the output gradient; its warps go through rows, and its lanes along them.
#include "kernels.h"

#include <torchgraft/device.cuh>

#include <numeric>

namespace torchgraft::depthwise::volumes {
namespace {

constexpr int kThreads = 256;
constexpr int kLanes = 32;
constexpr int kWarps = kThreads / kLanes;

struct GatherParameters {
  Geometry geometry;
  int64_t results;
  int64_t tap_steps[3];  // along depth, height and width
};

// The sources of one direction that count for a result: `count` of them, from a first one in steps, and the
// taps by which they do. Index holds every offset within a volume.
template <typename Index>
struct Line {
  Index source, source_step, tap, tap_step, count;

  // The sources of a forward pass.
  __device__ static Line of_output(const Extent& extent, Index result) {
    const Index dilation = static_cast<Index>(extent.dilation), input = static_cast<Index>(extent.input);
    const Index first = result * static_cast<Index>(extent.stride) - static_cast<Index>(extent.padding);
    const Index tap = first >= 0 ? 0 : (-first + dilation - 1) / dilation;
    const Index source = first + tap * dilation;
    const Index inside = source < input ? (input - source + dilation - 1) / dilation : 0;
    return {source, dilation, tap, 1, max(min(static_cast<Index>(extent.kernel) - tap, inside), Index{0})};
  }

  // The sources of an input gradient, which are outputs: every tap_step-th tap falls on one.
  __device__ static Line of_input(const Extent& extent, Index result, Index tap_step) {
    const Index dilation = static_cast<Index>(extent.dilation), stride = static_cast<Index>(extent.stride);
    const Index output = static_cast<Index>(extent.output), kernel = static_cast<Index>(extent.kernel);
    const Index place = result + static_cast<Index>(extent.padding);
    Index tap = 0;
    while (tap < tap_step && (place - tap * dilation) % stride != 0) ++tap;
    if (tap == tap_step || place < tap * dilation) return {};
    // The larger a tap is, the further in front lies its source; the first ones may lie behind the last.
    const Index source_step = tap_step * dilation / stride;
    Index source = (place - tap * dilation) / stride;
    const Index behind = source < output ? 0 : (source - output) / source_step + 1;
    source -= behind * source_step;
    tap += behind * tap_step;
    if (source < 0 || tap >= kernel) return {};
    const Index taps = (kernel - tap + tap_step - 1) / tap_step;
    return {source, -source_step, tap, tap_step, min(taps, source / source_step + 1)};
  }
};

template <typename T, bool kTransposed, typename Index>
__global__ void __launch_bounds__(kThreads)
    gather_volumes(const T* __restrict__ source, Rounded<T> weight, Rounded<T> bias, T* __restrict__ result,
                   const __grid_constant__ GatherParameters parameters) {
  using A = accumulate_t<T>;
  const Geometry& geometry = parameters.geometry;
  const Extent &depth = geometry.depth, &height = geometry.height, &width = geometry.width;
  const auto line_of = [&](const Extent& extent, int64_t at, int direction) {
    if constexpr (kTransposed) {
      return Line<Index>::of_input(extent, static_cast<Index>(at),
                                   static_cast<Index>(parameters.tap_steps[direction]));
    } else {
      return Line<Index>::of_output(extent, static_cast<Index>(at));
    }
  };
  const auto sources = [](const Extent& extent) { return kTransposed ? extent.output : extent.input; };
  const auto results = [](const Extent& extent) { return kTransposed ? extent.input : extent.output; };
  const Index rows = static_cast<Index>(sources(height)), columns = static_cast<Index>(sources(width));
  const Index tall = static_cast<Index>(height.kernel), wide = static_cast<Index>(width.kernel);
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; index < parameters.results;
       index += step) {
    int64_t rest = index;
    const auto next = [&rest](int64_t count) {
      const int64_t quotient = rest <= UINT32_MAX && count <= UINT32_MAX
                                   ? static_cast<uint32_t>(rest) / static_cast<uint32_t>(count)
                                   : rest / count;
      const int64_t at = rest - quotient * count;
      rest = quotient;
      return at;
    };
    const Line<Index> across = line_of(width, next(results(width)), 2);
    const Line<Index> down = line_of(height, next(results(height)), 1);
    const Line<Index> deep = line_of(depth, next(results(depth)), 0);
    const int64_t channel = next(kTransposed ? geometry.channels : geometry.output_channels());
    const int64_t image = rest;

    A sum = kTransposed ? A{0} : bias.or_zero(true, channel);
    const auto add_volume = [&](int64_t source_volume, int64_t weight_channel) {
      const T* const volume = source + source_volume * sources(depth) * sources(height) * sources(width);
      weight.with_numbers([&](const auto* numbers) {
        const auto* const kernel = numbers + weight_channel * geometry.taps();
        for (Index i = 0; i < deep.count; ++i) {
          const Index first_row = (deep.source + i * deep.source_step) * rows;
          const Index first_tap_row = (deep.tap + i * deep.tap_step) * tall;
          for (Index j = 0; j < down.count; ++j) {
            const Index row = first_row + down.source + j * down.source_step;
            const Index tap_row = first_tap_row + down.tap + j * down.tap_step;
            const T* place = volume + row * columns + across.source;
            const auto* tap = kernel + tap_row * wide + across.tap;
#pragma unroll 4
            for (Index k = 0; k < across.count; ++k) {
              sum += static_cast<A>(*place) * static_cast<A>(cuda::read_rounded<T>(tap));
              place += across.source_step;
              tap += across.tap_step;
            }
          }
        }
      });
    };
    if constexpr (kTransposed) {
      for (int64_t i = 0; i < geometry.multiplier; ++i) {
        const int64_t output_channel = channel * geometry.multiplier + i;
        add_volume(image * geometry.output_channels() + output_channel, output_channel);
      }
    } else {
      add_volume(image * geometry.channels + channel / geometry.multiplier, channel);
    }
    result[index] = static_cast<T>(sum);
  }
}

struct GatherWeightGradParameters {
  Geometry geometry;
  int64_t rows, rows_of_block;  // of the output gradient of one channel, in all images and planes
};

template <typename T, int kTapsOfBlock, typename Index>
__global__ void __launch_bounds__(kThreads)
    gather_volumes_weight_grad(const T* __restrict__ output_grad, const T* __restrict__ input,
                               accumulate_t<T>* __restrict__ partials,
                               const __grid_constant__ GatherWeightGradParameters parameters) {
  using A = accumulate_t<T>;
  const Geometry& geometry = parameters.geometry;
  const Extent &depth = geometry.depth, &height = geometry.height, &width = geometry.width;
  int64_t rest = blockIdx.x;
  const auto next = [&rest](int64_t count) {
    const int64_t quotient = rest / count, at = rest - quotient * count;
    rest = quotient;
    return at;
  };
  const int64_t groups_of_row = ceil_divide<int64_t>(width.kernel, kTapsOfBlock);
  const int64_t first_tap = next(groups_of_row) * kTapsOfBlock;
  const int64_t height_tap = next(height.kernel), depth_tap = next(depth.kernel);
  const int64_t channel = next(geometry.output_channels()), part = rest;
  const int64_t end = min((part + 1) * parameters.rows_of_block, parameters.rows);
  const int lane = static_cast<int>(threadIdx.x) % kLanes, warp = static_cast<int>(threadIdx.x) / kLanes;

  A sums[kTapsOfBlock] = {};
  for (int64_t at = part * parameters.rows_of_block + warp; at < end; at += kWarps) {
    const int64_t row = at % height.output, plane_at = at / height.output;
    const int64_t plane = plane_at % depth.output, image = plane_at / depth.output;
    const int64_t input_plane = depth.position(plane, depth_tap);
    const int64_t input_row = height.position(row, height_tap);
    if (input_plane < 0 || input_plane >= depth.input || input_row < 0 || input_row >= height.input) continue;
    const T* const grads =
        output_grad +
        (((image * geometry.output_channels() + channel) * depth.output + plane) * height.output + row) *
            width.output;
    const T* const inputs =
        input + (((image * geometry.channels + channel / geometry.multiplier) * depth.input + input_plane) *
                     height.input +
                 input_row) *
                    width.input;
    const Index stride = static_cast<Index>(width.stride), dilation = static_cast<Index>(width.dilation);
    const Index taps = static_cast<Index>(min(width.kernel - first_tap, int64_t{kTapsOfBlock}));
    const Index columns = static_cast<Index>(width.output), input_columns = static_cast<Index>(width.input);
    const Index origin = static_cast<Index>(first_tap) * dilation - static_cast<Index>(width.padding);
    for (Index column = lane; column < columns; column += kLanes) {
      const A grad = static_cast<A>(grads[column]);
      const Index first_column = column * stride + origin;
#pragma unroll
      for (int i = 0; i < kTapsOfBlock; ++i) {
        const Index input_column = first_column + i * dilation;
        if (i < taps && input_column >= 0 && input_column < input_columns) {
          sums[i] += grad * static_cast<A>(inputs[input_column]);
        }
      }
    }
  }
  __shared__ A of_warps[kWarps][kTapsOfBlock];
#pragma unroll
  for (int i = 0; i < kTapsOfBlock; ++i) {
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
      sums[i] += __shfl_xor_sync(0xffffffff, sums[i], distance);
    }
    if (lane == 0) of_warps[warp][i] = sums[i];
  }
  __syncthreads();
  const int64_t tap = first_tap + threadIdx.x;
  if (threadIdx.x >= kTapsOfBlock || tap >= width.kernel) return;
  A sum = 0;
  for (int i = 0; i < kWarps; ++i) sum += of_warps[i][threadIdx.x];
  partials[(((part * geometry.output_channels() + channel) * depth.kernel + depth_tap) * height.kernel +
            height_tap) *
               width.kernel +
           tap] = sum;
}

}  // namespace

template <typename T>
void launch_any(const Correlation<T>& pass) {
  const Geometry& geometry = pass.geometry;
  const int64_t results = geometry.batch * pass.result_channels() *
                          (pass.transposed ? geometry.input_pixels() : geometry.output_pixels());
  // From tap to tap of those that meet one result of an input gradient.
  const auto tap_step = [](const Extent& extent) {
    return extent.stride / std::gcd(extent.stride, extent.dilation);
  };
  const GatherParameters parameters = {
      geometry, results, {tap_step(geometry.depth), tap_step(geometry.height), tap_step(geometry.width)}};
  constexpr int64_t kMostBlocks = int64_t{1} << 30;
  const unsigned grid = grid_of(std::min(ceil_divide<int64_t>(results, kThreads), kMostBlocks), pass.name());
  const auto launch = [&]<bool kTransposed, typename Index>() {
    gather_volumes<T, kTransposed, Index>
        <<<grid, kThreads, 0, pass.stream>>>(pass.source, pass.weight, pass.bias, pass.result, parameters);
  };
  const auto launch_with = [&]<typename Index>(Tag<Index>) {
    pass.transposed ? launch.template operator()<true, Index>() : launch.template operator()<false, Index>();
  };
  offsets_fit_32(geometry) ? launch_with(Tag<int>()) : launch_with(Tag<int64_t>());
  check_launch(pass.name());
}

template <typename T>
Partials launch_any_weight_grad(const WeightGrad<T>& pass) {
  using A = accumulate_t<T>;
  constexpr const char* kName = WeightGrad<T>::kName;
  const Geometry& geometry = pass.geometry;
  const int64_t rows = geometry.batch * geometry.depth.output * geometry.height.output;
  // The taps of a block: as few as there are spare multiply-adds.
  constexpr int kFewTaps = 4, kManyTaps = 8;
  const int taps = geometry.width.kernel <= kFewTaps ? kFewTaps : kManyTaps;
  const int64_t groups =
      geometry.depth.kernel * geometry.height.kernel * ceil_divide<int64_t>(geometry.width.kernel, taps);
  const int64_t blocks_of_part = checked_product(geometry.output_channels(), groups, kName);
  constexpr int64_t kBlocksOfMultiprocessor = 16, kMostParts = 512;
  const int64_t wanted =
      ceil_divide<int64_t>(current_device().multiprocessors * kBlocksOfMultiprocessor, blocks_of_part);
  const int64_t rows_of_block =
      ceil_divide(rows, std::clamp<int64_t>(std::min(wanted, rows / kWarps), 1, kMostParts));
  const int64_t parts = ceil_divide(rows, rows_of_block);
  const Partials partials = {
      empty_workspace<A>(parts * geometry.output_channels() * geometry.taps(), pass.like),
      static_cast<int>(parts)};
  const GatherWeightGradParameters parameters = {geometry, rows, rows_of_block};
  const unsigned grid = grid_of(blocks_of_part * parts, kName);
  const auto launch = [&]<int kTaps, typename Index>() {
    gather_volumes_weight_grad<T, kTaps, Index><<<grid, kThreads, 0, pass.stream>>>(
        pass.output_grad, pass.input, static_cast<A*>(partials.memory.mutable_data_ptr()), parameters);
  };
  const auto launch_with = [&]<typename Index>(Tag<Index>) {
    taps == kFewTaps ? launch.template operator()<kFewTaps, Index>()
                     : launch.template operator()<kManyTaps, Index>();
  };
  offsets_fit_32(geometry) ? launch_with(Tag<int>()) : launch_with(Tag<int64_t>());
  check_launch(kName);
  return partials;
}

#define TORCHGRAFT_INSTANCES(T)                    \
  template void launch_any(const Correlation<T>&); \
  template Partials launch_any_weight_grad(const WeightGrad<T>&);
TORCHGRAFT_INSTANCES(double)
TORCHGRAFT_INSTANCES(float)
TORCHGRAFT_INSTANCES(Half)
TORCHGRAFT_INSTANCES(BFloat16)
#undef TORCHGRAFT_INSTANCES

}  // namespace torchgraft::depthwise::volumes
