// Rows with a stride up to eight or with a dilation: forward pass and input gradient.
//
// A block owns a tile, a part of one long row or several short rows, and stages its sources and the weights
// of its rows in shared memory. Neighbouring lanes own neighbouring results, so that with a
// dilation they read neighbouring sources. A thread has four results at a time, which share each weight. An
// input gradient with a stride takes only the taps that meet a source, every stride-th from result to result.

#include "../problem.cuh"
#include "rows.cuh"

namespace torchgraft::depthwise::cuda {
namespace {

template <typename T>
struct SpreadPass {
  Rows<T> source;
  Rounded<T> weight, bias;
  T* result;
  PassAxis axis;
  int step;  // sources between results; of an input gradient with a stride, results between sources
  int dilation;
  bool reversed;  // the taps of a weight
  RowsSpreadPlan plan;
  FastDivisor channels, segments, staged, weights, steps;
};

template <typename T, bool kGathers>
class SpreadBlock {
 public:
  __device__ explicit SpreadBlock(const SpreadPass<T>& pass)
      : pass_(pass),
        sources_(shared_memory<T>()),
        weights_(reinterpret_cast<float*>(sources_ + pass.plan.rows * pass.plan.pitch)) {
    const int tile = static_cast<int>(blockIdx.x);
    const int group = pass.segments.divide(tile);
    first_row_ = group * pass.plan.rows;
    first_result_ = (tile - group * pass.segments.divisor()) * pass.plan.results;
    rows_ = min(pass.plan.rows, static_cast<int>(pass.source.count) - first_row_);
  }

  __device__ void run() {
    constexpr int kBatch = 3;
    stage_rows<1, kBatch>(
        sources_, rows_, pass_.staged, pass_.source,
        [&](int row) -> RowPart { return {first_row_ + row, first_source()}; }, [&] { load_weights(); });
    __syncthreads();
    const int lanes = pass_.plan.lanes;
    const int row = static_cast<int>(threadIdx.x) / lanes, lane = static_cast<int>(threadIdx.x) - row * lanes;
    if (row >= rows_) return;
    const int end = min(pass_.plan.results, pass_.axis.result - first_result_);
    const float bias = pass_.bias.exists() ? pass_.bias[channel_of(row)] : 0.0f;
    T* result = pass_.result + static_cast<int64_t>(first_row_ + row) * pass_.axis.result + first_result_;
    for (int first = lane; first < end; first += kSpreadOutputs * lanes) {
      float sums[kSpreadOutputs];
#pragma unroll
      for (int i = 0; i < kSpreadOutputs; ++i) sums[i] = bias;
      add_taps(sums, row, first, end);
#pragma unroll
      for (int i = 0; i < kSpreadOutputs; ++i) {
        if (first + i * lanes < end) result[first + i * lanes] = static_cast<T>(sums[i]);
      }
    }
  }

 private:
  __device__ int channel_of(int row) const {
    const int index = first_row_ + row;
    return index - pass_.channels.divide(index) * pass_.channels.divisor();
  }
  // Where staged sources begin. The first result of a gathering tile reads back from there.
  __device__ int first_source() const {
    if constexpr (kGathers) {
      return pass_.steps.divide(first_result_ + pass_.axis.padding) -
             pass_.steps.divide(pass_.axis.kernel - 1);
    } else {
      return first_result_ * pass_.step - pass_.axis.padding;
    }
  }

  __device__ void load_weights() {
    const int pitch = pass_.plan.weight_pitch, kernel = pass_.axis.kernel;
    pass_.weight.with_numbers([&](const auto* numbers) {
#pragma unroll 4
      for (int i = static_cast<int>(threadIdx.x); i < rows_ * pitch; i += static_cast<int>(blockDim.x)) {
        const int row = pass_.weights.divide(i), tap = i - row * pitch;
        // Sources behind the last tap are never used.
        const int place = min(pass_.reversed ? kernel - 1 - tap : tap, kernel - 1);
        weights_[i] =
            static_cast<float>(read_rounded<T>(numbers + int64_t{channel_of(row)} * kernel + max(place, 0)));
      }
    });
  }

