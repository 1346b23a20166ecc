// Weight gradient of float16 and bfloat16 images on tensor cores: NHWC, k = 3, 5, 7, stride 1 and 2, an even
// number of channels.
//
// The product of sixteen pixels of eight channels of the input, for two taps at once, with the same pixels of
// the output gradient
//   D[(tap, c)][d] = sum over pixels of input[pixel * stride + tap][c] * output_grad[pixel][d]
// holds the sums of both taps on its diagonals c == d. The rest, seven eighths, is of no use and nearly free:
// nothing need be converted or turned around before, for ldmatrix.trans reads both operands from pixels as
// they lie in memory, shifted by any tap. A warp owns eight channels and some octets (eight neighbouring
// pixels) of each row, and keeps D of all taps and the latest rows of the output gradient in registers: every
// row of either image is read from shared memory once for each tap column. Taps go in pairs of neighbouring
// columns; those of the last column, which has no neighbour, in pairs of neighbouring rows.
//
// A block owns a few groups of channels, some columns, and one or more streams: stretches of the rows of all
// images, which are one sequence. Between an image and the next there are only so many rows of zeros that no
// tap joins the two, so that sums go on from one to the next and nothing but copies knows of images. Octets
// of a row, and of all streams, are dealt to warps: narrow images fill them by several streams. Rows come by
// cp.async, several ahead; columns outside the image are zeroed once, rows outside take zeros as copies. In
// the end the warps of a group are added up, as one chunk of partial sums for the second pass or, if there is
// but one chunk, the gradient itself.
//
// For sixteen pixels of eight channels a multiprocessor of an H200 has 29 clocks until memory brings the
// next. k = 3, 5, 7 take 5, 13, 25 products, 8, 21, 40 clocks at the rate of mma.sync, and 10, 14, 20 clocks
// of shared memory, copies included; a warp issues 65, 115, 150 instructions, a quarter of these clocks.
// Predicted, with the second pass: (128,32,112x112,k3) 64 us, (128,144,56x56,k3) 70, (128,240,28x28,k5) 38,
// (128,96,56x56,k7) 80. Measured on an H200: 69, 83, 56, 119; (128,96,112x112,k3,s2) 114. Copies alone take
// 67, 79, 43 and 71 of it, products alone 41, 45, 42 and 91: products reach half of their rate, for warps are
// few and each waits for its own; where the two balance they add up in part.
//
// A NaN or an infinity in a channel may make any gradient of that channel NaN, but none of another channel.

#include <torchgraft/ptx.cuh>

#include "../diagonals/diagonals.cuh"
#include "../index.cuh"
#include "../kernels.h"
#include "../supports.h"
#include "stream.cuh"

namespace torchgraft::depthwise::cuda {
namespace {

constexpr int kGroup = 8;  // channels, of one piece of sixteen bytes
constexpr int kPieceBytes = 16;
constexpr int kMostGroups = 8;  // of a block
constexpr int kMostStreams = 8;

template <int kKernelSize, int kStrideSize>
struct DiagonalShape {
  static constexpr int kKernel = kKernelSize;
  static constexpr int kStride = kStrideSize;
  // What may be tuned. Threads of a multiprocessor, and so of a block at most: 80, 128, 168 registers each.
  static constexpr int kThreads = kKernel == 3 ? 768 : kKernel == 5 ? 512 : 384;
  // Octets that a warp owns, by pairs: as many as registers hold, for each of them takes a loop's overhead.
  static constexpr int kPairs = kKernel == 3 || (kKernel == 5 && kStride == 1) ? 2 : 1;
  static constexpr int kRows =
      kKernel == 5 && kStride == 1 ? 1 : 2;  // of the output gradient between two barriers
  static constexpr int kStages = kRows == 1 ? 6 : kKernel == 3 ? 3 : 4;  // of so many rows, in shared memory

