// Correlations of channels_last images on CPU. The lanes of a vector are channels, so every load is a whole
// vector at its own address whatever the kernel, and padding is columns and rows that are left out: nothing
// is read for it.
//
// A thread owns a band of rows of one image, a slice of columns and a group of channels; it takes one vector
// of channels at a time through its band, so that the rows that follow each other find their sources in L1. A
// tile is eight pixels of a row in registers; a column of the source is loaded once a kernel row and serves
// up to seven taps. float and double are read from the tensor, once a band from memory; where that cannot be
// (half precision, a channel multiplier, the channels that fill no vector) rows pass through scratch first.

#include <torchgraft/cpu.h>
#include <torchgraft/dispatch.h>

#include <algorithm>
#include <type_traits>
#include <vector>

#include "cpu_correlation.h"
#include "cpu_rows.h"

namespace torchgraft::depthwise::cpu {
namespace {

// A slice of one row of the destination, one vector of channels, all of its taps.
template <typename A>
struct Row {
  const A* const* sources;  // for each kernel row that meets the image: column 0 of the source's row,
  const A* const* kernels;  // and the kernel's row, in vectors
  int64_t kernel_rows;
  int64_t source_step;  // elements from a column to the next
  int64_t kernel_step;  // elements from a tap to the next; may be negative
  int64_t width;        // columns of the source
  int64_t first_position;
  int64_t step;
  int64_t tap_step;
  int64_t taps;
  const A* bias;  // one vector
  A* outputs;
  int64_t output_step;  // elements from a pixel to the next
  int64_t count;        // pixels
};

// kTaps taps side by side: each column is loaded once and serves every pair of a pixel and a tap that meet
// there.
template <int kTaps, int kStep, int kPixels, bool kInside, typename V, typename A>
TORCHGRAFT_INLINE void add_taps(V (&sums)[kPixels], const Row<A>& row, const A* source, const A* kernel,
                                int64_t first) {
  V weights[kTaps];
  TORCHGRAFT_UNROLL for (int t = 0; t < kTaps; ++t) load(weights[t], kernel + t * row.kernel_step);
  TORCHGRAFT_UNROLL for (int c = 0; c < (kPixels - 1) * kStep + kTaps; ++c) {
    if (!kInside && static_cast<uint64_t>(first + c) >= static_cast<uint64_t>(row.width)) continue;
    V column;
    load(column, source + (first + c) * row.source_step);
    TORCHGRAFT_UNROLL for (int t = 0; t < kTaps; ++t) {
      const int distance = c - t;
      if (distance >= 0 && distance % kStep == 0 && distance / kStep < kPixels) {
        sums[distance / kStep] += weights[t] * column;
      }
    }
  }
}

// One tap, any step.
template <int kPixels, bool kInside, typename V, typename A>
TORCHGRAFT_INLINE void add_tap(V (&sums)[kPixels], const Row<A>& row, const A* source, const A* kernel,
                               int64_t first) {
  V weight;
  load(weight, kernel);
  TORCHGRAFT_UNROLL for (int p = 0; p < kPixels; ++p) {
    const int64_t position = first + p * row.step;
    if (!kInside && static_cast<uint64_t>(position) >= static_cast<uint64_t>(row.width)) continue;
    V column;
    load(column, source + position * row.source_step);
    sums[p] += weight * column;
  }
}

template <int kTaps, int kStep, int kPixels, bool kInside, typename V, typename A>
TORCHGRAFT_INLINE void correlate_tile(const Row<A>& row, int64_t pixel) {
  V sums[kPixels];
  TORCHGRAFT_UNROLL for (int p = 0; p < kPixels; ++p) load(sums[p], row.bias);
  const int64_t first = row.first_position + pixel * row.step;
  for (int64_t r = 0; r < row.kernel_rows; ++r) {
    const A* source = row.sources[r];
    const A* kernel = row.kernels[r];
    int64_t tap = 0;
    if constexpr (kTaps > 1) {
      for (; tap + kTaps <= row.taps; tap += kTaps) {
        add_taps<kTaps, kStep, kPixels, kInside>(sums, row, source, kernel + tap * row.kernel_step,
                                                 first + tap);
      }
    }
    for (; tap < row.taps; ++tap) {
      add_tap<kPixels, kInside>(sums, row, source, kernel + tap * row.kernel_step,
                                first + tap * row.tap_step);
    }
  }
  TORCHGRAFT_UNROLL for (int p = 0; p < kPixels; ++p)
      store(sums[p], row.outputs + (pixel + p) * row.output_step);
}

template <int kTaps, int kStep, int kPixels, typename V, typename A>
TORCHGRAFT_INLINE void correlate_pixels(const Row<A>& row) {
  // The last tile overlaps the one before where the row is no multiple of it.
  for (int64_t pixel = 0; pixel < row.count; pixel += kPixels) {
    const int64_t begin = std::min(pixel, row.count - kPixels);
    const int64_t first = row.first_position + begin * row.step;
    const int64_t last = first + (kPixels - 1) * row.step + (row.taps - 1) * row.tap_step;
    if (first >= 0 && last < row.width) {
      correlate_tile<kTaps, kStep, kPixels, true, V>(row, begin);
    } else {
      correlate_tile<kTaps, kStep, kPixels, false, V>(row, begin);
    }
  }
}

template <int kTaps, int kStep, int kBytes, typename A>
TORCHGRAFT_INLINE void correlate_row(const Row<A>& row) {
  using V = Vector<A, kBytes>;
  if (row.count >= 8) {
    correlate_pixels<kTaps, kStep, 8, V>(row);
  } else if (row.count >= 4) {
    correlate_pixels<kTaps, kStep, 4, V>(row);
  } else {
    correlate_pixels<1, 1, 1, V>(row);
  }
}

// Which loop serves which row.
template <int kBytes, typename A>
TORCHGRAFT_INLINE void dispatch_row(const Row<A>& row) {
  if (row.tap_step != 1 || row.step > 2 || row.taps < 3) {
    correlate_row<1, 1, kBytes>(row);
  } else if (row.step == 1) {
    if (row.taps >= 7) {
      correlate_row<7, 1, kBytes>(row);
    } else if (row.taps >= 5) {
      correlate_row<5, 1, kBytes>(row);
    } else {
      correlate_row<3, 1, kBytes>(row);
    }
  } else {
    if (row.taps >= 7) {
      correlate_row<7, 2, kBytes>(row);
    } else if (row.taps >= 5) {
      correlate_row<5, 2, kBytes>(row);
    } else {
      correlate_row<3, 2, kBytes>(row);
    }
  }
}

TORCHGRAFT_VECTOR_CLONES(void run_row(const Row<float>& row), dispatch_row<kVectorBytes>(row);)
TORCHGRAFT_VECTOR_CLONES(void run_row(const Row<double>& row), dispatch_row<kVectorBytes>(row);)

// Bytes of the source that a band may span, so that it stays in L2 while its channels are gone through, and
// those that one vector of channels may, so that it stays in L1 while its rows are.
constexpr int64_t kBandBytes = 512 * 1024;
constexpr int64_t kSliceBytes = 32 * 1024;
// Units of work that there should be, whatever the number of threads, and multiply-adds that are worth a
// thread.
constexpr int64_t kUnits = 64;
constexpr int64_t kGrain = 1 << 18;

template <typename T>
class ChannelsLast {
 public:
  using A = accumulate_t<T>;

