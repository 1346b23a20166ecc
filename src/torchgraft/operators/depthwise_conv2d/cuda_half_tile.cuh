// Tiles of halves in shared memory: how a box of an image tensor, NCHW or NHWC, comes and goes.
//
// A box is some images, some channels and a rectangle of their planes, which may reach over the borders of the
// image. In shared memory every plane of it is a rectangle of its own, [image][channel][row][column] with free
// pitches, the same for both layouts, so that what computes on a tile need not know where it came from.
// Halves are moved and not computed with: a tile knows float16 and bfloat16 alike as uint16_t.
//
// NCHW: where the planes of a box, or their rows, are runs of whole sixteen bytes, these move, and are taken
// apart into units of 4, 2 or 1 elements, none of which crosses the end of a row; elsewhere units move alone.
//
// NHWC: a lane moves eight channels (sixteen bytes) of two neighbouring pixels; eight byte permutations make
// one pair of pixels a channel of it, which are four bytes of a plane's row. `TilePitch::group` keeps lanes of
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
  int group;  // what eight neighbouring channels take beyond eight times `channel`; 0 for NCHW

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

// How the planes of a tensor are accessed.
struct PlaneAccess {
  bool vectors;  // sixteen bytes at a time
  int unit;      // elements that are neighbours in shared memory too: 4, 2 or 1
};