  static constexpr int kWarm = (kKernel - 1) / kStride;
  static constexpr int kColumnPairs = kKernel / 2;
  static constexpr int kRowPairs = (kKernel + 1) / 2;
  static constexpr int kTaps = kKernel * kKernel;
  static constexpr int kOctetsOfWarp = 2 * kPairs;
  static constexpr int kProducts = kKernel * kColumnPairs + kRowPairs;
};

// One image in the sequence of the rows of all: rows `first` to `first + height` of each `period` are an
// image's, the others zeros.
struct DiagonalImage {
  int height, width, period, first;
  int64_t row_elements;
  int stream_threads;      // that copy a stream
  int column_step;         // between the columns that a thread copies
  int from_step, to_step;  // the same in elements, and in bytes of shared memory
  int copy_bytes;          // of one copy: a piece, or a half or a quarter of one
};

struct DiagonalParameters {
  DiagonalImage input, grad;
  int batch, channels, padding;  // padding: columns before the image
  FastDivisor slabs, tiles;      // of the channels, of the columns; blockIdx.x counts slabs fastest
  FastDivisor groups;            // of a block
  int streams;                   // of a block
  int input_threads;             // that copy the input; the others, the output gradient
  FastDivisor octets;            // of a stream
  int slots;                     // octets of a block, rounded up to what its warps own
  int stream_pixels;             // of an input row of a stream in shared memory
  int group_pixels;              // of all that belongs to a row of the output gradient, from group to group
  int rows;                      // of the sequence of the output gradient that a stream owns
  int steps;
};

// Shared memory holds, for each row of the output gradient, and each group of channels,
//   [row of input][stream][phase of the stride][column], then the output gradient's [stream][column],
// pieces of sixteen bytes. Columns of one phase are neighbours, so that ldmatrix finds any eight pixels in
// different banks.
template <typename Shape>
struct DiagonalLayout {
  static __host__ __device__ constexpr int phase_pixels(int octets) {
    return kOctet * octets + (Shape::kKernel - 1) / Shape::kStride;
  }
  static __host__ __device__ constexpr int stream_pixels(int octets) {
    return Shape::kStride * phase_pixels(octets);
  }
};

// A thread's part in copying the rows of one image: a piece of one group in some columns of one stream.
// kWhole: pieces are copied at once. Else the last group may have fewer than eight channels, and the rest of
// its pieces is zeros.
template <typename Element, bool kWhole>
class DiagonalCopies {
 public:
  // Of `columns` columns, the first of which is column `first_column` of the image, these are `column` and
  // every one that is image.column_step further. Pieces go to shared memory from byte `target` on, phase by
  // phase of the stride, `phase_pixels` each. Rows of the sequence are `position` to `end`; behind are zeros.
  __device__ DiagonalCopies(const DiagonalImage& image, const Element* memory, int channels, int channel,
                            int column, int columns, int first_column, int target, int phases,
                            int phase_pixels, int position, int end) {
    const int left = max(0, -first_column);
    const int right = min(columns, image.width - first_column);
    const int before = left > column ? ceil_divide(left - column, image.column_step) : 0;
    if (column >= image.column_step || channel >= channels) return;
    bytes_ = min(kPieceBytes, (channels - channel) * static_cast<int>(sizeof(Element)));
    column += before * image.column_step;
    turns_ = right > column ? ceil_divide(right - column, image.column_step) : 0;
    to_ = target + (column % phases * phase_pixels + column / phases) * kPieceBytes;
    const auto rows_before = [&](int row) {
      const int images = row / image.period;
      return images * image.height + min(max(row - images * image.period - image.first, 0), image.height);
    };
    const int row = rows_before(position);
    rows_left_ = rows_before(end) - row;
    from_ =
        memory + row * image.row_elements + static_cast<int64_t>(first_column + column) * channels + channel;
    position_ = position % image.period - image.first;
  }

  __device__ __forceinline__ void copy_row(const DiagonalImage& image, uint32_t line) {
    const bool exists = is_inside(position_, image.height) && rows_left_ > 0;
    const int bytes = !exists ? 0 : kWhole ? kPieceBytes : bytes_;
    uint32_t to = line + to_;
    const Element* from = from_;
#pragma unroll 1
    for (int turn = turns_; turn > 0; --turn) {
      // Through the first-level cache, where pieces of a sector, or of a line, whose groups lie apart in
      // shared memory meet: past it, each is a request of its own to the second level, which has not the
      // time.
      if constexpr (kWhole) {
        ptx::cp_async_ca<kPieceBytes>(to, from, bytes);
      } else if (image.copy_bytes == kPieceBytes / 2) {
        copy_parts<kPieceBytes / 2>(to, from, bytes);
      } else {
        copy_parts<kPieceBytes / 4>(to, from, bytes);
      }
      from += image.from_step;
      to += image.to_step;
    }
    if (exists) {
      from_ += image.row_elements;
      --rows_left_;
    }
    if (++position_ == image.period - image.first) position_ = -image.first;
  }

