// What the sliding kernels on NHWC images share (correlate.cu, weight_grad.cu):
// how a block owns channels, columns and a stretch of rows, and how rows reach shared memory ahead of their
// use.
//
// Lanes lie along channels; strips of a few columns each are the other direction of a block. The rows of all
// images are one sequence of units (rows of results, for a transposed stride of two pairs of them), cut into
// as many equal ranges as blocks are resident at once, wherever that falls, so that every block takes equally
// long and there is one wave. Where a range enters an image it takes a few steps before the first result.
//
// A step brings kStep rows of sources into one of several buffers in shared memory, copied asynchronously
// (compute capability 8.0 on; before, through registers) as many steps ahead as there are buffers but one, in
// the widest pieces that channels and addresses allow. Columns outside the image are zeroed once, for no copy
// ever touches them; rows outside are neither copied nor computed.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <torchgraft/async_copy.cuh>

#include <algorithm>
#include <cstring>

#include "../stencil.cuh"
#include "plan.h"

namespace torchgraft::depthwise::cuda {

// Buffers for steps; in half precision more, that as many bytes be under way.
template <typename T>
inline constexpr int kSlideStages = slide_stages(sizeof(T));

// One image as a source of rows: of the sources, or in the weight gradient also of the output gradient.
struct SlideImage {
  int height, width;
  int first_row, first_column;  // of unit 0 and strip 0
};

// Where patches of results begin in both images of a pass.
struct SlideImages {
  bool flipped;  // the kernel is turned around
  int padding_y, padding_x;
  SlideImage source, result;
};

// Rows and Columns: how a patch of results meets the taps along a direction.
template <typename Rows, typename Columns>
SlideImages slide_images(const Geometry& geometry, bool transposed) {
  const PassAxis height(geometry.height, transposed);
  const PassAxis width(geometry.width, transposed);
  SlideImages images = {transposed && !Rows::kTransposed,
                        height.padding,
                        width.padding,
                        {height.source, width.source, 0, 0},
                        {height.result, width.result, 0, 0}};
  images.source.first_row = Rows::first_source(height.padding);
  images.source.first_column = Columns::first_source(width.padding);
  images.result.first_row = Rows::first_result(height.padding);
  images.result.first_column = Columns::first_result(width.padding);
  return images;
}

struct SlideParameters {
  SlideImage source, result;
  int channels;
  int piece_bytes;    // of an asynchronous copy
  int slices, tiles;  // of the channels, of the columns; blockIdx.x counts slices fastest
  int ranges;         // of the units
  FastDivisor image_units;
  int units;  // of all images
};

// Four (two, one) neighbouring channels, in fp32.
template <typename T, int kCount>
__device__ __forceinline__ void widen(const T* pointer, float (&values)[kCount]) {
  if constexpr (!std::is_same_v<T, float> && kCount % 2 == 0) {
    // Pairs stay in words until they are needed. Taken one by one, the halves of a word are separated where
    // it is loaded, and every load is waited for there.
    using Words = Vector<unsigned, kCount / 2>;
    const Words words = *reinterpret_cast<const Words*>(pointer);
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      if constexpr (std::is_same_v<T, BFloat16>) {
        // A bfloat16 is the upper half of a float.
        values[2 * i] = __uint_as_float(words[i] << 16);
        values[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
      } else {
        __half2 pair;
        memcpy(&pair, &words[i], sizeof(pair));
        values[2 * i] = __low2float(pair);
        values[2 * i + 1] = __high2float(pair);
      }
    }
  } else {
    const Vector<T, kCount> vector = *reinterpret_cast<const Vector<T, kCount>*>(pointer);
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = static_cast<float>(vector[i]);
  }
}

// Rounds two values in one instruction where there is one.
template <typename T, int kCount>
__device__ __forceinline__ void narrow(T* pointer, const float (&values)[kCount]) {
  if constexpr (!std::is_same_v<T, float> && kCount % 2 == 0) {
    Vector<unsigned, kCount / 2> vector;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      if constexpr (std::is_same_v<T, BFloat16>) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(values[2 * i], values[2 * i + 1]);
        memcpy(&vector[i], &pair, sizeof(pair));
      } else {
        const __half2 pair = __floats2half2_rn(values[2 * i], values[2 * i + 1]);
        memcpy(&vector[i], &pair, sizeof(pair));
      }
    }
    *reinterpret_cast<Vector<unsigned, kCount / 2>*>(pointer) = vector;
  } else {
    Vector<T, kCount> vector;
#pragma unroll
    for (int i = 0; i < kCount; ++i) vector[i] = static_cast<T>(values[i]);
    *reinterpret_cast<Vector<T, kCount>*>(pointer) = vector;
  }
}

// Calls take(0), take(1), ... take(kPhases - 1), with constants, as long as `more` says so.
template <int kPhases, int kPhase = 0, typename More, typename Take>
__device__ __forceinline__ void with_phases(More&& more, Take&& take) {
  if constexpr (kPhase < kPhases) {
    if (!more()) return;
    take(std::integral_constant<int, kPhase>{});
    with_phases<kPhases, kPhase + 1>(more, take);
  }
}

// A block's place in the channels and columns.
struct SlidePlace {
  int range, tile;
  int first_channel, channels;  // of the block
  int pitch;                    // of a pixel in shared memory, in elements
  int thread, threads;

