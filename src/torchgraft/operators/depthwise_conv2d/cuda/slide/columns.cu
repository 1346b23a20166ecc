// Forward pass and input gradient on NHWC images, 3 x 3 taps, stride 1, any dilation: threads slide down
// columns on their own (columns.cuh).
//
// A source row, read once, is added to the three rows of results that it reaches, whose sums stay in
// registers; the loop is unrolled over them, so that they need not be moved. Instructions a result and
// channel: 9 multiply-adds, and 6 to 11 that load, convert, test and store, of some 28 that there is time
// for.
//
// Measured on an H200, halves: (9,72,160x160) 26 us, where products on tensor cores take 48 and slides
// through shared memory 31; (128,144,56x56) 72, 85 and 89; (8,336,120x120) with dilation 2 50, and by
// products
// 82. Memory alone takes 16, 56 and 38. Small problems are few threads, of which each waits for memory:
// windows take them.
#include "../kernels.h"

#include <torchgraft/device.cuh>

#include "columns.cuh"

namespace torchgraft::depthwise::cuda {
namespace {

constexpr int kTaps = kColumnTaps;

// Blocks of a multiprocessor, for the registers of a thread's weights, sums and rows under way.
template <typename T, int kCount>
inline constexpr int kColumnBlocks = kCount == 4      ? 3
                                     : kCount == 1    ? 7
                                     : sizeof(T) == 4 ? 4
                                                      : 5;

struct SlideColumnsParameters {
  ColumnUnits units;
  FastDivisor groups;  // of channels; threads count them fastest
  int threads;
  bool flipped;
};

// The thread of some channels of one unit of results.
template <typename T, int kCount>
class SlideColumns {
  using Rows = ColumnRows<T, kCount, kColumnWindow>;
  static constexpr int kAllTaps = kTaps * kTaps;

 public:
  __device__ __forceinline__ SlideColumns(const T* source, const ColumnUnits& units, const ColumnUnit& unit,
                                          int channel)
      : units_(units),
        unit_(unit),
        channel_(channel),
        rows_(source + channel, units, unit.image, units.height.source, units.width.source,
              unit.result_y - units.height.padding, unit.result_x - units.width.padding,
              unit.rows + kTaps - 1),
        result_steps_(units, units.width.result) {}

  __device__ __forceinline__ void run(const Rounded<T>& weight, const Rounded<T>& bias, T* result,
                                      bool flipped) {
#pragma unroll
    for (int i = 0; i < kTaps; ++i) rows_.load(loaded_[i]);
    load_taps(weight, bias, flipped);
    find_results(result);
    const int steps = unit_.rows + kTaps - 1;
#pragma unroll 1
    while (step_ < steps) {
      with_phases<kTaps>([&] { return step_ < steps; }, [&](auto turn) { take_step<turn>(); });
    }
  }

 private:
  __device__ __forceinline__ void load_taps(const Rounded<T>& weight, const Rounded<T>& bias, bool flipped) {
    T all[kAllTaps * kCount];  // [channel][tap]
    (weight + static_cast<int64_t>(channel_) * kAllTaps).with_numbers([&](const auto* numbers) {
      using Piece = Vector<std::remove_cvref_t<decltype(*numbers)>, kCount>;
      if (reinterpret_cast<uintptr_t>(numbers) % sizeof(Piece) == 0) {
#pragma unroll
        for (int i = 0; i < kAllTaps; ++i) {
          const Piece piece = reinterpret_cast<const Piece*>(numbers)[i];
#pragma unroll
          for (int k = 0; k < kCount; ++k) all[i * kCount + k] = static_cast<T>(piece[k]);
        }
      } else {
#pragma unroll
        for (int i = 0; i < kAllTaps * kCount; ++i) all[i] = read_rounded<T>(numbers + i);
      }
    });
    bias.widen(true, channel_, start_);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
#pragma unroll
      for (int i = 0; i < kAllTaps; ++i) {
        const T tap = flipped ? all[k * kAllTaps + kAllTaps - 1 - i] : all[k * kAllTaps + i];
        taps_[i / kTaps][i % kTaps][k] = static_cast<float>(tap);
      }
    }
  }

