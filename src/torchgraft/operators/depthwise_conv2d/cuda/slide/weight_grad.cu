// Weight gradient on NHWC images, k = 3, 5, 7, stride 1 and 2: threads slide down both images.
//
// A block owns some channels of a stretch of rows (stream.cuh), a thread kCount channels of
// kColumns columns of the output gradient. It keeps the sums of all taps in registers, and the latest rows of
// the output gradient that the rows of the input still to come meet; each row of either image is read from
// shared memory once, both streamed through it. The loop is unrolled over these held rows, so that they need
// not be moved. In the end the strips of a block are added up in order through shared memory, tap row by tap
// row, and written as one chunk of partial sums for the second pass, or, if there is but one chunk, as the
// gradient itself.
//
// Instructions an output and channel: as in the forward pass, 13 for k = 3, 31 for k = 5, 60 for k = 7.
//
// Chunks of partial sums are few, and so are blocks where there are few channels: these must be wide ones.
// (128,32,112x112,k3) took 157 us on an H200 in blocks of a warp, and takes 115.
#include "../chunks.cuh"
#include "../kernels.h"
#include "stream.cuh"

namespace torchgraft::depthwise::cuda {

template <int kKernel, int kStride>
struct SlideWeightGradShape {
  static constexpr int kCount = slide_weight_grad_channels(kKernel);  // of a thread
  static constexpr int kColumns = slide_weight_grad_columns(kStride);
  static constexpr int kThreads = slide_weight_grad_threads(kKernel);  // of a block, at most
  static constexpr int kBlocks = 2;                                    // resident, of so many threads
  using Rows = Stencil<kKernel, kStride, false, 1>;
  using Columns = Stencil<kKernel, kStride, false, kColumns>;
  static constexpr int kWarm = (kKernel - 1) / kStride;
};

template <typename T, typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    slide_weight_grad(const T* __restrict__ output_grad, const T* __restrict__ input,
                      float* __restrict__ partial, T* __restrict__ weight_grad, SlideParameters parameters) {
  using Rows = typename Shape::Rows;
  using Columns = typename Shape::Columns;
  constexpr int kKernel = Rows::kKernel;
  constexpr int kTaps = kKernel * kKernel;
  constexpr int kCount = Shape::kCount;
  constexpr int kWarm = Shape::kWarm;
  constexpr int kHeld = kWarm + 1;
  constexpr int kStages = kSlideStages<T>;

  const SlidePlace place = SlidePlace::make<kCount>(parameters);
  const int strip = static_cast<int>(threadIdx.y);
  const int strips = static_cast<int>(blockDim.y);
  const int first_strip = place.tile * strips;
  const int input_columns = (strips - 1) * Columns::kStep + Columns::kWindow;
  const int row_pitch = input_columns * place.pitch;
  const int grads_begin = Rows::kStep * row_pitch;
  const int stage_pitch = grads_begin + strips * Columns::kPatch * place.pitch;
  T* stages = shared_memory<T>();
  const int block_channel = static_cast<int>(threadIdx.x) * kCount;

  float sums[kTaps][kCount] = {};
  {
    SlideCopies<T> input_copies(parameters.source, place, parameters.channels, parameters.piece_bytes,
                                input_columns, parameters.source.first_column + first_strip * Columns::kStep);
    SlideCopies<T> grad_copies(parameters.result, place, parameters.channels, parameters.piece_bytes,
                               strips * Columns::kPatch, first_strip * Columns::kPatch);
    for (int stage = 0; stage < kStages; ++stage) {
      T* buffer = stages + stage * stage_pitch;
      for (int i = 0; i < Rows::kStep; ++i) input_copies.zero_outside(buffer + i * row_pitch);
      grad_copies.zero_outside(buffer + grads_begin);
    }
    SlideSteps<kWarm> loading(parameters, place.range);
    SlideSteps<kWarm> steps = loading;
    const auto copy_step = [&](T* stage) {
      if (!loading.ended()) {
        if (loading.enters()) {
          input_copies.enter(input, loading.image, loading.first * Rows::kStep + parameters.source.first_row);
          grad_copies.enter(output_grad, loading.image, loading.first);
        }
#pragma unroll
        for (int i = 0; i < Rows::kStep; ++i) input_copies.copy_row(stage + i * row_pitch);
        if (loading.step < loading.count) grad_copies.copy_row(stage + grads_begin);
        loading.advance(parameters);
      }
      commit_copies();
    };
    for (int stage = 0; stage < kStages - 1; ++stage) copy_step(stages + stage * stage_pitch);

    int stage = 0;
    int free_stage = kStages - 1;
    float grads[kHeld][Columns::kPatch][kCount];
    const auto take_step = [&](auto phase) {
      wait_for_copies<kStages - 2>();
      __syncthreads();
      copy_step(stages + free_stage * stage_pitch);

      const T* stage_rows = stages + stage * stage_pitch + block_channel;
      if (steps.step < steps.count) {
        const T* grad_row = stage_rows + grads_begin + strip * Columns::kPatch * place.pitch;
#pragma unroll
        for (int column = 0; column < Columns::kPatch; ++column) {
          widen<T>(grad_row + column * place.pitch, grads[phase][column]);
        }
      }
      const int source_y = (steps.first + steps.step) * Rows::kStep + parameters.source.first_row;
#pragma unroll
      for (int i = 0; i < Rows::kStep; ++i) {
        if (source_y + i < 0 || source_y + i >= parameters.source.height) continue;
        const T* row = stage_rows + i * row_pitch + strip * Columns::kStep * place.pitch;
        float window[Columns::kWindow][kCount];
#pragma unroll
        for (int j = 0; j < Columns::kWindow; ++j) widen<T>(row + j * place.pitch, window[j]);
#pragma unroll
        for (int ahead = 0; ahead <= kWarm; ++ahead) {
          const int tap_row = (kWarm - ahead) * Rows::kStep + i;
          if (tap_row >= kKernel) continue;
          if (!steps.holds(ahead)) continue;
#pragma unroll
          for (int j = 0; j < Columns::kWindow; ++j) {
#pragma unroll
            for (int column = 0; column < Columns::kPatch; ++column) {
              const int tap = Columns::tap(column, j);
              if (tap < 0 || tap >= kKernel) continue;
#pragma unroll
              for (int k = 0; k < kCount; ++k) {
                sums[tap_row * kKernel + tap][k] +=
                    grads[(phase + 1 + ahead) % kHeld][column][k] * window[j][k];
              }
            }
          }
        }
      }
      stage = stage + 1 == kStages ? 0 : stage + 1;
      free_stage = free_stage + 1 == kStages ? 0 : free_stage + 1;
      steps.advance(parameters);
    };
#pragma unroll 1
    while (!steps.ended()) with_phases<kHeld>([&] { return !steps.ended(); }, take_step);
  }

  // [tap of the row][strip][channel of the block]
  float* shared = shared_memory<float>();
  const int chunk = place.range * parameters.tiles + place.tile;
  const int tap_pitch = strips * place.pitch;
#pragma unroll
  for (int tap_row = 0; tap_row < kKernel; ++tap_row) {
    __syncthreads();
#pragma unroll
    for (int tap = 0; tap < kKernel; ++tap) {
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        shared[tap * tap_pitch + strip * place.pitch + block_channel + k] = sums[tap_row * kKernel + tap][k];
      }
    }
    __syncthreads();
    for (int i = place.thread; i < place.channels * kKernel; i += place.threads) {
      const int channel = i / kKernel;
      const int tap = i - channel * kKernel;
      const float sum = sum_in_order(shared + tap * tap_pitch + channel, strips, place.pitch);
      const int64_t index =
          static_cast<int64_t>(place.first_channel + channel) * kTaps + tap_row * kKernel + tap;
      if (weight_grad != nullptr) {
        weight_grad[index] = static_cast<T>(sum);
      } else {
        partial[static_cast<int64_t>(chunk) * parameters.channels * kTaps + index] = sum;
      }
    }
  }
}

