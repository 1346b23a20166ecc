// Forward pass of stride 1 and 2 and input gradient of stride 1 of NHWC halves on tensor cores, kernels of up
// to 7 x 7 taps: nothing is converted or transposed, and warps slide down the image.
//
// The product m16n8k16 (and m16n8k8) of a source row gives, for four channels c, 16 pairs of neighbouring
// results:
//   A[m][(j, c)] = source pixel j of the window of pair m, channel c
//   B[(j, c)][(r, c')] = c == c' ? tap[j - r * stride] : 0
// A window of a pair, k + stride pixels wide, is ceil((k + stride) / 2) slices eight deep: one product of
// sixteen for k = 3, one and a half for k = 5, two for k = 7, each for 128 results and one kernel row. That
// is four times and more what is of use, and less than tensor cores have time for. A comes by ldmatrix as it
// lies, since shared memory holds [four channels][column][channel of four]: a row of a matrix is two pixels
// of four channels, sixteen bytes, wherever it lies, so that pairs may be of several images. B stays in a
// warp's registers.
//
// A block owns some channels of a stretch of columns, or of several whole images side by side. Their rows are
// one sequence, cut into as many ranges as blocks are resident at once, and come eight bytes a copy into a
// ring of rows in shared memory, asynchronously and some rows ahead. A warp owns four channels of kTiles x 16
// pairs. It multiplies a source row, read once, into every row of results that the row reaches: their sums
// stay in registers. Finished rows go through shared memory, and leave in sixteen bytes a thread.
//
// Budget, H200, microseconds: for the memory, and products at 600 TFLOP/s with those that are in vain.
//   128,32,112x112,k3     51     9      128,144,56x56,k3    57    11
//   128,96,112x112,k3,s2  91    12      128,240,28x28,k5    24    12
//   128,96,56x56,k7       38    33      128,768,7x7,k7       5     4
// Shared memory: for k = 3, 5, 7 a result takes 2 bytes as it comes, 4, 6 or 8 by ldmatrix and 6 as it
// leaves, of the 28 that there is time for. Instructions: 50 to 75 of a warp for 128 results, of 114.
//
// Measured, forward: 64 and 87 for k = 3 with stride 1, where slide_correlate takes 66 and 88: the first is
// bound by memory, the second is not, as 144 channels are cut into slices whose pixels are few sectors.
// slide_columns takes less time for 3 x 3 taps with stride 1, 72 for the second, and so serves; what is left
// here of three taps are kernels as 1 x 3. 120 with stride 2, where slide_correlate takes 115 and so serves;
// 44 for k = 5 and 71 for k = 7, 56 x 56, where band matrices took 84 and 118; 22 for 7 x 7, as before.
//
// A dilation makes several dense convolutions of a pass, its phases (phases.h). Each has blocks of its own,
// whose pixels, rows and images lie further apart; nothing else differs.
//
// A product with zero is NaN where the source is infinite: results that are NaN are computed again at the
// end, tap by tap.
#pragma once

#include <algorithm>

#include "../half_math.cuh"
#include "../kernels.h"
#include "stream.cuh"

namespace torchgraft::depthwise::cuda {

// Everything that is tuned stands here. Taps that a smaller kernel lacks are zero.
template <int kKernelSize, int kStrideSize>
struct SlideProduct {
  static constexpr int kKernel = kKernelSize;
  static constexpr int kStride = kStrideSize;
  static constexpr int kTiles = 2;                               // of a warp, 16 pairs each
  static constexpr int kMostThreads = kKernel == 3 ? 384 : 256;  // of a block
  static constexpr int kBlocks = 2;                              // resident, of so many threads
  static constexpr int kStages = kStride == 1 ? 8 : 5;           // rows of the ring
  static constexpr int64_t kMostBytes = 96 << 10;                // of a block's shared memory

