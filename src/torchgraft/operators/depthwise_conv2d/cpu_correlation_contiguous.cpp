// Correlations of contiguous images on CPU. The lanes of a vector are columns of one plane.
//
// A thread owns a band of rows of one plane of the destination (the whole plane where its source fits L1).
// Rows of the source are copied to scratch with their padding, once from memory, and parted by column
// remainder where there is a step: so every tap of every tile is a plain unaligned load and nothing is tested
// in the inner loops. A tile is four rows by two vectors, or eight rows by one where rows are short. Where
// neighbouring outputs read neighbouring rows, a loaded vector serves every pair of a row and a tap that meet
// there; else it serves one.

#include <torchgraft/cpu.h>
#include <torchgraft/dispatch.h>

#include <algorithm>
#include <vector>

#include "cpu_correlation.h"
#include "cpu_rows.h"

namespace torchgraft::depthwise::cpu {
namespace {

// Some rows of one plane of the destination, all of its taps.
template <typename A>
struct Plane {
  // For each plane of the source, output row and kernel row: the source's padded row, null outside of the
  // image.
  const A* const* sources;
  const A* const* kernels;  // for each plane of the source, its kernel [kernel_height][kernel_width]
  int64_t source_count;
  const int64_t* offsets;  // of each tap in a padded row
  int64_t kernel_height;
  int64_t kernel_width;
  bool neighbours;  // output row i reads at tap t + 1 what output row i + 1 reads at tap t
  A bias;
  A* outputs;
  int64_t output_step;  // elements from a row to the next; a multiple of a tile's columns
  int64_t rows;
  int64_t columns;
};

// One row of outputs, one row of the source: a load serves one tap.
template <int kColumns, int kWidth, typename V, typename A>
TORCHGRAFT_INLINE void add_row(V (&sums)[kColumns], const Plane<A>& plane, const A* source, const A* kernel) {
  constexpr int kLanes = sizeof(V) / sizeof(A);
  const int64_t width = kWidth > 0 ? kWidth : plane.kernel_width;
  for (int64_t tap = 0; tap < width; ++tap) {
    const A* from = source + plane.offsets[tap];
    TORCHGRAFT_UNROLL for (int c = 0; c < kColumns; ++c) {
      V values;
      load(values, from + c * kLanes);
      sums[c] += kernel[tap] * values;
    }
  }
}

// Rows of outputs from a first one on, one row of the source that is kernel row `tap` to the first output,
// tap - 1 to the second and so on. All of them are in the kernel.
template <int kRows, int kFirst, int kLast, int kColumns, int kWidth, typename V, typename A>
TORCHGRAFT_INLINE void add_shared_row(V (&sums)[kRows][kColumns], const Plane<A>& plane, const A* source,
                                      const A* kernel) {
  constexpr int kLanes = sizeof(V) / sizeof(A);
  const int64_t width = kWidth > 0 ? kWidth : plane.kernel_width;
  for (int64_t tap = 0; tap < width; ++tap) {
    const A* from = source + plane.offsets[tap];
    V values[kColumns];
    TORCHGRAFT_UNROLL for (int c = 0; c < kColumns; ++c) load(values[c], from + c * kLanes);
    TORCHGRAFT_UNROLL for (int r = kFirst; r <= kLast; ++r) {
      const A weight = kernel[tap - r * width];
      TORCHGRAFT_UNROLL for (int c = 0; c < kColumns; ++c) sums[r][c] += weight * values[c];
    }
  }
}

// kHeight and kWidth are the kernel's, or 0 where they are known at run time only.
template <int kRows, int kColumns, int kHeight, int kWidth, bool kNeighbours, typename V, typename A>
TORCHGRAFT_INLINE void correlate_tile(const Plane<A>& plane, int64_t row, int64_t column) {
  constexpr int kLanes = sizeof(V) / sizeof(A);
  const int64_t height = kHeight > 0 ? kHeight : plane.kernel_height;
  const int64_t width = kWidth > 0 ? kWidth : plane.kernel_width;
  V sums[kRows][kColumns];
  TORCHGRAFT_UNROLL for (int r = 0; r < kRows; ++r) {
    TORCHGRAFT_UNROLL for (int c = 0; c < kColumns; ++c) sums[r][c] = V{} + plane.bias;
  }
  for (int64_t s = 0; s < plane.source_count; ++s) {
    const A* kernel = plane.kernels[s];
    const A* const* sources = plane.sources + (s * plane.rows + row) * height;
    if constexpr (!kNeighbours) {
      for (int64_t tap = 0; tap < height; ++tap) {
        TORCHGRAFT_UNROLL for (int r = 0; r < kRows; ++r) {
          const A* source = sources[r * height + tap];
          if (source != nullptr)
            add_row<kColumns, kWidth>(sums[r], plane, source + column, kernel + tap * width);
        }
      }
    } else {
      // Source rows that the first output row reads, then those that only later ones do.
      for (int64_t p = 0; p < height + kRows - 1; ++p) {
        const A* source = p < height ? sources[p] : sources[(p - height + 1) * height + height - 1];
        if (source == nullptr) continue;
        if (p >= kRows - 1 && p < height) {
          add_shared_row<kRows, 0, kRows - 1, kColumns, kWidth>(sums, plane, source + column,
                                                                kernel + p * width);
        } else {
          TORCHGRAFT_UNROLL for (int r = 0; r < kRows; ++r) {
            if (p - r >= 0 && p - r < height) {
              add_row<kColumns, kWidth>(sums[r], plane, source + column, kernel + (p - r) * width);
            }
          }
        }
      }
    }
  }
  TORCHGRAFT_UNROLL for (int r = 0; r < kRows; ++r) {
    TORCHGRAFT_UNROLL for (int c = 0; c < kColumns; ++c) {
      store(sums[r][c], plane.outputs + (row + r) * plane.output_step + column + c * kLanes);
    }
  }
}

template <int kRows, int kColumns, int kHeight, int kWidth, bool kNeighbours, typename V, typename A>
TORCHGRAFT_INLINE void correlate_tiles(const Plane<A>& plane) {
  constexpr int kLanes = sizeof(V) / sizeof(A);
  // The last tile overlaps the one before where there are no multiple of its rows.
  for (int64_t row = 0; row < plane.rows; row += kRows) {
    for (int64_t column = 0; column < plane.columns; column += kColumns * kLanes) {
      correlate_tile<kRows, kColumns, kHeight, kWidth, kNeighbours, V>(
          plane, std::min(row, plane.rows - kRows), column);
    }
  }
}

template <int kHeight, int kWidth, bool kNeighbours, int kBytes, typename A>
TORCHGRAFT_INLINE void correlate_plane(const Plane<A>& plane) {
  using V = Vector<A, kBytes>;
  constexpr int kLanes = kBytes / sizeof(A);
  if (plane.rows >= 8 && plane.columns <= kLanes) {
    correlate_tiles<8, 1, kHeight, kWidth, kNeighbours, V>(plane);
  } else if (plane.rows >= 4) {
    correlate_tiles<4, 2, kHeight, kWidth, kNeighbours, V>(plane);
  } else {
    correlate_tiles<1, 2, 0, 0, false, V>(plane);
  }
}

// Which loop serves which plane.
template <int kBytes, typename A>
TORCHGRAFT_INLINE void dispatch_plane(const Plane<A>& plane) {
  if (!plane.neighbours) {
    correlate_plane<0, 0, false, kBytes>(plane);
  } else if (plane.kernel_height == 3 && plane.kernel_width == 3) {
    correlate_plane<3, 3, true, kBytes>(plane);
  } else if (plane.kernel_height == 5 && plane.kernel_width == 5) {
    correlate_plane<5, 5, true, kBytes>(plane);
  } else if (plane.kernel_height == 7 && plane.kernel_width == 7) {
    correlate_plane<7, 7, true, kBytes>(plane);
  } else {
    correlate_plane<0, 0, true, kBytes>(plane);
  }
}

TORCHGRAFT_VECTOR_CLONES(void run_plane(const Plane<float>& plane), dispatch_plane<kVectorBytes>(plane);)
TORCHGRAFT_VECTOR_CLONES(void run_plane(const Plane<double>& plane), dispatch_plane<kVectorBytes>(plane);)

// Columns of a tile, in vectors; rows of scratch are padded to it.
constexpr int64_t kTileColumns = 2;
// Columns of a slice: wider images are cut, so that the rows of a tile stay in L1.
constexpr int64_t kSlice = 256;
// Bytes of padded source that a band may span.
constexpr int64_t kBandBytes = 32 * 1024;
// Multiply-adds that are worth a thread.
constexpr int64_t kGrain = 1 << 18;

template <typename T>
class Contiguous {
 public:
  using A = accumulate_t<T>;

