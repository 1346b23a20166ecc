// Channels_last images: rows of up to 64 channels through a ring in shared memory.
//
// Each channel has an offset of its own, so neighbours in memory, which are channels, come from different
// rows and columns: in device memory that is a sector for each. A block owns the channels of 128 bytes of a
// pixel (32 bytes where rows are long or channels few) and slides down the images of its range. Source rows
// come into a ring in sixteen-byte pieces, once, four rows of results ahead. A pixel's channels fill all
// banks, so that lanes, one a word of channels, never meet, wherever each of them reads. A thread owns five
// columns of its channels, down all rows: it reads six sources of a row, and with a stride of one keeps them
// for the next. Beside a row, and in the place of rows that do not exist, the ring holds zeros, so that only
// the place of a row is tested. Channels whose rows lie further apart than the ring holds are taken in
// several passes.
//
// The results of the forward pass that lie outside the image count for the gradients of the offsets, zero
// times each. They are read after the rows of a range: between two barriers the whole block would wait for
// one of its threads.
//
// Bytes and floors are those of planes, and a few rows more for each range. Four blocks of 160 threads a
// multiprocessor keep 51 KB in flight, where 30 to 40 fill the latency of memory. On an H200 (128,64,300,25)
// takes 148 us forward and 243 backward in fp32, 78 and 178 in fp16, 78 and 150 in bf16. docs/shift.md says
// what bounds it, and what was tried.

#include <torchgraft/async_copy.cuh>

#include <algorithm>
#include <cstdint>

#include "kernels.h"
#include "supports.h"
#include "taps.cuh"

namespace torchgraft::shift::cuda {
namespace {

constexpr int kRowsOfSum = 8;    // whose products a thread adds up before it takes differences of the sums
constexpr int kNoRow = 1 << 30;  // and a span less than overflows

struct RowsParameters {
  FastDivisor stride, ring;
  FastDivisor pieces, last_pieces;  // of a pixel, in all groups of channels and in the last
  FastDivisor rows;                 // of results
  int channels, width, height, steps, source_rows;
  int chunks;
  int groups, ranges;
  int all_rows;      // of results of all images
  int span;          // of offsets in one pass
  int slots_of_row;  // by which a row of results moves in the ring
  int piece_bytes;
  int row_pitch, ring_elements;
  bool paired;  // words of channels are aligned
};

template <typename A>
__device__ A least_of_warp(A value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = min(value, __shfl_xor_sync(0xffffffff, value, distance));
  }
  return value;
}

// One channel of a thread.
template <typename T, int kPixel, bool kTransposed, bool kStrided, bool kSums>
struct Channel {
  using A = accumulate_t<T>;
  static constexpr bool kFromOneRow = kTransposed && kStrided;
  static constexpr bool kKeepsRow = !kStrided;  // the lower sources of a row are the upper ones of the next
  Taps<T, kTransposed, kStrided> taps;
  int place;        // of the leftmost source in a row of the ring, of this thread's channel
  bool is_outside;  // every source lies outside the image
  bool is_blend;    // no weight is zero
  bool reads;
  int row;   // of the lower sources, whether or not there is one
  int slot;  // of the ring, where it lies
  A upper[kColumns + 1];
  TapSums<A> sums;
  A along_x, along_y;

  // Of some rows. Differences of few sums are exact enough.
  __device__ void fold() {
    along_x += sums.along_x(taps);
    along_y += sums.along_y(taps);
    sums = {};
  }

  Channel() = default;
  __device__ Channel(T x, T y, int first_column, int element, const RowsParameters& parameters)
      : taps(x, y, parameters.width, parameters.height), along_x(0), along_y(0) {
    const int left = min(max(first_column + taps.column, -kMargin), parameters.width);
    place = (kMargin + left) * kPixel + element;
    is_outside = taps.y() >= parameters.height || taps.y() < -parameters.height;
    is_blend = taps.left != 0 && taps.right != 0 && taps.upper != 0 && taps.lower != 0;
  }

