// All three passes of volumes in channels_last_3d, with kernels of up to 27 taps.
//
// A thread owns four bytes of channels, so that a warp reads a whole line of memory, and some neighbouring
// rows and columns of results, and sweeps along depth over a stretch. Forward and for the input gradient it
// keeps the weights of its channels in registers, and the sums of all result planes in flight; sources are
// read through the caches, those of a plane all at once, each by all threads that it counts for at about the
// same time. For the weight gradient a thread keeps the sums of all taps, and the output gradients of as many
// planes as the kernel is deep; the threads of a block, and then blocks, are added up in a fixed order.
//
// Measured on an H100 (PyTorch 2.11; floors are the time of a copy), bf16 (8,54,16x56x56), k 3: forward 110
// us (3.8 floors), PyTorch 1,217; input gradient 103 us, PyTorch 868; weight gradient 114 us, PyTorch 3,080.
#include "kernels.h"
#include "staging.cuh"

#include <torchgraft/sums.cuh>

namespace torchgraft::depthwise::volumes {
namespace {

constexpr int kThreads = 256;

// kChannels of T are a word, or less where channels are odd.
template <typename T_, int kChannels_, int kDepth, int kHeight, int kWidth, int kStrideDepth, int kStride,
          bool kTransposed>
struct ChannelsTraits {
  using T = T_;
  static constexpr int kChannels = kChannels_;
  using Depth = DepthReach<kDepth, kStrideDepth, kTransposed>;
  using Rows = Reach<kHeight, kStride, kTransposed, 2>;
  using Columns = Reach<kWidth, kStride, kTransposed, 2>;
  static constexpr int kRows = 2, kColumns = 2;
  static constexpr int kKernelDepth = kDepth, kKernelHeight = kHeight, kKernelWidth = kWidth;
  static constexpr int kTaps = kDepth * kHeight * kWidth;
  // With a stride, the sources of a plane take more registers than two blocks of a multiprocessor have.
  static constexpr int kBlocks = kStride > 1 ? 1 : 2;
};

struct ChannelsParameters {
  int source_planes, source_rows, source_columns, result_planes, result_rows, result_columns;
  int padding_depth, origin_row, origin_column;
  int channels, stretch_planes;
  bool turned;
  int units;  // of work: images, stretches, tiles of rows and columns
  FastDivisor words, tiles_wide, tiles_high, stretches;
};

// A unit of work: the results of one thread, but for the channels.
struct ChannelsTile {
  int image, first_plane, end_plane, row, column;

  template <typename Traits>
  __device__ static ChannelsTile of(int unit, const ChannelsParameters& parameters, Traits) {
    const auto next = [&unit](const FastDivisor& count) {
      const int quotient = count.divide(unit), index = unit - quotient * count.divisor();
      unit = quotient;
      return index;
    };
    const int column = next(parameters.tiles_wide) * Traits::kColumns;
    const int row = next(parameters.tiles_high) * Traits::kRows;
    const int first = next(parameters.stretches) * parameters.stretch_planes;
    return {unit, first, min(first + parameters.stretch_planes, parameters.result_planes), row, column};
  }
};

// The words of a window of a plane, of which those outside of it are zero. `plane` is a channel's first
// element.
template <typename T, int kChannels, int kRows, int kColumns>
struct Window {
  Packed<T, kChannels> words[kRows][kColumns];

  __device__ void load(const T* plane, bool is_there, int row, int column, int rows, int columns,
                       int channels) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        words[i][j] = {};
        if (is_there && is_inside(row + i, rows) && is_inside(column + j, columns)) {
          words[i][j].load(plane + (static_cast<int64_t>(row + i) * columns + column + j) * channels);
        }
      }
    }
  }
};

