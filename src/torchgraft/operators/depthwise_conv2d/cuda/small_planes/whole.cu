// Forward and input gradient, float32, NCHW planes of 7 x 7 and 14 x 14 under kernels so large that every
// result meets every source: plane * plane multiply-adds, and none with padding.
//
// A block owns 32 images of some neighbouring channels: their planes, of which each image's are one run of
// memory, lie in shared memory, and so do the taps that join any two pixels. A warp owns some rows of results
// of one channel, and a lane those of one image; images are an odd number of words apart, so that lanes read
// from 32 different banks, and taps are the same for all lanes. A lane reads a row of sources and for each of
// its rows of results a row of taps, four at a time: 21 and 28 accesses to shared memory feed 49 * 7 and 196
// * 2 multiply-adds. Results take the place of the sources when all warps have read.
//
// Predicted on an H200, bound by multiply-adds: (64,1024,7x7,k13) 5 us of them and 6 of memory, one after the
// other: 18 us. (64,512,14x14,k27) 42 us of them, 60 in all. Measured: 21 and 84 us, where
// tiles_correlate took 147 and 334.

#include <torchgraft/async_copy.cuh>

#include "../kernels.h"
#include "supports.h"

namespace torchgraft::depthwise::cuda {
namespace {

template <int kSideLength, int kRowCount, int kChannelCount, int kBlockCount>
struct WholePlanes {
  static constexpr int kSide = kSideLength;
  static constexpr int kRows = kRowCount;          // of results of a lane
  static constexpr int kChannels = kChannelCount;  // of a block
  static constexpr int kBlocks = kBlockCount;      // of a multiprocessor, which leave a lane its registers
  static constexpr int kRowGroups = kSide / kRows;
  static_assert(kSide % kRows == 0);
  static constexpr int kWarps = kRowGroups * kChannels;
  static constexpr int kImages = 32;  // of a block, a lane each
  static constexpr int kPixels = kSide * kSide;
  static constexpr int kImagePitch = (kChannels * kPixels) | 1;
  // Distances between a result and a source, along one direction, and elements between rows of taps.
  static constexpr int kDistances = 2 * kSide - 1;
  static constexpr int kTapPitch = ceil_divide(kDistances, 4) * 4;
  static constexpr int kTaps = kDistances * kTapPitch;  // of a channel
  static constexpr int kBytes = (kChannels * kTaps + kImages * kImagePitch) * static_cast<int>(sizeof(float));
  static_assert(kBytes <= 48 * 1024);
};

struct WholePlanesParameters {
  int images, channels, chunks;
  int kernel_width, taps;
  int first_tap;  // of distance -(side - 1) along both directions
  bool flipped;
};

template <typename Shape>
__global__ void __launch_bounds__(Shape::kWarps * 32, Shape::kBlocks)
    small_planes_whole(const float* __restrict__ source, Rounded<float> weight, Rounded<float> bias,
                       float* __restrict__ result, WholePlanesParameters parameters) {
  constexpr int kSide = Shape::kSide;
  constexpr int kThreads = Shape::kWarps * 32;
  float* const taps = shared_memory<float>();
  float* const tile = taps + Shape::kChannels * Shape::kTaps;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int group = static_cast<int>(blockIdx.x) / parameters.chunks;
  const int first_image = (static_cast<int>(blockIdx.x) - group * parameters.chunks) * Shape::kImages;
  const int images = min(Shape::kImages, parameters.images - first_image);
  const int first_channel = group * Shape::kChannels;
  const int channels = min(Shape::kChannels, parameters.channels - first_channel);
  const int run = channels * Shape::kPixels;  // of an image
  const int64_t image_elements = static_cast<int64_t>(parameters.channels) * Shape::kPixels;
  const int64_t first_element =
      first_image * image_elements + static_cast<int64_t>(first_channel) * Shape::kPixels;

  for (int image = warp; image < images; image += Shape::kWarps) {
    const float* const from = source + first_element + image * image_elements;
#pragma unroll 4
    for (int i = lane; i < run; i += 32)
      copy_async<sizeof(float)>(tile + image * Shape::kImagePitch + i, from + i);
  }
  commit_copies();
  const Rounded<float> block_weight = weight + static_cast<int64_t>(first_channel) * parameters.taps;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < channels * Shape::kTaps; i += kThreads) {
    const int channel = i / Shape::kTaps;
    const int row = (i - channel * Shape::kTaps) / Shape::kTapPitch;
    const int column = i % Shape::kTapPitch;
    const int tap = parameters.first_tap + row * parameters.kernel_width + column;
    taps[i] =
        column < Shape::kDistances
            ? block_weight[channel * parameters.taps + (parameters.flipped ? parameters.taps - 1 - tap : tap)]
            : 0.F;
  }
  wait_for_copies<0>();
  __syncthreads();