  // Six sources of a row; zeros where there is none.
  __device__ void read(const T* ring, bool is_read, int slot_of_row, const RowsParameters& parameters,
                       A (&values)[kColumns + 1]) const {
    const T* const from =
        ring + place + (is_read ? slot_of_row : parameters.ring.divisor()) * parameters.row_pitch;
#pragma unroll
    for (int i = 0; i <= kColumns; ++i) values[i] = static_cast<A>(from[i * kPixel]);
  }

  __device__ bool exists(int source_row, const RowsParameters& parameters) const {
    return reads && is_inside(source_row, parameters.source_rows);
  }

  __device__ void read_upper(const T* ring, const RowsParameters& parameters) {
    const int above = slot == 0 ? parameters.ring.divisor() - 1 : slot - 1;
    read(ring, exists(row - 1, parameters), above, parameters, upper);
  }

  // At the first row of results of a stretch, whose rows of sources are not there yet. Of a channel that is
  // not taken nothing is read: where its rows would lie, others arrive.
  __device__ void start(int result_row, bool is_taken, const RowsParameters& parameters) {
    reads = is_taken;
    if constexpr (!kFromOneRow) {
      row = result_row * (kStrided ? parameters.stride.divisor() : 1) + taps.row + 1;
      slot = row - divide_down(row, parameters.ring) * parameters.ring.divisor();
    }
  }

  // Zero times each gradient of results of the forward pass that lie outside the image: of those that rows
  // [first_row, end_row) of results answer for. Of rows that lie outside a thread takes its columns, of the
  // other rows' columns those of rows in turn: loads that do not wait for each other.
  __device__ void add_outside(const T* output_grad, int image, int first_row, int end_row, int channel,
                              int chunk, const RowsParameters& parameters) {
    const int width = parameters.width;
    if (chunk >= parameters.chunks) return;
    const Outside outside(taps, parameters.height, width, parameters.steps, parameters.stride);
    const int stride = parameters.stride.divisor();
    const int first_own = min(parameters.stride.divide(first_row + stride - 1), parameters.steps);
    const int end_own = min(parameters.stride.divide(end_row + stride - 1), parameters.steps);
    const int first_inside = min(max(outside.first_row, first_own), end_own);
    const int end_inside = max(min(outside.end_row, end_own), first_inside);
    const int64_t pitch = static_cast<int64_t>(width) * parameters.channels;
    const T* const grads = output_grad + image * parameters.steps * pitch + channel;
    const int first_column = chunk * kColumns;
    A nothing = 0;
    const int rows_outside = end_own - first_own - (end_inside - first_inside);
#pragma unroll 2
    for (int i = 0; i < rows_outside; ++i) {
      const int row =
          first_own + i < first_inside ? first_own + i : end_inside + i - (first_inside - first_own);
      const T* const from = grads + row * pitch + first_column * parameters.channels;
#pragma unroll
      for (int k = 0; k < kColumns; ++k) {
        if (first_column + k < width) nothing += A(0) * static_cast<A>(from[k * parameters.channels]);
      }
    }
    const int columns_outside = width - (outside.end_column - outside.first_column);
#pragma unroll 1
    for (int i = 0; i < columns_outside; ++i) {
      const int column = i < outside.first_column ? i : outside.end_column + i - outside.first_column;
      const T* const from = grads + column * parameters.channels;
#pragma unroll 8
      for (int row = first_inside + chunk; row < end_inside; row += parameters.chunks) {
        nothing += A(0) * static_cast<A>(from[row * pitch]);
      }
    }
    along_x += nothing;
    along_y += nothing;
  }

