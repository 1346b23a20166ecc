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
#include <type_traits>
#include <vector>

#include "channels_last_ring.h"
#include "channels_last_taps.h"
#include "kernels.h"

namespace torchgraft::shift::cpu {
namespace {

// Rows of results that are computed at once, if there are registers for them.
template <int kBytes>
constexpr int kRowsAtOnce = kBytes == 64 ? 4 : 2;
// The least number of rows of results of a unit: each unit brings the rows around it anew.
constexpr int64_t kLeastRows = 32;
// Products of this many columns are summed in `accumulate_t<T>`, and their sums in double.
constexpr int64_t kColumnsOfSum = 16;
constexpr int64_t kMostOf32Bits = int64_t{1} << 29;

// Whether a vector of results is a cache line.
template <int kBytes, typename T>
constexpr bool kStreams = kBytes == kAlignment && std::is_same_v<T, accumulate_t<T>>;

// Computes results whose upper taps are the lower ones of the row before.
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

  // Without kResults it computes only what the next row needs.
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

// Computes results whose rows are further apart than their taps, from two rows of the source; or, if the rows
// of the source are further apart than the taps, from one.
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

// Adds up the products of the output's gradients with the differences of their taps. The sums along x of a
// vector begin at `totals`, the sums along y `pitch` further on.
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

// Calls `function` with the bytes of the widest vector that `channels` channels fill, or with the width whose
// numbers have 64 bits if the image is huge.
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

// Cuts images into units: groups of channels that a ring holds, and bands of rows of the output.
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

  // The same unit in rows of the input.
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

// Whether results go past the caches: only whole cache lines can, and only large results gain.
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
