// shift and its gradients on CPU, channels_last images. A unit of work is a cache line of channels of one
// image: its offsets are as many as its channels.
//
// Row by row: rows of the source come, each once and in order, into a ring in second-level cache, turned
// around in registers so that the columns of a channel are neighbours, in `accumulate_t<T>`. Then the four
// taps of a channel are vectors at places of its own; times four weights they are its results, a square of
// which, as many columns as channels, is turned back and stored. The ring holds the rows between the
// channels' farthest offsets. An element costs, beside its load and its store, two turns of log2(lanes)
// shuffles and four loads.
//
// The gradient of the input is the same, with its taps turned around. Those of the offsets are products of
// the output's gradient, turned around too, with differences of the same four taps. Their sums stay in a
// vector a channel, and those of all images are added up in order (cpu.cpp).

#include <torchgraft/cpu_transpose.h>

#include <bit>

#include "cpu_kernels.h"

namespace torchgraft::shift::cpu {
namespace {

constexpr int64_t kLineBytes = 64;
template <typename T>
constexpr int64_t kLineChannels = kLineBytes / sizeof(T);

// The channels of one unit.
struct Line {
  int64_t image;
  int64_t channel;
  int64_t channels;
};

// As many vectors of pixels as there are lanes; what is beyond `pixels` or `channels` is zero, or not
// written.
template <int kBytes, typename T>
TORCHGRAFT_INLINE void load_square(
    Vector<accumulate_t<T>, kBytes> (&square)[kBytes / sizeof(accumulate_t<T>)], const T* from, int64_t step,
    int64_t pixels, int64_t channels) {
  using A = accumulate_t<T>;
  using V = Vector<A, kBytes>;
  constexpr int kLanes = kBytes / sizeof(A);
  if (pixels >= kLanes && channels >= kLanes) {
    TORCHGRAFT_UNROLL for (int p = 0; p < kLanes; ++p) load_converted<V, A>(square[p], from + p * step);
  } else {
    for (int64_t p = 0; p < kLanes; ++p) {
      T pixel[kLanes] = {};
      const int64_t count = p < pixels ? std::min<int64_t>(channels, kLanes) : 0;
      for (int64_t c = 0; c < count; ++c) pixel[c] = from[p * step + c];
      load_converted<V, A>(square[p], pixel);
    }
  }
  transpose(square);
}

template <int kBytes, typename T>
TORCHGRAFT_INLINE void store_square(
    Vector<accumulate_t<T>, kBytes> (&square)[kBytes / sizeof(accumulate_t<T>)], T* to, int64_t step,
    int64_t pixels, int64_t channels) {
  using A = accumulate_t<T>;
  constexpr int kLanes = kBytes / sizeof(A);
  transpose(square);
  if (pixels >= kLanes && channels >= kLanes) {
    TORCHGRAFT_UNROLL for (int p = 0; p < kLanes; ++p) store_converted<A>(square[p], to + p * step);
  } else {
    for (int64_t p = 0; p < std::min<int64_t>(pixels, kLanes); ++p) {
      T pixel[kLanes];
      store_converted<A>(square[p], pixel);
      for (int64_t c = 0; c < std::min<int64_t>(channels, kLanes); ++c) to[p * step + c] = pixel[c];
    }
  }
}

// The taps of a line of channels, and the rows of an image under them.
template <typename T>
class Ring {
 public:
  using A = accumulate_t<T>;
  static constexpr int64_t kChannels = kLineChannels<T>;