  static constexpr int kSlices = ceil_divide(kKernel + kStride, 2);
  static constexpr int kWarm = (kKernel - 1) / kStride;  // steps before the first row of results ends
  static constexpr int kWarpPairs = 16 * kTiles;
  // Eight bytes of a row are a thread's, so many times.
  static constexpr int kLoadTurns = kTiles * kStride + 1;
  // Warps copy all columns under their pairs, those too that only the last window reaches, of any image.
  static_assert(2 * kStride * (kWarpPairs - 1) + 2 * kSlices <= 32 * kLoadTurns, "rows are copied in part");
  // A thread stores a pixel's eight channels, which are two warps'.
  static_assert(kTiles <= 2, "one piece of results a thread");
};

struct SlideProductParameters {
  int batch, channels;
  int source_height, source_width, result_height, result_width;
  int kernel_height, kernel_width;
  bool flipped;
  int padding_y, padding_x;
  int slices, tiles, ranges;   // blockIdx.x counts slices of channels fastest, and ranges slowest
  int octets;                  // of a slice's channels
  int images;                  // side by side
  int pairs;                   // of results in a row of an image, or of its tile
  int columns;                 // of the sources under them
  int quad_bytes;              // of a row in shared memory, of four channels
  FastDivisor rows;            // result_height
  int granules, granule_rows;  // ranges begin at multiples of granule_rows
};

// With a dilation: the sizes are those of the largest phase.
struct PhasedSlideParameters : SlideProductParameters {
  PhaseAxis height, width;
  int phases;  // each has blocks of its own; blockIdx.x counts them between tiles and ranges
};

// The parameters of one phase, whose pixels lie apart. With these its block is one of a dense convolution.
struct SlidePhase : SlideProductParameters {
  PhaseAxis height, width;
  int phase_y, phase_x;

  __device__ SlidePhase(const PhasedSlideParameters& of_all, int phase)
      : SlideProductParameters(of_all), height(of_all.height), width(of_all.width) {
    phase_y = phase / width.result_phases();
    phase_x = phase - phase_y * width.result_phases();
    const auto count = [](int size, int first, int step) {
      return size > first ? (size - first - 1) / step + 1 : 0;
    };
    source_height = count(height.source, first_source(height, phase_y), height.step);
    source_width = count(width.source, first_source(width, phase_x), width.step);
    result_height = count(height.result, phase_y, height.step);
    result_width = count(width.result, phase_x, width.step);
    padding_y += is_before(height, phase_y);
    padding_x += is_before(width, phase_x);
  }
  // Whether source 0 of the phase would lie before the image: the phase then begins with source 1, in
  // front of which there is one more of padding.
  static __device__ int is_before(const PhaseAxis& axis, int phase) { return phase < axis.lead ? 1 : 0; }
  static __device__ int first_source(const PhaseAxis& axis, int phase) {
    return axis.source_at(phase, is_before(axis, phase));
  }
  __device__ int first_source_element() const {
    return (first_source(height, phase_y) * width.source + first_source(width, phase_x)) * channels;
  }
  __device__ int first_result_element() const { return (phase_y * width.result + phase_x) * channels; }
};

// Elements from column to column, row to row and image to image.
struct PixelSteps {
  int column, row, image;
};
__device__ inline PixelSteps source_elements(const SlideProductParameters& p) {
  return {p.channels, p.source_width * p.channels, p.source_height * (p.source_width * p.channels)};
}
__device__ inline PixelSteps result_elements(const SlideProductParameters& p) {
  return {p.channels, p.result_width * p.channels, p.result_height * (p.result_width * p.channels)};
}
__device__ inline PixelSteps source_elements(const SlidePhase& p) {
  return {p.channels * p.width.step, p.width.source * p.channels * p.height.step,
          p.height.source * p.width.source * p.channels};
}
__device__ inline PixelSteps result_elements(const SlidePhase& p) {
  return {p.channels * p.width.step, p.width.result * p.channels * p.height.step,
          p.height.result * p.width.result * p.channels};
}

__device__ inline const SlideProductParameters& in_phase(const SlideProductParameters& parameters, int) {
  return parameters;
}
__device__ inline SlidePhase in_phase(const PhasedSlideParameters& parameters, int phase) {
  return {parameters, phase};
}

// Of a block's warps.
constexpr int kQuad = 4;   // channels
constexpr int kOctet = 8;  // channels of a piece of results

// What a block owns.
struct SlideProductBlock {
  int first_channel, tile, range;
  int phase = 0;

