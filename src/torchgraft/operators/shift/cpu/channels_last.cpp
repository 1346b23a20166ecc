// shift and its gradients on CPU, channels_last images. A unit of work is some rows of results of an image.
//
// Neighbours in memory are channels, and each lies at an offset of its own: a vector of them comes from as
// many pixels. But as pixels go by, those move on together. So rows of the source are copied to a ring of
// them in second-level cache, in `accumulate_t<T>`, a line of as many channels as a vector has lanes after
// the other; and a vector of taps is one gather, whose indices are constant along a row of results. What lies
// outside is masked. From there on neighbours are sampled alike: the right tap of a column is the left one of
// the next, and the lower taps of a row, already blended along it, are the upper ones of the next, so that a
// result costs one gathered element. Some rows at once keep those in registers, else they lie in scratch.
//
// With AVX-512 a gather of sixteen elements takes 2 ns where they lie in first-level cache; with less, lanes
// are loaded one by one, which takes twice that, as the gathers of many such processors are slow, or were
// made slow against attacks. Turning squares of sixteen channels and pixels around in registers and back, so
// that a channel's results are neighbours, takes more than a gather by the count of its shuffles alone, and
// took 3 to 6 times as long as a copy of as many bytes. Large results in float go past the caches, in whole
// cache lines: else each line is read before it is written.
//
// On two cores (8,64,300,25) forward was predicted to take 1.2 times as long as a copy in float, by a gather,
// its copy to the ring and a copy's own time, and took 1.3 to 2.1 times (before: 3.1 to 5.0), as a copy is
// faster or slower beside what else the machine does; bfloat16 2.8 (3.6 to 6): of half the bytes, but as many
// gathers. The gradients of all inputs took 1.7 and 3.3 times as long (6 and 9), with AVX2 alone forward 2.8
// and 3.6 (3.2 and 4.7).
//
// The gradient of the input is the same, with its taps turned around. Those of the offsets are products of
// the output's gradient with differences of the same taps; the sums of each unit are kept, and added up in
// order.

#include <torchgraft/cpu_convert.h>
#include <torchgraft/cpu_stream.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels.h"

namespace torchgraft::shift::cpu {
namespace {

// Of a ring: a quarter of a second-level cache, so that results find room there too.
constexpr int64_t kRingBytes = 512 << 10;
// Rows of results of a line before the next line's: what they share of the ring is in first-level cache.
constexpr int64_t kMostRows = 8;
// Rows of results at once, where there are registers for them.
template <int kBytes>
constexpr int kRowsAtOnce = kBytes == 64 ? 4 : 2;
// Rows of results of a unit, at least: each brings the rows around it anew.
constexpr int64_t kLeastRows = 32;
// Columns of results whose products are summed in `accumulate_t<T>`, and those sums in double.
constexpr int64_t kColumnsOfSum = 16;
constexpr int64_t kAlignment = 64;
// A row that there is not, however far results are from it, in numbers of 32 bits.
constexpr int64_t kNowhere = -(int64_t{1} << 30);
constexpr int64_t kMostOf32Bits = int64_t{1} << 29;

// As many channels as there are lanes in a vector, and numbers of rows, columns and elements for each.
template <int kBytes, typename A>
struct Lanes {
  static constexpr int kCount = kBytes / sizeof(A);
  using Number = std::conditional_t<sizeof(A) == 8 || kCount == 1, int64_t, int32_t>;
  using Bits = std::conditional_t<sizeof(A) == 8, uint64_t, uint32_t>;
  using Values = Vector<A, kBytes>;
  using Numbers = Vector<Number, kCount * sizeof(Number)>;
  using Mask = Vector<Bits, kBytes>;
};

template <typename V, typename M>
TORCHGRAFT_INLINE void mask(V& values, const M& bits) {
  M all;
  reinterpret(all, values);
  reinterpret(values, M(all & bits));
}

// Where a vector of results is a cache line.
template <int kBytes, typename T>
constexpr bool kStreams = kBytes == kAlignment && std::is_same_v<T, accumulate_t<T>>;

// Elements that begin with a cache line.
template <typename A>
class Scratch {
 public:
  void reserve(int64_t elements) {
    const int64_t needed = elements + kAlignment / static_cast<int64_t>(sizeof(A));
    if (static_cast<int64_t>(elements_.size()) < needed) elements_.assign(needed, A(0));
  }

  A* data() {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(elements_.data());
    return elements_.data() + (-begin % kAlignment) / sizeof(A);
  }