 private:
  // A piece in parts, of which the first `bytes` are there.
  template <int kPartBytes>
  __device__ __forceinline__ static void copy_parts(uint32_t to, const Element* from, int bytes) {
#pragma unroll
    for (int part = 0; part < kPieceBytes; part += kPartBytes) {
      ptx::cp_async_ca<kPartBytes>(to + part, from + part / static_cast<int>(sizeof(Element)),
                                   part < bytes ? kPartBytes : 0);
    }
  }

  int turns_ = 0, to_ = 0, bytes_ = 0;
  const Element* from_ = nullptr;
  int position_ = 0, rows_left_ = 0;
};

// D of a warp: [tap row][pair of columns], and of the last column pairs of rows. These are 2j - 1 and 2j for
// a stride of one, where each two neighbouring rows of input make a pair, else 2j and 2j + 1; one is no tap.
template <typename Shape>
struct DiagonalSlideSums {
  float columns[Shape::kKernel][Shape::kColumnPairs][4];
  float rows[Shape::kRowPairs][4];
};

template <typename T, typename Shape, bool kWhole>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    slide_weight_grad_mma(const uint16_t* __restrict__ output_grad, const uint16_t* __restrict__ input,
                          float* __restrict__ partial, T* __restrict__ weight_grad,
                          const __grid_constant__ DiagonalParameters parameters) {
// mma.sync m16n8k16: not chosen where this is compiled for less.
#if __CUDA_ARCH__ >= 800
  using Layout = DiagonalLayout<Shape>;
  constexpr int kKernel = Shape::kKernel;
  constexpr int kStride = Shape::kStride;
  constexpr int kPairs = Shape::kPairs;
  constexpr int kHeld = Shape::kWarm + 1;  // rows of the output gradient that one of the input meets
  constexpr int kStages = Shape::kStages;
  constexpr int kRows = Shape::kRows;
  constexpr int kTaps = Shape::kTaps;

  int rest = parameters.slabs.divide(static_cast<int>(blockIdx.x));
  const int groups = parameters.groups.divisor();
  const int first_group = (static_cast<int>(blockIdx.x) - rest * parameters.slabs.divisor()) * groups;
  const int chunk = rest;
  const int range = parameters.tiles.divide(rest);
  const int octets = parameters.octets.divisor();
  const int first_octet = (rest - range * parameters.tiles.divisor()) * octets;

  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int input_row_bytes = parameters.streams * parameters.stream_pixels * kPieceBytes;
  const int grads_begin = kStride * input_row_bytes;
  const int group_bytes = parameters.group_pixels * kPieceBytes;
  const int line_bytes = groups * group_bytes;
  const int stage_bytes = kRows * line_bytes;
  float* shared_sums = shared_memory<float>();
  const uint32_t shared = shared_address(shared_sums);
  clear_octets(shared, kStages * stage_bytes);
  __syncthreads();

  // Threads are dealt to the images, then to streams, to the groups of a pixel, and to columns.
  const bool copies_input = thread < parameters.input_threads;
  const auto make_copies = [&](const DiagonalImage& image, const uint16_t* memory, int image_thread,
                               int columns, int stream_pixels, int first_column, int target, int stride,
                               int phase_pixels, bool past_end) {
    const int stream = min(image_thread / image.stream_threads, parameters.streams - 1);
    const int stream_thread = image_thread - stream * image.stream_threads;
    const int column = parameters.groups.divide(stream_thread);
    const int group = stream_thread - column * groups;
    const int all_rows = parameters.batch * parameters.grad.period;
    const int begin = static_cast<int>(
        min(static_cast<int64_t>(range * parameters.streams + stream) * parameters.rows, int64_t{all_rows}));
    const int end = past_end ? all_rows : min(all_rows - begin, parameters.rows) + begin;
    return DiagonalCopies<uint16_t, kWhole>(
        image, memory, parameters.channels, (first_group + group) * kGroup, column, columns, first_column,
        target + group * group_bytes + stream * stream_pixels * kPieceBytes, stride, phase_pixels,
        begin * stride, end * stride);
  };
  const int columns = kOctet * octets;
  DiagonalCopies<uint16_t, kWhole> copies =
      copies_input
          ? make_copies(parameters.input, input, thread, (columns - 1) * kStride + kKernel,
                        parameters.stream_pixels, first_octet * kOctet * kStride - parameters.padding, 0,
                        kStride, Layout::phase_pixels(octets), true)
          : make_copies(parameters.grad, output_grad, thread - parameters.input_threads, columns, columns,
                        first_octet * kOctet, grads_begin, 1, 0, false);
  int steps_to_copy = parameters.steps;
  uint32_t copied_stage = shared;
  const auto copy_step = [&] {
    if (steps_to_copy > 0) {
      --steps_to_copy;
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const uint32_t line = copied_stage + row * line_bytes;
        if (copies_input) {
#pragma unroll
          for (int i = 0; i < kStride; ++i) copies.copy_row(parameters.input, line + i * input_row_bytes);
        } else {
          copies.copy_row(parameters.grad, line);
        }
      }
      copied_stage += stage_bytes;
      if (copied_stage == shared + kStages * stage_bytes) copied_stage = shared;
    }
    ptx::cp_async_commit_group();
  };
  for (int stage = 0; stage < kStages - 1; ++stage) copy_step();