  __device__ explicit SlideProductBlock(const PhasedSlideParameters& parameters)
      : SlideProductBlock(static_cast<const SlideProductParameters&>(parameters)) {
    const int all = range;
    range = all / parameters.phases;
    phase = all - range * parameters.phases;
  }
  __device__ explicit SlideProductBlock(const SlideProductParameters& parameters) {
    const unsigned slices = parameters.slices;
    const unsigned tiles = parameters.tiles;
    const unsigned place = blockIdx.x / slices;
    first_channel = static_cast<int>(blockIdx.x - place * slices) * parameters.octets * kOctet;
    range = static_cast<int>(place / tiles);
    tile = static_cast<int>(place - range * tiles);
  }
};

// Where a block is in its sequence of rows: in a share of it, some result rows of a group of images, and the
// source rows under them.
struct SlideProductRows {
  int next, last;
  int group = 0, first = 0, count = 0;
  int begin = 0, end = 0;  // of sources

  __device__ SlideProductRows(const SlideProductParameters& parameters, int range) {
    const auto bound = [&](int index) {
      return static_cast<int>(static_cast<int64_t>(parameters.granules) * index / parameters.ranges) *
             parameters.granule_rows;
    };
    next = bound(range);
    last = bound(range + 1);
  }

  template <int kStride, typename Parameters>
  __device__ bool enter(const Parameters& parameters) {
    if constexpr (std::is_same_v<Parameters, SlidePhase>) {
      // A phase may have fewer rows than the largest one, so that a share may have none.
      do {
        if (next >= last) return false;
        group = parameters.rows.divide(next);
        first = next - group * parameters.rows.divisor();
        count = min(parameters.rows.divisor() - first, last - next);
        next += count;
        count = min(count, parameters.result_height - first);
      } while (count <= 0);
    } else {
      if (next >= last) return false;
      group = parameters.rows.divide(next);
      first = next - group * parameters.result_height;
      count = min(parameters.result_height - first, last - next);
      next += count;
    }
    const int top = first * kStride - parameters.padding_y;
    begin = max(0, top);
    end = min(parameters.source_height, top + (count - 1) * kStride + parameters.kernel_height);
    return true;
  }

  __device__ int images(const SlideProductParameters& parameters) const {
    return min(parameters.images, parameters.batch - group * parameters.images);
  }
};

// The eight channels of one pixel of results that a thread stores in every row.
struct SlideProductPlace {
  int image, column, channel;
  int slot;  // of the pixel in shared memory

