// Weight gradient on CPU: one sum over the whole batch for each channel and tap. The lanes of a vector are
// channels, so a sum over pixels is a sum of vectors. See rows.h for how either layout comes to lie so.
//
// A thread owns some vectors of channels and a part of the batch's rows, and takes a band of rows through one
// vector of channels at a time, or where few taps leave memory to wait for, a row through all of them. Two
// kernel rows by up to seven taps of sums stay in registers along a row of the output gradient; a column of
// the input is loaded once a kernel row and serves every pair of a pixel and a tap that meet there. Both
// images come from memory once a band; between rows the totals lie in L1. On two cores with AVX-512, float32,
// k = 7: 70 to 160 GFLOP/s, 7 to 50 times PyTorch; k = 3, bound by memory, 1.1 to 6 times.
//
// How the batch is cut depends on sizes alone, never on the number of threads, and its parts are added in
// order: so the result is the same bit for bit however many threads there are.

#include <torchgraft/cpu.h>
#include <torchgraft/dispatch.h>

#include <algorithm>
#include <type_traits>
#include <vector>

#include "blocks.h"
#include "kernels.h"
#include "weight_grad_row.h"

namespace torchgraft::depthwise::cpu {
namespace {

// Bytes of the input that a band may span, so that it stays in L2 while it is worked on; and those that the
// rows of one vector of channels may that a row of the output gradient meets, so that they stay in L1.
constexpr int64_t kBandBytes = 256 * 1024;
constexpr int64_t kSliceBytes = 32 * 1024;
// Units of work that there should be, whatever the number of threads; pixels that are worth a unit;
// multiply-adds that are worth a thread.
constexpr int64_t kUnits = 64;
constexpr int64_t kLeastPixels = 1024;
constexpr int64_t kGrain = 1 << 18;
// Pixels that a strip sums at most, unless a row has more: a sum of more is less exact.
constexpr int64_t kStripPixels = 64;
// Columns of a row that are summed at a time, for the same reason: those of sequences are long.
constexpr int64_t kSliceColumns = 128;

template <typename T>
class WeightGrad {
 public:
  using A = accumulate_t<T>;

  WeightGrad(const T* output_grad, const T* input, const Geometry& geometry, Layout layout)
      : output_grad_(output_grad),
        input_(input),
        geometry_(geometry),
        blocks_(make_blocks<T>(layout, geometry.channels, geometry.output_channels(), geometry.batch)) {
    const bool direct = blocks_.are_direct<T>(geometry.multiplier);
    vectors_ = direct && geometry.taps() <= kFewTaps ? blocks_.count : 1;
    const int64_t row_bytes = geometry.width.input * blocks_.lanes * static_cast<int64_t>(sizeof(A));
    const int64_t slices = std::clamp<int64_t>(
        std::max(ceil_divide(row_bytes * geometry.depth.kernel * geometry.height.kernel, kSliceBytes),
                 ceil_divide(geometry.width.output, kSliceColumns)),
        1, ceil_divide(geometry.width.output, 32));
    slice_ = ceil_divide(geometry.width.output, slices);
    // Lines of memory hold channels of several vectors: all of them.
    const int64_t line_bytes =
        blocks_.layout == Layout::channels_last && geometry.multiplier == 1
            ? geometry.width.input * geometry.channels * static_cast<int64_t>(sizeof(T))
            : row_bytes / slices;
    const int64_t bands = std::clamp<int64_t>(ceil_divide(geometry.height.input * line_bytes, kBandBytes), 1,
                                              ceil_divide(geometry.height.output, 4));
    band_ = ceil_divide(geometry.height.output, bands);

    const int64_t lines =
        ceil_divide(geometry.batch, blocks_.fold) * geometry.depth.output * geometry.height.output;
    parts_ = std::clamp<int64_t>(
        std::min(ceil_divide(kUnits, blocks_.count), lines * geometry.width.output / kLeastPixels), 1,
        std::max<int64_t>(lines, 1));
    sums_.resize(parts_ * blocks_.count * geometry.taps() * blocks_.lanes);
  }

  template <typename R>
  void run(R* weight_grad) {
    const int64_t pixels = geometry_.batch * geometry_.output_pixels() / blocks_.fold / parts_;
    const int64_t work = std::max<int64_t>(pixels * blocks_.lanes * geometry_.taps(), 1);
    parallel_for(
        0, parts_ * blocks_.count, std::max<int64_t>(kGrain / work, 1), [&](int64_t begin, int64_t end) {
          Workspace workspace;
          while (begin < end) {
            const int64_t part = begin / blocks_.count;
            const int64_t part_end = std::min(end, (part + 1) * blocks_.count);
            sum_part(part, {begin - part * blocks_.count, part_end - part * blocks_.count}, workspace);
            begin = part_end;
          }
        });
    parallel_for(0, geometry_.output_channels(), std::max<int64_t>(kGrain / (parts_ * geometry_.taps()), 1),
                 [&](int64_t begin, int64_t end) { add_parts(weight_grad, {begin, end}); });
  }