 private:
  std::vector<A> elements_;
};

// The taps of all channels. Rows of those that see nothing of the source are kNowhere.
template <typename A>
struct AllTaps {
  std::vector<int64_t> row, column;
  std::vector<A> row_weights[2], column_weights[2];
  std::vector<char> is_whole;  // a weight is zero
  int64_t step = 1;
  int64_t period = 1;
  int64_t source_rows = 0;

  template <typename Pass>
  AllTaps(const Pass& pass, bool transposed) {
    const Geometry& geometry = pass.geometry;
    const int64_t result_rows = transposed ? geometry.height : geometry.steps;
    for (int64_t channel = 0; channel < geometry.channels; ++channel) {
      const Taps<A> taps = taps_of(pass, channel, transposed);
      step = taps.step;
      period = taps.period;
      source_rows = taps.source_rows;
      const bool has_rows =
          floor_divide(taps.row, period) < source_rows && (result_rows - 1) * step + taps.row + 1 >= 0;
      const bool has_columns = taps.column >= -geometry.width && taps.column < geometry.width;
      row.push_back(has_rows && has_columns ? taps.row : kNowhere);
      column.push_back(has_columns ? taps.column : 0);
      bool any_zero = false;
      for (int i = 0; i < 2; ++i) {
        row_weights[i].push_back(taps.row_weights[i]);
        column_weights[i].push_back(taps.column_weights[i]);
        any_zero = any_zero || taps.row_weights[i] == 0 || taps.column_weights[i] == 0;
      }
      is_whole.push_back(any_zero);
    }
  }

  // Least and most of the rows of channels [first, last).
  std::pair<int64_t, int64_t> span(int64_t first, int64_t last) const {
    int64_t least = 0, most = 0;
    bool any = false;
    for (int64_t channel = first; channel < last; ++channel) {
      if (row[channel] == kNowhere) continue;
      least = any ? std::min(least, row[channel]) : row[channel];
      most = any ? std::max(most, row[channel]) : row[channel];
      any = true;
    }
    return {least, most};
  }

  // Rows of the source that so many rows of results lie between, of channels whose rows are `apart`.
  int64_t rows_of(int64_t result_rows, int64_t apart) const {
    return std::min(((result_rows - 1) * step + apart + 1) / period + 2, source_rows);
  }
};

struct Unit {
  int64_t image;
  int64_t channel, channels;
  int64_t first, last;  // rows of results
};

// A ring of rows of the source, in a thread's scratch. It slides down the rows of a unit's results.
template <typename T>
class Ring {
 public:
  using A = accumulate_t<T>;

  // `image` begins at the unit's first channel; a vector has `lanes`.
  void open(const T* image, const AllTaps<A>& taps, const Geometry& geometry, const Unit& unit,
            int64_t lanes) {
    image_ = image;
    taps_ = &taps;
    unit_ = unit;
    step_ = geometry.channels;
    width_ = geometry.width;
    lanes_ = lanes;
    lines_ = ceil_divide(unit.channels, lanes);
    pitch_ = lines_ * width_ * lanes;
    std::tie(least_row_, most_row_) = taps.span(unit.channel, unit.channel + unit.channels);
    const int64_t apart = most_row_ - least_row_;
    rows_ = kMostRows;
    while (rows_ > 1 && taps.rows_of(rows_, apart) * pitch_ * static_cast<int64_t>(sizeof(A)) > kRingBytes) {
      --rows_;
    }
    slots_ = std::max<int64_t>(taps.rows_of(rows_, apart), 1);
    // What lies beside a row is read and thrown away.
    margin_ = round_up((width_ + 1) * lanes, kAlignment / sizeof(A));
    elements_.reserve(slots_ * pitch_ + 2 * margin_);
    lower_.reserve(lines_ * (width_ + 1) * lanes);
    brought_ = 0;
    last_ = unit.first;
  }

  // Goes on to the next rows of results, and brings those of the source; false where there are none.
  template <int kBytes>
  TORCHGRAFT_INLINE bool next() {
    if (last_ >= unit_.last) return false;
    first_ = last_;
    last_ = std::min(first_ + rows_, unit_.last);
    const AllTaps<A>& taps = *taps_;
    const int64_t begin = floor_divide(first_ * taps.step + least_row_, taps.period);
    const int64_t end = floor_divide((last_ - 1) * taps.step + most_row_ + 1, taps.period) + 1;
    source_first_ = std::clamp<int64_t>(begin, 0, taps.source_rows);
    const int64_t source_last = std::clamp<int64_t>(end, source_first_, taps.source_rows);
    for (int64_t row = std::max(source_first_, brought_); row < source_last; ++row) bring<kBytes>(row);
    brought_ = std::max(brought_, source_last);
    return true;
  }

