// Forward and input gradient on NHWC images, k = 3, 5, 7, stride 1 and 2: threads slide down the image.
//
// A block owns some channels of a stretch of rows (stream.cuh), a thread kCount channels of
// kColumns result columns. Each row of sources is read once from shared memory, (kColumns + k - 1) vectors,
// and added to the sums of every result row that it reaches; these sums, k rows of them, and all weights of
// the thread's channels stay in registers. The input gradient with stride 1 is the forward pass with the
// kernel turned around; with stride 2 a step takes one row of sources and ends two rows of results.
//
// Instructions a result and channel: k * k multiply-adds, about 2 (k + 3) / 4 for reading and widening, 1 to
// 2 for copies, stores and bookkeeping: 13 for k = 3, 30 for k = 5, 58 for k = 7. A multiprocessor of an H200
// moves 17.9 bytes in a clock, 2.2 results in fp32 and 4.5 in half precision, and issues 128 instructions:
// k = 3 is bound by memory, k = 5 in fp32 too, in half precision by instructions, k = 7 by instructions.
#include "../kernels.h"
#include "stream.cuh"

namespace torchgraft::depthwise::cuda {

template <int kKernel, int kStride, bool kTransposed>
struct SlideCorrelateShape {
  static constexpr int kCount = slide_channels(kKernel);  // of a thread: their weights stay in registers
  static constexpr int kColumns = kStride == 2 && !kTransposed ? 2 : 4;
  static constexpr int kThreads = kKernel == 7 ? 128 : kKernel == 5 ? 192 : 256;  // of a block, at most
  static constexpr int kBlocks = 2;  // resident, of so many threads
  using Rows = Stencil<kKernel, kStride, kTransposed, kTransposed ? kStride : 1>;
  using Columns = Stencil<kKernel, kStride, kTransposed, kColumns>;
  static constexpr int kWarm = (kKernel - 1) / kStride;
  // Whether sums of results that are another block's are left out; they are never written.
  static constexpr bool kSkips = kKernel == 7;
};

template <typename T, typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    slide_correlate(const T* __restrict__ source, Rounded<T> weight, Rounded<T> bias, T* __restrict__ result,
                    SlideParameters parameters, bool flipped) {
  using Rows = typename Shape::Rows;
  using Columns = typename Shape::Columns;
  using Steps = SlideSteps<Shape::kWarm>;
  constexpr int kKernel = Rows::kKernel;
  constexpr int kTaps = kKernel * kKernel;
  constexpr int kCount = Shape::kCount;
  constexpr int kWarm = Shape::kWarm;
  constexpr int kStages = kSlideStages<T>;

  const SlidePlace place = SlidePlace::make<kCount>(parameters);
  const int strip = static_cast<int>(threadIdx.y);
  const int first_strip = place.tile * static_cast<int>(blockDim.y);
  const int columns = (static_cast<int>(blockDim.y) - 1) * Columns::kStep + Columns::kWindow;
  const int row_pitch = columns * place.pitch;
  const int stage_pitch = Rows::kStep * row_pitch;
  T* shared_weight = shared_memory<T>();
  T* stages = shared_weight + ceil_divide(kTaps * place.pitch, kVectorElements<T>) * kVectorElements<T>;

  SlideCopies<T> copies(parameters.source, place, parameters.channels, parameters.piece_bytes, columns,
                        parameters.source.first_column + first_strip * Columns::kStep);
  for (int row = 0; row < kStages * Rows::kStep; ++row) copies.zero_outside(stages + row * row_pitch);
  Steps loading(parameters, place.range);
  Steps steps = loading;
  const auto copy_step = [&](T* stage) {
    if (!loading.ended()) {
      if (loading.enters()) {
        copies.enter(source, loading.image, loading.first * Rows::kStep + parameters.source.first_row);
      }
#pragma unroll
      for (int i = 0; i < Rows::kStep; ++i) copies.copy_row(stage + i * row_pitch);
      loading.advance(parameters);
    }
    commit_copies();
  };
  for (int stage = 0; stage < kStages - 1; ++stage) copy_step(stages + stage * stage_pitch);

  (weight + static_cast<int64_t>(place.first_channel) * kTaps).with_numbers([&](const auto* numbers) {
    for (int i = place.thread; i < place.channels * kTaps; i += place.threads) {
      const int channel = i / kTaps;
      const int tap = i - channel * kTaps;
      shared_weight[channel * kTaps + (flipped ? kTaps - 1 - tap : tap)] = read_rounded<T>(numbers + i);
    }
  });
  __syncthreads();
  const int block_channel = static_cast<int>(threadIdx.x) * kCount;
  const bool active = block_channel < place.channels;
  const int channel = place.first_channel + block_channel;
  float weights[kTaps * kCount];  // [channel][tap]
#pragma unroll
  for (int i = 0; i < kTaps; ++i) {
    float values[kCount];
    widen<T>(shared_weight + block_channel * kTaps + i * kCount, values);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      weights[i * kCount + k] = values[k];
      // Else the compiler keeps them as they came, and widens them again in every step.
      if constexpr (!std::is_same_v<T, float>) ptx::keep(weights[i * kCount + k]);
    }
  }
  float start[kCount];
  bias.widen(active, channel, start);

