// Weight gradient, first pass, for every geometry, layout and dtype in 64 bits: what is too large for all
// other kernels.
//
// A block owns one output channel, a chunk of its output pixels and up to eight groups of four taps of a
// kernel row; a warp owns one group, and warps with the same group share the pixels. Lanes lie along
// neighbouring pixels, in either layout. Every element is read once for each tap, from L1 but for the first
// time in a block, and from L2 once for eight groups. Bound: instructions, some thirty a tap.
#include "../chunks.cuh"
#include "../kernels.h"

namespace torchgraft::depthwise::cuda {

constexpr int kDirectTaps = 4;
constexpr int kDirectWarps = 8;

struct DirectWeightGrad {
  int64_t input_height, input_width, output_height, output_width;
  int64_t stride_y, stride_x, padding_y, padding_x, dilation_y, dilation_x;
  int64_t kernel_height, kernel_width;
  int64_t channels, multiplier, output_channels;
  // Elements between neighbouring pixels, and between neighbouring channels.
  int64_t input_pixel, input_channel, output_pixel, output_channel;
  Chunks chunks;          // of output pixels of a channel
  int64_t column_groups;  // of taps, in a kernel row
  int groups_of_block;    // at most kDirectWarps
  int64_t tap_blocks;
};

template <typename T>
__global__ void __launch_bounds__(kDirectWarps * 32)
    gather_weight_grad_any(const T* __restrict__ output_grad, const T* __restrict__ input,
                           accumulate_t<T>* __restrict__ partial, DirectWeightGrad parameters) {
  using Accumulate = accumulate_t<T>;
  int64_t rest = blockIdx.x;
  const int64_t channel = rest % parameters.output_channels;
  rest /= parameters.output_channels;
  const int64_t tap_block = rest % parameters.tap_blocks;
  const int64_t chunk = rest / parameters.tap_blocks;

  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int pixel_slices = kDirectWarps / parameters.groups_of_block;
  const int pixel_slice = warp / parameters.groups_of_block;
  const int64_t group = tap_block * parameters.groups_of_block + warp % parameters.groups_of_block;
  const int64_t tap_row = group / parameters.column_groups;
  const int64_t first_column = group % parameters.column_groups * kDirectTaps;

  Accumulate sums[kDirectTaps] = {};
  if (tap_row < parameters.kernel_height && pixel_slice < pixel_slices) {
    const int64_t output_plane = parameters.output_height * parameters.output_width;
    const int64_t input_plane = parameters.input_height * parameters.input_width;
    const int64_t begin = chunk * parameters.chunks.units_of_chunk;
    const int64_t end = min(begin + parameters.chunks.units_of_chunk, parameters.chunks.units);
    for (int64_t index = begin + pixel_slice * 32 + lane; index < end; index += pixel_slices * 32) {
      const int64_t image = index / output_plane;
      const int64_t pixel = index - image * output_plane;
      const int64_t y = pixel / parameters.output_width;
      const int64_t x = pixel - y * parameters.output_width;
      const int64_t source_y =
          y * parameters.stride_y - parameters.padding_y + tap_row * parameters.dilation_y;
      if (source_y < 0 || source_y >= parameters.input_height) continue;
      const Accumulate grad = static_cast<Accumulate>(
          output_grad[image * parameters.output_channels * output_plane +
                      channel * parameters.output_channel + pixel * parameters.output_pixel]);
      const T* source_row = input + image * parameters.channels * input_plane +
                            channel / parameters.multiplier * parameters.input_channel +
                            source_y * parameters.input_width * parameters.input_pixel;
      const int64_t source_x =
          x * parameters.stride_x - parameters.padding_x + first_column * parameters.dilation_x;
#pragma unroll
      for (int tap = 0; tap < kDirectTaps; ++tap) {
        const int64_t position = source_x + tap * parameters.dilation_x;
        if (first_column + tap < parameters.kernel_width && position >= 0 &&
            position < parameters.input_width) {
          sums[tap] += grad * static_cast<Accumulate>(source_row[position * parameters.input_pixel]);
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
  const int64_t own_group = tap_block * parameters.groups_of_block + i / kDirectTaps;
  const int64_t row = own_group / parameters.column_groups;
  const int64_t column = own_group % parameters.column_groups * kDirectTaps + i % kDirectTaps;
  if (row >= parameters.kernel_height || column >= parameters.kernel_width) return;
  const int64_t taps = parameters.kernel_height * parameters.kernel_width;
  partial[(chunk * parameters.output_channels + channel) * taps + row * parameters.kernel_width + column] =
      sum_in_order(shared + i, pixel_slices, taps_of_block);
}

template <typename T>
void launch_gather_weight_grad_any(const WeightGrad<T>& pass) {
  const auto& [output_grad, input, weight_grad, workspace, geometry, layout, stream] = pass;
  const char* name = "depthwise_conv2d_weight_grad";
  const Extent& height = geometry.height;
  const Extent& width = geometry.width;
  const int64_t column_groups = ceil_divide<int64_t>(width.kernel, kDirectTaps);
  const int64_t groups = column_groups * height.kernel;
  const int64_t tap_blocks = ceil_divide<int64_t>(groups, kDirectWarps);
  const int64_t groups_of_block = ceil_divide(groups, tap_blocks);
  // A lane has at least eight pixels, against the cost of adding up a block.
  const Chunks chunks = make_chunks(geometry.batch * geometry.output_pixels(),
                                    8 * 32 * kDirectWarps / groups_of_block, most_chunks(geometry, layout));
  const bool channels_last = layout == Layout::channels_last;
  const DirectWeightGrad parameters = {height.input,
                                       width.input,
                                       height.output,
                                       width.output,
                                       height.stride,
                                       width.stride,
                                       height.padding,
                                       width.padding,
                                       height.dilation,
                                       width.dilation,
                                       height.kernel,
                                       width.kernel,
                                       geometry.channels,
                                       geometry.multiplier,
                                       geometry.output_channels(),
                                       channels_last ? geometry.channels : 1,
                                       channels_last ? 1 : geometry.input_pixels(),
                                       channels_last ? geometry.output_channels() : 1,
                                       channels_last ? 1 : geometry.output_pixels(),
                                       chunks,
                                       column_groups,
                                       static_cast<int>(groups_of_block),
                                       tap_blocks};
  const int64_t blocks = checked_product(geometry.output_channels() * tap_blocks, chunks.count, name);
  gather_weight_grad_any<T>
      <<<grid_of(blocks, name), kDirectWarps * 32, sizeof(accumulate_t<T>) * kDirectWarps * kDirectTaps,
         stream>>>(output_grad, input, workspace, parameters);
  check_launch(name);
  launch_sum_chunks(workspace, weight_grad, geometry, chunks.count, stream);
}

template void launch_gather_weight_grad_any(const WeightGrad<double>&);
template void launch_gather_weight_grad_any(const WeightGrad<float>&);
template void launch_gather_weight_grad_any(const WeightGrad<Half>&);
template void launch_gather_weight_grad_any(const WeightGrad<BFloat16>&);

}  // namespace torchgraft::depthwise::cuda
