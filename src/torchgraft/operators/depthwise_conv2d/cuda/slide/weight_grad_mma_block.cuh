// What a block of slide_weight_grad_mma owns: its channels, columns and rows, and how a thread copies its
// part of both images.
//
// Shared memory holds, for each row of the output gradient, and each group of channels,
//   [row of input][stream][phase of the stride][column], then the output gradient's [stream][column],
// pieces of sixteen bytes. Columns of one phase are neighbours, so that ldmatrix finds any eight pixels in
// different banks.
#pragma once

#include <torchgraft/ptx.cuh>

#include "../diagonals/diagonals.cuh"
#include "../index.cuh"
#include "../kernels.h"
#include "stream.cuh"
#include "weight_grad_mma_plan.h"

namespace torchgraft::depthwise::cuda {

static_assert(kOctet == kOctetSize);

// One image in the sequence of the rows of all: rows `first` to `first + height` of each `period` are an
// image's, the others zeros.
struct SlideWeightGradMmaImage {
  int height, width, period, first;
  int64_t row_elements;
  int stream_threads;      // that copy a stream
  int column_step;         // between the columns that a thread copies
  int from_step, to_step;  // the same in elements, and in bytes of shared memory
  int copy_bytes;          // of one copy: a piece, or a half or a quarter of one
};

struct SlideWeightGradMmaParameters {
  SlideWeightGradMmaImage input, grad;
  int batch, channels, padding;  // padding: columns before the image
  FastDivisor slabs, tiles;      // of the channels, of the columns; blockIdx.x counts slabs fastest
  FastDivisor groups;            // of a block
  int streams;                   // of a block
  int input_threads;             // that copy the input; the others, the output gradient
  FastDivisor octets;            // of a stream
  int slots;                     // octets of a block, rounded up to what its warps own
  int stream_pixels;             // of an input row of a stream in shared memory
  int group_pixels;              // of all that belongs to a row of the output gradient, from group to group
  int rows;                      // of the sequence of the output gradient that a stream owns
  int steps;
};

// The place of a block among the channels, columns and rows.
struct SlideWeightGradMmaBlock {
  int groups, first_group;  // of channels
  int octets, first_octet;  // of a row of a stream
  int chunk, range;

  __device__ __forceinline__ explicit SlideWeightGradMmaBlock(
      const SlideWeightGradMmaParameters& parameters) {
    chunk = parameters.slabs.divide(static_cast<int>(blockIdx.x));
    groups = parameters.groups.divisor();
    first_group = (static_cast<int>(blockIdx.x) - chunk * parameters.slabs.divisor()) * groups;
    range = parameters.tiles.divide(chunk);
    octets = parameters.octets.divisor();
    first_octet = (chunk - range * parameters.tiles.divisor()) * octets;
  }
};

// A thread's part in copying the rows of one image: a piece of one group in some columns of one stream.
// kWhole: pieces are copied at once. Else the last group may have fewer than eight channels, and the rest of
// its pieces is zeros.
template <typename Element, bool kWhole>
class SlideWeightGradMmaCopies {
 public:
  SlideWeightGradMmaCopies() = default;
  // Of `columns` columns, the first of which is column `first_column` of the image, these are `column` and
  // every one that is image.column_step further. Pieces go to shared memory from byte `target` on, phase by
  // phase of the stride, `phase_pixels` each. Rows of the sequence are `position` to `end`; behind are zeros.
  __device__ SlideWeightGradMmaCopies(const SlideWeightGradMmaImage& image, const Element* memory,
                                      int channels, int channel, int column, int columns, int first_column,
                                      int target, int phases, int phase_pixels, int position, int end) {
    const int left = max(0, -first_column);
    const int right = min(columns, image.width - first_column);
    const int before = left > column ? ceil_divide(left - column, image.column_step) : 0;
    if (column >= image.column_step || channel >= channels) return;
    bytes_ = min(kSlidePieceBytes, (channels - channel) * static_cast<int>(sizeof(Element)));
    column += before * image.column_step;
    turns_ = right > column ? ceil_divide(right - column, image.column_step) : 0;
    to_ = target + (column % phases * phase_pixels + column / phases) * kSlidePieceBytes;
    const auto rows_before = [&](int row) {
      const int images = row / image.period;
      return images * image.height + min(max(row - images * image.period - image.first, 0), image.height);
    };
    const int row = rows_before(position);
    rows_left_ = rows_before(end) - row;
    from_ =
        memory + row * image.row_elements + static_cast<int64_t>(first_column + column) * channels + channel;
    position_ = position % image.period - image.first;
  }

  __device__ __forceinline__ void copy_row(const SlideWeightGradMmaImage& image, uint32_t line) {
    const bool exists = is_inside(position_, image.height) && rows_left_ > 0;
    const int bytes = !exists ? 0 : kWhole ? kSlidePieceBytes : bytes_;
    uint32_t to = line + to_;
    const Element* from = from_;
#pragma unroll 1
    for (int turn = turns_; turn > 0; --turn) {
      // Through the first-level cache, where pieces of a sector, or of a line, whose groups lie apart in
      // shared memory meet: past it, each is a request of its own to the second level, which has not the
      // time.
      if constexpr (kWhole) {
        ptx::cp_async_ca<kSlidePieceBytes>(to, from, bytes);
      } else if (image.copy_bytes == kSlidePieceBytes / 2) {
        copy_parts<kSlidePieceBytes / 2>(to, from, bytes);
      } else {
        copy_parts<kSlidePieceBytes / 4>(to, from, bytes);
      }
      from += image.from_step;
      to += image.to_step;
    }
    if (exists) {
      from_ += image.row_elements;
      --rows_left_;
    }
    if (++position_ == image.period - image.first) position_ = -image.first;
  }

 private:
  // A piece in parts, of which the first `bytes` are there.
  template <int kPartBytes>
  __device__ __forceinline__ static void copy_parts(uint32_t to, const Element* from, int bytes) {
#pragma unroll
    for (int part = 0; part < kSlidePieceBytes; part += kPartBytes) {
      ptx::cp_async_ca<kPartBytes>(to + part, from + part / static_cast<int>(sizeof(Element)),
                                   part < bytes ? kPartBytes : 0);
    }
  }

  int turns_ = 0, to_ = 0, bytes_ = 0;
  const Element* from_ = nullptr;
  int position_ = 0, rows_left_ = 0;
};

// D of a warp: [tap row][pair of columns], and of the last column pairs of rows. These are 2j - 1 and 2j for
// a stride of one, where each two neighbouring rows of input make a pair, else 2j and 2j + 1; one is no tap.
template <typename Shape>
struct SlideWeightGradMmaSums {
  float columns[Shape::kKernel][Shape::kColumnPairs][4];
  float rows[Shape::kRowPairs][4];
};

}  // namespace torchgraft::depthwise::cuda