  ChannelsLast(const T* source, const T* weight, const T* bias, T* destination,
               const Correlation& correlation)
      : source_(source),
        destination_(destination),
        correlation_(correlation),
        lanes_(vector_bytes() / static_cast<int64_t>(sizeof(A))),
        blocks_(ceil_div(correlation.destination_channels, lanes_)) {
    const Phase& row = correlation.height.phases[0];
    const Phase& column = correlation.width.phases[0];
    const int64_t slice =
        kSliceBytes / static_cast<int64_t>(sizeof(A)) / lanes_ / std::max<int64_t>(row.taps, 1);
    slice_ = round_up(std::clamp<int64_t>(slice / column.step, 8, column.outputs), 8);
    const int64_t row_bytes = static_cast<int64_t>(sizeof(A)) * correlation.source_channels *
                              std::min(slice_ * column.step, correlation.width.source);
    band_ = std::clamp<int64_t>(kBandBytes / row_bytes / row.step, 4, 64);
    pack(weight, bias);
  }

  void run() const {
    const int64_t bands = ceil_div(correlation_.height.phases[0].outputs, band_);
    const int64_t slices = ceil_div(correlation_.width.phases[0].outputs, slice_);
    const int64_t pieces = correlation_.batch * bands * slices;
    const int64_t groups = std::clamp<int64_t>(ceil_div(kUnits, pieces), 1, blocks_);
    const int64_t units = pieces * groups;
    const int64_t work = correlation_.batch * correlation_.height.destination *
                         correlation_.width.destination * blocks_ * lanes_ * correlation_.taps() / units;
    parallel_for(
        0, units, std::max<int64_t>(kGrain / std::max<int64_t>(work, 1), 1), [&](int64_t begin, int64_t end) {
          Workspace workspace;
          for (int64_t unit = begin; unit < end; ++unit) {
            const int64_t group = unit % groups;
            const int64_t slice = unit / groups % slices;
            const int64_t band = unit / groups / slices % bands;
            const int64_t image = unit / groups / slices / bands;
            for (int64_t block = blocks_ * group / groups; block < blocks_ * (group + 1) / groups; ++block) {
              for (const Phase& column : correlation_.width.phases) {
                const int64_t first = slice * slice_;
                const int64_t count = std::min(slice_, column.outputs - first);
                if (count > 0) correlate_block(image, band, block, column, first, count, workspace);
              }
            }
          }
        });
  }