  // Where this lane reads, without line: matrices of eight pixels.
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int warp_slot = parameters.groups.divide(warp);
  const int warp_group = warp - warp_slot * groups;
  const int matrix = lane / 8;
  const int first_slot = warp_slot * Shape::kOctetsOfWarp;
  // Row 0 of the input under an octet; one that does not exist meets zeros.
  const auto input_octet = [&](int slot) {
    const int place = slot < parameters.streams * octets ? slot : 0;
    const int of_stream = parameters.octets.divide(place);
    return warp_group * parameters.group_pixels + of_stream * parameters.stream_pixels +
           (place - of_stream * octets) * kOctet + lane % 8;
  };
  const int next_column = kStride == 1 ? 1 : Layout::phase_pixels(octets);
  constexpr int kColumnPairStep = 2 / kStride;
  constexpr int kLastColumn = (kKernel - 1) / kStride;
  int column_offsets[kPairs];
  int last_offsets[kStride == 1 ? 1 : kPairs];
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
    const int pixel = input_octet(first_slot + 2 * pair + matrix / 2);
    column_offsets[pair] = (pixel + matrix % 2 * next_column) * kPieceBytes;
    if (kStride > 1) last_offsets[pair] = (pixel + kLastColumn) * kPieceBytes + matrix % 2 * input_row_bytes;
  }
  const int matrix_slot = first_slot + matrix % Shape::kOctetsOfWarp;
  if (kStride == 1) last_offsets[0] = (input_octet(matrix_slot) + kLastColumn) * kPieceBytes;
  const int grad_offset =
      grads_begin + (warp_group * parameters.group_pixels + matrix_slot * kOctet + lane % 8) * kPieceBytes;