  Contiguous(const T* source, const T* weight, const T* bias, T* destination, const Correlation& correlation)
      : source_(source),
        weight_(weight),
        bias_(bias),
        destination_(destination),
        correlation_(correlation),
        tile_(kTileColumns * vector_bytes() / static_cast<int64_t>(sizeof(A))) {
    const Phase& row = correlation.height.phases[0];
    const int64_t row_bytes = padded_row(correlation.width.phases[0], 0).elements() *
                              static_cast<int64_t>(sizeof(A)) * correlation.sources();
    const int64_t source_rows = kBandBytes / std::max<int64_t>(row_bytes, 1);
    band_ = round_up(std::clamp<int64_t>((source_rows - row.taps) / row.step, 8, row.outputs), 8);
  }

  void run() const {
    const int64_t bands = ceil_div(correlation_.height.phases[0].outputs, band_);
    const int64_t slices = ceil_div(correlation_.width.phases[0].outputs, kSlice);
    const int64_t units = correlation_.batch * correlation_.destination_channels * bands * slices;
    const int64_t work =
        std::max<int64_t>(band_ * std::min(kSlice, correlation_.width.destination) * correlation_.taps(), 1);
    parallel_for(0, units, std::max<int64_t>(kGrain / work, 1), [&](int64_t begin, int64_t end) {
      Workspace workspace;
      for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t slice = unit % slices;
        const int64_t band = unit / slices % bands;
        const int64_t channel = unit / slices / bands % correlation_.destination_channels;
        const int64_t image = unit / slices / bands / correlation_.destination_channels;
        for (const Phase& column : correlation_.width.phases) {
          if (slice * kSlice >= column.outputs) continue;
          for (const Phase& row : correlation_.height.phases) {
            if (band * band_ >= row.outputs) continue;
            correlate_band(image, channel, row, band * band_, column, slice * kSlice, workspace);
          }
        }
      }
    });
  }

