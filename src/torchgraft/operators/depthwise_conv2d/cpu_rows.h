// Rows on their way between tensors and scratch on CPU. Scratch holds `accumulate_t<T>`: float16 and bfloat16
// are converted here and nowhere else, once for each time that an element is brought into the cache.
#pragma once

#include <torchgraft/dispatch.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace torchgraft::depthwise::cpu {

constexpr int64_t ceil_div(int64_t dividend, int64_t divisor) { return (dividend + divisor - 1) / divisor; }
constexpr int64_t round_up(int64_t value, int64_t multiple) { return ceil_div(value, multiple) * multiple; }

// Bytes of a vector register on this machine.
int64_t vector_bytes();

// gather_row:     to[i] = from[i * step]
// scatter_row:    to[i * step] = from[i], rounded
// gather_pixels:  to[p * lanes + l] = from[p * step + l] for l < channels, and zero from there to lanes
// scatter_pixels: to[p * step + l] = from[p * lanes + l] for l < channels, rounded
// gather_pixels with indices: channel `indices[l]` takes the place of channel l.
#define TORCHGRAFT_DECLARE_ROWS(T)                                                                       \
  void gather_row(const T* from, int64_t step, accumulate_t<T>* to, int64_t count);                      \
  void scatter_row(const accumulate_t<T>* from, T* to, int64_t step, int64_t count);                     \
  void gather_pixels(const T* from, int64_t step, int64_t channels, accumulate_t<T>* to, int64_t lanes,  \
                     int64_t pixels);                                                                    \
  void gather_pixels(const T* from, int64_t step, const int64_t* indices, int64_t channels,              \
                     accumulate_t<T>* to, int64_t lanes, int64_t pixels);                                \
  void scatter_pixels(const accumulate_t<T>* from, int64_t lanes, T* to, int64_t step, int64_t channels, \
                      int64_t pixels);
TORCHGRAFT_DECLARE_ROWS(double)
TORCHGRAFT_DECLARE_ROWS(float)
TORCHGRAFT_DECLARE_ROWS(Half)
TORCHGRAFT_DECLARE_ROWS(BFloat16)
#undef TORCHGRAFT_DECLARE_ROWS

// Scratch that only grows, so that a thread allocates once and not for every unit of its work.
template <typename A>
class Scratch {
 public:
  A* reserve(int64_t elements) {
    if (static_cast<int64_t>(elements_.size()) < elements) elements_.resize(elements);
    return elements_.data();
  }

 private:
  std::vector<A> elements_;
};

// Rows of an image that have been brought into scratch, by their position in the image. At most `row_limit`
// rows of positions [begin, end) are kept, however far apart they lie.
template <typename A>
class RowCache {
 public:
  void reset(int64_t begin, int64_t end, int64_t row_limit, int64_t row_elements) {
    begin_ = begin;
    row_elements_ = row_elements;
    used_ = 0;
    rows_.assign(std::max<int64_t>(end - begin, 0), nullptr);
    elements_ = scratch_.reserve(std::min<int64_t>(row_limit, rows_.size()) * row_elements);
  }

  // `fill(to)` writes the row where it is not there yet.
  template <typename Fill>
  const A* row(int64_t position, const Fill& fill) {
    const A*& row = rows_[position - begin_];
    if (row == nullptr) {
      A* to = elements_ + used_++ * row_elements_;
      fill(to);
      row = to;
    }
    return row;
  }

 private:
  int64_t begin_ = 0;
  int64_t row_elements_ = 0;
  int64_t used_ = 0;
  std::vector<const A*> rows_;
  Scratch<A> scratch_;
  A* elements_ = nullptr;
};

// A padded row of one channel, laid out so that every tap reads consecutive elements: tap t of output i is
// element `offset(t) + i`. With a step above one the columns are parted by their remainder; where that would
// hold more than the taps need (a step above the kernel, a wide dilation), every tap has a copy of its own.
class PaddedRow {
 public:
  // Output i reads position `first + i * step + t * tap_step` at tap t.
  PaddedRow(int64_t first, int64_t step, int64_t taps, int64_t tap_step, int64_t outputs);

  int64_t elements() const { return segment_starts_.size() * segment_length_; }
  const int64_t* offsets() const { return offsets_.data(); }

  template <typename T>
  void fill(const T* row, int64_t width, accumulate_t<T>* to) const {
    for (const int64_t start : segment_starts_) {
      // The part of the segment that lies inside of the image.
      const int64_t begin = start >= 0 ? 0 : std::min(ceil_div(-start, step_), segment_length_);
      const int64_t end =
          start >= width ? begin : std::clamp(ceil_div(width - start, step_), begin, segment_length_);
      std::fill(to, to + begin, 0);
      if (begin < end) gather_row(row + start + begin * step_, step_, to + begin, end - begin);
      std::fill(to + end, to + segment_length_, 0);
      to += segment_length_;
    }
  }

 private:
  int64_t step_;
  int64_t segment_length_;
  std::vector<int64_t> segment_starts_;  // position of the first element of each segment
  std::vector<int64_t> offsets_;         // of each tap
};

}  // namespace torchgraft::depthwise::cpu
