// What the kernels share whose threads slide down columns on their own (columns.cu, columns_weight_grad.cu):
// NHWC images, 3 x 3 taps, stride 1, any dilation.
//
// Nine multiply-adds take less time than memory, so that all that counts is how bytes come. A thread has one,
// two or four neighbouring channels of four columns of results and goes down some rows; sources go from
// memory to its registers. Lanes lie along channels and then along the next four columns, so that the loads
// of a row use all of the lines that they fetch, however many channels a pixel has. Three rows of an image
// are always under way: a row is asked for as soon as the registers of another are free. The loop has no
// barrier and no shared memory.
//
// With a dilation the columns of a thread and the rows that it passes lie so far apart, and nothing else
// differs. Rows are cut into ranges, so that there are as many threads as the device holds; each range reads
// two rows that another reads too, and a thread two columns, which come from L1 for the most part.
#pragma once

#include "../index.cuh"
#include "columns_plan.h"
#include "stream.cuh"

namespace torchgraft::depthwise::cuda {

constexpr int kColumnWindow = kColumnsOfThread + kColumnTaps - 1;

struct ColumnAxis : PassAxis {
  int dilation;
  FastDivisor phases;

  ColumnAxis(const Extent& extent, bool transposed)
      : PassAxis(extent, transposed),
        dilation(static_cast<int>(extent.dilation)),
        phases(static_cast<int>(column_phases(result, dilation))) {}
};

// Units of work: four columns of results, and so many rows of the same phase.
struct ColumnUnits {
  ColumnAxis height, width;
  int channels;
  FastDivisor patches;  // of a row; counted fastest
  FastDivisor ranges;   // of the rows of a phase
  int rows;             // of a range
  int count;            // of all images

  // `at_once`: threads that take one each.
  ColumnUnits(const Geometry& geometry, bool transposed, int64_t at_once)
      : height(geometry.height, transposed),
        width(geometry.width, transposed),
        channels(static_cast<int>(geometry.channels)),
        patches(static_cast<int>(column_patches(width.result, width.dilation))) {
    const int64_t units_per_range = geometry.batch * patches.divisor() * height.phases.divisor();
    const int phase_rows = ceil_divide(height.result, height.dilation);
    rows = column_rows_of_range(units_per_range, phase_rows, at_once);
    ranges = FastDivisor(ceil_divide(phase_rows, rows));
    count = static_cast<int>(units_per_range * ranges.divisor());
  }
};

// Where a unit lies.
struct ColumnUnit {
  int image, result_y, result_x;
  int rows;  // of results; none where the phase ends before

  __device__ ColumnUnit(const ColumnUnits& units, int index) {
    int patch = index;
    int range = split(patch, units.patches);
    int phase = split(range, units.ranges);
    image = split(phase, units.height.phases);
    const int stretch = split(patch, units.width.phases);
    result_x = stretch * (kColumnsOfThread * units.width.dilation) + patch;
    result_y = phase + range * units.rows * units.height.dilation;
    const int left = units.height.result - 1 - result_y;
    // With fewer phases than the dilation each has one row, and `left` is less than their number: that
    // gives 1.
    rows = left < 0 ? 0 : min(units.rows, units.height.phases.divide(left) + 1);
  }
};

// Bytes between columns and rows of a unit, as numbers in registers: what is computed from parameters would
// be computed again at each use.
template <typename T>
struct ColumnSteps {
  uint32_t column, row;

  __device__ ColumnSteps(const ColumnUnits& units, int width)
      : column(units.width.dilation * units.channels * sizeof(T)),
        row(units.height.dilation * width * units.channels * sizeof(T)) {
    ptx::keep(column);
    ptx::keep(row);
  }
  // Column `i` of a row, and the row after it.
  template <typename Pointer>
  __device__ Pointer at(Pointer row, unsigned i) const {
    return reinterpret_cast<Pointer>(bytes_of(row) + uint64_t{column} * i);
  }
  template <typename Pointer>
  __device__ Pointer next(Pointer from) const {
    return reinterpret_cast<Pointer>(bytes_of(from) + row);
  }

 private:
  static __device__ const unsigned char* bytes_of(const T* pointer) {
    return reinterpret_cast<const unsigned char*>(pointer);
  }
  static __device__ unsigned char* bytes_of(T* pointer) { return reinterpret_cast<unsigned char*>(pointer); }
};

// Some columns of an image, row by row.
template <typename T, int kCount, int kColumns>
class ColumnRows {
 public:
  using Piece = Vector<T, kCount>;
  struct Row {
    Piece pieces[kColumns];
  };

  // `images` begins with the first of the thread's channels; (y, x) may lie outside the image.
  __device__ ColumnRows(const T* images, const ColumnUnits& units, int image, int height, int width, int y,
                        int x, int rows)
      : steps_(units, width),
        y_(y),
        end_(min(y + rows * units.height.dilation, height)),
        y_step_(units.height.dilation) {
    const int64_t row = static_cast<int64_t>(width) * units.channels;
    from_ = kept(images + ((static_cast<int64_t>(image) * height + y) * row + x * units.channels));
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      columns_ |= is_inside(x + i * units.width.dilation, width) ? 1u << i : 0u;
    }
  }

  // The next row; zeros where there is none.
  __device__ __forceinline__ void load(Row& row) {
    const unsigned columns = y_ >= 0 && y_ < end_ ? columns_ : 0;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      row.pieces[i] = {};
      if ((columns >> i & 1) != 0) row.pieces[i] = *reinterpret_cast<const Piece*>(steps_.at(from_, i));
    }
    y_ += y_step_;
    from_ = steps_.next(from_);
  }

  __device__ bool has_column(int i) const { return (columns_ >> i & 1) != 0; }
  __device__ bool has_all_columns() const { return columns_ == (1u << kColumns) - 1; }

 private:
  ColumnSteps<T> steps_;
  const T* from_;
  int y_, end_, y_step_;
  unsigned columns_ = 0;  // a bit each, whether the image has it
};

// Calls `launch` with the number of channels that a thread takes, as a constant: as many as lie in one piece
// in all images, which are aligned to `alignment`. Four numbers of float32 are more than registers hold.
template <typename T, typename Launch>
void with_column_channels(int64_t channels, int alignment, const Launch& launch) {
  const auto fits = [&](int count) {
    return channels % count == 0 && alignment % (count * int{sizeof(T)}) == 0;
  };
  if constexpr (sizeof(T) == 2) {
    if (fits(4)) return launch(std::integral_constant<int, 4>{});
  }
  if (fits(2)) return launch(std::integral_constant<int, 2>{});
  launch(std::integral_constant<int, 1>{});
}

}  // namespace torchgraft::depthwise::cuda