 private:
  struct Workspace {
    std::vector<RowCache<A>> rows;
    std::vector<A> kernels;
    std::vector<const A*> kernel_starts;
    std::vector<const A*> sources;
    Scratch<A> outputs;
  };

  PaddedRow padded_row(const Phase& column, int64_t first) const {
    const int64_t count = std::min(kSlice, column.outputs - first);
    return PaddedRow(column.position(first, 0), column.step, column.taps, column.tap_step,
                     round_up(count, tile_));
  }

  void correlate_band(int64_t image, int64_t channel, const Phase& row, int64_t first_row,
                      const Phase& column, int64_t first_column, Workspace& workspace) const {
    const Direction& height = correlation_.height;
    const Direction& width = correlation_.width;
    const int64_t sources = correlation_.sources();
    const int64_t rows = std::min(band_, row.outputs - first_row);
    const int64_t columns = std::min(kSlice, column.outputs - first_column);
    const PaddedRow padded = padded_row(column, first_column);
    const int64_t begin = std::clamp<int64_t>(row.position(first_row, 0), 0, height.source);
    const int64_t end =
        std::clamp<int64_t>(row.position(first_row + rows - 1, row.taps - 1) + 1, begin, height.source);

    workspace.rows.resize(sources);
    workspace.sources.clear();
    workspace.kernels.clear();
    workspace.kernel_starts.clear();
    for (int64_t s = 0; s < sources; ++s) {
      const T* source =
          source_ + (image * correlation_.source_channels + correlation_.source_channel(channel, s)) *
                        height.source * width.source;
      RowCache<A>& cache = workspace.rows[s];
      cache.reset(begin, end, rows * row.taps, padded.elements());
      for (int64_t output = 0; output < rows; ++output) {
        for (int64_t tap = 0; tap < row.taps; ++tap) {
          const int64_t position = row.position(first_row + output, tap);
          const bool inside = position >= 0 && position < height.source;
          workspace.sources.push_back(
              inside
                  ? cache.row(position,
                              [&](A* to) { padded.fill(source + position * width.source, width.source, to); })
                  : nullptr);
        }
      }
      const T* weight = weight_ + correlation_.kernel(channel, s) * correlation_.taps();
      for (int64_t h = 0; h < row.taps; ++h) {
        const T* line = weight + (row.first_tap + h * row.kernel_step) * width.kernel;
        for (int64_t w = 0; w < column.taps; ++w) {
          workspace.kernels.push_back(static_cast<A>(line[column.first_tap + w * column.kernel_step]));
        }
      }
    }
    for (int64_t s = 0; s < sources; ++s) {
      workspace.kernel_starts.push_back(workspace.kernels.data() + s * row.taps * column.taps);
    }

    const Plane<A> plane = {.sources = workspace.sources.data(),
                            .kernels = workspace.kernel_starts.data(),
                            .source_count = row.taps > 0 ? sources : 0,
                            .offsets = padded.offsets(),
                            .kernel_height = row.taps,
                            .kernel_width = column.taps,
                            .neighbours = row.step == 1 && row.tap_step == 1,
                            .bias = bias_ == nullptr ? A{0} : static_cast<A>(bias_[channel]),
                            .outputs = workspace.outputs.reserve(rows * round_up(columns, tile_)),
                            .output_step = round_up(columns, tile_),
                            .rows = rows,
                            .columns = columns};
    run_plane(plane);

    T* destination = destination_ + (image * correlation_.destination_channels + channel) *
                                        height.destination * width.destination;
    for (int64_t output = 0; output < rows; ++output) {
      scatter_row(plane.outputs + output * plane.output_step,
                  destination +
                      (row.first_output + (first_row + output) * row.output_step) * width.destination +
                      column.first_output + first_column * column.output_step,
                  column.output_step, columns);
    }
  }

  const T* source_;
  const T* weight_;
  const T* bias_;
  T* destination_;
  const Correlation& correlation_;
  int64_t tile_;  // columns
  int64_t band_;  // outputs of a height phase
};

}  // namespace

template <typename T>
void correlate_contiguous(const T* source, const T* weight, const T* bias, T* destination,
                          const Correlation& correlation) {
  Contiguous<T>(source, weight, bias, destination, correlation).run();
}

template void correlate_contiguous(const double*, const double*, const double*, double*, const Correlation&);
template void correlate_contiguous(const float*, const float*, const float*, float*, const Correlation&);
template void correlate_contiguous(const Half*, const Half*, const Half*, Half*, const Correlation&);
template void correlate_contiguous(const BFloat16*, const BFloat16*, const BFloat16*, BFloat16*,
                                   const Correlation&);

}  // namespace torchgraft::depthwise::cpu