  // One row of results, and what its inputs add to the sums. `checks`: a weight may be zero, and what it
  // weighs be NaN or infinite. Then so are results, which are computed once more, without what weighs
  // nothing: to select every source instead takes four instructions a result, where this takes one.
  __device__ void take_row(const T* ring, int result_row, bool checks, const RowsParameters& parameters,
                           const A (&inputs)[kColumns], A (&results)[kColumns]) {
    const auto product = [](A weight, A value) { return weight * value; };
    const auto selected = [](A weight, A value) { return weight * (weight != 0 ? value : A(0)); };
    A lower[kColumns + 1];
    A blended[kColumns + 1];
    A left = 0;
    A right = 0;
    if constexpr (kFromOneRow) {
      const int distance = result_row - taps.row;
      const int source_row = divide_down(distance, parameters.stride);
      const int phase = distance - source_row * parameters.stride.divisor();
      const int row_inside = min(max(source_row, 0), parameters.source_rows);
      const int slot_of_row = row_inside - parameters.ring.divide(row_inside) * parameters.ring.divisor();
      read(ring, phase < 2 && exists(source_row, parameters), slot_of_row, parameters, lower);
      const A weight = phase == 1 ? taps.upper : taps.lower;
#pragma unroll
      for (int i = 0; i <= kColumns; ++i) blended[i] = product(weight, lower[i]);
      blend_columns(blended, product, results);
      if (checks && !are_finite(results)) {
#pragma unroll
        for (int i = 0; i <= kColumns; ++i) blended[i] = selected(weight, lower[i]);
        blend_columns(blended, selected, results);
      }
      if constexpr (kSums) {
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
          left += inputs[i] * lower[i];
          right += inputs[i] * lower[i + 1];
        }
        const A along_y_of_row = taps.left * left + taps.right * right;
        along_x += weight * (left - right);
        along_y += phase == 1 ? along_y_of_row : -along_y_of_row;
      }
    } else {
      if constexpr (!kKeepsRow) read_upper(ring, parameters);
      read(ring, exists(row, parameters), slot, parameters, lower);
#pragma unroll
      for (int i = 0; i <= kColumns; ++i) {
        blended[i] = product(taps.upper, upper[i]) + product(taps.lower, lower[i]);
      }
      blend_columns(blended, product, results);
      if (checks && !are_finite(results)) {
#pragma unroll
        for (int i = 0; i <= kColumns; ++i) {
          blended[i] = selected(taps.upper, upper[i]) + selected(taps.lower, lower[i]);
        }
        blend_columns(blended, selected, results);
      }
      if constexpr (kSums) {
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
          sums.upper_left += inputs[i] * upper[i];
          sums.upper_right += inputs[i] * upper[i + 1];
          sums.lower_left += inputs[i] * lower[i];
          sums.lower_right += inputs[i] * lower[i + 1];
        }
      }
      if constexpr (kKeepsRow) {
#pragma unroll
        for (int i = 0; i <= kColumns; ++i) upper[i] = lower[i];
      }
      const int stride = kStrided ? parameters.stride.divisor() : 1;
      row += stride;
      slot += parameters.slots_of_row;
      if (slot >= parameters.ring.divisor()) slot -= parameters.ring.divisor();
    }
  }

  __device__ static bool are_finite(const A (&results)[kColumns]) {
    A sum = results[0];
#pragma unroll
    for (int i = 1; i < kColumns; ++i) sum += results[i];
    return sum - sum == 0;
  }

  template <typename Product>
  __device__ void blend_columns(const A (&blended)[kColumns + 1], const Product& product,
                                A (&results)[kColumns]) const {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      results[i] = product(taps.left, blended[i]) + product(taps.right, blended[i + 1]);
    }
  }
};

