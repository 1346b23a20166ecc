// shift and its gradients on CPU, contiguous images. A unit of work is a plane, which lies in memory as one
// piece, and whose offset is one.
//
// Some rows at a time: rows of the source are brought into first-level cache in `accumulate_t<T>`, each once,
// moved along by the whole columns of the offset, zeros where the image ends. A row of results is then four
// vectors, two rows of those and a column further two again, times four weights. Rows that fill no whole
// number of vectors end in a vector that overlaps the one before. An element costs six loads and two stores,
// of which all but a load and a store are of first-level cache; what bounds it is memory.
//
// The gradient of the input is the same, with its taps turned around. Those of the offsets are products of
// the output's gradient with differences of the same four vectors; their sums stay in a vector a plane, and
// the planes of a channel are added up in order (cpu.cpp).

#include "cpu_kernels.h"

namespace torchgraft::shift::cpu {
namespace {

// Columns that are worked on at a time, and the bytes of the rows of the source under them, which are to stay
// in first-level cache.
constexpr int64_t kColumns = 1024;
constexpr int64_t kSourceBytes = 16 * 1024;
constexpr int64_t kMostRows = 16;

// Calls `body(tag of a vector, position, how many of its lanes came before)` until [0, count) is covered, in
// the widest vectors that fit.
template <typename A, int kBytes, typename Body>
TORCHGRAFT_INLINE void cover(int64_t count, const Body& body) {
  constexpr int64_t kLanes = kBytes / sizeof(A);
  if (count >= kLanes) {
    int64_t at = 0;
    for (; at + kLanes <= count; at += kLanes) body(Tag<Vector<A, kBytes>>{}, at);
    if (at < count) body(Tag<Vector<A, kBytes>>{}, count - kLanes);
  } else if constexpr (kLanes > 1) {
    cover<A, kBytes / 2>(count, body);
  }
}

// Rows of a plane under the taps of one channel, over some columns of results.
template <typename T>
class Source {
 public:
  using A = accumulate_t<T>;

  // For results in `columns` columns at most, of planes with so many rows.
  Source(int64_t columns, int64_t rows)
      : pitch_(round_up(std::min(columns, kColumns) + 1, kMostLanes) + kMostLanes),
        result_rows_(std::clamp<int64_t>(kSourceBytes / (2 * pitch_ * static_cast<int64_t>(sizeof(A))), 1,
                                         std::clamp<int64_t>(rows, 1, kMostRows))),
        slots_(2 * result_rows_ + 2),
        elements_((slots_ + 1) * pitch_, A(0)) {}

  // Rows of results that may be worked on before rows of the source are overwritten that they need.
  int64_t result_rows() const { return result_rows_; }

  void open(const T* plane, int64_t width, int64_t begin, int64_t end, const Taps<A>& taps) {
    plane_ = plane;
    width_ = width;
    from_ = std::clamp<int64_t>(begin + taps.column, 0, width);
    count_ = std::max<int64_t>(std::clamp<int64_t>(end + taps.column + 1, 0, width) - from_, 0);
    place_ = count_ == 0 ? 0 : from_ - begin - taps.column;
    std::fill(elements_.begin(), elements_.end(), A(0));
    used_ = 0;
    held_[0] = held_[1] = Rows::kNone;
  }

  const A* zeros() const { return elements_.data() + slots_ * pitch_; }

  // The row at the first column of results, the column of its left tap. Rows are asked for in ascending
  // order, a row and the next one in turn.
  template <int kBytes>
  TORCHGRAFT_INLINE const A* row(int64_t position) {
    if (position == Rows::kNone) return zeros();
    for (int i = 0; i < 2; ++i) {
      if (held_[i] == position) return slot_of_[i];
    }
    A* slot = elements_.data() + used_ * pitch_;
    used_ = used_ + 1 == slots_ ? 0 : used_ + 1;
    held_[0] = held_[1];
    slot_of_[0] = slot_of_[1];
    held_[1] = position;
    slot_of_[1] = slot;
    const T* from = plane_ + position * width_ + from_;
    A* to = slot + place_;
    cover<A, kBytes>(count_, [&](auto tag, int64_t at) __attribute__((always_inline)) {
      typename decltype(tag)::type values;
      load_converted<decltype(values), A>(values, from + at);
      store(values, to + at);
    });
    return slot;
  }