  __device__ SlideProductPlace(const SlideProductParameters& parameters, const SlideProductBlock& block) {
    slot = static_cast<int>(threadIdx.x) / parameters.octets;
    channel = block.first_channel + (static_cast<int>(threadIdx.x) - slot * parameters.octets) * kOctet;
    image = slot / 2 / parameters.pairs;
    column = 2 * (block.tile - image) * parameters.pairs + slot;
  }
  __device__ bool is_inside(const SlideProductParameters& parameters) const {
    return image < parameters.images && column < parameters.result_width && channel < parameters.channels;
  }
};

// Computes those results that a thread has stored again that are NaN: only what lies in their windows.
// `source` and `result` begin with the pixels of the block's phase.
template <typename T, int kStride, typename Number, typename Parameters>
__device__ __noinline__ void repair_range(const HalfBits* source, const Number* weight, Rounded<T> bias,
                                          HalfBits* result, const Parameters& given) {
  using Math = HalfMath<T>;
  const SlideProductBlock block(given);
  const auto& parameters = in_phase(given, block.phase);
  const PixelSteps from = source_elements(parameters);
  const PixelSteps to = result_elements(parameters);
  const int taps = parameters.kernel_height * parameters.kernel_width;
  const SlideProductPlace place(parameters, block);
  SlideProductRows rows(parameters, block.range);
  while (rows.template enter<kStride>(parameters)) {
    if (place.image >= rows.images(parameters)) continue;
    const int64_t image = static_cast<int64_t>(rows.group) * parameters.images + place.image;
    for (int y = rows.first; y < rows.first + rows.count; ++y) {
      HalfBits* pixel = result + image * to.image + static_cast<int64_t>(y) * to.row +
                        static_cast<int64_t>(place.column) * to.column;
      for (int channel = place.channel; channel < place.channel + kOctet; ++channel) {
        if (!Math::is_nan(pixel[channel])) continue;
        float sum = bias.or_zero(true, channel);
        for (int tap = 0; tap < taps; ++tap) {
          const int row = tap / parameters.kernel_width;
          const int source_y = y * kStride - parameters.padding_y + row;
          const int source_x =
              place.column * kStride - parameters.padding_x + tap - row * parameters.kernel_width;
          if (source_y < 0 || source_y >= parameters.source_height || source_x < 0 ||
              source_x >= parameters.source_width) {
            continue;
          }
          const int place = parameters.flipped ? taps - 1 - tap : tap;
          const T number = read_rounded<T>(weight + static_cast<int64_t>(channel) * taps + place);
          sum += static_cast<float>(number) *
                 Math::to_float(source[image * from.image + static_cast<int64_t>(source_y) * from.row +
                                       static_cast<int64_t>(source_x) * from.column + channel]);
        }
        pixel[channel] = Math::from_float(sum);
      }
    }
  }
}

// Of weights of T, and of wider ones: taps take many registers and are loaded in every block.
template <typename T, typename Number, typename Shape, typename Parameters>
__global__ void __launch_bounds__(Shape::kMostThreads, Shape::kBlocks)
    slide_correlate_mma(const HalfBits* __restrict__ source, const Number* __restrict__ weight,
                        Rounded<T> bias, HalfBits* __restrict__ result,
                        const __grid_constant__ Parameters given) {
  using Math = HalfMath<T>;
  constexpr int kKernel = Shape::kKernel;
  constexpr int kStride = Shape::kStride;
  constexpr int kTiles = Shape::kTiles;
  constexpr int kSlices = Shape::kSlices;
  constexpr int kWarm = Shape::kWarm;
  constexpr int kStages = Shape::kStages;
  constexpr int kTurns = Shape::kLoadTurns;
  constexpr int kLanes = 32;
  constexpr int kHalfBytes = sizeof(HalfBits);

  const SlideProductBlock block(given);
  const auto& parameters = in_phase(given, block.phase);
  if constexpr (std::is_same_v<Parameters, PhasedSlideParameters>) {
    source += parameters.first_source_element();
    result += parameters.first_result_element();
  }
  const PixelSteps from = source_elements(parameters);
  const PixelSteps to = result_elements(parameters);
  const int first_channel = block.first_channel;
  const int quads = parameters.octets * 2;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kLanes;
  const int column_warp = thread / kLanes / quads;
  const int quad = thread / kLanes - column_warp * quads;
  const int g = lane / 4;  // as the layout of a product's operands names them
  const int q = lane % 4;

  // The taps of the warp's channels: a lane's column of B is channel g % 4 of result g / 4 of a pair.
  uint32_t band[kKernel][kSlices];
  float start[4];
  {
    const int channel = first_channel + quad * kQuad + g % 4;
    const int taps = parameters.kernel_height * parameters.kernel_width;
    const Number* channel_weight = weight + static_cast<int64_t>(channel) * taps;
    const bool mine = channel < parameters.channels && g % 4 / 2 == q % 2;
#pragma unroll
    for (int row = 0; row < kKernel; ++row) {
#pragma unroll
      for (int i = 0; i < kSlices; ++i) {
        const int column = 2 * i + q / 2 - g / 4 * kStride;
        uint32_t value = 0;
        if (mine && row < parameters.kernel_height && column >= 0 && column < parameters.kernel_width) {
          const int tap = row * parameters.kernel_width + column;
          value = bits_of(read_rounded<T>(channel_weight + (parameters.flipped ? taps - 1 - tap : tap)));
        }
        band[row][i] = value << (g % 2 * 16);
      }
    }
    const int own_channel = first_channel + quad * kQuad + q % 2 * 2;
    float pair[2];
    bias.widen(own_channel < parameters.channels, own_channel, pair);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      start[i] = pair[i % 2];
      // Products want four registers in a row, and else get copies of the two that are alike.
      ptx::keep(start[i]);
    }
  }

