// One channel of a thread of the kernel channels_last: it reads five columns of results down a stretch of
// rows from the ring of sources, and sums what its offsets' gradients need.
#pragma once

#include <cstdint>

#include "channels_last_ring.cuh"
#include "supports.h"
#include "taps.cuh"

namespace torchgraft::shift::cuda {

template <typename T, int kPixel, bool kTransposed, bool kStrided, bool kSums>
struct ChannelsLastChannel {
  using A = accumulate_t<T>;
  static constexpr bool kFromOneRow = kTransposed && kStrided;
  static constexpr bool kKeepsRow = !kStrided;  // the lower sources of a row are the upper ones of the next
  Taps<T, kTransposed, kStrided> taps;
  int place;        // of the leftmost source in a row of the ring
  bool is_outside;  // every source lies outside the image
  bool is_blend;    // no weight is zero
  bool reads;
  int row;   // of the lower sources, whether or not there is one
  int slot;  // of the ring, where that row lies
  A upper[kColumns + 1];
  TapSums<A> sums;  // of the last few rows
  A along_x, along_y;

  ChannelsLastChannel() = default;
  // `element` is the channel's place in a pixel of the ring.
  __device__ ChannelsLastChannel(T x, T y, int first_column, int element,
                                 const ChannelsLastParameters& parameters)
      : taps(x, y, parameters.width, parameters.height), along_x(0), along_y(0) {
    const int left = min(max(first_column + taps.column, -kMargin), parameters.width);
    place = (kMargin + left) * kPixel + element;
    is_outside = taps.y() >= parameters.height || taps.y() < -parameters.height;
    is_blend = taps.left != 0 && taps.right != 0 && taps.upper != 0 && taps.lower != 0;
  }

  // Adds the sums of the last rows to the totals. Differences of sums are exact enough while those are few.
  __device__ void fold() {
    along_x += sums.along_x(taps);
    along_y += sums.along_y(taps);
    sums = {};
  }

  // Reads six sources of a row of the ring, or zeros.
  __device__ void read(const T* ring, bool is_read, int slot_of_row, const ChannelsLastParameters& parameters,
                       A (&values)[kColumns + 1]) const {
    const T* const from =
        ring + place + (is_read ? slot_of_row : parameters.ring.divisor()) * parameters.row_pitch;
#pragma unroll
    for (int i = 0; i <= kColumns; ++i) values[i] = static_cast<A>(from[i * kPixel]);
  }

  __device__ bool exists(int source_row, const ChannelsLastParameters& parameters) const {
    return reads && is_inside(source_row, parameters.source_rows);
  }

  __device__ void read_upper(const T* ring, const ChannelsLastParameters& parameters) {
    const int above = slot == 0 ? parameters.ring.divisor() - 1 : slot - 1;
    read(ring, exists(row - 1, parameters), above, parameters, upper);
  }

  // Goes to the first row of results of a stretch, whose sources may not have arrived yet. A channel that is
  // not taken reads zeros: other rows arrive where its own would lie.
  __device__ void start(int result_row, bool is_taken, const ChannelsLastParameters& parameters) {
    reads = is_taken;
    if constexpr (!kFromOneRow) {
      row = result_row * (kStrided ? parameters.stride.divisor() : 1) + taps.row + 1;
      slot = row - divide_down(row, parameters.ring) * parameters.ring.divisor();
    }
  }

  // Adds zero times the gradient of each result of the forward pass that lies outside the image, for the
  // results that rows [first_row, end_row) answer for. A thread takes its own columns of rows that lie
  // outside. Of the columns outside in the other rows it takes every row that is its turn, so that its loads
  // do not wait for each other.
  __device__ void add_outside(const T* output_grad, int image, int first_row, int end_row, int channel,
                              int chunk, const ChannelsLastParameters& parameters) {
    const int width = parameters.width;
    if (chunk >= parameters.chunks) return;
    const Outside outside(taps, parameters.height, width, parameters.steps, parameters.stride);
    const int stride = parameters.stride.divisor();
    const int first_own = min(parameters.stride.divide(first_row + stride - 1), parameters.steps);
    const int end_own = min(parameters.stride.divide(end_row + stride - 1), parameters.steps);
    const int first_inside = min(max(outside.first_row, first_own), end_own);
    const int end_inside = max(min(outside.end_row, end_own), first_inside);
    const int64_t pitch = static_cast<int64_t>(width) * parameters.channels;
    const T* const grads = output_grad + image * parameters.steps * pitch + channel;
    const int first_column = chunk * kColumns;
    A nothing = 0;
    const int rows_outside = end_own - first_own - (end_inside - first_inside);
#pragma unroll 2
    for (int i = 0; i < rows_outside; ++i) {
      const int row =
          first_own + i < first_inside ? first_own + i : end_inside + i - (first_inside - first_own);
      const T* const from = grads + row * pitch + first_column * parameters.channels;
#pragma unroll
      for (int k = 0; k < kColumns; ++k) {
        if (first_column + k < width) nothing += A(0) * static_cast<A>(from[k * parameters.channels]);
      }
    }
    const int columns_outside = width - (outside.end_column - outside.first_column);
#pragma unroll 1
    for (int i = 0; i < columns_outside; ++i) {
      const int column = i < outside.first_column ? i : outside.end_column + i - outside.first_column;
      const T* const from = grads + column * parameters.channels;
#pragma unroll 8
      for (int row = first_inside + chunk; row < end_inside; row += parameters.chunks) {
        nothing += A(0) * static_cast<A>(from[row * pitch]);
      }
    }
    along_x += nothing;
    along_y += nothing;
  }