 private:
  int64_t pitch_;
  int64_t result_rows_;
  int64_t slots_;
  std::vector<A> elements_;
  const T* plane_ = nullptr;
  int64_t width_ = 0;
  int64_t from_ = 0;
  int64_t count_ = 0;
  int64_t place_ = 0;
  int64_t used_ = 0;
  int64_t held_[2] = {};
  const A* slot_of_[2] = {};
};

// Goes through the results of a plane, some rows of some columns at a time.
template <typename T>
class Pieces {
 public:
  Pieces(Source<T>& source, const T* plane, int64_t width, int64_t result_rows,
         const Taps<accumulate_t<T>>& taps)
      : under(taps.rows()),
        source_(source),
        plane_(plane),
        width_(width),
        result_rows_(result_rows),
        taps_(taps) {
    open();
  }

  // Rows of the source under row `first`.
  Rows under;
  int64_t first = 0;
  int64_t last = 0;
  int64_t begin = 0;
  int64_t columns = 0;

  // The next piece; false where there is none.
  bool next() {
    if (last == result_rows_) {
      begin += columns;
      if (begin >= width_ || result_rows_ == 0) return false;
      under = taps_.rows();
      last = 0;
      open();
    }
    first = last;
    last = std::min(first + source_.result_rows(), result_rows_);
    return true;
  }

 private:
  void open() {
    const int64_t end = std::min(begin + kColumns, width_);
    source_.open(plane_, width_, begin, end, taps_);
    columns = end - begin;
  }

  Source<T>& source_;
  const T* plane_;
  int64_t width_;
  int64_t result_rows_;
  const Taps<accumulate_t<T>>& taps_;
};

// The four taps of a row of results, at its first column.
template <typename A>
using RowTaps = const A* [2][2];

// All results of a plane from all of its source.
template <int kBytes, typename T>
TORCHGRAFT_INLINE void resample_plane(const T* plane, T* result, int64_t result_rows, int64_t width,
                                      const Taps<accumulate_t<T>>& taps, Source<T>& source) {
  using A = accumulate_t<T>;
  const A weights[2][2] = {{taps.weight(0, 0), taps.weight(0, 1)}, {taps.weight(1, 0), taps.weight(1, 1)}};
  RowTaps<A> rows[kMostRows];
  for (Pieces<T> piece(source, plane, width, result_rows, taps); piece.next();) {
    for (int64_t r = piece.first; r < piece.last; ++r, piece.under.advance()) {
      for (int i = 0; i < 2; ++i) {
        const int64_t position = taps.row_weights[i] == 0 ? Rows::kNone : piece.under.under(i);
        const A* row = source.template row<kBytes>(position);
        for (int j = 0; j < 2; ++j)
          rows[r - piece.first][i][j] = taps.counts(i, j) ? row + j : source.zeros();
      }
    }
    for (int64_t r = piece.first; r < piece.last; ++r) {
      const RowTaps<A>& at = rows[r - piece.first];
      const A *top_left = at[0][0], *top_right = at[0][1], *low_left = at[1][0], *low_right = at[1][1];
      T* to = result + r * width + piece.begin;
      const auto blend = [&](auto tag, int64_t v) __attribute__((always_inline)) {
        typename decltype(tag)::type a, b, c, d;
        load(a, top_left + v);
        load(b, top_right + v);
        load(c, low_left + v);
        load(d, low_right + v);
        const auto upper = a * weights[0][0] + b * weights[0][1];
        const auto lower = c * weights[1][0] + d * weights[1][1];
        store_converted<A>(upper + lower, to + v);
      };
      cover<A, kBytes>(piece.columns, blend);
    }
  }
}

// Adds the products of a piece of rows to the totals. `rows` are the taps at its first column.
template <int kBytes, typename A, typename T>
TORCHGRAFT_INLINE void sum_rows(const T* output_grad, int64_t width, const RowTaps<A>* rows, int64_t count,
                                int64_t columns, const Taps<A>& taps, Totals& totals) {
  constexpr int64_t kLanes = kBytes / sizeof(A);
  if constexpr (kLanes > 1) {
    if (columns < kLanes) return sum_rows<kBytes / 2>(output_grad, width, rows, count, columns, taps, totals);
  }
  using V = Vector<A, kBytes>;
  V sums[2] = {};
  int64_t added = 0;
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t v = 0; v < columns; v += kLanes) {
      const int64_t begin = std::min(v, columns - kLanes);
      V grad, top_left, top_right, low_left, low_right;
      load_converted<V, A>(grad, output_grad + r * width + begin);
      load(top_left, rows[r][0][0] + begin);
      load(top_right, rows[r][0][1] + begin);
      load(low_left, rows[r][1][0] + begin);
      load(low_right, rows[r][1][1] + begin);
      V along_x = (top_right - top_left) * taps.row_weights[0] + (low_right - low_left) * taps.row_weights[1];
      V along_y =
          (low_left - top_left) * taps.column_weights[0] + (low_right - top_right) * taps.column_weights[1];
      along_x *= grad;
      along_y *= grad;
      if (begin < v) {
        V counted;
        lanes_from<A>(counted, v - begin);
        along_x = counted != 0 ? along_x : V{};
        along_y = counted != 0 ? along_y : V{};
      }
      sums[0] += along_x;
      sums[1] += along_y;
      if (++added % kVectorsOfSum == 0) totals.take(sums);
    }
  }
  totals.take(sums);
}