// For boxes of `box_channels` channels from a multiple of box_channels on, whose columns are shifted by `lead`
// in shared memory: column 0 of a box is a multiple of eight less `lead`. whole_rows, whole_planes: whether
// boxes hold them.
inline PlaneAccess plane_access(const void* images, int channels, int height, int width, int lead,
                                int box_channels, bool whole_rows, bool whole_planes) {
  PlaneAccess access = {false, 4};
  while (width % access.unit != 0 || lead % access.unit != 0 || !is_aligned(images, 2 * access.unit)) {
    access.unit /= 2;
  }
  const int64_t plane = static_cast<int64_t>(height) * width;
  const bool whole_runs =
      whole_planes && width >= 7 && plane * channels % 8 == 0 && plane * box_channels % 8 == 0;
  access.vectors = whole_rows && is_aligned(images, 16) && (width % 8 == 0 || whole_runs);
  return access;
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

template <int kUnit>
struct UnitBits;
template <>
struct UnitBits<1> {
  using type = uint16_t;
};
template <>
struct UnitBits<2> {
  using type = uint32_t;
};
template <>
struct UnitBits<4> {
  using type = uint2;
};

// Sixteen bytes as units.
template <int kUnit>
union VectorUnits {
  uint4 vector;
  typename UnitBits<kUnit>::type units[8 / kUnit];
};

// The runs of sixteen bytes of a box: its whole planes of one image are one, or else its rows of one plane.
// A vector lies in two rows at most.
class PlaneVectors {
 public:
  struct Place {
    int64_t memory;
    // In shared memory: element i of the vector is behind `first` if it is below `left`, else behind `second`.
    int first, second, left;
  };

  // Runs are counted within a group: all images, or one image.
  __device__ PlaneVectors(const TileImages& sizes, const TileBox& box, const TilePitch& pitch)
      : width_(sizes.width), height_(sizes.height), pitch_row_(pitch.row), pitch_channel_(pitch.channel) {
    const TilePart part(sizes, box, pitch);
    const bool whole_planes = part.rows == height_.divisor();
    rows_ = part.rows;
    groups = part.empty() ? 0 : whole_planes ? 1 : box.images;
    runs = whole_planes ? box.images : box.channels;
    vectors_of_run = max((whole_planes ? box.channels : 1) * part.rows * width_.divisor() / 8, 1);
    run_memory_ = whole_planes ? sizes.image() : sizes.plane();
    run_shared_ = whole_planes ? pitch.image : pitch.channel;
    group_memory_ = sizes.image();
    group_shared_ = pitch.image;
    row_gap_ = pitch.row - width_.divisor();
    plane_gap_ = pitch.channel - part.rows * pitch.row;
    memory_ = box.first_image * static_cast<int64_t>(sizes.image()) + box.first_channel * sizes.plane() +
              part.first_row * width_.divisor();
    shared_ = part.shared;
  }

  int groups, runs, vectors_of_run;

  __device__ void next_group() {
    memory_ += group_memory_;
    shared_ += group_shared_;
  }

  __device__ Place at(int run, int vector) const {
    const int start = vector * 8;
    int row = width_.divide(start);
    const int column = start - row * width_.divisor();
    const int channel = height_.divide(row);  // 0 where a run is of one plane
    row -= channel * height_.divisor();
    const int first = shared_ + run * run_shared_ + channel * pitch_channel_ + row * pitch_row_ + column;
    const int gap = row_gap_ + (row + 1 == rows_ ? plane_gap_ : 0);
    return {memory_ + static_cast<int64_t>(run) * run_memory_ + start, first, first + gap,
            width_.divisor() - column};
  }

 private:
  FastDivisor width_, height_;
  int pitch_row_, pitch_channel_, rows_;
  int run_memory_, run_shared_, group_memory_, group_shared_;
  int row_gap_, plane_gap_, shared_;
  int64_t memory_;
};

template <int kUnit>
__device__ void load_plane_vectors(const HalfBits* __restrict__ images, PlaneVectors& vectors,
                                   HalfBits* shared) {
  constexpr int kBatch = 4;
  for (int group = 0; group < vectors.groups; ++group, vectors.next_group()) {
  Odometer at(threadIdx.x, blockDim.x, vectors.vectors_of_run);
  while (at.outer < vectors.runs) {
    PlaneVectors::Place places[kBatch];
    VectorUnits<kUnit> values[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      places[i].left = -1;
      if (at.outer < vectors.runs) {
        places[i] = vectors.at(at.outer, at.inner);
        values[i].vector = __ldg(reinterpret_cast<const uint4*>(images + places[i].memory));
      }
      at.advance();
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (places[i].left < 0) continue;
#pragma unroll
      for (int unit = 0; unit < 8 / kUnit; ++unit) {
        HalfBits* part = shared + (unit * kUnit < places[i].left ? places[i].first : places[i].second);
        *reinterpret_cast<typename UnitBits<kUnit>::type*>(part + unit * kUnit) = values[i].units[unit];
      }
    }
  }
  }
}

template <int kUnit>
__device__ void store_plane_vectors(HalfBits* images, PlaneVectors& vectors, const HalfBits* shared) {
  for (int group = 0; group < vectors.groups; ++group, vectors.next_group()) {
  Odometer at(threadIdx.x, blockDim.x, vectors.vectors_of_run);
#pragma unroll 2
  for (; at.outer < vectors.runs; at.advance()) {
    const PlaneVectors::Place place = vectors.at(at.outer, at.inner);
    VectorUnits<kUnit> values;
#pragma unroll
    for (int unit = 0; unit < 8 / kUnit; ++unit) {
      const HalfBits* part = shared + (unit * kUnit < place.left ? place.first : place.second);
      values.units[unit] = *reinterpret_cast<const typename UnitBits<kUnit>::type*>(part + unit * kUnit);
    }
    *reinterpret_cast<uint4*>(images + place.memory) = values.vector;
  }
  }
}

// Calls `move(offset in memory, offset in shared memory)` for every unit of a box of NCHW planes.
template <int kUnit, typename Move>
__device__ void for_each_plane_unit(const TileImages& sizes, const TileBox& box, const TilePitch& pitch,
                                    const Move& move) {
  const TilePart part(sizes, box, pitch);
  if (part.empty()) return;
  const int units = part.columns / kUnit;
  const int lanes = min(units, static_cast<int>(blockDim.x));
  const int rows_at_once = blockDim.x / lanes;
  const int first_row = threadIdx.x / lanes;
  if (first_row >= rows_at_once) return;
  for (int unit = threadIdx.x - first_row * lanes; unit < units; unit += lanes) {
    for (int image = 0; image < box.images; ++image) {
      const int64_t memory = (box.first_image + image) * static_cast<int64_t>(sizes.image()) +
                             box.first_channel * sizes.plane() + part.first_row * sizes.width.divisor() +
                             part.first_column + unit * kUnit;
      const int shared = part.shared + image * pitch.image + unit * kUnit;
      Odometer at(first_row, rows_at_once, part.rows);
#pragma unroll 4
      for (; at.outer < box.channels; at.advance()) {
        move(memory + (at.outer * sizes.plane() + at.inner * sizes.width.divisor()),
             shared + at.outer * pitch.channel + at.inner * pitch.row);
      }
    }
  }
}

template <int kUnit>
__device__ void load_plane_units(const HalfBits* __restrict__ images, const TileImages& sizes,
                                 const TileBox& box, const TilePitch& pitch, HalfBits* shared) {
  using Unit = typename UnitBits<kUnit>::type;
  for_each_plane_unit<kUnit>(sizes, box, pitch, [&](int64_t memory, int index) {
    *reinterpret_cast<Unit*>(shared + index) = __ldg(reinterpret_cast<const Unit*>(images + memory));
  });
}

template <int kUnit>
__device__ void store_plane_units(HalfBits* images, const TileImages& sizes, const TileBox& box,
                                  const TilePitch& pitch, const HalfBits* shared) {
  using Unit = typename UnitBits<kUnit>::type;
  for_each_plane_unit<kUnit>(sizes, box, pitch, [&](int64_t memory, int index) {
    *reinterpret_cast<Unit*>(images + memory) = *reinterpret_cast<const Unit*>(shared + index);
  });
}

// NCHW. What lies outside the image is left as it is: clear the tile first, and wait for all threads in
// between. `access` comes from plane_access.
__device__ inline void load_half_planes(const HalfBits* __restrict__ images, const TileImages& sizes,
                                        const TileBox& box, const TilePitch& pitch,
                                        const PlaneAccess& access, HalfBits* shared) {
  if (access.vectors) {
    PlaneVectors vectors(sizes, box, pitch);
    if (access.unit == 4) return load_plane_vectors<4>(images, vectors, shared);
    if (access.unit == 2) return load_plane_vectors<2>(images, vectors, shared);
    return load_plane_vectors<1>(images, vectors, shared);
  }
  if (access.unit == 4) return load_plane_units<4>(images, sizes, box, pitch, shared);
  if (access.unit == 2) return load_plane_units<2>(images, sizes, box, pitch, shared);
  return load_plane_units<1>(images, sizes, box, pitch, shared);
}

// NCHW: the part of the box that lies in the image is written.
__device__ inline void store_half_planes(HalfBits* images, const TileImages& sizes, const TileBox& box,
                                         const TilePitch& pitch, const PlaneAccess& access,
                                         const HalfBits* shared) {
  if (access.vectors) {
    PlaneVectors vectors(sizes, box, pitch);
    if (access.unit == 4) return store_plane_vectors<4>(images, vectors, shared);
    if (access.unit == 2) return store_plane_vectors<2>(images, vectors, shared);
    return store_plane_vectors<1>(images, vectors, shared);
  }
  if (access.unit == 4) return store_plane_units<4>(images, sizes, box, pitch, shared);
  if (access.unit == 2) return store_plane_units<2>(images, sizes, box, pitch, shared);
  return store_plane_units<1>(images, sizes, box, pitch, shared);
}

// For a NHWC box of so many channels, a multiple of eight: the `group` that keeps lanes in different banks.
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