  // Results behind the last one read what the last one reads.
  __device__ void add_taps(float (&sums)[kSpreadOutputs], int row, int first, int end) const {
    const T* const sources = sources_ + row * pass_.plan.pitch;
    const float* const weights = weights_ + row * pass_.plan.weight_pitch;
    const int kernel = pass_.axis.kernel, step = pass_.step;
    const T* source[kSpreadOutputs];
    if constexpr (kGathers) {
      int tap[kSpreadOutputs];
#pragma unroll
      for (int i = 0; i < kSpreadOutputs; ++i) {
        const int position = first_result_ + min(first + i * pass_.plan.lanes, end - 1) + pass_.axis.padding;
        const int quotient = pass_.steps.divide(position);
        tap[i] = position - quotient * step;
        source[i] = sources + quotient - first_source();
      }
#pragma unroll 2
      for (int back = 0; back * step < kernel; ++back) {
#pragma unroll
        for (int i = 0; i < kSpreadOutputs; ++i) {
          if (tap[i] + back * step < kernel)
            sums[i] += weights[tap[i] + back * step] * static_cast<float>(source[i][-back]);
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < kSpreadOutputs; ++i) {
        source[i] = sources + min(first + i * pass_.plan.lanes, end - 1) * step;
      }
#pragma unroll 4
      for (int tap = 0; tap < kernel; ++tap) {
        const float weight = weights[tap];
#pragma unroll
        for (int i = 0; i < kSpreadOutputs; ++i)
          sums[i] += weight * static_cast<float>(source[i][tap * pass_.dilation]);
      }
    }
  }

  const SpreadPass<T>& pass_;
  T* sources_;
  float* weights_;
  int first_row_, first_result_, rows_;
};

template <typename T, bool kGathers>
__global__ void __launch_bounds__(kSpreadThreads, 5) rows_spread(SpreadPass<T> pass) {
  SpreadBlock<T, kGathers>(pass).run();
}

}  // namespace

template <typename T>
void launch_rows_spread(const Correlation<T>& call) {
  const Geometry& geometry = call.geometry;
  const Extent& width = geometry.width;
  const RowsSpreadPlan plan = plan_rows_spread(width, call.transposed, sizeof(T));
  const PassAxis axis(width, call.transposed);
  const int64_t rows = geometry.batch * geometry.channels;
  const int stride = static_cast<int>(width.stride);
  const SpreadPass<T> pass = {{call.source, rows, axis.source},
                              call.weight,
                              call.bias,
                              call.result,
                              axis,
                              stride,
                              static_cast<int>(width.dilation),
                              call.transposed && stride == 1,
                              plan,
                              FastDivisor(static_cast<int>(geometry.channels)),
                              FastDivisor(plan.segments),
                              FastDivisor(plan.pitch / kVectorElements<T>),
                              FastDivisor(plan.weight_pitch),
                              FastDivisor(stride)};
  const unsigned blocks = grid_of(ceil_divide<int64_t>(rows, plan.rows) * plan.segments, call.name());
  const int threads = plan.rows * plan.lanes;
  const auto launch = [&](auto gathers) {
    require_shared_memory(rows_spread<T, gathers>, plan.shared_bytes, call.name());
    rows_spread<T, gathers><<<blocks, threads, plan.shared_bytes, call.stream>>>(pass);
  };
  if (call.transposed && stride > 1) {
    launch(std::true_type{});
  } else {
    launch(std::false_type{});
  }
  check_launch(call.name());
}

template void launch_rows_spread(const Correlation<float>&);
template void launch_rows_spread(const Correlation<Half>&);
template void launch_rows_spread(const Correlation<BFloat16>&);

}  // namespace torchgraft::depthwise::cuda
