// What `correlation.cpp` sets up and the loops of `correlation_microkernels.h` make: a Row of outputs.
#pragma once

#include <torchgraft/dispatch.h>

#include <cstdint>

#include "rows.h"

namespace torchgraft::depthwise::cpu {

// Of a kernel with more rows the sum is made of parts of so many rows: a small number loses what does not fit
// below a large sum, and a part is no larger than what is added to it.
inline constexpr int64_t kRowsOfPart = 16;

// The outputs that a Row describes.
enum class Shape {
  row,    // one row
  strip,  // several rows under a kernel of three by three, made from the top to the bottom
  patch,  // several short rows, made together
  pairs,  // two rows by pairs of columns, of an input gradient with a stride of two
};

// A slice of one row of the destination, or of several as its shape says: some vectors of channels, all of
// the taps. Sums are of A, as the kernels are; both images hold elements of S, which the loops convert.
template <typename A, typename S = A>
struct Row {
  int64_t lanes;  // of a vector: a register's, or half of them
  int64_t vectors;
  VectorPlaces source_vectors, output_vectors;
  int64_t vector_step;    // elements from a vector's kernel to the next one's
  int64_t kernel_offset;  // of the first tap in a kernel's row
  int64_t source_offset;  // from the source's rows to the columns that are read
  int64_t source_step;    // elements from a column to the next
  int64_t kernel_step;    // elements from a tap to the next; may be negative
  int64_t width;          // columns of the source
  int64_t first_position;
  int64_t step;
  int64_t tap_step;
  int64_t taps;
  const A* bias;
  int64_t bias_step;      // elements from a vector's bias to the next one's
  int64_t output_offset;  // from the destination's row to the first pixel
  int64_t output_step;    // elements from a pixel to the next
  int64_t count;          // pixels
  bool in_parts;          // whether the kernel has so many rows that their sum is made of parts

  // Column 0 of rows of the source, and rows of the kernel, in vectors. A row has one of either for each
  // kernel row that meets the image; a patch has `rows` sources for each such kernel row; a strip and pairs
  // have all sources that they read, from the top to the bottom. A source is null where it is padding.
  const S* const* sources;
  const A* const* kernels;
  S* const* output_rows;  // all but a row: the destination's rows, null where there is none to write
  S* outputs = nullptr;   // a row: its first pixel
  Shape shape = Shape::row;
  int64_t rows = 1;          // a strip and a patch: the outputs' rows
  int64_t first_output = 0;  // pairs: the pixel that the first pair begins with, 0 or -1
  int64_t kernel_rows = 0;   // a row and a patch: those that meet the image
  bool accumulate = false;   // a row and a patch: add to the outputs instead of the bias
};

// Columns of the narrowest strip, and of the widest one that there are registers for.
inline constexpr int64_t kLeastStrip = 3;
inline constexpr int64_t kMostStrip = 7;

// Pixels of the narrowest row that has a loop of its own: a narrower one is made a pixel at a time, or in
// patches.
inline constexpr int64_t kLeastTile = 4;

// Pixels of a patch's rows, and its rows: as many as there are registers for.
inline constexpr int64_t kLeastPatch = 2;
inline constexpr int64_t kMostPatch = 7;
inline constexpr int64_t kMostPatchRows = 4;
constexpr int64_t patch_rows(int64_t pixels) { return pixels <= 5 ? 4 : 2; }

// Makes a Row's outputs. Those of half vectors, as registers of sixteen lanes have them, are loops of their
// own: a file of them, as they take long to compile.
void make_row(const Row<float>& row);
void make_row(const Row<double>& row);
void make_row_of_half_vectors(const Row<float>& row);
void make_row(const Row<float, Half>& row);
void make_row(const Row<float, BFloat16>& row);

}  // namespace torchgraft::depthwise::cpu
