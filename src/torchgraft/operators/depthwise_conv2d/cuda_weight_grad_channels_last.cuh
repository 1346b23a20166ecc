// Weight gradient on NHWC images, first pass: lanes lie along channels, so that no lane needs another's sums.
//
// A block owns a slice of the channels, a chunk of the output pixels and some groups of taps, kTapRows x
// kTapColumns each. A thread owns one group of taps of kCount channels, with its sums in registers for the
// whole chunk; threads of a block that own the same taps share the pixels of the chunk and are added up once,
// in order, through shared memory. Images come straight from device memory; the threads of a block walk over
// the same pixels together, so that all but the first read of an element is served by L1: for k = 3, where
// one thread owns all taps, 4.5 reads of input and one of the output gradient; for k = 7, where seven threads
// share, 2.5 and one each.
//
// kStride > 0 (four channels, dilation 1): a thread takes four output pixels of a row at a time and the
// window under them. kStride = 0 (any stride, dilation, multiplier and number of channels): one pixel at a
// time, one load a tap. Predicted: (128,144,56x56,k3) 0.15 ms fp32, 0.09 bf16 (floors 0.113 and 0.056);
// (128,96,56x56,k7) 0.16 ms, bound by instructions (floors 0.075 and 0.038). Measured on an H200: 0.18 and
// 0.18; 0.40 fp32 and 0.50 bf16: seven threads that share a window each load it, and convert it, anew.
#pragma once

#include "cuda_channels_last.cuh"
#include "cuda_weight_grad_sums.cuh"

