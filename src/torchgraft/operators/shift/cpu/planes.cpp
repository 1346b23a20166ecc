// shift and its gradients on CPU, contiguous images. A unit of work is a plane, which lies in memory as one
// piece, and whose offset is one.
//
// Some rows of results at a time, as many as keep their source in first-level cache: the source is copied
// there, once, into `accumulate_t<T>`, with zeros where there are no rows; then all results are one run
// (runs.h). An element costs two loads and two stores, and four loads more, of first-level cache. What
// bounds it is memory, save for planes smaller than a few vectors. Rows longer than kColumns are cut: then
// the zeros beyond a row's end are copied too. Large results in float go past the caches, in whole cache
// lines: on two cores (8,64,300,25) took 1.2 times as long as a copy, and 1.4 where each line was read before
// it was written. Rows of a stride are too short for that, and halves no faster.
//
// The gradient of the input is the same, with its taps turned around. Those of the offsets are products of
// the output's gradient with differences of the same taps; a plane's sums are kept, and the planes of a
// channel are added up in order (cpu.cpp).

#include "runs.h"

namespace torchgraft::shift::cpu {
namespace {

constexpr int64_t kColumns = 512;
// Of the source, 16 KB in float. Long rows come at least so many at a time, as each chunk begins with a row
// that the one before ended with.
constexpr int64_t kElements = 4096;
constexpr int64_t kLeastRows = 8;
// Elements of a plane that takes hardly longer than what its channel says of it.
constexpr int64_t kSmallPlane = 256;

// What of a plane's results its channel says, for as many columns as there are or as are taken at a time.
template <typename A>
struct Channel {
  Taps<A> taps = {};
  Columns<A> columns = {};
  int64_t rows = 0;  // of results at a time; 0 where nothing is known yet
};

// What is computed of a plane.
enum class Results { output, input_grad, offset_grads };

// Scratch of a thread: chunks of planes of one size.
template <typename T>
class Source {
 public:
  using A = accumulate_t<T>;

  // Of so many planes, one after another.
  Source(const Geometry& geometry, int64_t planes)
      : geometry_(geometry),
        // Small planes take less time than what their channel says, which is kept where most come again.
        keeps_channels_(geometry.input_pixels() <= kSmallPlane && planes >= 2 * geometry.channels),
        width_(geometry.width),
        most_columns_(std::min(width_, kColumns)),
        // Where rows are cut, they have the column of the last right tap too.
        pitch_(is_whole() ? width_ : most_columns_ + 1),
        margin_(is_whole() ? width_ + 2 * kMostLanes : 0),
        source_rows_(
            std::clamp<int64_t>(kElements / pitch_, kLeastRows, std::max(kLeastRows, geometry.height + 2))),
        zeros_(most_columns_ + 2 * kMostLanes, A(0)),
        elements_(2 * margin_ + source_rows_ * pitch_ + 2 * kMostLanes, A(0)),
        bits_(Columns<A>::elements(most_columns_)) {}

  template <typename Pass>
  void open(const Pass& pass, Results results, int64_t channel, const T* plane) {
    plane_ = plane;
    results_ = results;
    begin_ = 0;
    if (!keeps_channels_) {
      own_ = of_channel(pass, channel);
      channel_ = &own_;
      return open_columns(bits_.data());
    }
    Kept& kept = kept_[static_cast<int>(results)];
    const int64_t elements = Columns<A>::elements(width_);
    if (kept.channels.empty()) {
      kept.channels.resize(geometry_.channels);
      kept.bits.resize(geometry_.channels * elements);
    }
    channel_ = &kept.channels[channel];
    if (channel_->rows > 0) return open_rows();
    *channel_ = of_channel(pass, channel);
    open_columns(kept.bits.data() + channel * elements);
  }

  // The next results, counted from the plane's first; false where there are none.
  template <int kBytes>
  TORCHGRAFT_INLINE bool next(Run<A>& run) {
    while (!runs_.next(run)) {
      if (row_ >= result_rows()) {
        begin_ += kColumns;
        if (begin_ >= width_) return false;
        open_columns(bits_.data());
      }
      bring<kBytes>();
    }
    run.element += chunk_.first * width_ + begin_;
    return true;
  }

  const Columns<A>& columns() const { return channel_->columns; }
  const Taps<A>& taps() const { return channel_->taps; }

 private:
  struct Kept {
    std::vector<Channel<A>> channels;
    std::vector<Bits<A>> bits;
  };