 private:
  struct Workspace {
    std::vector<RowCache<A>> rows;
    std::vector<const A*> sources;
    std::vector<const A*> kernels;
    std::vector<int64_t> channels;
    Scratch<A> outputs;
  };

  // Kernels as [block][source][tap][lane] and bias as [block][lane].
  void pack(const T* weight, const T* bias) {
    const int64_t sources = correlation_.sources();
    const int64_t taps = correlation_.taps();
    kernels_.resize(blocks_ * sources * taps * lanes_);
    bias_.resize(blocks_ * lanes_);
    parallel_for(0, blocks_, std::max<int64_t>(kGrain / (sources * taps * lanes_), 1),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t block = begin; block < end; ++block) {
                     const int64_t channels =
                         std::min(lanes_, correlation_.destination_channels - block * lanes_);
                     for (int64_t lane = 0; lane < channels; ++lane) {
                       const int64_t channel = block * lanes_ + lane;
                       if (bias != nullptr) bias_[channel] = static_cast<A>(bias[channel]);
                       for (int64_t s = 0; s < sources; ++s) {
                         const T* from = weight + correlation_.kernel(channel, s) * taps;
                         A* to = kernels_.data() + (block * sources + s) * taps * lanes_ + lane;
                         for (int64_t tap = 0; tap < taps; ++tap)
                           to[tap * lanes_] = static_cast<A>(from[tap]);
                       }
                     }
                   }
                 });
  }

