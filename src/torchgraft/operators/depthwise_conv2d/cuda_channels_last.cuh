// Forward and input gradient on NHWC images: lanes lie along channels, four a thread.
//
// Four channels are sixteen bytes in fp32 and eight in half precision, where sixteen would need twice the
// registers for sums and weights. A block owns up to 64 channels and a stretch of patches of the images; the
// weights of its channels are turned once into [tap][channel], fp32, in shared memory. Sources come straight
// from device memory: windows overlap inside a block, so that all but the first read of a source is served by
// L1.
//
// small_kernel_channels_last: k = 3, 5, 7, stride 1 and 2. A thread owns patches of 2 x 4 pixels, four
// patches one after the other; a source is read (k + 1)(k + 3) / 8 times, 3 for k = 3 and 10 for k = 7.
// Predicted: (128,144,56x56,k3) is bound by memory, 0.14 ms fp32, 0.08 bf16 (floors 0.113 and 0.056);
// (128,96,56x56,k7) by 49 multiply-adds and some 20 other instructions a result, 0.13 ms fp32 and bf16
// (floors 0.075 and 0.038). Measured on an H200: 0.17 and 0.19; 0.25 and 0.25: bf16 gains nothing, so it is
// not memory that bounds it but loads of eight bytes that wait for each other, and conversions.
//
// large_kernel_channels_last: any other kernel, stride 1. A thread owns eight pixels of a row, and the block
// takes the kernel row by row through shared memory, so that its size is not limited by it. Bound by
// multiply-adds: (64,128,56x56,k31) predicted 1.3 ms, measured
// 3.1 fp32 and 4.3 bf16: a load from L1 feeds too few multiply-adds.
#pragma once

#include "cuda_stencil.cuh"

namespace torchgraft::depthwise::cuda {

constexpr int kChannels = 4;  // of a thread
constexpr int kChannelsLastThreads = 256;
constexpr int kGroupsOfBlock = 16;  // of kChannels channels, at most

struct ChannelsLastParameters {
  int source_height, source_width, result_height, result_width;
  int first_source_y, first_source_x, first_result_y, first_result_x;  // origins of patch (0, 0)
  FastDivisor patches_y, patches_x;                                    // of an image
  int patches;                                                         // of all images
  int channels;
  int slices;  // of the channels; blockIdx.x counts them fastest
};

// A block's place: threadIdx.x is the group of channels, threadIdx.y the patch.
struct ChannelSlice {
  int first_channel, channels;  // of the block
  int channel;                  // first of the thread
  bool active;                  // whether the thread has channels
  int stretch;                  // of patches

