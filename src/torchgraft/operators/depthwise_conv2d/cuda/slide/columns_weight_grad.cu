// Weight gradient on NHWC images, 3 x 3 taps, stride 1, any dilation: threads slide down columns of both
// images on their own (columns.cuh).
//
// A thread keeps the sums of all nine taps, and the latest three rows of the output gradient, which the next
// row of the input meets; the loop is unrolled over them, so that they need not be moved. A block has some
// channels of all pixels, and takes units of these in turns. In the end its threads' sums are added up
// in order through shared memory and written as one chunk of partial sums for the second pass, or, if there
// is but one chunk, as the gradient itself.
//
// Measured on an H200: (8,336,120x120) with dilation 2 in halves 65 us, gathered 105; float32
// (11,112,96x352) 110 and by slides through shared memory 134. Memory alone takes 38 and 81.
#include "../chunks.cuh"
#include "../kernels.h"

#include <torchgraft/device.cuh>

#include "columns.cuh"

namespace torchgraft::depthwise::cuda {
namespace {

constexpr int kTaps = kColumnTaps;
constexpr int kAllTaps = kTaps * kTaps;

// Blocks of a multiprocessor, for the registers of a thread's sums and rows.
template <typename T, int kCount>
inline constexpr int kGradBlocks = kCount == 4      ? 2
                                   : kCount == 1    ? 5
                                   : sizeof(T) == 4 ? 3
                                                    : 4;

// How a block's threads are dealt: lanes along the channels, of which several blocks have a slice each, and
// so many units at a time.
struct ColumnBlock {
  int lanes, slices, strips;

  int warps() const { return ceil_divide(lanes * strips, 32); }
};

// The widest whose threads almost all have work: slices may differ in length, and warps may not be whole.
inline ColumnBlock column_block(int groups) {
  constexpr int kLeastLanes = 16;  // of several slices: so that a pixel is read in long runs
  constexpr double kGain = 1.03;   // of narrower slices
  ColumnBlock best = {};
  double best_share = 0;
  for (int slices = ceil_divide(groups, kColumnThreads); slices <= groups; ++slices) {
    const int lanes = ceil_divide(groups, slices);
    if (lanes < kLeastLanes && best.lanes > 0) break;
    const ColumnBlock block = {lanes, ceil_divide(groups, lanes), kColumnThreads / lanes};
    const double share = static_cast<double>(groups * block.strips) / (block.slices * block.warps() * 32);
    if (best.lanes == 0 || share > kGain * best_share) {
      best = block;
      best_share = share;
    }
  }
  return best;
}

struct ColumnGradParameters {
  ColumnUnits units;
  int slices;  // of the channels; blockIdx.x counts them fastest
  int chunks;
};

template <typename T, int kCount>
__global__ void __launch_bounds__(kColumnThreads, kGradBlocks<T, kCount>)
    slide_columns_weight_grad(const T* __restrict__ output_grad, const T* __restrict__ input,
                              float* __restrict__ partial, T* __restrict__ weight_grad,
                              const __grid_constant__ ColumnGradParameters parameters) {
  using Sources = ColumnRows<T, kCount, kColumnWindow>;
  using Grads = ColumnRows<T, kCount, kColumnsOfThread>;
  const ColumnUnits& units = parameters.units;
  const int pitch = static_cast<int>(blockDim.x) * kCount;
  const int strips = static_cast<int>(blockDim.y);
  const int strip = static_cast<int>(threadIdx.y);
  const int chunk = static_cast<int>(blockIdx.x) / parameters.slices;
  const int block_channel = (static_cast<int>(blockIdx.x) - chunk * parameters.slices) * pitch;
  const int own_channel = static_cast<int>(threadIdx.x) * kCount;
  const int channel = block_channel + own_channel;

  float sums[kTaps][kTaps][kCount] = {};
  const int end = channel < units.channels ? units.count : 0;
#pragma unroll 1
  for (int index = chunk * strips + strip; index < end; index += parameters.chunks * strips) {
    const ColumnUnit unit(units, index);
    Sources sources(input + channel, units, unit.image, units.height.source, units.width.source,
                    unit.result_y - units.height.padding, unit.result_x - units.width.padding,
                    unit.rows + kTaps - 1);
    Grads grads(output_grad + channel, units, unit.image, units.height.result, units.width.result,
                unit.result_y, unit.result_x, unit.rows);
    typename Sources::Row source_rows[kTaps];
    typename Grads::Row grad_rows[kTaps];
#pragma unroll
    for (int i = 0; i < kTaps; ++i) {
      grads.load(grad_rows[i]);
      sources.load(source_rows[i]);
    }
    const bool has_all_columns = grads.has_all_columns();

    float held[kTaps][kColumnsOfThread][kCount];
    int step = 0;
    const int steps = unit.rows == 0 ? 0 : unit.rows + kTaps - 1;
    const auto take_step = [&](auto turn) {
#pragma unroll
      for (int i = 0; i < kColumnsOfThread; ++i) widen<T>(grad_rows[turn].pieces[i].elements, held[turn][i]);
      float window[kColumnWindow][kCount];
#pragma unroll
      for (int j = 0; j < kColumnWindow; ++j) widen<T>(source_rows[turn].pieces[j].elements, window[j]);
      grads.load(grad_rows[turn]);
      sources.load(source_rows[turn]);
      // A row of another range, or a column that is not there, is left out: a source may be infinite.
      const auto multiply = [&](auto all) {
#pragma unroll
        for (int i = 0; i < kTaps; ++i) {
          if (!all && !is_inside(step - i, unit.rows)) continue;
#pragma unroll
          for (int column = 0; column < kColumnsOfThread; ++column) {
            if (!all && !grads.has_column(column)) continue;
#pragma unroll
            for (int tap = 0; tap < kTaps; ++tap) {
#pragma unroll
              for (int k = 0; k < kCount; ++k) {
                sums[i][tap][k] += held[(turn + kTaps - i) % kTaps][column][k] * window[column + tap][k];
              }
            }
          }
        }
      };
      if (has_all_columns && step >= kTaps - 1 && step < unit.rows) {
        multiply(std::true_type{});
      } else {
        multiply(std::false_type{});
      }
      ++step;
    };
#pragma unroll 1
    while (step < steps) with_phases<kTaps>([&] { return step < steps; }, take_step);
  }

  // [tap][strip][channel of the block]
  float* shared = shared_memory<float>();
#pragma unroll
  for (int tap = 0; tap < kAllTaps; ++tap) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      shared[(tap * strips + strip) * pitch + own_channel + k] = sums[tap / kTaps][tap % kTaps][k];
    }
  }
  __syncthreads();
  const int weights = min(pitch, units.channels - block_channel) * kAllTaps;
  const int64_t all_weights = static_cast<int64_t>(units.channels) * kAllTaps;
  for (int i = strip * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x); i < weights;
       i += static_cast<int>(blockDim.x) * strips) {
    const int of_channel = i / kAllTaps;
    const int tap = i - of_channel * kAllTaps;
    const float sum = sum_in_order(shared + tap * strips * pitch + of_channel, strips, pitch);
    const int64_t index = static_cast<int64_t>(block_channel) * kAllTaps + i;
    if (weight_grad != nullptr) {
      weight_grad[index] = static_cast<T>(sum);
    } else {
      partial[chunk * all_weights + index] = sum;
    }
  }
}

}  // namespace