  // Computes one row of results, and adds what the inputs there contribute to the sums. With `checks` a
  // weight may be zero and the source that it weighs NaN or infinite. Results that are not finite are then
  // computed once more without the sources whose weight is zero. Selecting every source instead takes four
  // instructions a result; this check takes one.
  __device__ void take_row(const T* ring, int result_row, bool checks,
                           const ChannelsLastParameters& parameters, const A (&inputs)[kColumns],
                           A (&results)[kColumns]) {
    if constexpr (kFromOneRow) {
      take_row_from_one(ring, result_row, checks, parameters, inputs, results);
    } else {
      take_row_from_two(ring, checks, parameters, inputs, results);
    }
  }

 private:
  static __device__ A product(A weight, A value) { return weight * value; }
  static __device__ A selected(A weight, A value) { return weight * (weight != 0 ? value : A(0)); }

  // The transpose with a stride: a row of results lies on one row of sources, or on none.
  __device__ void take_row_from_one(const T* ring, int result_row, bool checks,
                                    const ChannelsLastParameters& parameters, const A (&inputs)[kColumns],
                                    A (&results)[kColumns]) {
    A lower[kColumns + 1];
    A blended[kColumns + 1];
    const int distance = result_row - taps.row;
    const int source_row = divide_down(distance, parameters.stride);
    const int phase = distance - source_row * parameters.stride.divisor();
    const int row_inside = min(max(source_row, 0), parameters.source_rows);
    const int slot_of_row = row_inside - parameters.ring.divide(row_inside) * parameters.ring.divisor();
    read(ring, phase < 2 && exists(source_row, parameters), slot_of_row, parameters, lower);
    const A weight = phase == 1 ? taps.upper : taps.lower;
#pragma unroll
    for (int i = 0; i <= kColumns; ++i) blended[i] = product(weight, lower[i]);
    blend_columns<product>(blended, results);
    if (checks && !are_finite(results)) {
#pragma unroll
      for (int i = 0; i <= kColumns; ++i) blended[i] = selected(weight, lower[i]);
      blend_columns<selected>(blended, results);
    }
    if constexpr (kSums) {
      A left = 0;
      A right = 0;
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        left += inputs[i] * lower[i];
        right += inputs[i] * lower[i + 1];
      }
      const A along_y_of_row = taps.left * left + taps.right * right;
      along_x += weight * (left - right);
      along_y += phase == 1 ? along_y_of_row : -along_y_of_row;
    }
  }

  // A row of results lies between two rows of sources; without a stride the upper one is known already.
  __device__ void take_row_from_two(const T* ring, bool checks, const ChannelsLastParameters& parameters,
                                    const A (&inputs)[kColumns], A (&results)[kColumns]) {
    A lower[kColumns + 1];
    A blended[kColumns + 1];
    if constexpr (!kKeepsRow) read_upper(ring, parameters);
    read(ring, exists(row, parameters), slot, parameters, lower);
#pragma unroll
    for (int i = 0; i <= kColumns; ++i) {
      blended[i] = product(taps.upper, upper[i]) + product(taps.lower, lower[i]);
    }
    blend_columns<product>(blended, results);
    if (checks && !are_finite(results)) {
#pragma unroll
      for (int i = 0; i <= kColumns; ++i) {
        blended[i] = selected(taps.upper, upper[i]) + selected(taps.lower, lower[i]);
      }
      blend_columns<selected>(blended, results);
    }
    if constexpr (kSums) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        sums.upper_left += inputs[i] * upper[i];
        sums.upper_right += inputs[i] * upper[i + 1];
        sums.lower_left += inputs[i] * lower[i];
        sums.lower_right += inputs[i] * lower[i + 1];
      }
    }
    if constexpr (kKeepsRow) {
#pragma unroll
      for (int i = 0; i <= kColumns; ++i) upper[i] = lower[i];
    }
    row += kStrided ? parameters.stride.divisor() : 1;
    slot += parameters.slots_of_row;
    if (slot >= parameters.ring.divisor()) slot -= parameters.ring.divisor();
  }

  __device__ static bool are_finite(const A (&results)[kColumns]) {
    A sum = results[0];
#pragma unroll
    for (int i = 1; i < kColumns; ++i) sum += results[i];
    return sum - sum == 0;
  }

  template <A (*kProduct)(A, A)>
  __device__ void blend_columns(const A (&blended)[kColumns + 1], A (&results)[kColumns]) const {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      results[i] = kProduct(taps.left, blended[i]) + kProduct(taps.right, blended[i + 1]);
    }
  }
};

}  // namespace torchgraft::shift::cuda
