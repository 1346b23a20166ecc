// Weight gradient of volumes in channels_last_3d, with kernels of up to 27 taps.
//
// A thread (channels_last.cuh) keeps the sums of all taps, and the output gradients of as many planes as the
// kernel is deep; the threads of a block, and then blocks, are added up in a fixed order.
//
// Measured on an H100 (PyTorch 2.11), bf16 (8,54,16x56x56), k 3: 114 us, PyTorch 3,080.
#include "channels_last.cuh"

#include <torchgraft/sums.cuh>

namespace torchgraft::depthwise::volumes {
namespace {

// The sums of a thread: of all taps of its channels.
template <typename Traits>
using ChannelsSums = float[Traits::kTaps][Traits::kChannels];

// Adds the products of a window of the input and one of the output gradient, a tap along depth apart.
template <typename Traits, typename Inputs, typename Grads>
__device__ __forceinline__ void add_products(ChannelsSums<Traits>& sums, const Inputs& window,
                                             const Grads& grads, int depth_tap) {
  using Rows = typename Traits::Rows;
  using Columns = typename Traits::Columns;
#pragma unroll
  for (int i = 0; i < Rows::kSources; ++i) {
#pragma unroll
    for (int j = 0; j < Columns::kSources; ++j) {
#pragma unroll
      for (int row = 0; row < Traits::kRows; ++row) {
#pragma unroll
        for (int column = 0; column < Traits::kColumns; ++column) {
          if (!Rows::meets(i, row) || !Columns::meets(j, column)) continue;
          const int tap = (depth_tap * Traits::kKernelHeight + Rows::tap(i, row)) * Traits::kKernelWidth +
                          Columns::tap(j, column);
#pragma unroll
          for (int c = 0; c < Traits::kChannels; ++c) {
            sums[tap][c] = fmaf(window.words[i][j][c], grads.words[row][column][c], sums[tap][c]);
          }
        }
      }
    }
  }
}

// Sweeps along the depth of one tile, and adds to the sums of a thread. `inputs` and `grads` begin with its
// channels in the image; their planes have `input_elements` and `grad_elements`.
template <typename Traits>
__device__ __forceinline__ void sweep(ChannelsSums<Traits>& sums, const typename Traits::T* inputs,
                                      const typename Traits::T* grads, const ChannelsParameters& parameters,
                                      const ChannelsTile& tile, int64_t input_elements, int64_t grad_elements,
                                      int channels) {
  using T = typename Traits::T;
  using Rows = typename Traits::Rows;
  using Columns = typename Traits::Columns;
  constexpr int kChannels = Traits::kChannels, kDepth = Traits::kKernelDepth;
  constexpr int kStrideDepth = Traits::Depth::kStride;
  const int source_row = parameters.origin_row + tile.row * Rows::kStep / Traits::kRows;
  const int source_column = parameters.origin_column + tile.column * Columns::kStep / Traits::kColumns;
  // With stride 1 an input plane meets the output gradients of the last planes, which stay in registers; with
  // another each output plane meets its input planes.
  Window<T, kChannels, Traits::kRows, Traits::kColumns> kept[kStrideDepth == 1 ? kDepth : 1];
#pragma unroll
  for (auto& window : kept) window.load(grads, false, 0, 0, 0, 0, channels);
  const int steps = tile.end_plane - tile.first_plane + (kStrideDepth == 1 ? kDepth - 1 : 0);
  for (int step = 0; step < steps; ++step) {
    const int grad_plane = tile.first_plane + step;
    if constexpr (kStrideDepth == 1) {
#pragma unroll
      for (int i = kDepth - 1; i > 0; --i) kept[i] = kept[i - 1];
    }
    kept[0].load(grads + grad_plane * grad_elements, grad_plane < tile.end_plane, tile.row, tile.column,
                 parameters.result_rows, parameters.result_columns, channels);
    constexpr int kInputs = kStrideDepth == 1 ? 1 : kDepth;
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
      const int plane = grad_plane * kStrideDepth - parameters.padding_depth + i;
      if (!is_inside(plane, parameters.source_planes)) continue;
      Window<T, kChannels, Rows::kSources, Columns::kSources> window;
      window.load(inputs + plane * input_elements, true, source_row, source_column, parameters.source_rows,
                  parameters.source_columns, channels);
      if constexpr (kStrideDepth == 1) {
#pragma unroll
        for (int tap = 0; tap < kDepth; ++tap) add_products<Traits>(sums, window, kept[tap], tap);
      } else {
        add_products<Traits>(sums, window, kept[0], i);
      }
    }
  }
}

// blockDim: words of channels, and threads that share out the units of a block.
template <typename Traits>
__global__ void __launch_bounds__(kChannelsThreads, Traits::kBlocks)
    channels_last_weight_grad(const typename Traits::T* __restrict__ output_grad,
                              const typename Traits::T* __restrict__ input, float* __restrict__ partials,
                              const __grid_constant__ ChannelsParameters parameters, int units_of_block,
                              int blocks_of_channels) {
  constexpr int kChannels = Traits::kChannels;
  const int chunk = static_cast<int>(blockIdx.x) / blocks_of_channels;
  const int of_channels = static_cast<int>(blockIdx.x) - chunk * blocks_of_channels;
  const int channel =
      (of_channels * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * kChannels;
  const int channels = parameters.channels;
  const bool has_channel = channel < channels;
  ChannelsSums<Traits> sums = {};
  const int end = has_channel ? min((chunk + 1) * units_of_block, parameters.units) : 0;
  for (int unit = chunk * units_of_block + static_cast<int>(threadIdx.y); unit < end;
       unit += static_cast<int>(blockDim.y)) {
    const ChannelsTile tile = ChannelsTile::of(unit, parameters, Traits());
    const int64_t input_elements =
        static_cast<int64_t>(parameters.source_rows) * parameters.source_columns * channels;
    const int64_t grad_elements =
        static_cast<int64_t>(parameters.result_rows) * parameters.result_columns * channels;
    sweep<Traits>(sums, input + tile.image * parameters.source_planes * input_elements + channel,
                  output_grad + tile.image * parameters.result_planes * grad_elements + channel, parameters,
                  tile, input_elements, grad_elements, channels);
  }
  if (!sum_over_y(sums) || !has_channel) return;
#pragma unroll
  for (int c = 0; c < kChannels; ++c) {
#pragma unroll
    for (int tap = 0; tap < Traits::kTaps; ++tap) {
      partials[(static_cast<int64_t>(chunk) * channels + channel + c) * Traits::kTaps + tap] = sums[tap][c];
    }
  }
}

template <typename Traits>
Partials launch(const WeightGrad<typename Traits::T>& pass) {
  constexpr const char* kName = WeightGrad<typename Traits::T>::kName;
  ChannelsParameters parameters = parameters_of<Traits>(pass.geometry, /*transposed=*/false);
  const Occupancy occupancy = occupancy_of(channels_last_weight_grad<Traits>, kChannelsThreads, 0);
  cut_depth<Traits>(parameters, pass.geometry, Traits::Depth::kStride == 1 ? Traits::kKernelDepth - 1 : 0,
                    occupancy);
  int lanes = 1;
  while (lanes < kWarpThreads && lanes < parameters.words.divisor()) lanes *= 2;
  const dim3 block(lanes, kChannelsThreads / lanes);
  const int blocks_of_channels = ceil_divide(parameters.words.divisor(), lanes);
  const int64_t wanted =
      ceil_divide<int64_t>(occupancy.resident * occupancy.multiprocessors, blocks_of_channels);
  const int most = ceil_divide(parameters.units, static_cast<int>(block.y));
  const int units_of_block =
      ceil_divide(parameters.units, static_cast<int>(std::clamp<int64_t>(wanted, 1, most)));
  const int chunks = ceil_divide(parameters.units, units_of_block);
  const Partials partials = {
      empty_workspace<float>(chunks * pass.geometry.channels * Traits::kTaps, pass.like), chunks};
  const unsigned grid = grid_of(static_cast<int64_t>(chunks) * blocks_of_channels, kName);
  channels_last_weight_grad<Traits><<<grid, block, 0, pass.stream>>>(
      pass.output_grad, pass.input, static_cast<float*>(partials.memory.mutable_data_ptr()), parameters,
      units_of_block, blocks_of_channels);
  check_launch(kName);
  return partials;
}

}  // namespace

template <typename T>
Partials launch_channels_last_weight_grad(const WeightGrad<T>& pass) {
  const auto use = [&]<typename Traits>() { return launch<Traits>(pass); };
  if constexpr (sizeof(T) == 2) {
    if (has_words<T>(pass.geometry, pass.output_grad, pass.input)) {
      return with_traits<T, 2, false>(pass.geometry, use);
    }
  }
  return with_traits<T, 1, false>(pass.geometry, use);
}

template Partials launch_channels_last_weight_grad(const WeightGrad<float>&);
template Partials launch_channels_last_weight_grad(const WeightGrad<Half>&);
template Partials launch_channels_last_weight_grad(const WeightGrad<BFloat16>&);

}  // namespace torchgraft::depthwise::volumes
