// Weight gradient of float16 and bfloat16 images on tensor cores: NHWC, k = 3, 5, 7, stride 1 and 2, an even
// number of channels.
//
// A block owns a few groups of eight channels, some columns, and one or more streams: stretches of the rows
// of all images, which are one sequence. A warp owns one group and some octets (eight neighbouring pixels) of
// each row; a thread copies pieces of eight channels of one image. Rows come by cp.async, several ahead, each
// once for a block; a warp reads a row of either image from shared memory once for each tap column. The sums
// of all taps and the latest rows of the output gradient stay in registers. Measured on an H200 with the
// second pass, in us: (128,32,112x112,k3) 69, (128,240,28x28,k5) 56, (128,96,56x56,k7) 119.
//
// The product of sixteen pixels of eight channels of the input, for two taps at once, with the same pixels of
// the output gradient
//   D[(tap, c)][d] = sum over pixels of input[pixel * stride + tap][c] * output_grad[pixel][d]
// holds the sums of both taps on its diagonals c == d. The rest, seven eighths, is not used and nearly free:
// nothing is converted or transposed before, for ldmatrix.trans reads both operands from pixels as they lie
// in memory, shifted by any tap. Taps go in pairs of neighbouring columns; those of the last column, which
// has no neighbour, in pairs of neighbouring rows.
//
// Between an image and the next there are only so many rows of zeros that no tap joins the two, so that sums
// go on from one to the next and only copies know of images. The octets of a row, and of all streams, are
// dealt to warps: narrow images fill them by several streams. Columns outside the image are zeroed once; rows
// outside are copied as zeros. In the end the warps of a group are added up, as one chunk of partial sums for
// the second pass or, if there is but one chunk, the gradient itself.
//
// For sixteen pixels of eight channels a multiprocessor of an H200 has 29 clocks until memory brings the
// next. k = 3, 5, 7 take 5, 13, 25 products, 8, 21, 40 clocks at the rate of mma.sync, and 10, 14, 20 clocks
// of shared memory, copies included; a warp issues 65, 115, 150 instructions, a quarter of these clocks.
// Predicted, with the second pass: (128,32,112x112,k3) 64 us, (128,144,56x56,k3) 70, (128,240,28x28,k5) 38,
// (128,96,56x56,k7) 80. Measured on an H200: 69, 83, 56, 119; (128,96,112x112,k3,s2) 114. Copies alone take
// 67, 79, 43 and 71 of it, products alone 41, 45, 42 and 91: products reach half of their rate, because warps
// are few and each waits for its own; where the two balance they add up in part.
//
// A NaN or an infinity in a channel may make any gradient of that channel NaN, but none of another channel.

#include "weight_grad_mma_block.cuh"

namespace torchgraft::depthwise::cuda {
namespace {

// The warps of a block slide down both images.
template <typename T, typename Shape, bool kWhole>
class SlideWeightGradMma {
  using Copies = SlideWeightGradMmaCopies<uint16_t, kWhole>;
  static constexpr int kKernel = Shape::kKernel;
  static constexpr int kStride = Shape::kStride;
  static constexpr int kPairs = Shape::kPairs;
  static constexpr int kOctetsOfWarp = Shape::kOctetsOfWarp;
  static constexpr int kHeld = Shape::kWarm + 1;  // rows of the output gradient that one of the input meets
  static constexpr int kStages = Shape::kStages;
  static constexpr int kRows = Shape::kRows;
  static constexpr int kTaps = Shape::kTaps;

 public:
  __device__ __forceinline__ SlideWeightGradMma(const uint16_t* output_grad, const uint16_t* input,
                                                const SlideWeightGradMmaParameters& parameters)
      : parameters_(parameters), block_(parameters) {
    input_row_bytes_ = parameters.streams * parameters.stream_pixels * kSlidePieceBytes;
    group_bytes_ = parameters.group_pixels * kSlidePieceBytes;
    line_bytes_ = block_.groups * group_bytes_;
    shared_sums_ = shared_memory<float>();
    shared_ = shared_address(shared_sums_);
    // Else every step would compute these again.
    ptx::keep(shared_);
    ptx::keep(line_bytes_);
    if constexpr (kStride > 1) ptx::keep(input_row_bytes_);
    grads_begin_ = kStride * input_row_bytes_;
    stage_bytes_ = kRows * line_bytes_;
    stage_ = copied_stage_ = shared_;
    clear_octets(shared_, kStages * stage_bytes_);
    __syncthreads();
    copies_input_ = thread_ < parameters.input_threads ? 1 : 0;
    ptx::keep(copies_input_);
    copies_ = copies_input_ != 0 ? copies_of_input(input) : copies_of_grad(output_grad);
    steps_to_copy_ = parameters.steps;
    for (int stage = 0; stage < kStages - 1; ++stage) copy_step();
    find_octets();
  }