template <typename Traits>
__global__ void __launch_bounds__(kThreads, Traits::kBlocks)
    channels_last_correlate(const typename Traits::T* __restrict__ source, Rounded<typename Traits::T> weight,
                            Rounded<typename Traits::T> bias, typename Traits::T* __restrict__ result,
                            const __grid_constant__ ChannelsParameters parameters) {
  using T = typename Traits::T;
  using Depth = typename Traits::Depth;
  using Rows = typename Traits::Rows;
  using Columns = typename Traits::Columns;
  constexpr int kChannels = Traits::kChannels, kTaps = Traits::kTaps;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int words = parameters.words.divisor();
  if (index >= static_cast<int64_t>(parameters.units) * words) return;
  // A block begins in one unit, and counts words from there on.
  const int first_unit = static_cast<int>(static_cast<int64_t>(blockIdx.x) * kThreads / words);
  const int rest = static_cast<int>(index - static_cast<int64_t>(first_unit) * words);
  const int more_units = parameters.words.divide(rest);
  const int channel = (rest - more_units * words) * kChannels;
  const ChannelsTile tile = ChannelsTile::of(first_unit + more_units, parameters, Traits());
  const int channels = parameters.channels;

  float taps[kTaps][kChannels], first_sums[kChannels];
#pragma unroll
  for (int i = 0; i < kChannels; ++i) {
    first_sums[i] = bias.or_zero(true, channel + i);
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
      taps[tap][i] =
          weight[static_cast<int64_t>(channel + i) * kTaps + (parameters.turned ? kTaps - 1 - tap : tap)];
    }
  }
  float sums[Depth::kSlots][Traits::kRows][Traits::kColumns][kChannels];
  const auto start = [&](int slot) {
#pragma unroll
    for (int i = 0; i < Traits::kRows * Traits::kColumns * kChannels; ++i) {
      sums[slot][i / (Traits::kColumns * kChannels)][i / kChannels % Traits::kColumns][i % kChannels] =
          first_sums[i % kChannels];
    }
  };
#pragma unroll
  for (int slot = 0; slot < Depth::kSlots; ++slot) start(slot);

  const int source_row = parameters.origin_row + tile.row / Traits::kRows * Rows::kStep;
  const int source_column = parameters.origin_column + tile.column / Traits::kColumns * Columns::kStep;
  const int64_t of_plane =
      static_cast<int64_t>(parameters.source_rows) * parameters.source_columns * channels;
  const T* const volume = source + tile.image * parameters.source_planes * of_plane + channel;
  const typename Depth::Stretch stretch(tile.first_plane, tile.end_plane, parameters.padding_depth,
                                        parameters.source_planes);
  int plane = stretch.first_source;
  for (int step = stretch.first_step; step < stretch.end_step; ++step) {
#pragma unroll
    for (int of_step = 0; of_step < Depth::kPlanes; ++of_step, ++plane) {
      if (plane < 0 || plane >= stretch.end_source) continue;
      Window<T, kChannels, Rows::kSources, Columns::kSources> window;
      window.load(volume + plane * of_plane, true, source_row, source_column, parameters.source_rows,
                  parameters.source_columns, channels);
#pragma unroll
      for (int i = 0; i < Rows::kSources; ++i) {
#pragma unroll
        for (int j = 0; j < Columns::kSources; ++j) {
#pragma unroll
          for (int slot = 0; slot < Depth::kSlots; ++slot) {
            const int depth_tap = Depth::tap(slot, of_step);
            if (depth_tap >= Traits::kKernelDepth) continue;
#pragma unroll
            for (int row = 0; row < Traits::kRows; ++row) {
#pragma unroll
              for (int column = 0; column < Traits::kColumns; ++column) {
                if (!Rows::meets(i, row) || !Columns::meets(j, column)) continue;
                const int tap =
                    (depth_tap * Traits::kKernelHeight + Rows::tap(i, row)) * Traits::kKernelWidth +
                    Columns::tap(j, column);
#pragma unroll
                for (int c = 0; c < kChannels; ++c) {
                  float& sum = sums[slot][row][column][c];
                  sum = fmaf(window.words[i][j][c], taps[tap][c], sum);
                }
              }
            }
          }
        }
      }
    }
#pragma unroll
    for (int slot = 0; slot < Depth::kDone; ++slot) {
      const int done = Depth::result(step, slot, parameters.padding_depth);
      if (done < tile.first_plane || done >= tile.end_plane) continue;
      const int64_t planes_before = static_cast<int64_t>(tile.image) * parameters.result_planes + done;
#pragma unroll
      for (int row = 0; row < Traits::kRows; ++row) {
#pragma unroll
        for (int column = 0; column < Traits::kColumns; ++column) {
          if (tile.row + row >= parameters.result_rows || tile.column + column >= parameters.result_columns) {
            continue;
          }
          const int64_t place =
              (planes_before * parameters.result_rows + tile.row + row) * parameters.result_columns +
              tile.column + column;
          Packed<T, kChannels>(sums[slot][row][column]).store(result + place * channels + channel);
        }
      }
    }
#pragma unroll
    for (int slot = 0; slot < Depth::kSlots; ++slot) {
      if (slot + Depth::kDone >= Depth::kSlots) {
        start(slot);
        continue;
      }
#pragma unroll
      for (int i = 0; i < Traits::kRows * Traits::kColumns * kChannels; ++i) {
        const int row = i / (Traits::kColumns * kChannels), column = i / kChannels % Traits::kColumns;
        sums[slot][row][column][i % kChannels] = sums[slot + Depth::kDone][row][column][i % kChannels];
      }
    }
  }
}

