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

struct SmallPlanesWholeParameters {
  int images, channels, chunks;
  int kernel_width, taps;
  int first_tap;  // of distance -(side - 1) along both directions
  bool flipped;
};

// One thread: some rows of results of a channel, of one image. Arrays of a lane are local
// variables of its methods: while a loop over one is not unrolled, the compiler keeps the whole object that
// holds it in memory.
template <typename Shape>
class SmallPlanesWhole {
 public:
  static constexpr int kSide = Shape::kSide;
  static constexpr int kThreads = Shape::kWarps * 32;
  using Sums = float[Shape::kRows][kSide];

  __device__ explicit SmallPlanesWhole(const SmallPlanesWholeParameters& parameters) {
    taps_ = shared_memory<float>();
    tile_ = taps_ + Shape::kChannels * Shape::kTaps;
    warp_ = static_cast<int>(threadIdx.x) / 32;
    lane_ = static_cast<int>(threadIdx.x) % 32;
    const int group = static_cast<int>(blockIdx.x) / parameters.chunks;
    const int first_image = (static_cast<int>(blockIdx.x) - group * parameters.chunks) * Shape::kImages;
    images_ = min(Shape::kImages, parameters.images - first_image);
    first_channel_ = group * Shape::kChannels;
    channels_ = min(Shape::kChannels, parameters.channels - first_channel_);
    run_of_image_ = channels_ * Shape::kPixels;
    image_elements_ = static_cast<int64_t>(parameters.channels) * Shape::kPixels;
    first_element_ = first_image * image_elements_ + static_cast<int64_t>(first_channel_) * Shape::kPixels;
  }

  __device__ void run(const float* source, const Rounded<float>& weight, const Rounded<float>& bias,
                      float* result, const SmallPlanesWholeParameters& parameters) {
    copy_planes(source);
    load_taps(weight, parameters);
    wait_for_copies<0>();
    __syncthreads();

    const int channel = warp_ / Shape::kRowGroups;
    const int first_row = (warp_ - channel * Shape::kRowGroups) * Shape::kRows;
    float* const plane = tile_ + lane_ * Shape::kImagePitch + channel * Shape::kPixels;
    const float start = bias.or_zero(channel < channels_, first_channel_ + channel);
    Sums sums;
#pragma unroll
    for (int row = 0; row < Shape::kRows; ++row) {
#pragma unroll
      for (int column = 0; column < kSide; ++column) sums[row][column] = start;
    }
    if (channel < channels_ && lane_ < images_) {
      // The taps of the distance from the warp's first row to the first row of sources.
      add_rows(plane, taps_ + channel * Shape::kTaps + (kSide - 1 - first_row) * Shape::kTapPitch, sums);
    }
    __syncthreads();
    if (channel < channels_ && lane_ < images_) {
#pragma unroll
      for (int row = 0; row < Shape::kRows; ++row) {
#pragma unroll
        for (int column = 0; column < kSide; ++column) {
          plane[(first_row + row) * kSide + column] = sums[row][column];
        }
      }
    }
    __syncthreads();
    store_planes(result);
  }

 private:
  __device__ void copy_planes(const float* source) const {
    for (int image = warp_; image < images_; image += Shape::kWarps) {
      const float* const from = source + first_element_ + image * image_elements_;
#pragma unroll 4
      for (int i = lane_; i < run_of_image_; i += 32) {
        copy_async<sizeof(float)>(tile_ + image * Shape::kImagePitch + i, from + i);
      }
    }
    commit_copies();
  }

  __device__ void load_taps(const Rounded<float>& weight,
                            const SmallPlanesWholeParameters& parameters) const {
    const Rounded<float> block_weight = weight + static_cast<int64_t>(first_channel_) * parameters.taps;
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < channels_ * Shape::kTaps; i += kThreads) {
      const int channel = i / Shape::kTaps;
      const int row = (i - channel * Shape::kTaps) / Shape::kTapPitch;
      const int column = i % Shape::kTapPitch;
      const int tap = parameters.first_tap + row * parameters.kernel_width + column;
      taps_[i] = column < Shape::kDistances
                     ? block_weight[channel * parameters.taps +
                                    (parameters.flipped ? parameters.taps - 1 - tap : tap)]
                     : 0.F;
    }
  }

  // Adds the products of all sources of a plane with the taps that lead to this lane's rows of results.
  __device__ void add_rows(const float* plane, const float* row_taps, Sums& sums) const {
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

  __device__ void store_planes(float* result) const {
    for (int image = warp_; image < images_; image += Shape::kWarps) {
      float* const to = result + first_element_ + image * image_elements_;
#pragma unroll 4
      for (int i = lane_; i < run_of_image_; i += 32) to[i] = tile_[image * Shape::kImagePitch + i];
    }
  }

  float* taps_;  // in shared memory: [channel][distance along rows][distance along columns]
  float* tile_;  // in shared memory: [image][channel][pixel]
  int warp_, lane_;
  int images_;  // of the block
  int first_channel_, channels_;
  int run_of_image_;        // elements of the block's channels of an image
  int64_t image_elements_;  // of all channels
  int64_t first_element_;   // of the block's first image
};

template <typename Shape>
__global__ void __launch_bounds__(Shape::kWarps * 32, Shape::kBlocks)
    small_planes_whole(const float* __restrict__ source, Rounded<float> weight, Rounded<float> bias,
                       float* __restrict__ result, SmallPlanesWholeParameters parameters) {
  SmallPlanesWhole<Shape>(parameters).run(source, weight, bias, result, parameters);
}

template <typename Shape>
void launch(const Correlation<float>& pass) {
  const auto& [source, weight, bias, result, geometry, layout, transposed, stream] = pass;
  const auto first_tap = [&](const Extent& extent) {
    return PassAxis(extent, transposed).padding - (Shape::kSide - 1);
  };
  SmallPlanesWholeParameters parameters = {};
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