  const int channel = warp / Shape::kRowGroups;
  const int first_row = (warp - channel * Shape::kRowGroups) * Shape::kRows;
  float* const plane = tile + lane * Shape::kImagePitch + channel * Shape::kPixels;
  const float start = bias.or_zero(channel < channels, first_channel + channel);
  float sums[Shape::kRows][kSide];
#pragma unroll
  for (int row = 0; row < Shape::kRows; ++row) {
#pragma unroll
    for (int column = 0; column < kSide; ++column) sums[row][column] = start;
  }
  if (channel < channels && lane < images) {
    // Of the distance from the warp's first row to the first row of sources.
    const float* row_taps = taps + channel * Shape::kTaps + (kSide - 1 - first_row) * Shape::kTapPitch;
#pragma unroll 1
    for (int source_row = 0; source_row < kSide; ++source_row) {
      float values[kSide];
#pragma unroll
      for (int column = 0; column < kSide; ++column) values[column] = plane[source_row * kSide + column];
#pragma unroll
      for (int row = 0; row < Shape::kRows; ++row) {
        float distances[Shape::kTapPitch];
#pragma unroll
        for (int i = 0; i < Shape::kTapPitch; i += 4) {
          const float4 four = *reinterpret_cast<const float4*>(row_taps - row * Shape::kTapPitch + i);
          distances[i] = four.x;
          distances[i + 1] = four.y;
          distances[i + 2] = four.z;
          distances[i + 3] = four.w;
        }
#pragma unroll
        for (int from = 0; from < kSide; ++from) {
#pragma unroll
          for (int to = 0; to < kSide; ++to) {
            sums[row][to] += distances[from - to + kSide - 1] * values[from];
          }
        }
      }
      row_taps += Shape::kTapPitch;
    }
  }
  __syncthreads();
  if (channel < channels && lane < images) {
#pragma unroll
    for (int row = 0; row < Shape::kRows; ++row) {
#pragma unroll
      for (int column = 0; column < kSide; ++column) {
        plane[(first_row + row) * kSide + column] = sums[row][column];
      }
    }
  }
  __syncthreads();
  for (int image = warp; image < images; image += Shape::kWarps) {
    float* const to = result + first_element + image * image_elements;
#pragma unroll 4
    for (int i = lane; i < run; i += 32) to[i] = tile[image * Shape::kImagePitch + i];
  }
}

template <typename Shape>
void launch(const Correlation<float>& pass) {
  const auto& [source, weight, bias, result, geometry, layout, transposed, stream] = pass;
  const auto first_tap = [&](const Extent& extent) {
    return PassAxis(extent, transposed).padding - (Shape::kSide - 1);
  };
  WholePlanesParameters parameters = {};
  parameters.images = static_cast<int>(geometry.batch);
  parameters.channels = static_cast<int>(geometry.channels);
  parameters.chunks = ceil_divide(parameters.images, Shape::kImages);
  parameters.kernel_width = static_cast<int>(geometry.width.kernel);
  parameters.taps = static_cast<int>(geometry.taps());
  parameters.first_tap = first_tap(geometry.height) * parameters.kernel_width + first_tap(geometry.width);
  parameters.flipped = transposed;
  const int64_t blocks = int64_t{ceil_divide(parameters.channels, Shape::kChannels)} * parameters.chunks;
  small_planes_whole<Shape><<<grid_of(blocks, pass.name()), Shape::kWarps * 32, Shape::kBytes, stream>>>(
      source, weight, bias, result, parameters);
  check_launch(pass.name());
}

}  // namespace

template <typename T>
void launch_small_planes_whole(const Correlation<T>& pass) {
  if (pass.geometry.width.input == kSmallPlane) {
    launch<WholePlanes<7, 7, 4, 4>>(pass);
  } else {
    launch<WholePlanes<14, 2, 1, 3>>(pass);
  }
}

template void launch_small_planes_whole(const Correlation<float>&);

}  // namespace torchgraft::depthwise::cuda
