// Weight gradient on NCHW planes whose side is 7, 14 or 28, k = 3, 5, 7, stride 1, "same" padding, first
// pass.
//
// As in correlate.cuh a warp takes 32, 8 or 2 neighbouring planes of one image, of input and output
// gradient, through shared memory, and a lane a tile of 7 x 7 of both. The planes are those of neighbouring
// channels: the warp goes on to the same channels of the next image of its chunk, while every lane keeps the
// sums of the k * k taps of its channel in registers. At the end the lanes of a plane, then the warps of the
// block, are added up in a fixed order.
//
// Predicted: as the forward pass. Measured on an H200, fp32: (128,384,14x14,k3) 34 us (floor 19),
// (128,768,7x7,k7) 31 us (9): most_chunks leaves a warp or two a scheduler.

#include "../chunks.cuh"
#include "../kernels.h"
#include "planes.cuh"

namespace torchgraft::depthwise::cuda {
namespace {

template <typename Shape>
struct SmallPlanesWeightGradSizes {
  static constexpr int kWarps = 3;
  static constexpr int kSums = kWarps * Shape::kPlanes * Shape::kTaps;
  static constexpr int kBytes =
      std::max(kWarps * 2 * Shape::kElements * static_cast<int>(sizeof(typename Shape::T)),
               kSums* static_cast<int>(sizeof(float)));
  static constexpr int kBlocks = Shape::kKernel == 7 ? 5 : Shape::kKernel == 5 ? 6 : 8;
};

struct SmallPlanesWeightGradParameters {
  int batch, channels, images_of_chunk, channel_groups;
};

// One lane: a tile of one of its warp's planes, in every image that the warp takes. Arrays of a lane are
// local variables of its methods: while a loop over one is not unrolled, the compiler keeps the whole object
// that holds it in memory.
template <typename Shape>
class SmallPlanesWeightGrad {
 public:
  using T = typename Shape::T;
  static constexpr int kVector = kVectorElements<T>;
  static constexpr int kWarps = SmallPlanesWeightGradSizes<Shape>::kWarps;
  static constexpr int kKernel = Shape::kKernel;
  static constexpr int kReach = Shape::kReach;
  static constexpr int kTile = Shape::kTile;
  static constexpr int kSide = Shape::kSide;
  static constexpr int kTileLanes = Shape::kTiles * Shape::kTiles;
  using Sums = float[Shape::kTaps];

  __device__ explicit SmallPlanesWeightGrad(const SmallPlanesWeightGradParameters& parameters) {
    lane_ = static_cast<int>(threadIdx.x) % 32;
    warp_ = static_cast<int>(threadIdx.x) / 32;
    const int group = static_cast<int>(blockIdx.x % static_cast<unsigned>(parameters.channel_groups));
    chunk_ = static_cast<int>(blockIdx.x / static_cast<unsigned>(parameters.channel_groups));
    first_channel_ = group * Shape::kPlanes;
    planes_ = min(parameters.channels - first_channel_, Shape::kPlanes);
    elements_ = planes_ * Shape::kPixels;
    shared_input_ = shared_memory<T>() + warp_ * 2 * Shape::kElements;
    shared_output_grad_ = shared_input_ + Shape::kElements;
    plane_ = lane_ / kTileLanes;
    tile_y_ = lane_ / Shape::kTiles % Shape::kTiles;
    tile_x_ = lane_ % Shape::kTiles;
    tile_ = plane_ * Shape::kPixels + (tile_y_ * kSide + tile_x_) * kTile;
  }

  template <typename Result>
  __device__ void run(const T* output_grad, const T* input, Result* result,
                      const SmallPlanesWeightGradParameters& parameters) {
    const int first_image = chunk_ * parameters.images_of_chunk;
    const int last_image = min(first_image + parameters.images_of_chunk, parameters.batch);
    Sums sums = {};
    for (int image = first_image + warp_; image < last_image; image += kWarps) {
      bring_image(output_grad, input,
                  (static_cast<int64_t>(image) * parameters.channels + first_channel_) * Shape::kPixels);
      add_tile(sums);
    }
    __syncthreads();
    share_sums(sums);
    __syncthreads();
    const int64_t first_result =
        (static_cast<int64_t>(chunk_) * parameters.channels + first_channel_) * Shape::kTaps;
    for (int i = threadIdx.x; i < planes_ * Shape::kTaps; i += kWarps * 32) {
      result[first_result + i] = static_cast<Result>(
          sum_in_order(shared_memory<float>() + i, kWarps, Shape::kPlanes * Shape::kTaps));
    }
  }

 private:
  // Copies the warp's planes of an image to shared memory, and waits for them.
  __device__ void bring_image(const T* output_grad, const T* input, int64_t first_element) const {
    // All lanes have read the last image.
    __syncwarp();
    for (int i = lane_ * kVector; i < elements_; i += 32 * kVector) {
      copy_async<kVector * sizeof(T)>(shared_input_ + i, input + first_element + i);
      copy_async<kVector * sizeof(T)>(shared_output_grad_ + i, output_grad + first_element + i);
    }
    commit_copies();
    wait_for_copies<0>();
    __syncwarp();
  }