  __device__ explicit ChannelSlice(const ChannelsLastParameters& parameters) {
    const int slice = static_cast<int>(blockIdx.x % static_cast<unsigned>(parameters.slices));
    stretch = static_cast<int>(blockIdx.x / static_cast<unsigned>(parameters.slices));
    first_channel = slice * static_cast<int>(blockDim.x) * kChannels;
    channels = min(static_cast<int>(blockDim.x) * kChannels, parameters.channels - first_channel);
    channel = first_channel + static_cast<int>(threadIdx.x) * kChannels;
    active = channel < parameters.channels;
  }
};

template <typename T, int kCount>
__device__ void load_channels(const T* pointer, accumulate_t<T> (&values)[kCount]) {
  const Vector<T, kCount> vector = *reinterpret_cast<const Vector<T, kCount>*>(pointer);
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = static_cast<accumulate_t<T>>(vector[i]);
}

template <typename T>
__device__ void store_channels(T* pointer, const accumulate_t<T> (&values)[kChannels]) {
  Vector<T, kChannels> vector;
#pragma unroll
  for (int i = 0; i < kChannels; ++i) vector[i] = static_cast<T>(values[i]);
  *reinterpret_cast<Vector<T, kChannels>*>(pointer) = vector;
}

template <typename T, typename Rows, typename Columns>
__global__ void __launch_bounds__(kChannelsLastThreads, 2)
    small_kernel_channels_last(const T* __restrict__ source, const T* __restrict__ weight,
                               const T* __restrict__ bias, T* __restrict__ result,
                               ChannelsLastParameters parameters, int patches_of_thread) {
  using Accumulate = accumulate_t<T>;
  constexpr int kKernel = Rows::kKernel;
  constexpr int kTaps = kKernel * kKernel;
  const ChannelSlice slice(parameters);
  const int pitch = static_cast<int>(blockDim.x) * kChannels;
  Accumulate* shared_weight = shared_memory<Accumulate>();

  const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
  const int threads = static_cast<int>(blockDim.x * blockDim.y);
  const T* slice_weight = weight + static_cast<int64_t>(slice.first_channel) * kTaps;
  for (int i = thread; i < slice.channels * kTaps; i += threads) {
    shared_weight[i % kTaps * pitch + i / kTaps] = static_cast<Accumulate>(slice_weight[i]);
  }
  __syncthreads();
  if (!slice.active) return;

  const Accumulate* thread_weight = shared_weight + threadIdx.x * kChannels;
  Accumulate start[kChannels] = {};
  if (bias != nullptr) {
#pragma unroll
    for (int i = 0; i < kChannels; ++i) start[i] = static_cast<Accumulate>(bias[slice.channel + i]);
  }

  for (int turn = 0; turn < patches_of_thread; ++turn) {
    const int64_t index =
        (static_cast<int64_t>(slice.stretch) * patches_of_thread + turn) * blockDim.y + threadIdx.y;
    if (index >= parameters.patches) return;
    const int patch = static_cast<int>(index);
    const int patch_row = parameters.patches_x.divide(patch);
    const int patch_x = patch - patch_row * parameters.patches_x.divisor();
    const int image = parameters.patches_y.divide(patch_row);
    const int patch_y = patch_row - image * parameters.patches_y.divisor();

    Accumulate sums[Rows::kPatch][Columns::kPatch][kChannels];
#pragma unroll
    for (int row = 0; row < Rows::kPatch; ++row) {
#pragma unroll
      for (int column = 0; column < Columns::kPatch; ++column) {
#pragma unroll
        for (int i = 0; i < kChannels; ++i) sums[row][column][i] = start[i];
      }
    }

    const int source_y = parameters.first_source_y + patch_y * Rows::kStep;
    const int source_x = parameters.first_source_x + patch_x * Columns::kStep;
    const T* source_image = source +
                            static_cast<int64_t>(image) * parameters.source_height * parameters.source_width *
                                parameters.channels +
                            slice.channel;
    // A whole k = 3 window is in flight at once; more would not fit the instruction cache or the registers.
#pragma unroll(kKernel == 3 ? Rows::kWindow : 1)
    for (int i = 0; i < Rows::kWindow; ++i) {
      const int y = source_y + i;
      if (y < 0 || y >= parameters.source_height) continue;
      const T* source_row =
          source_image + static_cast<int64_t>(y) * parameters.source_width * parameters.channels;
      Accumulate values[Columns::kWindow][kChannels];
#pragma unroll
      for (int j = 0; j < Columns::kWindow; ++j) {
        const int x = source_x + j;
        if (x >= 0 && x < parameters.source_width) {
          load_channels(source_row + static_cast<int64_t>(x) * parameters.channels, values[j]);
        } else {
#pragma unroll
          for (int k = 0; k < kChannels; ++k) values[j][k] = Accumulate(0);
        }
      }
#pragma unroll
      for (int row = 0; row < Rows::kPatch; ++row) {
        const int tap_row = Rows::tap(row, i);
        if (tap_row < 0 || tap_row >= kKernel) continue;
#pragma unroll
        for (int tap = 0; tap < kKernel; ++tap) {
          Accumulate taps[kChannels];
          load_channels(thread_weight + (tap_row * kKernel + tap) * pitch, taps);
#pragma unroll
          for (int j = 0; j < Columns::kWindow; ++j) {
#pragma unroll
            for (int column = 0; column < Columns::kPatch; ++column) {
              if (Columns::tap(column, j) != tap) continue;
#pragma unroll
              for (int k = 0; k < kChannels; ++k) sums[row][column][k] += taps[k] * values[j][k];
            }
          }
        }
      }
    }

    const int result_y = parameters.first_result_y + patch_y * Rows::kPatch;
    const int result_x = parameters.first_result_x + patch_x * Columns::kPatch;
    T* result_image = result +
                      static_cast<int64_t>(image) * parameters.result_height * parameters.result_width *
                          parameters.channels +
                      slice.channel;
#pragma unroll
    for (int row = 0; row < Rows::kPatch; ++row) {
      const int y = result_y + row;
      if (y < 0 || y >= parameters.result_height) continue;
      T* result_row = result_image + static_cast<int64_t>(y) * parameters.result_width * parameters.channels;
#pragma unroll
      for (int column = 0; column < Columns::kPatch; ++column) {
        const int x = result_x + column;
        if (x < 0 || x >= parameters.result_width) continue;
        store_channels(result_row + static_cast<int64_t>(x) * parameters.channels, sums[row][column]);
      }
    }
  }
}

constexpr int kLargeKernelThreads =
    192;                    // so that 168 registers may hold 32 sums and ten pixels of four channels
constexpr int kPixels = 8;  // of a thread, along a row
constexpr int kTapsAtATime = 2;
constexpr int kLargestKernelRow = 192;  // taps: 48 KB of shared memory for 64 channels

// kFlipped: the input gradient of stride 1 is the forward pass with the kernel turned around.
template <typename T, bool kFlipped>
__global__ void __launch_bounds__(kLargeKernelThreads, 2)
    large_kernel_channels_last(const T* __restrict__ source, const T* __restrict__ weight,
                               const T* __restrict__ bias, T* __restrict__ result,
                               ChannelsLastParameters parameters, int kernel_height, int kernel_width,
                               int padded_width) {
  using Accumulate = accumulate_t<T>;
  const ChannelSlice slice(parameters);
  const int pitch = static_cast<int>(blockDim.x) * kChannels;
  Accumulate* shared_weight = shared_memory<Accumulate>();
  const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
  const int threads = static_cast<int>(blockDim.x * blockDim.y);

  const int64_t index = static_cast<int64_t>(slice.stretch) * blockDim.y + threadIdx.y;
  const bool active = slice.active && index < parameters.patches;
  const int patch = active ? static_cast<int>(index) : 0;
  const int image_row = parameters.patches_x.divide(patch);
  const int patch_x = patch - image_row * parameters.patches_x.divisor();
  const int image = parameters.patches_y.divide(image_row);
  const int y = image_row - image * parameters.patches_y.divisor();
  const int source_x = parameters.first_source_x + patch_x * kPixels;
  const T* source_image =
      source +
      static_cast<int64_t>(image) * parameters.source_height * parameters.source_width * parameters.channels +
      slice.channel;

  Accumulate sums[kPixels][kChannels] = {};
  if (active && bias != nullptr) {
#pragma unroll
    for (int i = 0; i < kPixels; ++i) {
#pragma unroll
      for (int k = 0; k < kChannels; ++k) sums[i][k] = static_cast<Accumulate>(bias[slice.channel + k]);
    }
  }

  for (int row = 0; row < kernel_height; ++row) {
    __syncthreads();
    for (int i = thread; i < slice.channels * padded_width; i += threads) {
      const int channel = i / padded_width;
      const int column = i % padded_width;
      const int64_t first_tap =
          static_cast<int64_t>(slice.first_channel + channel) * kernel_height * kernel_width;
      const int tap_row = kFlipped ? kernel_height - 1 - row : row;
      const int tap_column = kFlipped ? kernel_width - 1 - column : column;
      shared_weight[column * pitch + channel] =
          column < kernel_width
              ? static_cast<Accumulate>(
                    weight[first_tap + static_cast<int64_t>(tap_row) * kernel_width + tap_column])
              : Accumulate(0);
    }
    __syncthreads();
    const int source_y = parameters.first_source_y + y + row;
    if (!active || source_y < 0 || source_y >= parameters.source_height) continue;

    const T* source_row =
        source_image + static_cast<int64_t>(source_y) * parameters.source_width * parameters.channels;
    const auto load = [&](int x, Accumulate(&values)[kChannels]) {
      if (x >= 0 && x < parameters.source_width) {
        load_channels(source_row + static_cast<int64_t>(x) * parameters.channels, values);
      } else {
#pragma unroll
        for (int k = 0; k < kChannels; ++k) values[k] = Accumulate(0);
      }
    };
    // Pixels that the next taps of all eight results lie on. Five turns rename ten of them all the way round,
    // so that none need be moved.
    Accumulate held[kPixels + kTapsAtATime][kChannels];
#pragma unroll
    for (int i = 0; i < kPixels; ++i) load(source_x + i, held[i]);
    const auto take_taps = [&](int column, int count) {
#pragma unroll
      for (int i = 0; i < kTapsAtATime; ++i) load(source_x + column + kPixels + i, held[kPixels + i]);
#pragma unroll
      for (int tap = 0; tap < kTapsAtATime; ++tap) {
        if (tap >= count) break;
        Accumulate taps[kChannels];
        load_channels(shared_weight + (column + tap) * pitch + threadIdx.x * kChannels, taps);
#pragma unroll
        for (int i = 0; i < kPixels; ++i) {
#pragma unroll
          for (int k = 0; k < kChannels; ++k) sums[i][k] += taps[k] * held[i + tap][k];
        }
      }
#pragma unroll
      for (int i = 0; i < kPixels; ++i) {
#pragma unroll
        for (int k = 0; k < kChannels; ++k) held[i][k] = held[i + kTapsAtATime][k];
      }
    };
    int column = 0;
#pragma unroll 5
    for (; column + kTapsAtATime <= kernel_width; column += kTapsAtATime) take_taps(column, kTapsAtATime);
    // The zeros behind the last tap are not multiplied: they would make NaN of what is not finite there.
    if (column < kernel_width) take_taps(column, kernel_width - column);
  }

  if (!active) return;
  T* result_row = result +
                  ((static_cast<int64_t>(image) * parameters.result_height + y) * parameters.result_width) *
                      parameters.channels +
                  slice.channel;
#pragma unroll
  for (int i = 0; i < kPixels; ++i) {
    const int x = patch_x * kPixels + i;
    if (x < parameters.result_width) {
      store_channels(result_row + static_cast<int64_t>(x) * parameters.channels, sums[i]);
    }
  }
}

// Whether lanes may take four channels each, and 32 bits count the patches; `images` are all tensors in NHWC.
template <typename T, typename... Images>
bool can_take_four_channels(const Geometry& geometry, const Images*... images) {
  constexpr int64_t kMostPixels = int64_t{1} << 30;
  return geometry.channels % kChannels == 0 && geometry.multiplier == 1 &&
         geometry.batch * geometry.input_pixels() < kMostPixels &&
         geometry.batch * geometry.output_pixels() < kMostPixels &&
         (is_aligned(images, sizeof(T) * kChannels) && ...);
}

struct ChannelsLastLaunch {
  ChannelsLastParameters parameters;
  dim3 threads;
};

// Channels are cut into slices of equal size; what threads of a block remain lie along patches.
inline ChannelsLastLaunch channels_last_launch(const Geometry& geometry, bool transposed, int threads,
                                               int patches_y, int patches_x, int first_source_y,
                                               int first_source_x, int first_result_y, int first_result_x) {
  const Extent& height = geometry.height;
  const Extent& width = geometry.width;
  const int channels = static_cast<int>(geometry.channels);
  const int groups = channels / kChannels;
  const int groups_of_block = ceil_divide(groups, ceil_divide(groups, kGroupsOfBlock));
  return {{static_cast<int>(transposed ? height.output : height.input),
           static_cast<int>(transposed ? width.output : width.input),
           static_cast<int>(transposed ? height.input : height.output),
           static_cast<int>(transposed ? width.input : width.output), first_source_y, first_source_x,
           first_result_y, first_result_x, FastDivisor(patches_y), FastDivisor(patches_x),
           static_cast<int>(geometry.batch * patches_y * patches_x), channels,
           ceil_divide(groups, groups_of_block)},
          dim3(groups_of_block, threads / groups_of_block)};
}

inline int64_t channels_last_blocks(const ChannelsLastLaunch& launch, int patches_of_thread) {
  return ceil_divide(int64_t{launch.parameters.patches}, int64_t{launch.threads.y} * patches_of_thread) *
         launch.parameters.slices;
}

// The more patches, the smaller a part of a block's work is turning the weights; but blocks must remain for
// all of a large device.
inline int patches_of_a_thread(const ChannelsLastLaunch& launch) {
  constexpr int64_t kBlocks = 2048;
  return static_cast<int>(std::clamp<int64_t>(channels_last_blocks(launch, 1) / kBlocks, 1, 4));
}

template <typename T, typename Rows, typename Columns>
void launch_small_kernel_channels_last(const T* source, const T* weight, const T* bias, T* result,
                                       const Geometry& geometry, cudaStream_t stream) {
  const Extent& height = geometry.height;
  const Extent& width = geometry.width;
  const int padding_y = static_cast<int>(height.padding);
  const int padding_x = static_cast<int>(width.padding);
  const ChannelsLastLaunch launch = channels_last_launch(
      geometry, Rows::kTransposed, kChannelsLastThreads,
      Rows::patches(static_cast<int>(Rows::kTransposed ? height.input : height.output), padding_y),
      Columns::patches(static_cast<int>(Rows::kTransposed ? width.input : width.output), padding_x),
      Rows::first_source(padding_y), Columns::first_source(padding_x), Rows::first_result(padding_y),
      Columns::first_result(padding_x));
  const int patches_of_thread = patches_of_a_thread(launch);
  const char* name = Rows::kTransposed ? "depthwise_conv2d_input_grad" : "depthwise_conv2d";
  const size_t bytes = sizeof(accumulate_t<T>) * Rows::kKernel * Rows::kKernel * launch.threads.x * kChannels;
  small_kernel_channels_last<T, Rows, Columns>
      <<<grid_of(channels_last_blocks(launch, patches_of_thread), name), launch.threads, bytes, stream>>>(
          source, weight, bias, result, launch.parameters, patches_of_thread);
  check_launch(name);
}

template <typename T, bool kFlipped>
void launch_large_kernel_channels_last(const T* source, const T* weight, const T* bias, T* result,
                                       const Geometry& geometry, cudaStream_t stream) {
  const Extent& height = geometry.height;
  const Extent& width = geometry.width;
  const int kernel_height = static_cast<int>(height.kernel);
  const int kernel_width = static_cast<int>(width.kernel);
  const int padded_width = ceil_divide(kernel_width, kTapsAtATime) * kTapsAtATime;
  const int padding_y = static_cast<int>(kFlipped ? height.kernel - 1 - height.padding : height.padding);
  const int padding_x = static_cast<int>(kFlipped ? width.kernel - 1 - width.padding : width.padding);
  const ChannelsLastLaunch launch = channels_last_launch(
      geometry, kFlipped, kLargeKernelThreads, static_cast<int>(kFlipped ? height.input : height.output),
      ceil_divide(static_cast<int>(kFlipped ? width.input : width.output), kPixels), -padding_y, -padding_x,
      0, 0);
  const char* name = kFlipped ? "depthwise_conv2d_input_grad" : "depthwise_conv2d";
  const size_t bytes = sizeof(accumulate_t<T>) * padded_width * launch.threads.x * kChannels;
  large_kernel_channels_last<T, kFlipped>
      <<<grid_of(channels_last_blocks(launch, 1), name), launch.threads, bytes, stream>>>(
          source, weight, bias, result, launch.parameters, kernel_height, kernel_width, padded_width);
  check_launch(name);
}

}  // namespace torchgraft::depthwise::cuda