// blockDim: words of channels, and threads that share out the units of a block.
template <typename Traits>
__global__ void __launch_bounds__(kThreads, Traits::kBlocks)
    channels_last_weight_grad(const typename Traits::T* __restrict__ output_grad,
                              const typename Traits::T* __restrict__ input, float* __restrict__ partials,
                              const __grid_constant__ ChannelsParameters parameters, int units_of_block,
                              int blocks_of_channels) {
  using T = typename Traits::T;
  using Rows = typename Traits::Rows;
  using Columns = typename Traits::Columns;
  constexpr int kChannels = Traits::kChannels, kDepth = Traits::kKernelDepth;
  constexpr int kStrideDepth = Traits::Depth::kStride;
  const int chunk = static_cast<int>(blockIdx.x) / blocks_of_channels;
  const int of_channels = static_cast<int>(blockIdx.x) - chunk * blocks_of_channels;
  const int channel =
      (of_channels * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * kChannels;
  const int channels = parameters.channels;
  const bool has_channel = channel < channels;
  float sums[Traits::kTaps][kChannels] = {};
  const int end = has_channel ? min((chunk + 1) * units_of_block, parameters.units) : 0;
  for (int unit = chunk * units_of_block + static_cast<int>(threadIdx.y); unit < end;
       unit += static_cast<int>(blockDim.y)) {
    const ChannelsTile tile = ChannelsTile::of(unit, parameters, Traits());
    const int source_row = parameters.origin_row + tile.row * Rows::kStep / Traits::kRows;
    const int source_column = parameters.origin_column + tile.column * Columns::kStep / Traits::kColumns;
    const int64_t of_input =
        static_cast<int64_t>(parameters.source_rows) * parameters.source_columns * channels;
    const int64_t of_grad =
        static_cast<int64_t>(parameters.result_rows) * parameters.result_columns * channels;
    const T* const inputs = input + tile.image * parameters.source_planes * of_input + channel;
    const T* const grads = output_grad + tile.image * parameters.result_planes * of_grad + channel;
    // With stride 1 an input plane meets the output gradients of the last planes, which stay in registers;
    // with another each output plane meets its input planes.
    Window<T, kChannels, Traits::kRows, Traits::kColumns> kept[kStrideDepth == 1 ? kDepth : 1];
#pragma unroll
    for (auto& window : kept) window.load(grads, false, 0, 0, 0, 0, channels);
    const auto add = [&](const auto& window, const auto& grad, int depth_tap) {
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
              for (int c = 0; c < kChannels; ++c) {
                sums[tap][c] = fmaf(window.words[i][j][c], grad.words[row][column][c], sums[tap][c]);
              }
            }
          }
        }
      }
    };
    const int steps = tile.end_plane - tile.first_plane + (kStrideDepth == 1 ? kDepth - 1 : 0);
    for (int step = 0; step < steps; ++step) {
      const int grad_plane = tile.first_plane + step;
      if constexpr (kStrideDepth == 1) {
#pragma unroll
        for (int i = kDepth - 1; i > 0; --i) kept[i] = kept[i - 1];
      }
      kept[0].load(grads + grad_plane * of_grad, grad_plane < tile.end_plane, tile.row, tile.column,
                   parameters.result_rows, parameters.result_columns, channels);
      constexpr int kInputs = kStrideDepth == 1 ? 1 : kDepth;
#pragma unroll
      for (int i = 0; i < kInputs; ++i) {
        const int plane = grad_plane * kStrideDepth - parameters.padding_depth + i;
        if (!is_inside(plane, parameters.source_planes)) continue;
        Window<T, kChannels, Rows::kSources, Columns::kSources> window;
        window.load(inputs + plane * of_input, true, source_row, source_column, parameters.source_rows,
                    parameters.source_columns, channels);
        if constexpr (kStrideDepth == 1) {
#pragma unroll
          for (int tap = 0; tap < kDepth; ++tap) add(window, kept[tap], tap);
        } else {
          add(window, kept[0], i);
        }
      }
    }
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
ChannelsParameters parameters_of(const Geometry& geometry, bool transposed) {
  const auto sources = [&](const Extent& extent) {
    return static_cast<int>(transposed ? extent.output : extent.input);
  };
  const auto results = [&](const Extent& extent) {
    return static_cast<int>(transposed ? extent.input : extent.output);
  };
  const bool turned = transposed && !Traits::Depth::kIsTransposed;
  ChannelsParameters parameters = {};
  parameters.source_planes = sources(geometry.depth);
  parameters.source_rows = sources(geometry.height);
  parameters.source_columns = sources(geometry.width);
  parameters.result_planes = results(geometry.depth);
  parameters.result_rows = results(geometry.height);
  parameters.result_columns = results(geometry.width);
  parameters.padding_depth = padding_of(geometry.depth, turned);
  parameters.origin_row = Traits::Rows::origin(padding_of(geometry.height, turned));
  parameters.origin_column = Traits::Columns::origin(padding_of(geometry.width, turned));
  parameters.channels = static_cast<int>(geometry.channels);
  parameters.turned = turned;
  parameters.words = FastDivisor(parameters.channels / Traits::kChannels);
  parameters.tiles_wide = FastDivisor(ceil_divide(parameters.result_columns, Traits::kColumns));
  parameters.tiles_high = FastDivisor(ceil_divide(parameters.result_rows, Traits::kRows));
  return parameters;
}

