// shift and its gradients on CPU, channels_last images. A unit of work is a cache line of channels of one
// image: its offsets are as many as its channels.
//
// Some rows of results at a time: the rows of the source between the channels' farthest offsets are turned
// around in registers on their way to second-level cache, so that the columns of a channel are neighbours, in
// `accumulate_t<T>`; then the results of each channel are one run (cpu_runs.h), and all together are turned
// back. An element costs two turns of log2(lanes) shuffles beside what it costs in a plane. Rows that two
// chunks need are brought twice; chunks are as high as their offsets are apart, or higher.
//
// The gradient of the input is the same, with its taps turned around. Those of the offsets are products of
// the output's gradient, turned around too, with differences of the same taps; the sums of each image are
// kept, and added up in order (cpu.cpp).

#include <torchgraft/cpu_transpose.h>

#include "cpu_runs.h"

namespace torchgraft::shift::cpu {
namespace {

template <typename T>
constexpr int64_t kLineChannels = 64 / sizeof(T);
// Results of one channel, as a rule.
constexpr int64_t kElements = 2048;

// The channels of one unit.
struct Line {
  int64_t image;
  int64_t channel;
  int64_t channels;
};

// As many pixels as there are lanes, in channels: what is beyond `channels` is zero, or not written.
template <int kBytes, typename T>
TORCHGRAFT_INLINE void load_square(
    Vector<accumulate_t<T>, kBytes> (&square)[kBytes / sizeof(accumulate_t<T>)], const T* from, int64_t step,
    int64_t channels) {
  using A = accumulate_t<T>;
  using V = Vector<A, kBytes>;
  constexpr int kLanes = kBytes / sizeof(A);
  if (channels >= kLanes) {
    TORCHGRAFT_UNROLL for (int p = 0; p < kLanes; ++p) load_converted<V, A>(square[p], from + p * step);
  } else {
    for (int64_t p = 0; p < kLanes; ++p) {
      T pixel[kLanes] = {};
      for (int64_t c = 0; c < channels; ++c) pixel[c] = from[p * step + c];
      load_converted<V, A>(square[p], pixel);
    }
  }
  transpose(square);
}

template <int kBytes, typename T>
TORCHGRAFT_INLINE void store_square(
    Vector<accumulate_t<T>, kBytes> (&square)[kBytes / sizeof(accumulate_t<T>)], T* to, int64_t step,
    int64_t channels) {
  using A = accumulate_t<T>;
  constexpr int kLanes = kBytes / sizeof(A);
  transpose(square);
  if (channels >= kLanes) {
    TORCHGRAFT_UNROLL for (int p = 0; p < kLanes; ++p) store_converted<A>(square[p], to + p * step);
  } else {
    for (int64_t p = 0; p < kLanes; ++p) {
      T pixel[kLanes];
      store_converted<A>(square[p], pixel);
      for (int64_t c = 0; c < channels; ++c) to[p * step + c] = pixel[c];
    }
  }
}

// Pixels of a line of channels, `step` apart, to rows of a channel each, `pitch` apart.
template <int kBytes, typename T, typename A>
TORCHGRAFT_INLINE void gather(const T* from, int64_t step, int64_t pixels, int64_t channels, A* to,
                              int64_t pitch) {
  constexpr int64_t kLanes = kBytes / sizeof(A);
  if constexpr (kLanes > 2) {
    if (pixels < kLanes) return gather<kBytes / 2>(from, step, pixels, channels, to, pitch);
  }
  if (pixels < kLanes) {
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t p = 0; p < pixels; ++p) to[c * pitch + p] = static_cast<A>(from[p * step + c]);
    }
    return;
  }
  for (int64_t p = 0; p < pixels; p += kLanes) {
    const int64_t begin = std::min(p, pixels - kLanes);
    for (int64_t c = 0; c < channels; c += kLanes) {
      Vector<A, kBytes> square[kLanes];
      load_square<kBytes>(square, from + begin * step + c, step, channels - c);
      TORCHGRAFT_UNROLL for (int l = 0; l < kLanes; ++l) store(square[l], to + (c + l) * pitch + begin);
    }
  }
}

