// The ring of source rows in shared memory that the kernel channels_last reads: what a launch passes, and the
// copies that fill the ring.
#pragma once

#include <torchgraft/async_copy.cuh>
#include <torchgraft/cuda.cuh>

#include <cstdint>

#include "supports.h"

namespace torchgraft::shift::cuda {

struct ChannelsLastParameters {
  FastDivisor stride;
  FastDivisor ring;                 // rows of the ring
  FastDivisor pieces, last_pieces;  // copies for a pixel: in all groups of channels but the last, in the last
  FastDivisor rows;                 // of results of an image
  int channels, width, height, steps, source_rows;
  int chunks;  // threads along a row
  int groups, ranges;
  int all_rows;      // of results of all images
  int span;          // rows by which the offsets of channels taken together may differ
  int slots_of_row;  // slots by which one row of results moves the sources in the ring
  int piece_bytes;
  int row_pitch, ring_elements;
  bool paired;  // words of channels are aligned
};

// Copies rows of sources into the ring. The threads of a block share out the pieces of a row.
template <typename T, int kPixel>
class ChannelsLastCopies {
 public:
  __device__ explicit ChannelsLastCopies(const ChannelsLastParameters& parameters)
      : parameters_(parameters) {}

  // Works out which pieces of each row this thread copies.
  __device__ void open(T* ring, int group) {
    ring_ = ring;
    thread_ = static_cast<int>(threadIdx.x);
    threads_ = static_cast<int>(blockDim.x);
    pieces_ = group == parameters_.groups - 1 ? parameters_.last_pieces : parameters_.pieces;
    row_pieces_ = parameters_.width * pieces_.divisor();
    piece_elements_ = parameters_.piece_bytes / static_cast<int>(sizeof(T));
    place_of_piece(thread_, first_in_memory_, first_in_ring_);
    image_row_ = static_cast<int64_t>(parameters_.width) * parameters_.channels;
    next_source_ = nullptr;
    next_place_ = 0;
    end_place_ = first_in_ring_ + parameters_.ring.divisor() * parameters_.row_pitch;
  }

  // Goes to row `row` of the source, which begins at `source` for this block's channels.
  __device__ void start(const T* source, int row) {
    next_source_ = source + first_in_memory_;
    next_place_ = first_in_ring_ +
                  (row - parameters_.ring.divide(row) * parameters_.ring.divisor()) * parameters_.row_pitch;
  }

  // Copies this thread's pieces of a row, and goes on to the next row.
  __device__ void copy_row() {
    if (parameters_.piece_bytes == 16) {
      copy_pieces<16>();
    } else if (parameters_.piece_bytes == 8) {
      copy_pieces<8>();
    } else if (parameters_.piece_bytes == 4) {
      copy_pieces<4>();
    } else {
      // There are no asynchronous copies of two bytes.
#pragma unroll 1
      for (int piece = thread_; piece < row_pieces_; piece += threads_) {
        int in_memory, in_ring;
        place_of_piece(piece, in_memory, in_ring);
        ring_[next_place_ + in_ring - first_in_ring_] = next_source_[in_memory - first_in_memory_];
      }
    }
    next_source_ += image_row_;
    next_place_ += parameters_.row_pitch;
    if (next_place_ == end_place_) next_place_ = first_in_ring_;
  }

 private:
  __device__ void place_of_piece(int piece, int& in_memory, int& in_ring) const {
    const int column = pieces_.divide(piece);
    const int element = (piece - column * pieces_.divisor()) * piece_elements_;
    in_memory = column * parameters_.channels + element;
    in_ring = (kMargin + column) * kPixel + element;
  }

  template <int kPieceBytes>
  __device__ void copy_pieces() const {
    if (thread_ < row_pieces_) copy_async<kPieceBytes, true>(ring_ + next_place_, next_source_);
#pragma unroll 1
    for (int piece = thread_ + threads_; piece < row_pieces_; piece += threads_) {
      int in_memory, in_ring;
      place_of_piece(piece, in_memory, in_ring);
      copy_async<kPieceBytes, true>(ring_ + (next_place_ + in_ring - first_in_ring_),
                                    next_source_ + (in_memory - first_in_memory_));
    }
  }

  T* ring_;
  const ChannelsLastParameters& parameters_;
  FastDivisor pieces_;  // for a pixel
  int thread_, threads_;
  int row_pieces_, piece_elements_;
  int64_t image_row_;  // elements of a row of an image
  // This thread's first piece of a row lies here, counted from the row's beginning.
  int first_in_memory_;
  int first_in_ring_;
  int end_place_;
  // This thread's first piece of the next row lies here.
  const T* next_source_;
  int next_place_;
};

}  // namespace torchgraft::shift::cuda