  __device__ __forceinline__ void run(float* partial, T* weight_grad) {
#pragma unroll 1
    for (int step = 0; step < parameters_.steps; ++step) {
      ptx::cp_async_wait_group<kStages - 2>();
      __syncthreads();
      copy_step();
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const uint32_t line = stage_ + row * line_bytes_;
        load_grads(line);
        multiply_column_pairs(line);
        multiply_last_column(line);
      }
      stage_ += stage_bytes_;
      if (stage_ == shared_ + kStages * stage_bytes_) stage_ = shared_;
    }
    ptx::cp_async_wait_all();
    __syncthreads();
    share_sums();
    __syncthreads();
    add_up_warps(partial, weight_grad);
  }

 private:
  // Threads are dealt to the images, then to streams, to the groups of a pixel, and to columns.
  __device__ __forceinline__ Copies copies_of(const SlideWeightGradMmaImage& image, const uint16_t* memory,
                                              int image_thread, int columns, int stream_pixels,
                                              int first_column, int target, int stride, int phase_pixels,
                                              bool past_end) const {
    const int stream = min(image_thread / image.stream_threads, parameters_.streams - 1);
    const int stream_thread = image_thread - stream * image.stream_threads;
    const int column = parameters_.groups.divide(stream_thread);
    const int group = stream_thread - column * block_.groups;
    const int all_rows = parameters_.batch * parameters_.grad.period;
    const int begin = static_cast<int>(
        min(static_cast<int64_t>(block_.range * parameters_.streams + stream) * parameters_.rows,
            int64_t{all_rows}));
    const int end = past_end ? all_rows : min(all_rows - begin, parameters_.rows) + begin;
    return Copies(image, memory, parameters_.channels, (block_.first_group + group) * kSlideGroup, column,
                  columns, first_column,
                  target + group * group_bytes_ + stream * stream_pixels * kSlidePieceBytes, stride,
                  phase_pixels, begin * stride, end * stride);
  }
  __device__ __forceinline__ Copies copies_of_input(const uint16_t* input) const {
    return copies_of(parameters_.input, input, thread_, (kOctet * block_.octets - 1) * kStride + kKernel,
                     parameters_.stream_pixels, block_.first_octet * kOctet * kStride - parameters_.padding,
                     0, kStride, Shape::phase_pixels(block_.octets), true);
  }
  __device__ __forceinline__ Copies copies_of_grad(const uint16_t* output_grad) const {
    const int columns = kOctet * block_.octets;
    return copies_of(parameters_.grad, output_grad, thread_ - parameters_.input_threads, columns, columns,
                     block_.first_octet * kOctet, grads_begin_, 1, 0, false);
  }

  // Begins to copy the rows of the next step, if there is one.
  __device__ __forceinline__ void copy_step() {
    if (steps_to_copy_ > 0) {
      --steps_to_copy_;
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const uint32_t line = copied_stage_ + row * line_bytes_;
        if (copies_input_ != 0) {
#pragma unroll
          for (int i = 0; i < kStride; ++i) copies_.copy_row(parameters_.input, line + i * input_row_bytes_);
        } else {
          copies_.copy_row(parameters_.grad, line);
        }
      }
      copied_stage_ += stage_bytes_;
      if (copied_stage_ == shared_ + kStages * stage_bytes_) copied_stage_ = shared_;
    }
    ptx::cp_async_commit_group();
  }