template <typename T, Pass kPass, bool kStrided, int kBytes>
__global__ void __launch_bounds__(channels_last_resident_threads(kPass))
    channels_last(const T* __restrict__ source, const T* __restrict__ input, const T* __restrict__ x_offset,
                  const T* __restrict__ y_offset, T* __restrict__ result,
                  accumulate_t<T>* __restrict__ partial, RowsParameters parameters) {
  using A = accumulate_t<T>;
  constexpr bool kTransposed = is_transposed(kPass);
  constexpr bool kImages = has_images(kPass);
  constexpr bool kSums = has_sums(kPass);
  constexpr int kRows = rows_between_barriers(kPass);
  static_assert(kRowsAhead % kRows == 0);
  constexpr int kElements = kWord<T>;
  constexpr int kPixel = kBytes / static_cast<int>(sizeof(T));  // channels of a block
  constexpr int kLanes = kPixel / kElements;
  static_assert(32 % kLanes == 0, "all warps hold the same channels");
  using ChannelOfT = Channel<T, kPixel, kTransposed, kStrided, kSums>;

  T* const ring = shared_memory<T>();
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int group = static_cast<int>(blockIdx.x) % parameters.groups;
  const int range = static_cast<int>(blockIdx.x) / parameters.groups;
  const int width = parameters.width;
  const int stride = kStrided ? parameters.stride.divisor() : 1;
  const int lane = thread % kLanes;
  const int chunk = thread / kLanes;
  const int first_column = chunk * kColumns;
  const int columns = width - first_column;  // of this thread, if less than kColumns
  const int first_channel = group * kPixel + lane * kElements;

  for (int i = thread * kVectorElements<T>; i < parameters.ring_elements; i += threads * kVectorElements<T>) {
    *reinterpret_cast<Vector<T>*>(ring + i) = {};
  }

  ChannelOfT channels[kElements];
  bool exists[kElements];
  bool pending[kElements];
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
    const int channel = min(first_channel + e, parameters.channels - 1);
    exists[e] = pending[e] = first_channel + e < parameters.channels;
    channels[e] =
        ChannelOfT(x_offset[channel], y_offset[channel], first_column, lane * kElements + e, parameters);
  }

  // Where this thread's first piece of a row of sources lies, in memory and in the ring.
  const bool is_last_group = group == parameters.groups - 1;
  const FastDivisor& pieces = is_last_group ? parameters.last_pieces : parameters.pieces;
  const int row_pieces = width * pieces.divisor();
  const int piece_elements = parameters.piece_bytes / static_cast<int>(sizeof(T));
  const auto place_of_piece = [&](int piece, int& in_memory, int& in_ring) {
    const int column = pieces.divide(piece);
    const int element = (piece - column * pieces.divisor()) * piece_elements;
    in_memory = column * parameters.channels + element;
    in_ring = (kMargin + column) * kPixel + element;
  };
  int first_in_memory = 0;
  int first_in_ring = 0;
  place_of_piece(thread, first_in_memory, first_in_ring);
  const int64_t image_row = static_cast<int64_t>(width) * parameters.channels;

  // Copies this thread's pieces of a row, and steps on in memory and in the ring.
  const T* next_source = nullptr;  // of this thread's first piece
  int next_place = 0;
  const int end_place = first_in_ring + parameters.ring.divisor() * parameters.row_pitch;
  const auto copy_row = [&] {
    const auto copy_pieces = [&](auto bytes) {
      if (thread < row_pieces) copy_async<bytes, true>(ring + next_place, next_source);
#pragma unroll 1
      for (int piece = thread + threads; piece < row_pieces; piece += threads) {
        int in_memory, in_ring;
        place_of_piece(piece, in_memory, in_ring);
        copy_async<bytes, true>(ring + (next_place + in_ring - first_in_ring),
                                next_source + (in_memory - first_in_memory));
      }
    };
    if (parameters.piece_bytes == 16) {
      copy_pieces(std::integral_constant<int, 16>{});
    } else if (parameters.piece_bytes == 8) {
      copy_pieces(std::integral_constant<int, 8>{});
    } else if (parameters.piece_bytes == 4) {
      copy_pieces(std::integral_constant<int, 4>{});
    } else {
#pragma unroll 1
      for (int piece = thread; piece < row_pieces; piece += threads) {
        int in_memory, in_ring;
        place_of_piece(piece, in_memory, in_ring);
        ring[next_place + in_ring - first_in_ring] = next_source[in_memory - first_in_memory];
      }
    }
    next_source += image_row;
    next_place += parameters.row_pitch;
    if (next_place == end_place) next_place = first_in_ring;
  };

  while (true) {
    // The channels of this pass: from the one whose rows lie highest, as far as the ring reaches. All warps
    // hold the same channels.
    int low = kNoRow;
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      if (pending[e] && !channels[e].is_outside) low = min(low, channels[e].taps.row);
    }
    low = least_of_warp(low);
    bool taken[kElements];
    bool is_any_pending = false;
    int minus_high = kNoRow;
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      is_any_pending = is_any_pending || pending[e];
      const bool is_near = channels[e].is_outside || channels[e].taps.row <= low + parameters.span;
      taken[e] = pending[e] && is_near;
      pending[e] = pending[e] && !is_near;
      if (taken[e] && !channels[e].is_outside) minus_high = min(minus_high, -channels[e].taps.row);
    }
    if (!__any_sync(0xffffffff, is_any_pending)) break;
    const bool is_any_inside = low != kNoRow;
    const int least = least_of_warp(minus_high);
    const int high = is_any_inside ? -least : 0;
    if (!is_any_inside) low = 0;
    // All channels of the word, and it can be accessed as one.
    const bool can_be_whole = kElements == 1 || parameters.paired;
    [[maybe_unused]] const bool is_whole = can_be_whole && exists[0];
    [[maybe_unused]] const bool is_whole_result = can_be_whole && taken[0] && taken[kElements - 1];
    if constexpr (kSums) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) channels[e].along_x = channels[e].along_y = 0;
    }

    bool is_blend = true;