  // What a thread copies of a row: four channels of every so many-th column that lies in an image.
  const int row_bytes = quads * parameters.quad_bytes;
  HalfBits* shared = shared_memory<HalfBits>();
  const uint32_t ring = shared_address(shared);
  unsigned copy_from[kTurns];  // the largest number: nothing
  uint32_t copy_to[kTurns];
  {
    const int copied_quad = thread % quads;
    const int channel = first_channel + copied_quad * kQuad;
    const int first_column = block.tile * parameters.pairs * 2 * kStride - parameters.padding_x;
    const int first_copied = max(0, first_column);
    const int copied = min(parameters.source_width, first_column + parameters.columns) - first_copied;
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const int pixel = (thread + turn * static_cast<int>(blockDim.x)) / quads;
      const int image = copied > 0 ? pixel / copied : 0;
      const int column = pixel - image * copied + first_copied;
      const bool valid = copied > 0 && image < parameters.images && channel < parameters.channels;
      copy_from[turn] = valid ? image * from.image + column * from.column + channel : UINT32_MAX;
      copy_to[turn] = ring + copied_quad * parameters.quad_bytes +
                      (image * parameters.columns + column - first_column) * (kQuad * kHalfBytes);
    }
  }

  // Columns outside the image stay zero, for no copy touches them.
  clear_halves(shared, kStages * row_bytes / kHalfBytes);
  __syncthreads();

  SlideProductRows copied_rows(parameters, block.range);
  int rows_to_copy = 0;
  const HalfBits* next_row = nullptr;
  unsigned copied_elements = 0;  // of the group's images
  int copied_stage = 0;
  const auto copy_row = [&] {
    if (rows_to_copy <= 0) {
      while (rows_to_copy <= 0 && copied_rows.template enter<kStride>(parameters)) {
        rows_to_copy = copied_rows.end - copied_rows.begin;
      }
      const int64_t image = static_cast<int64_t>(copied_rows.group) * parameters.images;
      if constexpr (std::is_same_v<Parameters, PhasedSlideParameters>) {
        next_row = source + image * from.image + static_cast<int64_t>(copied_rows.begin) * from.row;
      } else {
        next_row = source + (image * parameters.source_height + copied_rows.begin) * from.row;
      }
      copied_elements = copied_rows.images(parameters) * from.image;
    }
    if (rows_to_copy > 0) {
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) {
        if (copy_from[turn] < copied_elements) {
#if __CUDA_ARCH__ >= 800
          ptx::cp_async_ca<kQuad * kHalfBytes>(copy_to[turn] + copied_stage, next_row + copy_from[turn]);
#else
          __trap();
#endif
        }
      }
      --rows_to_copy;
      next_row += from.row;
    }
    commit_copies();
    copied_stage = copied_stage + row_bytes == kStages * row_bytes ? 0 : copied_stage + row_bytes;
  };
#pragma unroll 1
  for (int i = 0; i < kStages - 1; ++i) copy_row();

  // Where the rows of a lane's matrices lie: matrix lane / 8 is eight pairs, or the other eight, of this
  // slice of the window or the next.
  uint32_t pixels[kTiles];
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const int pair = (column_warp * kTiles + i) * 16 + lane % 16;
    const int image = pair / parameters.pairs;
    const int column = (pair - image * parameters.pairs) * 2 * kStride;
    const int place = image < parameters.images ? image * parameters.columns + column : 0;
    pixels[i] = ring + quad * parameters.quad_bytes + place * (kQuad * kHalfBytes) + lane / 16 * 16;
  }

  // Two buffers of a row of results: pixels of the block's channels, an odd number of pieces of sixteen bytes
  // apart.
  const int slot_bytes = (parameters.octets | 1) * (kOctet * kHalfBytes);
  const int slots = static_cast<int>(blockDim.x) / quads * kTiles;
  const uint32_t sums_to = ring + kStages * row_bytes +
                           ((column_warp * kTiles * 16 + g) * 2 + q / 2) * slot_bytes +
                           (quad * kQuad + q % 2 * 2) * kHalfBytes;
  const SlideProductPlace place(parameters, block);
  const unsigned store_to = place.is_inside(parameters)
                                ? place.image * to.image + place.column * to.column + place.channel
                                : UINT32_MAX;
  const unsigned char* store_from = reinterpret_cast<const unsigned char*>(shared) + kStages * row_bytes +
                                    place.slot * slot_bytes + (place.channel - first_channel) * kHalfBytes;
  uint32_t largest = 0;
  HalfBits* finished_row = nullptr;
  unsigned finished_elements = 0;  // of the group's images
  bool finished_waits = false;     // to be stored
  int buffer = 0;                  // where the next one goes
  const int buffer_bytes = slots * slot_bytes;
  // All threads have met since the row was finished.
  const auto store_finished = [&] {
    if (finished_waits && store_to < finished_elements) {
      const uint4 piece = *reinterpret_cast<const uint4*>(store_from + (buffer_bytes - buffer));
      largest = Math::max_nan(
          largest, Math::max_nan(Math::max_nan(piece.x, piece.y), Math::max_nan(piece.z, piece.w)));
      *reinterpret_cast<uint4*>(finished_row + store_to) = piece;
    }
    finished_waits = false;
  };

  SlideProductRows rows(parameters, block.range);
  bool ended = !rows.template enter<kStride>(parameters);
  int step = 0;
  int stage = 0;
  // Of the rows of results that end in this step and in later ones; which is which turns with the phase.
  float sums[kWarm + 1][kTiles][4];

  const auto take_step = [&](auto phase) {
    constexpr int kNewest = (phase + kWarm) % (kWarm + 1);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) sums[kNewest][i][k] = start[k];
    }
    const int source_y = (rows.first + step) * kStride - parameters.padding_y;
    // Rows of results beyond the share are left out.
    const auto holds = [&](int ahead) {
      return static_cast<unsigned>(step - kWarm + ahead) < static_cast<unsigned>(rows.count);
    };
    const bool holds_all = step >= kWarm && step < rows.count;