  // Where this lane reads, without line: matrices of eight pixels.
  __device__ __forceinline__ void find_octets() {
    const int warp_slot = parameters_.groups.divide(warp_);
    const int warp_group = warp_ - warp_slot * block_.groups;
    const int matrix = lane_ / 8;
    const int first_slot = warp_slot * kOctetsOfWarp;
    const int next_column = kStride == 1 ? 1 : Shape::phase_pixels(block_.octets);
    constexpr int kLastColumn = (kKernel - 1) / kStride;
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int pixel = input_octet(warp_group, first_slot + 2 * pair + matrix / 2);
      column_offsets_[pair] = (pixel + matrix % 2 * next_column) * kSlidePieceBytes;
      if (kStride > 1) {
        last_offsets_[pair] = (pixel + kLastColumn) * kSlidePieceBytes + matrix % 2 * input_row_bytes_;
      }
    }
    const int matrix_slot = first_slot + matrix % kOctetsOfWarp;
    if (kStride == 1)
      last_offsets_[0] = (input_octet(warp_group, matrix_slot) + kLastColumn) * kSlidePieceBytes;
    grad_offset_ = grads_begin_ + (warp_group * parameters_.group_pixels + matrix_slot * kOctet + lane_ % 8) *
                                      kSlidePieceBytes;
  }

  // This lane's pixel of row 0 of the input under an octet; one that does not exist meets zeros.
  __device__ __forceinline__ int input_octet(int warp_group, int slot) const {
    const int place = slot < parameters_.streams * block_.octets ? slot : 0;
    const int of_stream = parameters_.octets.divide(place);
    return warp_group * parameters_.group_pixels + of_stream * parameters_.stream_pixels +
           (place - of_stream * block_.octets) * kOctet + lane_ % 8;
  }

  // Loads a row of the output gradient; the one that is kept longest makes room.
  __device__ __forceinline__ void load_grads(uint32_t line) {
#pragma unroll
    for (int ahead = kHeld - 1; ahead > 0; --ahead) {
#pragma unroll
      for (int i = 0; i < kOctetsOfWarp; ++i) held_[ahead][i] = held_[ahead - 1][i];
    }
    load_slices<kOctetsOfWarp>(line + grad_offset_, held_[0]);
  }

  // Adds the products of all tap columns but the last, which go in pairs.
  __device__ __forceinline__ void multiply_column_pairs(uint32_t line) {
    constexpr int kColumnPairStep = 2 / kStride;
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
#pragma unroll
      for (int i = 0; i < kStride; ++i) {
#pragma unroll
        for (int taps = 0; taps < Shape::kColumnPairs; ++taps) {
          uint32_t pixels[4];
          load_slices<4>(
              line + column_offsets_[pair] + i * input_row_bytes_ + taps * kColumnPairStep * kSlidePieceBytes,
              pixels);
#pragma unroll
          for (int ahead = 0; ahead < kHeld; ++ahead) {
            const int tap_row = i + kStride * ahead;
            if (tap_row >= kKernel) continue;
            multiply_add<T>(sums_.columns[tap_row][taps], pixels[0], pixels[1], pixels[2], pixels[3],
                            held_[ahead][2 * pair], held_[ahead][2 * pair + 1]);
          }
        }
      }
    }
  }

  // Adds the products of the last tap column, whose rows go in pairs.
  __device__ __forceinline__ void multiply_last_column(uint32_t line) {
    if constexpr (kStride == 1) {
      uint32_t last[kOctetsOfWarp];
      load_slices<kOctetsOfWarp>(line + last_offsets_[0], last);
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
#pragma unroll
        for (int ahead = 0; ahead < kHeld; ahead += 2) {
          multiply_add<T>(sums_.rows[ahead / 2], before_[2 * pair], last[2 * pair], before_[2 * pair + 1],
                          last[2 * pair + 1], held_[ahead][2 * pair], held_[ahead][2 * pair + 1]);
        }
      }
#pragma unroll
      for (int i = 0; i < kOctetsOfWarp; ++i) before_[i] = last[i];
    } else {
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        uint32_t last[4];
        load_slices<4>(line + last_offsets_[pair], last);
#pragma unroll
        for (int ahead = 0; ahead < kHeld; ++ahead) {
          multiply_add<T>(sums_.rows[ahead], last[0], last[1], last[2], last[3], held_[ahead][2 * pair],
                          held_[ahead][2 * pair + 1]);
        }
      }
    }
  }

  // Writes the diagonals of the warp's sums to shared memory as [warp][tap][channel]. Lane l has row l / 4 of
  // a product and its columns l % 4 * 2 and the next, and the same of the second tap.
  __device__ __forceinline__ void share_sums() const {
    if (lane_ % 4 != lane_ / 8) return;
    const bool odd = lane_ / 4 % 2 != 0;
    float* warp_sums = shared_sums_ + warp_ * (kTaps * kSlideGroup) + lane_ / 4;
    const auto store = [&](const float (&product)[4], int tap_row, int tap_column, int second_row,
                           int second_column) {
      const auto store_tap = [&](int row, int column_of_tap, float sum) {
        if (row >= 0 && row < kKernel) warp_sums[(row * kKernel + column_of_tap) * kSlideGroup] = sum;
      };
      store_tap(tap_row, tap_column, odd ? product[1] : product[0]);
      store_tap(second_row, second_column, odd ? product[3] : product[2]);
    };
#pragma unroll
    for (int tap_row = 0; tap_row < kKernel; ++tap_row) {
#pragma unroll
      for (int taps = 0; taps < Shape::kColumnPairs; ++taps) {
        store(sums_.columns[tap_row][taps], tap_row, 2 * taps, tap_row, 2 * taps + 1);
      }
    }
#pragma unroll
    for (int taps = 0; taps < Shape::kRowPairs; ++taps) {
      const int tap_row = kStride == 1 ? 2 * taps - 1 : 2 * taps;
      store(sums_.rows[taps], tap_row, kKernel - 1, tap_row + 1, kKernel - 1);
    }
  }

  // Adds up the sums of the warps of each group, in order: a chunk of partial sums, or the gradient itself.
  __device__ __forceinline__ void add_up_warps(float* partial, T* weight_grad) const {
    const int channels =
        min(block_.groups * kSlideGroup, parameters_.channels - block_.first_group * kSlideGroup);
    const int warps_of_group = parameters_.slots / kOctetsOfWarp;
    for (int i = thread_; i < channels * kTaps; i += static_cast<int>(blockDim.x)) {
      const int block_channel = i / kTaps;
      const int tap = i - block_channel * kTaps;
      const float sum =
          sum_in_order(shared_sums_ + (block_channel / kSlideGroup * kTaps + tap) * kSlideGroup +
                           block_channel % kSlideGroup,
                       warps_of_group, block_.groups * kTaps * kSlideGroup);
      const int64_t index = static_cast<int64_t>(block_.first_group) * kSlideGroup * kTaps + i;
      if (weight_grad != nullptr) {
        weight_grad[index] = static_cast<T>(sum);
      } else {
        partial[static_cast<int64_t>(block_.chunk) * parameters_.channels * kTaps + index] = sum;
      }
    }
  }

  const SlideWeightGradMmaParameters& parameters_;
  SlideWeightGradMmaBlock block_;
  int thread_ = static_cast<int>(threadIdx.x);
  int lane_ = thread_ % 32;
  int warp_ = thread_ / 32;
  // Bytes of shared memory: a row of input of all streams; those before the output gradient; a group, all
  // groups of a row of the output gradient, and a step.
  uint32_t input_row_bytes_, line_bytes_, stage_bytes_;
  int grads_begin_, group_bytes_;
  float* shared_sums_;
  uint32_t shared_;
  uint32_t copies_input_;  // whether the thread copies the input, and not the output gradient
  Copies copies_;
  int steps_to_copy_;
  uint32_t copied_stage_, stage_;  // where the next step is copied to and read from
  int column_offsets_[kPairs];
  int last_offsets_[kStride == 1 ? 1 : kPairs];
  int grad_offset_;
  SlideWeightGradMmaSums<Shape> sums_ = {};
  uint32_t held_[kHeld][kOctetsOfWarp] = {};  // octets of the output gradient, the newest row first
  uint32_t before_[kOctetsOfWarp] = {};       // the last column of the row of input before
};

