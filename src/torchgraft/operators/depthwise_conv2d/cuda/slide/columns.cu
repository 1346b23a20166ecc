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

struct ColumnParameters {
  ColumnUnits units;
  FastDivisor groups;  // of channels; threads count them fastest
  int threads;
  bool flipped;
};

template <typename T, int kCount>
__global__ void __launch_bounds__(kColumnThreads, kColumnBlocks<T, kCount>)
    slide_columns(const T* __restrict__ source, Rounded<T> weight, Rounded<T> bias, T* __restrict__ result,
                  const __grid_constant__ ColumnParameters parameters) {
  using Rows = ColumnRows<T, kCount, kColumnWindow>;
  const ColumnUnits& units = parameters.units;

  int group = static_cast<int>(blockIdx.x) * kColumnThreads + static_cast<int>(threadIdx.x);
  if (group >= parameters.threads) return;
  const ColumnUnit unit(units, split(group, parameters.groups));
  if (unit.rows == 0) return;
  const int channel = group * kCount;

  Rows rows(source + channel, units, unit.image, units.height.source, units.width.source,
            unit.result_y - units.height.padding, unit.result_x - units.width.padding, unit.rows + kTaps - 1);
  typename Rows::Row loaded[kTaps];
#pragma unroll
  for (int i = 0; i < kTaps; ++i) rows.load(loaded[i]);

  float taps[kTaps][kTaps][kCount];
  float start[kCount];
  constexpr int kAll = kTaps * kTaps;
  T all[kAll * kCount];  // [channel][tap]
  (weight + static_cast<int64_t>(channel) * kAll).with_numbers([&](const auto* numbers) {
    using Piece = Vector<std::remove_cvref_t<decltype(*numbers)>, kCount>;
    if (reinterpret_cast<uintptr_t>(numbers) % sizeof(Piece) == 0) {
#pragma unroll
      for (int i = 0; i < kAll; ++i) {
        const Piece piece = reinterpret_cast<const Piece*>(numbers)[i];
#pragma unroll
        for (int k = 0; k < kCount; ++k) all[i * kCount + k] = static_cast<T>(piece[k]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kAll * kCount; ++i) all[i] = read_rounded<T>(numbers + i);
    }
  });
  bias.widen(true, channel, start);
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
#pragma unroll
    for (int i = 0; i < kAll; ++i) {
      const T tap = parameters.flipped ? all[k * kAll + kAll - 1 - i] : all[k * kAll + i];
      taps[i / kTaps][i % kTaps][k] = static_cast<float>(tap);
    }
  }

  const ColumnSteps<T> result_steps(units, units.width.result);
  const int64_t result_row = static_cast<int64_t>(units.width.result) * units.channels;
  T* to =
      kept(result + ((static_cast<int64_t>(unit.image) * units.height.result + unit.result_y) * result_row +
                     unit.result_x * units.channels + channel));
  bool is_result[kColumnsOfThread];
#pragma unroll
  for (int i = 0; i < kColumnsOfThread; ++i) {
    is_result[i] = unit.result_x + i * units.width.dilation < units.width.result;
  }

  // Of the row of results that ends in this step and the two after it; which is which turns with the step.
  float sums[kTaps][kColumnsOfThread][kCount] = {};
  int step = 0;
  const int steps = unit.rows + kTaps - 1;
  const auto take_step = [&](auto turn) {
#pragma unroll
    for (int j = 0; j < kColumnWindow; ++j) {
      float values[kCount];
      widen<T>(loaded[turn].pieces[j].elements, values);
#pragma unroll
      for (int column = 0; column < kColumnsOfThread; ++column) {
        const int tap = j - column;
        if (tap < 0 || tap >= kTaps) continue;
#pragma unroll
        for (int i = 0; i < kTaps; ++i) {
#pragma unroll
          for (int k = 0; k < kCount; ++k) {
            float& sum = sums[(turn + kTaps - 1 - i) % kTaps][column][k];
            // The newest row begins with its first product.
            sum = taps[i][tap][k] * values[k] + (i == 0 && tap == 0 ? start[k] : sum);
          }
        }
      }
    }
    rows.load(loaded[turn]);
    if (step >= kTaps - 1) {
#pragma unroll
      for (int column = 0; column < kColumnsOfThread; ++column) {
        if (is_result[column]) narrow<T>(result_steps.at(to, column), sums[turn][column]);
      }
      to = result_steps.next(to);
    }
    ++step;
  };
#pragma unroll 1
  while (step < steps) with_phases<kTaps>([&] { return step < steps; }, take_step);
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
            source, weight, bias, result, ColumnParameters{units, FastDivisor(groups), threads, transposed});
    check_launch(pass.name());
  };
  with_column_channels<T>(geometry.channels, common_alignment(source, result), launch);
}

template void launch_slide_columns(const Correlation<float>&);
template void launch_slide_columns(const Correlation<Half>&);
template void launch_slide_columns(const Correlation<BFloat16>&);

}  // namespace torchgraft::depthwise::cuda
