// Weight gradient of contiguous images on CPU. The lanes of a vector are columns of one plane; each lane sums
// its own columns, and lanes are added up, in order, when a part of the batch is done.
//
// A thread owns some channels and a part of the batch's rows. Rows of the input are copied to scratch with
// their padding, once from memory, and rows of the output gradient to a whole number of vectors. Two kernel
// rows by up to seven taps of sums stay in registers through all rows of a band, which L1 holds.

#include <torchgraft/cpu.h>
#include <torchgraft/dispatch.h>

#include <algorithm>
#include <vector>

#include "cpu_rows.h"
#include "cpu_weight_grad.h"

namespace torchgraft::depthwise::cpu {
namespace {

// A band of rows of one plane, all of its taps.
template <typename A>
struct Band {
  const A* output_grad;
  int64_t output_grad_step;  // elements from a row to the next: whole vectors
  int64_t rows;
  int64_t columns;
  const A* const* inputs;  // for each row and kernel row: the input's padded row, null outside of the image
  const int64_t* offsets;  // of each tap in a padded row
  int64_t kernel_height;
  int64_t kernel_width;
  A* sums;  // one vector a tap
};

// kRows kernel rows, of which the input's rows are inside of the image, and kTaps taps along one row.
template <int kRows, int kTaps, typename V, typename Mask, typename A>
TORCHGRAFT_INLINE void add_line(V (&sums)[kRows][kTaps], const Band<A>& band, const A* output_grad,
                                const A* const* inputs, const int64_t* offsets, const Mask& tail) {
  constexpr int kLanes = sizeof(V) / sizeof(A);
  int64_t column = 0;
  for (; column + kLanes <= band.columns; column += kLanes) {
    V grad;
    load(grad, output_grad + column);
    TORCHGRAFT_UNROLL for (int r = 0; r < kRows; ++r) {
      TORCHGRAFT_UNROLL for (int t = 0; t < kTaps; ++t) {
        V values;
        load(values, inputs[r] + offsets[t] + column);
        sums[r][t] += grad * values;
      }
    }
  }
  if (column == band.columns) return;
  // Beyond the row's end the output gradient is zero; the input may be anything there, infinity times zero
  // not zero.
  V grad;
  load(grad, output_grad + column);
  TORCHGRAFT_UNROLL for (int r = 0; r < kRows; ++r) {
    TORCHGRAFT_UNROLL for (int t = 0; t < kTaps; ++t) {
      V values;
      load(values, inputs[r] + offsets[t] + column);
      values = tail ? values : V{};
      sums[r][t] += grad * values;
    }
  }
}

template <int kRows, int kTaps, typename V, typename A>
TORCHGRAFT_INLINE void sum_tile(const Band<A>& band, int64_t kernel_row, int64_t tap) {
  constexpr int kLanes = sizeof(V) / sizeof(A);
  using Mask = Vector<std::conditional_t<sizeof(A) == 4, int32_t, int64_t>, sizeof(V)>;
  Mask tail;
  TORCHGRAFT_UNROLL for (int l = 0; l < kLanes; ++l) tail[l] = l < band.columns % kLanes ? -1 : 0;
  V sums[kRows][kTaps];
  A* const to = band.sums + (kernel_row * band.kernel_width + tap) * kLanes;
  TORCHGRAFT_UNROLL for (int r = 0; r < kRows; ++r) {
    TORCHGRAFT_UNROLL for (int t = 0; t < kTaps; ++t)
        load(sums[r][t], to + (r * band.kernel_width + t) * kLanes);
  }
  const int64_t* offsets = band.offsets + tap;
  for (int64_t row = 0; row < band.rows; ++row) {
    const A* output_grad = band.output_grad + row * band.output_grad_step;
    const A* const* inputs = band.inputs + row * band.kernel_height + kernel_row;
    if (kRows == 1) {
      if (inputs[0] != nullptr) add_line(sums, band, output_grad, inputs, offsets, tail);
    } else if (std::all_of(inputs, inputs + kRows, [](const A* input) { return input != nullptr; })) {
      add_line(sums, band, output_grad, inputs, offsets, tail);
    } else {
      TORCHGRAFT_UNROLL for (int r = 0; r < kRows; ++r) {
        if (inputs[r] != nullptr) {
          add_line(reinterpret_cast<V(&)[1][kTaps]>(sums[r]), band, output_grad, inputs + r, offsets, tail);
        }
      }
    }
  }
  TORCHGRAFT_UNROLL for (int r = 0; r < kRows; ++r) {
    TORCHGRAFT_UNROLL for (int t = 0; t < kTaps; ++t)
        store(sums[r][t], to + (r * band.kernel_width + t) * kLanes);
  }
}

template <int kRows, int kTaps, typename V, typename A>
TORCHGRAFT_INLINE void sum_taps(const Band<A>& band, int64_t tap) {
  int64_t kernel_row = 0;
  for (; kernel_row + kRows <= band.kernel_height; kernel_row += kRows) {
    sum_tile<kRows, kTaps, V>(band, kernel_row, tap);
  }
  for (; kernel_row < band.kernel_height; ++kernel_row) sum_tile<1, kTaps, V>(band, kernel_row, tap);
}

// Taps in tiles of seven, five, three and one: enough sums in flight to hide the latency of an addition.
template <int kBytes, typename A>
TORCHGRAFT_INLINE void sum_band(const Band<A>& band) {
  using V = Vector<A, kBytes>;
  int64_t tap = 0;
  for (; tap + 7 <= band.kernel_width; tap += 7) sum_taps<2, 7, V>(band, tap);
  if (tap + 5 <= band.kernel_width) {
    sum_taps<2, 5, V>(band, tap);
    tap += 5;
  }
  if (tap + 3 <= band.kernel_width) {
    sum_taps<3, 3, V>(band, tap);
    tap += 3;
  }
  for (; tap < band.kernel_width; ++tap) sum_taps<4, 1, V>(band, tap);
}

TORCHGRAFT_VECTOR_CLONES(void run_band(const Band<float>& band), sum_band<kVectorBytes>(band);)
TORCHGRAFT_VECTOR_CLONES(void run_band(const Band<double>& band), sum_band<kVectorBytes>(band);)

// Columns of a slice: wider images are cut. Bytes of padded input that a band may span.
constexpr int64_t kSlice = 256;
constexpr int64_t kBandBytes = 32 * 1024;

template <typename T>
class Contiguous {
 public:
  using A = accumulate_t<T>;

