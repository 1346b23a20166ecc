// The kernel gather_large: any kernel whose weights of a block's channels fit shared memory. They lie there
// as [phase of the row][row][phase of the column][column][channel]. A thread owns one result at a time, of
// one channel or of four; 3 x 3 or 3 x 5 taps of it have their loads in flight together. In NCHW a block owns
// one channel. Bound by instructions, some six a tap, and in NHWC by two accesses to L1 a tap.
#pragma once

#include "../stencil.cuh"
#include "axis.cuh"

namespace torchgraft::depthwise::cuda {

template <typename T, int kCount>
__device__ void load_channels(const T* pointer, accumulate_t<T> (&values)[kCount]) {
  const Vector<T, kCount> vector = *reinterpret_cast<const Vector<T, kCount>*>(pointer);
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = static_cast<accumulate_t<T>>(vector[i]);
}

// One thread: one result at a time, of one channel or of kCount neighbouring ones. Arrays of a thread are
// local variables of its methods: while a loop over one is not unrolled, the compiler keeps the whole object
// that holds it in memory.
template <typename T, int kCount, int kColumns, bool kChannelsLast>
class GatherLarge {
 public:
  using Accumulate = accumulate_t<T>;
  using Sums = Accumulate[kCount];

  __device__ explicit GatherLarge(const GatherParameters& parameters) : parameters_(parameters) {
    lanes_ = kChannelsLast ? static_cast<int>(blockDim.x) : 1;
    rows_of_block_ = static_cast<int>(blockDim.y);
    lane_ = kChannelsLast ? static_cast<int>(threadIdx.x) : 0;
    int slice = static_cast<int>(blockIdx.x);
    stretch_ = split(slice, parameters.slices);
    pitch_ = lanes_ * kCount;
    block_channel_ = slice * pitch_;
    channel_ = block_channel_ + lane_ * kCount;
    shared_weight_ = shared_memory<Accumulate>();
  }

  __device__ void run(const T* source, const Rounded<T>& weight, const Rounded<T>& bias, T* result) const {
    for (int turn = 0; turn < parameters_.turns; ++turn) {
      const int index =
          (stretch_ * parameters_.turns + turn) * rows_of_block_ + static_cast<int>(threadIdx.y);
      const bool active = index < parameters_.count && channel_ < parameters_.channels.divisor();
      int x = active ? index : 0;
      int y = split(x, parameters_.columns);
      const int image = split(y, parameters_.rows);
      const GatherTaps rows = gather_taps(parameters_.height, y);
      const GatherTaps columns = gather_taps(parameters_.width, x);

      Sums sums;
      bias.widen(active, channel_, sums);
      const int source_channel = parameters_.results_of_source.divide(channel_) * parameters_.summed;
      const T* channel_source = source + static_cast<int64_t>(image) * parameters_.source.image +
                                static_cast<int64_t>(source_channel) * parameters_.source.channel;
      const Accumulate* first_weight = shared_weight_ +
                                       (rows.phase * parameters_.height.taps * parameters_.weight_taps +
                                        columns.phase * parameters_.width.taps) *
                                           pitch_ +
                                       lane_ * kCount;
      for (int summed = 0; summed < parameters_.summed;
           ++summed, channel_source += parameters_.source.channel) {
        // Where several source channels are summed there is one turn only.
        if (turn == 0) load_weights(weight, summed);
        if (active) add_taps(kept(channel_source), first_weight, rows, columns, sums);
      }
      if (!active) continue;
      Vector<T, kCount> vector;
#pragma unroll
      for (int k = 0; k < kCount; ++k) vector[k] = static_cast<T>(sums[k]);
      T* channel_result = result + static_cast<int64_t>(image) * parameters_.result.image +
                          static_cast<int64_t>(channel_) * parameters_.result.channel;
      *reinterpret_cast<Vector<T, kCount>*>(
          channel_result + (y * parameters_.result.row + x * parameters_.result.pixel)) = vector;
    }
  }

 private:
  // Brings the weights of the block's channels to shared memory, for one source channel of each.
  __device__ void load_weights(const Rounded<T>& weight, int summed) const {
    const GatherAxis& height = parameters_.height;
    const GatherAxis& width = parameters_.width;
    const int block_channels = min(pitch_, parameters_.channels.divisor() - block_channel_);
    const int thread = static_cast<int>(threadIdx.y) * lanes_ + lane_;
    __syncthreads();
    const int count = block_channels * parameters_.kernel_taps.divisor();
    weight.with_numbers([&](const auto* numbers) {
      for (int i = thread; i < count; i += lanes_ * rows_of_block_) {
        int column = i;
        const int block_lane = split(column, parameters_.kernel_taps);
        const int64_t first =
            (static_cast<int64_t>(block_channel_ + block_lane) * parameters_.summed + summed) *
            parameters_.kernel_taps.divisor();
        const T tap = read_rounded<T>(numbers + first + column);
        int row_phase = split(column, parameters_.kernel_width);
        const int row = split(row_phase, height.period);
        int column_phase = column;
        const int phase_column = split(column_phase, width.period);
        shared_weight_[((row_phase * height.taps + row) * parameters_.weight_taps +
                        column_phase * width.taps + phase_column) *
                           pitch_ +
                       block_lane] = static_cast<Accumulate>(tap);
      }
    });
    __syncthreads();
  }

  // Adds the products of all taps of a result with one source channel, kColumns columns of taps at a time.
  __device__ void add_taps(const T* source, const Accumulate* first_weight, const GatherTaps& rows,
                           const GatherTaps& columns, Sums& sums) const {
    const GatherAxis& width = parameters_.width;
#pragma unroll 1
    for (int first = 0; first < width.taps; first += kColumns) {
      bool is_column[kColumns];
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        is_column[j] = first + j >= columns.begin && first + j < columns.end;
      }
      const int offset = rows.source * parameters_.source.row +
                         (columns.source + first * width.step) * parameters_.source.pixel;
      const Accumulate* group_weight = kept_shared(first_weight + first * pitch_);
      // Three rows of three columns are in flight together, or two of more.
#pragma unroll(kColumns == 3 ? 3 : 2)
      for (int i = rows.begin; i < rows.end; ++i) {
        const Accumulate* row_weight = group_weight + i * (parameters_.weight_taps * pitch_);
        const int row_offset = offset + i * parameters_.row_step;
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
          if (!is_column[j]) continue;
          Accumulate taps[kCount], values[kCount];
          load_channels(row_weight + j * pitch_, taps);
          load_channels(source + (row_offset + j * parameters_.column_step), values);
#pragma unroll
          for (int k = 0; k < kCount; ++k) sums[k] += taps[k] * values[k];
        }
      }
    }
  }

  const GatherParameters& parameters_;
  int lanes_, lane_;  // along channels
  int rows_of_block_;
  int stretch_;  // of results, by number
  int pitch_;    // channels of the block, in shared memory
  int block_channel_, channel_;
  Accumulate* shared_weight_;
};

template <typename T, int kCount, int kColumns, bool kChannelsLast>
__global__ void __launch_bounds__(kGatherThreads, 2)
    gather_large(const T* __restrict__ source, Rounded<T> weight, Rounded<T> bias, T* __restrict__ result,
                 const __grid_constant__ GatherParameters parameters) {
  GatherLarge<T, kCount, kColumns, kChannelsLast>(parameters).run(source, weight, bias, result);
}

}  // namespace torchgraft::depthwise::cuda