  const AllTaps<A>& taps() const { return *taps_; }
  const Unit& unit() const { return unit_; }
  int64_t first() const { return first_; }
  int64_t last() const { return last_; }
  int64_t width() const { return width_; }
  int64_t step() const { return step_; }
  int64_t lines() const { return lines_; }

  // The first of a line's channels, counted from the unit's: the last line overlaps the one before.
  int64_t channel(int64_t line) const { return std::min(line * lanes_, unit_.channels - lanes_); }
  // Row `source_first` of the source lies in slot `first_slot`, the next in the next.
  int64_t source_first() const { return source_first_; }
  int64_t first_slot() const { return source_first_ % slots_; }
  int64_t slots() const { return slots_; }
  int64_t pitch() const { return pitch_; }
  const A* line(int64_t line) { return elements_.data() + margin_ + line * width_ * lanes_; }
  // Of a line: what the row of results before leaves to the next.
  A* lower(int64_t line) { return lower_.data() + line * (width_ + 1) * lanes_; }

 private:
  template <int kBytes>
  TORCHGRAFT_INLINE void bring(int64_t row) {
    constexpr int64_t kLanes = kBytes / sizeof(A);
    using V = Vector<A, kBytes>;
    const int64_t last_channel = unit_.channels - kLanes;
    const int64_t line_pitch = width_ * kLanes;
    const int64_t row_elements = width_ * step_;
    const T* from = image_ + row * row_elements;
    A* to = elements_.data() + margin_ + row % slots_ * pitch_;
    const auto copy = [&](int64_t channel, A* place) __attribute__((always_inline)) {
      V values;
      load_converted<V, A>(values, from + channel);
      // The next row, as rows are not long enough for processors to foresee them.
      __builtin_prefetch(from + channel + row_elements, 0, 2);
      store(values, place);
    };
    for (int64_t column = 0; column < width_; ++column, from += step_, to += kLanes) {
      A* place = to;
      for (int64_t channel = 0; channel < last_channel; channel += kLanes, place += line_pitch) {
        copy(channel, place);
      }
      copy(last_channel, place);
    }
  }

