// Weight gradient for any geometry, layout and dtype, 32 bits inside an image.
//
// A block owns some channels, a group of 3 x 3 or 1 x 5 taps and a chunk of the output pixels of all images;
// a thread owns that group of taps of one channel, or of four neighbours, at every so-manyeth pixel of the
// chunk, with its sums in registers. In NHWC a power of two of lanes lies along channels, in NCHW all lie
// along pixels. At the end lanes of one channel are added up by shuffles and warps through shared memory, in
// a fixed order. Where a block can take all pixels of its channels in a few dozen turns there is one chunk,
// and the block writes the gradient itself: for small problems a second pass costs more than parallelism
// gains. Else there are enough chunks to fill a large device, added up by a second pass
// (cuda_weight_grad_sums.cuh).
//
// Every element of the output gradient is read once a group of taps, every element of the input once a tap,
// from L1 but for the first time in a block. Bound by instructions, some 60 a pixel and channel for 3 x 3
// taps, 90 for four channels: (64,96,56x56,k3,dilation 2) predicted 0.05 ms fp32 and bf16 (floors 0.037 and
// 0.019).

#include "cuda_weight_grad_general.h"

#include "cuda_channels_last.cuh"
#include "cuda_index.cuh"
#include "cuda_weight_grad_sums.cuh"