  // `image` begins at the line's first channel.
  template <typename Pass>
  void open(const T* image, const Pass& pass, const Line& line, bool transposed) {
    const Geometry& geometry = pass.geometry;
    image_ = image;
    channels_ = line.channels;
    step_ = geometry.channels;
    width_ = geometry.width;
    taps_.clear();
    rows_.clear();
    for (int64_t c = 0; c < channels_; ++c) {
      taps_.push_back(taps_of(pass, line.channel + c, transposed));
      rows_.push_back(taps_.back().rows());
    }
    const Taps<A>& first = taps_[0];
    result_rows_ = transposed ? geometry.height : geometry.steps;
    row_step_ = first.step;
    period_ = first.period;
    source_rows_ = first.source_rows;
    least_row_ = most_row_ = first.row;
    int64_t left = margin_, right = 0;
    for (const Taps<A>& each : taps_) {
      least_row_ = std::min(least_row_, each.row);
      most_row_ = std::max(most_row_, each.row);
      if (!has_columns(each)) continue;
      left = std::max(left, -each.column);
      right = std::max(right, each.column + 1);
    }
    const int64_t span = (most_row_ - least_row_ + 1) / period_ + 2;
    const int64_t slots = std::bit_ceil(static_cast<uint64_t>(std::clamp<int64_t>(source_rows_, 1, span)));
    const int64_t pitch = round_up(left + round_up(width_, kMostLanes) + right, kMostLanes) + kMostLanes;
    // Margins stay zero from one unit to the next; what grows once for a thread need not grow again.
    if (left > margin_ || pitch > pitch_ || slots > slots_) {
      margin_ = left;
      pitch_ = std::max(pitch, pitch_);
      slots_ = std::max(slots, slots_);
      elements_.assign((slots_ * kChannels + 1) * pitch_, A(0));
    }
    next_ = 0;
  }

  int64_t result_rows() const { return result_rows_; }
  const std::vector<Taps<A>>& taps() const { return taps_; }

  // Zeros at every column.
  const A* zeros() const { return elements_.data() + slots_ * kChannels * pitch_; }

  // The row of a channel that its results lie below, 0, or above, 1: at the left tap of the first one.
  const A* under(int64_t channel, int i) const {
    const int64_t position = rows_[channel].under(i);
    if (position == Rows::kNone || !has_columns(taps_[channel])) return zeros();
    return place(position, channel) + taps_[channel].column;
  }

  // Brings in all that a row of results needs. Rows of results are asked for one after the other.
  template <int kBytes>
  TORCHGRAFT_INLINE void bring(int64_t result_row) {
    if (result_row > 0) {
      for (Rows& each : rows_) each.advance();
    }
    const int64_t first = result_row * row_step_ + least_row_;
    const int64_t last = result_row * row_step_ + most_row_ + 1;
    next_ = std::max(next_, first / period_);
    if (last < 0) return;
    const int64_t end = std::min(last / period_ + 1, source_rows_);
    for (; next_ < end; ++next_) bring_row<kBytes>();
  }

 private:
  bool has_columns(const Taps<A>& taps) const { return taps.column >= -width_ && taps.column < width_; }

  A* place(int64_t position, int64_t channel) { return elements_.data() + index(position, channel); }
  const A* place(int64_t position, int64_t channel) const {
    return elements_.data() + index(position, channel);
  }
  int64_t index(int64_t position, int64_t channel) const {
    return ((position & (slots_ - 1)) * kChannels + channel) * pitch_ + margin_;
  }

  template <int kBytes>
  TORCHGRAFT_INLINE void bring_row() {
    constexpr int64_t kLanes = kBytes / sizeof(A);
    for (int64_t c = 0; c < channels_; c += kLanes) {
      A* to = place(next_, c);
      for (int64_t v = 0; v < width_; v += kLanes) {
        const int64_t at = width_ < kLanes ? 0 : std::min(v, width_ - kLanes);
        Vector<A, kBytes> square[kLanes];
        load_square<kBytes>(square, image_ + (next_ * width_ + at) * step_ + c, step_, width_ - at,
                            channels_ - c);
        TORCHGRAFT_UNROLL for (int l = 0; l < kLanes; ++l) store(square[l], to + l * pitch_ + at);
      }
    }
  }

