// Tiles of NHWC halves in shared memory: how a box of an image tensor comes and goes.
//
// A box is some images, some channels and a rectangle of their planes, which may reach over the borders of
// the image. In shared memory every plane of it is a rectangle of its own, [image][channel][row][column] with
// free pitches. Halves are moved and not computed with: a tile knows float16 and bfloat16 alike as uint16_t.
//
// A lane moves eight channels (sixteen bytes) of two neighbouring pixels; eight byte permutations make one
// pair of pixels a channel of it, which are four bytes of a plane's row. `TilePitch::group` keeps lanes of
// different channels in different banks.
#pragma once

#include <torchgraft/cuda.cuh>

#include <cstdint>

namespace torchgraft::depthwise::cuda {

using HalfBits = uint16_t;

// The sizes of an image tensor. One image has less than 2**31 elements.
struct TileImages {
  int channels;
  FastDivisor height, width;

  __device__ int plane() const { return height.divisor() * width.divisor(); }
  __device__ int image() const { return channels * plane(); }
};

// What a tile holds of it; rows and columns may lie outside the image, images and channels must not.
struct TileBox {
  int first_image, images;
  int first_channel, channels;
  int first_row, rows;
  int first_column, columns;
};

// Where it lies in shared memory: steps in elements, all multiples of eight (sixteen bytes).
struct TilePitch {
  int row, image, channel;
  int group;  // what eight neighbouring channels take beyond eight times `channel`

  __host__ __device__ int plane(int image_index, int channel_index) const {
    return image_index * image + channel_index * channel + (channel_index >> 3) * group;
  }
};

// `elements` is a multiple of eight.
__device__ inline void clear_half_tile(HalfBits* shared, int elements) {
#pragma unroll 4
  for (int i = threadIdx.x * 8; i < elements; i += blockDim.x * 8) {
    *reinterpret_cast<uint4*>(shared + i) = make_uint4(0, 0, 0, 0);
  }
}

// The part of a box that lies in the image.
struct TilePart {
  int first_row, first_column;  // in the image
  int rows, columns;
  int shared;  // offset of its first element in a plane of shared memory

  __device__ TilePart(const TileImages& sizes, const TileBox& box, const TilePitch& pitch)
      : first_row(max(box.first_row, 0)),
        first_column(max(box.first_column, 0)),
        rows(min(box.first_row + box.rows, sizes.height.divisor()) - first_row),
        columns(min(box.first_column + box.columns, sizes.width.divisor()) - first_column),
        shared((first_row - box.first_row) * pitch.row + first_column - box.first_column) {}

  __device__ bool empty() const { return rows <= 0 || columns <= 0; }
};

// Counts through (outer, inner), inner below `count`, in steps of so many inner.
struct Odometer {
  int outer, inner;

  __device__ Odometer(int start, int step, int count) : count_(count) {
    outer = start / count;
    inner = start - outer * count;
    outer_step_ = step / count;
    inner_step_ = step - outer_step_ * count;
  }

  __device__ void advance() {
    outer += outer_step_;
    inner += inner_step_;
    if (inner >= count_) {
      inner -= count_;
      ++outer;
    }
  }

 private:
  int count_, outer_step_, inner_step_;
};

// For a box of so many channels, a multiple of eight: the `group` that keeps lanes in different banks.
inline int channels_last_group(int channels) {
  return channels <= 8 ? 0 : channels <= 16 ? 32 : channels <= 32 ? 16 : 8;
}

// Eight channels of two pixels become a pair of pixels for each channel, and back.
__device__ inline void pair_pixels(const uint4& left, const uint4& right, uint32_t (&pairs)[8]) {
  const uint32_t lefts[4] = {left.x, left.y, left.z, left.w};
  const uint32_t rights[4] = {right.x, right.y, right.z, right.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    pairs[2 * i] = __byte_perm(lefts[i], rights[i], 0x5410);
    pairs[2 * i + 1] = __byte_perm(lefts[i], rights[i], 0x7632);
  }
}

__device__ inline void part_pixels(const uint32_t (&pairs)[8], uint4& left, uint4& right) {
  uint32_t lefts[4], rights[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    lefts[i] = __byte_perm(pairs[2 * i], pairs[2 * i + 1], 0x5410);
    rights[i] = __byte_perm(pairs[2 * i], pairs[2 * i + 1], 0x7632);
  }
  left = make_uint4(lefts[0], lefts[1], lefts[2], lefts[3]);
  right = make_uint4(rights[0], rights[1], rights[2], rights[3]);
}

// The pairs of pixels of a NHWC box that lie in the image, as a thread goes through them: it keeps to eight
// channels and one column of pairs.
class PixelPairs {
 public:
  struct Place {
    int64_t memory;
    int shared;
  };

