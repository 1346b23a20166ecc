// How the CPU kernels see an image: rows of pixels, each pixel one vector whose lanes are channels, in
// `accumulate_t<T>`. float and double in channels_last lie so in memory and are used where they are; so are
// float16 and bfloat16 by loops that convert what they load and store. All else passes through scratch, a
// band at a time, each element once: planes are transposed there in registers, float16 and bfloat16
// converted, channels that fill no vector padded.
#pragma once

#include <torchgraft/dispatch.h>
#include <torchgraft/layout.h>
#include <torchgraft/numbers.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <type_traits>
#include <vector>

namespace torchgraft::depthwise::cpu {

inline constexpr int64_t kMostLanes = 16;

// Channels side by side of which several images share a vector.
inline constexpr int64_t kLeastRun = 2;
inline constexpr int64_t kMostRun = 4;

// Bytes of a vector register on this machine.
int64_t vector_bytes();

// Where an image has few channels, a vector takes those of several images. Their number.
template <typename T>
int64_t folded_images(Layout layout, int64_t lanes, int64_t source_channels, int64_t destination_channels,
                      int64_t batch) {
  // Side by side they are moved a pixel at a time: float alone, in pieces of four.
  const bool in_pieces = std::is_same_v<T, float> && source_channels == destination_channels &&
                         destination_channels >= kLeastRun && destination_channels <= kMostRun &&
                         lanes == kMostLanes;
  if (layout == Layout::channels_last && !in_pieces) return 1;
  return std::clamp<int64_t>(lanes / destination_channels, 1, std::max<int64_t>(batch, 1));
}

// One vector of channels of one image, or of some. Lane l of pixel p is `image[offsets[l] + p * pixel_step]`.
template <typename T>
struct Channels {
  T* image;
  std::array<int64_t, kMostLanes> offsets;
  int64_t count;  // lanes in use; the others are zero, or where channels lie side by side anything
  int64_t pixel_step;

  // Few channels of each of some images, each image's side by side.
  bool in_runs() const {
    if (pixel_step < kLeastRun || pixel_step > kMostRun || count % pixel_step != 0) return false;
    for (int64_t lane = 0; lane < count; lane += pixel_step) {
      if (offsets[lane + pixel_step - 1] - offsets[lane] != pixel_step - 1) return false;
    }
    return true;
  }
  bool consecutive() const { return pixel_step > 1 && offsets[count - 1] - offsets[0] == count - 1; }
};

// The pixels [pixel, pixel + pixels) of an image, to and from [pixel][lane].
#define TORCHGRAFT_DECLARE_ROWS(T)                                                                     \
  void gather(const Channels<const T>& channels, int64_t pixel, accumulate_t<T>* to, int64_t lanes,    \
              int64_t pixels);                                                                         \
  void scatter(const accumulate_t<T>* from, int64_t lanes, const Channels<T>& channels, int64_t pixel, \
               int64_t pixels);
TORCHGRAFT_DECLARE_ROWS(double)
TORCHGRAFT_DECLARE_ROWS(float)
TORCHGRAFT_DECLARE_ROWS(Half)
TORCHGRAFT_DECLARE_ROWS(BFloat16)
#undef TORCHGRAFT_DECLARE_ROWS

// A range of rows or of columns, of positions that may lie outside of the image.
struct Range {
  int64_t begin;
  int64_t end;

  int64_t size() const { return end - begin; }
  bool contains(int64_t position) const { return position >= begin && position < end; }
  // The part of it inside of [0, extent).
  Range clipped(int64_t extent) const {
    const int64_t from = std::clamp<int64_t>(begin, 0, extent);
    return {from, std::clamp<int64_t>(end, from, extent)};
  }
  Range shifted(int64_t by) const { return {begin + by, end + by}; }
};

// The input channel of an output channel, of which each has `multiplier`. A division takes longer than all
// else that is done for a channel.
inline int64_t input_channel(int64_t output_channel, int64_t multiplier) {
  return multiplier == 1 ? output_channel : output_channel / multiplier;
}

// How a row whose taps lie `tap_step` columns apart, and pixels `step`, is cut by remainders: pixels `parts`
// apart read columns `stretch` apart, of which taps are neighbours. One part where there is nothing to gain.
struct Remainders {
  int64_t parts = 1;
  int64_t stretch = 1;

  Remainders(int64_t step, int64_t tap_step, int64_t taps, int64_t pixels) {
    constexpr int64_t kLeastPixels = 4;
    const int64_t apart = tap_step / std::gcd(step, tap_step);
    if (tap_step == 1 || taps < 3 || pixels / apart < kLeastPixels) return;
    parts = apart;
    stretch = tap_step;
  }
  // Columns in front of the first one in the image that has the position's remainder.
  int64_t skipped(int64_t position) const { return position - floor_divide(position, stretch) * stretch; }
};

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

// Where vectors of channels lie, from the first one on: so many elements apart, but for the last.
struct VectorPlaces {
  int64_t step;
  int64_t last;

  int64_t place(int64_t vector) const { return std::min(vector * step, last); }
};

// Rows of some vectors of channels of an image, to be read or written, as elements of S: those of scratch, or
// the image's own. Of two-byte types that lie where they are there is no scratch: then every vector must be a
// whole one, of channels side by side.
template <typename T, typename S = accumulate_t<std::remove_const_t<T>>>
class Rows {
 public:
  using Element = std::remove_const_t<T>;
  using Pointer = std::conditional_t<std::is_const_v<T>, const S*, S*>;

