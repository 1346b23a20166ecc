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

// The columns of a block, and where they lie in shared memory: a stage is rows of the input, then one of the
// output gradient.
template <typename Shape>
struct SlideWeightGradBlock {
  using Rows = typename Shape::Rows;
  using Columns = typename Shape::Columns;
  SlidePlace place;
  int strip, strips, first_strip;  // strip: the thread's
  int input_columns;
  int row_pitch, grads_begin, stage_pitch;
  int block_channel;  // the thread's first one in the block

  __device__ __forceinline__ explicit SlideWeightGradBlock(const SlideParameters& parameters)
      : place(SlidePlace::make<Shape::kCount>(parameters)),
        strip(static_cast<int>(threadIdx.y)),
        strips(static_cast<int>(blockDim.y)),
        first_strip(place.tile * strips),
        input_columns((strips - 1) * Columns::kStep + Columns::kWindow),
        row_pitch(input_columns * place.pitch),
        grads_begin(Rows::kStep * row_pitch),
        stage_pitch(grads_begin + strips * Columns::kPatch * place.pitch),
        block_channel(static_cast<int>(threadIdx.x) * Shape::kCount) {}
};

// The sums of a thread: of all taps of its channels.
template <typename Shape>
using SlideWeightGradSums = float[Shape::Rows::kKernel * Shape::Rows::kKernel][Shape::kCount];

// The walk of a thread down the images, which leaves its sums.
template <typename T, typename Shape>
class SlideWeightGrad {
 public:
  using Block = SlideWeightGradBlock<Shape>;
  using Sums = SlideWeightGradSums<Shape>;

  __device__ __forceinline__ SlideWeightGrad(const T* output_grad, const T* input,
                                             const SlideParameters& parameters, const Block& block,
                                             Sums& sums)
      : output_grad_(output_grad),
        input_(input),
        parameters_(parameters),
        block_(block),
        sums_(sums),
        stages_(shared_memory<T>()),
        input_copies_(parameters.source, block.place, parameters.channels, parameters.piece_bytes,
                      block.input_columns,
                      parameters.source.first_column + block.first_strip * Columns::kStep),
        grad_copies_(parameters.result, block.place, parameters.channels, parameters.piece_bytes,
                     block.strips * Columns::kPatch, block.first_strip * Columns::kPatch) {}

  __device__ __forceinline__ void run() {
    zero_outside();
    loading_ = SlideSteps<kWarm>(parameters_, block_.place.range);
    steps_ = loading_;
    for (int stage = 0; stage < kStages - 1; ++stage) copy_step(stage);
    // An array is no member: the compiler would keep all members in memory until it has unrolled the loops.
    Grads grads[kHeld];
#pragma unroll 1
    while (!steps_.ended()) {
      with_phases<kHeld>([&] { return !steps_.ended(); }, [&](auto phase) { take_step<phase>(grads); });
    }
  }

 private:
  using Rows = typename Shape::Rows;
  using Columns = typename Shape::Columns;
  static constexpr int kKernel = Rows::kKernel;
  static constexpr int kCount = Shape::kCount;
  static constexpr int kWarm = Shape::kWarm;
  static constexpr int kHeld = kWarm + 1;
  static constexpr int kStages = kSlideStages<T>;
  // A row of the output gradient.
  using Grads = float[Columns::kPatch][kCount];

  __device__ __forceinline__ void zero_outside() const {
    for (int stage = 0; stage < kStages; ++stage) {
      T* buffer = stages_ + stage * block_.stage_pitch;
      for (int i = 0; i < Rows::kStep; ++i) input_copies_.zero_outside(buffer + i * block_.row_pitch);
      grad_copies_.zero_outside(buffer + block_.grads_begin);
    }
  }

  __device__ __forceinline__ void copy_step(int stage) {
    T* const buffer = stages_ + stage * block_.stage_pitch;
    if (!loading_.ended()) {
      if (loading_.enters()) {
        input_copies_.enter(input_, loading_.image,
                            loading_.first * Rows::kStep + parameters_.source.first_row);
        grad_copies_.enter(output_grad_, loading_.image, loading_.first);
      }
#pragma unroll
      for (int i = 0; i < Rows::kStep; ++i) input_copies_.copy_row(buffer + i * block_.row_pitch);
      if (loading_.step < loading_.count) grad_copies_.copy_row(buffer + block_.grads_begin);
      loading_.advance(parameters_);
    }
    commit_copies();
  }