// Cuts depth into stretches; `threads` sweep all of it.
template <typename Traits>
void cut_depth(ChannelsParameters& parameters, const Geometry& geometry, int overlap,
               const Occupancy& occupancy) {
  const int64_t tiles = geometry.batch * parameters.tiles_wide.divisor() * parameters.tiles_high.divisor();
  const int64_t blocks = ceil_divide<int64_t>(tiles * parameters.words.divisor(), kThreads);
  parameters.stretch_planes =
      static_cast<int>(planes_of_stretch(parameters.result_planes, blocks, overlap, occupancy));
  const int stretches = ceil_divide(parameters.result_planes, parameters.stretch_planes);
  parameters.stretches = FastDivisor(stretches);
  parameters.units = static_cast<int>(tiles * stretches);
}

template <typename Traits>
void launch(const Correlation<typename Traits::T>& pass) {
  ChannelsParameters parameters = parameters_of<Traits>(pass.geometry, pass.transposed);
  cut_depth<Traits>(parameters, pass.geometry, Traits::Depth::kSlots - 1,
                    occupancy_of(channels_last_correlate<Traits>, kThreads, 0));
  const int64_t threads = static_cast<int64_t>(parameters.units) * parameters.words.divisor();
  const unsigned grid = grid_of(ceil_divide<int64_t>(threads, kThreads), pass.name());
  channels_last_correlate<Traits>
      <<<grid, kThreads, 0, pass.stream>>>(pass.source, pass.weight, pass.bias, pass.result, parameters);
  check_launch(pass.name());
}

