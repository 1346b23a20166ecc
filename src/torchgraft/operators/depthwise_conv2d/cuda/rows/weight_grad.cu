// The weight gradient of rows with up to 256 taps, any stride up to eight, any dilation.
//
// A block owns a channel and a part of its tiles; a tile is a part of one long row, or the channel's rows of
// several items. It stages both rows in shared memory, each element once and the input's halo twice. Threads
// are cut into groups of whole warps: a group owns 4, 8 or 16 neighbouring taps and keeps their sums in
// registers, and its lanes share out the positions. With stride and dilation one a lane takes 8 or 16
// neighbouring positions at a time, for which it reads each element once; otherwise neighbouring lanes take
// neighbouring positions. Sums are added up by shuffles, then by warps in order, and leave the block once.

#include <type_traits>

#include "../chunks.cuh"
#include "../problem.cuh"
#include "rows.cuh"

namespace torchgraft::depthwise::cuda {
namespace {

template <typename T>
struct RowsGradPass {
  Rows<T> output_grad, input;
  float* partial;  // of a part and channel, each tap
  T* direct;       // or null; else the sums are rounded to it
  int kernel, step, dilation, padding;
  int batch, channels;
  int tiles, share;  // of a channel, and of a part
  RowsWeightGradPlan plan;
  FastDivisor segments, chunks, staged, grads_staged,
      lanes;  // `chunks`: what a lane takes of a row at a time
};

template <typename T, int kTaps, int kOwn, bool kUnitStep>
class RowsGradBlock {
 public:
  __device__ explicit RowsGradBlock(const RowsGradPass<T>& pass)
      : pass_(pass),
        inputs_(shared_memory<T>()),
        output_grads_(inputs_ + pass.plan.rows * pass.plan.pitch),
        part_(static_cast<int>(blockIdx.x) / pass.channels),
        channel_(static_cast<int>(blockIdx.x) - part_ * pass.channels),
        group_(pass.lanes.divide(static_cast<int>(threadIdx.x))),
        lane_(static_cast<int>(threadIdx.x) - group_ * pass.lanes.divisor()) {}

  __device__ void run() {
    float sums[kTaps] = {};
    const int end = min(pass_.tiles, (part_ + 1) * pass_.share);
    for (int tile = part_ * pass_.share; tile < end; ++tile) {
      stage(tile);
      __syncthreads();
      if constexpr (kUnitStep) {
        add_neighbours(sums);
      } else {
        add_apart(sums);
      }
      __syncthreads();
    }
    write(sums);
  }

 private:
  // How elements lie in shared memory.
  static constexpr int kChunks = kUnitStep ? kOwn / kVectorElements<T> : 1;

  __device__ void stage(int tile) {
    constexpr int kBatch = 2;
    const int group = pass_.segments.divide(tile);
    const int first_item = group * pass_.plan.rows;
    first_output_ = (tile - group * pass_.segments.divisor()) * pass_.plan.outputs;
    rows_ = min(pass_.plan.rows, pass_.batch - first_item);
    const auto row_of = [&](int row) {
      return static_cast<int64_t>(first_item + row) * pass_.channels + channel_;
    };
    const auto input_of = [&](int row) -> RowPart {
      return {row_of(row), first_output_ * pass_.step - pass_.padding};
    };
    const auto grad_of = [&](int row) -> RowPart { return {row_of(row), first_output_}; };
    stage_rows<kChunks, kBatch>(inputs_, rows_, pass_.staged, pass_.input, input_of, [&] {
      stage_rows<kChunks, kBatch>(output_grads_, rows_, pass_.grads_staged, pass_.output_grad, grad_of,
                                  [] {});
    });
  }

  // Neighbouring positions, whose windows overlap in registers.
  __device__ void add_neighbours(float (&sums)[kTaps]) const {
    constexpr int kVector = kVectorElements<T>, kWindow = round_up(kOwn + kTaps - 1, kVector);
    const int outputs = min(pass_.plan.outputs, pass_.output_grad.length - first_output_);
    for (int chunk = lane_; chunk < rows_ * pass_.chunks.divisor(); chunk += pass_.plan.lanes) {
      const int row = pass_.chunks.divide(chunk);
      const int first = (chunk - row * pass_.chunks.divisor()) * kOwn;
      float output_grads[kOwn], inputs[kWindow];
#pragma unroll
      for (int i = 0; i < kOwn; i += kVector) {
        load_chunk<kChunks>(output_grads + i, output_grads_ + row * pass_.plan.grad_pitch,
                            (first + i) / kVector);
      }
#pragma unroll
      for (int i = 0; i < kWindow; i += kVector) {
        load_chunk<kChunks>(inputs + i, inputs_ + row * pass_.plan.pitch,
                            (first + group_ * kTaps + i) / kVector);
      }
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        // Where there is no output gradient, a product with zero would turn infinity into NaN.
        if (first + i >= outputs) break;
#pragma unroll
        for (int tap = 0; tap < kTaps; ++tap) sums[tap] += output_grads[i] * inputs[i + tap];
      }
    }
  }

