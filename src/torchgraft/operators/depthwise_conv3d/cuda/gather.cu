// All three passes of volumes for any size, stride, padding, dilation and dtype. A thread gathers one result;
// those of a warp are neighbours, so that what they read is, too.
//
// The weight gradient: a block owns up to eight taps of a row of the kernel of one channel, and a part of the
// rows of the output gradient; its warps go through rows, and its lanes along them.
#include "kernels.h"

#include <torchgraft/device.cuh>

namespace torchgraft::depthwise::volumes {
namespace {

constexpr int kThreads = 256;
constexpr int kLanes = 32;
constexpr int kWarps = kThreads / kLanes;
constexpr int kTapsOfBlock = 8;

struct GatherParameters {
  Geometry geometry;
  int64_t results;
};

// Calls use(source, tap) for each tap of one direction that a result has, with the place of its source.
template <bool kTransposed, typename Use>
__device__ void for_each_tap(const Extent& extent, int64_t result, const Use& use) {
  for (int64_t tap = 0; tap < extent.kernel; ++tap) {
    if constexpr (kTransposed) {
      const int64_t place = result + extent.padding - tap * extent.dilation;
      if (place < 0) return;
      const int64_t source = extent.stride == 1 ? place : place / extent.stride;
      if (source < extent.output && source * extent.stride == place) use(source, tap);
    } else {
      const int64_t source = extent.position(result, tap);
      if (source >= extent.input) return;
      if (source >= 0) use(source, tap);
    }
  }
}

template <typename T, bool kTransposed>
__global__ void __launch_bounds__(kThreads)
    gather_volumes(const T* __restrict__ source, Rounded<T> weight, Rounded<T> bias, T* __restrict__ result,
                   const __grid_constant__ GatherParameters parameters) {
  using A = accumulate_t<T>;
  const Geometry& geometry = parameters.geometry;
  const Extent &depth = geometry.depth, &height = geometry.height, &width = geometry.width;
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
    const int64_t column = next(kTransposed ? width.input : width.output);
    const int64_t row = next(kTransposed ? height.input : height.output);
    const int64_t plane = next(kTransposed ? depth.input : depth.output);
    const int64_t channel = next(kTransposed ? geometry.channels : geometry.output_channels());
    const int64_t image = rest;
    const int64_t rows = kTransposed ? height.output : height.input;
    const int64_t columns = kTransposed ? width.output : width.input;
    const int64_t planes = kTransposed ? depth.output : depth.input;

    A sum = kTransposed ? A{0} : bias.or_zero(true, channel);
    const auto add_volume = [&](int64_t source_volume, int64_t weight_channel) {
      const T* const volume = source + source_volume * planes * rows * columns;
      for_each_tap<kTransposed>(depth, plane, [&](int64_t source_plane, int64_t depth_tap) {
        for_each_tap<kTransposed>(height, row, [&](int64_t source_row, int64_t height_tap) {
          const T* const of_row = volume + (source_plane * rows + source_row) * columns;
          const Rounded<T> taps =
              weight +
              ((weight_channel * depth.kernel + depth_tap) * height.kernel + height_tap) * width.kernel;
          for_each_tap<kTransposed>(width, column, [&](int64_t source_column, int64_t width_tap) {
            sum += static_cast<A>(of_row[source_column]) * taps[width_tap];
          });
        });
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
  int64_t tap_groups;           // of a channel
  int64_t rows, rows_of_block;  // of the output gradient of one channel, in all images and planes
};

template <typename T>
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
    for (int64_t column = lane; column < width.output; column += kLanes) {
      const A grad = static_cast<A>(grads[column]);
#pragma unroll
      for (int i = 0; i < kTapsOfBlock; ++i) {
        const int64_t input_column = width.position(column, first_tap + i);
        if (first_tap + i < width.kernel && input_column >= 0 && input_column < width.input) {
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
  const GatherParameters parameters = {geometry, results};
  constexpr int64_t kMostBlocks = int64_t{1} << 30;
  const unsigned grid = grid_of(std::min(ceil_divide<int64_t>(results, kThreads), kMostBlocks), pass.name());
  if (pass.transposed) {
    gather_volumes<T, true>
        <<<grid, kThreads, 0, pass.stream>>>(pass.source, pass.weight, pass.bias, pass.result, parameters);
  } else {
    gather_volumes<T, false>
        <<<grid, kThreads, 0, pass.stream>>>(pass.source, pass.weight, pass.bias, pass.result, parameters);
  }
  check_launch(pass.name());
}

template <typename T>
Partials launch_any_weight_grad(const WeightGrad<T>& pass) {
  using A = accumulate_t<T>;
  constexpr const char* kName = WeightGrad<T>::kName;
  const Geometry& geometry = pass.geometry;
  const int64_t rows = geometry.batch * geometry.depth.output * geometry.height.output;
  const int64_t groups = geometry.depth.kernel * geometry.height.kernel *
                         ceil_divide<int64_t>(geometry.width.kernel, kTapsOfBlock);
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
  const GatherWeightGradParameters parameters = {geometry, groups, rows, rows_of_block};
  gather_volumes_weight_grad<T><<<grid_of(blocks_of_part * parts, kName), kThreads, 0, pass.stream>>>(
      pass.output_grad, pass.input, static_cast<A*>(partials.memory.mutable_data_ptr()), parameters);
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