  bool is_whole() const { return most_columns_ == width_; }
  bool is_transposed() const { return results_ == Results::input_grad; }
  int64_t result_rows() const { return is_transposed() ? geometry_.height : geometry_.steps; }

  template <typename Pass>
  Channel<A> of_channel(const Pass& pass, int64_t channel) const {
    const Taps<A> taps = taps_of(pass, channel, is_transposed());
    // More than two rows apart, rows in between would come for nothing.
    const int64_t rows = taps.period > 1 ? source_rows_ - 2
                         : taps.step > 2 ? 1
                                         : (source_rows_ - 1) / taps.step;
    return {taps, {}, rows};
  }

  // Columns from `begin_` on.
  void open_columns(Bits<A>* bits) {
    const int64_t count = std::min(most_columns_, width_ - begin_);
    if (count != count_) {
      count_ = count;
      places_.resize(count + kMostLanes);
      for (int64_t k = 0; k < count + kMostLanes; ++k) places_[k] = static_cast<Bits<A>>(k % count);
    }
    const Taps<A>& taps = channel_->taps;
    const bool counts_all = results_ == Results::offset_grads;
    channel_->columns =
        Columns<A>(bits, places_.data(), count, width_, taps.column + begin_,
                   counts_all || taps.column_weights[0] != 0, counts_all || taps.column_weights[1] != 0);
    open_rows();
  }

  void open_rows() {
    row_ = 0;
    runs_ = Runs<A>();
  }

  // The next chunk.
  template <int kBytes>
  TORCHGRAFT_INLINE void bring() {
    const Taps<A>& taps = channel_->taps;
    const int64_t last = std::min(row_ + channel_->rows, result_rows());
    chunk_ = chunk_of(row_, last, taps);
    row_ = last;
    // The columns under the results, those of them that there are, and where they go.
    const int64_t column = is_whole() ? 0 : taps.column + begin_;
    const int64_t from = std::clamp<int64_t>(column, 0, width_);
    const int64_t to = std::clamp<int64_t>(column + pitch_, from, width_);
    const int64_t before = std::clamp<int64_t>(from - column, 0, pitch_);
    A* row = elements_.data() + margin_;
    for (int64_t position = chunk_.source_first; position < chunk_.source_last; ++position, row += pitch_) {
      if (position < 0 || position >= taps.source_rows) {
        std::fill_n(row, pitch_, A(0));
        continue;
      }
      const T* source = plane_ + position * width_ + from;
      int64_t count = to - from;
      if (is_whole()) {
        // All rows that there are, as one.
        const int64_t end = std::min(chunk_.source_last, taps.source_rows);
        count = (end - position) * width_;
        row += (end - 1 - position) * pitch_;
        position = end - 1;
      }
      A* at = is_whole() ? row + pitch_ - count : row + before;
      cover<A, kBytes>(count, [&](auto tag, int64_t k) __attribute__((always_inline)) {
        typename decltype(tag)::type values;
        load_converted<decltype(values), A>(values, source + k);
        store(values, at + k);
      });
      if (!is_whole()) {
        std::fill(row, at, A(0));
        std::fill(at + count, row + pitch_, A(0));
      }
    }
    // A displacement ends a column or two beyond the image, where the margin holds what is masked out.
    const A* source = elements_.data() + margin_ + (is_whole() ? taps.column : 0);
    runs_ = Runs<A>(chunk_, taps, source, pitch_, zeros_.data(), count_, width_);
  }