  const T* image_ = nullptr;
  const AllTaps<A>* taps_ = nullptr;
  Unit unit_ = {};
  int64_t step_ = 0, width_ = 0, lanes_ = 1, lines_ = 0, pitch_ = 0, margin_ = 0;
  int64_t least_row_ = 0, most_row_ = 0;
  int64_t rows_ = 1, slots_ = 1;
  int64_t first_ = 0, last_ = 0;
  int64_t source_first_ = 0, brought_ = 0;
  Scratch<A> elements_;
  Scratch<A> lower_;
};

template <typename Number>
inline constexpr Number kLanesInOrder[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// The taps of a line's channels.
template <int kBytes, typename A>
struct LineTaps {
  using L = Lanes<kBytes, A>;
  alignas(kAlignment) typename L::Number row[L::kCount];
  alignas(kAlignment) typename L::Number column[L::kCount];
  const A* row_weights[2];
  const A* column_weights[2];
  bool is_whole = false;

  TORCHGRAFT_INLINE LineTaps(const AllTaps<A>& taps, int64_t channel) {
    for (int l = 0; l < L::kCount; ++l) {
      row[l] = static_cast<typename L::Number>(taps.row[channel + l]);
      column[l] = static_cast<typename L::Number>(taps.column[channel + l]);
      is_whole |= taps.is_whole[channel + l] != 0;
    }
    for (int i = 0; i < 2; ++i) {
      row_weights[i] = taps.row_weights[i].data() + channel;
      column_weights[i] = taps.column_weights[i].data() + channel;
    }
  }
};

// A pair of weights in registers, and which of them are not zero: what those weigh is not read, and may be
// NaN.
template <int kBytes, typename A>
struct Weights {
  using L = Lanes<kBytes, A>;
  typename L::Values values[2];
  typename L::Mask counts[2];

  TORCHGRAFT_INLINE explicit Weights(const A* const (&weights)[2]) {
    for (int i = 0; i < 2; ++i) {
      load(values[i], weights[i]);
      typename L::Bits bits[L::kCount];
      for (int l = 0; l < L::kCount; ++l) bits[l] = weights[i][l] != 0 ? ~typename L::Bits{0} : 0;
      load(counts[i], bits);
      keep(values[i]);
    }
  }

  template <bool kWhole, typename V>
  TORCHGRAFT_INLINE void blend(V& sum, const V& near, const V& far) const {
    if constexpr (kWhole) {
      V left = near, right = far;
      mask(left, counts[0]);
      mask(right, counts[1]);
      sum = left * values[0] + right * values[1];
    } else {
      sum = near * values[0] + far * values[1];
    }
  }
};

// One tap of a line's channels, column after column.
template <int kBytes, typename A>
class Reader {
 public:
  using L = Lanes<kBytes, A>;
  using V = typename L::Values;
  using Number = typename L::Number;
#if defined(__x86_64__)
  static constexpr bool kGathers = kBytes == 64;
#else
  static constexpr bool kGathers = false;
#endif

  // In rows `row` + `further`, from column `column` on.
  template <typename T>
  TORCHGRAFT_INLINE void open(Ring<T>& ring, int64_t line, const Number* row, int64_t further,
                              const Number* column) {
    // Without comparisons, which compilers take lane by lane here: with all bits of a number's sign.
    constexpr int kSign = 8 * sizeof(Number) - 1;
    const Number source_rows = ring.taps().source_rows, slots = ring.slots(), pitch = ring.pitch();
    typename L::Numbers rows, lanes;
    load(rows, row);
    load(column_, column);
    load(lanes, kLanesInOrder<Number>);
    rows += static_cast<Number>(further);
    const typename L::Numbers is_none = (rows | (source_rows - 1 - rows)) >> kSign;
    const typename L::Numbers beyond =
        rows - static_cast<Number>(ring.source_first() - ring.first_slot() + slots);
    const typename L::Numbers slot = (beyond + (slots & (beyond >> kSign))) & ~is_none;
    const typename L::Numbers places = slot * pitch + column_ * L::kCount + lanes;
    // So far outside that no number of steps leads into the image, nor a difference out of the numbers.
    column_ = (column_ & ~is_none) | (std::numeric_limits<Number>::min() / 2 & is_none);
    from_ = ring.line(line);
    width_ = static_cast<Number>(ring.width());
    if constexpr (kGathers) {
      places_ = places;
    } else {
      store(places, places_of_lanes_);
    }
  }

  // The next column; zero where there is none.
  TORCHGRAFT_INLINE void next(V& values) {
    if constexpr (kGathers) {
      const typename L::Numbers width = typename L::Numbers{} + width_;
      if constexpr (sizeof(A) == 4) {
        asm("vpcmpltud %[width], %[column], %%k1\n\t"
            "vpxord %[values], %[values], %[values]\n\t"
            "vgatherdps (%[from],%[places],4), %[values]%{%%k1%}"
            : [values] "=&v"(values)
            : [width] "v"(width), [column] "v"(column_), [places] "v"(places_), [from] "r"(from_),
              "m"(*reinterpret_cast<const A(*)[]>(from_))
            : "k1");
      } else {
        asm("vpcmpltuq %[width], %[column], %%k1\n\t"
            "vpxorq %[values], %[values], %[values]\n\t"
            "vgatherqpd (%[from],%[places],8), %[values]%{%%k1%}"
            : [values] "=&v"(values)
            : [width] "v"(width), [column] "v"(column_), [places] "v"(places_), [from] "r"(from_),
              "m"(*reinterpret_cast<const A(*)[]>(from_))
            : "k1");
      }
    } else {
      V found;
      pick(found, std::make_integer_sequence<int, L::kCount>());
      constexpr int kSign = 8 * sizeof(Number) - 1;
      const typename L::Numbers is_none = (column_ | (width_ - 1 - column_)) >> kSign;
      mask(found, __builtin_convertvector(~is_none, typename L::Mask));
      values = found;
    }
    from_ += L::kCount;
    column_ += 1;
  }

 private:
  template <int... kLane>
  TORCHGRAFT_INLINE void pick(V& values, std::integer_sequence<int, kLane...>) const {
    values = V{from_[places_of_lanes_[kLane]]...};
  }

  const A* from_;  // of the current column
  Number width_;
  typename L::Numbers column_;
  typename L::Numbers places_;
  Number places_of_lanes_[L::kCount];
};

// Results whose upper taps are the lower ones of the row before.
template <int kBytes, typename T>
struct ResampleInSteps {
  using A = accumulate_t<T>;
  using V = typename Lanes<kBytes, A>::Values;
  static constexpr int kLanes = Lanes<kBytes, A>::kCount;
  static constexpr int kRows = kRowsAtOnce<kBytes>;
  TORCHGRAFT_INLINE static void run(Ring<T>* ring, T* result, bool streams) {
    for (int64_t line = 0; line < ring->lines(); ++line) {
      const LineTaps<kBytes, A> taps(ring->taps(), ring->unit().channel + ring->channel(line));
      T* const to = result + ring->channel(line);
      if (taps.is_whole) {
        run_line<true, false>(*ring, line, taps, to);
      } else if (kStreams<kBytes, T> && streams) {
        run_line<false, kStreams<kBytes, T>>(*ring, line, taps, to);
      } else {
        run_line<false, false>(*ring, line, taps, to);
      }
    }
  }

  template <bool kWhole, bool kStreamed>
  TORCHGRAFT_INLINE static void run_line(Ring<T>& ring, int64_t line, const LineTaps<kBytes, A>& taps,
                                         T* to) {
    int64_t row = ring.first();
    if (row == ring.unit().first) run_rows<kWhole, kStreamed, 1, false>(ring, line, taps, row - 1, to);
    for (; row + kRows <= ring.last(); row += kRows) {
      run_rows<kWhole, kStreamed, kRows, true>(ring, line, taps, row, to);
    }
    for (; row < ring.last(); ++row) run_rows<kWhole, kStreamed, 1, true>(ring, line, taps, row, to);
  }

  // kResults: else only what the next row needs is computed.
  template <bool kWhole, bool kStreamed, int kCount, bool kResults>
  TORCHGRAFT_INLINE static void run_rows(Ring<T>& ring, int64_t line, const LineTaps<kBytes, A>& taps,
                                         int64_t first, T* to) {
    const int64_t width = ring.width(), step = ring.step();
    const Weights<kBytes, A> of_rows(taps.row_weights), of_columns(taps.column_weights);
    Reader<kBytes, A> readers[kCount];
    V left[kCount];
    TORCHGRAFT_UNROLL for (int r = 0; r < kCount; ++r) {
      readers[r].open(ring, line, taps.row, first + r + 1, taps.column);
      readers[r].next(left[r]);
    }
    A* kept = ring.lower(line);
    to += first * width * step;
    for (int64_t column = 0; column < width; ++column, kept += kLanes, to += step) {
      V upper;
      if constexpr (kResults) load(upper, kept);
      TORCHGRAFT_UNROLL for (int r = 0; r < kCount; ++r) {
        V right, lower;
        readers[r].next(right);
        of_columns.template blend<kWhole>(lower, left[r], right);
        left[r] = right;
        if (r == kCount - 1) store(lower, kept);
        if constexpr (kResults) {
          V sum;
          of_rows.template blend<kWhole>(sum, upper, lower);
          if constexpr (kStreamed) {
            stream_converted<A>(sum, to + r * width * step);
          } else {
            store_converted<A>(sum, to + r * width * step);
          }
          upper = lower;
        }
      }
    }
  }
};

// Results whose rows are further apart than their taps: from two rows of the source; or, between rows of the
// source that are further apart than that, from one.
template <int kBytes, typename T, int kTaps>
struct ResampleApart {
  using A = accumulate_t<T>;
  using L = Lanes<kBytes, A>;
  using V = typename L::Values;
  using Number = typename L::Number;

  TORCHGRAFT_INLINE static void run(Ring<T>* ring, T* result, bool streams) {
    const int64_t width = ring->width(), step = ring->step();
    for (int64_t line = 0; line < ring->lines(); ++line) {
      const int64_t channel = ring->channel(line);
      const LineTaps<kBytes, A> taps(ring->taps(), ring->unit().channel + channel);
      const Weights<kBytes, A> of_columns(taps.column_weights);
      Number rows[L::kCount], rests[L::kCount];
      for (int l = 0; l < L::kCount; ++l) {
        const int64_t position = ring->first() * ring->taps().step + taps.row[l];
        const int64_t row = floor_divide(position, ring->taps().period);
        rows[l] = static_cast<Number>(row);
        rests[l] = static_cast<Number>(position - row * ring->taps().period);
      }
      for (int64_t row = ring->first(); row < ring->last(); ++row) {
        Reader<kBytes, A> readers[kTaps];
        V weights[kTaps];
        open_readers(*ring, line, taps, rows, rests, readers, weights);
        const auto next = [&](V& sum) __attribute__((always_inline)) {
          readers[0].next(sum);
          sum *= weights[0];
          if constexpr (kTaps == 2) {
            V lower;
            readers[1].next(lower);
            sum += lower * weights[1];
          }
        };
        T* to = result + channel + row * width * step;
        V left;
        next(left);
        for (int64_t column = 0; column < width; ++column, to += step) {
          V right, sum;
          next(right);
          of_columns.template blend<true>(sum, left, right);
          if (kStreams<kBytes, T> && streams) {
            stream_converted<A>(sum, to);
          } else {
            store_converted<A>(sum, to);
          }
          left = right;
        }
      }
    }
  }

  // Opens readers of the rows under a row of results, and goes on to the next one's.
  TORCHGRAFT_INLINE static void open_readers(Ring<T>& ring, int64_t line, const LineTaps<kBytes, A>& taps,
                                             Number (&rows)[L::kCount], Number (&rests)[L::kCount],
                                             Reader<kBytes, A> (&readers)[kTaps], V (&weights)[kTaps]) {
    const AllTaps<A>& all = ring.taps();
    A counted[kTaps][L::kCount];
    alignas(kAlignment) Number taken[kTaps][L::kCount];
    for (int l = 0; l < L::kCount; ++l) {
      if constexpr (kTaps == 2) {
        for (int i = 0; i < 2; ++i) {
          counted[i][l] = taps.row_weights[i][l];
          taken[i][l] = counted[i][l] != 0 ? rows[l] + i : static_cast<Number>(kNowhere);
        }
        rows[l] += static_cast<Number>(all.step);
      } else {
        const bool is_upper = rests[l] == 0, is_lower = rests[l] + 1 == all.period;
        counted[0][l] = taps.row_weights[is_lower][l];
        const bool counts = (is_upper || is_lower) && counted[0][l] != 0;
        taken[0][l] = counts ? rows[l] + is_lower : static_cast<Number>(kNowhere);
        rests[l] = is_lower ? 0 : rests[l] + 1;
        rows[l] += is_lower;
      }
    }
    for (int i = 0; i < kTaps; ++i) {
      load(weights[i], counted[i]);
      readers[i].open(ring, line, taken[i], 0, taps.column);
    }
  }
};

// Adds the products of gradients of results with what their taps say of the offsets. A vector's sums along x
// and along y lie in `totals`, those along y `pitch` further on.
template <int kBytes, typename T>
struct Sum {
  using A = accumulate_t<T>;
  using V = typename Lanes<kBytes, A>::Values;
  static constexpr int kLanes = Lanes<kBytes, A>::kCount;

  TORCHGRAFT_INLINE static void run(Ring<T>* ring, const T* output_grad, double* totals, int64_t pitch) {
    for (int64_t line = 0; line < ring->lines(); ++line) {
      const int64_t channel = ring->channel(line);
      const LineTaps<kBytes, A> taps(ring->taps(), ring->unit().channel + channel);
      double along[2][kLanes] = {};
      for (int64_t row = ring->first(); row < ring->last(); ++row) {
        const T* from = output_grad + row * ring->width() * ring->step() + channel;
        if (ring->taps().step == 1 && row != ring->unit().first) {
          run_row<true>(*ring, line, taps, row, from, along);
        } else {
          run_row<false>(*ring, line, taps, row, from, along);
        }
      }
      // The first channels of a line that overlaps the one before are summed there.
      for (int64_t l = line * kLanes - channel; l < kLanes; ++l) {
        totals[channel + l] += along[0][l];
        totals[pitch + channel + l] += along[1][l];
      }
    }
  }

  // kFollows: the upper taps are the lower ones of the row before.
  template <bool kFollows>
  TORCHGRAFT_INLINE static void run_row(Ring<T>& ring, int64_t line, const LineTaps<kBytes, A>& taps,
                                        int64_t row, const T* output_grad, double (&along)[2][kLanes]) {
    const int64_t width = ring.width(), step = ring.step();
    const int64_t source_row = row * ring.taps().step;
    const Weights<kBytes, A> of_rows(taps.row_weights), of_columns(taps.column_weights);
    Reader<kBytes, A> lower, upper;
    V low_left, top_left;
    lower.open(ring, line, taps.row, source_row + 1, taps.column);
    lower.next(low_left);
    A* kept = ring.lower(line);
    const auto next_upper = [&](V& values, const V& low) __attribute__((always_inline)) {
      if constexpr (kFollows) {
        load(values, kept);
      } else {
        upper.next(values);
      }
      store(low, kept);
      kept += kLanes;
    };
    if constexpr (!kFollows) upper.open(ring, line, taps.row, source_row, taps.column);
    next_upper(top_left, low_left);
    for (int64_t begin = 0; begin < width; begin += kColumnsOfSum) {
      const int64_t end = std::min(begin + kColumnsOfSum, width);
      V sums[2] = {};
      for (int64_t column = begin; column < end; ++column, output_grad += step) {
        V grad, low_right, top_right, along_x, along_y;
        load_converted<V, A>(grad, output_grad);
        lower.next(low_right);
        next_upper(top_right, low_right);
        of_rows.template blend<false>(along_x, top_right - top_left, low_right - low_left);
        of_columns.template blend<false>(along_y, low_left - top_left, low_right - top_right);
        sums[0] += grad * along_x;
        sums[1] += grad * along_y;
        low_left = low_right;
        top_left = top_right;
      }
      for (int i = 0; i < 2; ++i) {
        A of_lanes[kLanes];
        store(sums[i], of_lanes);
        for (int l = 0; l < kLanes; ++l) along[i][l] += of_lanes[l];
      }
    }
  }
};

// Calls `function` with the bytes of the widest vector that so many channels fill; or that one of which
// numbers have 64 bits.
template <int kBytes, typename A, typename Function>
TORCHGRAFT_INLINE void with_lanes(int64_t channels, bool is_huge, const Function& function) {
  constexpr int kLanes = kBytes / sizeof(A);
  if constexpr (kLanes > 1) {
    if (channels < kLanes || (is_huge && sizeof(A) < 8)) {
      return with_lanes<kBytes / 2, A>(channels, is_huge, function);
    }
  }
  function(std::integral_constant<int, kBytes>());
}

// What all units of a pass have in common.
template <typename T>
struct Job {
  const AllTaps<accumulate_t<T>>& taps;
  const Geometry& geometry;
  bool is_huge;
  bool streams;
};

template <int kVectorBytes, typename T>
TORCHGRAFT_INLINE void resample(Ring<T>& ring, const Job<T>& job, const Unit& unit, const T* image,
                                T* result) {
  using A = accumulate_t<T>;
  with_lanes<kVectorBytes, A>(unit.channels, job.is_huge, [&](auto bytes) __attribute__((always_inline)) {
    constexpr int kBytes = decltype(bytes)::value;
    ring.open(image, job.taps, job.geometry, unit, kBytes / sizeof(A));
    Ring<T>* at = &ring;
    while (ring.template next<kBytes>()) {
      if (job.taps.period > 1) {
        Compiled<kVectorBytes>::template call<ResampleApart<kBytes, T, 1>>(at, result, job.streams);
      } else if (job.taps.step > 1) {
        Compiled<kVectorBytes>::template call<ResampleApart<kBytes, T, 2>>(at, result, job.streams);
      } else {
        Compiled<kVectorBytes>::template call<ResampleInSteps<kBytes, T>>(at, result, job.streams);
      }
    }
  });
  if (job.streams) end_streams();
}

template <int kVectorBytes, typename T>
TORCHGRAFT_INLINE void sum(Ring<T>& ring, const Job<T>& job, const Unit& unit, const T* image,
                           const T* output_grad, double* totals) {
  using A = accumulate_t<T>;
  const int64_t pitch = job.geometry.channels;
  with_lanes<kVectorBytes, A>(unit.channels, job.is_huge, [&](auto bytes) __attribute__((always_inline)) {
    constexpr int kBytes = decltype(bytes)::value;
    ring.open(image, job.taps, job.geometry, unit, kBytes / sizeof(A));
    Ring<T>* at = &ring;
    while (ring.template next<kBytes>()) {
      Compiled<kVectorBytes>::template call<Sum<kBytes, T>>(at, output_grad, totals, pitch);
    }
  });
}

#define SHIFT_UNITS(T)                                                                                       \
  TORCHGRAFT_VECTOR_CLONES(                                                                                  \
      void resample_unit(Ring<T>& ring, const Job<T>& job, const Unit& unit, const T* image, T* result),     \
      resample<kVectorBytes>(ring, job, unit, image, result);)                                               \
  TORCHGRAFT_VECTOR_CLONES(void sum_unit(Ring<T>& ring, const Job<T>& job, const Unit& unit, const T* image, \
                                         const T* output_grad, double* totals),                              \
                           sum<kVectorBytes>(ring, job, unit, image, output_grad, totals);)
SHIFT_UNITS(double)
SHIFT_UNITS(float)
SHIFT_UNITS(Half)
SHIFT_UNITS(BFloat16)
#undef SHIFT_UNITS

// Images, in groups of channels that a ring holds, in bands of rows of the output.
template <typename T>
class Units {
 public:
  using A = accumulate_t<T>;

  Units(const Geometry& geometry, const AllTaps<A>& taps) : geometry_(geometry) {
    constexpr int64_t kLine = kAlignment / sizeof(A);
    const auto [least, most] = taps.span(0, geometry.channels);
    const int64_t row_elements = geometry.width * taps.rows_of(1, most - least);
    const int64_t lines = std::max<int64_t>(
        kRingBytes / static_cast<int64_t>(sizeof(A)) / std::max<int64_t>(row_elements * kLine, 1), 1);
    channels_ = std::min(lines * kLine, geometry.channels);
    groups_ = ceil_divide(geometry.channels, channels_);
    const int64_t pixels = 2 * kGrain / channels_;
    rows_ = std::max(kLeastRows, pixels / geometry.width);
    bands_ = ceil_divide(geometry.steps, rows_);
    is_huge_ = std::max({geometry.width, geometry.height,
                         row_elements * kLine + kMostRows * geometry.width * kLine * geometry.stride}) >
               kMostOf32Bits;
  }

  int64_t count() const { return geometry_.batch * bands_ * groups_; }
  int64_t bands() const { return bands_; }
  int64_t groups() const { return groups_; }
  bool is_huge() const { return is_huge_; }

  Unit operator[](int64_t unit) const {
    const int64_t channel = unit % groups_ * channels_;
    const int64_t first = unit / groups_ % bands_ * rows_;
    return {unit / groups_ / bands_, channel, std::min(channels_, geometry_.channels - channel), first,
            std::min(first + rows_, geometry_.steps)};
  }

  // The same, in rows of the input.
  Unit of_input(Unit unit) const {
    unit.first *= geometry_.stride;
    unit.last = unit.last == geometry_.steps ? geometry_.height : unit.last * geometry_.stride;
    return unit;
  }

  int64_t in_input(const Unit& unit) const {
    return unit.image * geometry_.channels * geometry_.input_pixels() + unit.channel;
  }
  int64_t in_output(const Unit& unit) const {
    return unit.image * geometry_.channels * geometry_.output_pixels() + unit.channel;
  }

  // Calls `body(ring, unit, its number)`.
  template <typename Body>
  void for_each(const Body& body) const {
    const int64_t grain = units_of_grain(rows_ * geometry_.width * channels_);
    parallel_for(0, count(), grain, [&](int64_t begin, int64_t end) {
      Ring<T> ring;
      for (int64_t unit = begin; unit < end; ++unit) body(ring, (*this)[unit], unit);
    });
  }

 private:
  const Geometry& geometry_;
  int64_t channels_ = 1;
  int64_t groups_ = 1;
  int64_t rows_ = 1;
  int64_t bands_ = 1;
  bool is_huge_ = false;
};

// Whether results are better written past the caches, which takes whole cache lines.
template <typename T>
bool streams_to(const T* result, int64_t elements, int64_t channels) {
  return elements * static_cast<int64_t>(sizeof(T)) >= kStreamedBytes &&
         reinterpret_cast<uintptr_t>(result) % kAlignment == 0 &&
         channels * static_cast<int64_t>(sizeof(T)) % kAlignment == 0;
}

template <typename T>
void run_all(const Forward<T>& pass) {
  const Geometry& geometry = pass.geometry;
  const AllTaps<accumulate_t<T>> taps(pass, false);
  const Units<T> units(geometry, taps);
  const bool streams =
      streams_to(pass.output, geometry.planes() * geometry.output_pixels(), geometry.channels);
  const Job<T> job = {taps, geometry, units.is_huge(), streams};
  units.for_each([&](Ring<T>& ring, const Unit& unit, int64_t) {
    resample_unit(ring, job, unit, pass.input + units.in_input(unit), pass.output + units.in_output(unit));
  });
}

template <typename T>
void run_all(const Backward<T>& pass) {
  const Geometry& geometry = pass.geometry;
  const AllTaps<accumulate_t<T>> taps(pass, false), transposed(pass, true);
  const Units<T> units(geometry, taps);
  const bool streams =
      streams_to(pass.input_grad, geometry.planes() * geometry.input_pixels(), geometry.channels);
  const Job<T> sum_job = {taps, geometry, units.is_huge(), false};
  const Job<T> image_job = {transposed, geometry, units.is_huge(), streams};
  // [image][band][along x, along y][channel]
  const int64_t sums = 2 * geometry.channels;
  std::vector<double> totals(pass.partial_sums != nullptr ? geometry.batch * units.bands() * sums : 0);
  units.for_each([&](Ring<T>& ring, const Unit& unit, int64_t number) {
    const T* output_grad = pass.output_grad + units.in_output(unit);
    if (pass.input_grad != nullptr) {
      resample_unit(ring, image_job, units.of_input(unit), output_grad,
                    pass.input_grad + units.in_input(unit));
    }
    if (pass.partial_sums != nullptr) {
      double* to = totals.data() + number / units.groups() * sums + unit.channel;
      sum_unit(ring, sum_job, unit, pass.input + units.in_input(unit), output_grad, to);
    }
  });
  if (pass.partial_sums == nullptr) return;
  std::fill_n(pass.partial_sums, geometry.batch * sums, 0.0);
  for (int64_t band = 0; band < geometry.batch * units.bands(); ++band) {
    double* to = pass.partial_sums + band / units.bands() * sums;
    for (int64_t i = 0; i < sums; ++i) to[i] += totals[band * sums + i];
  }
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