  Contiguous(const T* output_grad, const T* input, const Geometry& geometry)
      : output_grad_(output_grad),
        input_(input),
        geometry_(geometry),
        lanes_(vector_bytes() / static_cast<int64_t>(sizeof(A))),
        parts_(weight_grad_parts(geometry, geometry.output_channels())),
        sums_(parts_ * geometry.output_channels() * geometry.taps()) {
    const int64_t row_bytes = padded_row(0).elements() * static_cast<int64_t>(sizeof(A));
    band_ = std::clamp<int64_t>((kBandBytes / row_bytes - geometry.height.kernel) / geometry.height.stride, 8,
                                std::max<int64_t>(geometry.height.output, 8));
  }

  void run(T* weight_grad) {
    const int64_t channels = geometry_.output_channels();
    const int64_t lines = geometry_.batch * geometry_.height.output;
    const int64_t work = lines * geometry_.width.output * geometry_.taps() / parts_;
    const int64_t grain = std::max<int64_t>(kWeightGradGrain / std::max<int64_t>(work, 1), 1);
    parallel_for(0, parts_ * channels, grain, [&](int64_t begin, int64_t end) {
      Workspace workspace;
      for (int64_t unit = begin; unit < end; ++unit) sum_part(unit / channels, unit % channels, workspace);
    });
    const int64_t elements = channels * geometry_.taps();
    for (int64_t i = 0; i < elements; ++i) {
      A sum = 0;
      for (int64_t part = 0; part < parts_; ++part) sum += sums_[part * elements + i];
      weight_grad[i] = static_cast<T>(sum);
    }
  }

 private:
  struct Workspace {
    RowCache<A> rows;
    Scratch<A> output_grad;
    std::vector<const A*> inputs;
    std::vector<A> sums;
  };

  PaddedRow padded_row(int64_t first) const {
    const Extent& width = geometry_.width;
    const int64_t count = std::min(kSlice, width.output - first);
    return PaddedRow(width.position(first, 0), width.stride, width.kernel, width.dilation,
                     round_up(count, lanes_));
  }

