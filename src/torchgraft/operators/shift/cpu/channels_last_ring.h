// The rows of the source that channels_last.cpp reads, in a ring in second-level cache: a line of as many
// channels as a vector has lanes after the other, in `accumulate_t<T>`.
#pragma once

#include <torchgraft/cpu_convert.h>

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels.h"

namespace torchgraft::shift::cpu {

// Bytes of a ring: a quarter of a second-level cache, so that results find room there too.
inline constexpr int64_t kRingBytes = 512 << 10;
// Rows of results of a line before the next line's: the rows of the ring that they share stay in first-level
// cache.
inline constexpr int64_t kMostRows = 8;
inline constexpr int64_t kAlignment = 64;
// The row of a channel that reads no row, however far results are from it, in numbers of 32 bits.
inline constexpr int64_t kNowhere = -(int64_t{1} << 30);

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

// The taps of all channels. A channel that reads nothing of the source has the row kNowhere.
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

  // The least and the greatest row of channels [first, last).
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

  // The number of rows of the source that `result_rows` rows of results read, if the rows of channels differ
  // by `apart`.
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
    // Readers read elements beside a row, and throw them away.
    margin_ = round_up((width_ + 1) * lanes, kAlignment / sizeof(A));
    elements_.reserve(slots_ * pitch_ + 2 * margin_);
    lower_.reserve(lines_ * (width_ + 1) * lanes);
    brought_ = 0;
    last_ = unit.first;
  }

  // Goes on to the next rows of results, and brings the rows of the source that they need; false if no rows
  // are left.
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
  // Row `source_first` of the source lies in slot `first_slot`, and the row after it in the slot after that.
  int64_t source_first() const { return source_first_; }
  int64_t first_slot() const { return source_first_ % slots_; }
  int64_t slots() const { return slots_; }
  int64_t pitch() const { return pitch_; }
  const A* line(int64_t line) { return elements_.data() + margin_ + line * width_ * lanes_; }
  // The blended taps of a line that a row of results leaves to the next row.
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
      // Prefetches the next row: rows are too short for the processor to do so by itself.
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

}  // namespace torchgraft::shift::cpu