  const Geometry& geometry_;
  bool keeps_channels_;
  int64_t width_;
  int64_t most_columns_;
  int64_t pitch_;
  int64_t margin_;
  int64_t source_rows_;
  std::vector<A> zeros_;
  std::vector<A> elements_;
  std::vector<Bits<A>> bits_;
  std::vector<Bits<A>> places_;  // in their row, of results that follow one another, in rows of `count_`
  int64_t count_ = 0;
  Kept kept_[3];  // by results
  Channel<A> own_;
  const T* plane_ = nullptr;
  Channel<A>* channel_ = nullptr;
  Results results_ = Results::output;
  int64_t begin_ = 0;
  int64_t row_ = 0;
  Chunk chunk_ = {};
  Runs<A> runs_;
};

// Whether results are better written past the caches: all of a plane's are one long run, as half of a cache
// line at its ends is slow.
template <typename T>
bool streams_to(const Geometry& geometry, int64_t results) {
  return std::is_same_v<T, accumulate_t<T>> && geometry.stride == 1 && geometry.width <= kColumns &&
         geometry.input_pixels() >= kElements && results * static_cast<int64_t>(sizeof(T)) >= kStreamedBytes;
}

// All results of the plane that is open.
template <int kBytes, typename T>
TORCHGRAFT_INLINE void resample_plane(T* result, bool streams, Source<T>& source) {
  const auto taps = source.taps();
  Run<accumulate_t<T>> run;
  while (source.template next<kBytes>(run)) {
    T* to = result + run.element;
    if (std::is_same_v<T, accumulate_t<T>> && streams) {
      blend_run<kBytes, std::is_same_v<T, accumulate_t<T>>>(run.upper, run.lower, taps, source.columns(),
                                                            run.count, to);
    } else {
      blend_run<kBytes, false>(run.upper, run.lower, taps, source.columns(), run.count, to);
    }
  }
  if (streams) end_streams();
}

template <int kBytes, typename T>
TORCHGRAFT_INLINE void run_plane(const Forward<T>& pass, int64_t image, int64_t channel, Source<T>& source) {
  const Geometry& geometry = pass.geometry;
  const int64_t plane = image * geometry.channels + channel;
  source.open(pass, Results::output, channel, pass.input + plane * geometry.input_pixels());
  resample_plane<kBytes>(pass.output + plane * geometry.output_pixels(),
                         streams_to<T>(geometry, geometry.planes() * geometry.output_pixels()), source);
}

template <int kBytes, typename T>
TORCHGRAFT_INLINE void run_plane(const Backward<T>& pass, int64_t image, int64_t channel, Source<T>& source) {
  const Geometry& geometry = pass.geometry;
  const int64_t plane = image * geometry.channels + channel;
  const T* output_grad = pass.output_grad + plane * geometry.output_pixels();
  if (pass.input_grad != nullptr) {
    source.open(pass, Results::input_grad, channel, output_grad);
    resample_plane<kBytes>(pass.input_grad + plane * geometry.input_pixels(),
                           streams_to<T>(geometry, geometry.planes() * geometry.input_pixels()), source);
  }
  if (pass.partial_sums != nullptr) {
    source.open(pass, Results::offset_grads, channel, pass.input + plane * geometry.input_pixels());
    const auto taps = source.taps();
    Totals totals;
    Run<accumulate_t<T>> run;
    while (source.template next<kBytes>(run)) {
      sum_run<kBytes>(output_grad + run.element, run.upper, run.lower, taps, source.columns(), run.count,
                      totals);
    }
    keep_sums(pass, image, channel, totals);
  }
}

#define SHIFT_PLANES(PASS, T)                                                                             \
  TORCHGRAFT_VECTOR_CLONES(                                                                               \
      void run_planes(const PASS<T>& pass, int64_t image, int64_t begin, int64_t end, Source<T>& source), \
      for (int64_t channel = begin; channel < end;                                                        \
           ++channel) { run_plane<kVectorBytes>(pass, image, channel, source); })
SHIFT_PLANES(Forward, double)
SHIFT_PLANES(Forward, float)
SHIFT_PLANES(Forward, Half)
SHIFT_PLANES(Forward, BFloat16)
SHIFT_PLANES(Backward, double)
SHIFT_PLANES(Backward, float)
SHIFT_PLANES(Backward, Half)
SHIFT_PLANES(Backward, BFloat16)
#undef SHIFT_PLANES

template <typename T, typename Pass>
void run_all(const Pass& pass) {
  const Geometry& geometry = pass.geometry;
  parallel_for(0, geometry.planes(), units_of_grain(geometry.input_pixels()),
               [&](int64_t begin, int64_t end) {
                 Source<T> source(geometry, end - begin);
                 while (begin < end) {
                   const int64_t image = begin / geometry.channels;
                   const int64_t channel = begin - image * geometry.channels;
                   const int64_t count = std::min(geometry.channels - channel, end - begin);
                   run_planes(pass, image, channel, channel + count, source);
                   begin += count;
                 }
               });
}

}  // namespace

#define SHIFT_PLANES(T)                           \
  template <>                                     \
  void forward_planes(const Forward<T>& pass) {   \
    run_all<T>(pass);                             \
  }                                               \
  template <>                                     \
  void backward_planes(const Backward<T>& pass) { \
    run_all<T>(pass);                             \
  }
SHIFT_PLANES(double)
SHIFT_PLANES(float)
SHIFT_PLANES(Half)
SHIFT_PLANES(BFloat16)
#undef SHIFT_PLANES

}  // namespace torchgraft::shift::cpu
