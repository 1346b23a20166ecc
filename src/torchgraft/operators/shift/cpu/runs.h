// Contiguous images on CPU: results of one channel, which are neighbours in memory, from rows of its
// source that lie in scratch one behind the other, in what sums are kept in.
//
// Rows one behind the other are one run: where rows of results are `stride` = 1 apart, a channel's results
// all have the same four taps, as many elements further on. Only columns whose tap lies beyond a row's end
// must not take it, since there the next row begins: masks say which, and repeat after each row. So short
// rows, as of skeletons, cost no more than long ones.
#pragma once

#include <torchgraft/cpu_stream.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels.h"

namespace torchgraft::shift::cpu {

inline constexpr int64_t kMostLanes = 16;

template <typename A>
using Bits = std::conditional_t<sizeof(A) == 8, uint64_t, uint32_t>;

template <typename V, typename A>
TORCHGRAFT_INLINE void mask(V& values, const Bits<A>* at) {
  Vector<Bits<A>, sizeof(V)> bits, counted;
  load(counted, at);
  reinterpret(bits, values);
  reinterpret(values, decltype(bits)(bits & counted));
}

// Which columns of results have a left tap, and which a right one: masks, of a row and of what a vector
// reaches behind it, where the next row begins.
template <typename A>
class Columns {
 public:
  static constexpr int64_t elements(int64_t count) { return 2 * (count + kMostLanes); }

  Columns() = default;
  // `bits` has room for elements(count), and `places` says of so many results their place in their row.
  // `column` is that of the left tap of the first of `count` results, in rows of `width`.
  Columns(Bits<A>* bits, const Bits<A>* places, int64_t count, int64_t width, int64_t column,
          bool left_counts, bool right_counts)
      : left_(bits), right_(bits + count + kMostLanes), period_(count) {
    fill(bits, places, -column, width - column, left_counts);
    fill(bits + count + kMostLanes, places, -column - 1, width - column - 1, right_counts);
  }

  const Bits<A>* left() const { return left_; }
  const Bits<A>* right() const { return right_; }
  int64_t period() const { return period_; }
  int64_t place(int64_t element) const { return element < period_ ? element : element % period_; }

 private:
  void fill(Bits<A>* bits, const Bits<A>* places, int64_t begin, int64_t end, bool counts) const {
    begin = std::clamp<int64_t>(begin, 0, period_);
    end = counts ? std::clamp<int64_t>(end, begin, period_) : begin;
    const Bits<A> first = static_cast<Bits<A>>(begin);
    const Bits<A> counted = static_cast<Bits<A>>(end - begin);
    for (int64_t k = 0; k < period_ + kMostLanes; ++k)
      bits[k] = places[k] - first < counted ? ~Bits<A>{0} : 0;
  }

  const Bits<A>* left_ = nullptr;
  const Bits<A>* right_ = nullptr;
  int64_t period_ = 0;
};

// Calls `body(tag of a vector, position)` until [0, count) is covered, in the widest vectors that fit; the
// last overlaps the one before.
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

// As many results as `count`, of which the first has its upper left tap at `upper` and its lower left one at
// `lower`. Where a row weighs nothing, `upper` and `lower` are the other.
template <int kBytes, bool kBoth, bool kStreamed, typename A, typename T>
TORCHGRAFT_INLINE void blend_rows(const A* upper, const A* lower, const Taps<A>& taps,
                                  const Columns<A>& columns, int64_t count, T* to) {
  constexpr int64_t kLanes = kBytes / sizeof(A);
  if constexpr (kLanes > 1) {
    if (count < kLanes) {
      return blend_rows<kBytes / 2, kBoth, kStreamed>(upper, lower, taps, columns, count, to);
    }
  }
  using V = Vector<A, kBytes>;
  const A row_weights[2] = {taps.row_weights[0], taps.row_weights[1]};
  const A column_weights[2] = {taps.column_weights[0], taps.column_weights[1]};
  const A one_weight = row_weights[0] != 0 ? row_weights[0] : row_weights[1];
  const Bits<A>* left = columns.left();
  const Bits<A>* right = columns.right();
  const int64_t period = columns.period();
  // Where there is a second vector.
  const int64_t step = count < 2 * kLanes ? 0 : columns.place(kLanes);
  const auto take = [&](int64_t begin, int64_t place, auto streamed) __attribute__((always_inline)) {
    V near, far;
    if constexpr (kBoth) {
      V low;
      load(near, upper + begin);
      load(low, lower + begin);
      near = near * row_weights[0] + low * row_weights[1];
      load(far, upper + begin + 1);
      load(low, lower + begin + 1);
      far = far * row_weights[0] + low * row_weights[1];
    } else {
      load(near, upper + begin);
      load(far, upper + begin + 1);
      near *= one_weight;
      far *= one_weight;
    }
    mask<V, A>(near, left + place);
    mask<V, A>(far, right + place);
    const V result = near * column_weights[0] + far * column_weights[1];
    if constexpr (decltype(streamed)::value) {
      stream_converted<A>(result, to + begin);
    } else {
      store_converted<A>(result, to + begin);
    }
  };
  int64_t begin = 0, place = 0;
  if constexpr (kStreamed) {
    // Results up to where a vector is aligned.
    begin = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(to) / sizeof(T) % kLanes);
    place = columns.place(begin);
    if (begin > 0) take(0, 0, std::false_type());
  }
  for (; begin + kLanes <= count; begin += kLanes) {
    take(begin, place, std::bool_constant<kStreamed>());
    place += step;
    if (place >= period) place -= period;
  }
  if (begin < count) take(count - kLanes, columns.place(count - kLanes), std::false_type());
}