  // One vector of channels through one band, the columns of one phase.
  void correlate_block(int64_t image, int64_t band, int64_t block, const Phase& column, int64_t first,
                       int64_t count, Workspace& workspace) const {
    const Direction& height = correlation_.height;
    const Direction& width = correlation_.width;
    const int64_t channel = block * lanes_;
    const int64_t channels = std::min(lanes_, correlation_.destination_channels - channel);
    const bool direct = std::is_same_v<T, A> && correlation_.multiplier == 1 && channels == lanes_;

    // Columns of the source that this slice meets.
    const int64_t begin = std::clamp<int64_t>(column.position(first, 0), 0, width.source);
    const int64_t end =
        std::clamp<int64_t>(column.position(first + count - 1, column.taps - 1) + 1, begin, width.source);

    workspace.rows.resize(correlation_.sources());
    Row<A> row = {.sources = nullptr,
                  .kernels = nullptr,
                  .kernel_rows = 0,
                  .source_step = direct ? correlation_.source_channels : lanes_,
                  .kernel_step = column.kernel_step * lanes_,
                  .width = direct ? width.source : end - begin,
                  .first_position = column.position(first, 0) - (direct ? 0 : begin),
                  .step = column.step,
                  .tap_step = column.tap_step,
                  .taps = column.taps,
                  .bias = bias_.data() + channel,
                  .outputs = nullptr,
                  .output_step = direct ? column.output_step * correlation_.destination_channels : lanes_,
                  .count = count};

    for (const Phase& line : height.phases) {
      const int64_t outputs_begin = std::min(band * band_, line.outputs);
      const int64_t outputs_end = std::min(outputs_begin + band_, line.outputs);
      if (outputs_begin == outputs_end) continue;
      if (!direct) {
        const int64_t rows_begin = std::clamp<int64_t>(line.position(outputs_begin, 0), 0, height.source);
        const int64_t rows_end =
            std::clamp<int64_t>(line.position(outputs_end - 1, line.taps - 1) + 1, rows_begin, height.source);
        for (RowCache<A>& rows : workspace.rows) {
          rows.reset(rows_begin, rows_end, (outputs_end - outputs_begin) * line.taps, (end - begin) * lanes_);
        }
      }
      for (int64_t output = outputs_begin; output < outputs_end; ++output) {
        workspace.sources.clear();
        workspace.kernels.clear();
        for (int64_t s = 0; s < correlation_.sources(); ++s) {
          const A* kernel =
              kernels_.data() + (block * correlation_.sources() + s) * correlation_.taps() * lanes_;
          for (int64_t tap = 0; tap < line.taps; ++tap) {
            const int64_t position = line.position(output, tap);
            if (position < 0 || position >= height.source) continue;
            workspace.kernels.push_back(
                kernel +
                ((line.first_tap + tap * line.kernel_step) * width.kernel + column.first_tap) * lanes_);
            const T* source =
                source_ + (image * height.source + position) * width.source * correlation_.source_channels;
            if constexpr (std::is_same_v<T, A>) {
              if (direct) {
                workspace.sources.push_back(source + channel);
                continue;
              }
            }
            workspace.sources.push_back(workspace.rows[s].row(position, [&](A* to) {
              gather(source + begin * correlation_.source_channels, channel, channels, s, to, end - begin,
                     workspace);
            }));
          }
        }
        row.sources = workspace.sources.data();
        row.kernels = workspace.kernels.data();
        row.kernel_rows = workspace.sources.size();
        T* destination = destination_ +
                         ((image * height.destination + line.first_output + output * line.output_step) *
                              width.destination +
                          column.first_output + first * column.output_step) *
                             correlation_.destination_channels +
                         channel;
        if constexpr (std::is_same_v<T, A>) {
          if (direct) {
            row.outputs = destination;
            run_row(row);
            continue;
          }
        }
        row.outputs = workspace.outputs.reserve(count * lanes_);
        run_row(row);
        scatter_pixels(row.outputs, lanes_, destination,
                       column.output_step * correlation_.destination_channels, channels, count);
      }
    }
  }

  // The source channels of one vector of destination channels, for some pixels of a row.
  void gather(const T* source, int64_t channel, int64_t channels, int64_t s, A* to, int64_t pixels,
              Workspace& workspace) const {
    if (correlation_.multiplier == 1) {
      gather_pixels(source + channel, correlation_.source_channels, channels, to, lanes_, pixels);
      return;
    }
    workspace.channels.resize(channels);
    for (int64_t c = 0; c < channels; ++c)
      workspace.channels[c] = correlation_.source_channel(channel + c, s);
    gather_pixels(source, correlation_.source_channels, workspace.channels.data(), channels, to, lanes_,
                  pixels);
  }

  const T* source_;
  T* destination_;
  const Correlation& correlation_;
  int64_t lanes_;
  int64_t blocks_;  // vectors of destination channels
  int64_t band_;    // outputs of a height phase
  int64_t slice_;   // outputs of a width phase
  std::vector<A> kernels_;
  std::vector<A> bias_;
};

}  // namespace

template <typename T>
void correlate_channels_last(const T* source, const T* weight, const T* bias, T* destination,
                             const Correlation& correlation) {
  ChannelsLast<T>(source, weight, bias, destination, correlation).run();
}

template void correlate_channels_last(const double*, const double*, const double*, double*,
                                      const Correlation&);
template void correlate_channels_last(const float*, const float*, const float*, float*, const Correlation&);
template void correlate_channels_last(const Half*, const Half*, const Half*, Half*, const Correlation&);
template void correlate_channels_last(const BFloat16*, const BFloat16*, const BFloat16*, BFloat16*,
                                      const Correlation&);

}  // namespace torchgraft::depthwise::cpu