#pragma unroll
    for (int e = 0; e < kElements; ++e) is_blend = is_blend && channels[e].is_blend;
    const bool is_blend_of_warp = __all_sync(0xffffffff, is_blend);

    int begin = static_cast<int>(int64_t{parameters.all_rows} * range / parameters.ranges);
    const int end = static_cast<int>(int64_t{parameters.all_rows} * (range + 1) / parameters.ranges);
    while (begin < end) {
      const int image = parameters.rows.divide(begin);
      const int first_row = begin - image * parameters.rows.divisor();
      const int end_row = min(parameters.rows.divisor(), first_row + end - begin);
      begin += end_row - first_row;

      // Rows of sources from `next_row` on are not yet copied.
      int next_row = 0;
      if constexpr (kTransposed && kStrided) {
        next_row = max(divide_down(first_row - high, parameters.stride), 0);
      } else {
        next_row = max(first_row * stride + low, 0);
      }
      next_source = source + (static_cast<int64_t>(image) * parameters.source_rows + next_row) * image_row +
                    group * kPixel + first_in_memory;
      next_place = first_in_ring + (next_row - parameters.ring.divide(next_row) * parameters.ring.divisor()) *
                                       parameters.row_pitch;
      const auto begin_copies = [&](int row) {
        if (is_any_inside && row < end_row) {
          const int last_row = min(row + kRows, end_row) - 1;
          int last = 0;
          if constexpr (kTransposed && kStrided) {
            last = divide_down(last_row - low, parameters.stride);
          } else {
            last = last_row * stride + high + 1;
          }
          last = min(last, parameters.source_rows - 1);
#pragma unroll 1
          for (; next_row <= last; ++next_row) copy_row();
        }
        commit_copies();
      };
      const int64_t first_pixel =
          (static_cast<int64_t>(image) * parameters.rows.divisor() + first_row) * image_row +
          static_cast<int64_t>(first_column) * parameters.channels + first_channel;
      [[maybe_unused]] const T* next_input = kSums ? input + first_pixel : nullptr;
      [[maybe_unused]] T* to = kImages ? result + first_pixel : nullptr;
      const auto load_inputs = [&](Word<T>(&inputs)[kColumns]) {
        if (is_whole && columns >= kColumns) {
#pragma unroll
          for (int i = 0; i < kColumns; ++i) {
            inputs[i] = *reinterpret_cast<const Word<T>*>(next_input + i * parameters.channels);
          }
        } else if (is_whole) {
#pragma unroll
          for (int i = 0; i < kColumns; ++i) {
            if (i < columns) {
              inputs[i] = *reinterpret_cast<const Word<T>*>(next_input + i * parameters.channels);
            }
          }
        } else {
#pragma unroll
          for (int e = 0; e < kElements; ++e) {
            if (!exists[e]) continue;
#pragma unroll
            for (int i = 0; i < kColumns; ++i) {
              if (i < columns) inputs[i][e] = next_input[i * parameters.channels + e];
            }
          }
        }
        next_input += image_row;
      };

      // Nobody reads the ring any more, and its zeros are there.
      __syncthreads();
#pragma unroll 1
      for (int ahead = 0; ahead < kRowsAhead; ahead += kRows) begin_copies(first_row + ahead);
#pragma unroll
      for (int e = 0; e < kElements; ++e) channels[e].start(first_row, taken[e], parameters);
      // What lies outside stays zero.
      [[maybe_unused]] Word<T> next_inputs[kColumns] = {};
      if constexpr (kSums) load_inputs(next_inputs);

      const auto take_row = [&](int row) {
        A inputs[kElements][kColumns] = {};
        if constexpr (kSums) {
#pragma unroll
          for (int i = 0; i < kColumns; ++i) {
            A values[kElements];
            widen<T>(next_inputs[i], values);
#pragma unroll
            for (int e = 0; e < kElements; ++e) inputs[e][i] = values[e];
          }
          if (row + 1 < end_row) load_inputs(next_inputs);
        }

        // Also of channels that are not taken: what comes of them is not used.
        A results[kElements][kColumns];
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          channels[e].take_row(ring, row, kImages && !is_blend_of_warp, parameters, inputs[e], results[e]);
        }
        if constexpr (kImages) {
          Word<T> rounded[kColumns];
#pragma unroll
          for (int i = 0; i < kColumns; ++i) {
            A values[kElements];
#pragma unroll
            for (int e = 0; e < kElements; ++e) values[e] = results[e][i];
            rounded[i] = round<T>(values);
          }
          if (is_whole_result && columns >= kColumns) {
#pragma unroll
            for (int i = 0; i < kColumns; ++i)
              *reinterpret_cast<Word<T>*>(to + i * parameters.channels) = rounded[i];
          } else if (is_whole_result) {
#pragma unroll
            for (int i = 0; i < kColumns; ++i) {
              if (i < columns) *reinterpret_cast<Word<T>*>(to + i * parameters.channels) = rounded[i];
            }
          } else {
#pragma unroll
            for (int e = 0; e < kElements; ++e) {
              if (!taken[e]) continue;
#pragma unroll
              for (int i = 0; i < kColumns; ++i) {
                if (i < columns) to[i * parameters.channels + e] = rounded[i][e];
              }
            }
          }
          to += image_row;
        }
      };