  template <int kCount>
  static __device__ SlidePlace make(const SlideParameters& parameters) {
    SlidePlace place;
    unsigned rest = blockIdx.x;
    const int slice = static_cast<int>(rest % static_cast<unsigned>(parameters.slices));
    rest /= static_cast<unsigned>(parameters.slices);
    place.tile = static_cast<int>(rest % static_cast<unsigned>(parameters.tiles));
    place.range = static_cast<int>(rest / static_cast<unsigned>(parameters.tiles));
    place.pitch = static_cast<int>(blockDim.x) * kCount;
    place.first_channel = slice * place.pitch;
    place.channels = min(place.pitch, parameters.channels - place.first_channel);
    place.thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
    place.threads = static_cast<int>(blockDim.x * blockDim.y);
    return place;
  }
};

// Where in the sequence of steps a block is: in the steps of one image's share of its range. kWarm steps pass
// before the first unit ends. There are no more ranges than units, so that none is empty.
template <int kWarm>
struct SlideSteps {
  int next_unit, last_unit;  // of the range that are still to come
  int image, first, count;   // units of this image's share
  int step, steps;

  SlideSteps() = default;
  __device__ SlideSteps(const SlideParameters& parameters, int range) {
    const auto bound = [&](int index) {
      return static_cast<int>(static_cast<int64_t>(parameters.units) * index / parameters.ranges);
    };
    next_unit = bound(range);
    last_unit = bound(range + 1);
    enter_image(parameters);
  }
  __device__ void enter_image(const SlideParameters& parameters) {
    const int units = parameters.image_units.divisor();
    image = parameters.image_units.divide(next_unit);
    first = next_unit - image * units;
    count = min(units - first, last_unit - next_unit);
    next_unit += count;
    step = 0;
    steps = count + kWarm;
  }
  __device__ bool enters() const { return step == 0; }
  __device__ bool ended() const { return step >= steps; }
  __device__ void advance(const SlideParameters& parameters) {
    if (++step == steps && next_unit < last_unit) enter_image(parameters);
  }
  // Whether unit `ahead` after the one that ends in this step belongs to the share.
  __device__ bool holds(int ahead) const {
    return static_cast<unsigned>(step - kWarm + ahead) < static_cast<unsigned>(count);
  }
};

// A thread's part in copying rows of one image to a tile `columns` wide: a piece of some channels in every
// `step`-th column, those that lie in the image.
template <typename T>
class SlideCopies {
 public:
  __device__ SlideCopies(const SlideImage& image, const SlidePlace& place, int channels, int piece_bytes,
                         int columns, int first_column)
      : piece_bytes_(piece_bytes), height_(image.height) {
    const int piece = piece_bytes / static_cast<int>(sizeof(T));
    const int pieces = place.pitch / piece;
    const int step = place.threads / pieces;
    const int channel = place.thread % pieces * piece;
    const int column = place.thread / pieces;
    row_elements_ = static_cast<int64_t>(image.width) * channels;
    source_step_ = step * channels;
    shared_step_ = step * place.pitch;
    if (column < step && channel < place.channels) {
      const int left = max(0, -first_column);                          // columns before the image
      const int right = min(columns, image.width - first_column);      // and where it ends
      before_ = left > column ? ceil_divide(left - column, step) : 0;  // turns
      const int end = right > column ? ceil_divide(right - column, step) : 0;
      turns_ = max(0, end - before_);
      all_turns_ = column < columns ? ceil_divide(columns - column, step) : 0;
      shared_ = (column + before_ * step) * place.pitch + channel;
      source_ = static_cast<int64_t>(first_column + column + before_ * step) * channels +
                place.first_channel + channel;
    }
  }

  // What lies outside the image, in one buffer of a row.
  __device__ void zero_outside(T* shared_row) const {
    for (int turn = 0; turn < all_turns_; ++turn) {
      if (turn >= before_ && turn < before_ + turns_) continue;
      unsigned* piece = reinterpret_cast<unsigned*>(shared_row + shared_ + (turn - before_) * shared_step_);
      for (int i = 0; i < piece_bytes_ / 4; ++i) piece[i] = 0;
    }
  }

  // The next row to copy.
  __device__ void enter(const T* images, int image, int row) {
    row_ = row;
    from_ = images + (static_cast<int64_t>(image) * height_ + row) * row_elements_ + source_;
  }

  __device__ __forceinline__ void copy_row(T* shared_row) {
    if (static_cast<unsigned>(row_) < static_cast<unsigned>(height_)) {
      if (piece_bytes_ == 16) {
        copy_pieces<16>(shared_row + shared_);
      } else if (piece_bytes_ == 8) {
        copy_pieces<8>(shared_row + shared_);
      } else {
        copy_pieces<4>(shared_row + shared_);
      }
    }
    ++row_;
    from_ += row_elements_;
  }

 private:
  template <int kBytes>
  __device__ __forceinline__ void copy_pieces(T* to) const {
    int offset = 0;
#pragma unroll 1
    for (int turn = turns_; turn > 0; --turn) {
      copy_async<kBytes, true>(to, from_ + offset);
      to += shared_step_;
      offset += source_step_;
    }
  }

  int piece_bytes_, height_;
  int64_t row_elements_;
  int source_step_, shared_step_;
  int before_ = 0, turns_ = 0, all_turns_ = 0;
  int shared_ = 0;
  int64_t source_ = 0;
  int row_ = 0;
  const T* from_ = nullptr;
};

// The current device, as plans see it.
inline SlideDevice slide_device() {
  const Device& device = current_device();
  return {device.multiprocessors, device.shared_of_block, device.shared_of_multiprocessor};
}

}  // namespace torchgraft::depthwise::cuda
