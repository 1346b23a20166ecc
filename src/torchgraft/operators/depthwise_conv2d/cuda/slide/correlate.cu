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

// The work of a thread.
template <typename T, typename Shape>
class SlideCorrelate {
 public:
  __device__ __forceinline__ SlideCorrelate(const T* source, T* result, const SlideParameters& parameters)
      : source_(source),
        result_(result),
        parameters_(parameters),
        place_(SlidePlace::make<kCount>(parameters)),
        strip_(static_cast<int>(threadIdx.y)),
        first_strip_(place_.tile * static_cast<int>(blockDim.y)),
        columns_((static_cast<int>(blockDim.y) - 1) * Columns::kStep + Columns::kWindow),
        row_pitch_(columns_ * place_.pitch),
        stage_pitch_(Rows::kStep * row_pitch_),
        shared_weight_(shared_memory<T>()),
        stages_(shared_weight_ + ceil_divide(kTaps * place_.pitch, kVectorElements<T>) * kVectorElements<T>),
        copies_(parameters.source, place_, parameters.channels, parameters.piece_bytes, columns_,
                parameters.source.first_column + first_strip_ * Columns::kStep),
        block_channel_(static_cast<int>(threadIdx.x) * kCount),
        channel_(place_.first_channel + block_channel_) {}

  __device__ __forceinline__ void run(const Rounded<T>& weight, const Rounded<T>& bias, bool flipped) {
    for (int row = 0; row < kStages * Rows::kStep; ++row) copies_.zero_outside(stages_ + row * row_pitch_);
    loading_ = SlideSteps<kWarm>(parameters_, place_.range);
    steps_ = loading_;
    for (int stage = 0; stage < kStages - 1; ++stage) copy_step(stage);
    share_weights(weight, flipped);
    __syncthreads();
    // Arrays are no members: the compiler would keep all members in memory until it has unrolled the loops.
    Weights weights;
    load_weights(weights);
    float start[kCount];
    bias.widen(is_active(), channel_, start);
    bool in_image[Columns::kPatch];
    find_results(in_image);
    Unit sums[kWarm + 1];  // of the units that end in this step and in later ones
#pragma unroll 1
    while (!steps_.ended()) {
      with_phases<kWarm + 1>([&] { return !steps_.ended(); },
                             [&](auto phase) { take_step<phase>(weights, start, in_image, sums); });
    }
  }

 private:
  using Rows = typename Shape::Rows;
  using Columns = typename Shape::Columns;
  static constexpr int kKernel = Rows::kKernel;
  static constexpr int kTaps = kKernel * kKernel;
  static constexpr int kCount = Shape::kCount;
  static constexpr int kWarm = Shape::kWarm;
  static constexpr int kStages = kSlideStages<T>;
  // Where a unit's first step is one row, its first product is added to `start` itself.
  static constexpr bool kStartInProduct = Rows::kStep == 1 && Rows::kPatch == 1;
  using Weights = float[kTaps * kCount];  // [channel][tap]
  // The sums of one unit of results.
  using Unit = float[Rows::kPatch][Columns::kPatch][kCount];

  __device__ __forceinline__ bool is_active() const { return block_channel_ < place_.channels; }

  __device__ __forceinline__ void copy_step(int stage) {
    T* const buffer = stages_ + stage * stage_pitch_;
    if (!loading_.ended()) {
      if (loading_.enters()) {
        copies_.enter(source_, loading_.image, loading_.first * Rows::kStep + parameters_.source.first_row);
      }
#pragma unroll
      for (int i = 0; i < Rows::kStep; ++i) copies_.copy_row(buffer + i * row_pitch_);
      loading_.advance(parameters_);
    }
    commit_copies();
  }

  // Brings the weights of the block's channels to shared memory, as [channel][tap].
  __device__ __forceinline__ void share_weights(const Rounded<T>& weight, bool flipped) const {
    (weight + static_cast<int64_t>(place_.first_channel) * kTaps).with_numbers([&](const auto* numbers) {
      for (int i = place_.thread; i < place_.channels * kTaps; i += place_.threads) {
        const int channel = i / kTaps;
        const int tap = i - channel * kTaps;
        shared_weight_[channel * kTaps + (flipped ? kTaps - 1 - tap : tap)] = read_rounded<T>(numbers + i);
      }
    });
  }