template <int kBytes, typename T, typename A>
TORCHGRAFT_INLINE void scatter(const A* from, int64_t pitch, int64_t pixels, int64_t channels, T* to,
                               int64_t step) {
  constexpr int64_t kLanes = kBytes / sizeof(A);
  if constexpr (kLanes > 2) {
    if (pixels < kLanes) return scatter<kBytes / 2>(from, pitch, pixels, channels, to, step);
  }
  if (pixels < kLanes) {
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t p = 0; p < pixels; ++p) to[p * step + c] = static_cast<T>(from[c * pitch + p]);
    }
    return;
  }
  for (int64_t p = 0; p < pixels; p += kLanes) {
    const int64_t begin = std::min(p, pixels - kLanes);
    for (int64_t c = 0; c < channels; c += kLanes) {
      Vector<A, kBytes> square[kLanes];
      TORCHGRAFT_UNROLL for (int l = 0; l < kLanes; ++l) load(square[l], from + (c + l) * pitch + begin);
      store_square<kBytes>(square, to + begin * step + c, step, channels - c);
    }
  }
}

// Scratch of a thread: lines of images of one size.
template <typename T>
class Source {
 public:
  using A = accumulate_t<T>;
  static constexpr int64_t kChannels = kLineChannels<T>;

  explicit Source(const Geometry& geometry)
      : step_(geometry.channels),
        width_(geometry.width),
        margin_(width_ + 2 * kMostLanes),
        zeros_(width_ + 2 * kMostLanes, A(0)) {}

  // `image` begins at the line's first channel.
  template <typename Pass>
  void open(const T* image, const Pass& pass, const Line& line, bool transposed, bool weighed) {
    image_ = image;
    channels_ = line.channels;
    result_rows_ = transposed ? pass.geometry.height : pass.geometry.steps;
    least_row_ = most_row_ = 0;
    bool any = false, in_sight[kChannels];
    for (int64_t c = 0; c < channels_; ++c) {
      Taps<A>& taps = taps_[c] = taps_of(pass, line.channel + c, transposed);
      const Chunk all = chunk_of(0, result_rows_, taps, taps.row, taps.row);
      in_sight[c] = all.source_first < taps.source_rows && all.source_last > 0;
      if (in_sight[c]) {
        least_row_ = any ? std::min(least_row_, taps.row) : taps.row;
        most_row_ = any ? std::max(most_row_, taps.row) : taps.row;
        any = true;
      }
    }
    for (int64_t c = 0; c < channels_; ++c) {
      Taps<A>& taps = taps_[c];
      const bool left_counts = in_sight[c] && (!weighed || taps.column_weights[0] != 0);
      const bool right_counts = in_sight[c] && (!weighed || taps.column_weights[1] != 0);
      columns_[c].open(width_, width_, taps.column, left_counts, right_counts);
      // Of a channel that has no row in sight no column counts, in whichever rows it is looked for.
      if (!in_sight[c]) taps.row = least_row_;
    }
    // More than two rows apart, rows in between would come for nothing.
    const int64_t apart = most_row_ - least_row_;
    rows_ = std::max(kElements / std::max<int64_t>(width_, 1), apart);
    rows_ = std::clamp<int64_t>(taps_[0].step > 2 ? apart / taps_[0].step : rows_, 1,
                                std::max<int64_t>(result_rows_, 1));
    chunk_ = {};
  }

  // Goes on to the next rows of results; false where there are none.
  template <int kBytes>
  TORCHGRAFT_INLINE bool next() {
    if (chunk_.last >= result_rows_) return false;
    const int64_t first = chunk_.last;
    const int64_t last = std::min(first + rows_, result_rows_);
    chunk_ = chunk_of(first, last, taps_[0], least_row_, most_row_);
    reserve();
    bring<kBytes>();
    return true;
  }

