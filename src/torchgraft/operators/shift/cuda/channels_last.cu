// Channels_last images: rows of up to 64 channels through a ring in shared memory.
//
// Each channel has an offset of its own, so neighbours in memory, which are channels, come from different
// rows and columns: in device memory that is a sector for each. A block owns the channels of 128 bytes of a
// pixel (32 bytes where rows are long or channels few) and slides down the images of its range. Source rows
// come into a ring in sixteen-byte pieces, once, four rows of results ahead. A pixel's channels fill all
// banks, so lanes, one a word of channels, never collide, wherever each of them reads. A thread owns five
// columns of its channels, down all rows: it reads six sources of a row, and with a stride of one keeps them
// for the next. Beside a row, and in the place of rows that do not exist, the ring holds zeros, so only the
// place of a row is tested. Channels whose rows lie further apart than the ring holds are taken in several
// passes.
//
// The results of the forward pass that lie outside the image count for the gradients of the offsets, zero
// times each. They are read after the rows of a range: between two barriers the whole block would wait for
// one of its threads.
//
// The bytes and the least times are those of planes, and a few rows more for each range. Four blocks of 160
// threads a multiprocessor keep 51 KB in flight; 30 to 40 KB hide the latency of memory. On an H200
// (128,64,300,25) takes 148 us forward and 243 backward in fp32, 78 and 178 in fp16, 78 and 150 in bf16.
// docs/shift.md says what bounds it, and what was tried.

#include <torchgraft/async_copy.cuh>

#include <cstdint>

#include "channels_last.h"
#include "channels_last_channel.cuh"
#include "channels_last_ring.cuh"
#include "kernels.h"
#include "supports.h"
#include "taps.cuh"

namespace torchgraft::shift::cuda {
namespace {

constexpr int kRowsOfSum = 8;    // rows of results whose products are summed before differences are taken
constexpr int kNoRow = 1 << 30;  // no channel lies in this row; a span less than overflows

template <typename A>
__device__ A least_of_warp(A value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = min(value, __shfl_xor_sync(0xffffffff, value, distance));
  }
  return value;
}

// A block owns a group of channels and a range of rows of results of all images.
template <typename T, Pass kPass, bool kStrided, int kBytes>
class ChannelsLastBlock {
 public:
  using A = accumulate_t<T>;
  static constexpr int kElements = kWord<T>;
  static constexpr int kPixel = kBytes / static_cast<int>(sizeof(T));  // channels of a block
  using Channel = ChannelsLastChannel<T, kPixel, is_transposed(kPass), kStrided, has_sums(kPass)>;
  // The channels of a thread.
  struct Lane {
    Channel channels[kElements];
    bool exists[kElements];
    bool pending[kElements];  // in a later pass
    bool taken[kElements];    // in this pass
  };

  __device__ ChannelsLastBlock(const T* source, const T* input, T* result, A* partial, Lane& lane,
                               const ChannelsLastParameters& parameters)
      : source_(source),
        input_(input),
        result_(result),
        partial_(partial),
        parameters_(parameters),
        ring_(shared_memory<T>()),
        thread_(static_cast<int>(threadIdx.x)),
        threads_(static_cast<int>(blockDim.x)),
        group_(static_cast<int>(blockIdx.x) % parameters.groups),
        range_(static_cast<int>(blockIdx.x) / parameters.groups),
        lane_(thread_ % kLanes),
        chunk_(thread_ / kLanes),
        first_column_(chunk_ * kColumns),
        columns_(parameters.width - first_column_),
        first_channel_(group_ * kPixel + lane_ * kElements),
        copies_(parameters),
        channels_(lane.channels),
        exists_(lane.exists),
        pending_(lane.pending),
        taken_(lane.taken) {}