// The sums of the plane's gradients along x and y.
template <int kBytes, typename T>
TORCHGRAFT_INLINE Totals sum_plane(const T* output_grad, const T* input, const Geometry& geometry,
                                   const Taps<accumulate_t<T>>& taps, Source<T>& source) {
  using A = accumulate_t<T>;
  Totals totals;
  RowTaps<A> rows[kMostRows];
  for (Pieces<T> piece(source, input, geometry.width, geometry.steps, taps); piece.next();) {
    for (int64_t t = piece.first; t < piece.last; ++t, piece.under.advance()) {
      for (int i = 0; i < 2; ++i) {
        const A* row = source.template row<kBytes>(piece.under.under(i));
        for (int j = 0; j < 2; ++j) rows[t - piece.first][i][j] = row + j;
      }
    }
    sum_rows<kBytes>(output_grad + piece.first * geometry.width + piece.begin, geometry.width, rows,
                     piece.last - piece.first, piece.columns, taps, totals);
  }
  return totals;
}

template <int kBytes, typename T>
TORCHGRAFT_INLINE void run_plane(const Forward<T>& pass, int64_t plane, Source<T>& source) {
  const Geometry& geometry = pass.geometry;
  resample_plane<kBytes>(pass.input + plane * geometry.input_pixels(),
                         pass.output + plane * geometry.output_pixels(), geometry.steps, geometry.width,
                         taps_of(pass, plane % geometry.channels, false), source);
}

template <int kBytes, typename T>
TORCHGRAFT_INLINE void run_plane(const Backward<T>& pass, int64_t plane, Source<T>& source) {
  const Geometry& geometry = pass.geometry;
  const int64_t channel = plane % geometry.channels;
  const T* output_grad = pass.output_grad + plane * geometry.output_pixels();
  if (pass.input_grad != nullptr) {
    resample_plane<kBytes>(output_grad, pass.input_grad + plane * geometry.input_pixels(), geometry.height,
                           geometry.width, taps_of(pass, channel, true), source);
  }
  if (pass.partial_sums != nullptr) {
    const Totals totals = sum_plane<kBytes>(output_grad, pass.input + plane * geometry.input_pixels(),
                                            geometry, taps_of(pass, channel, false), source);
    keep_sums(pass, plane / geometry.channels, channel, totals);
  }
}

#define SHIFT_PLANES(T)                                                                         \
  TORCHGRAFT_VECTOR_CLONES(void run(const Forward<T>& pass, int64_t plane, Source<T>& source),  \
                           run_plane<kVectorBytes>(pass, plane, source);)                       \
  TORCHGRAFT_VECTOR_CLONES(void run(const Backward<T>& pass, int64_t plane, Source<T>& source), \
                           run_plane<kVectorBytes>(pass, plane, source);)
SHIFT_PLANES(double)
SHIFT_PLANES(float)
SHIFT_PLANES(Half)
SHIFT_PLANES(BFloat16)
#undef SHIFT_PLANES

template <typename T, typename Pass>
void run_planes(const Pass& pass) {
  const Geometry& geometry = pass.geometry;
  parallel_for(0, geometry.planes(), units_of_grain(geometry.input_pixels()),
               [&](int64_t begin, int64_t end) {
                 Source<T> source(geometry.width, geometry.height);
                 for (int64_t plane = begin; plane < end; ++plane) run(pass, plane, source);
               });
}

}  // namespace

#define SHIFT_PLANES(T)                           \
  template <>                                     \
  void forward_planes(const Forward<T>& pass) {   \
    run_planes<T>(pass);                          \
  }                                               \
  template <>                                     \
  void backward_planes(const Backward<T>& pass) { \
    run_planes<T>(pass);                          \
  }
SHIFT_PLANES(double)
SHIFT_PLANES(float)
SHIFT_PLANES(Half)
SHIFT_PLANES(BFloat16)
#undef SHIFT_PLANES

}  // namespace torchgraft::shift::cpu