  __device__ void add_apart(float (&sums)[kTaps]) const {
    const int outputs = min(pass_.plan.outputs, pass_.output_grad.length - first_output_);
    const int taps = pass_.kernel - group_ * kTaps;
    for (int row = 0; row < rows_; ++row) {
      const T* const inputs = inputs_ + row * pass_.plan.pitch + group_ * kTaps * pass_.dilation;
      const T* const output_grads = output_grads_ + row * pass_.plan.grad_pitch;
#pragma unroll 2
      for (int position = lane_; position < outputs; position += pass_.plan.lanes) {
        const float output_grad = static_cast<float>(output_grads[position]);
#pragma unroll
        for (int tap = 0; tap < kTaps; ++tap) {
          if (tap < taps)
            sums[tap] +=
                output_grad * static_cast<float>(inputs[position * pass_.step + tap * pass_.dilation]);
        }
      }
    }
  }

  __device__ void write(float (&sums)[kTaps]) const {
    float* const of_warps = reinterpret_cast<float*>(inputs_);
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
#pragma unroll
      for (int apart = kRowWarp / 2; apart > 0; apart /= 2) {
        sums[tap] += __shfl_xor_sync(0xffffffffu, sums[tap], apart);
      }
      if (threadIdx.x % kRowWarp == 0)
        of_warps[static_cast<int>(threadIdx.x) / kRowWarp * kTaps + tap] = sums[tap];
    }
    __syncthreads();
    const int warps = pass_.plan.lanes / kRowWarp;  // of a group
    for (int tap = static_cast<int>(threadIdx.x); tap < pass_.kernel; tap += static_cast<int>(blockDim.x)) {
      const int group = tap / kTaps;
      const float sum = sum_in_order(of_warps + group * warps * kTaps + tap % kTaps, warps, kTaps);
      const int64_t place = static_cast<int64_t>(blockIdx.x) * pass_.kernel + tap;
      if (pass_.direct != nullptr) {
        pass_.direct[place] = static_cast<T>(sum);
      } else {
        pass_.partial[place] = sum;
      }
    }
  }

  const RowsGradPass<T>& pass_;
  T* inputs_;
  T* output_grads_;
  int part_, channel_, group_, lane_;
  int first_output_ = 0, rows_ = 0;  // of a tile
};

template <typename T, int kTaps, int kOwn, bool kUnitStep>
__global__ void __launch_bounds__(kRowsWeightGradThreads) rows_weight_grad(RowsGradPass<T> pass) {
  RowsGradBlock<T, kTaps, kOwn, kUnitStep>(pass).run();
}

}  // namespace

template <typename T>
void launch_rows_weight_grad(const WeightGrad<T>& call) {
  const Geometry& geometry = call.geometry;
  const Extent& width = geometry.width;
  const int64_t rows = geometry.batch * geometry.channels;
  const RowsWeightGradPlan plan = plan_rows_weight_grad(width, geometry.batch, sizeof(T));
  const int64_t most =
      parts_of_rows(geometry.channels, most_chunks(geometry, call.layout), current_device().multiprocessors);
  const Chunks parts = make_chunks(plan.tiles, 1, most);
  const RowsGradPass<T> pass = {{call.output_grad, rows, static_cast<int>(width.output)},
                                {call.input, rows, static_cast<int>(width.input)},
                                call.weight_grad.partials(parts.count, call.workspace),
                                call.weight_grad.direct(parts.count),
                                static_cast<int>(width.kernel),
                                static_cast<int>(width.stride),
                                static_cast<int>(width.dilation),
                                static_cast<int>(width.padding),
                                static_cast<int>(geometry.batch),
                                static_cast<int>(geometry.channels),
                                static_cast<int>(plan.tiles),
                                static_cast<int>(parts.units_of_chunk),
                                plan,
                                FastDivisor(plan.segments),
                                FastDivisor(plan.outputs / plan.own),
                                FastDivisor(plan.pitch / kVectorElements<T>),
                                FastDivisor(plan.grad_pitch / kVectorElements<T>),
                                FastDivisor(plan.lanes)};
  const unsigned blocks = grid_of(parts.count * geometry.channels, call.kName);
  const auto launch = [&](auto taps, auto own, auto unit_step) {
    const auto kernel = rows_weight_grad<T, taps, own, unit_step>;
    require_shared_memory(kernel, plan.shared_bytes, call.kName);
    rows_weight_grad<T, taps, own, unit_step>
        <<<blocks, plan.threads(), plan.shared_bytes, call.stream>>>(pass);
  };
  using std::integral_constant;
  constexpr integral_constant<int, 4> kFour;
  constexpr integral_constant<int, 8> kEight;
  constexpr integral_constant<int, 16> kSixteen;
  const bool is_unit_step = width.stride == 1 && width.dilation == 1;
  const auto launch_step = [&](auto taps, auto own) {
    if (is_unit_step) {
      launch(taps, own, std::true_type{});
    } else {
      launch(taps, own, std::false_type{});
    }
  };
  if (plan.taps == 4) {
    launch_step(kFour, kEight);
  } else if (plan.taps == 8) {
    launch_step(kEight, kEight);
  } else {
    launch_step(kSixteen, kSixteen);
  }
  check_launch(call.kName);
  if (parts.count > 1)
    launch_sum_chunks(call.workspace, call.weight_grad, geometry, parts.count, call.stream);
}

template void launch_rows_weight_grad(const WeightGrad<float>&);
template void launch_rows_weight_grad(const WeightGrad<Half>&);
template void launch_rows_weight_grad(const WeightGrad<BFloat16>&);

}  // namespace torchgraft::depthwise::cuda