  __device__ void run(const T* x_offset, const T* y_offset) {
    clear_ring();
    load_channels(x_offset, y_offset);
    copies_.open(ring_, group_);
    image_row_ = static_cast<int64_t>(parameters_.width) * parameters_.channels;
    while (choose_channels()) {
      int row = static_cast<int>(int64_t{parameters_.all_rows} * range_ / parameters_.ranges);
      const int end = static_cast<int>(int64_t{parameters_.all_rows} * (range_ + 1) / parameters_.ranges);
      while (row < end) {
        start_image(row, end);
        row += end_row_ - first_row_;
        take_rows();
        if constexpr (kSums) finish_sums();
      }
      if constexpr (kSums) store_sums();
    }
  }

 private:
  static constexpr bool kTransposed = is_transposed(kPass);
  static constexpr bool kImages = has_images(kPass);
  static constexpr bool kSums = has_sums(kPass);
  static constexpr int kRows = rows_between_barriers(kPass);
  static_assert(kRowsAhead % kRows == 0);
  static constexpr int kLanes = kPixel / kElements;
  static_assert(32 % kLanes == 0, "all warps hold the same channels");

  __device__ int stride() const { return kStrided ? parameters_.stride.divisor() : 1; }

  __device__ void clear_ring() const {
    constexpr int kPiece = kVectorElements<T>;
    for (int i = thread_ * kPiece; i < parameters_.ring_elements; i += threads_ * kPiece) {
      *reinterpret_cast<Vector<T>*>(ring_ + i) = {};
    }
  }

  __device__ void load_channels(const T* x_offset, const T* y_offset) {
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const int channel = min(first_channel_ + e, parameters_.channels - 1);
      exists_[e] = pending_[e] = first_channel_ + e < parameters_.channels;
      channels_[e] =
          Channel(x_offset[channel], y_offset[channel], first_column_, lane_ * kElements + e, parameters_);
    }
  }

  // Chooses the channels of the next pass: from the one whose rows lie highest, as far as the ring reaches.
  // False if no channel is left. All warps hold the same channels, and so choose alike.
  __device__ bool choose_channels() {
    low_ = kNoRow;
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      if (pending_[e] && !channels_[e].is_outside) low_ = min(low_, channels_[e].taps.row);
    }
    low_ = least_of_warp(low_);
    bool is_any_pending = false;
    int minus_high = kNoRow;
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      is_any_pending = is_any_pending || pending_[e];
      const bool is_near = channels_[e].is_outside || channels_[e].taps.row <= low_ + parameters_.span;
      taken_[e] = pending_[e] && is_near;
      pending_[e] = pending_[e] && !is_near;
      if (taken_[e] && !channels_[e].is_outside) minus_high = min(minus_high, -channels_[e].taps.row);
    }
    if (!__any_sync(0xffffffff, is_any_pending)) return false;
    is_any_inside_ = low_ != kNoRow;
    const int least = least_of_warp(minus_high);
    high_ = is_any_inside_ ? -least : 0;
    if (!is_any_inside_) low_ = 0;
    const bool can_be_whole = kElements == 1 || parameters_.paired;
    is_whole_ = can_be_whole && exists_[0];
    is_whole_result_ = can_be_whole && taken_[0] && taken_[kElements - 1];
    if constexpr (kSums) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) channels_[e].along_x = channels_[e].along_y = 0;
    }
    bool is_blend = true;
