// Tiles of halves in shared memory: how a box of an image tensor, NCHW or NHWC, comes and goes.
//
// A box is some images, some channels and a rectangle of their planes, which may reach over the borders of
// the image. In shared memory every plane of it is a rectangle of its own, [image][channel][row][column] with
// free pitches, the same for both layouts, so that what computes on a tile need not know where it came from.
// Halves are moved and not computed with: a tile knows float16 and bfloat16 alike as uint16_t.
//
// NCHW: the part of a box that lies in the image is one run of neighbouring elements an image, or one a
// plane, or one a row. A run moves sixteen bytes at a time whatever the width of the plane, and is taken
// apart into units of 8, 4, 2 or 1 elements, none of which crosses the end of a row. Some five instructions
// an element.
//
// NHWC: a lane moves eight channels (sixteen bytes) of two neighbouring pixels; eight byte permutations make
// one pair of pixels a channel of it, which are four bytes of a plane's row. Some three instructions an
// element. `TilePitch::group` keeps lanes of different channels in different banks.
#pragma once

#include <torchgraft/cuda.cuh>

#include <cstdint>

namespace torchgraft::depthwise::cuda {

using HalfBits = uint16_t;

// The sizes of an image tensor.
struct TileImages {
  int channels;
  FastDivisor height, width;
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
  for (int i = threadIdx.x * 8; i < elements; i += blockDim.x * 8) {
    *reinterpret_cast<uint4*>(shared + i) = make_uint4(0, 0, 0, 0);
  }
}

// The largest unit (8, 4, 2, 1) in which runs of planes of this width can be taken apart: it divides the
// width, the address of every plane, and `lead`, how far columns are shifted in shared memory.
inline int tile_unit(const void* images, int width, int lead) {
  int unit = 8;
  while (width % unit != 0 || lead % unit != 0 || !is_aligned(images, 2 * unit)) unit /= 2;
  return unit;
}

// Eight neighbouring elements of a run, on a sixteen-byte boundary behind `memory`; [begin, end) of them
// belong to the run.
template <typename Memory>
struct RunVector {
  Memory* memory;
  int begin, end;
  int index;        // in shared memory, of element `begin`
  int row, column;  // in the part of the plane that runs cover

  __device__ bool whole() const { return end - begin == 8; }
  __device__ bool empty() const { return end <= begin; }
};

// The runs of a box of NCHW planes.
class TileRuns {
 public:
  __device__ TileRuns(const TileImages& images, const TileBox& box, const TilePitch& pitch)
      : box_(box), pitch_(pitch), width_(images.width), plane_channels_(images.channels) {
    const int height = images.height.divisor();
    const int first_row = max(box.first_row, 0);
    const int first_column = max(box.first_column, 0);
    rows_ = min(box.first_row + box.rows, height) - first_row;
    columns_ = min(box.first_column + box.columns, width_.divisor()) - first_column;
    if (rows_ <= 0 || columns_ <= 0) {
      rows_ = 0;
      columns_ = 0;
    }
    first_ = first_row * static_cast<int64_t>(width_.divisor()) + first_column;
    shared_first_ = (first_row - box.first_row) * pitch.row + first_column - box.first_column;
    plane_ = height * static_cast<int64_t>(width_.divisor());
    const bool whole_rows = columns_ == width_.divisor();
    whole_planes_ = whole_rows && rows_ == height;
    rows_of_run_ = whole_rows ? rows_ : 1;
    runs_of_plane_ = rows_ == 0 ? 0 : rows_ / rows_of_run_;
    runs_ = box.images * (whole_planes_ ? 1 : box.channels * runs_of_plane_);
    length_ = (whole_planes_ ? box.channels : 1) * rows_of_run_ * columns_;
    // Whole planes are crossed where a run meets their last row.
    height_ = images.height;
    row_gap_ = pitch.row - columns_;
    plane_gap_ = pitch.channel - rows_ * pitch.row;
  }

  __device__ int runs() const { return rows_ == 0 ? 0 : runs_; }
  // The most vectors that a run can touch.
  __device__ int vectors_of_run() const { return length_ / 8 + 2; }

