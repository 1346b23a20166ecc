// Weight gradient on NCHW planes, first pass, for what no faster kernel serves: other strides, dilation,
// float64, and kernels that do not fit shared memory.
//
// A block owns one output channel, a chunk of its output pixels and up to eight groups of four taps of a
// kernel row; a warp owns one group, and warps with the same group share the pixels. Lanes lie along
// neighbouring pixels. Every element is read once for each tap, from L1 but for the first time in a block,
// and from L2 once for eight groups. Bound: instructions, some fifteen a tap. Predicted:
// (128,144,56x56,k3,dilation 2) 0.6 ms.
#pragma once

#include "cuda_weight_grad_sums.cuh"

namespace torchgraft::depthwise::cuda {

constexpr int kDirectTaps = 4;
constexpr int kDirectWarps = 8;

// Index is int where all positions and the number of pixels fit, else int64_t.
template <typename Index>
struct DirectWeightGrad {
  Index input_height, input_width, output_height, output_width;
  Index stride_y, stride_x, padding_y, padding_x, dilation_y, dilation_x;
  Index kernel_height, kernel_width;
  Index channels, multiplier, output_channels;
  Chunks chunks;        // of output pixels of a channel
  Index column_groups;  // of taps, in a kernel row
  int groups_of_block;  // at most kDirectWarps
  Index tap_blocks;
};

template <typename T, typename Index>
__global__ void __launch_bounds__(kDirectWarps * 32)
    weight_grad_direct(const T* __restrict__ output_grad, const T* __restrict__ input,
                       accumulate_t<T>* __restrict__ partial, DirectWeightGrad<Index> parameters) {
  using Accumulate = accumulate_t<T>;
  Index rest = static_cast<Index>(blockIdx.x);
  const Index channel = rest % parameters.output_channels;
  rest /= parameters.output_channels;
  const Index tap_block = rest % parameters.tap_blocks;
  const int64_t chunk = rest / parameters.tap_blocks;

  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int pixel_slices = kDirectWarps / parameters.groups_of_block;
  const int pixel_slice = warp / parameters.groups_of_block;
  const Index group = tap_block * parameters.groups_of_block + warp % parameters.groups_of_block;
  const Index tap_row = group / parameters.column_groups;
  const Index first_column = group % parameters.column_groups * kDirectTaps;

  Accumulate sums[kDirectTaps] = {};
  if (tap_row < parameters.kernel_height && pixel_slice < pixel_slices) {
    const Index output_plane = parameters.output_height * parameters.output_width;
    const int64_t input_plane = static_cast<int64_t>(parameters.input_height) * parameters.input_width;
    const int64_t begin = chunk * parameters.chunks.units_of_chunk;
    const int64_t end = min(begin + parameters.chunks.units_of_chunk, parameters.chunks.units);
    for (int64_t index = begin + pixel_slice * 32 + lane; index < end; index += pixel_slices * 32) {
      const Index all_pixel = static_cast<Index>(index);
      const Index image = all_pixel / output_plane;
      const Index pixel = all_pixel - image * output_plane;
      const Index y = pixel / parameters.output_width;
      const Index x = pixel - y * parameters.output_width;
      const Index source_y = y * parameters.stride_y - parameters.padding_y + tap_row * parameters.dilation_y;
      if (source_y < 0 || source_y >= parameters.input_height) continue;
      const Accumulate grad = static_cast<Accumulate>(
          output_grad[(static_cast<int64_t>(image) * parameters.output_channels + channel) * output_plane +
                      pixel]);
      const T* source_row =
          input +
          (static_cast<int64_t>(image) * parameters.channels + channel / parameters.multiplier) *
              input_plane +
          static_cast<int64_t>(source_y) * parameters.input_width;
      const Index source_x =
          x * parameters.stride_x - parameters.padding_x + first_column * parameters.dilation_x;
#pragma unroll
      for (int tap = 0; tap < kDirectTaps; ++tap) {
        const Index position = source_x + tap * parameters.dilation_x;
        if (first_column + tap < parameters.kernel_width && position >= 0 &&
            position < parameters.input_width) {
          sums[tap] += grad * static_cast<Accumulate>(source_row[position]);
        }
      }
    }
  }

  constexpr unsigned kAllLanes = 0xffffffff;
  Accumulate* shared = shared_memory<Accumulate>();
#pragma unroll
  for (int tap = 0; tap < kDirectTaps; ++tap) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      sums[tap] += __shfl_down_sync(kAllLanes, sums[tap], distance);
    }
    if (lane == 0) shared[warp * kDirectTaps + tap] = sums[tap];
  }
  __syncthreads();
  const int taps_of_block = parameters.groups_of_block * kDirectTaps;
  const int i = static_cast<int>(threadIdx.x);
  if (i >= taps_of_block) return;
  const Index own_group = tap_block * parameters.groups_of_block + i / kDirectTaps;
  const Index row = own_group / parameters.column_groups;
  const Index column = own_group % parameters.column_groups * kDirectTaps + i % kDirectTaps;
  if (row >= parameters.kernel_height || column >= parameters.kernel_width) return;
  const int64_t taps = static_cast<int64_t>(parameters.kernel_height) * parameters.kernel_width;
  partial[(chunk * parameters.output_channels + channel) * taps +
          static_cast<int64_t>(row) * parameters.kernel_width + column] =
      sum_in_order(shared + i, pixel_slices, taps_of_block);
}

// The number of chunks that were written.
template <typename T, typename Index>
int launch_weight_grad_direct(const T* output_grad, const T* input, accumulate_t<T>* partial,
                              const Geometry& geometry, cudaStream_t stream) {
  const char* name = "depthwise_conv2d_weight_grad";
  const Extent& height = geometry.height;
  const Extent& width = geometry.width;
  const int64_t column_groups = ceil_divide<int64_t>(width.kernel, kDirectTaps);
  const int64_t groups = column_groups * height.kernel;
  const int64_t tap_blocks = ceil_divide<int64_t>(groups, kDirectWarps);
  const int64_t groups_of_block = ceil_divide(groups, tap_blocks);
  // A lane has at least eight pixels, against the cost of adding up a block.
  const Chunks chunks =
      make_chunks(geometry.batch * geometry.output_pixels(), 8 * 32 * kDirectWarps / groups_of_block,
                  most_chunks(geometry, Layout::contiguous));
  const auto index = [](int64_t value) { return static_cast<Index>(value); };
  const DirectWeightGrad<Index> parameters = {index(height.input),
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
                                              chunks,
                                              index(column_groups),
                                              static_cast<int>(groups_of_block),
                                              index(tap_blocks)};
  const int64_t blocks = checked_product(geometry.output_channels() * tap_blocks, chunks.count, name);
  weight_grad_direct<T, Index>
      <<<grid_of(blocks, name), kDirectWarps * 32, sizeof(accumulate_t<T>) * kDirectWarps * kDirectTaps,
         stream>>>(output_grad, input, partial, parameters);
  check_launch(name);
  return chunks.count;
}

}  // namespace torchgraft::depthwise::cuda