  __device__ PixelPairs(const TileImages& sizes, const TileBox& box, const TilePitch& pitch)
      : part_(sizes, box, pitch), box_(box), pitch_(pitch) {
    const int groups = box.channels / 8;
    const int lanes = blockDim.x / groups;
    const int lane = threadIdx.x / groups;
    channel = (threadIdx.x - lane * groups) * 8;
    first_pair_ = (part_.first_column - box.first_column) / 2;
    pairs_ = (part_.first_column - box.first_column + part_.columns + 1) / 2 - first_pair_;
    lanes_ = max(min(pairs_, lanes), 1);
    rows_at_once_ = lanes / lanes_;
    first_row_ = lane / lanes_;
    pair_ = lane - first_row_ * lanes_;
    if (part_.empty() || first_row_ >= rows_at_once_) pair_ = pairs_;
    channels_ = sizes.channels;
    width_ = sizes.width.divisor();
    image_ = sizes.image();
    memory_ = box.first_image * static_cast<int64_t>(image_) + box.first_channel + channel +
              part_.first_row * (width_ * channels_);
    shared_ = (part_.first_row - box.first_row) * pitch.row;
  }

  int channel;  // of the box, the first of eight

  // Columns of pairs that the thread goes through, mostly one.
  __device__ bool more() const { return pair_ < pairs_; }
  __device__ void next_column() { pair_ += lanes_; }

  // Rows of that column, counted over images.
  __device__ Odometer rows() const { return Odometer(first_row_, rows_at_once_, part_.rows); }
  __device__ bool more_rows(const Odometer& at) const { return at.outer < box_.images; }

  // Whether the left and the right pixel of the pairs of this column lie in the image.
  __device__ bool left_inside() const { return column() >= 0; }
  __device__ bool right_inside() const { return column() + 1 < width_; }

  // Of the left pixel.
  __device__ Place at(const Odometer& at) const {
    return {memory_ + static_cast<int64_t>(at.outer) * image_ +
                (at.inner * (width_ * channels_) + column() * channels_),
            shared_ + at.outer * pitch_.image + at.inner * pitch_.row + 2 * (first_pair_ + pair_)};
  }

 private:
  __device__ int column() const { return box_.first_column + 2 * (first_pair_ + pair_); }

  TilePart part_;
  TileBox box_;
  TilePitch pitch_;
  int first_pair_, pairs_, lanes_, rows_at_once_, first_row_, pair_;
  int channels_, width_, image_, shared_;
  int64_t memory_;
};

// NHWC, on a sixteen-byte boundary. Pairs of columns that meet the image are written, with zero for a pixel
// outside; the rest is left as it is: clear the tile first, and wait for all threads in between.
__device__ inline void load_half_pixels(const HalfBits* __restrict__ images, const TileImages& sizes,
                                        const TileBox& box, const TilePitch& pitch, HalfBits* shared) {
  constexpr int kBatch = 2;
  PixelPairs pairs(sizes, box, pitch);
  HalfBits* shared_first = shared + pitch.plane(0, pairs.channel);
  for (; pairs.more(); pairs.next_column()) {
    const bool left = pairs.left_inside();
    const bool right = pairs.right_inside();
    Odometer at = pairs.rows();
    while (pairs.more_rows(at)) {
      uint4 values[kBatch][2];
      int index[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        index[i] = -1;
        if (pairs.more_rows(at)) {
          const PixelPairs::Place place = pairs.at(at);
          const HalfBits* pixel = images + place.memory;
          index[i] = place.shared;
          values[i][0] = values[i][1] = make_uint4(0, 0, 0, 0);
          if (left) values[i][0] = __ldg(reinterpret_cast<const uint4*>(pixel));
          if (right) values[i][1] = __ldg(reinterpret_cast<const uint4*>(pixel + sizes.channels));
        }
        at.advance();
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (index[i] < 0) continue;
        uint32_t channel_pairs[8];
        pair_pixels(values[i][0], values[i][1], channel_pairs);
        HalfBits* target = shared_first + index[i];
#pragma unroll
        for (int channel = 0; channel < 8; ++channel, target += pitch.channel) {
          *reinterpret_cast<uint32_t*>(target) = channel_pairs[channel];
        }
      }
    }
  }
}

// NHWC, on a sixteen-byte boundary: the part of the box that lies in the image is written.
__device__ inline void store_half_pixels(HalfBits* images, const TileImages& sizes, const TileBox& box,
                                         const TilePitch& pitch, const HalfBits* shared) {
  PixelPairs pairs(sizes, box, pitch);
  const HalfBits* shared_first = shared + pitch.plane(0, pairs.channel);
  for (; pairs.more(); pairs.next_column()) {
    const bool left = pairs.left_inside();
    const bool right = pairs.right_inside();
#pragma unroll 2
    for (Odometer at = pairs.rows(); pairs.more_rows(at); at.advance()) {
      const PixelPairs::Place place = pairs.at(at);
      const HalfBits* source = shared_first + place.shared;
      uint32_t channel_pairs[8];
#pragma unroll
      for (int channel = 0; channel < 8; ++channel, source += pitch.channel) {
        channel_pairs[channel] = *reinterpret_cast<const uint32_t*>(source);
      }
      uint4 left_pixel, right_pixel;
      part_pixels(channel_pairs, left_pixel, right_pixel);
      HalfBits* pixel = images + place.memory;
      if (left) *reinterpret_cast<uint4*>(pixel) = left_pixel;
      if (right) *reinterpret_cast<uint4*>(pixel + sizes.channels) = right_pixel;
    }
  }
}

}  // namespace torchgraft::depthwise::cuda