#pragma unroll
    for (int e = 0; e < kElements; ++e) is_blend = is_blend && channels_[e].is_blend;
    is_blend_of_warp_ = __all_sync(0xffffffff, is_blend);
    return true;
  }

  // Goes to row `begin` of all images' rows: the stretch from there to the end of its image, or to `end`.
  __device__ void start_image(int begin, int end) {
    image_ = parameters_.rows.divide(begin);
    first_row_ = begin - image_ * parameters_.rows.divisor();
    end_row_ = min(parameters_.rows.divisor(), first_row_ + end - begin);
    if constexpr (kTransposed && kStrided) {
      next_row_ = max(divide_down(first_row_ - high_, parameters_.stride), 0);
    } else {
      next_row_ = max(first_row_ * stride() + low_, 0);
    }
    const int64_t source_row = static_cast<int64_t>(image_) * parameters_.source_rows + next_row_;
    copies_.start(source_ + source_row * image_row_ + group_ * kPixel, next_row_);
    const int64_t first_pixel =
        (static_cast<int64_t>(image_) * parameters_.rows.divisor() + first_row_) * image_row_ +
        static_cast<int64_t>(first_column_) * parameters_.channels + first_channel_;
    next_input_ = kSums ? input_ + first_pixel : nullptr;
    to_ = kImages ? result_ + first_pixel : nullptr;
  }

  // Begins to copy the sources of kRows rows of results, from `row` on, as far as they are not there.
  __device__ void begin_copies(int row) {
    if (is_any_inside_ && row < end_row_) {
      const int last_row = min(row + kRows, end_row_) - 1;
      int last = 0;
      if constexpr (kTransposed && kStrided) {
        last = divide_down(last_row - low_, parameters_.stride);
      } else {
        last = last_row * stride() + high_ + 1;
      }
      last = min(last, parameters_.source_rows - 1);
#pragma unroll 1
      for (; next_row_ <= last; ++next_row_) copies_.copy_row();
    }
    commit_copies();
  }

  __device__ void take_rows() {
    // Nobody reads the ring any more, and its zeros are there.
    __syncthreads();
#pragma unroll 1
    for (int ahead = 0; ahead < kRowsAhead; ahead += kRows) begin_copies(first_row_ + ahead);
#pragma unroll
    for (int e = 0; e < kElements; ++e) channels_[e].start(first_row_, taken_[e], parameters_);
    // Inputs beside the image stay zero.
    [[maybe_unused]] Word<T> next_inputs[kColumns] = {};
    if constexpr (kSums) load_inputs(next_inputs);
#pragma unroll 1
    for (int row = first_row_; row < end_row_; row += kRows) {
      wait_for_copies<kRowsAhead / kRows - 1>();
      __syncthreads();
      begin_copies(row + kRowsAhead);
      if constexpr (Channel::kKeepsRow) {
        if (row == first_row_) {
#pragma unroll
          for (int e = 0; e < kElements; ++e) channels_[e].read_upper(ring_, parameters_);
        }
      }
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (kRows == 1 || row + i < end_row_) take_row(row + i, next_inputs);
      }
      if constexpr (kSums && !Channel::kFromOneRow) {
        if ((row - first_row_) % kRowsOfSum == kRowsOfSum - kRows) {
#pragma unroll
          for (int e = 0; e < kElements; ++e) channels_[e].fold();
        }
      }
    }
  }

  // Computes a row of results. The inputs of the next row are on their way meanwhile.
  __device__ void take_row(int row, Word<T> (&next_inputs)[kColumns]) {
    A inputs[kElements][kColumns] = {};
    if constexpr (kSums) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        A values[kElements];
        widen<T>(next_inputs[i], values);
#pragma unroll
        for (int e = 0; e < kElements; ++e) inputs[e][i] = values[e];
      }
      if (row + 1 < end_row_) load_inputs(next_inputs);
    }
    // Channels that are not taken compute too; nothing uses their results.
    A results[kElements][kColumns];
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      channels_[e].take_row(ring_, row, kImages && !is_blend_of_warp_, parameters_, inputs[e], results[e]);
    }
    if constexpr (kImages) store_results(results);
  }

  __device__ void load_inputs(Word<T> (&inputs)[kColumns]) {
    if (is_whole_ && columns_ >= kColumns) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        inputs[i] = *reinterpret_cast<const Word<T>*>(next_input_ + i * parameters_.channels);
      }
    } else if (is_whole_) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        if (i < columns_) {
          inputs[i] = *reinterpret_cast<const Word<T>*>(next_input_ + i * parameters_.channels);
        }
      }
    } else {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        if (!exists_[e]) continue;
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
          if (i < columns_) inputs[i][e] = next_input_[i * parameters_.channels + e];
        }
      }
    }
    next_input_ += image_row_;
  }

  __device__ void store_results(const A (&results)[kElements][kColumns]) {
    Word<T> rounded[kColumns];
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      A values[kElements];
#pragma unroll
      for (int e = 0; e < kElements; ++e) values[e] = results[e][i];
      rounded[i] = round<T>(values);
    }
    if (is_whole_result_ && columns_ >= kColumns) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        *reinterpret_cast<Word<T>*>(to_ + i * parameters_.channels) = rounded[i];
      }
    } else if (is_whole_result_) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        if (i < columns_) *reinterpret_cast<Word<T>*>(to_ + i * parameters_.channels) = rounded[i];
      }
    } else {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        if (!taken_[e]) continue;
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
          if (i < columns_) to_[i * parameters_.channels + e] = rounded[i][e];
        }
      }
    }
    to_ += image_row_;
  }

  // Adds the last rows of a stretch, and what its results outside the image contribute.
  __device__ void finish_sums() {
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      if constexpr (!Channel::kFromOneRow) channels_[e].fold();
      if (taken_[e]) {
        channels_[e].add_outside(source_, image_, first_row_, end_row_, first_channel_ + e, chunk_,
                                 parameters_);
      }
    }
  }

  // Adds up the sums of the block's threads, in order, for each channel that was taken.
  __device__ void store_sums() const {
    // [element][direction][thread]
    A* const scratch = reinterpret_cast<A*>(ring_ + parameters_.ring_elements);
    __syncthreads();
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      scratch[(2 * e) * threads_ + thread_] = channels_[e].along_x;
      scratch[(2 * e + 1) * threads_ + thread_] = channels_[e].along_y;
    }
    __syncthreads();
    const int used = kLanes * parameters_.chunks;
    if (thread_ < kLanes) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        if (!taken_[e]) continue;
        for (int direction = 0; direction < 2; ++direction) {
          const A* const sums = scratch + (2 * e + direction) * threads_;
          A sum = 0;
          for (int i = thread_; i < used; i += kLanes) sum += sums[i];
          partial_[(static_cast<int64_t>(direction) * parameters_.channels + first_channel_ + e) *
                       parameters_.ranges +
                   range_] = sum;
        }
      }
    }
  }

  const T* source_;
  const T* input_;
  T* result_;
  A* partial_;
  const ChannelsLastParameters& parameters_;
  T* ring_;  // in shared memory
  int thread_, threads_, group_, range_;
  int lane_, chunk_;            // this thread's word of channels, and its columns
  int first_column_, columns_;  // columns up to the image's end, if less than kColumns
  int first_channel_;
  int64_t image_row_;  // elements of a row of an image
  ChannelsLastCopies<T, kPixel> copies_;
  // The arrays of a Lane. They lie outside of this class: while a loop over one is not unrolled, the compiler
  // keeps the whole object that holds it in memory.
  Channel (&channels_)[kElements];
  bool (&exists_)[kElements];
  bool (&pending_)[kElements];
  bool (&taken_)[kElements];

  // The pass that goes on.
  bool is_any_inside_;     // else no channel has sources
  bool is_whole_;          // all channels of the word exist, and it can be accessed as one
  bool is_whole_result_;   // they are all taken, too
  bool is_blend_of_warp_;  // no weight of the warp is zero
  int low_, high_;         // the least and the greatest row offset of a channel that is taken
  // The stretch of rows of one image.
  int image_, first_row_, end_row_;
  int next_row_;  // the first row of sources that is not yet copied
  const T* next_input_;
  T* to_;
};