template <int kBytes, bool kStreamed, typename A, typename T>
TORCHGRAFT_INLINE void blend_run(const A* upper, const A* lower, const Taps<A>& taps,
                                 const Columns<A>& columns, int64_t count, T* to) {
  if (taps.row_weights[0] != 0 && taps.row_weights[1] != 0) {
    blend_rows<kBytes, true, kStreamed>(upper, lower, taps, columns, count, to);
  } else {
    const A* one = taps.row_weights[0] != 0 ? upper : lower;
    blend_rows<kBytes, false, kStreamed>(one, one, taps, columns, count, to);
  }
}

// The sums along x and along y of a channel. Few vectors are added up in `A`, and those sums in double, so
// that rounding does not grow with the size of an image.
inline constexpr int64_t kVectorsOfSum = 8;

struct Totals {
  double lanes[2][kMostLanes] = {};

  // Takes over sums of vectors, and begins them anew.
  template <typename V>
  TORCHGRAFT_INLINE void take(V (&sums)[2]) {
    using A = std::remove_cvref_t<decltype(sums[0][0])>;
    constexpr int64_t kLanes = sizeof(V) / sizeof(A);
    for (int i = 0; i < 2; ++i) {
      A of_lanes[kLanes];
      store(sums[i], of_lanes);
      for (int64_t l = 0; l < kLanes; ++l) lanes[i][l] += of_lanes[l];
      sums[i] = V{};
    }
  }

  // In four chains: one would take as long as all else of a small plane.
  double along(int axis) const {
    constexpr int kChains = 4;
    double sums[kChains] = {};
    for (int64_t l = 0; l < kMostLanes; l += kChains) {
      for (int i = 0; i < kChains; ++i) sums[i] += lanes[axis][l + i];
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }
};

// A vector of ones behind as many zeros, from which a vector is loaded that begins with some zeros.
template <typename A>
inline constexpr A kZerosThenOnes[2 * kMostLanes] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                                     1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

// Adds the products of `count` gradients of results with what their taps say of the offsets.
template <int kBytes, typename A, typename T>
TORCHGRAFT_INLINE void sum_run(const T* output_grad, const A* upper, const A* lower, const Taps<A>& taps,
                               const Columns<A>& columns, int64_t count, Totals& totals) {
  constexpr int64_t kLanes = kBytes / sizeof(A);
  if constexpr (kLanes > 1) {
    if (count < kLanes) return sum_run<kBytes / 2>(output_grad, upper, lower, taps, columns, count, totals);
  }
  using V = Vector<A, kBytes>;
  const A row_weights[2] = {taps.row_weights[0], taps.row_weights[1]};
  const A column_weights[2] = {taps.column_weights[0], taps.column_weights[1]};
  const Bits<A>* left = columns.left();
  const Bits<A>* right = columns.right();
  const int64_t period = columns.period();
  const int64_t step = count < 2 * kLanes ? 0 : columns.place(kLanes);
  V sums[2] = {};
  int64_t place = 0, added = 0;
  for (int64_t f = 0; f < count; f += kLanes) {
    const int64_t begin = std::min(f, count - kLanes);
    if (begin != f) place = columns.place(begin);
    V grad, top_left, top_right, low_left, low_right;
    load_converted<V, A>(grad, output_grad + begin);
    load(top_left, upper + begin);
    load(top_right, upper + begin + 1);
    load(low_left, lower + begin);
    load(low_right, lower + begin + 1);
    mask<V, A>(top_left, left + place);
    mask<V, A>(top_right, right + place);
    mask<V, A>(low_left, left + place);
    mask<V, A>(low_right, right + place);
    V along_x = (top_right - top_left) * row_weights[0] + (low_right - low_left) * row_weights[1];
    V along_y = (low_left - top_left) * column_weights[0] + (low_right - top_right) * column_weights[1];
    along_x *= grad;
    along_y *= grad;
    if (begin != f) {
      V counted;
      load(counted, kZerosThenOnes<A> + kMostLanes - (f - begin));
      along_x = counted != 0 ? along_x : V{};
      along_y = counted != 0 ? along_y : V{};
    }
    sums[0] += along_x;
    sums[1] += along_y;
    if (++added % kVectorsOfSum == 0) totals.take(sums);
    place += step;
    if (place >= period) place -= period;
  }
  totals.take(sums);
}

// Some rows of results, and the rows of the source between which they lie, whether or not there are such.
struct Chunk {
  int64_t first, last;  // of the results
  int64_t source_first, source_last;