#pragma unroll
    for (int i = 0; i < kStride; ++i) {
      if (source_y + i < rows.begin || source_y + i >= rows.end) continue;
      wait_for_copies<kStages - 2>();
      __syncthreads();
      copy_row();
      store_finished();
      const auto multiply = [&](auto all) {
#pragma unroll
        for (int first = 0; first < kSlices; first += 2) {
          uint32_t wide[kTiles][4];
          uint32_t narrow[kTiles][2];
#pragma unroll
          for (int t = 0; t < kTiles; ++t) {
            const uint32_t address = pixels[t] + stage + first * 16;
            if (first + 1 < kSlices) {
              ptx::ldmatrix(wide[t], address);
            } else {
              ptx::ldmatrix(narrow[t], address);
            }
          }
#pragma unroll
          for (int ahead = 0; ahead <= kWarm; ++ahead) {
            const int row = (kWarm - ahead) * kStride + i;
            if (row >= kKernel) continue;
            if (!all && !holds(ahead)) continue;
#pragma unroll
            for (int t = 0; t < kTiles; ++t) {
              float (&unit)[4] = sums[(phase + ahead) % (kWarm + 1)][t];
              if (first + 1 < kSlices) {
                multiply_add<T>(unit, wide[t], band[row][first], band[row][first + 1], unit);
              } else {
                multiply_add<T>(unit, narrow[t][0], narrow[t][1], band[row][first]);
              }
            }
          }
        }
      };
      if (holds_all) {
        multiply(std::true_type{});
      } else {
        multiply(std::false_type{});
      }
      stage = stage + row_bytes == kStages * row_bytes ? 0 : stage + row_bytes;
    }

    if (step >= kWarm) {
      if (finished_waits) {
        __syncthreads();
        store_finished();
      }
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const uint32_t to = sums_to + buffer + i * 32 * slot_bytes;
        const float* unit = sums[phase][i];
        ptx::store_shared(to, Math::pack(unit[0], unit[1]));
        ptx::store_shared(to + 16 * slot_bytes, Math::pack(unit[2], unit[3]));
      }
      if (step == kWarm) {
        const int64_t image = static_cast<int64_t>(rows.group) * parameters.images;
        if constexpr (std::is_same_v<Parameters, PhasedSlideParameters>) {
          finished_row = result + image * to.image + static_cast<int64_t>(rows.first) * to.row;
        } else {
          finished_row = result + (image * parameters.result_height + rows.first) * to.row;
        }
        finished_elements = rows.images(parameters) * to.image;
      } else {
        finished_row += to.row;
      }
      finished_waits = true;
      buffer = buffer_bytes - buffer;
    }
    if (++step == rows.count + kWarm) {
      step = 0;
      ended = !rows.template enter<kStride>(parameters);
    }
  };
#pragma unroll 1
  while (!ended) with_phases<kWarm + 1>([&] { return !ended; }, take_step);
  __syncthreads();
  store_finished();

  if (Math::is_nan(largest & 0xffff) || Math::is_nan(largest >> 16)) {
    repair_range<T, kStride>(source, weight, bias, result, given);
  }
}

struct SlideProductPlan {
  SlideProductParameters parameters;
  int threads;
  int64_t shared_bytes, blocks;
};