template <typename T, Pass kPass, bool kStrided, int kBytes>
__global__ void __launch_bounds__(channels_last_resident_threads(kPass))
    channels_last(const T* __restrict__ source, const T* __restrict__ input, const T* __restrict__ x_offset,
                  const T* __restrict__ y_offset, T* __restrict__ result,
                  accumulate_t<T>* __restrict__ partial, ChannelsLastParameters parameters) {
  using Block = ChannelsLastBlock<T, kPass, kStrided, kBytes>;
  typename Block::Lane lane;
  Block(source, input, result, partial, lane, parameters).run(x_offset, y_offset);
}

template <typename T, Pass kPass, bool kStrided, int kBytes>
void launch(const Arguments<T>& arguments, const Plan& plan, const ChannelsLastParameters& parameters,
            accumulate_t<T>* partial, cudaStream_t stream) {
  const char* name = is_transposed(kPass) ? "shift_grads" : "shift";
  require_shared_memory(channels_last<T, kPass, kStrided, kBytes>, plan.shared_bytes, name);
  channels_last<T, kPass, kStrided, kBytes>
      <<<static_cast<unsigned>(plan.blocks), static_cast<unsigned>(plan.threads),
         static_cast<size_t>(plan.shared_bytes), stream>>>(arguments.source, arguments.input,
                                                           arguments.x_offset, arguments.y_offset,
                                                           arguments.result, partial, parameters);
  check_launch(name);
}

}  // namespace