 private:
  struct Workspace {
    std::vector<Rows<const T>> inputs;  // the planes that the kernel's meet, which are
    std::vector<int64_t> input_planes;
    std::vector<int64_t> kernel_planes;
    Rows<const T> output_grad;
    std::vector<const A*> input_rows;
    std::vector<const A*> output_grad_rows;
    std::vector<A*> sum_rows;
    std::vector<WeightGradRow<A>> lines;  // what one row of the output gradient is cut into
  };

  A* block_sums(int64_t part, int64_t block) {
    return sums_.data() + (part * blocks_.count + block) * geometry_.taps() * blocks_.lanes;
  }

  // One part of the rows for some vectors of channels, band by band.
  void sum_part(int64_t part, Range blocks, Workspace& workspace) {
    const int64_t height = geometry_.height.output;
    const int64_t depth = geometry_.depth.output;
    const int64_t lines = ceil_divide(geometry_.batch, blocks_.fold) * depth * height;
    const int64_t end = lines * (part + 1) / parts_;
    for (int64_t line = lines * part / parts_; line < end;) {
      const int64_t plane = line / height;  // of all images
      const int64_t image = plane / depth;
      const int64_t last = std::min({line + band_, end, (plane + 1) * height});
      for (int64_t block = blocks.begin; block < blocks.end;) {
        const int64_t vectors = blocks_.together(block, blocks.end, vectors_, /*may_overlap=*/true);
        for (int64_t column = 0; column < geometry_.width.output; column += slice_) {
          sum_band(part, block, vectors, image * blocks_.fold, plane - image * depth,
                   {line - plane * height, last - plane * height},
                   {column, std::min(column + slice_, geometry_.width.output)}, workspace);
        }
        block += vectors;
      }
      line = last;
    }
  }

  static Range input_range(const Extent& extent, Range outputs) {
    return Range{extent.position(outputs.begin, 0), extent.position(outputs.end - 1, extent.kernel - 1) + 1}
        .clipped(extent.input);
  }

  // Brings in the rows of the planes of the input that a plane of the output gradient meets.
  void open_inputs(int64_t block, int64_t image, int64_t plane, Range rows, Range columns,
                   Workspace& workspace) {
    const Extent& depth = geometry_.depth;
    const Extent& height = geometry_.height;
    workspace.input_planes.clear();
    workspace.kernel_planes.clear();
    for (int64_t tap = 0; tap < depth.kernel; ++tap) {
      const int64_t met = depth.position(plane, tap);
      if (met < 0 || met >= depth.input) continue;
      workspace.input_planes.push_back(met);
      workspace.kernel_planes.push_back(tap);
    }
    if (workspace.inputs.size() < workspace.input_planes.size()) {
      workspace.inputs.resize(workspace.input_planes.size());
    }
    for (size_t i = 0; i < workspace.input_planes.size(); ++i) {
      workspace.inputs[i].open(
          blocks_.channels_of(block, input_, image, geometry_.channels, geometry_.input_pixels(),
                              [&](int64_t channel) { return input_channel(channel, geometry_.multiplier); }),
          blocks_.block_lanes(), geometry_.width.input,
          input_range(height, rows).shifted(workspace.input_planes[i] * height.input),
          input_range(geometry_.width, columns), rows.size() * height.kernel);
    }
  }

  void sum_band(int64_t part, int64_t block, int64_t vectors, int64_t image, int64_t plane, Range rows,
                Range columns, Workspace& workspace) {
    const Extent& height = geometry_.height;
    const Extent& width = geometry_.width;
    const int64_t lanes = blocks_.block_lanes();
    open_inputs(block, image, plane, rows, columns, workspace);
    if (workspace.input_planes.empty()) return;
    const int64_t first_row = plane * height.output;
    workspace.output_grad.open(
        blocks_.channels_of(block, output_grad_, image, geometry_.output_channels(),
                            geometry_.output_pixels(), [](int64_t channel) { return channel; }),
        lanes, width.output, rows.shifted(first_row), columns, rows.size());
    plan_lines(workspace, lanes, block, vectors, columns);
    A* sums = block_sums(part, block);
    const bool in_strips = are_strips(workspace);
    const int64_t most_rows = in_strips ? std::max<int64_t>(kStripPixels / columns.size(), 1) : 1;
    for (int64_t row = rows.begin; row < rows.end; row += most_rows) {
      const int64_t strip_rows = std::min(most_rows, rows.end - row);
      workspace.input_rows.clear();
      workspace.output_grad_rows.clear();
      workspace.sum_rows.clear();
      for (int64_t r = row; r < row + strip_rows; ++r) {
        workspace.output_grad_rows.push_back(workspace.output_grad.row(first_row + r));
        for (size_t i = 0; i < workspace.input_planes.size(); ++i) {
          const int64_t first_input_row = workspace.input_planes[i] * height.input;
          for (int64_t tap = 0; tap < height.kernel; ++tap) {
            const A* const input_row =
                workspace.inputs[i].row_or_null(first_input_row + height.position(r, tap));
            if (input_row == nullptr && !in_strips) continue;
            workspace.input_rows.push_back(input_row);
            workspace.sum_rows.push_back(sums + (workspace.kernel_planes[i] * height.kernel + tap) *
                                                    width.kernel * lanes);
          }
        }
      }
      for (WeightGradRow<A>& line : workspace.lines) {
        line.output_grads = workspace.output_grad_rows.data();
        line.inputs = workspace.input_rows.data();
        line.sums = workspace.sum_rows.data();
        line.kernel_rows = workspace.input_rows.size();
        line.strip_rows = in_strips ? strip_rows : 0;
        sum_weight_grad_row(line);
      }
    }
  }