template <typename T, typename Shape, bool kWhole>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    slide_weight_grad_mma(const uint16_t* __restrict__ output_grad, const uint16_t* __restrict__ input,
                          float* __restrict__ partial, T* __restrict__ weight_grad,
                          const __grid_constant__ SlideWeightGradMmaParameters parameters) {
// mma.sync m16n8k16: not chosen where this is compiled for less.
#if __CUDA_ARCH__ >= 800
  SlideWeightGradMma<T, Shape, kWhole>(output_grad, input, parameters).run(partial, weight_grad);
#else
  __trap();
#endif
}

template <typename T, typename Shape>
void launch_slide_weight_grad_mma_shape(const WeightGrad<T>& pass) {
  const auto& [output_grad, input, weight_grad, workspace, geometry, layout, stream] = pass;
  const Extent& height = geometry.height;
  const Extent& width = geometry.width;
  const int64_t period = slide_weight_grad_mma_period(height);
  const SlideWeightGradMmaTile tile = SlideWeightGradMmaTiles<Shape>(geometry, slide_device()).fastest();
  TORCHGRAFT_CHECK(tile.threads > 0, pass.kName, ": no block fits this device");

  SlideWeightGradMmaParameters parameters = {};
  // Of a stride of two four times as many pieces are the input's.
  parameters.input_threads = tile.threads / 4 * (Shape::kStride == 1 ? 2 : 3);
  const int copy_bytes = copied_piece(geometry.channels, sizeof(T), common_alignment(output_grad, input));
  const auto image = [&](int64_t rows, int64_t columns, int stride, int64_t first, int threads) {
    SlideWeightGradMmaImage made = {};
    made.height = static_cast<int>(rows);
    made.width = static_cast<int>(columns);
    made.period = static_cast<int>(period) * stride;
    made.first = static_cast<int>(first);
    made.row_elements = columns * geometry.channels;
    made.stream_threads = threads / tile.streams;
    // A multiple of the stride, so that a thread's columns are of one phase.
    made.column_step = made.stream_threads / tile.groups / stride * stride;
    // Where a thread copies several columns, these are of one row, so that 32 bits hold the step.
    made.from_step = static_cast<int>(std::min(made.column_step * geometry.channels, int64_t{INT32_MAX}));
    made.to_step = made.column_step / stride * kSlidePieceBytes;
    made.copy_bytes = copy_bytes;
    return made;
  };
  parameters.input =
      image(height.input, width.input, Shape::kStride, height.padding, parameters.input_threads);
  parameters.grad = image(height.output, width.output, 1, 0, tile.threads - parameters.input_threads);
  parameters.batch = static_cast<int>(geometry.batch);
  parameters.channels = static_cast<int>(geometry.channels);
  parameters.padding = static_cast<int>(width.padding);
  parameters.slabs = FastDivisor(tile.slabs);
  parameters.tiles = FastDivisor(tile.tiles);
  parameters.groups = FastDivisor(tile.groups);
  parameters.streams = tile.streams;
  parameters.octets = FastDivisor(tile.octets);
  parameters.slots = tile.threads / 32 / tile.groups * Shape::kOctetsOfWarp;
  parameters.stream_pixels = Shape::stream_pixels(tile.octets);
  parameters.group_pixels = tile.group_pixels;
  parameters.rows = tile.rows;
  parameters.steps = ceil_divide(tile.rows + Shape::kWarm, Shape::kRows);

  const int chunks = tile.ranges * tile.tiles;
  const auto kernel = copy_bytes == kSlidePieceBytes ? slide_weight_grad_mma<T, Shape, true>
                                                     : slide_weight_grad_mma<T, Shape, false>;
  require_shared_memory(kernel, tile.shared_bytes, pass.kName);
  kernel<<<grid_of(int64_t{tile.slabs} * chunks, pass.kName), tile.threads,
           static_cast<size_t>(tile.shared_bytes), stream>>>(
      reinterpret_cast<const uint16_t*>(output_grad), reinterpret_cast<const uint16_t*>(input),
      weight_grad.partials(chunks, workspace), weight_grad.direct(chunks), parameters);
  check_launch(pass.kName);
  if (chunks > 1) launch_sum_chunks(workspace, weight_grad, geometry, chunks, stream);
}

}  // namespace

template <typename T>
void launch_slide_weight_grad_mma(const WeightGrad<T>& pass) {
  with_small_kernel(pass.geometry, [&](auto kernel, auto stride) {
    launch_slide_weight_grad_mma_shape<T, SlideWeightGradMmaShape<kernel, stride>>(pass);
  });
}

template void launch_slide_weight_grad_mma(const WeightGrad<Half>&);
template void launch_slide_weight_grad_mma(const WeightGrad<BFloat16>&);

}  // namespace torchgraft::depthwise::cuda