  // One part of the rows for one channel.
  void sum_part(int64_t part, int64_t channel, Workspace& workspace) {
    const int64_t height = geometry_.height.output;
    const int64_t lines = geometry_.batch * height;
    const int64_t taps = geometry_.taps();
    workspace.sums.assign(taps * lanes_, 0);
    for (int64_t column = 0; column < geometry_.width.output; column += kSlice) {
      const PaddedRow padded = padded_row(column);
      const int64_t end = lines * (part + 1) / parts_;
      for (int64_t line = lines * part / parts_; line < end;) {
        const int64_t image = line / height;
        const int64_t rows = std::min({band_, end - line, (image + 1) * height - line});
        sum_rows(image, channel, line - image * height, rows, column, padded, workspace);
        line += rows;
      }
    }
    A* sums = sums_.data() + (part * geometry_.output_channels() + channel) * taps;
    for (int64_t tap = 0; tap < taps; ++tap) {
      for (int64_t lane = 0; lane < lanes_; ++lane) sums[tap] += workspace.sums[tap * lanes_ + lane];
    }
  }

  void sum_rows(int64_t image, int64_t channel, int64_t first_row, int64_t rows, int64_t first_column,
                const PaddedRow& padded, Workspace& workspace) const {
    const Extent& height = geometry_.height;
    const Extent& width = geometry_.width;
    const int64_t columns = std::min(kSlice, width.output - first_column);
    const int64_t output_grad_step = round_up(columns, lanes_);
    const T* output_grad =
        output_grad_ +
        ((image * geometry_.output_channels() + channel) * height.output + first_row) * width.output +
        first_column;
    A* output_grad_rows = workspace.output_grad.reserve(rows * output_grad_step);
    for (int64_t row = 0; row < rows; ++row) {
      A* to = output_grad_rows + row * output_grad_step;
      gather_row(output_grad + row * width.output, 1, to, columns);
      std::fill(to + columns, to + output_grad_step, 0);
    }

    const T* input =
        input_ + (image * geometry_.channels + channel / geometry_.multiplier) * geometry_.input_pixels();
    const int64_t begin = std::clamp<int64_t>(height.position(first_row, 0), 0, height.input);
    const int64_t end = std::clamp<int64_t>(height.position(first_row + rows - 1, height.kernel - 1) + 1,
                                            begin, height.input);
    workspace.rows.reset(begin, end, rows * height.kernel, padded.elements());
    workspace.inputs.clear();
    for (int64_t row = first_row; row < first_row + rows; ++row) {
      for (int64_t tap = 0; tap < height.kernel; ++tap) {
        const int64_t position = height.position(row, tap);
        const bool inside = position >= 0 && position < height.input;
        workspace.inputs.push_back(
            inside
                ? workspace.rows.row(
                      position, [&](A* to) { padded.fill(input + position * width.input, width.input, to); })
                : nullptr);
      }
    }

    run_band(Band<A>{.output_grad = output_grad_rows,
                     .output_grad_step = output_grad_step,
                     .rows = rows,
                     .columns = columns,
                     .inputs = workspace.inputs.data(),
                     .offsets = padded.offsets(),
                     .kernel_height = height.kernel,
                     .kernel_width = width.kernel,
                     .sums = workspace.sums.data()});
  }

  const T* output_grad_;
  const T* input_;
  const Geometry& geometry_;
  int64_t lanes_;
  int64_t parts_;
  int64_t band_;         // rows of the output gradient
  std::vector<A> sums_;  // [part][channel][tap]
};

}  // namespace

template <typename T>
void weight_grad_contiguous(const T* output_grad, const T* input, T* weight_grad, const Geometry& geometry) {
  Contiguous<T>(output_grad, input, geometry).run(weight_grad);
}

template void weight_grad_contiguous(const double*, const double*, double*, const Geometry&);
template void weight_grad_contiguous(const float*, const float*, float*, const Geometry&);
template void weight_grad_contiguous(const Half*, const Half*, Half*, const Geometry&);
template void weight_grad_contiguous(const BFloat16*, const BFloat16*, BFloat16*, const Geometry&);

}  // namespace torchgraft::depthwise::cpu