namespace torchgraft::depthwise::cuda {

// How a thread takes taps, pixels and channels.
template <int kTapRowCount, int kTapColumnCount, int kStrideSize, int kChannelCount>
struct TapPatch {
  static constexpr int kTapRows = kTapRowCount;
  static constexpr int kTapColumns = kTapColumnCount;
  static constexpr int kStride = kStrideSize;
  static constexpr int kCount = kChannelCount;
  static constexpr int kPixels = kStride > 0 ? 4 : 1;
  static constexpr int kWindow = (kPixels - 1) * kStride + kTapColumns;
  static constexpr int kSums = kTapRows * kTapColumns * kCount;  // registers of a thread
  static_assert(kStride == 0 || kCount == kChannels, "windows are for four channels");
};

// Index is int where all positions and the number of pixels fit, else int64_t.
template <typename Index>
struct ChannelsLastWeightGrad {
  Index input_height, input_width, output_height, output_width;
  Index stride_y, stride_x, padding_y, padding_x, dilation_y, dilation_x;
  Index kernel_height, kernel_width;
  Index channels, multiplier, output_channels;
  Index strips;               // of an output row, TapPatch::kPixels each
  Chunks chunks;              // of strips
  int column_groups, groups;  // of taps: in a kernel row, and in all
  int groups_of_block, tap_blocks;
  int slices;  // of the channels
};

template <typename T, typename Index, typename Patch>
__global__ void __launch_bounds__(kChannelsLastThreads, 2)
    weight_grad_channels_last(const T* __restrict__ output_grad, const T* __restrict__ input,
                              accumulate_t<T>* __restrict__ partial,
                              ChannelsLastWeightGrad<Index> parameters) {
  using Accumulate = accumulate_t<T>;
  constexpr int kCount = Patch::kCount;
  unsigned rest = blockIdx.x;
  const int slice = static_cast<int>(rest % parameters.slices);
  rest /= parameters.slices;
  const int tap_block = static_cast<int>(rest % parameters.tap_blocks);
  const int chunk = static_cast<int>(rest / parameters.tap_blocks);

  const int group_in_block = static_cast<int>(threadIdx.y) % parameters.groups_of_block;
  const int group = tap_block * parameters.groups_of_block + group_in_block;
  const int first_strip = static_cast<int>(threadIdx.y) / parameters.groups_of_block;
  const int strip_step = static_cast<int>(blockDim.y) / parameters.groups_of_block;
  const Index first_row = group / parameters.column_groups * Patch::kTapRows;
  const Index first_column = group % parameters.column_groups * Patch::kTapColumns;
  const Index first_channel = (static_cast<Index>(slice) * blockDim.x) * kCount;
  const Index channel = first_channel + static_cast<Index>(threadIdx.x) * kCount;
  const bool active =
      channel < parameters.output_channels && group < parameters.groups && first_strip < strip_step;

  Accumulate sums[Patch::kTapRows][Patch::kTapColumns][kCount] = {};
  if (active) {
    const Index input_channel = kCount == 1 ? channel / parameters.multiplier : channel;
    const int64_t begin = chunk * parameters.chunks.units_of_chunk;
    const int64_t end = min(begin + parameters.chunks.units_of_chunk, parameters.chunks.units);
#pragma unroll 1
    for (int64_t index = begin + first_strip; index < end; index += strip_step) {
      const Index strip = static_cast<Index>(index);
      const Index strip_row = strip / parameters.strips;
      const Index x = (strip - strip_row * parameters.strips) * Patch::kPixels;
      const Index image = strip_row / parameters.output_height;
      const Index y = strip_row - image * parameters.output_height;

      Accumulate grads[Patch::kPixels][kCount];
      const T* grad_row =
          output_grad +
          (static_cast<int64_t>(strip_row) * parameters.output_width + x) * parameters.output_channels +
          channel;
#pragma unroll
      for (int pixel = 0; pixel < Patch::kPixels; ++pixel) {
        if (x + pixel < parameters.output_width) {
          load_channels(grad_row + static_cast<int64_t>(pixel) * parameters.output_channels, grads[pixel]);
        } else {
#pragma unroll
          for (int i = 0; i < kCount; ++i) grads[pixel][i] = Accumulate(0);
        }
      }

      const Index source_x =
          x * parameters.stride_x - parameters.padding_x + first_column * parameters.dilation_x;
#pragma unroll
      for (int row = 0; row < Patch::kTapRows; ++row) {
        const Index source_y =
            y * parameters.stride_y - parameters.padding_y + (first_row + row) * parameters.dilation_y;
        if (first_row + row >= parameters.kernel_height) continue;
        if (source_y < 0 || source_y >= parameters.input_height) continue;
        const T* source_row = input +
                              (static_cast<int64_t>(image) * parameters.input_height + source_y) *
                                  parameters.input_width * parameters.channels +
                              input_channel;
        const auto load = [&](Index position, Accumulate(&values)[kCount]) {
          if (position >= 0 && position < parameters.input_width) {
            load_channels(source_row + static_cast<int64_t>(position) * parameters.channels, values);
          } else {
#pragma unroll
            for (int i = 0; i < kCount; ++i) values[i] = Accumulate(0);
          }
        };
        if constexpr (Patch::kStride > 0) {
#pragma unroll
          for (int j = 0; j < Patch::kWindow; ++j) {
            Accumulate values[kCount];
            load(source_x + j, values);
#pragma unroll
            for (int pixel = 0; pixel < Patch::kPixels; ++pixel) {
              const int tap = j - pixel * Patch::kStride;
              if (tap < 0 || tap >= Patch::kTapColumns) continue;
#pragma unroll
              for (int i = 0; i < kCount; ++i) sums[row][tap][i] += grads[pixel][i] * values[i];
            }
          }
        } else {
#pragma unroll
          for (int tap = 0; tap < Patch::kTapColumns; ++tap) {
            if (first_column + tap >= parameters.kernel_width) continue;
            Accumulate values[kCount];
            load(source_x + tap * parameters.dilation_x, values);
#pragma unroll
            for (int i = 0; i < kCount; ++i) sums[row][tap][i] += grads[0][i] * values[i];
          }
        }
      }
    }
  }

  // [sum of a thread][threadIdx.y][threadIdx.x][channel of a thread]
  Accumulate* shared = shared_memory<Accumulate>();
  const int channels_of_block = static_cast<int>(blockDim.x) * kCount;
  const int sum_stride = static_cast<int>(blockDim.y) * channels_of_block;
#pragma unroll
  for (int row = 0; row < Patch::kTapRows; ++row) {
#pragma unroll
    for (int column = 0; column < Patch::kTapColumns; ++column) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        shared[(row * Patch::kTapColumns + column) * sum_stride + threadIdx.y * channels_of_block +
               threadIdx.x * kCount + i] = sums[row][column][i];
      }
    }
  }
  __syncthreads();
  constexpr int kGroupTaps = Patch::kTapRows * Patch::kTapColumns;
  const int64_t taps = static_cast<int64_t>(parameters.kernel_height) * parameters.kernel_width;
  const int threads = static_cast<int>(blockDim.x * blockDim.y);
  const int count = parameters.groups_of_block * kGroupTaps * channels_of_block;
  for (int i = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x); i < count; i += threads) {
    const int tap = i % kGroupTaps;
    const int tap_group = i / kGroupTaps % parameters.groups_of_block;
    const int block_channel = i / kGroupTaps / parameters.groups_of_block;
    const int all_group = tap_block * parameters.groups_of_block + tap_group;
    const Index row = all_group / parameters.column_groups * Patch::kTapRows + tap / Patch::kTapColumns;
    const Index column = all_group % parameters.column_groups * Patch::kTapColumns + tap % Patch::kTapColumns;
    const Index output_channel = first_channel + block_channel;
    if (row >= parameters.kernel_height || column >= parameters.kernel_width ||
        output_channel >= parameters.output_channels) {
      continue;
    }
    partial[(static_cast<int64_t>(chunk) * parameters.output_channels + output_channel) * taps +
            static_cast<int64_t>(row) * parameters.kernel_width + column] =
        sum_in_order(shared + tap * sum_stride + tap_group * channels_of_block + block_channel, strip_step,
                     parameters.groups_of_block * channels_of_block);
  }
}