  // Rows and columns must lie inside of the image. At most `most_rows` different rows will be asked for.
  // `channels_of(v)` are the channels of vector v.
  template <typename ChannelsOf>
  void open(int64_t vectors, const ChannelsOf& channels_of, int64_t lanes, int64_t width, Range rows,
            Range columns, int64_t most_rows) {
    channels_.clear();
    channels_.push_back(channels_of(0));
    const Channels<T>& first = channels_[0];
    lanes_ = lanes;
    width_ = width;
    rows_ = rows;
    columns_ = columns;
    direct_ = std::is_same_v<Element, S> && (!kHasScratch || (first.consecutive() && first.count == lanes));
    whole_ = direct_ || most_rows >= rows.size();
    if constexpr (std::is_same_v<Element, S>) {
      if (direct_) {
        first_row_ = first.image + first.offsets[0] + rows.begin * width * first.pixel_step;
        row_step_ = width * first.pixel_step;
        return;
      }
    }
    if constexpr (kHasScratch) {
      for (int64_t vector = 1; vector < vectors; ++vector) channels_.push_back(channels_of(vector));
      open_scratch(vectors, most_rows);
    }
  }
  void open(const Channels<T>& channels, int64_t lanes, int64_t width, Range rows, Range columns,
            int64_t most_rows) {
    open(1, [&](int64_t) { return channels; }, lanes, width, rows, columns, most_rows);
  }

  // Column `first_column()` of a row; the next one is `column_step()` elements on. There are `width()` of
  // them. `row_or_null` gives null for a row that was not opened.
  Pointer row(int64_t position) {
    if (whole_) return first_row_ + (position - rows_.begin) * row_step_;
    if constexpr (kHasScratch && std::is_const_v<T>) {
      // Rows far apart, as under a wide dilation: only those that are asked for are brought in.
      S*& found = found_[position - rows_.begin];
      if (found == nullptr) {
        found = elements_ + used_++ * row_step_;
        S* to = found;
        for (const Channels<T>& channels : channels_) {
          gather(channels, position * width_ + columns_.begin, to, lanes_, columns_.size());
          to += vector_step_;
        }
      }
      return found;
    }
    return nullptr;
  }
  Pointer row_or_null(int64_t position) { return rows_.contains(position) ? row(position) : nullptr; }
  int64_t column_step() const { return direct_ ? channels_[0].pixel_step : lanes_; }
  int64_t first_column() const { return direct_ ? 0 : columns_.begin; }
  int64_t width() const { return direct_ ? width_ : columns_.size(); }
  // Where the vectors lie. In the image itself the last one, which begins with channel `last_lane` of the
  // first one's, may overlap the one before.
  VectorPlaces vectors(int64_t last_lane) const {
    if (direct_) return {lanes_, last_lane};
    return {vector_step_, (static_cast<int64_t>(channels_.size()) - 1) * vector_step_};
  }

  // Puts rows that were written where they belong.
  void flush() {
    if constexpr (kHasScratch) {
      if (direct_) return;
      for_each_run([&](const Channels<T>& channels, int64_t pixel, S* elements, int64_t pixels) {
        scatter(elements, lanes_, channels, pixel, pixels);
      });
    }
  }

 private:
  static constexpr bool kHasScratch = std::is_same_v<S, accumulate_t<Element>>;

  void open_scratch(int64_t vectors, int64_t most_rows) {
    row_step_ = columns_.size() * lanes_;
    vector_step_ = std::min(most_rows, rows_.size()) * row_step_;
    elements_ = scratch_.reserve(vectors * vector_step_);
    first_row_ = elements_;
    if constexpr (std::is_const_v<T>) {
      if (whole_) {
        gather_rows();
      } else {
        used_ = 0;
        found_.assign(rows_.size(), nullptr);
      }
    }
  }

  void gather_rows() {
    for_each_run([&](const Channels<T>& channels, int64_t pixel, S* elements, int64_t pixels) {
      gather(channels, pixel, elements, lanes_, pixels);
    });
  }

  // Whole rows are one run of pixels.
  template <typename Function>
  void for_each_run(const Function& function) {
    S* elements = elements_;
    for (const Channels<T>& channels : channels_) {
      if (columns_.size() == width_) {
        function(channels, rows_.begin * width_, elements, rows_.size() * width_);
      } else {
        for (int64_t row = rows_.begin; row < rows_.end; ++row) {
          function(channels, row * width_ + columns_.begin, elements + (row - rows_.begin) * row_step_,
                   columns_.size());
        }
      }
      elements += vector_step_;
    }
  }

  std::vector<Channels<T>> channels_;  // of each vector; of the first one alone where rows are read directly
  int64_t lanes_ = 0;
  int64_t width_ = 0;
  Range rows_ = {0, 0};
  Range columns_ = {0, 0};
  bool direct_ = false;
  bool whole_ = false;
  S* elements_ = nullptr;
  Pointer first_row_ = nullptr;
  int64_t row_step_ = 0;
  int64_t vector_step_ = 0;  // elements of scratch from a vector's rows to the next one's
  int64_t used_ = 0;
  std::vector<S*> found_;
  Scratch<S> scratch_;
};

}  // namespace torchgraft::depthwise::cpu