  const int result_x = parameters.result.first_column + (first_strip + strip) * Columns::kPatch;
  bool in_image[Columns::kPatch];
#pragma unroll
  for (int column = 0; column < Columns::kPatch; ++column) {
    in_image[column] = active && result_x + column >= 0 && result_x + column < parameters.result.width;
  }
  const int64_t result_row_elements = static_cast<int64_t>(parameters.result.width) * parameters.channels;
  T* result_pixel = result;  // the thread's first in the next row
  int result_y = 0;
  int stage = 0;
  int free_stage = kStages - 1;
  // Of the units that end in this step and in later ones; which is which turns round with the phase.
  float sums[kWarm + 1][Rows::kPatch][Columns::kPatch][kCount];
  const auto start_sums = [&](float (&unit)[Rows::kPatch][Columns::kPatch][kCount]) {
#pragma unroll
    for (int row = 0; row < Rows::kPatch; ++row) {
#pragma unroll
      for (int column = 0; column < Columns::kPatch; ++column) {
#pragma unroll
        for (int k = 0; k < kCount; ++k) {
          unit[row][column][k] = start[k];
          // Else these moves are made in every step, and not only in those that need them.
          ptx::keep(unit[row][column][k]);
        }
      }
    }
  };

  const auto take_step = [&](auto phase) {
    // Where a unit's first step is one row, its first product is added to `start` itself.
    constexpr bool kStartInProduct = Rows::kStep == 1 && Rows::kPatch == 1;
    constexpr int kNewest = (phase + kWarm) % (kWarm + 1);
    wait_for_copies<kStages - 2>();
    __syncthreads();
    copy_step(stages + free_stage * stage_pitch);

    const int source_y = (steps.first + steps.step) * Rows::kStep + parameters.source.first_row;
    const T* rows = stages + stage * stage_pitch + strip * Columns::kStep * place.pitch + block_channel;
    if constexpr (!kStartInProduct) start_sums(sums[kNewest]);
#pragma unroll
    for (int i = 0; i < Rows::kStep; ++i) {
      if (static_cast<unsigned>(source_y + i) >= static_cast<unsigned>(parameters.source.height)) {
        if constexpr (kStartInProduct) start_sums(sums[kNewest]);
        continue;
      }
      const T* pixels = rows + i * row_pitch;
      const auto take = [&](int ahead, int j, const float (&values)[kCount]) {
        auto& unit = sums[(phase + ahead) % (kWarm + 1)];
#pragma unroll
        for (int row = 0; row < Rows::kPatch; ++row) {
          const int tap_row = Rows::tap(row, (kWarm - ahead) * Rows::kStep + i);
          if (tap_row < 0 || tap_row >= kKernel) continue;
#pragma unroll
          for (int column = 0; column < Columns::kPatch; ++column) {
            const int tap = Columns::tap(column, j);
            if (tap < 0 || tap >= kKernel) continue;
            const bool first = kStartInProduct && ahead == kWarm && tap == 0;
#pragma unroll
            for (int k = 0; k < kCount; ++k) {
              unit[row][column][k] = weights[k * kTaps + tap_row * kKernel + tap] * values[k] +
                                     (first ? start[k] : unit[row][column][k]);
            }
          }
        }
      };
      if constexpr (Shape::kSkips) {
        float window[Columns::kWindow][kCount];
#pragma unroll
        for (int j = 0; j < Columns::kWindow; ++j) widen<T>(pixels + j * place.pitch, window[j]);
#pragma unroll
        for (int ahead = 0; ahead <= kWarm; ++ahead) {
          if (!steps.holds(ahead)) continue;
#pragma unroll
          for (int j = 0; j < Columns::kWindow; ++j) take(ahead, j, window[j]);
        }
      } else {
#pragma unroll
        for (int j = 0; j < Columns::kWindow; ++j) {
          float values[kCount];
          widen<T>(pixels + j * place.pitch, values);
#pragma unroll
          for (int ahead = 0; ahead <= kWarm; ++ahead) take(ahead, j, values);
        }
      }
    }

    if (steps.step == kWarm) {
      result_y = steps.first * Rows::kPatch + parameters.result.first_row;
      result_pixel =
          result +
          (static_cast<int64_t>(steps.image) * parameters.result.height + result_y) * result_row_elements +
          static_cast<int64_t>(result_x) * parameters.channels + channel;
    }
    if (steps.step >= kWarm) {
#pragma unroll
      for (int row = 0; row < Rows::kPatch; ++row) {
        if (static_cast<unsigned>(result_y) < static_cast<unsigned>(parameters.result.height)) {
#pragma unroll
          for (int column = 0; column < Columns::kPatch; ++column) {
            if (in_image[column]) {
              narrow<T>(result_pixel + column * parameters.channels, sums[phase][row][column]);
            }
          }
        }
        ++result_y;
        result_pixel += result_row_elements;
      }
    }
    stage = stage + 1 == kStages ? 0 : stage + 1;
    free_stage = free_stage + 1 == kStages ? 0 : free_stage + 1;
    steps.advance(parameters);
  };
#pragma unroll 1
  while (!steps.ended()) with_phases<kWarm + 1>([&] { return !steps.ended(); }, take_step);
}