  int64_t rows() const { return last - first; }
  int64_t source_rows() const { return source_last - source_first; }
};

// Rows of results [first, last) of a channel.
template <typename A>
Chunk chunk_of(int64_t first, int64_t last, const Taps<A>& taps) {
  return {first, last, row_at(first * taps.step + taps.row, taps.period),
          row_at((last - 1) * taps.step + taps.row + 1, taps.period) + 1};
}

// Results that are neighbours, and their taps.
template <typename A>
struct Run {
  int64_t element;  // the first of them, counted from the chunk's first result
  const A* upper;
  const A* lower;
  int64_t count;
};

// All results of a chunk of one channel, a run at a time.
template <typename A>
class Runs {
 public:
  Runs() = default;

  // The chunk's rows of the source begin at `source`, `pitch` apart; those that are outside of it are zeros,
  // and so is `zeros`, which lies between two. A row of results has `columns`, and the next one begins
  // `result_pitch` further on.
  Runs(const Chunk& chunk, const Taps<A>& taps, const A* source, int64_t pitch, const A* zeros,
       int64_t columns, int64_t result_pitch)
      : source_(source - chunk.source_first * pitch),
        pitch_(pitch),
        zeros_(zeros),
        columns_(columns),
        result_pitch_(result_pitch),
        left_(chunk.rows()),
        rows_(taps.rows(chunk.first)) {
    if (taps.step == 1 && taps.period == 1 && pitch == columns && columns == result_pitch) {
      whole_ = source;
    }
  }

  bool next(Run<A>& run) {
    if (left_ == 0) return false;
    if (whole_ != nullptr) {
      run = {0, whole_, whole_ + pitch_, left_ * columns_};
      left_ = 0;
      return true;
    }
    run = {element_, row(0), row(1), columns_};
    element_ += result_pitch_;
    rows_.advance();
    --left_;
    return true;
  }

 private:
  const A* row(int i) const {
    const int64_t position = rows_.under(i);
    return position == Rows::kNone ? zeros_ : source_ + position * pitch_;
  }

  const A* source_ = nullptr;
  int64_t pitch_ = 0;
  const A* zeros_ = nullptr;
  int64_t columns_ = 0;
  int64_t result_pitch_ = 0;
  int64_t left_ = 0;
  int64_t element_ = 0;
  const A* whole_ = nullptr;
  Rows rows_ = Rows(0, 1, 1);
};

// Keeps what all results of a channel of an image add up to.
template <typename T>
void keep_sums(const Backward<T>& pass, int64_t image, int64_t channel, const Totals& totals) {
  for (int axis = 0; axis < 2; ++axis) {
    pass.partial_sums[(2 * image + axis) * pass.geometry.channels + channel] = totals.along(axis);
  }
}

}  // namespace torchgraft::shift::cpu