// The number of chunks that were written.
template <typename T, typename Index, typename Patch>
int launch_weight_grad_channels_last(const T* output_grad, const T* input, accumulate_t<T>* partial,
                                     const Geometry& geometry, cudaStream_t stream) {
  const char* name = "depthwise_conv2d_weight_grad";
  const Extent& height = geometry.height;
  const Extent& width = geometry.width;
  // Threads along x: all groups of channels if they are few, else slices of equal size, 32 lanes for single
  // channels.
  const int64_t channel_groups = ceil_divide<int64_t>(geometry.output_channels(), Patch::kCount);
  const int64_t most_groups = Patch::kCount == 1 ? 32 : kGroupsOfBlock;
  const int64_t slices = ceil_divide(channel_groups, most_groups);
  const int threads_x = static_cast<int>(ceil_divide(channel_groups, slices));
  const int threads_y = kChannelsLastThreads / threads_x;
  const int64_t column_groups = ceil_divide<int64_t>(width.kernel, Patch::kTapColumns);
  const int64_t groups = column_groups * ceil_divide<int64_t>(height.kernel, Patch::kTapRows);
  const int64_t tap_blocks = ceil_divide<int64_t>(groups, threads_y);
  const int groups_of_block = static_cast<int>(ceil_divide(groups, tap_blocks));
  const int64_t strips = ceil_divide<int64_t>(width.output, Patch::kPixels);
  // A thread has at least eight strips, against the cost of adding up a block.
  const Chunks chunks =
      make_chunks(geometry.batch * height.output * strips, 8 * (threads_y / groups_of_block),
                  most_chunks(geometry, Layout::channels_last));
  TORCHGRAFT_CHECK(groups <= INT32_MAX, name, ": the kernel is too large");
  const auto index = [](int64_t value) { return static_cast<Index>(value); };
  const ChannelsLastWeightGrad<Index> parameters = {index(height.input),
                                                    index(width.input),
                                                    index(height.output),
                                                    index(width.output),
                                                    index(height.stride),
                                                    index(width.stride),
                                                    index(height.padding),
                                                    index(width.padding),
                                                    index(height.dilation),
                                                    index(width.dilation),
                                                    index(height.kernel),
                                                    index(width.kernel),
                                                    index(geometry.channels),
                                                    index(geometry.multiplier),
                                                    index(geometry.output_channels()),
                                                    index(strips),
                                                    chunks,
                                                    static_cast<int>(column_groups),
                                                    static_cast<int>(groups),
                                                    groups_of_block,
                                                    static_cast<int>(tap_blocks),
                                                    static_cast<int>(slices)};
  const size_t bytes = sizeof(accumulate_t<T>) * Patch::kSums * threads_x * threads_y;
  weight_grad_channels_last<T, Index, Patch>
      <<<grid_of(checked_product(slices * tap_blocks, chunks.count, name), name), dim3(threads_x, threads_y),
         bytes, stream>>>(output_grad, input, partial, parameters);
  check_launch(name);
  return chunks.count;
}

}  // namespace torchgraft::depthwise::cuda