  const Chunk& chunk() const { return chunk_; }
  int64_t pixels() const { return chunk_.rows() * width_; }
  const Taps<A>& taps(int64_t channel) const { return taps_[channel]; }
  const Columns<A>& columns(int64_t channel) const { return columns_[channel]; }
  Runs<A> runs(int64_t channel) const {
    const Taps<A>& taps = taps_[channel];
    // Where no column has a tap, every place is as good.
    const int64_t place = taps.column >= -width_ && taps.column <= width_ ? taps.column : 0;
    const A* source = elements_.data() + channel * pitch_ + margin_ + place;
    return Runs<A>(chunk_, taps, source, width_, zeros_.data(), width_, width_);
  }

  // Room for the results of a channel, or for their gradient.
  A* results(int64_t channel) { return results_.data() + channel * result_pitch_; }
  int64_t result_pitch() const { return result_pitch_; }

 private:
  void reserve() {
    // An odd number of cache lines, so that channels do not meet in the same places of a cache.
    const auto odd_lines = [](int64_t elements) {
      constexpr int64_t kLine = 64 / sizeof(A);
      return ((elements + kLine - 1) / kLine | 1) * kLine;
    };
    pitch_ = std::max(pitch_, odd_lines(2 * margin_ + chunk_.source_rows() * width_));
    result_pitch_ = std::max(result_pitch_, odd_lines(pixels() + kMostLanes));
    if (static_cast<int64_t>(elements_.size()) < kChannels * pitch_)
      elements_.assign(kChannels * pitch_, A(0));
    if (static_cast<int64_t>(results_.size()) < kChannels * result_pitch_) {
      results_.assign(kChannels * result_pitch_, A(0));
    }
  }

  template <int kBytes>
  TORCHGRAFT_INLINE void bring() {
    const int64_t first = std::clamp<int64_t>(0, chunk_.source_first, chunk_.source_last);
    const int64_t last = std::clamp<int64_t>(taps_[0].source_rows, first, chunk_.source_last);
    const int64_t before = (first - chunk_.source_first) * width_,
                  after = (chunk_.source_last - last) * width_;
    A* to = elements_.data() + margin_;
    for (int64_t c = 0; c < channels_; ++c) {
      std::fill_n(to + c * pitch_, before, A(0));
      std::fill_n(to + c * pitch_ + (last - chunk_.source_first) * width_, after, A(0));
    }
    gather<kBytes>(image_ + first * width_ * step_, step_, (last - first) * width_, channels_, to + before,
                   pitch_);
  }

  int64_t step_;
  int64_t width_;
  int64_t margin_;
  std::vector<A> zeros_;
  const T* image_ = nullptr;
  int64_t channels_ = 0;
  int64_t result_rows_ = 0;
  int64_t least_row_ = 0;
  int64_t most_row_ = 0;
  int64_t rows_ = 1;
  Chunk chunk_ = {};
  int64_t pitch_ = 0;
  int64_t result_pitch_ = 0;
  Taps<A> taps_[kChannels];
  Columns<A> columns_[kChannels];
  std::vector<A> elements_;
  std::vector<A> results_;
};

// All results of a line.
template <int kBytes, typename T>
TORCHGRAFT_INLINE void resample_line(Source<T>& source, T* result, const Geometry& geometry,
                                     const Line& line) {
  using A = accumulate_t<T>;
  while (source.template next<kBytes>()) {
    for (int64_t c = 0; c < line.channels; ++c) {
      Runs<A> runs = source.runs(c);
      Run<A> run;
      while (runs.next(run)) {
        blend_run<kBytes>(run.upper, run.lower, source.taps(c), source.columns(c), run.count,
                          source.results(c) + run.element);
      }
    }
    T* to = result + source.chunk().first * geometry.width * geometry.channels;
    scatter<kBytes>(source.results(0), source.result_pitch(), source.pixels(), line.channels, to,
                    geometry.channels);
  }
}

