// Weight gradient of channels_last images on CPU. The lanes of a vector are channels, so a sum over pixels is
// a sum of vectors and no lane ever meets another.
//
// A thread owns some vectors of channels and a part of the batch's rows; it takes a band of rows through one
// vector of channels at a time. Two kernel rows by up to seven taps of sums stay in registers along a row of
// the output gradient; a column of the input is loaded once a kernel row and serves every pair of a pixel and
// a tap that meet there. The sums of a part lie in L1 between rows; parts are added in order at the end.

#include <torchgraft/cpu.h>
#include <torchgraft/dispatch.h>

#include <algorithm>
#include <type_traits>
#include <vector>

#include "cpu_rows.h"
#include "cpu_weight_grad.h"

namespace torchgraft::depthwise::cpu {
namespace {

// A slice of one row of the output gradient, one vector of channels, all of the taps.
template <typename A>
struct Row {
  const A* output_grad;
  int64_t output_grad_step;  // elements from a pixel to the next
  int64_t count;             // pixels
  const A* const* inputs;    // for each kernel row that meets the image: column 0 of the input's row,
  A* const* sums;            // and the sums of the kernel's row, in vectors
  int64_t kernel_rows;
  int64_t input_step;  // elements from a column to the next
  int64_t width;       // columns of the input
  int64_t first_position;
  int64_t step;
  int64_t tap_step;
  int64_t taps;
};

// Some pixels and kTaps taps side by side, at a step known here.
template <int kRows, int kTaps, int kStep, int kPixels, bool kInside, typename V, typename A>
TORCHGRAFT_INLINE void add_pixels(V (&sums)[kRows][kTaps], const Row<A>& row, int64_t kernel_row,
                                  int64_t pixel, int64_t first) {
  V grads[kPixels];
  TORCHGRAFT_UNROLL for (int p = 0; p < kPixels; ++p) {
    load(grads[p], row.output_grad + (pixel + p) * row.output_grad_step);
  }
  TORCHGRAFT_UNROLL for (int c = 0; c < (kPixels - 1) * kStep + kTaps; ++c) {
    if (!kInside && static_cast<uint64_t>(first + c) >= static_cast<uint64_t>(row.width)) continue;
    TORCHGRAFT_UNROLL for (int r = 0; r < kRows; ++r) {
      V column;
      load(column, row.inputs[kernel_row + r] + (first + c) * row.input_step);
      TORCHGRAFT_UNROLL for (int t = 0; t < kTaps; ++t) {
        const int distance = c - t;
        if (distance >= 0 && distance % kStep == 0 && distance / kStep < kPixels) {
          sums[r][t] += grads[distance / kStep] * column;
        }
      }
    }
  }
}

// One pixel, any step between taps.
template <int kRows, int kTaps, typename V, typename A>
TORCHGRAFT_INLINE void add_pixel(V (&sums)[kRows][kTaps], const Row<A>& row, int64_t kernel_row,
                                 int64_t pixel, int64_t first) {
  V grad;
  load(grad, row.output_grad + pixel * row.output_grad_step);
  TORCHGRAFT_UNROLL for (int t = 0; t < kTaps; ++t) {
    const int64_t position = first + t * row.tap_step;
    if (static_cast<uint64_t>(position) >= static_cast<uint64_t>(row.width)) continue;
    TORCHGRAFT_UNROLL for (int r = 0; r < kRows; ++r) {
      V column;
      load(column, row.inputs[kernel_row + r] + position * row.input_step);
      sums[r][t] += grad * column;
    }
  }
}

// kRows kernel rows by kTaps taps along the row. kStep 0: any step and dilation.
template <int kRows, int kTaps, int kStep, typename V, typename A>
TORCHGRAFT_INLINE void sum_tile(const Row<A>& row, int64_t kernel_row, int64_t tap) {
  constexpr int kPixels = 4;
  constexpr int kLanes = sizeof(V) / sizeof(A);
  V sums[kRows][kTaps];
  TORCHGRAFT_UNROLL for (int r = 0; r < kRows; ++r) {
    TORCHGRAFT_UNROLL for (int t = 0; t < kTaps; ++t)
        load(sums[r][t], row.sums[kernel_row + r] + (tap + t) * kLanes);
  }
  const int64_t first = row.first_position + tap * row.tap_step;
  int64_t pixel = 0;
  if constexpr (kStep > 0) {
    for (; pixel + kPixels <= row.count; pixel += kPixels) {
      const int64_t begin = first + pixel * kStep;
      if (begin >= 0 && begin + (kPixels - 1) * kStep + kTaps <= row.width) {
        add_pixels<kRows, kTaps, kStep, kPixels, true>(sums, row, kernel_row, pixel, begin);
      } else {
        add_pixels<kRows, kTaps, kStep, kPixels, false>(sums, row, kernel_row, pixel, begin);
      }
    }
  }
  for (; pixel < row.count; ++pixel) add_pixel(sums, row, kernel_row, pixel, first + pixel * row.step);
  TORCHGRAFT_UNROLL for (int r = 0; r < kRows; ++r) {
    TORCHGRAFT_UNROLL for (int t = 0; t < kTaps; ++t)
        store(sums[r][t], row.sums[kernel_row + r] + (tap + t) * kLanes);
  }
}

template <int kRows, int kTaps, int kStep, typename V, typename A>
TORCHGRAFT_INLINE void sum_taps(const Row<A>& row, int64_t tap) {
  int64_t kernel_row = 0;
  for (; kernel_row + kRows <= row.kernel_rows; kernel_row += kRows) {
    sum_tile<kRows, kTaps, kStep, V>(row, kernel_row, tap);
  }
  for (; kernel_row < row.kernel_rows; ++kernel_row) sum_tile<1, kTaps, kStep, V>(row, kernel_row, tap);
}

// Taps in tiles of seven, five, three and one: enough sums in flight to hide the latency of an addition.
template <int kStep, typename V, typename A>
TORCHGRAFT_INLINE void sum_row(const Row<A>& row) {
  int64_t tap = 0;
  for (; tap + 7 <= row.taps; tap += 7) sum_taps<2, 7, kStep, V>(row, tap);
  if (tap + 5 <= row.taps) {
    sum_taps<2, 5, kStep, V>(row, tap);
    tap += 5;
  }
  if (tap + 3 <= row.taps) {
    sum_taps<3, 3, kStep, V>(row, tap);
    tap += 3;
  }
  for (; tap < row.taps; ++tap) sum_taps<4, 1, kStep, V>(row, tap);
}

// Which loop serves which row.
template <int kBytes, typename A>
TORCHGRAFT_INLINE void dispatch_row(const Row<A>& row) {
  using V = Vector<A, kBytes>;
  if (row.tap_step == 1 && row.step == 1) {
    sum_row<1, V>(row);
  } else if (row.tap_step == 1 && row.step == 2) {
    sum_row<2, V>(row);
  } else {
    sum_row<0, V>(row);
  }
}

TORCHGRAFT_VECTOR_CLONES(void run_row(const Row<float>& row), dispatch_row<kVectorBytes>(row);)
TORCHGRAFT_VECTOR_CLONES(void run_row(const Row<double>& row), dispatch_row<kVectorBytes>(row);)

// Rows that one vector of channels goes through before the next has its turn, and bytes of one vector of
// channels of the input that a slice of these rows may meet: L1 holds them.
constexpr int64_t kBand = 16;
constexpr int64_t kSliceBytes = 32 * 1024;

template <typename T>
class ChannelsLast {
 public:
  using A = accumulate_t<T>;