  bool are_strips(const Workspace& workspace) const {
    return std::is_same_v<A, float> && geometry_.depth.kernel == 1 && geometry_.height.kernel == 3 &&
           std::all_of(workspace.lines.begin(), workspace.lines.end(), [](const WeightGradRow<A>& line) {
             return line.taps == 3 && line.tap_step == 1 && line.step <= 2;
           });
  }

  void plan_lines(Workspace& workspace, int64_t lanes, int64_t block, int64_t vectors, Range columns) const {
    const Extent& width = geometry_.width;
    const Rows<const T>& input = workspace.inputs[0];
    const int64_t output_grad_step = workspace.output_grad.column_step();
    const Remainders remainders(width.stride, width.dilation, width.kernel, columns.size());
    workspace.lines.clear();
    for (int64_t part = 0; part < remainders.parts; ++part) {
      const int64_t position = width.position(columns.begin + part, 0) - input.first_column();
      const int64_t skipped = remainders.skipped(position);
      workspace.lines.push_back(
          {.output_grad_offset =
               (columns.begin + part - workspace.output_grad.first_column()) * output_grad_step,
           .output_grad_step = remainders.parts * output_grad_step,
           .count = ceil_divide(columns.size() - part, remainders.parts),
           .lanes = lanes,
           .vectors = vectors,
           .places = {lanes, blocks_.begin(block + vectors - 1) - blocks_.begin(block)},
           .vector_step = geometry_.taps() * blocks_.lanes,
           .input_offset = skipped * input.column_step(),
           .input_step = remainders.stretch * input.column_step(),
           .width = ceil_divide(input.width() - skipped, remainders.stretch),
           .first_position = floor_divide(position, remainders.stretch),
           .step = remainders.parts * width.stride / remainders.stretch,
           .tap_step = width.dilation / remainders.stretch,
           .taps = width.kernel});
    }
  }

  template <typename R>
  void add_parts(R* weight_grad, Range channels) {
    const int64_t taps = geometry_.taps();
    for (int64_t channel = channels.begin; channel < channels.end; ++channel) {
      for (int64_t tap = 0; tap < taps; ++tap) {
        A sum = 0;
        for (int64_t part = 0; part < parts_; ++part) {
          for (int64_t lane = channel; lane < blocks_.channels; lane += geometry_.output_channels()) {
            const int64_t block = lane / blocks_.lanes;
            sum += block_sums(part, block)[tap * blocks_.block_lanes() + lane - blocks_.begin(block)];
          }
        }
        weight_grad[channel * taps + tap] = static_cast<R>(sum);
      }
    }
  }

  const T* output_grad_;
  const T* input_;
  const Geometry& geometry_;
  const Blocks blocks_;
  int64_t vectors_;      // that a row of the output gradient takes along
  int64_t band_;         // rows of the output gradient
  int64_t slice_;        // columns of the output gradient
  int64_t parts_;        // that the rows of the batch are cut into
  std::vector<A> sums_;  // [part][block][tap][lane]
};

}  // namespace

template <typename T, typename R>
void weight_grad(const T* output_grad, const T* input, R* weight_grad, const Geometry& geometry,
                 Layout layout) {
  WeightGrad<T>(output_grad, input, geometry, layout).run(weight_grad);
}

template void weight_grad(const double*, const double*, double*, const Geometry&, Layout);
template void weight_grad(const float*, const float*, float*, const Geometry&, Layout);
template void weight_grad(const Half*, const Half*, Half*, const Geometry&, Layout);
template void weight_grad(const BFloat16*, const BFloat16*, BFloat16*, const Geometry&, Layout);
template void weight_grad(const Half*, const Half*, float*, const Geometry&, Layout);
template void weight_grad(const BFloat16*, const BFloat16*, float*, const Geometry&, Layout);

}  // namespace torchgraft::depthwise::cpu
