// Forward and input gradient on NCHW planes whose side is 7, 14 or 28, k = 3, 5, 7, stride 1, "same" padding.
//
// A warp owns 32, 8 or 2 neighbouring planes, one run of memory that comes into shared memory and leaves it
// sixteen bytes at a time, whatever the width of a row. A lane owns 7 x 7 results and keeps their sums in
// registers; seven is odd, so that the lanes of a warp read from 32 different banks. Results take the place
// of the sources when all lanes have read. Taps outside a plane of 7 x 7 are not multiplied: 28
// multiply-adds a result for k = 7.
//
// Predicted: bound by memory but for halves with k > 3: some 14 (k = 3), 30 (k = 5) and 55 instructions a
// result, 34 with 7 x 7 and k = 7. Measured on an H200, fp32: (128,256,28x28,k3) 54 us (floor 49),
// (128,384,14x14,k3) 24 us (19), (128,240,28x28,k5) 61 us (46), (128,768,7x7,k7) 24 us (9): with k > 3 the
// 96 to 128 registers of a thread leave four or five warps a scheduler, too few to load, multiply and store
// at once.

#include "../kernels.h"
#include "planes.cuh"

namespace torchgraft::depthwise::cuda {
namespace {

struct SmallPlanesCorrelateParameters {
  int planes, channels;
  bool flipped, aligned_weight;
};

// One lane: a tile of one of its warp's planes. Arrays of a lane are local
// variables of its methods: while a loop over one is not unrolled, the compiler keeps the whole object that
// holds it in memory.
template <typename Shape>
class SmallPlanesCorrelate {
 public:
  using T = typename Shape::T;
  static constexpr int kVector = kVectorElements<T>;
  static constexpr int kKernel = Shape::kKernel;
  static constexpr int kReach = Shape::kReach;
  static constexpr int kTile = Shape::kTile;
  static constexpr int kSide = Shape::kSide;
  using Taps = float[Shape::kTaps];
  using Sums = float[kTile][kTile];

  __device__ explicit SmallPlanesCorrelate(const SmallPlanesCorrelateParameters& parameters) {
    lane_ = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    first_plane_ = (static_cast<int>(blockIdx.x) * Shape::kWarps + warp) * Shape::kPlanes;
    planes_ = min(parameters.planes - first_plane_, Shape::kPlanes);
    shared_ = shared_memory<T>() + warp * (Shape::kElements + Shape::kWeights);
    shared_weight_ = shared_ + Shape::kElements;
    first_element_ = static_cast<int64_t>(first_plane_) * Shape::kPixels;
    elements_ = planes_ * Shape::kPixels;
  }

  // Whether the warp has any planes.
  __device__ bool has_planes() const { return planes_ > 0; }

  __device__ void run(const T* source, const Rounded<T>& weight, const Rounded<T>& bias, T* result,
                      const SmallPlanesCorrelateParameters& parameters) {
    copy_planes(source);
    // A warp has no more planes than there are channels.
    const int first_channel = first_plane_ % parameters.channels;
    copy_weights(weight, first_channel, parameters);
    commit_copies();
    plane_ = lane_ / (Shape::kTiles * Shape::kTiles);
    tile_y_ = lane_ / Shape::kTiles % Shape::kTiles;
    tile_x_ = lane_ % Shape::kTiles;
    const float start =
        bias.or_zero(plane_ < planes_, static_cast<unsigned>(first_channel + plane_) % parameters.channels);
    wait_for_copies<0>();
    __syncwarp();
    Taps taps;
    load_taps(parameters.flipped, taps);
    Sums sums;
#pragma unroll
    for (int row = 0; row < kTile; ++row) {
#pragma unroll
      for (int i = 0; i < kTile; ++i) sums[row][i] = start;
    }
    T* const tile = shared_ + plane_ * Shape::kPixels + (tile_y_ * kSide + tile_x_) * kTile;
    add_tile(tile, taps, sums);
    __syncwarp();
#pragma unroll
    for (int row = 0; row < kTile; ++row) {
#pragma unroll
      for (int i = 0; i < kTile; ++i) tile[row * kSide + i] = static_cast<T>(sums[row][i]);
    }
    __syncwarp();
    store_planes(result);
  }

 private:
  __device__ void copy_planes(const T* source) const {
    const T* const first_source = source + first_element_;
#pragma unroll 4
    for (int i = lane_ * kVector; i + kVector <= elements_; i += 32 * kVector) {
      copy_async<kVector * sizeof(T)>(shared_ + i, first_source + i);
    }
    for (int i = elements_ / kVector * kVector + lane_; i < elements_; i += 32) shared_[i] = first_source[i];
  }