  template <typename Memory>
  __device__ RunVector<Memory> at(Memory* images, int run, int vector) const {
    int image = run;
    int channel = 0;
    int row = 0;
    if (!whole_planes_) {
      const int plane = run / runs_of_plane_;
      row = run - plane * runs_of_plane_;
      image = plane / box_.channels;
      channel = plane - image * box_.channels;
    }
    Memory* memory =
        images +
        ((box_.first_image + image) * static_cast<int64_t>(plane_channels_) + box_.first_channel + channel) *
            plane_ +
        first_ + row * static_cast<int64_t>(width_.divisor());
    const int behind = static_cast<int>(reinterpret_cast<uintptr_t>(memory) % 16 / sizeof(HalfBits));
    const int element = vector * 8 - behind;
    RunVector<Memory> result{memory + element, max(-element, 0), min(length_ - element, 8), 0, 0, 0};
    if (result.empty()) return result;
    const int start = max(element, 0);
    int run_row = columns_ == width_.divisor() ? width_.divide(start) : 0;
    result.column = start - run_row * columns_;
    if (whole_planes_) {
      channel = height_.divide(run_row);
      run_row -= channel * rows_;
    }
    result.row = run_row;
    result.index =
        shared_first_ + pitch_.plane(image, channel) + (row + run_row) * pitch_.row + result.column;
    return result;
  }

  // From a unit to the next one of the run.
  template <int kUnit, typename Memory>
  __device__ void next(RunVector<Memory>& vector) const {
    vector.index += kUnit;
    vector.column += kUnit;
    if (vector.column < columns_) return;
    vector.column = 0;
    vector.index += row_gap_;
    if (++vector.row < rows_) return;
    vector.row = 0;
    vector.index += plane_gap_;
  }

 private:
  TileBox box_;
  TilePitch pitch_;
  FastDivisor width_, height_;
  int plane_channels_;
  int64_t plane_, first_;
  int shared_first_;
  int rows_, columns_;
  bool whole_planes_;
  int rows_of_run_, runs_of_plane_, runs_, length_;
  int row_gap_, plane_gap_;
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
template <>
struct UnitBits<8> {
  using type = uint4;
};

// Sixteen bytes as units.
template <int kUnit>
union VectorUnits {
  uint4 vector;
  typename UnitBits<kUnit>::type units[8 / kUnit];
};

// Calls `move(vectors)` with kBatch vectors at a time of the thread.
template <int kBatch, typename Memory, typename Move>
__device__ void for_each_batch(Memory* images, const TileRuns& runs, const Move& move) {
  const int vectors_of_run = runs.vectors_of_run();
  const int count = runs.runs();
  int run = threadIdx.x / vectors_of_run;
  int vector = threadIdx.x - run * vectors_of_run;
  while (run < count) {
    RunVector<Memory> vectors[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      vectors[i] = RunVector<Memory>{};
      if (run < count) vectors[i] = runs.at(images, run, vector);
      vector += blockDim.x;
      while (vector >= vectors_of_run) {
        vector -= vectors_of_run;
        ++run;
      }
    }
    move(vectors);
  }
}

template <int kUnit>
__device__ void load_plane_units(const HalfBits* __restrict__ images, const TileRuns& runs,
                                 HalfBits* shared) {
  using Unit = typename UnitBits<kUnit>::type;
  constexpr int kBatch = 4;
  for_each_batch<kBatch>(images, runs, [&](RunVector<const HalfBits>(&vectors)[kBatch]) {
    VectorUnits<kUnit> values[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (vectors[i].whole()) values[i].vector = __ldg(reinterpret_cast<const uint4*>(vectors[i].memory));
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      RunVector<const HalfBits>& vector = vectors[i];
      if (vector.whole()) {
#pragma unroll
        for (int unit = 0; unit < 8 / kUnit; ++unit) {
          *reinterpret_cast<Unit*>(shared + vector.index) = values[i].units[unit];
          runs.next<kUnit>(vector);
        }
      } else {
        for (int element = vector.begin; element < vector.end; ++element, runs.next<1>(vector)) {
          shared[vector.index] = vector.memory[element];
        }
      }
    }
  });
}

template <int kUnit>
__device__ void store_plane_units(HalfBits* images, const TileRuns& runs, const HalfBits* shared) {
  using Unit = typename UnitBits<kUnit>::type;
  constexpr int kBatch = 2;
  for_each_batch<kBatch>(images, runs, [&](RunVector<HalfBits>(&vectors)[kBatch]) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      RunVector<HalfBits>& vector = vectors[i];
      if (vector.whole()) {
        VectorUnits<kUnit> values;
#pragma unroll
        for (int unit = 0; unit < 8 / kUnit; ++unit) {
          values.units[unit] = *reinterpret_cast<const Unit*>(shared + vector.index);
          runs.next<kUnit>(vector);
        }
        *reinterpret_cast<uint4*>(vector.memory) = values.vector;
      } else {
        for (int element = vector.begin; element < vector.end; ++element, runs.next<1>(vector)) {
          vector.memory[element] = shared[vector.index];
        }
      }
    }
  });
}

