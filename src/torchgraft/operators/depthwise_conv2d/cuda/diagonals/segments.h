// How diagonals cut images and kernels: segments of rows, octets of columns and blocks of taps
// (diagonals.cuh). Host code alone, so that plans are tested without a GPU.
#pragma once

#include "../supports.h"

namespace torchgraft::depthwise::cuda {

constexpr int kSegment = 7;   // rows
constexpr int kSegments = 8;  // of a slice
constexpr int kOctet = 8;     // columns
constexpr int kOctetBytes = 16;

// Shared memory that lanes without a segment read zeros from, as many rows as they touch.
constexpr int kZeroBytes = 8 * kOctetBytes;

// The taps of one warp: kTapRows rows of the kernel, as many columns as kOctets octets of input cover.
template <int kTapRowCount, int kOctetCount>
struct TapBlock {
  static constexpr int kTapRows = kTapRowCount;
  static constexpr int kOctets = kOctetCount;
  static constexpr int kPairs = kOctets / 2;
  static constexpr bool kOdd = kOctets % 2 == 1;
  static constexpr int kRowPairs = kOdd ? ceil_divide(kTapRows, 2) : 0;
  static constexpr int kGradSlices = kSegment + kTapRows - 1;
  static constexpr int kFloats = kTapRows * kOctets * kOctet * kOctet;  // of D, all lanes together
  // The widest kernel whose windows begin `shift` columns behind the first octet.
  static constexpr int most_columns(int shift) { return kOctet * kOctets - (kOctet - 1) - shift; }
};

// How segments of input and rows of the output gradient lie one below the other in shared memory, plane after
// plane; zeros between the planes are wide enough that no tap reaches another plane.
struct SegmentRows {
  int segments;     // of a plane
  int input_rows;   // from plane to plane
  int grad_rows;    // from plane to plane
  int grad_row;     // where the first row that is loaded lies
  int grad_source;  // and which row of the plane it is
  int grad_loaded;  // how many are loaded
};

// For whole planes: `tap_rows` is the number of tap rows, rounded up to what the warps own. `slack`: so many
// rows more of padding there may be; what is loaded is then so many rows further down.
inline SegmentRows small_planes_whole(const Extent& height, int tap_rows, int slack = 0) {
  const int segments = static_cast<int>(ceil_divide<int64_t>(height.input, kSegment));
  // What meets row 0 of input in the last tap row, and one behind what meets the last row in the first.
  const int64_t first = height.padding - (tap_rows - 1);
  const int64_t end = height.padding + segments * kSegment;
  const int64_t source = std::max<int64_t>(first, -slack);
  const int64_t loaded = std::max<int64_t>(std::min(height.output, end) - source, 0);
  const int64_t row = source - first;
  const int64_t rows = std::max(row + loaded, segments * kSegment + tap_rows - 1 - row);
  return {segments,
          segments * kSegment,
          static_cast<int>(rows),
          static_cast<int>(row),
          static_cast<int>(source),
          static_cast<int>(loaded)};
}

// For bands of `segments` segments of one plane, whatever lies outside the plane is loaded as zeros.
// grad_source is that of the first band.
inline SegmentRows band_of_plane(const Extent& height, int tap_rows, int segments) {
  const int rows = segments * kSegment + tap_rows - 1;
  return {segments, segments * kSegment, rows, 0, static_cast<int>(height.padding) - (tap_rows - 1), rows};
}

}  // namespace torchgraft::depthwise::cuda