#pragma unroll 1
      for (int row = first_row; row < end_row; row += kRows) {
        wait_for_copies<kRowsAhead / kRows - 1>();
        __syncthreads();
        begin_copies(row + kRowsAhead);
        if constexpr (ChannelOfT::kKeepsRow) {
          if (row == first_row) {
#pragma unroll
            for (int e = 0; e < kElements; ++e) channels[e].read_upper(ring, parameters);
          }
        }
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          if (row + i < end_row) take_row(row + i);
        }
        if constexpr (kSums && !ChannelOfT::kFromOneRow) {
          if ((row - first_row) % kRowsOfSum == kRowsOfSum - kRows) {
#pragma unroll
            for (int e = 0; e < kElements; ++e) channels[e].fold();
          }
        }
      }
      if constexpr (kSums) {
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          if constexpr (!ChannelOfT::kFromOneRow) channels[e].fold();
          if (taken[e])
            channels[e].add_outside(source, image, first_row, end_row, first_channel + e, chunk, parameters);
        }
      }
    }

    if constexpr (kSums) {
      // Of the rows and columns of threads, in order. Places: [element][direction][thread].
      A* const scratch = reinterpret_cast<A*>(ring + parameters.ring_elements);
      __syncthreads();
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        scratch[(2 * e) * threads + thread] = channels[e].along_x;
        scratch[(2 * e + 1) * threads + thread] = channels[e].along_y;
      }
      __syncthreads();
      const int used = kLanes * parameters.chunks;
      if (thread < kLanes) {
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          if (!taken[e]) continue;
          for (int direction = 0; direction < 2; ++direction) {
            const A* const sums = scratch + (2 * e + direction) * threads;
            A sum = 0;
            for (int i = thread; i < used; i += kLanes) sum += sums[i];
            partial[(static_cast<int64_t>(direction) * parameters.channels + first_channel + e) *
                        parameters.ranges +
                    range] = sum;
          }
        }
      }
    }
  }
}