  __device__ __forceinline__ void load_weights(Weights& weights) const {
#pragma unroll
    for (int i = 0; i < kTaps; ++i) {
      float values[kCount];
      widen<T>(shared_weight_ + block_channel_ * kTaps + i * kCount, values);
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        weights[i * kCount + k] = values[k];
        // Otherwise the compiler keeps them as they came, and widens them again in every step.
        if constexpr (!std::is_same_v<T, float>) ptx::keep(weights[i * kCount + k]);
      }
    }
  }

  // Finds the columns of results that the thread computes.
  __device__ __forceinline__ void find_results(bool (&in_image)[Columns::kPatch]) {
    result_x_ = parameters_.result.first_column + (first_strip_ + strip_) * Columns::kPatch;
#pragma unroll
    for (int column = 0; column < Columns::kPatch; ++column) {
      in_image[column] =
          is_active() && result_x_ + column >= 0 && result_x_ + column < parameters_.result.width;
    }
    row_elements_ = static_cast<int64_t>(parameters_.result.width) * parameters_.channels;
  }

  // Takes one step of rows. Units turn round with the phase: sums[kPhase] ends in this step.
  template <int kPhase>
  __device__ __forceinline__ void take_step(const Weights& weights, const float (&start)[kCount],
                                            const bool (&in_image)[Columns::kPatch],
                                            Unit (&sums)[kWarm + 1]) {
    Unit& newest = sums[(kPhase + kWarm) % (kWarm + 1)];
    wait_for_copies<kStages - 2>();
    __syncthreads();
    copy_step(free_stage_);

    const int source_y = (steps_.first + steps_.step) * Rows::kStep + parameters_.source.first_row;
    const T* rows = stages_ + stage_ * stage_pitch_ + strip_ * Columns::kStep * place_.pitch + block_channel_;
    if constexpr (!kStartInProduct) start_sums(newest, start);
#pragma unroll
    for (int i = 0; i < Rows::kStep; ++i) {
      if (static_cast<unsigned>(source_y + i) < static_cast<unsigned>(parameters_.source.height)) {
        add_row<kPhase>(i, rows + i * row_pitch_, weights, start, sums);
      } else if constexpr (kStartInProduct) {
        start_sums(newest, start);
      }
    }
    if (steps_.step == kWarm) enter_results();
    if (steps_.step >= kWarm) store_unit(sums[kPhase], in_image);
    stage_ = stage_ + 1 == kStages ? 0 : stage_ + 1;
    free_stage_ = free_stage_ + 1 == kStages ? 0 : free_stage_ + 1;
    steps_.advance(parameters_);
  }

  __device__ __forceinline__ static void start_sums(Unit& unit, const float (&start)[kCount]) {
#pragma unroll
    for (int row = 0; row < Rows::kPatch; ++row) {
#pragma unroll
      for (int column = 0; column < Columns::kPatch; ++column) {
#pragma unroll
        for (int k = 0; k < kCount; ++k) {
          unit[row][column][k] = start[k];
          // Otherwise these moves are made in every step, and not only in those that need them.
          ptx::keep(unit[row][column][k]);
        }
      }
    }
  }

  // Adds row `i` of a step, whose pixels begin at `pixels`, to all units that it reaches.
  template <int kPhase>
  __device__ __forceinline__ void add_row(int i, const T* pixels, const Weights& weights,
                                          const float (&start)[kCount], Unit (&sums)[kWarm + 1]) const {
    if constexpr (Shape::kSkips) {
      float window[Columns::kWindow][kCount];
#pragma unroll
      for (int j = 0; j < Columns::kWindow; ++j) widen<T>(pixels + j * place_.pitch, window[j]);
#pragma unroll
      for (int ahead = 0; ahead <= kWarm; ++ahead) {
        if (!steps_.holds(ahead)) continue;
#pragma unroll
        for (int j = 0; j < Columns::kWindow; ++j)
          add_pixel(sums[(kPhase + ahead) % (kWarm + 1)], i, ahead, j, window[j], weights, start);
      }
    } else {
#pragma unroll
      for (int j = 0; j < Columns::kWindow; ++j) {
        float values[kCount];
        widen<T>(pixels + j * place_.pitch, values);
#pragma unroll
        for (int ahead = 0; ahead <= kWarm; ++ahead)
          add_pixel(sums[(kPhase + ahead) % (kWarm + 1)], i, ahead, j, values, weights, start);
      }
    }
  }

  // Adds pixel `j` of row `i` to the unit that ends `ahead` steps from now.
  __device__ __forceinline__ static void add_pixel(Unit& unit, int i, int ahead, int j,
                                                   const float (&values)[kCount], const Weights& weights,
                                                   const float (&start)[kCount]) {
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
  }

  // Goes to the thread's first results in the share of an image that the steps have reached.
  __device__ __forceinline__ void enter_results() {
    result_y_ = steps_.first * Rows::kPatch + parameters_.result.first_row;
    result_pixel_ =
        result_ +
        (static_cast<int64_t>(steps_.image) * parameters_.result.height + result_y_) * row_elements_ +
        static_cast<int64_t>(result_x_) * parameters_.channels + channel_;
  }

  __device__ __forceinline__ void store_unit(const Unit& unit, const bool (&in_image)[Columns::kPatch]) {
#pragma unroll
    for (int row = 0; row < Rows::kPatch; ++row) {
      if (static_cast<unsigned>(result_y_) < static_cast<unsigned>(parameters_.result.height)) {
#pragma unroll
        for (int column = 0; column < Columns::kPatch; ++column) {
          if (in_image[column]) narrow<T>(result_pixel_ + column * parameters_.channels, unit[row][column]);
        }
      }
      ++result_y_;
      result_pixel_ += row_elements_;
    }
  }

  const T* source_;
  T* result_;
  const SlideParameters& parameters_;
  const SlidePlace place_;
  const int strip_, first_strip_;  // the thread's in the block, and the block's first one
  const int columns_;              // of a row in shared memory
  const int row_pitch_, stage_pitch_;
  T* const shared_weight_;
  T* const stages_;
  SlideCopies<T> copies_;
  SlideSteps<Shape::kWarm> loading_, steps_;  // where copies are, and where sums are
  const int block_channel_, channel_;         // the thread's first one, in the block and in all
  int result_x_;
  int64_t row_elements_;       // of results
  T* result_pixel_ = nullptr;  // the thread's first one in the next row
  int result_y_ = 0;
  int stage_ = 0, free_stage_ = kStages - 1;
};

template <typename T, typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    slide_correlate(const T* __restrict__ source, Rounded<T> weight, Rounded<T> bias, T* __restrict__ result,
                    SlideParameters parameters, bool flipped) {
  SlideCorrelate<T, Shape>(source, result, parameters).run(weight, bias, flipped);
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