  // Takes one step of rows. Rows of the output gradient turn round with the phase: the newest is
  // grads[kPhase].
  template <int kPhase>
  __device__ __forceinline__ void take_step(Grads (&grads)[kHeld]) {
    wait_for_copies<kStages - 2>();
    __syncthreads();
    copy_step(free_stage_);

    const T* rows = stages_ + stage_ * block_.stage_pitch + block_.block_channel;
    if (steps_.step < steps_.count) load_grads(grads[kPhase], rows + block_.grads_begin);
    const int source_y = (steps_.first + steps_.step) * Rows::kStep + parameters_.source.first_row;
#pragma unroll
    for (int i = 0; i < Rows::kStep; ++i) {
      if (source_y + i < 0 || source_y + i >= parameters_.source.height) continue;
      add_row<kPhase>(i, rows + i * block_.row_pitch, grads);
    }
    stage_ = stage_ + 1 == kStages ? 0 : stage_ + 1;
    free_stage_ = free_stage_ + 1 == kStages ? 0 : free_stage_ + 1;
    steps_.advance(parameters_);
  }

  __device__ __forceinline__ void load_grads(Grads& grads, const T* row) const {
    row += block_.strip * Columns::kPatch * block_.place.pitch;
#pragma unroll
    for (int column = 0; column < Columns::kPatch; ++column) {
      widen<T>(row + column * block_.place.pitch, grads[column]);
    }
  }

  // Adds the products of row `i` of a step with all rows of the output gradient that are held.
  template <int kPhase>
  __device__ __forceinline__ void add_row(int i, const T* row, const Grads (&grads)[kHeld]) {
    row += block_.strip * Columns::kStep * block_.place.pitch;
    float window[Columns::kWindow][kCount];
#pragma unroll
    for (int j = 0; j < Columns::kWindow; ++j) widen<T>(row + j * block_.place.pitch, window[j]);
#pragma unroll
    for (int ahead = 0; ahead <= kWarm; ++ahead) {
      const int tap_row = (kWarm - ahead) * Rows::kStep + i;
      if (tap_row >= kKernel) continue;
      if (!steps_.holds(ahead)) continue;
      add_products(tap_row, window, grads[(kPhase + 1 + ahead) % kHeld]);
    }
  }

  __device__ __forceinline__ void add_products(int tap_row, const float (&window)[Columns::kWindow][kCount],
                                               const Grads& grads) {
#pragma unroll
    for (int j = 0; j < Columns::kWindow; ++j) {
#pragma unroll
      for (int column = 0; column < Columns::kPatch; ++column) {
        const int tap = Columns::tap(column, j);
        if (tap < 0 || tap >= kKernel) continue;
#pragma unroll
        for (int k = 0; k < kCount; ++k) sums_[tap_row * kKernel + tap][k] += grads[column][k] * window[j][k];
      }
    }
  }

  const T* output_grad_;
  const T* input_;
  const SlideParameters& parameters_;
  const Block& block_;
  Sums& sums_;
  T* const stages_;
  SlideCopies<T> input_copies_, grad_copies_;
  SlideSteps<kWarm> loading_, steps_;  // where copies are, and where sums are
  int stage_ = 0, free_stage_ = kStages - 1;
};

// Adds up the strips of a block in order, tap row by tap row, and writes a chunk of partial sums, or the
// gradient itself if there is one.
template <typename T, typename Shape>
__device__ __forceinline__ void store_sums(const SlideWeightGradSums<Shape>& sums,
                                           const SlideWeightGradBlock<Shape>& block, float* partial,
                                           T* weight_grad, const SlideParameters& parameters) {
  constexpr int kKernel = Shape::Rows::kKernel;
  constexpr int kTaps = kKernel * kKernel;
  const SlidePlace& place = block.place;
  // [tap of the row][strip][channel of the block]
  float* shared = shared_memory<float>();
  const int chunk = place.range * parameters.tiles + place.tile;
  const int tap_pitch = block.strips * place.pitch;
#pragma unroll
  for (int tap_row = 0; tap_row < kKernel; ++tap_row) {
    __syncthreads();
#pragma unroll
    for (int tap = 0; tap < kKernel; ++tap) {
#pragma unroll
      for (int k = 0; k < Shape::kCount; ++k) {
        shared[tap * tap_pitch + block.strip * place.pitch + block.block_channel + k] =
            sums[tap_row * kKernel + tap][k];
      }
    }
    __syncthreads();
    for (int i = place.thread; i < place.channels * kKernel; i += place.threads) {
      const int channel = i / kKernel;
      const int tap = i - channel * kKernel;
      const float sum = sum_in_order(shared + tap * tap_pitch + channel, block.strips, place.pitch);
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
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    slide_weight_grad(const T* __restrict__ output_grad, const T* __restrict__ input,
                      float* __restrict__ partial, T* __restrict__ weight_grad, SlideParameters parameters) {
  const SlideWeightGradBlock<Shape> block(parameters);
  SlideWeightGradSums<Shape> sums = {};
  SlideWeightGrad<T, Shape>(output_grad, input, parameters, block, sums).run();
  store_sums<T, Shape>(sums, block, partial, weight_grad, parameters);
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