  ChannelsLast(const T* output_grad, const T* input, const Geometry& geometry)
      : output_grad_(output_grad),
        input_(input),
        geometry_(geometry),
        lanes_(vector_bytes() / static_cast<int64_t>(sizeof(A))),
        blocks_(ceil_div(geometry.output_channels(), lanes_)),
        parts_(weight_grad_parts(geometry, blocks_)),
        sums_(parts_ * blocks_ * geometry.taps() * lanes_) {
    const int64_t columns = kSliceBytes / static_cast<int64_t>(sizeof(A)) / lanes_ / geometry.height.kernel;
    slice_ = std::max<int64_t>(columns / geometry.width.stride, 16);
  }

  void run(T* weight_grad) {
    const int64_t lines = geometry_.batch * geometry_.height.output;
    const int64_t work = lines * geometry_.width.output * lanes_ * geometry_.taps() / parts_;
    const int64_t grain = std::max<int64_t>(kWeightGradGrain / std::max<int64_t>(work, 1), 1);
    parallel_for(0, parts_ * blocks_, grain, [&](int64_t begin, int64_t end) {
      Workspace workspace;
      while (begin < end) {
        const int64_t part = begin / blocks_;
        const int64_t part_end = std::min(end, (part + 1) * blocks_);
        sum_part(part, begin - part * blocks_, part_end - part * blocks_, workspace);
        begin = part_end;
      }
    });
    const int64_t taps = geometry_.taps();
    for (int64_t channel = 0; channel < geometry_.output_channels(); ++channel) {
      for (int64_t tap = 0; tap < taps; ++tap) {
        A sum = 0;
        for (int64_t part = 0; part < parts_; ++part) {
          sum += sums_[((part * blocks_ + channel / lanes_) * taps + tap) * lanes_ + channel % lanes_];
        }
        weight_grad[channel * taps + tap] = static_cast<T>(sum);
      }
    }
  }

 private:
  struct Workspace {
    RowCache<A> rows;
    Scratch<A> output_grad;
    std::vector<const A*> inputs;
    std::vector<A*> sums;
    std::vector<int64_t> channels;
  };

  // One part of the rows for some vectors of channels, band by band.
  void sum_part(int64_t part, int64_t first_block, int64_t last_block, Workspace& workspace) {
    const int64_t height = geometry_.height.output;
    const int64_t lines = geometry_.batch * height;
    const int64_t end = lines * (part + 1) / parts_;
    for (int64_t line = lines * part / parts_; line < end;) {
      const int64_t image = line / height;
      const int64_t rows = std::min({kBand, end - line, (image + 1) * height - line});
      for (int64_t block = first_block; block < last_block; ++block) {
        for (int64_t column = 0; column < geometry_.width.output; column += slice_) {
          sum_band(part, block, image, line - image * height, rows, column, workspace);
        }
      }
      line += rows;
    }
  }