template <typename T, typename Shape>
void launch_slide_weight_grad_shape(const WeightGrad<T>& pass) {
  const auto& [output_grad, input, weight_grad, workspace, geometry, layout, stream] = pass;
  using Rows = typename Shape::Rows;
  using Columns = typename Shape::Columns;
  const Extent& height = geometry.height;
  const Extent& width = geometry.width;
  const SlideImage input_image = {static_cast<int>(height.input), static_cast<int>(width.input),
                                  -static_cast<int>(height.padding), -static_cast<int>(width.padding)};
  const SlideImage grad_image = {static_cast<int>(height.output), static_cast<int>(width.output), 0, 0};
  const int piece = copied_piece(geometry.channels, sizeof(T), common_alignment(output_grad, input));
  const int group_bytes = Shape::kCount * static_cast<int>(sizeof(T));
  const int64_t chunks_of_slice = most_chunks(geometry, Layout::channels_last);
  const SlideTile tile = choose_slide_tile(
      slide_device(), static_cast<int>(geometry.channels) / Shape::kCount, piece,
      ceil_divide(grad_image.width, Columns::kPatch), Shape::kThreads, group_bytes,
      Columns::kWindow - Columns::kStep, Columns::kStep,
      [](int strips) { return slide_weight_grad_lane_bytes(Rows::kKernel, Rows::kStep, sizeof(T), strips); },
      chunks_of_slice);
  TORCHGRAFT_CHECK(tile.lanes > 0, pass.kName, ": a row takes more blocks than there are chunks");
  const int units = static_cast<int>(geometry.batch * height.output);
  const int ranges = slide_ranges(slide_device(), tile, Shape::kThreads * Shape::kBlocks,
                                  std::min<int64_t>(units, chunks_of_slice / tile.tiles));
  const int64_t blocks = int64_t{tile.slices} * tile.tiles * ranges;
  const SlideParameters parameters = {
      input_image, grad_image, static_cast<int>(geometry.channels), piece, tile.slices,
      tile.tiles,  ranges,     FastDivisor(grad_image.height),      units};
  const int chunks = ranges * tile.tiles;
  slide_weight_grad<T, Shape><<<grid_of(blocks, pass.kName), dim3(tile.lanes, tile.strips),
                                static_cast<size_t>(tile.shared_bytes), stream>>>(
      output_grad, input, weight_grad.partials(chunks, workspace), weight_grad.direct(chunks), parameters);
  check_launch(pass.kName);
  if (chunks > 1) launch_sum_chunks(workspace, weight_grad, geometry, chunks, stream);
}

template <typename T>
void launch_slide_weight_grad(const WeightGrad<T>& pass) {
  with_small_kernel(pass.geometry, [&](auto kernel, auto stride) {
    launch_slide_weight_grad_shape<T, SlideWeightGradShape<kernel, stride>>(pass);
  });
}

template void launch_slide_weight_grad(const WeightGrad<float>&);
template void launch_slide_weight_grad(const WeightGrad<Half>&);
template void launch_slide_weight_grad(const WeightGrad<BFloat16>&);

}  // namespace torchgraft::depthwise::cuda