// How channels, columns and images are cut into blocks, and rows into ranges.
template <typename Shape>
SlideProductPlan plan_slide_product(const Geometry& geometry, bool transposed) {
  constexpr int64_t kPieceBytes = 16;
  const PassAxis height(geometry.height, transposed);
  const PassAxis width(geometry.width, transposed);
  SlideProductParameters base = {};
  base.batch = static_cast<int>(geometry.batch);
  base.channels = static_cast<int>(geometry.channels);
  base.source_height = height.source;
  base.source_width = width.source;
  base.result_height = height.result;
  base.result_width = width.result;
  base.kernel_height = height.kernel;
  base.kernel_width = width.kernel;
  base.flipped = transposed;
  base.padding_y = height.padding;
  base.padding_x = width.padding;
  int phases = 1;
  if (is_dilated(geometry)) {
    const PhaseAxis phased_height(geometry.height, transposed);
    const PhaseAxis phased_width(geometry.width, transposed);
    base.source_height = phased_height.phase_source;
    base.source_width = phased_width.phase_source;
    base.result_height = phased_height.phase_result;
    base.result_width = phased_width.phase_result;
    base.padding_y = phased_height.padding;
    base.padding_x = phased_width.padding;
    phases = phased_height.result_phases() * phased_width.result_phases();
  }
  base.rows = FastDivisor(base.result_height);

  const int octets = base.channels / kOctet;
  const int all_pairs = ceil_divide(base.result_width, 2);
  const int64_t largest_image =
      geometry.channels * std::max(geometry.input_pixels(), geometry.output_pixels());
  const int64_t most_images = std::min<int64_t>(geometry.batch, INT32_MAX / largest_image);
  SlideProductPlan best = {};
  double best_cost = 0;
  constexpr int kOctetThreads = 2 * 32;
  for (int slice_octets = std::min(octets, Shape::kMostThreads / kOctetThreads); slice_octets > 0;
       --slice_octets) {
    const int slices = ceil_divide(octets, slice_octets);
    if (ceil_divide(octets, slices) < slice_octets) continue;
    for (int warps = 1; warps * slice_octets * kOctetThreads <= Shape::kMostThreads; ++warps) {
      const int room = warps * Shape::kWarpPairs;
      const int tiles = ceil_divide(all_pairs, room);
      SlideProductPlan plan = {base, warps * slice_octets * kOctetThreads, 0, 0};
      SlideProductParameters& p = plan.parameters;
      p.slices = slices;
      p.octets = slice_octets;
      p.tiles = tiles;
      p.pairs = ceil_divide(all_pairs, tiles);
      p.columns = 2 * Shape::kStride * (p.pairs - 1) + 2 * Shape::kSlices;
      const int copied = std::min(p.columns, base.source_width);
      const int most_copied = warps * 32 * Shape::kLoadTurns;
      p.images = tiles > 1 ? 1
                           : static_cast<int>(std::min<int64_t>(
                                 most_images, std::min(room / p.pairs, most_copied / copied)));
      // An odd number of pieces, so that the same column of neighbouring channels lies in different banks.
      p.quad_bytes = static_cast<int>((p.images * p.columns * 8 / kPieceBytes | 1) * kPieceBytes);
      const int64_t row_bytes = int64_t{2} * slice_octets * p.quad_bytes;
      const int64_t result_bytes = int64_t{2} * room * (slice_octets | 1) * kPieceBytes;
      plan.shared_bytes = Shape::kStages * row_bytes + 2 * result_bytes;
      if (plan.shared_bytes > Shape::kMostBytes) continue;

      // What is moved: columns of other tiles again, sectors of 32 bytes in part, and pixels in small parts;
      // threads that have nothing to do; and room for blocks that is left over.
      double cost = tiles == 1 ? 1.0 : 0.5 + 0.5 * tiles * copied / base.source_width;
      if (slices > 1 && slice_octets % 2 != 0) cost *= 1 + 0.5 / slice_octets;
      if (slices > 1 && slice_octets < 4) cost *= 1 + (4 - slice_octets) / 16.0;
      const double used =
          (1.0 * octets / (slices * slice_octets)) * (1.0 * all_pairs * p.images / (1.0 * tiles * room));
      cost *= 0.75 + 0.25 / used;
      const int most_threads = Shape::kMostThreads * Shape::kBlocks;
      cost *= 1.2 - 0.2 * (most_threads / plan.threads * plan.threads) / most_threads;
      if (best.threads == 0 || cost < best_cost) {
        best = plan;
        best_cost = cost;
      }
    }
  }

  SlideProductParameters& p = best.parameters;
  const int64_t blocks_of_range = int64_t{p.slices} * p.tiles * phases;
  const int resident = resident_blocks(best.threads, best.shared_bytes, Shape::kMostThreads * Shape::kBlocks);
  const int groups = ceil_divide(p.batch, p.images);
  const int rows = groups * p.result_height;
  p.ranges = static_cast<int>(std::clamp<int64_t>(resident / blocks_of_range, 1, rows));
  p.granules = rows;
  p.granule_rows = 1;
  // Ranges of whole images read no row twice, and may leave some room for blocks empty.
  const int processors = resident_blocks(Shape::kMostThreads, 0, Shape::kMostThreads);
  const auto rows_of_processor = [&](int ranges, int granule_rows) {
    const int64_t blocks = blocks_of_range * ranges;
    const int longest = ceil_divide(rows / granule_rows, ranges) * granule_rows;
    const double twice = granule_rows == 1 ? 0.5 * (Shape::kKernel - Shape::kStride) : 0.0;
    const double idle = 1.0 - static_cast<double>(std::min<int64_t>(blocks, resident)) / resident;
    return static_cast<double>(ceil_divide<int64_t>(blocks, processors)) * (longest + twice) *
           (1.0 + 0.3 * idle);
  };
  double fewest_rows = rows_of_processor(p.ranges, 1);
  constexpr int kMostGroups = 4;  // of a range
  const int most_ranges = p.ranges;
  for (int groups_of_range = 1; groups_of_range <= kMostGroups; ++groups_of_range) {
    const int ranges = ceil_divide(groups, groups_of_range);
    if (ranges > most_ranges || rows_of_processor(ranges, p.result_height) >= fewest_rows) continue;
    fewest_rows = rows_of_processor(ranges, p.result_height);
    p.ranges = ranges;
    p.granules = groups;
    p.granule_rows = p.result_height;
  }
  best.blocks = blocks_of_range * p.ranges;
  return best;
}