  DiagonalSlideSums<Shape> sums = {};
  uint32_t held[kHeld][Shape::kOctetsOfWarp] = {};  // octets of the output gradient, the newest row first
  uint32_t before[Shape::kOctetsOfWarp] = {};       // the last column of the row of input before
  uint32_t stage = shared;
#pragma unroll 1
  for (int step_index = 0; step_index < parameters.steps; ++step_index) {
    ptx::cp_async_wait_group<kStages - 2>();
    __syncthreads();
    copy_step();
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const uint32_t line = stage + row * line_bytes;
#pragma unroll
      for (int ahead = kHeld - 1; ahead > 0; --ahead) {
#pragma unroll
        for (int i = 0; i < Shape::kOctetsOfWarp; ++i) held[ahead][i] = held[ahead - 1][i];
      }
      load_slices<Shape::kOctetsOfWarp>(line + grad_offset, held[0]);
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
#pragma unroll
        for (int i = 0; i < kStride; ++i) {
#pragma unroll
          for (int taps = 0; taps < Shape::kColumnPairs; ++taps) {
            uint32_t pixels[4];
            load_slices<4>(
                line + column_offsets[pair] + i * input_row_bytes + taps * kColumnPairStep * kPieceBytes,
                pixels);
#pragma unroll
            for (int ahead = 0; ahead < kHeld; ++ahead) {
              const int tap_row = i + kStride * ahead;
              if (tap_row >= kKernel) continue;
              multiply_add<T>(sums.columns[tap_row][taps], pixels[0], pixels[1], pixels[2], pixels[3],
                              held[ahead][2 * pair], held[ahead][2 * pair + 1]);
            }
          }
        }
      }
      if constexpr (kStride == 1) {
        uint32_t last[Shape::kOctetsOfWarp];
        load_slices<Shape::kOctetsOfWarp>(line + last_offsets[0], last);
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair) {
#pragma unroll
          for (int ahead = 0; ahead < kHeld; ahead += 2) {
            multiply_add<T>(sums.rows[ahead / 2], before[2 * pair], last[2 * pair], before[2 * pair + 1],
                            last[2 * pair + 1], held[ahead][2 * pair], held[ahead][2 * pair + 1]);
          }
        }
#pragma unroll
        for (int i = 0; i < Shape::kOctetsOfWarp; ++i) before[i] = last[i];
      } else {
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair) {
          uint32_t last[4];
          load_slices<4>(line + last_offsets[pair], last);
#pragma unroll
          for (int ahead = 0; ahead < kHeld; ++ahead) {
            multiply_add<T>(sums.rows[ahead], last[0], last[1], last[2], last[3], held[ahead][2 * pair],
                            held[ahead][2 * pair + 1]);
          }
        }
      }
    }
    stage += stage_bytes;
    if (stage == shared + kStages * stage_bytes) stage = shared;
  }

  // [warp][tap][channel]: of a product's rows and columns, lane l has row l / 4 and column l % 4 * 2 and the
  // next, and the same of the second tap.
  ptx::cp_async_wait_all();
  __syncthreads();
  if (lane % 4 == lane / 8) {
    const bool odd = lane / 4 % 2 != 0;
    float* warp_sums = shared_sums + warp * (kTaps * kGroup) + lane / 4;
    const auto store = [&](const float (&product)[4], int tap_row, int tap_column, int second_row,
                           int second_column) {
      const auto store_tap = [&](int row, int column_of_tap, float sum) {
        if (row >= 0 && row < kKernel) warp_sums[(row * kKernel + column_of_tap) * kGroup] = sum;
      };
      store_tap(tap_row, tap_column, odd ? product[1] : product[0]);
      store_tap(second_row, second_column, odd ? product[3] : product[2]);
    };
#pragma unroll
    for (int tap_row = 0; tap_row < kKernel; ++tap_row) {
#pragma unroll
      for (int taps = 0; taps < Shape::kColumnPairs; ++taps) {
        store(sums.columns[tap_row][taps], tap_row, 2 * taps, tap_row, 2 * taps + 1);
      }
    }
#pragma unroll
    for (int taps = 0; taps < Shape::kRowPairs; ++taps) {
      const int tap_row = kStride == 1 ? 2 * taps - 1 : 2 * taps;
      store(sums.rows[taps], tap_row, kKernel - 1, tap_row + 1, kKernel - 1);
    }
  }
  __syncthreads();
  const int channels = min(groups * kGroup, parameters.channels - first_group * kGroup);
  const int warps_of_group = parameters.slots / Shape::kOctetsOfWarp;
  for (int i = thread; i < channels * kTaps; i += threads) {
    const int block_channel = i / kTaps;
    const int tap = i - block_channel * kTaps;
    const float sum =
        sum_in_order(shared_sums + (block_channel / kGroup * kTaps + tap) * kGroup + block_channel % kGroup,
                     warps_of_group, groups * kTaps * kGroup);
    const int64_t index = static_cast<int64_t>(first_group) * kGroup * kTaps + i;
    if (weight_grad != nullptr) {
      weight_grad[index] = static_cast<T>(sum);
    } else {
      partial[static_cast<int64_t>(chunk) * parameters.channels * kTaps + index] = sum;
    }
  }