namespace torchgraft::depthwise::cuda {
namespace {

// What lies between neighbours, in elements; a row and a pixel are of the same image.
struct ImagePitches {
  int image, channel, row, pixel;
};

struct GeneralWeightGrad {
  int input_height, input_width;
  FastDivisor output_height, output_width;
  int stride_y, stride_x, padding_y, padding_x, dilation_y, dilation_x;
  int kernel_height, kernel_width;
  FastDivisor multiplier;
  int output_channels;
  ImagePitches input, output_grad;
  int row_step, column_step;          // elements of the input between two taps
  FastDivisor slices;                 // of the channels
  FastDivisor groups, column_groups;  // of the taps, in all and of a kernel row
  int lane_bits;                      // 2**lane_bits lanes lie along channels
  int pixels, pixels_of_chunk;
  bool single_chunk;
};

constexpr int kGeneralThreads = 512;  // at most

template <typename T, int kCount, int kTapRows, int kTapColumns>
__global__ void __launch_bounds__(kGeneralThreads)
    weight_grad_general(const T* __restrict__ output_grad, const T* __restrict__ input,
                        T* __restrict__ weight_grad, accumulate_t<T>* __restrict__ partial,
                        const __grid_constant__ GeneralWeightGrad parameters) {
  using Accumulate = accumulate_t<T>;
  constexpr int kGroupTaps = kTapRows * kTapColumns;
  // So that some twenty loads of a thread are in flight.
  constexpr int kPixelsAtATime = kCount > 1 ? 1 : kTapRows > 1 ? 2 : 4;
  int slice = static_cast<int>(blockIdx.x);
  int group = split(slice, parameters.slices);
  const int chunk = split(group, parameters.groups);
  const int group_row = parameters.column_groups.divide(group);
  const int first_row = group_row * kTapRows;
  const int first_column = (group - group_row * parameters.column_groups.divisor()) * kTapColumns;

  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int lanes = 1 << parameters.lane_bits;
  const int channel_lane = thread & (lanes - 1);
  const int first_channel = (slice << parameters.lane_bits) * kCount;
  const int channel = first_channel + channel_lane * kCount;

  Accumulate sums[kTapRows][kTapColumns][kCount] = {};
  if (channel < parameters.output_channels) {
    const T* channel_grad =
        kept(output_grad + static_cast<int64_t>(channel) * parameters.output_grad.channel);
    const T* channel_input =
        kept(input + static_cast<int64_t>(parameters.multiplier.divide(channel)) * parameters.input.channel);
    const int begin = chunk * parameters.pixels_of_chunk;
    const int end = min(begin + parameters.pixels_of_chunk, parameters.pixels);
    const int first_y = first_row * parameters.dilation_y - parameters.padding_y;
    const int first_x = first_column * parameters.dilation_x - parameters.padding_x;
    const int pixel_step = threads >> parameters.lane_bits;
#pragma unroll 1
    for (int first = begin + (thread >> parameters.lane_bits); first < end;
         first += kPixelsAtATime * pixel_step) {
      Accumulate grads[kPixelsAtATime][kCount] = {};
      Accumulate values[kPixelsAtATime][kTapRows][kTapColumns][kCount] = {};
#pragma unroll
      for (int turn = 0; turn < kPixelsAtATime; ++turn) {
        int x = first + turn * pixel_step;
        const bool is_pixel = turn == 0 || x < end;
        int y = split(x, parameters.output_width);
        const int image = split(y, parameters.output_height);
        if (is_pixel) {
          load_channels(channel_grad + static_cast<int64_t>(image) * parameters.output_grad.image +
                            (y * parameters.output_grad.row + x * parameters.output_grad.pixel),
                        grads[turn]);
        }
        const int column = x * parameters.stride_x + first_x;
        const int row = y * parameters.stride_y + first_y;
        const T* window = kept(channel_input + static_cast<int64_t>(image) * parameters.input.image);
        const int offset = row * parameters.input.row + column * parameters.input.pixel;
#pragma unroll
        for (int i = 0; i < kTapRows; ++i) {
          const bool is_row = is_pixel && is_inside(row + i * parameters.dilation_y, parameters.input_height);
#pragma unroll
          for (int j = 0; j < kTapColumns; ++j) {
            if (is_row && is_inside(column + j * parameters.dilation_x, parameters.input_width)) {
              load_channels(window + (offset + i * parameters.row_step + j * parameters.column_step),
                            values[turn][i][j]);
            }
          }
        }
      }
      // Taps beside the kernel are summed too, and left.
#pragma unroll
      for (int turn = 0; turn < kPixelsAtATime; ++turn) {
#pragma unroll
        for (int i = 0; i < kTapRows; ++i) {
#pragma unroll
          for (int j = 0; j < kTapColumns; ++j) {
#pragma unroll
            for (int k = 0; k < kCount; ++k) sums[i][j][k] += grads[turn][k] * values[turn][i][j][k];
          }
        }
      }
    }
  }

  // Lanes of one channel, then warps: shared[warp][tap][channel].
  constexpr unsigned kAllLanes = 0xffffffff;
  Accumulate* shared = shared_memory<Accumulate>();
  const int channels = lanes * kCount;
  const int warp_sums = kGroupTaps * channels;
#pragma unroll 1
  for (int distance = 16; distance >= lanes; distance /= 2) {
#pragma unroll
    for (int i = 0; i < kTapRows; ++i) {
#pragma unroll
      for (int j = 0; j < kTapColumns; ++j) {
#pragma unroll
        for (int k = 0; k < kCount; ++k) {
          sums[i][j][k] += __shfl_down_sync(kAllLanes, sums[i][j][k], distance);
        }
      }
    }
  }
  if (thread % 32 < lanes) {
    Accumulate* own = shared + thread / 32 * warp_sums + channel_lane * kCount;
#pragma unroll
    for (int i = 0; i < kTapRows; ++i) {
#pragma unroll
      for (int j = 0; j < kTapColumns; ++j) {
#pragma unroll
        for (int k = 0; k < kCount; ++k) own[(i * kTapColumns + j) * channels + k] = sums[i][j][k];
      }
    }
  }
  __syncthreads();
#pragma unroll 1
  for (int i = thread; i < warp_sums; i += threads) {
    // Neighbouring threads have neighbouring taps of one channel, as they lie in device memory.
    const int block_channel = i / kGroupTaps;
    const int tap = i % kGroupTaps;
    const int row = first_row + tap / kTapColumns;
    const int column = first_column + tap % kTapColumns;
    const int output_channel = first_channel + block_channel;
    if (output_channel >= parameters.output_channels || row >= parameters.kernel_height ||
        column >= parameters.kernel_width) {
      continue;
    }
    const Accumulate sum = sum_in_order(shared + tap * channels + block_channel, threads / 32, warp_sums);
    const int taps = parameters.kernel_height * parameters.kernel_width;
    const int64_t index =
        static_cast<int64_t>(output_channel) * taps + row * parameters.kernel_width + column;
    if (parameters.single_chunk) {
      weight_grad[index] = static_cast<T>(sum);
    } else {
      partial[static_cast<int64_t>(chunk) * parameters.output_channels * taps + index] = sum;
    }
  }
}

// How the work is cut.
struct GeneralPlan {
  int lane_bits, slices, threads;
  Chunks chunks;  // of pixels
};

// The plan that takes the fewest cycles by a rough count. `count`: channels of a thread; `groups`: of `taps`
// taps each.
GeneralPlan make_general_plan(const Geometry& geometry, Layout layout, int count, int64_t groups, int taps) {
  constexpr int kManyThreads = 256;  // where there are many blocks
  constexpr int64_t kMultiprocessors = 132;
  constexpr int64_t kWantedBlocks = 16 * kMultiprocessors;
  constexpr int64_t kLeastTurns = 8;
  constexpr int64_t kSecondPass = 6000;  // cycles
  constexpr int64_t kLoadCycles = 300;   // of a load that waits for the second-level cache
  constexpr int64_t kWarpsOfDevice = 32 * kMultiprocessors;
  const int64_t pixels = geometry.batch * geometry.output_pixels();
  const int64_t lanes = ceil_divide<int64_t>(geometry.output_channels(), count);
  const auto slices_of = [lanes](int lane_bits) { return ceil_divide(lanes, int64_t{1} << lane_bits); };
  const auto cycles = [&](int lane_bits, int threads, const Chunks& chunks) {
    const int64_t turns = ceil_divide<int64_t>(chunks.units_of_chunk, threads >> lane_bits);
    const int64_t warps = slices_of(lane_bits) * groups * chunks.count * (threads / 32);
    // A load takes a cycle of the first-level cache for each line that its warp touches.
    const int64_t lines = layout == Layout::channels_last ? std::max(32 >> lane_bits, count) : 2;
    const int64_t busy = (taps + 1) * std::max<int64_t>(lines, 2) * warps / kMultiprocessors;
    const int64_t waiting = kLoadCycles * std::max<int64_t>(1, warps / kWarpsOfDevice);
    return turns * std::max(busy, waiting) + (chunks.count > 1 ? kSecondPass : 0);
  };
  int most_bits = 0;
  if (layout == Layout::channels_last) {
    // Few lanes of the last slice are idle.
    const auto idle = [&](int lane_bits) { return (slices_of(lane_bits) << lane_bits) - lanes; };
    most_bits = 5;
    while (most_bits > 0 && idle(most_bits) * 8 > lanes && idle(most_bits) > idle(most_bits - 1)) --most_bits;
  }
  const int64_t blocks_of_chunk = slices_of(most_bits) * groups;
  const Chunks chunks =
      make_chunks(pixels, (kManyThreads >> most_bits) * kLeastTurns,
                  std::min(most_chunks(geometry, layout), ceil_divide(kWantedBlocks, blocks_of_chunk)));
  GeneralPlan best = {most_bits, static_cast<int>(slices_of(most_bits)), kManyThreads, chunks};
  int64_t least = cycles(most_bits, kManyThreads, chunks);
  const Chunks one_chunk = make_chunks(pixels, pixels, 1);
  for (int lane_bits = most_bits; lane_bits >= 0; --lane_bits) {
    const int64_t needed = cycles(lane_bits, kGeneralThreads, one_chunk);
    if (needed >= least) continue;
    least = needed;
    best = {lane_bits, static_cast<int>(slices_of(lane_bits)), kGeneralThreads, one_chunk};
  }
  return best;
}

template <typename T, int kCount, int kTapRows, int kTapColumns>
void launch(const T* output_grad, const T* input, T* weight_grad, accumulate_t<T>* partial,
            const Geometry& geometry, Layout layout, cudaStream_t stream) {
  const char* name = "depthwise_conv2d_weight_grad";
  const Extent& height = geometry.height;
  const Extent& width = geometry.width;
  const int64_t column_groups = ceil_divide<int64_t>(width.kernel, kTapColumns);
  const int64_t groups = column_groups * ceil_divide<int64_t>(height.kernel, kTapRows);
  const GeneralPlan plan = make_general_plan(geometry, layout, kCount, groups, kTapRows * kTapColumns);
  const auto number = [](int64_t value) { return static_cast<int>(value); };
  const auto pitches = [&](int64_t channels, int64_t image_height, int64_t image_width) {
    const int64_t plane = image_height * image_width;
    const int image = number(channels * plane);
    return layout == Layout::channels_last
               ? ImagePitches{image, 1, number(image_width * channels), number(channels)}
               : ImagePitches{image, number(plane), number(image_width), 1};
  };
  const ImagePitches input_pitches = pitches(geometry.channels, height.input, width.input);
  const GeneralWeightGrad parameters = {number(height.input),
                                        number(width.input),
                                        FastDivisor(number(height.output)),
                                        FastDivisor(number(width.output)),
                                        number(height.stride),
                                        number(width.stride),
                                        number(height.padding),
                                        number(width.padding),
                                        number(height.dilation),
                                        number(width.dilation),
                                        number(height.kernel),
                                        number(width.kernel),
                                        FastDivisor(number(geometry.multiplier)),
                                        number(geometry.output_channels()),
                                        input_pitches,
                                        pitches(geometry.output_channels(), height.output, width.output),
                                        number(height.dilation * input_pitches.row),
                                        number(width.dilation * input_pitches.pixel),
                                        FastDivisor(plan.slices),
                                        FastDivisor(number(groups)),
                                        FastDivisor(number(column_groups)),
                                        plan.lane_bits,
                                        number(plan.chunks.units),
                                        number(plan.chunks.units_of_chunk),
                                        plan.chunks.count == 1};
  const int64_t blocks = checked_product(plan.slices * groups, plan.chunks.count, name);
  const size_t bytes = sizeof(accumulate_t<T>) * kTapRows * kTapColumns * kCount *
                       static_cast<size_t>((plan.threads / 32) << plan.lane_bits);
  weight_grad_general<T, kCount, kTapRows, kTapColumns>
      <<<grid_of(blocks, name), plan.threads, bytes, stream>>>(output_grad, input, weight_grad, partial,
                                                               parameters);
  check_launch(name);
  if (plan.chunks.count > 1) launch_sum_chunks(partial, weight_grad, geometry, plan.chunks.count, stream);
}

}  // namespace

bool serves_weight_grad_general(const Geometry& geometry) {
  constexpr int64_t kLimit = int64_t{1} << 31;
  constexpr int64_t kMostPixels = int64_t{1} << 30;
  if (!positions_fit_32(geometry)) return false;
  // In any layout, an offset from the first element of an image to a source, be it in the padding.
  const auto span = [](const Extent& extent) {
    constexpr int64_t kMoreTaps = 8;  // than the kernel has, of groups of taps
    return std::max(extent.input, extent.output * extent.stride) + extent.padding +
           (extent.kernel + kMoreTaps) * extent.dilation;
  };
  const int64_t rows = span(geometry.height);
  const int64_t columns = span(geometry.width);
  return geometry.batch * geometry.output_pixels() < kMostPixels && rows < kLimit && columns < kLimit &&
         rows * columns < kLimit / geometry.output_channels() && geometry.taps() < kLimit;
}

template <typename T>
void launch_weight_grad_general(const T* output_grad, const T* input, T* weight_grad,
                                accumulate_t<T>* partial, const Geometry& geometry, Layout layout,
                                cudaStream_t stream) {
  const bool narrow = geometry.width.kernel <= 3;
  if constexpr (!std::is_same_v<T, double>) {
    if (layout == Layout::channels_last && can_take_four_channels<T>(geometry, output_grad, input)) {
      if (narrow) {
        launch<T, kChannels, 3, 3>(output_grad, input, weight_grad, partial, geometry, layout, stream);
      } else {
        launch<T, kChannels, 1, 5>(output_grad, input, weight_grad, partial, geometry, layout, stream);
      }
      return;
    }
  }
  if (narrow) {
    launch<T, 1, 3, 3>(output_grad, input, weight_grad, partial, geometry, layout, stream);
  } else {
    launch<T, 1, 1, 5>(output_grad, input, weight_grad, partial, geometry, layout, stream);
  }
}

template void launch_weight_grad_general(const double*, const double*, double*, double*, const Geometry&,
                                         Layout, cudaStream_t);
template void launch_weight_grad_general(const float*, const float*, float*, float*, const Geometry&, Layout,
                                         cudaStream_t);
template void launch_weight_grad_general(const Half*, const Half*, Half*, float*, const Geometry&, Layout,
                                         cudaStream_t);
template void launch_weight_grad_general(const BFloat16*, const BFloat16*, BFloat16*, float*, const Geometry&,
                                         Layout, cudaStream_t);

}  // namespace torchgraft::depthwise::cuda