// Adds up the gradients along x and y of a line, a channel each.
template <int kBytes, typename T>
TORCHGRAFT_INLINE void sum_line(Source<T>& source, const T* output_grad, const Geometry& geometry,
                                const Line& line, Totals (&totals)[kLineChannels<T>]) {
  using A = accumulate_t<T>;
  while (source.template next<kBytes>()) {
    const T* from = output_grad + source.chunk().first * geometry.width * geometry.channels;
    gather<kBytes>(from, geometry.channels, source.pixels(), line.channels, source.results(0),
                   source.result_pitch());
    for (int64_t c = 0; c < line.channels; ++c) {
      Runs<A> runs = source.runs(c);
      Run<A> run;
      while (runs.next(run)) {
        const A* grad = source.results(c) + run.element;
        sum_run<kBytes>(grad, run.upper, run.lower, source.taps(c), source.columns(c), run.count, totals[c]);
      }
    }
  }
}

template <int kBytes, typename T>
TORCHGRAFT_INLINE void run_line(const Forward<T>& pass, const Line& line, Source<T>& source) {
  const Geometry& geometry = pass.geometry;
  const int64_t of_input = line.image * geometry.channels * geometry.input_pixels() + line.channel;
  const int64_t of_output = line.image * geometry.channels * geometry.output_pixels() + line.channel;
  source.open(pass.input + of_input, pass, line, false, true);
  resample_line<kBytes>(source, pass.output + of_output, geometry, line);
}

template <int kBytes, typename T>
TORCHGRAFT_INLINE void run_line(const Backward<T>& pass, const Line& line, Source<T>& source) {
  const Geometry& geometry = pass.geometry;
  const int64_t of_input = line.image * geometry.channels * geometry.input_pixels() + line.channel;
  const int64_t of_output = line.image * geometry.channels * geometry.output_pixels() + line.channel;
  if (pass.input_grad != nullptr) {
    source.open(pass.output_grad + of_output, pass, line, true, true);
    resample_line<kBytes>(source, pass.input_grad + of_input, geometry, line);
  }
  if (pass.partial_sums != nullptr) {
    source.open(pass.input + of_input, pass, line, false, false);
    Totals totals[kLineChannels<T>];
    sum_line<kBytes>(source, pass.output_grad + of_output, geometry, line, totals);
    for (int64_t c = 0; c < line.channels; ++c) keep_sums(pass, line.image, line.channel + c, totals[c]);
  }
}

#define SHIFT_LINES(T)                                                                                   \
  TORCHGRAFT_VECTOR_CLONES(void run_lines(const Forward<T>& pass, const Line& line, Source<T>& source),  \
                           run_line<kVectorBytes>(pass, line, source);)                                  \
  TORCHGRAFT_VECTOR_CLONES(void run_lines(const Backward<T>& pass, const Line& line, Source<T>& source), \
                           run_line<kVectorBytes>(pass, line, source);)
SHIFT_LINES(double)
SHIFT_LINES(float)
SHIFT_LINES(Half)
SHIFT_LINES(BFloat16)
#undef SHIFT_LINES

template <typename T, typename Pass>
void run_all(const Pass& pass) {
  const Geometry& geometry = pass.geometry;
  const int64_t lines = (geometry.channels + kLineChannels<T> - 1) / kLineChannels<T>;
  const int64_t grain = units_of_grain(geometry.input_pixels() * kLineChannels<T>);
  parallel_for(0, geometry.batch * lines, grain, [&](int64_t begin, int64_t end) {
    Source<T> source(geometry);
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t channel = unit % lines * kLineChannels<T>;
      const int64_t channels = std::min<int64_t>(geometry.channels - channel, kLineChannels<T>);
      run_lines(pass, {unit / lines, channel, channels}, source);
    }
  });
}

}  // namespace

#define SHIFT_CHANNELS_LAST(T)                           \
  template <>                                            \
  void forward_channels_last(const Forward<T>& pass) {   \
    run_all<T>(pass);                                    \
  }                                                      \
  template <>                                            \
  void backward_channels_last(const Backward<T>& pass) { \
    run_all<T>(pass);                                    \
  }
SHIFT_CHANNELS_LAST(double)
SHIFT_CHANNELS_LAST(float)
SHIFT_CHANNELS_LAST(Half)
SHIFT_CHANNELS_LAST(BFloat16)
#undef SHIFT_CHANNELS_LAST

}  // namespace torchgraft::shift::cpu