template <typename T, typename Shape>
SlideTile slide_tile(int64_t channels, int result_columns, int padding, int piece_bytes) {
  using Rows = typename Shape::Rows;
  using Columns = typename Shape::Columns;
  const int group_bytes = Shape::kCount * static_cast<int>(sizeof(T));
  return choose_slide_tile(
      slide_device(), static_cast<int>(channels / Shape::kCount), piece_bytes,
      Columns::patches(result_columns, padding), Shape::kThreads, group_bytes,
      Columns::kWindow - Columns::kStep, Columns::kStep, [&](int strips) {
        const int pixels = Rows::kStep * ((strips - 1) * Columns::kStep + Columns::kWindow);
        return (Rows::kKernel * Rows::kKernel + kSlideStages<T> * pixels) * int64_t{group_bytes} + 16;
      });
}

template <typename T, typename Shape>
void launch_slide_shape(const Correlation<T>& pass) {
  const auto& [source, weight, bias, result, geometry, layout, transposed, stream] = pass;
  using Rows = typename Shape::Rows;
  using Columns = typename Shape::Columns;
  const auto [flipped, padding_y, padding_x, source_image, result_image] =
      slide_images<Rows, Columns>(geometry, transposed);

  const int piece = copied_piece(geometry.channels, sizeof(T), common_alignment(source, result));
  const SlideTile tile = slide_tile<T, Shape>(geometry.channels, result_image.width, padding_x, piece);
  const int image_units = Rows::patches(result_image.height, padding_y);
  const int units = static_cast<int>(geometry.batch * image_units);
  const int ranges = slide_ranges(slide_device(), tile, Shape::kThreads * Shape::kBlocks, units);
  const int64_t blocks = int64_t{tile.slices} * tile.tiles * ranges;
  const SlideParameters parameters = {source_image,
                                      result_image,
                                      static_cast<int>(geometry.channels),
                                      piece,
                                      tile.slices,
                                      tile.tiles,
                                      ranges,
                                      FastDivisor(image_units),
                                      units};
  slide_correlate<T, Shape>
      <<<grid_of(blocks, pass.name()), dim3(tile.lanes, tile.strips), static_cast<size_t>(tile.shared_bytes),
         stream>>>(source, weight, bias, result, parameters, flipped);
  check_launch(pass.name());
}

template <typename T>
void launch_slide_correlate(const Correlation<T>& pass) {
  with_small_kernel(pass.geometry, [&](auto kernel, auto stride) {
    // With stride one an input gradient is a forward pass with turned taps.
    if constexpr (stride > 1) {
      if (pass.transposed) return launch_slide_shape<T, SlideCorrelateShape<kernel, stride, true>>(pass);
    }
    launch_slide_shape<T, SlideCorrelateShape<kernel, stride, false>>(pass);
  });
}

template void launch_slide_correlate(const Correlation<float>&);
template void launch_slide_correlate(const Correlation<Half>&);
template void launch_slide_correlate(const Correlation<BFloat16>&);

}  // namespace torchgraft::depthwise::cuda