  __device__ __forceinline__ void find_results(T* result) {
    const int64_t result_row = static_cast<int64_t>(units_.width.result) * units_.channels;
    to_ = kept(result +
               ((static_cast<int64_t>(unit_.image) * units_.height.result + unit_.result_y) * result_row +
                unit_.result_x * units_.channels + channel_));
#pragma unroll
    for (int i = 0; i < kColumnsOfThread; ++i) {
      is_result_[i] = unit_.result_x + i * units_.width.dilation < units_.width.result;
    }
  }

  // Adds a source row to the three rows of results that it reaches, and stores the one that ends. kTurn, the
  // step's number modulo three, tells which sums belong to which row.
  template <int kTurn>
  __device__ __forceinline__ void take_step() {
#pragma unroll
    for (int j = 0; j < kColumnWindow; ++j) {
      float values[kCount];
      widen<T>(loaded_[kTurn].pieces[j].elements, values);
#pragma unroll
      for (int column = 0; column < kColumnsOfThread; ++column) {
        const int tap = j - column;
        if (tap < 0 || tap >= kTaps) continue;
#pragma unroll
        for (int i = 0; i < kTaps; ++i) {
#pragma unroll
          for (int k = 0; k < kCount; ++k) {
            float& sum = sums_[(kTurn + kTaps - 1 - i) % kTaps][column][k];
            // The newest row begins with its first product.
            sum = taps_[i][tap][k] * values[k] + (i == 0 && tap == 0 ? start_[k] : sum);
          }
        }
      }
    }
    rows_.load(loaded_[kTurn]);
    if (step_ >= kTaps - 1) {
#pragma unroll
      for (int column = 0; column < kColumnsOfThread; ++column) {
        if (is_result_[column]) narrow<T>(result_steps_.at(to_, column), sums_[kTurn][column]);
      }
      to_ = result_steps_.next(to_);
    }
    ++step_;
  }

  const ColumnUnits& units_;
  const ColumnUnit& unit_;
  int channel_;  // the thread's first
  Rows rows_;
  ColumnSteps<T> result_steps_;
  typename Rows::Row loaded_[kTaps];  // the next source rows
  float taps_[kTaps][kTaps][kCount];
  float start_[kCount];  // the bias
  T* to_;                // where the next row of results goes
  bool is_result_[kColumnsOfThread];
  int step_ = 0;
  // Of the row of results that ends in this step and the two after it; which is which turns with the step.
  float sums_[kTaps][kColumnsOfThread][kCount] = {};
};

template <typename T, int kCount>
__global__ void __launch_bounds__(kColumnThreads, kColumnBlocks<T, kCount>)
    slide_columns(const T* __restrict__ source, Rounded<T> weight, Rounded<T> bias, T* __restrict__ result,
                  const __grid_constant__ SlideColumnsParameters parameters) {
  int group = static_cast<int>(blockIdx.x) * kColumnThreads + static_cast<int>(threadIdx.x);
  if (group >= parameters.threads) return;
  const ColumnUnit unit(parameters.units, split(group, parameters.groups));
  if (unit.rows == 0) return;
  SlideColumns<T, kCount>(source, parameters.units, unit, group * kCount)
      .run(weight, bias, result, parameters.flipped);
}

}  // namespace

template <typename T>
void launch_slide_columns(const Correlation<T>& pass) {
  const auto& [source, weight, bias, result, geometry, layout, transposed, stream] = pass;
  const auto launch = [&](auto count) {
    const int groups = static_cast<int>(geometry.channels / count);
    const int64_t resident =
        int64_t{current_device().multiprocessors} * kColumnBlocks<T, count> * kColumnThreads;
    // Threads of all channels take a unit each.
    const ColumnUnits units(geometry, transposed, std::max<int64_t>(1, resident / groups));
    const int threads = units.count * groups;
    slide_columns<T, count>
        <<<grid_of(ceil_divide(threads, kColumnThreads), pass.name()), kColumnThreads, 0, stream>>>(
            source, weight, bias, result,
            SlideColumnsParameters{units, FastDivisor(groups), threads, transposed});
    check_launch(pass.name());
  };
  with_column_channels<T>(geometry.channels, common_alignment(source, result), launch);
}

template void launch_slide_columns(const Correlation<float>&);
template void launch_slide_columns(const Correlation<Half>&);
template void launch_slide_columns(const Correlation<BFloat16>&);

}  // namespace torchgraft::depthwise::cuda
