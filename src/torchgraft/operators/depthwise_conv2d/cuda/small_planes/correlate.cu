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

struct SmallPlanesParameters {
  int planes, channels;
  bool flipped, aligned_weight;
};

template <typename Shape>
__global__ void __launch_bounds__(Shape::kWarps * 32, Shape::kBlocks)
    small_planes_correlate(const typename Shape::T* __restrict__ source, Rounded<typename Shape::T> weight,
                           Rounded<typename Shape::T> bias, typename Shape::T* __restrict__ result,
                           SmallPlanesParameters parameters) {
  using T = typename Shape::T;
  constexpr int kVector = kVectorElements<T>;
  constexpr int kKernel = Shape::kKernel;
  constexpr int kReach = Shape::kReach;
  constexpr int kTile = Shape::kTile;
  constexpr int kSide = Shape::kSide;

  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int first_plane = (static_cast<int>(blockIdx.x) * Shape::kWarps + warp) * Shape::kPlanes;
  const int planes = min(parameters.planes - first_plane, Shape::kPlanes);
  if (planes <= 0) return;
  T* const shared = shared_memory<T>() + warp * (Shape::kElements + Shape::kWeights);
  T* const shared_weight = shared + Shape::kElements;
  const int64_t first_element = static_cast<int64_t>(first_plane) * Shape::kPixels;
  const int elements = planes * Shape::kPixels;

  const T* const first_source = source + first_element;
#pragma unroll 4
  for (int i = lane * kVector; i + kVector <= elements; i += 32 * kVector) {
    copy_async<kVector * sizeof(T)>(shared + i, first_source + i);
  }
  for (int i = elements / kVector * kVector + lane; i < elements; i += 32) shared[i] = first_source[i];

  // A warp has no more planes than there are channels.
  const int first_channel = first_plane % parameters.channels;
  const int weights = parameters.channels * Shape::kTaps;
  const int first_weight = first_channel * Shape::kTaps;
  const int warp_weights = planes * Shape::kTaps;
  weight.with_numbers([&](const auto* numbers) {
    int copied = 0;
    if constexpr (std::is_same_v<decltype(numbers), const T*>) {
      if (parameters.aligned_weight && first_weight % kVector == 0 &&
          first_weight + warp_weights <= weights) {
        copied = warp_weights / kVector * kVector;
        for (int i = lane * kVector; i < copied; i += 32 * kVector) {
          copy_async<kVector * sizeof(T)>(shared_weight + i, numbers + first_weight + i);
        }
      }
    }
#pragma unroll 8
    for (int i = copied + lane; i < warp_weights; i += 32) {
      const int index = first_weight + i;
      shared_weight[i] = read_rounded<T>(numbers + (index < weights ? index : index - weights));
    }
  });
  commit_copies();
  const int plane = lane / (Shape::kTiles * Shape::kTiles);
  const int tile_y = lane / Shape::kTiles % Shape::kTiles;
  const int tile_x = lane % Shape::kTiles;
  const float start =
      bias.or_zero(plane < planes, static_cast<unsigned>(first_channel + plane) % parameters.channels);
  wait_for_copies<0>();
  __syncwarp();
  float taps[Shape::kTaps];
  const T* const first_tap =
      shared_weight + plane * Shape::kTaps + (parameters.flipped ? Shape::kTaps - 1 : 0);
  const int tap_step = parameters.flipped ? -1 : 1;
#pragma unroll
  for (int tap = 0; tap < Shape::kTaps; ++tap) taps[tap] = static_cast<float>(first_tap[tap * tap_step]);

  float sums[kTile][kTile];
#pragma unroll
  for (int row = 0; row < kTile; ++row) {
#pragma unroll
    for (int i = 0; i < kTile; ++i) sums[row][i] = start;
  }
  T* const tile = shared + plane * Shape::kPixels + (tile_y * kSide + tile_x) * kTile;
#pragma unroll
  for (int row = -kReach; row < kTile + kReach; ++row) {
    if (!tile_row_exists<Shape>(row)) continue;
    float values[kTile + 2 * kReach];
    load_tile_row<Shape>(tile, row, tile_y, tile_x, values);
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
  __syncwarp();
#pragma unroll
  for (int row = 0; row < kTile; ++row) {
#pragma unroll
    for (int i = 0; i < kTile; ++i) tile[row * kSide + i] = static_cast<T>(sums[row][i]);
  }
  __syncwarp();
  T* const first_result = result + first_element;
  for (int i = lane * kVector; i + kVector <= elements; i += 32 * kVector) {
    *reinterpret_cast<Vector<T>*>(first_result + i) = *reinterpret_cast<const Vector<T>*>(shared + i);
  }
  for (int i = elements / kVector * kVector + lane; i < elements; i += 32) first_result[i] = shared[i];
}

template <typename Shape>
void launch(const Correlation<typename Shape::T>& pass) {
  const auto& [source, weight, bias, result, geometry, layout, transposed, stream] = pass;
  static_assert(Shape::kBytes <= 48 * 1024);
  const SmallPlanesParameters parameters = {static_cast<int>(geometry.batch * geometry.channels),
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