template <typename T, Pass kPass, bool kStrided, int kBytes>
void launch(const Arguments<T>& arguments, const Plan& plan, const RowsParameters& parameters,
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

// The greatest number of bytes, at most sixteen, in which channels can be copied.
template <typename T>
int piece_of(const Arguments<T>& arguments) {
  const uintptr_t bits = uintptr_t{16} | reinterpret_cast<uintptr_t>(arguments.source) |
                         static_cast<uintptr_t>(arguments.geometry.channels) * sizeof(T);
  return static_cast<int>(bits & (~bits + 1));
}

}  // namespace

template <typename T>
void launch_channels_last(const Arguments<T>& arguments, Pass pass, const Plan& plan,
                          accumulate_t<T>* partial, cudaStream_t stream) {
  const Geometry& geometry = arguments.geometry;
  const bool transposed = is_transposed(pass);
  const int width = static_cast<int>(geometry.width);
  const int channels = static_cast<int>(geometry.channels);
  const int group = plan.pixel_bytes / static_cast<int>(sizeof(T));
  const int groups = ceil_divide(channels, group);
  const int piece = std::max(piece_of(arguments), static_cast<int>(sizeof(T)));
  // Of two bytes there are no copies ahead; they go one by one.
  const int piece_elements = piece / static_cast<int>(sizeof(T));
  RowsParameters parameters;
  parameters.stride = FastDivisor(stride_of(geometry));
  parameters.ring = FastDivisor(plan.stage_rows);
  parameters.pieces = FastDivisor(std::min(group, channels) / piece_elements);
  parameters.last_pieces = FastDivisor((channels - (groups - 1) * group) / piece_elements);
  parameters.rows = FastDivisor(static_cast<int>(arguments.result_rows(transposed)));
  parameters.channels = channels;
  parameters.width = width;
  parameters.height = static_cast<int>(geometry.height);
  parameters.steps = static_cast<int>(geometry.steps);
  parameters.source_rows = static_cast<int>(arguments.source_rows(transposed));
  parameters.chunks = ceil_divide(width, kColumns);
  parameters.groups = groups;
  parameters.ranges = static_cast<int>(plan.parts);
  parameters.all_rows = static_cast<int>(geometry.batch) * parameters.rows.divisor();
  parameters.span = plan.span;
  parameters.slots_of_row = stride_of(geometry) % plan.stage_rows;
  parameters.piece_bytes = piece;
  parameters.row_pitch = (width + kMargin) * group;
  parameters.ring_elements = kMargin * group + (plan.stage_rows + 1) * parameters.row_pitch;
  TORCHGRAFT_CHECK(is_aligned(arguments.result, kWord<T> * sizeof(T)),
                   "shift: a result must begin at a multiple of a word");
  parameters.paired =
      channels % kWord<T> == 0 && (kWord<T> == 1 || is_aligned(arguments.input, kWord<T> * sizeof(T)));

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
