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

struct SlideColumnsWeightGradParameters {
  ColumnUnits units;
  int slices;  // of the channels; blockIdx.x counts them fastest
  int chunks;
};

// A thread's channels, in all units that it takes.
template <typename T, int kCount>
class SlideColumnsWeightGrad {
  using Sources = ColumnRows<T, kCount, kColumnWindow>;
  using Grads = ColumnRows<T, kCount, kColumnsOfThread>;

 public:
  __device__ __forceinline__ explicit SlideColumnsWeightGrad(
      const SlideColumnsWeightGradParameters& parameters)
      : parameters_(parameters), units_(parameters.units) {
    pitch_ = static_cast<int>(blockDim.x) * kCount;
    strips_ = static_cast<int>(blockDim.y);
    strip_ = static_cast<int>(threadIdx.y);
    chunk_ = static_cast<int>(blockIdx.x) / parameters.slices;
    block_channel_ = (static_cast<int>(blockIdx.x) - chunk_ * parameters.slices) * pitch_;
    own_channel_ = static_cast<int>(threadIdx.x) * kCount;
  }

  __device__ __forceinline__ void run(const T* output_grad, const T* input, float* partial, T* weight_grad) {
    const int channel = block_channel_ + own_channel_;
    const int end = channel < units_.channels ? units_.count : 0;
#pragma unroll 1
    for (int index = chunk_ * strips_ + strip_; index < end; index += parameters_.chunks * strips_) {
      const ColumnUnit unit(units_, index);
      Sources sources(input + channel, units_, unit.image, units_.height.source, units_.width.source,
                      unit.result_y - units_.height.padding, unit.result_x - units_.width.padding,
                      unit.rows + kTaps - 1);
      Grads grads(output_grad + channel, units_, unit.image, units_.height.result, units_.width.result,
                  unit.result_y, unit.result_x, unit.rows);
      take_unit(unit.rows, sources, grads);
    }
    share_sums();
    __syncthreads();
    add_up_strips(partial, weight_grad);
  }

 private:
  // The rows of a unit that are held, or under way.
  struct Held {
    typename Sources::Row source_rows[kTaps];
    typename Grads::Row grad_rows[kTaps];
    float grads[kTaps][kColumnsOfThread][kCount];
  };

  // Adds the products of a unit of so many rows of the output gradient.
  __device__ __forceinline__ void take_unit(int rows, Sources& sources, Grads& grads) {
    Held held;
#pragma unroll
    for (int i = 0; i < kTaps; ++i) {
      grads.load(held.grad_rows[i]);
      sources.load(held.source_rows[i]);
    }
    const bool has_all_columns = grads.has_all_columns();
    int step = 0;
    const int steps = rows == 0 ? 0 : rows + kTaps - 1;
    const auto take_step = [&](auto turn) {
#pragma unroll
      for (int i = 0; i < kColumnsOfThread; ++i) {
        widen<T>(held.grad_rows[turn].pieces[i].elements, held.grads[turn][i]);
      }
      float window[kColumnWindow][kCount];
#pragma unroll
      for (int j = 0; j < kColumnWindow; ++j) {
        widen<T>(held.source_rows[turn].pieces[j].elements, window[j]);
      }
      grads.load(held.grad_rows[turn]);
      sources.load(held.source_rows[turn]);
      if (has_all_columns && step >= kTaps - 1 && step < rows) {
        multiply<turn, true>(held, window, grads, step, rows);
      } else {
        multiply<turn, false>(held, window, grads, step, rows);
      }
      ++step;
    };
#pragma unroll 1
    while (step < steps) with_phases<kTaps>([&] { return step < steps; }, take_step);
  }

  // Multiplies a row of the input with the three rows of the output gradient that it meets. Without kAll it
  // leaves out a row of another range, or a column that is not there: a source may be infinite.
  template <int kTurn, bool kAll>
  __device__ __forceinline__ void multiply(const Held& held, const float (&window)[kColumnWindow][kCount],
                                           const Grads& grads, int step, int rows) {
#pragma unroll
    for (int i = 0; i < kTaps; ++i) {
      if (!kAll && !is_inside(step - i, rows)) continue;
#pragma unroll
      for (int column = 0; column < kColumnsOfThread; ++column) {
        if (!kAll && !grads.has_column(column)) continue;
#pragma unroll
        for (int tap = 0; tap < kTaps; ++tap) {
#pragma unroll
          for (int k = 0; k < kCount; ++k) {
            sums_[i][tap][k] += held.grads[(kTurn + kTaps - i) % kTaps][column][k] * window[column + tap][k];
          }
        }
      }
    }
  }

  // Writes the thread's sums to shared memory, as [tap][strip][channel of the block].
  __device__ __forceinline__ void share_sums() const {
    float* shared = shared_memory<float>();
#pragma unroll
    for (int tap = 0; tap < kAllTaps; ++tap) {
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        shared[(tap * strips_ + strip_) * pitch_ + own_channel_ + k] = sums_[tap / kTaps][tap % kTaps][k];
      }
    }
  }

  // Adds up the strips of the block, in order: a chunk of partial sums, or the gradient itself.
  __device__ __forceinline__ void add_up_strips(float* partial, T* weight_grad) const {
    const float* shared = shared_memory<float>();
    const int weights = min(pitch_, units_.channels - block_channel_) * kAllTaps;
    const int64_t all_weights = static_cast<int64_t>(units_.channels) * kAllTaps;
    for (int i = strip_ * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x); i < weights;
         i += static_cast<int>(blockDim.x) * strips_) {
      const int of_channel = i / kAllTaps;
      const int tap = i - of_channel * kAllTaps;
      const float sum = sum_in_order(shared + tap * strips_ * pitch_ + of_channel, strips_, pitch_);
      const int64_t index = static_cast<int64_t>(block_channel_) * kAllTaps + i;
      if (weight_grad != nullptr) {
        weight_grad[index] = static_cast<T>(sum);
      } else {
        partial[chunk_ * all_weights + index] = sum;
      }
    }
  }

  const SlideColumnsWeightGradParameters& parameters_;
  const ColumnUnits& units_;
  int pitch_, strips_;               // channels and strips of the block
  int strip_, chunk_;                // the thread's, and the block's
  int block_channel_, own_channel_;  // the block's first, and the thread's in the block
  float sums_[kTaps][kTaps][kCount] = {};
};

template <typename T, int kCount>
__global__ void __launch_bounds__(kColumnThreads, kGradBlocks<T, kCount>)
    slide_columns_weight_grad(const T* __restrict__ output_grad, const T* __restrict__ input,
                              float* __restrict__ partial, T* __restrict__ weight_grad,
                              const __grid_constant__ SlideColumnsWeightGradParameters parameters) {
  SlideColumnsWeightGrad<T, kCount>(parameters).run(output_grad, input, partial, weight_grad);
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
        SlideColumnsWeightGradParameters{units, slices, chunks});
    check_launch(pass.kName);
    if (chunks > 1) launch_sum_chunks(workspace, weight_grad, geometry, chunks, stream);
  };
  with_column_channels<T>(geometry.channels, common_alignment(output_grad, input), launch);
}

template void launch_slide_columns_weight_grad(const WeightGrad<float>&);
template void launch_slide_columns_weight_grad(const WeightGrad<Half>&);
template void launch_slide_columns_weight_grad(const WeightGrad<BFloat16>&);

}  // namespace torchgraft::depthwise::cuda