template <typename T>
void launch_slide_columns_weight_grad(const WeightGrad<T>& pass) {
  const auto& [output_grad, input, weight_grad, workspace, geometry, layout, stream] = pass;
  const auto launch = [&](auto count) {
    const ColumnBlock block = column_block(static_cast<int>(geometry.channels / count));
    const auto [lanes, slices, strips] = block;
    const int blocks = kGradBlocks<T, count> * (kColumnThreads / 32) / block.warps();
    const int64_t resident = int64_t{current_device().multiprocessors} * blocks;
    const int64_t most =
        std::clamp<int64_t>(resident / slices, 1, most_chunks(geometry, Layout::channels_last));
    const ColumnUnits units(geometry, /*transposed=*/false, most * strips);
    const int chunks = static_cast<int>(std::min<int64_t>(most, ceil_divide(units.count, strips)));
    slide_columns_weight_grad<T, count><<<grid_of(int64_t{chunks} * slices, pass.kName), dim3(lanes, strips),
                                          sizeof(float) * kAllTaps * count * lanes * strips, stream>>>(
        output_grad, input, weight_grad.partials(chunks, workspace), weight_grad.direct(chunks),
        ColumnGradParameters{units, slices, chunks});
    check_launch(pass.kName);
    if (chunks > 1) launch_sum_chunks(workspace, weight_grad, geometry, chunks, stream);
  };
  with_column_channels<T>(geometry.channels, common_alignment(output_grad, input), launch);
}

template void launch_slide_columns_weight_grad(const WeightGrad<float>&);
template void launch_slide_columns_weight_grad(const WeightGrad<Half>&);
template void launch_slide_columns_weight_grad(const WeightGrad<BFloat16>&);

}  // namespace torchgraft::depthwise::cuda
