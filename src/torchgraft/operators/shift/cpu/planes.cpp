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

// Scratch of a thread: chunks of planes of one size.
template <typename T>
class Source {
 public:
  using A = accumulate_t<T>;

  explicit Source(const Geometry& geometry)
      : width_(geometry.width),
        most_columns_(std::min(width_, kColumns)),
        // Where rows are cut, they have the column of the last right tap too.
        pitch_(is_whole() ? width_ : most_columns_ + 1),
        margin_(is_whole() ? width_ + 2 * kMostLanes : 0),
        source_rows_(
            std::clamp<int64_t>(kElements / pitch_, kLeastRows, std::max(kLeastRows, geometry.height + 2))),
        zeros_(most_columns_ + 2 * kMostLanes, A(0)),
        elements_(2 * margin_ + source_rows_ * pitch_ + 2 * kMostLanes, A(0)) {}

  void open(const T* plane, int64_t result_rows, const Taps<A>& taps, bool left_counts, bool right_counts) {
    plane_ = plane;
    result_rows_ = result_rows;
    taps_ = taps;
    left_counts_ = left_counts;
    right_counts_ = right_counts;
    // More than two rows apart, rows in between would come for nothing.
    rows_ = taps.period > 1 ? source_rows_ - 2 : taps.step > 2 ? 1 : (source_rows_ - 1) / taps.step;
    begin_ = 0;
    open_columns();
  }

  // The next results, counted from the plane's first; false where there are none.
  template <int kBytes>
  TORCHGRAFT_INLINE bool next(Run<A>& run) {
    while (!runs_.next(run)) {
      if (row_ >= result_rows_) {
        begin_ += kColumns;
        if (begin_ >= width_) return false;
        open_columns();
      }
      bring<kBytes>();
    }
    run.element += chunk_.first * width_ + begin_;
    return true;
  }

  const Columns<A>& columns() const { return columns_; }

 private:
  bool is_whole() const { return most_columns_ == width_; }

  void open_columns() {
    row_ = 0;
    runs_ = Runs<A>();
    count_ = std::min(most_columns_, width_ - begin_);
    columns_.open(count_, width_, taps_.column + begin_, left_counts_, right_counts_);
  }

  // The next chunk.
  template <int kBytes>
  TORCHGRAFT_INLINE void bring() {
    const int64_t last = std::min(row_ + rows_, result_rows_);
    chunk_ = chunk_of(row_, last, taps_);
    row_ = last;
    // The columns under the results, those of them that there are, and where they go.
    const int64_t column = is_whole() ? 0 : taps_.column + begin_;
    const int64_t from = std::clamp<int64_t>(column, 0, width_);
    const int64_t to = std::clamp<int64_t>(column + pitch_, from, width_);
    const int64_t before = std::clamp<int64_t>(from - column, 0, pitch_);
    A* row = elements_.data() + margin_;
    for (int64_t position = chunk_.source_first; position < chunk_.source_last; ++position, row += pitch_) {
      if (position < 0 || position >= taps_.source_rows) {
        std::fill_n(row, pitch_, A(0));
        continue;
      }
      const T* source = plane_ + position * width_ + from;
      int64_t count = to - from;
      if (is_whole()) {
        // All rows that there are, as one.
        const int64_t end = std::min(chunk_.source_last, taps_.source_rows);
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
    const A* source = elements_.data() + margin_ + (is_whole() ? taps_.column : 0);
    runs_ = Runs<A>(chunk_, taps_, source, pitch_, zeros_.data(), count_, width_);
  }

  int64_t width_;
  int64_t most_columns_;
  int64_t pitch_;
  int64_t margin_;
  int64_t source_rows_;
  std::vector<A> zeros_;
  std::vector<A> elements_;
  const T* plane_ = nullptr;
  int64_t result_rows_ = 0;
  Taps<A> taps_ = {};
  bool left_counts_ = true;
  bool right_counts_ = true;
  int64_t rows_ = 1;
  int64_t begin_ = 0;
  int64_t count_ = 0;
  int64_t row_ = 0;
  Chunk chunk_ = {};
  Runs<A> runs_;
  Columns<A> columns_;
};

// Whether results are better written past the caches: all of a plane's are one long run, as half of a cache
// line at its ends is slow.
template <typename T>
bool streams_to(const Geometry& geometry, int64_t results) {
  return std::is_same_v<T, accumulate_t<T>> && geometry.stride == 1 && geometry.width <= kColumns &&
         geometry.input_pixels() >= kElements && results * static_cast<int64_t>(sizeof(T)) >= kStreamedBytes;
}

// All results of a plane.
template <int kBytes, typename T>
TORCHGRAFT_INLINE void resample_plane(const T* plane, T* result, int64_t result_rows,
                                      const Taps<accumulate_t<T>>& taps, bool streams, Source<T>& source) {
  source.open(plane, result_rows, taps, taps.column_weights[0] != 0, taps.column_weights[1] != 0);
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
TORCHGRAFT_INLINE void run_plane(const Forward<T>& pass, int64_t plane, Source<T>& source) {
  const Geometry& geometry = pass.geometry;
  resample_plane<kBytes>(pass.input + plane * geometry.input_pixels(),
                         pass.output + plane * geometry.output_pixels(), geometry.steps,
                         taps_of(pass, plane % geometry.channels, false),
                         streams_to<T>(geometry, geometry.planes() * geometry.output_pixels()), source);
}

template <int kBytes, typename T>
TORCHGRAFT_INLINE void run_plane(const Backward<T>& pass, int64_t plane, Source<T>& source) {
  const Geometry& geometry = pass.geometry;
  const int64_t channel = plane % geometry.channels;
  const T* output_grad = pass.output_grad + plane * geometry.output_pixels();
  if (pass.input_grad != nullptr) {
    resample_plane<kBytes>(output_grad, pass.input_grad + plane * geometry.input_pixels(), geometry.height,
                           taps_of(pass, channel, true),
                           streams_to<T>(geometry, geometry.planes() * geometry.input_pixels()), source);
  }
  if (pass.partial_sums != nullptr) {
    const auto taps = taps_of(pass, channel, false);
    source.open(pass.input + plane * geometry.input_pixels(), geometry.steps, taps, true, true);
    Totals totals;
    Run<accumulate_t<T>> run;
    while (source.template next<kBytes>(run)) {
      sum_run<kBytes>(output_grad + run.element, run.upper, run.lower, taps, source.columns(), run.count,
                      totals);
    }
    keep_sums(pass, plane / geometry.channels, channel, totals);
  }
}

#define SHIFT_PLANES(T)                                                                                \
  TORCHGRAFT_VECTOR_CLONES(void run_planes(const Forward<T>& pass, int64_t plane, Source<T>& source),  \
                           run_plane<kVectorBytes>(pass, plane, source);)                              \
  TORCHGRAFT_VECTOR_CLONES(void run_planes(const Backward<T>& pass, int64_t plane, Source<T>& source), \
                           run_plane<kVectorBytes>(pass, plane, source);)
SHIFT_PLANES(double)
SHIFT_PLANES(float)
SHIFT_PLANES(Half)
SHIFT_PLANES(BFloat16)
#undef SHIFT_PLANES

template <typename T, typename Pass>
void run_all(const Pass& pass) {
  const Geometry& geometry = pass.geometry;
  parallel_for(0, geometry.planes(), units_of_grain(geometry.input_pixels()),
               [&](int64_t begin, int64_t end) {
                 Source<T> source(geometry);
                 for (int64_t plane = begin; plane < end; ++plane) run_planes(pass, plane, source);
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