template <typename Traits>
Partials launch(const WeightGrad<typename Traits::T>& pass) {
  constexpr const char* kName = WeightGrad<typename Traits::T>::kName;
  ChannelsParameters parameters = parameters_of<Traits>(pass.geometry, /*transposed=*/false);
  const Occupancy occupancy = occupancy_of(channels_last_weight_grad<Traits>, kThreads, 0);
  cut_depth<Traits>(parameters, pass.geometry, Traits::Depth::kStride == 1 ? Traits::kKernelDepth - 1 : 0,
                    occupancy);
  int lanes = 1;
  while (lanes < kWarpThreads && lanes < parameters.words.divisor()) lanes *= 2;
  const dim3 block(lanes, kThreads / lanes);
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

// Calls use.operator()<Traits>() for the kernel and the stride of a pass.
template <typename T, int kChannels, bool kTransposed, typename Use>
auto with_traits(const Geometry& geometry, const Use& use) {
  const Extent &depth = geometry.depth, &height = geometry.height, &width = geometry.width;
#define TORCHGRAFT_CASE(DEPTH, HEIGHT, WIDTH, STRIDE_DEPTH, STRIDE)                                          \
  if constexpr (DEPTH * HEIGHT * WIDTH <= kMostTapsOfChannelsLast) {                                         \
    if (depth.kernel == DEPTH && height.kernel == HEIGHT && width.kernel == WIDTH &&                         \
        depth.stride == STRIDE_DEPTH && height.stride == STRIDE) {                                           \
      constexpr bool kIsTransposed = kTransposed && (STRIDE_DEPTH > 1 || STRIDE > 1);                        \
      return use.template                                                                                    \
      operator()<ChannelsTraits<T, kChannels, DEPTH, HEIGHT, WIDTH, STRIDE_DEPTH, STRIDE, kIsTransposed>>(); \
    }                                                                                                        \
  }
  TORCHGRAFT_SWEPT(TORCHGRAFT_CASE)
#undef TORCHGRAFT_CASE
  fail("depthwise_conv3d: no kernel of channels_last_3d is compiled for these sizes");
}

template <typename T>
bool has_words(const Geometry& geometry, const void* one, const void* other) {
  constexpr int kWord = 4;
  return geometry.channels * sizeof(T) % kWord == 0 && is_aligned(one, kWord) && is_aligned(other, kWord);
}

}  // namespace

template <typename T>
void launch_channels_last(const Correlation<T>& pass) {
  const auto use = [&]<typename Traits>() { launch<Traits>(pass); };
  const auto with_channels = [&]<int kChannels>() {
    pass.transposed ? with_traits<T, kChannels, true>(pass.geometry, use)
                    : with_traits<T, kChannels, false>(pass.geometry, use);
  };
  if constexpr (sizeof(T) == 2) {
    if (has_words<T>(pass.geometry, pass.source, pass.result)) return with_channels.template operator()<2>();
  }
  with_channels.template operator()<1>();
}

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

#define TORCHGRAFT_INSTANCES(T)                              \
  template void launch_channels_last(const Correlation<T>&); \
  template Partials launch_channels_last_weight_grad(const WeightGrad<T>&);
TORCHGRAFT_INSTANCES(float)
TORCHGRAFT_INSTANCES(Half)
TORCHGRAFT_INSTANCES(BFloat16)
#undef TORCHGRAFT_INSTANCES

}  // namespace torchgraft::depthwise::volumes