template <typename Shape, typename Parameters, typename T>
void launch_slide_product(const Correlation<T>& pass, const SlideProductPlan& plan,
                          const Parameters& parameters) {
  pass.weight.with_numbers([&](const auto* numbers) {
    using Number = std::remove_cvref_t<decltype(*numbers)>;
    const auto kernel = slide_correlate_mma<T, Number, Shape, Parameters>;
    require_shared_memory(kernel, plan.shared_bytes, pass.name());
    kernel<<<grid_of(plan.blocks, pass.name()), plan.threads, static_cast<size_t>(plan.shared_bytes),
             pass.stream>>>(reinterpret_cast<const HalfBits*>(pass.source), numbers, pass.bias,
                            reinterpret_cast<HalfBits*>(pass.result), parameters);
  });
  check_launch(pass.name());
}

template <int kKernel, typename T>
void launch_slide_kernel(const Correlation<T>& pass) {
  const Geometry& geometry = pass.geometry;
  if (geometry.height.stride == 2) {
    using Shape = SlideProduct<kKernel, 2>;
    const SlideProductPlan plan = plan_slide_product<Shape>(geometry, pass.transposed);
    return launch_slide_product<Shape>(pass, plan, plan.parameters);
  }
  using Shape = SlideProduct<kKernel, 1>;
  const SlideProductPlan plan = plan_slide_product<Shape>(geometry, pass.transposed);
  if (!is_dilated(geometry)) return launch_slide_product<Shape>(pass, plan, plan.parameters);
  const PhaseAxis height(geometry.height, pass.transposed);
  const PhaseAxis width(geometry.width, pass.transposed);
  launch_slide_product<Shape>(
      pass, plan,
      PhasedSlideParameters{plan.parameters, height, width, height.result_phases() * width.result_phases()});
}

template <typename T>
void launch_slide_correlate_mma(const Correlation<T>& pass) {
  const int64_t longest = longest_side(pass.geometry);
  if (longest <= 3) return launch_slide_kernel<3>(pass);
  if (longest <= 5) return launch_slide_kernel<5>(pass);
  launch_slide_kernel<7>(pass);
}

}  // namespace torchgraft::depthwise::cuda