#else
  __trap();
#endif
}

// How a problem is cut into blocks.
struct DiagonalTile {
  int groups, octets, streams;
  int slabs, tiles, ranges;
  int rows;  // of a stream
  int threads;
  int group_pixels;
  int64_t shared_bytes;
};

// Rows of the output gradient in the sequence of all images, from one to the next: all rows of both lie
// within, and the last one meets no row of the next image.
inline int64_t diagonal_period(const Extent& height) {
  return std::max(ceil_divide(height.input + height.padding, height.stride),
                  height.output - 1 + ceil_divide(height.kernel - height.padding, height.stride));
}

// The cut that should take the fewest clocks.
template <typename Shape>
DiagonalTile choose_diagonal_tile(const Geometry& geometry, const Device& device) {
  constexpr int kReservedBytes = 1024;      // of shared memory, a block
  constexpr double kProductClocks = 1.6;    // a multiprocessor
  constexpr double kStepClocks = 250;       // of a barrier, copies and loads that a block's warps wait for
  constexpr double kBytesOfClock = 17.75;   // that memory brings a multiprocessor
  constexpr double kMostBytesOfClock = 32;  // that one can take
  constexpr double kShortestRun = 2, kShortRun = 1.15;  // times as long as others, of one and two groups
  constexpr double kNotHidden = 0.25;                   // of the shorter of products and memory
  constexpr int kMostTiles = 3;                         // beyond the fewest
  constexpr int kMostWarps = Shape::kThreads / 32;
  static_assert(kMostWarps * Shape::kOctetsOfWarp * kOctet >= kDiagonalColumns);
  const int all_groups = static_cast<int>(ceil_divide<int64_t>(geometry.channels, kGroup));
  const int all_octets = static_cast<int>(ceil_divide<int64_t>(geometry.width.output, kOctet));
  const int64_t period = diagonal_period(geometry.height);
  const int64_t rows = geometry.batch * period;
  const int64_t chunks = most_chunks(geometry, Layout::channels_last);
  // Pieces that are read, for a row of the output gradient.
  const double input_pieces = static_cast<double>(geometry.input_pixels()) / static_cast<double>(period);
  const double grad_pieces = static_cast<double>(geometry.output_pixels()) / static_cast<double>(period);
  DiagonalTile best = {};
  double best_clocks = 0;
  for (int groups = 1; groups <= std::min(kMostGroups, all_groups); ++groups) {
    // Sectors of memory are 32 bytes; runs of 16 and 32 bytes take longer.
    if (groups > 1 && groups % 2 == 1 && groups != all_groups) continue;
    const int slabs = ceil_divide(all_groups, groups);
    const double run = groups == all_groups ? 1 : groups == 1 ? kShortestRun : groups == 2 ? kShortRun : 1;
    const int most_octets = kMostWarps / groups * Shape::kOctetsOfWarp;
    const int fewest = ceil_divide(all_octets, most_octets);
    const int most_tiles = static_cast<int>(std::min<int64_t>(all_octets, chunks));
    for (int wanted = fewest; wanted <= most_tiles; ++wanted) {
      if (wanted > fewest + kMostTiles && best.threads > 0) break;
      const int octets = ceil_divide(all_octets, wanted);
      const int tiles = ceil_divide(all_octets, octets);
      for (int streams = 1; streams <= kMostStreams && streams * octets <= most_octets; ++streams) {
        const int slots = ceil_divide(streams * octets, Shape::kOctetsOfWarp) * Shape::kOctetsOfWarp;
        const int warps = groups * slots / Shape::kOctetsOfWarp;
        const int stream_pixels = DiagonalLayout<Shape>::stream_pixels(octets);
        int group_pixels = Shape::kStride * streams * stream_pixels + slots * kOctet;
        // Groups of a pixel lie in different banks.
        const int bank = groups == 1 ? 0 : groups == 2 ? 4 : groups <= 4 ? 2 : 1;
        while (group_pixels % 8 != bank) ++group_pixels;
        const int64_t shared_bytes =
            std::max(int64_t{Shape::kStages} * Shape::kRows * groups * group_pixels * kPieceBytes,
                     int64_t{warps} * Shape::kTaps * kGroup * int64_t{sizeof(float)});
        if (shared_bytes > device.shared_of_block) continue;
        // A device that grants a block its shared memory runs one.
        const int64_t resident = std::clamp<int64_t>(
            device.shared_of_multiprocessor / (shared_bytes + kReservedBytes), 1, kMostWarps / warps);
        const int64_t cuts = int64_t{slabs} * tiles;
        const int64_t most_ranges = std::min(chunks / tiles, ceil_divide<int64_t>(rows, streams));
        const int64_t ranges = std::clamp<int64_t>(resident * device.multiprocessors / cuts, 1, most_ranges);
        const int64_t stream_rows = ceil_divide(rows, ranges * streams);
        const int64_t blocks = cuts * ranges;
        const int64_t waves = ceil_divide(blocks, resident * device.multiprocessors);
        const double together =
            static_cast<double>(ceil_divide(ceil_divide(blocks, waves), int64_t{device.multiprocessors}));
        const double halo = tiles == 1 ? 0 : (Shape::kKernel - Shape::kStride) * Shape::kStride;
        const double step_bytes =
            run * kPieceBytes * groups * streams * ((input_pieces + grad_pieces) / tiles + halo);
        const double products = together * warps * Shape::kPairs * Shape::kProducts * kProductClocks +
                                kStepClocks / Shape::kRows / together;
        const double memory = std::max(
            together * step_bytes / kMostBytesOfClock,
            static_cast<double>(blocks) / waves / device.multiprocessors * step_bytes / kBytesOfClock);
        const double clocks =
            static_cast<double>(waves * (stream_rows + Shape::kWarm + Shape::kRows * Shape::kStages)) *
            (std::max(products, memory) + kNotHidden * std::min(products, memory));
        if (best.threads == 0 || clocks < best_clocks) {
          best_clocks = clocks;
          best = {groups,
                  octets,
                  streams,
                  slabs,
                  tiles,
                  static_cast<int>(ranges),
                  static_cast<int>(stream_rows),
                  warps * 32,
                  group_pixels,
                  shared_bytes};
        }
      }
    }
  }
  return best;
}