  // Adds the products of the tile's gradients with all inputs around them.
  __device__ void add_tile(Sums& sums) const {
    float grads[kTile][kTile];
#pragma unroll
    for (int row = 0; row < kTile; ++row) {
#pragma unroll
      for (int i = 0; i < kTile; ++i) {
        grads[row][i] = static_cast<float>(shared_output_grad_[tile_ + row * kSide + i]);
      }
    }
#pragma unroll
    for (int row = -kReach; row < kTile + kReach; ++row) {
      if (!tile_row_exists<Shape>(row)) continue;
      float values[kTile + 2 * kReach];
      load_tile_row<Shape>(shared_input_ + tile_, row, tile_y_, tile_x_, values);
#pragma unroll
      for (int tap_row = 0; tap_row < kKernel; ++tap_row) {
        const int grad_row = row + kReach - tap_row;
        if (grad_row < 0 || grad_row >= kTile) continue;
#pragma unroll
        for (int tap = 0; tap < kKernel; ++tap) {
#pragma unroll
          for (int i = 0; i < kTile; ++i) {
            if (!tile_value_exists<Shape>(i + tap)) continue;
            sums[tap_row * kKernel + tap] += grads[grad_row][i] * values[i + tap];
          }
        }
      }
    }
  }

  // Adds up the lanes of each plane; shared memory then holds [warp][plane][tap].
  __device__ void share_sums(Sums& sums) const {
    float* const shared_sums = shared_memory<float>();
#pragma unroll
    for (int tap = 0; tap < Shape::kTaps; ++tap) {
#pragma unroll
      for (int distance = kTileLanes / 2; distance > 0; distance /= 2) {
        sums[tap] += __shfl_xor_sync(0xffffffff, sums[tap], distance);
      }
      if (lane_ % kTileLanes == 0) {
        shared_sums[(warp_ * Shape::kPlanes + plane_) * Shape::kTaps + tap] = sums[tap];
      }
    }
  }

  int lane_, warp_, chunk_;
  int first_channel_, planes_;  // of the warp
  int elements_;                // of the warp's planes of an image, in whole vectors
  // The warp's part of shared memory: its planes of an image.
  T* shared_input_;
  T* shared_output_grad_;
  int plane_, tile_y_, tile_x_;  // this lane's tile
  int tile_;                     // its first pixel in shared memory
};

// Result is float for partial sums, or T if one chunk is all.
template <typename Shape, typename Result>
__global__ void __launch_bounds__(SmallPlanesWeightGradSizes<Shape>::kWarps * 32,
                                  SmallPlanesWeightGradSizes<Shape>::kBlocks)
    small_planes_weight_grad(const typename Shape::T* __restrict__ output_grad,
                             const typename Shape::T* __restrict__ input, Result* __restrict__ result,
                             SmallPlanesWeightGradParameters parameters) {
  SmallPlanesWeightGrad<Shape>(parameters).run(output_grad, input, result, parameters);
}

template <typename Shape>
void launch(const WeightGrad<typename Shape::T>& pass) {
  using T = typename Shape::T;
  const auto& [output_grad, input, weight_grad, workspace, geometry, layout, stream] = pass;
  using Sizes = SmallPlanesWeightGradSizes<Shape>;
  static_assert(Sizes::kBytes <= 48 * 1024);
  static_assert(Shape::kPlanes * Shape::kPixels % kVectorElements<T> == 0);
  TORCHGRAFT_CHECK(geometry.channels * Shape::kPixels % kVectorElements<T> == 0, pass.kName,
                   ": planes moved whole must be whole vectors of sixteen bytes");
  const int64_t groups = ceil_divide<int64_t>(geometry.channels, Shape::kPlanes);
  // One wave of the device, each warp at least two images.
  const int64_t blocks = int64_t{current_device().multiprocessors} * Sizes::kBlocks;
  const int64_t wanted = std::min(
      {blocks / groups, geometry.batch / (2 * Sizes::kWarps), most_chunks(geometry, Layout::contiguous)});
  const int images_of_chunk =
      static_cast<int>(ceil_divide<int64_t>(geometry.batch, std::max<int64_t>(wanted, 1)));
  const int chunks = ceil_divide(static_cast<int>(geometry.batch), images_of_chunk);
  const SmallPlanesWeightGradParameters parameters = {static_cast<int>(geometry.batch),
                                                      static_cast<int>(geometry.channels), images_of_chunk,
                                                      static_cast<int>(groups)};
  const unsigned grid = grid_of(groups * chunks, pass.kName);
  if (T* const direct = weight_grad.direct(chunks); direct != nullptr) {
    small_planes_weight_grad<Shape, T>
        <<<grid, Sizes::kWarps * 32, Sizes::kBytes, stream>>>(output_grad, input, direct, parameters);
    check_launch(pass.kName);
  } else {
    float* const partials = weight_grad.partials(chunks, workspace);
    small_planes_weight_grad<Shape, float>
        <<<grid, Sizes::kWarps * 32, Sizes::kBytes, stream>>>(output_grad, input, partials, parameters);
    check_launch(pass.kName);
    if (chunks > 1) launch_sum_chunks(partials, weight_grad, geometry, chunks, stream);
  }
}

}  // namespace

template <typename T>
void launch_small_planes_weight_grad(const WeightGrad<T>& pass) {
  with_small_planes(pass.geometry,
                    [&](auto kernel, auto tiles) { launch<SmallPlanes<T, kernel, tiles>>(pass); });
}

template void launch_small_planes_weight_grad(const WeightGrad<float>&);
template void launch_small_planes_weight_grad(const WeightGrad<Half>&);
template void launch_small_planes_weight_grad(const WeightGrad<BFloat16>&);

}  // namespace torchgraft::depthwise::cuda