// NCHW. What lies outside the image is left as it is: clear the tile first, and wait for all threads in
// between. `unit` comes from tile_unit.
__device__ inline void load_half_planes(const HalfBits* __restrict__ images, const TileImages& sizes,
                                        const TileBox& box, const TilePitch& pitch, int unit,
                                        HalfBits* shared) {
  const TileRuns runs(sizes, box, pitch);
  switch (unit) {
    case 8:
      return load_plane_units<8>(images, runs, shared);
    case 4:
      return load_plane_units<4>(images, runs, shared);
    case 2:
      return load_plane_units<2>(images, runs, shared);
    default:
      return load_plane_units<1>(images, runs, shared);
  }
}

// NCHW: the part of the box that lies in the image is written.
__device__ inline void store_half_planes(HalfBits* images, const TileImages& sizes, const TileBox& box,
                                         const TilePitch& pitch, int unit, const HalfBits* shared) {
  const TileRuns runs(sizes, box, pitch);
  switch (unit) {
    case 8:
      return store_plane_units<8>(images, runs, shared);
    case 4:
      return store_plane_units<4>(images, runs, shared);
    case 2:
      return store_plane_units<2>(images, runs, shared);
    default:
      return store_plane_units<1>(images, runs, shared);
  }
}

// The channels of a NHWC box are a multiple of eight, and so are those of the images.
// group: for a box of so many channels, what keeps the lanes that load or store it in different banks.
__host__ __device__ inline int channels_last_group(int channels) {
  return channels <= 8 ? 0 : channels <= 16 ? 32 : channels <= 32 ? 16 : 8;
}

// The pairs of pixels of a box and the eight channels that a thread moves of each.
class TilePairs {
 public:
  // Pairs [first_pair, first_pair + pairs_of_row) of every row of the box are moved, of which the first lies
  // in columns 2 * first_pair and the next one. rows_of_image divides by the rows of the box, channel_groups
  // by the groups of eight channels of a (whole) box.
  __device__ TilePairs(int first_pair, const FastDivisor& pairs_of_row, const FastDivisor& rows_of_image,
                       const FastDivisor& channel_groups, const TileBox& box)
      : first_pair_(first_pair), pairs_of_row_(pairs_of_row), rows_of_image_(rows_of_image) {
    const int lane_pair = channel_groups.divide(threadIdx.x);
    channel = (static_cast<int>(threadIdx.x) - lane_pair * channel_groups.divisor()) * 8;
    step = blockDim.x / channel_groups.divisor();
    first = lane_pair;
    end = channel < box.channels && lane_pair < step
              ? box.images * rows_of_image.divisor() * pairs_of_row.divisor()
              : 0;
  }

  int channel;           // of the box
  int first, step, end;  // of the pairs

  struct Place {
    int image, row, column;
  };
  __device__ Place at(int pair) const {
    const int image_row = pairs_of_row_.divide(pair);
    const int image = rows_of_image_.divide(image_row);
    return {image, image_row - image * rows_of_image_.divisor(),
            2 * (first_pair_ + pair - image_row * pairs_of_row_.divisor())};
  }

