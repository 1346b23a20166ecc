// Shared parts of the kernels of volumes in channels_last_3d, with kernels of up to 27 taps
// (channels_last_correlate.cu, channels_last_weight_grad.cu).
//
// A thread owns four bytes of channels, so that a warp reads a whole line of memory, and some neighbouring
// rows and columns of results, and sweeps along depth over a stretch.
#pragma once

#include "kernels.h"
#include "staging.cuh"

namespace torchgraft::depthwise::volumes {

inline constexpr int kChannelsThreads = 256;

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
  const int64_t blocks = ceil_divide<int64_t>(tiles * parameters.words.divisor(), kChannelsThreads);
  parameters.stretch_planes =
      static_cast<int>(planes_of_stretch(parameters.result_planes, blocks, overlap, occupancy));
  const int stretches = ceil_divide(parameters.result_planes, parameters.stretch_planes);
  parameters.stretches = FastDivisor(stretches);
  parameters.units = static_cast<int>(tiles * stretches);
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

}  // namespace torchgraft::depthwise::volumes