  __device__ void copy_weights(const Rounded<T>& weight, int first_channel,
                               const SmallPlanesCorrelateParameters& parameters) const {
    const int weights = parameters.channels * Shape::kTaps;
    const int first_weight = first_channel * Shape::kTaps;
    const int warp_weights = planes_ * Shape::kTaps;
    weight.with_numbers([&](const auto* numbers) {
      int copied = 0;
      if constexpr (std::is_same_v<decltype(numbers), const T*>) {
        if (parameters.aligned_weight && first_weight % kVector == 0 &&
            first_weight + warp_weights <= weights) {
          copied = warp_weights / kVector * kVector;
          for (int i = lane_ * kVector; i < copied; i += 32 * kVector) {
            copy_async<kVector * sizeof(T)>(shared_weight_ + i, numbers + first_weight + i);
          }
        }
      }
#pragma unroll 8
      for (int i = copied + lane_; i < warp_weights; i += 32) {
        const int index = first_weight + i;
        shared_weight_[i] = read_rounded<T>(numbers + (index < weights ? index : index - weights));
      }
    });
  }

  __device__ void load_taps(bool flipped, Taps& taps) const {
    const T* const first_tap = shared_weight_ + plane_ * Shape::kTaps + (flipped ? Shape::kTaps - 1 : 0);
    const int tap_step = flipped ? -1 : 1;
#pragma unroll
    for (int tap = 0; tap < Shape::kTaps; ++tap) taps[tap] = static_cast<float>(first_tap[tap * tap_step]);
  }

  // Adds all products of the tile's sources and taps.
  __device__ void add_tile(const T* tile, const Taps& taps, Sums& sums) const {
#pragma unroll
    for (int row = -kReach; row < kTile + kReach; ++row) {
      if (!tile_row_exists<Shape>(row)) continue;
      float values[kTile + 2 * kReach];
      load_tile_row<Shape>(tile, row, tile_y_, tile_x_, values);
#pragma unroll
      for (int tap_row = 0; tap_row < kKernel; ++tap_row) {
        const int result_row = row + kReach - tap_row;
        if (result_row < 0 || result_row >= kTile) continue;
#pragma unroll
        for (int tap = 0; tap < kKernel; ++tap) {
#pragma unroll
          for (int i = 0; i < kTile; ++i) {
            if (!tile_value_exists<Shape>(i + tap)) continue;
            sums[result_row][i] += taps[tap_row * kKernel + tap] * values[i + tap];
          }
        }
      }
    }
  }

  __device__ void store_planes(T* result) const {
    T* const first_result = result + first_element_;
    for (int i = lane_ * kVector; i + kVector <= elements_; i += 32 * kVector) {
      *reinterpret_cast<Vector<T>*>(first_result + i) = *reinterpret_cast<const Vector<T>*>(shared_ + i);
    }
    for (int i = elements_ / kVector * kVector + lane_; i < elements_; i += 32) first_result[i] = shared_[i];
  }

  int lane_;
  int first_plane_, planes_;  // of the warp
  int64_t first_element_;     // of the warp's planes
  int elements_;
  // The warp's part of shared memory: its planes, and their weights.
  T* shared_;
  T* shared_weight_;
  int plane_, tile_y_, tile_x_;  // this lane's tile
};

template <typename Shape>
__global__ void __launch_bounds__(Shape::kWarps * 32, Shape::kBlocks)
    small_planes_correlate(const typename Shape::T* __restrict__ source, Rounded<typename Shape::T> weight,
                           Rounded<typename Shape::T> bias, typename Shape::T* __restrict__ result,
                           SmallPlanesCorrelateParameters parameters) {
  SmallPlanesCorrelate<Shape> lane(parameters);
  if (lane.has_planes()) lane.run(source, weight, bias, result, parameters);
}

template <typename Shape>
void launch(const Correlation<typename Shape::T>& pass) {
  const auto& [source, weight, bias, result, geometry, layout, transposed, stream] = pass;
  static_assert(Shape::kBytes <= 48 * 1024);
  const SmallPlanesCorrelateParameters parameters = {static_cast<int>(geometry.batch * geometry.channels),
                                                     static_cast<int>(geometry.channels), transposed,
                                                     weight.is_aligned_to(16)};
  const int warps = ceil_divide(parameters.planes, Shape::kPlanes);
  small_planes_correlate<Shape>
      <<<ceil_divide(warps, Shape::kWarps), Shape::kWarps * 32, Shape::kBytes, stream>>>(source, weight, bias,
                                                                                         result, parameters);
  check_launch(pass.name());
}

}  // namespace

template <typename T>
void launch_small_planes_correlate(const Correlation<T>& pass) {
  with_small_planes(pass.geometry,
                    [&](auto kernel, auto tiles) { launch<SmallPlanes<T, kernel, tiles>>(pass); });
}

template void launch_small_planes_correlate(const Correlation<float>&);
template void launch_small_planes_correlate(const Correlation<Half>&);
template void launch_small_planes_correlate(const Correlation<BFloat16>&);

}  // namespace torchgraft::depthwise::cuda