  void sum_band(int64_t part, int64_t block, int64_t image, int64_t first_row, int64_t rows,
                int64_t first_column, Workspace& workspace) {
    const Extent& height = geometry_.height;
    const Extent& width = geometry_.width;
    const int64_t channel = block * lanes_;
    const int64_t channels = std::min(lanes_, geometry_.output_channels() - channel);
    const bool direct = std::is_same_v<T, A> && geometry_.multiplier == 1 && channels == lanes_;
    const int64_t count = std::min(slice_, width.output - first_column);

    // What of the input this band meets.
    const int64_t begin = std::clamp<int64_t>(width.position(first_column, 0), 0, width.input);
    const int64_t end = std::clamp<int64_t>(width.position(first_column + count - 1, width.kernel - 1) + 1,
                                            begin, width.input);
    if (!direct) {
      const int64_t rows_begin = std::clamp<int64_t>(height.position(first_row, 0), 0, height.input);
      const int64_t rows_end = std::clamp<int64_t>(
          height.position(first_row + rows - 1, height.kernel - 1) + 1, rows_begin, height.input);
      workspace.rows.reset(rows_begin, rows_end, rows * height.kernel, (end - begin) * lanes_);
    }

    A* sums = sums_.data() + (part * blocks_ + block) * geometry_.taps() * lanes_;
    Row<A> row = {.output_grad = nullptr,
                  .output_grad_step = direct ? geometry_.output_channels() : lanes_,
                  .count = count,
                  .inputs = nullptr,
                  .sums = nullptr,
                  .kernel_rows = 0,
                  .input_step = direct ? geometry_.channels : lanes_,
                  .width = direct ? width.input : end - begin,
                  .first_position = width.position(first_column, 0) - (direct ? 0 : begin),
                  .step = width.stride,
                  .tap_step = width.dilation,
                  .taps = width.kernel};
    for (int64_t output = first_row; output < first_row + rows; ++output) {
      workspace.inputs.clear();
      workspace.sums.clear();
      for (int64_t tap = 0; tap < height.kernel; ++tap) {
        const int64_t position = height.position(output, tap);
        if (position < 0 || position >= height.input) continue;
        workspace.sums.push_back(sums + tap * width.kernel * lanes_);
        const T* input = input_ + (image * height.input + position) * width.input * geometry_.channels;
        if constexpr (std::is_same_v<T, A>) {
          if (direct) {
            workspace.inputs.push_back(input + channel);
            continue;
          }
        }
        workspace.inputs.push_back(workspace.rows.row(position, [&](A* to) {
          gather_input(input + begin * geometry_.channels, channel, channels, to, end - begin, workspace);
        }));
      }
      row.inputs = workspace.inputs.data();
      row.sums = workspace.sums.data();
      row.kernel_rows = workspace.inputs.size();

      const T* output_grad =
          output_grad_ +
          ((image * height.output + output) * width.output + first_column) * geometry_.output_channels() +
          channel;
      if constexpr (std::is_same_v<T, A>) {
        if (direct) row.output_grad = output_grad;
      }
      if (!direct) {
        A* to = workspace.output_grad.reserve(count * lanes_);
        gather_pixels(output_grad, geometry_.output_channels(), channels, to, lanes_, count);
        row.output_grad = to;
      }
      run_row(row);
    }
  }

  // The input channels of one vector of output channels, for some pixels of a row.
  void gather_input(const T* input, int64_t channel, int64_t channels, A* to, int64_t pixels,
                    Workspace& workspace) {
    if (geometry_.multiplier == 1) {
      gather_pixels(input + channel, geometry_.channels, channels, to, lanes_, pixels);
      return;
    }
    workspace.channels.resize(channels);
    for (int64_t c = 0; c < channels; ++c) workspace.channels[c] = (channel + c) / geometry_.multiplier;
    gather_pixels(input, geometry_.channels, workspace.channels.data(), channels, to, lanes_, pixels);
  }

  const T* output_grad_;
  const T* input_;
  const Geometry& geometry_;
  int64_t lanes_;
  int64_t blocks_;  // vectors of output channels
  int64_t parts_;
  int64_t slice_;        // columns of the output gradient
  std::vector<A> sums_;  // [part][block][tap][lane]
};

}  // namespace

template <typename T>
void weight_grad_channels_last(const T* output_grad, const T* input, T* weight_grad,
                               const Geometry& geometry) {
  ChannelsLast<T>(output_grad, input, geometry).run(weight_grad);
}

template void weight_grad_channels_last(const double*, const double*, double*, const Geometry&);
template void weight_grad_channels_last(const float*, const float*, float*, const Geometry&);
template void weight_grad_channels_last(const Half*, const Half*, Half*, const Geometry&);
template void weight_grad_channels_last(const BFloat16*, const BFloat16*, BFloat16*, const Geometry&);

}  // namespace torchgraft::depthwise::cpu