  const T* image_ = nullptr;
  int64_t channels_ = 0;
  int64_t step_ = 0;
  int64_t width_ = 0;
  int64_t result_rows_ = 0;
  int64_t row_step_ = 1;
  int64_t period_ = 1;
  int64_t source_rows_ = 0;
  int64_t least_row_ = 0;
  int64_t most_row_ = 0;
  int64_t next_ = 0;
  int64_t margin_ = 0;
  int64_t pitch_ = 0;
  int64_t slots_ = 0;
  std::vector<Taps<A>> taps_;
  std::vector<Rows> rows_;
  std::vector<A> elements_;
};

// All results of a line.
template <int kBytes, typename T>
TORCHGRAFT_INLINE void resample_line(Ring<T>& ring, T* result, const Geometry& geometry, const Line& line) {
  using A = accumulate_t<T>;
  using V = Vector<A, kBytes>;
  constexpr int64_t kLanes = kBytes / sizeof(A);
  const int64_t width = geometry.width;
  A weights[kLineChannels<T>][4] = {};
  const A* at[kLineChannels<T>][4];
  for (auto& each : at) std::fill_n(each, 4, ring.zeros());
  for (int64_t c = 0; c < line.channels; ++c) {
    for (int tap = 0; tap < 4; ++tap) weights[c][tap] = ring.taps()[c].weight(tap / 2, tap % 2);
  }
  for (int64_t r = 0; r < ring.result_rows(); ++r) {
    ring.template bring<kBytes>(r);
    for (int64_t c = 0; c < line.channels; ++c) {
      for (int i = 0; i < 2; ++i) {
        const A* row = ring.under(c, i);
        for (int j = 0; j < 2; ++j) at[c][2 * i + j] = ring.taps()[c].counts(i, j) ? row + j : ring.zeros();
      }
    }
    for (int64_t c = 0; c < line.channels; c += kLanes) {
      for (int64_t v = 0; v < width; v += kLanes) {
        const int64_t begin = width < kLanes ? 0 : std::min(v, width - kLanes);
        V square[kLanes];
        TORCHGRAFT_UNROLL for (int l = 0; l < kLanes; ++l) {
          const A* const(&taps)[4] = at[c + l];
          const A(&weight)[4] = weights[c + l];
          V values[4];
          TORCHGRAFT_UNROLL for (int tap = 0; tap < 4; ++tap) load(values[tap], taps[tap] + begin);
          square[l] =
              values[0] * weight[0] + values[1] * weight[1] + (values[2] * weight[2] + values[3] * weight[3]);
        }
        store_square<kBytes>(square, result + (r * width + begin) * geometry.channels + c, geometry.channels,
                             width - begin, line.channels - c);
      }
    }
  }
}

// The sums of a line's gradients along x and y, a channel each.
template <int kBytes, typename T>
TORCHGRAFT_INLINE void sum_line(Ring<T>& ring, const T* output_grad, const Geometry& geometry,
                                const Line& line, Totals (&totals)[kLineChannels<T>]) {
  using A = accumulate_t<T>;
  using V = Vector<A, kBytes>;
  constexpr int64_t kLanes = kBytes / sizeof(A);
  const int64_t width = geometry.width;
  const A* at[kLineChannels<T>][2];
  for (auto& each : at) std::fill_n(each, 2, ring.zeros());
  A weights[kLineChannels<T>][4] = {};
  for (int64_t c = 0; c < line.channels; ++c) {
    for (int i = 0; i < 2; ++i) {
      weights[c][i] = ring.taps()[c].row_weights[i];
      weights[c][2 + i] = ring.taps()[c].column_weights[i];
    }
  }
  V sums[kLineChannels<T>][2] = {};
  int64_t added = 0;
  const auto take = [&]() __attribute__((always_inline)) {
    for (int64_t c = 0; c < line.channels; ++c) totals[c].take(sums[c]);
    added = 0;
  };
  for (int64_t t = 0; t < geometry.steps; ++t) {
    ring.template bring<kBytes>(t);
    for (int64_t c = 0; c < line.channels; ++c) {
      for (int i = 0; i < 2; ++i) at[c][i] = ring.under(c, i);
    }
    for (int64_t v = 0; v < width; v += kLanes) {
      const int64_t begin = width < kLanes ? 0 : std::min(v, width - kLanes);
      // Lanes that came before count once, and those behind the last column not at all.
      V counted;
      width < kLanes ? lanes_below<A>(counted, width) : lanes_from<A>(counted, v - begin);
      for (int64_t c = 0; c < line.channels; c += kLanes) {
        V square[kLanes];
        load_square<kBytes>(square, output_grad + (t * width + begin) * geometry.channels + c,
                            geometry.channels, width - begin, line.channels - c);
        TORCHGRAFT_UNROLL for (int l = 0; l < kLanes; ++l) {
          const A(&weight)[4] = weights[c + l];
          V top_left, top_right, low_left, low_right;
          load(top_left, at[c + l][0] + begin);
          load(top_right, at[c + l][0] + begin + 1);
          load(low_left, at[c + l][1] + begin);
          load(low_right, at[c + l][1] + begin + 1);
          const V along_x = (top_right - top_left) * weight[0] + (low_right - low_left) * weight[1];
          const V along_y = (low_left - top_left) * weight[2] + (low_right - top_right) * weight[3];
          sums[c + l][0] += counted != 0 ? square[l] * along_x : V{};
          sums[c + l][1] += counted != 0 ? square[l] * along_y : V{};
        }
      }
      if (++added == kVectorsOfSum) take();
    }
  }
  take();
}

template <int kBytes, typename T>
TORCHGRAFT_INLINE void run_line(const Forward<T>& pass, const Line& line, Ring<T>& ring) {
  const Geometry& geometry = pass.geometry;
  const int64_t of_input = line.image * geometry.channels * geometry.input_pixels() + line.channel;
  const int64_t of_output = line.image * geometry.channels * geometry.output_pixels() + line.channel;
  ring.open(pass.input + of_input, pass, line, false);
  resample_line<kBytes>(ring, pass.output + of_output, geometry, line);
}

template <int kBytes, typename T>
TORCHGRAFT_INLINE void run_line(const Backward<T>& pass, const Line& line, Ring<T>& ring) {
  const Geometry& geometry = pass.geometry;
  const int64_t of_input = line.image * geometry.channels * geometry.input_pixels() + line.channel;
  const int64_t of_output = line.image * geometry.channels * geometry.output_pixels() + line.channel;
  if (pass.input_grad != nullptr) {
    ring.open(pass.output_grad + of_output, pass, line, true);
    resample_line<kBytes>(ring, pass.input_grad + of_input, geometry, line);
  }
  if (pass.partial_sums != nullptr) {
    ring.open(pass.input + of_input, pass, line, false);
    Totals totals[kLineChannels<T>];
    sum_line<kBytes>(ring, pass.output_grad + of_output, geometry, line, totals);
    for (int64_t c = 0; c < line.channels; ++c) keep_sums(pass, line.image, line.channel + c, totals[c]);
  }
}

#define SHIFT_LINES(T)                                                                         \
  TORCHGRAFT_VECTOR_CLONES(void run(const Forward<T>& pass, const Line& line, Ring<T>& ring),  \
                           run_line<kVectorBytes>(pass, line, ring);)                          \
  TORCHGRAFT_VECTOR_CLONES(void run(const Backward<T>& pass, const Line& line, Ring<T>& ring), \
                           run_line<kVectorBytes>(pass, line, ring);)
SHIFT_LINES(double)
SHIFT_LINES(float)
SHIFT_LINES(Half)
SHIFT_LINES(BFloat16)
#undef SHIFT_LINES

template <typename T, typename Pass>
void run_lines(const Pass& pass) {
  const Geometry& geometry = pass.geometry;
  const int64_t lines = (geometry.channels + kLineChannels<T> - 1) / kLineChannels<T>;
  const int64_t grain = units_of_grain(geometry.input_pixels() * kLineChannels<T>);
  parallel_for(0, geometry.batch * lines, grain, [&](int64_t begin, int64_t end) {
    Ring<T> ring;
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t channel = unit % lines * kLineChannels<T>;
      run(pass, Line{unit / lines, channel, std::min(geometry.channels - channel, kLineChannels<T>)}, ring);
    }
  });
}

}  // namespace

#define SHIFT_CHANNELS_LAST(T)                           \
  template <>                                            \
  void forward_channels_last(const Forward<T>& pass) {   \
    run_lines<T>(pass);                                  \
  }                                                      \
  template <>                                            \
  void backward_channels_last(const Backward<T>& pass) { \
    run_lines<T>(pass);                                  \
  }
SHIFT_CHANNELS_LAST(double)
SHIFT_CHANNELS_LAST(float)
SHIFT_CHANNELS_LAST(Half)
SHIFT_CHANNELS_LAST(BFloat16)
#undef SHIFT_CHANNELS_LAST

}  // namespace torchgraft::shift::cpu