template <typename T>
void launch_channels_last(const Arguments<T>& arguments, Pass pass, const Plan& plan,
                          accumulate_t<T>* partial, cudaStream_t stream) {
  const Geometry& geometry = arguments.geometry;
  const bool transposed = is_transposed(pass);
  const ChannelsLastSizes sizes(plan, geometry, sizeof(T), reinterpret_cast<uintptr_t>(arguments.source));
  ChannelsLastParameters parameters;
  parameters.stride = FastDivisor(stride_of(geometry));
  parameters.ring = FastDivisor(plan.stage_rows);
  parameters.pieces = FastDivisor(sizes.pieces);
  parameters.last_pieces = FastDivisor(sizes.last_pieces);
  parameters.rows = FastDivisor(static_cast<int>(arguments.result_rows(transposed)));
  parameters.channels = static_cast<int>(geometry.channels);
  parameters.width = static_cast<int>(geometry.width);
  parameters.height = static_cast<int>(geometry.height);
  parameters.steps = static_cast<int>(geometry.steps);
  parameters.source_rows = static_cast<int>(arguments.source_rows(transposed));
  parameters.chunks = sizes.chunks;
  parameters.groups = sizes.groups;
  parameters.ranges = static_cast<int>(plan.parts);
  parameters.all_rows = static_cast<int>(geometry.batch) * parameters.rows.divisor();
  parameters.span = plan.span;
  parameters.slots_of_row = sizes.slots_of_row;
  parameters.piece_bytes = sizes.piece_bytes;
  parameters.row_pitch = sizes.row_pitch;
  parameters.ring_elements = sizes.ring_elements;
  TORCHGRAFT_CHECK(is_aligned(arguments.result, kWord<T> * sizeof(T)),
                   "shift: a result must begin at a multiple of a word");
  parameters.paired = parameters.channels % kWord<T> == 0 &&
                      (kWord<T> == 1 || is_aligned(arguments.input, kWord<T> * sizeof(T)));

  with_pass(pass, [&](auto constant) {
    constexpr Pass kPass = constant;
    const auto launch_pixels = [&](auto bytes) {
      if (geometry.stride > 1) {
        launch<T, kPass, true, bytes>(arguments, plan, parameters, partial, stream);
      } else {
        launch<T, kPass, false, bytes>(arguments, plan, parameters, partial, stream);
      }
    };
    if (plan.pixel_bytes == kPixelBytes) return launch_pixels(std::integral_constant<int, kPixelBytes>{});
    launch_pixels(std::integral_constant<int, kNarrowPixelBytes>{});
  });
}

#define SHIFT_CHANNELS_LAST(T) \
  template void launch_channels_last(const Arguments<T>&, Pass, const Plan&, accumulate_t<T>*, cudaStream_t);
SHIFT_CHANNELS_LAST(double)
SHIFT_CHANNELS_LAST(float)
SHIFT_CHANNELS_LAST(Half)
SHIFT_CHANNELS_LAST(BFloat16)
#undef SHIFT_CHANNELS_LAST

}  // namespace torchgraft::shift::cuda