template <typename T, typename Shape>
void launch_diagonal_slide(const WeightGrad<T>& pass) {
  const auto& [output_grad, input, weight_grad, workspace, geometry, layout, stream] = pass;
  const Extent& height = geometry.height;
  const Extent& width = geometry.width;
  const int64_t period = diagonal_period(height);
  const DiagonalTile tile = choose_diagonal_tile<Shape>(geometry, current_device());
  TORCHGRAFT_CHECK(tile.threads > 0, pass.kName, ": no block fits this device");

  DiagonalParameters parameters = {};
  // Of a stride of two four times as many pieces are the input's.
  parameters.input_threads = tile.threads / 4 * (Shape::kStride == 1 ? 2 : 3);
  const int copy_bytes = copied_piece(geometry.channels, sizeof(T), common_alignment(output_grad, input));
  const auto image = [&](int64_t rows, int64_t columns, int stride, int64_t first, int threads) {
    DiagonalImage made = {};
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
    made.to_step = made.column_step / stride * kPieceBytes;
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
  parameters.stream_pixels = DiagonalLayout<Shape>::stream_pixels(tile.octets);
  parameters.group_pixels = tile.group_pixels;
  parameters.rows = tile.rows;
  parameters.steps = ceil_divide(tile.rows + Shape::kWarm, Shape::kRows);

  const int chunks = tile.ranges * tile.tiles;
  const auto kernel = copy_bytes == kPieceBytes ? slide_weight_grad_mma<T, Shape, true>
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
    launch_diagonal_slide<T, DiagonalShape<kernel, stride>>(pass);
  });
}

template void launch_slide_weight_grad_mma(const WeightGrad<Half>&);
template void launch_slide_weight_grad_mma(const WeightGrad<BFloat16>&);

}  // namespace torchgraft::depthwise::cuda