 private:
  int first_pair_;
  FastDivisor pairs_of_row_, rows_of_image_;
};

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

// NHWC, on a sixteen-byte boundary. Rows outside the image are left as they are: clear the tile first, and
// wait for all threads in between.
__device__ inline void load_half_pixels(const HalfBits* __restrict__ images, const TileImages& sizes,
                                        const TileBox& box, const TilePitch& pitch, const TilePairs& pairs,
                                        HalfBits* shared) {
  constexpr int kBatch = 2;
  const int height = sizes.height.divisor();
  const int width = sizes.width.divisor();
  const int64_t image_elements = static_cast<int64_t>(height) * width * sizes.channels;
  const HalfBits* first = images + box.first_image * image_elements + box.first_channel + pairs.channel;
  HalfBits* shared_first = shared + pitch.plane(0, pairs.channel);
  for (int pair = pairs.first; pair < pairs.end; pair += kBatch * pairs.step) {
    uint4 values[kBatch][2];
    int index[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      index[i] = -1;
      values[i][0] = values[i][1] = make_uint4(0, 0, 0, 0);
      if (pair + i * pairs.step >= pairs.end) continue;
      const TilePairs::Place place = pairs.at(pair + i * pairs.step);
      const int y = box.first_row + place.row;
      if (y < 0 || y >= height) continue;
      index[i] = place.image * pitch.image + place.row * pitch.row + place.column;
      const int x = box.first_column + place.column;
      const HalfBits* pixel =
          first + place.image * image_elements + (static_cast<int64_t>(y) * width + x) * sizes.channels;
      if (x >= 0 && x < width) values[i][0] = __ldg(reinterpret_cast<const uint4*>(pixel));
      if (x + 1 >= 0 && x + 1 < width) {
        values[i][1] = __ldg(reinterpret_cast<const uint4*>(pixel + sizes.channels));
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (index[i] < 0) continue;
      uint32_t channel_pairs[8];
      pair_pixels(values[i][0], values[i][1], channel_pairs);
#pragma unroll
      for (int channel = 0; channel < 8; ++channel) {
        *reinterpret_cast<uint32_t*>(shared_first + index[i] + channel * pitch.channel) =
            channel_pairs[channel];
      }
    }
  }
}

// NHWC, on a sixteen-byte boundary: the part of the box that lies in the image is written.
__device__ inline void store_half_pixels(HalfBits* images, const TileImages& sizes, const TileBox& box,
                                         const TilePitch& pitch, const TilePairs& pairs,
                                         const HalfBits* shared) {
  const int height = sizes.height.divisor();
  const int width = sizes.width.divisor();
  const int64_t image_elements = static_cast<int64_t>(height) * width * sizes.channels;
  HalfBits* first = images + box.first_image * image_elements + box.first_channel + pairs.channel;
  const HalfBits* shared_first = shared + pitch.plane(0, pairs.channel);
#pragma unroll 2
  for (int pair = pairs.first; pair < pairs.end; pair += pairs.step) {
    const TilePairs::Place place = pairs.at(pair);
    const int y = box.first_row + place.row;
    const int x = box.first_column + place.column;
    if (y >= height || x >= width) continue;
    const HalfBits* source = shared_first + place.image * pitch.image + place.row * pitch.row + place.column;
    uint32_t channel_pairs[8];
#pragma unroll
    for (int channel = 0; channel < 8; ++channel) {
      channel_pairs[channel] = *reinterpret_cast<const uint32_t*>(source + channel * pitch.channel);
    }
    uint4 left, right;
    part_pixels(channel_pairs, left, right);
    HalfBits* pixel =
        first + place.image * image_elements + (static_cast<int64_t>(y) * width + x) * sizes.channels;
    *reinterpret_cast<uint4*>(pixel) = left;
    if (x + 1 < width) *reinterpret_cast<uint4*>(pixel + sizes.channels) = right;
  }
}

}  // namespace torchgraft::depthwise::cuda
