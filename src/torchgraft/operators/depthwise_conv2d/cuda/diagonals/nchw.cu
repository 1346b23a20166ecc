// Weight gradient on tensor cores (diagonals.cuh): NCHW planes.
//
// A block owns a few neighbouring channels, one where planes are large, and a chunk of the tiles of their
// planes: whole planes of several images, or bands and strips of large ones. Tiles come with cp.async,
// sixteen, eight or four bytes at a time as the width of the planes allows, two bytes through registers where
// it is odd; the next tile is on its way while one is worked on. The input lies in its octets shifted to the
// right by the padding, rounded up to what can be copied at once. A warp owns some rows of the kernel of one
// channel; warps that own the same share the octet columns of the tile.
//
// A stride or a dilation makes several dense weight gradients of it, its phases (phases.h). Those of a stride
// give different taps, and each has blocks of its own, which read every n-th pixel of the input; those of a
// dilation are added up, and a block takes one after another like more images. Such pixels come two bytes at
// a time, through registers. (64,128,56x56,k31): with stride 2, four phases of 16 x 16 taps are 0.4 of the
// products of stride 1, some 0.07 ms, and with dilation 2 as many, some 0.2 ms.

#include "../kernels.h"
#include "diagonals.cuh"

// Compiled for less, the kernel is a trap and uses nothing of this file.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#pragma nv_diag_suppress 177
#endif

namespace torchgraft::depthwise::cuda {
namespace {

constexpr int kMostWarps = 4;
constexpr int kStages = 2;
constexpr int kPlaceBytes = 8;

// How one of the two images comes to shared memory.
struct TileSource {
  int height, width;               // of a plane
  int64_t image;                   // elements from image to image
  int unit, units;                 // elements copied at once, and how many of these in a row
  FastDivisor units_side_by_side;  // of one pass of the block
  FastDivisor units_of_row;
  int rows_of_pass;
  int passes, rows_beyond;        // the last pass has `rows_beyond` rows, if any
  FastDivisor rows;               // loaded of a plane
  int source_row, source_column;  // the first that is loaded for tile 0, perhaps outside the plane
  int row, column;                // where it lies in shared memory
  int plane_rows;                 // of shared memory, from plane to plane
  int octet_rows;                 // from octet to octet; odd, so that these lie in different banks
  int bytes;                      // of a stage
  int places;                     // of copies in a tile of several planes, else 0
};

// Which elements of an image a tile holds: all of them.
struct DenseSteps {
  static __device__ constexpr int row(int index) { return index; }
  static __device__ constexpr int column(int index) { return index; }
  static __device__ constexpr int rows(int count) { return count; }
};

// Or those of a phase.
struct PhaseSteps {
  int row_step, row_offset, column_step, column_offset;

  __device__ int row(int index) const { return index * row_step + row_offset; }
  __device__ int column(int index) const { return index * column_step + column_offset; }
  __device__ int rows(int count) const { return count * row_step; }
};

struct PlanesParameters {
  TileSource input, grad;
  int batch, channels;
  FastDivisor channel_blocks;
  FastDivisor channels_of_block;
  int planes;  // of one channel in a tile
  FastDivisor strips, bands;
  int strip_columns, band_rows;
  Chunks chunks;                          // of tiles
  FastDivisor segments;                   // of a plane
  FastDivisor octets;                     // of the output gradient in a tile
  FastDivisor splits;                     // warps that share a tile
  FastDivisor row_groups;                 // warps side by side, each with its rows of the kernel
  FastDivisor row_blocks, column_blocks;  // blocks that share a kernel
  int kernel_height, kernel_width, columns_of_block;
  int shift;  // of the windows behind the first octet of input
};

// Of a convolution with stride or dilation: all sizes are those of a phase, but for `height` and `width` of a
// TileSource.
struct PhasedPlanes : PlanesParameters {
  PhaseAxis height, width;
  FastDivisor tap_phases;  // of a stride: blocks side by side, each with taps of its own
  int summed_phases;       // of a dilation: they are added up by each block

  // Rows of padding that a phase has more than others: its source 0 would lie before the image, and it begins
  // with source 1.
  __device__ int more_padding(int phase_y) const {
    return height.source_steps && phase_y < height.lead ? 1 : 0;
  }
  __device__ PhaseSteps input_steps(int phase_y, int phase_x) const {
    return {height.source_phases(), height.source_at(phase_y, more_padding(phase_y)), width.source_phases(),
            width.source_at(phase_x, 0)};
  }
  __device__ PhaseSteps grad_steps(int phase_y, int phase_x) const {
    return {height.result_phases(), height.result_at(phase_y, more_padding(phase_y)), width.result_phases(),
            width.result_at(phase_x, 0)};
  }
};

// Copies kElements elements, or writes zeros in their place, where the source is not touched. Through the
// first-level cache: 32 bytes from the second level may go to several octets, and would be fetched for each.
template <int kElements>
__device__ inline void copy_or_clear(uint32_t target, const uint16_t* source, bool inside) {
  constexpr int kBytes = kElements * 2;
  ptx::cp_async_ca<kBytes>(target, source, inside ? kBytes : 0);
}

// A thread's copies that lie equally far apart.
struct CopyRun {
  int count;
  bool one_more;              // of some threads of a warp
  int position, step, limit;  // copy i is inside if position + i * step is in [0, limit)
  uint32_t target;
  const uint16_t* source;
  uint32_t target_step;
  int64_t source_step;

  template <int kUnit>
  __device__ void copy() const {
    uint32_t to = target;
    const uint16_t* from = source;
    const int last = position + (count - (one_more ? 0 : 1)) * step;
    if constexpr (kUnit > 1) {
      if (position >= 0 && last < limit) {
#pragma unroll 4
        for (int i = 0; i < count; ++i, to += target_step, from += source_step)
          copy_async<2 * kUnit>(to, from);
        if (one_more) copy_async<2 * kUnit>(to, from);
      } else {
        const int copies = count + (one_more ? 1 : 0);
#pragma unroll 1
        for (int i = 0; i < copies; ++i, to += target_step, from += source_step) {
          copy_or_clear<kUnit>(to, from,
                               static_cast<unsigned>(position + i * step) < static_cast<unsigned>(limit));
        }
      }
    } else {
      // Through registers, some loads at a time.
      constexpr int kTogether = 8;
      const int copies = count + (one_more ? 1 : 0);
      for (int first = 0; first < copies; first += kTogether) {
        uint16_t values[kTogether];
#pragma unroll
        for (int i = 0; i < kTogether; ++i, from += source_step) {
          const int now = position + (first + i) * step;
          const bool inside = first + i < copies && static_cast<unsigned>(now) < static_cast<unsigned>(limit);
          values[i] = inside ? __ldg(from) : uint16_t{0};
        }
#pragma unroll
        for (int i = 0; i < kTogether; ++i, to += target_step) {
          if (first + i < copies) {
            ptx::store_shared(to, values[i]);
          }
        }
      }
    }
  }
};

struct TilePlace {
  int first_image, images;
  int row, column;  // added to the source's
};

// Where row `plane_row` and `column` of a tile lie in an image's part of shared memory.
__device__ inline uint32_t place_in_tile(const TileSource& source, int plane_row, int column) {
  return (column / kOctet * source.octet_rows + source.row + plane_row) * kOctetBytes + column % kOctet * 2;
}

// Where tiles are whole planes of several images, what is copied lies at the same places in all of them. They
// are worked out once: what to add to the address in shared memory, and to that of the first image.
template <typename Steps>
__device__ inline void list_places(const TileSource& source, const Steps& steps, int channels, int planes,
                                   uint32_t list) {
  for (int index = static_cast<int>(threadIdx.x); index < source.places;
       index += static_cast<int>(blockDim.x)) {
    const int all_rows = source.units_of_row.divide(index);
    const int unit = index - all_rows * source.units;
    const int channel = source.rows.divide(all_rows);
    const int row = all_rows - channel * source.rows.divisor();
    const uint32_t target =
        place_in_tile(source, channel * planes * source.plane_rows + row, source.column + unit * source.unit);
    const int source_row = steps.row(source.source_row + row);
    const int source_column = steps.column(source.source_column + unit * source.unit);
    const int offset = (channel * source.height + source_row) * source.width + source_column;
    // Nothing is copied for channels that do not exist, nor from outside of planes, where phases may begin
    // and end.
    bool exists = channel < channels;
    if constexpr (std::is_same_v<Steps, PhaseSteps>) {
      exists = exists && is_inside(source_row, source.height) && is_inside(source_column, source.width);
    }
    ptx::store_shared(list + index * kPlaceBytes,
                      make_uint2(target, static_cast<uint32_t>(exists ? offset : -1)));
  }
}

// Brings one image's part of a tile to shared memory; `memory` is that of the block's first channel.
template <int kUnit, typename Steps>
__device__ inline void load_units(const uint16_t* memory, const TileSource& source, const Steps& steps,
                                  const TilePlace& place, int planes, uint32_t list, uint32_t shared) {
  const int thread = static_cast<int>(threadIdx.x);
  const uint16_t* tile = memory + place.first_image * source.image;
  if (source.places == 0) {
    // A thread owns a column and steps from row to row.
    const int first_row = source.units_side_by_side.divide(thread);
    const int first_unit = thread - first_row * source.units_side_by_side.divisor();
    if (first_row >= source.rows_of_pass) return;
    const int source_row = source.source_row + place.row;
    for (int unit = first_unit; unit < source.units; unit += source.units_side_by_side.divisor()) {
      const int column = steps.column(source.source_column + place.column + unit * kUnit);
      const CopyRun run = {source.passes,
                           first_row < source.rows_beyond,
                           steps.row(source_row + first_row),
                           steps.rows(source.rows_of_pass),
                           column >= 0 && column < source.width ? source.height : 0,
                           shared + place_in_tile(source, first_row, source.column + unit * kUnit),
                           tile + steps.row(source_row + first_row) * source.width + column,
                           static_cast<uint32_t>(source.rows_of_pass * kOctetBytes),
                           steps.rows(source.rows_of_pass) * source.width};
      run.template copy<kUnit>();
    }
  } else {
    // A thread owns some places and steps from image to image.
    for (int index = thread; index < source.places; index += static_cast<int>(blockDim.x)) {
      const uint2 place_of = ptx::load_shared_pair(list + index * kPlaceBytes);
      const uint32_t target = place_of.x;
      const int offset = static_cast<int>(place_of.y);
      const CopyRun run = {planes,
                           false,
                           0,
                           1,
                           offset >= 0 ? place.images : 0,
                           shared + target,
                           tile + offset,
                           static_cast<uint32_t>(source.plane_rows * kOctetBytes),
                           source.image};
      run.template copy<kUnit>();
    }
  }
}

template <typename Steps>
__device__ inline void load_image(const uint16_t* memory, const TileSource& source, const Steps& steps,
                                  const TilePlace& place, int planes, uint32_t list, uint32_t shared) {
  if (source.unit == 8) {
    load_units<8>(memory, source, steps, place, planes, list, shared);
  } else if (source.unit == 4) {
    load_units<4>(memory, source, steps, place, planes, list, shared);
  } else if (source.unit == 2) {
    load_units<2>(memory, source, steps, place, planes, list, shared);
  } else {
    load_units<1>(memory, source, steps, place, planes, list, shared);
  }
}

// The tiles of a chunk, one after another.
struct TileWalker {
  int strip, band, group;

  __device__ TileWalker(const PlanesParameters& parameters, int tile) {
    const int rest = parameters.strips.divide(tile);
    strip = tile - rest * parameters.strips.divisor();
    group = parameters.bands.divide(rest);
    band = rest - group * parameters.bands.divisor();
  }

  __device__ void advance(const PlanesParameters& parameters) {
    if (++strip < parameters.strips.divisor()) return;
    strip = 0;
    if (++band < parameters.bands.divisor()) return;
    band = 0;
    ++group;
  }
};

template <typename T, typename Block, int kBlocksOfMultiprocessor, typename Parameters>
__global__ void __launch_bounds__(kMostWarps * 32, kBlocksOfMultiprocessor)
    diagonals_nchw(const uint16_t* __restrict__ output_grad, const uint16_t* __restrict__ input,
                   float* __restrict__ partial, const __grid_constant__ Parameters parameters) {
// mma.sync m16n8k16 and cp.async: not chosen where this is compiled for less.
#if __CUDA_ARCH__ >= 800
  constexpr bool kPhased = std::is_same_v<Parameters, PhasedPlanes>;
  // Chunk, then channels, then tap blocks, which share their tiles, or in phases the memory under them.
  int rest = static_cast<int>(blockIdx.x);
  const int column_block = rest % parameters.column_blocks.divisor();
  rest = parameters.column_blocks.divide(rest);
  const int row_block = rest % parameters.row_blocks.divisor();
  rest = parameters.row_blocks.divide(rest);
  int phase_y = 0, phase_x = 0;
  if constexpr (kPhased) {
    const int all_channels = parameters.tap_phases.divide(rest);
    const int phase = rest - all_channels * parameters.tap_phases.divisor();
    rest = all_channels;
    phase_y = phase / parameters.width.tap_phases();
    phase_x = phase - phase_y * parameters.width.tap_phases();
  }
  const int chunk = parameters.channel_blocks.divide(rest);
  const int channels_of_block = parameters.channels_of_block.divisor();
  const int first_channel = (rest - chunk * parameters.channel_blocks.divisor()) * channels_of_block;
  const int first_tap_row = row_block * parameters.row_groups.divisor() * Block::kTapRows;
  const int first_tap_column = column_block * parameters.columns_of_block;
  const int begin = static_cast<int>(chunk * parameters.chunks.units_of_chunk);
  const int end = static_cast<int>(
      min(static_cast<int64_t>(begin) + parameters.chunks.units_of_chunk, parameters.chunks.units));

  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_taps = parameters.splits.divide(warp);
  const int split = warp - warp_taps * parameters.splits.divisor();
  const int channel = parameters.row_groups.divide(warp_taps);
  const int row_group = warp_taps - channel * parameters.row_groups.divisor();

  float* shared_sums = shared_memory<float>();
  const uint32_t shared = shared_address(shared_sums);
  const uint32_t zeros = shared + kStages * (parameters.input.bytes + parameters.grad.bytes);
  clear_octets(shared, kStages * (parameters.input.bytes + parameters.grad.bytes) + kZeroBytes);
  const uint32_t input_list = zeros + kZeroBytes;
  const uint32_t grad_list = input_list + parameters.input.places * kPlaceBytes;
  const int channels = min(channels_of_block, parameters.channels - first_channel);
  std::conditional_t<kPhased, PhaseSteps, DenseSteps> input_steps, grad_steps;
  // `summed` counts the phases that the block adds up.
  const auto begin_phase = [&](int summed) {
    if constexpr (kPhased) {
      const int summed_y = summed / parameters.width.result_phases();
      const int y = phase_y + summed_y;
      const int x = phase_x + summed - summed_y * parameters.width.result_phases();
      input_steps = parameters.input_steps(y, x);
      grad_steps = parameters.grad_steps(y, x);
    }
    list_places(parameters.input, input_steps, channels, parameters.planes, input_list);
    list_places(parameters.grad, grad_steps, channels, parameters.planes, grad_list);
    __syncthreads();
  };
  begin_phase(0);

  const int64_t input_plane = static_cast<int64_t>(parameters.input.height) * parameters.input.width;
  const int64_t grad_plane = static_cast<int64_t>(parameters.grad.height) * parameters.grad.width;
  TileWalker next(parameters, begin);
  int last = end;
  if constexpr (kPhased) last = begin + (end - begin) * parameters.summed_phases;
  // Tiles are counted on from phase to phase.
  const auto load = [&](int tile, int stage) {
    if constexpr (kPhased) {
      const int phase_tile = (tile - begin) % (end - begin);
      if (tile > begin && phase_tile == 0) {
        next = TileWalker(parameters, begin);
        begin_phase((tile - begin) / (end - begin));
      }
    }
    TilePlace place;
    place.first_image = next.group * parameters.planes;
    place.images = min(parameters.planes, parameters.batch - place.first_image);
    place.row = next.band * parameters.band_rows;
    place.column = next.strip * parameters.strip_columns + first_tap_column;
    const uint32_t target = shared + stage * (parameters.input.bytes + parameters.grad.bytes);
    load_image(input + first_channel * input_plane, parameters.input, input_steps, place, parameters.planes,
               input_list, target);
    place.row -= first_tap_row;
    place.column -= first_tap_column;
    load_image(output_grad + first_channel * grad_plane, parameters.grad, grad_steps, place,
               parameters.planes, grad_list, target + parameters.input.bytes);
    const int segments = place.images * parameters.segments.divisor();
    next.advance(parameters);
    return segments;
  };

  DiagonalSums<Block> sums = {};
  // In the first of two stages, without octet column and segment.
  const uint32_t pair_step = 2 * parameters.input.octet_rows * kOctetBytes;
  const uint32_t first_pair = shared + (lane / 8 % 2 * parameters.input.octet_rows + lane / 16) * kOctetBytes;
  const uint32_t first_last =
      shared + ((Block::kOctets - 1) * parameters.input.octet_rows + lane / 8) * kOctetBytes;
  const int grad_row = (parameters.row_groups.divisor() - 1 - row_group) * Block::kTapRows + lane / 8;
  const uint32_t first_grad = shared + parameters.input.bytes + grad_row * kOctetBytes;

  int next_segments = load(begin, 0);
#pragma unroll 1
  for (int tile = begin; tile < last; ++tile) {
    ptx::cp_async_wait_all();
    __syncthreads();
    const int stage = (tile - begin) % kStages;
    const int segments = next_segments;
    if (tile + 1 < last) next_segments = load(tile + 1, (stage + 1) % kStages);

    const int items = ceil_divide(segments, kSegments) * parameters.octets.divisor();
    const uint32_t stage_offset = stage * (parameters.input.bytes + parameters.grad.bytes);
#pragma unroll 1
    for (int item = split; item < items; item += parameters.splits.divisor()) {
      const int segment_group = parameters.octets.divide(item);
      const int octet = item - segment_group * parameters.octets.divisor();
      const int lane_segment = segment_group * kSegments + lane % kSegments;
      const bool exists = lane_segment < segments;
      const int segment = exists ? lane_segment : 0;
      const int image = parameters.segments.divide(segment);
      const int row = (segment - image * parameters.segments.divisor()) * kSegment;
      const int slot = channel * parameters.planes + image;
      const uint32_t input_offset =
          stage_offset +
          (octet * parameters.input.octet_rows + slot * parameters.input.plane_rows + row) * kOctetBytes;
      const uint32_t grad_offset =
          stage_offset +
          (octet * parameters.grad.octet_rows + slot * parameters.grad.plane_rows + row) * kOctetBytes;
      add_products<T>(sums, exists ? first_pair + input_offset : zeros, exists ? pair_step : 0,
                      exists ? first_last + input_offset : zeros, first_grad + grad_offset);
    }
  }

  __syncthreads();
  store_sums(sums, shared_sums + warp * Block::kFloats);
  __syncthreads();
  const int columns = min(parameters.columns_of_block, parameters.kernel_width - first_tap_column);
  const int rows =
      min(parameters.row_groups.divisor() * Block::kTapRows, parameters.kernel_height - first_tap_row);
  int kernel_width = parameters.kernel_width;
  int64_t taps = static_cast<int64_t>(parameters.kernel_height) * kernel_width;
  if constexpr (kPhased) {
    kernel_width = parameters.width.kernel;
    taps = static_cast<int64_t>(parameters.height.kernel) * kernel_width;
  }
  float* block_partial = partial + (static_cast<int64_t>(chunk) * parameters.channels + first_channel) * taps;
  for (int i = static_cast<int>(threadIdx.x); i < channels * rows * columns;
       i += static_cast<int>(blockDim.x)) {
    const int column = i % columns;
    const int row = i / columns % rows;
    const int sum_channel = i / columns / rows;
    int tap_row = first_tap_row + row;
    int tap_column = first_tap_column + column;
    if constexpr (kPhased) {
      tap_row = parameters.height.tap_at(phase_y, tap_row);
      tap_column = parameters.width.tap_at(phase_x, tap_column);
      if (tap_row >= parameters.height.kernel || tap_column >= kernel_width) continue;
    }
    const int sum_group = row / Block::kTapRows;
    const int first_warp =
        (sum_channel * parameters.row_groups.divisor() + sum_group) * parameters.splits.divisor();
    float sum = 0;
    for (int other = 0; other < parameters.splits.divisor(); ++other) {
      sum += diagonal_sum<Block>(shared_sums + (first_warp + other) * Block::kFloats,
                                 row - sum_group * Block::kTapRows, parameters.shift + column);
    }
    block_partial[sum_channel * taps + static_cast<int64_t>(tap_row) * kernel_width + tap_column] = sum;
  }
#else
  __trap();
#endif
}

int alignment_of(const void* pointer, int64_t width) {
  int unit = 8;
  while (width % unit != 0 || !is_aligned(pointer, unit * 2)) unit /= 2;
  return unit;
}

// What a plan is made from: a dense convolution, or the phases of another one, all of the size of the
// largest.
struct PlaneSizes {
  Geometry geometry;
  int input_alignment, grad_alignment;  // elements that may be copied at once
  int slack;                            // rows of padding that some phases have more
  int tap_phases;
  int64_t most_chunks;
};

template <typename T>
PlaneSizes sizes_of(const WeightGrad<T>& pass) {
  const Geometry& geometry = pass.geometry;
  const PhaseAxis height(geometry.height, /*transposed=*/false);
  const PhaseAxis width(geometry.width, /*transposed=*/false);
  PlaneSizes sizes = {geometry,
                      width.source_steps ? 1 : alignment_of(pass.input, width.source),
                      width.result_steps ? 1 : alignment_of(pass.output_grad, width.result),
                      height.source_steps && height.lead > 0 ? 1 : 0,
                      height.tap_phases() * width.tap_phases(),
                      most_chunks(geometry, Layout::contiguous)};
  sizes.geometry.height = {ceil_divide(height.source, height.source_phases()),
                           height.phase_result,
                           height.phase_kernel,
                           1,
                           height.padding,
                           1};
  sizes.geometry.width = {width.phase_source, width.phase_result, width.phase_kernel, 1, width.padding, 1};
  return sizes;
}

// What a plan consists of, beyond the parameters.
struct PlanesPlan {
  PlanesParameters parameters;
  int threads;
  size_t bytes;
  int64_t blocks;
};

// The most elements that are copied at once and still leave windows of `columns` columns within `octets`
// octets; one always does if the kernel is not too wide.
int input_unit(int alignment, int64_t padding, int64_t columns, int octets) {
  for (int unit = alignment; unit > 1; unit /= 2) {
    const int shift = static_cast<int>((unit - padding % unit) % unit);
    if (shift + kOctet - 1 + columns <= octets * kOctet) return unit;
  }
  return 1;
}

int odd(int64_t count) { return static_cast<int>(count | 1); }

void share_rows(TileSource& source, int threads) {
  const int side_by_side = std::clamp(source.units, 1, threads);
  source.units_side_by_side = FastDivisor(side_by_side);
  source.units_of_row = FastDivisor(std::max(source.units, 1));
  source.rows_of_pass = threads / side_by_side;
  source.passes = source.rows.divisor() / source.rows_of_pass;
  source.rows_beyond = source.rows.divisor() % source.rows_of_pass;
}

template <typename Block>
PlanesPlan plan_planes(const PlaneSizes& sizes) {
  constexpr int kStageBytes = 18 * 1024;
  constexpr int kLargestStageBytes = 30 * 1024;
  constexpr int kWarps = 4;  // where there is a choice
  // At once; tiles of several channels do little each.
  const int64_t blocks_at_once = int64_t{current_device().multiprocessors} * 5;
  const int64_t blocks_of_channels = 2 * blocks_at_once;
  const Geometry& geometry = sizes.geometry;
  const Extent& height = geometry.height;
  const Extent& width = geometry.width;
  PlanesPlan plan = {};
  PlanesParameters& parameters = plan.parameters;
  parameters.batch = static_cast<int>(geometry.batch);
  parameters.channels = static_cast<int>(geometry.channels);
  parameters.kernel_height = static_cast<int>(height.kernel);
  parameters.kernel_width = static_cast<int>(width.kernel);

  // Taps.
  const int groups = ceil_divide(parameters.kernel_height, Block::kTapRows);
  const int row_blocks = ceil_divide(groups, kMostWarps);
  const int row_groups = ceil_divide(groups, row_blocks);
  const int tap_rows = row_groups * Block::kTapRows;
  int column_blocks = 1;
  int columns = parameters.kernel_width;
  if (columns > Block::most_columns(0)) {
    // Shared among blocks, whole octets each, so that the shift is the same for all.
    constexpr int kMostColumns = Block::most_columns(kOctet - 1) / kOctet * kOctet;
    column_blocks = ceil_divide(columns, kMostColumns);
    columns = ceil_divide(ceil_divide(columns, column_blocks), kOctet) * kOctet;
    column_blocks = ceil_divide(parameters.kernel_width, columns);
  }
  TileSource& from_input = parameters.input;
  TileSource& from_grad = parameters.grad;
  from_input.unit = input_unit(sizes.input_alignment, width.padding, columns, Block::kOctets);
  from_grad.unit = sizes.grad_alignment;
  const int padding = static_cast<int>(width.padding);
  const int shifted = ceil_divide(padding, from_input.unit) * from_input.unit;
  parameters.shift = shifted - padding;
  parameters.row_groups = FastDivisor(row_groups);
  parameters.row_blocks = FastDivisor(row_blocks);
  parameters.column_blocks = FastDivisor(column_blocks);
  parameters.columns_of_block = columns;

  // Tiles: whole planes if one is not too large, else bands and strips.
  const int output_octets = static_cast<int>(ceil_divide<int64_t>(width.output, kOctet));
  int channels_of_block = 1;
  int planes = 1;
  int bands = 1;
  int strips = 1;
  int strip_octets = output_octets;
  SegmentRows rows = small_planes_whole(height, tap_rows, sizes.slack);
  const auto measure = [&] {
    const int64_t slots = int64_t{planes} * channels_of_block;
    const int64_t grad_rows = std::max<int64_t>(
        slots * rows.grad_rows, (slots - 1) * rows.grad_rows + rows.segments * kSegment + tap_rows - 1);
    const int64_t input_pitch = (slots * rows.input_rows) | 1;
    const int64_t grad_pitch = grad_rows | 1;
    return std::pair(input_pitch * (strip_octets + Block::kOctets - 1) * kOctetBytes,
                     grad_pitch * strip_octets * kOctetBytes);
  };
  const auto bytes = [&] {
    const auto [input_bytes, grad_bytes] = measure();
    return input_bytes + grad_bytes;
  };
  const bool whole = row_blocks * column_blocks == 1 && bytes() <= kLargestStageBytes;
  if (whole) {
    from_input.rows = FastDivisor(static_cast<int>(height.input));
    // Columns of shared memory begin `shifted` columns before the plane.
    const int first = std::max(-shifted, 0);
    const int last = static_cast<int>(
        std::min<int64_t>(width.input, int64_t{kOctet} * (strip_octets + Block::kOctets - 1) - shifted));
    from_input.source_column = first;
    from_input.column = first + shifted;
    from_input.units = std::max(last - first, 0) / from_input.unit;
    from_grad.source_column = 0;
    from_grad.column = 0;
    from_grad.units = static_cast<int>(width.output) / from_grad.unit;
    const auto fits = [&] {
      const int64_t places = int64_t{channels_of_block} *
                             (height.input * from_input.units + int64_t{rows.grad_loaded} * from_grad.units);
      return bytes() <= kStageBytes &&
             kStages * bytes() + kZeroBytes + kPlaceBytes * places <= current_device().shared_of_block;
    };
    const int64_t plane_elements = std::min(geometry.input_pixels(), geometry.output_pixels());
    // Small planes of neighbouring channels make runs of memory of some length.
    if (plane_elements <= 512 && row_groups == 1) {
      channels_of_block = static_cast<int>(std::min<int64_t>(geometry.channels, kWarps));
      if (!fits()) channels_of_block = 1;
    }
    const int splits = std::max(kWarps / (channels_of_block * row_groups), 1);
    // As many planes as fill slices and warps best.
    int best = 1;
    double best_share = 0;
    for (planes = 1; planes <= std::min<int64_t>(geometry.batch, 64); ++planes) {
      if (planes > 1 && !fits()) break;
      const int slices = ceil_divide(planes * rows.segments, kSegments);
      const int items = slices * output_octets;
      const double share = static_cast<double>(planes * rows.segments) / (slices * kSegments) * items /
                           (ceil_divide(items, splits) * splits);
      if (share >= best_share) {
        best_share = share;
        best = planes;
      }
    }
    planes = best;
    parameters.splits = FastDivisor(splits);
    from_input.source_row = 0;
    from_input.row = 0;
  } else {
    const int plane_segments = rows.segments;
    bands = ceil_divide(plane_segments, kSegments);
    rows = band_of_plane(height, tap_rows, ceil_divide(plane_segments, bands));
    bands = ceil_divide(plane_segments, rows.segments);
    // Strips of one octet fit, whatever the kernel.
    constexpr int kMostSegmentRows = kSegments * kSegment;
    constexpr int kMostGradRows = kMostSegmentRows + kMostWarps * Block::kTapRows - 1;
    static_assert(((kMostSegmentRows | 1) * Block::kOctets + (kMostGradRows | 1)) * kOctetBytes <=
                  kLargestStageBytes);
    while (bytes() > kLargestStageBytes) {
      ++strips;
      strip_octets = ceil_divide(output_octets, strips);
    }
    strips = ceil_divide(output_octets, strip_octets);
    parameters.splits = FastDivisor(std::max(kWarps / row_groups, 1));
    from_input.source_row = 0;
    from_input.row = 0;
    from_input.rows = FastDivisor(rows.input_rows);
    from_input.source_column = -shifted;
    from_input.column = 0;
    from_input.units = (strip_octets + Block::kOctets - 1) * kOctet / from_input.unit;
    from_grad.source_column = 0;
    from_grad.column = 0;
    from_grad.units = strip_octets * kOctet / from_grad.unit;
  }
  from_grad.source_row = rows.grad_source;
  from_grad.row = rows.grad_row;
  from_grad.rows = FastDivisor(std::max(rows.grad_loaded, 1));
  if (rows.grad_loaded == 0) from_grad.units = 0;
  const int64_t slots = int64_t{planes} * channels_of_block;
  const auto [input_bytes, grad_bytes] = measure();
  from_input.bytes = static_cast<int>(input_bytes);
  from_grad.bytes = static_cast<int>(grad_bytes);
  from_input.octet_rows = odd(slots * rows.input_rows);
  from_grad.octet_rows = from_grad.bytes / (strip_octets * kOctetBytes);
  from_input.plane_rows = rows.input_rows;
  from_grad.plane_rows = rows.grad_rows;
  from_input.height = static_cast<int>(height.input);
  from_input.width = static_cast<int>(width.input);
  from_grad.height = static_cast<int>(height.output);
  from_grad.width = static_cast<int>(width.output);
  from_input.image = geometry.channels * geometry.input_pixels();
  from_grad.image = geometry.channels * geometry.output_pixels();

  if (slots > 1) {
    from_input.places = channels_of_block * from_input.rows.divisor() * from_input.units;
    from_grad.places = channels_of_block * from_grad.rows.divisor() * from_grad.units;
  }
  plan.threads = 32 * channels_of_block * row_groups * parameters.splits.divisor();
  share_rows(from_input, plan.threads);
  share_rows(from_grad, plan.threads);
  parameters.planes = planes;
  parameters.channels_of_block = FastDivisor(channels_of_block);
  const int channel_blocks = ceil_divide(parameters.channels, channels_of_block);
  parameters.channel_blocks = FastDivisor(channel_blocks);
  parameters.bands = FastDivisor(bands);
  parameters.strips = FastDivisor(strips);
  parameters.band_rows = rows.segments * kSegment;
  parameters.strip_columns = strip_octets * kOctet;
  parameters.segments = FastDivisor(rows.segments);
  parameters.octets = FastDivisor(strip_octets);

  const int64_t tiles = ceil_divide<int64_t>(geometry.batch, planes) * bands * strips;
  const int64_t blocks_of_chunk = int64_t{channel_blocks} * sizes.tap_phases * row_blocks * column_blocks;
  const int64_t most = std::min(
      sizes.most_chunks,
      std::max<int64_t>((channels_of_block > 1 ? blocks_of_channels : blocks_at_once) / blocks_of_chunk, 1));
  TORCHGRAFT_CHECK(tiles <= INT32_MAX,
                   "depthwise_conv2d_weight_grad: the tensors are too large for one launch");
  parameters.chunks = make_chunks(tiles, 1, most);
  plan.blocks = blocks_of_chunk * parameters.chunks.count;
  const size_t stages = size_t{kStages} * (from_input.bytes + from_grad.bytes) + kZeroBytes +
                        size_t{kPlaceBytes} * (from_input.places + from_grad.places);
  const size_t sums = size_t(plan.threads) / 32 * Block::kFloats * sizeof(float);
  plan.bytes = std::max(stages, sums);
  return plan;
}

// Tells the parameters of a plan the images and the kernel that its phases are of.
PhasedPlanes phases_of(const PlanesParameters& parameters, const Geometry& geometry, int tap_phases) {
  const PhaseAxis height(geometry.height, /*transposed=*/false);
  const PhaseAxis width(geometry.width, /*transposed=*/false);
  PhasedPlanes phased = {parameters, height, width, FastDivisor(tap_phases),
                         height.result_phases() * width.result_phases()};
  phased.input.height = height.source;
  phased.input.width = width.source;
  phased.input.image = geometry.channels * geometry.input_pixels();
  phased.grad.height = height.result;
  phased.grad.width = width.result;
  phased.grad.image = geometry.channels * geometry.output_pixels();
  return phased;
}

template <typename T, typename Block, int kBlocksOfMultiprocessor, typename Parameters>
void launch_planes(const WeightGrad<T>& pass, const PlanesPlan& plan, const Parameters& parameters) {
  const auto& [output_grad, input, weight_grad, workspace, geometry, layout, stream] = pass;
  const auto kernel = diagonals_nchw<T, Block, kBlocksOfMultiprocessor, Parameters>;
  require_shared_memory(kernel, static_cast<int64_t>(plan.bytes), pass.kName);
  kernel<<<grid_of(plan.blocks, pass.kName), plan.threads, plan.bytes, stream>>>(
      reinterpret_cast<const uint16_t*>(output_grad), reinterpret_cast<const uint16_t*>(input), workspace,
      parameters);
  check_launch(pass.kName);
  launch_sum_chunks(workspace, weight_grad, geometry, parameters.chunks.count, stream);
}

// A thread has registers for three blocks of the widest taps on a multiprocessor, and four of others.
template <typename T, typename Block>
void launch_phases(const WeightGrad<T>& pass, const PlaneSizes& sizes) {
  const PlanesPlan plan = plan_planes<Block>(sizes);
  launch_planes<T, Block, Block::kOctets <= 3 ? 4 : 3>(
      pass, plan, phases_of(plan.parameters, pass.geometry, sizes.tap_phases));
}

}  // namespace

template <typename T>
void launch_diagonals_nchw(const WeightGrad<T>& pass) {
  const PlaneSizes sizes = sizes_of(pass);
  const Extent& width = sizes.geometry.width;
  const int64_t rows = sizes.geometry.height.kernel;
  // An odd padding and an even width are one column apart from being copied two elements at once.
  const bool pairs = sizes.input_alignment > 1;
  const int shift = pairs ? static_cast<int>(width.padding % 2) : 0;
  if (!is_unit_step(pass.geometry)) {
    if (width.kernel <= TapBlock<7, 2>::most_columns(shift))
      return launch_phases<T, TapBlock<7, 2>>(pass, sizes);
    if (width.kernel <= TapBlock<7, 3>::most_columns(shift))
      return launch_phases<T, TapBlock<7, 3>>(pass, sizes);
    return launch_phases<T, TapBlock<8, 5>>(pass, sizes);
  }
  const auto launch = [&](auto block, auto blocks_of_multiprocessor) {
    const PlanesPlan plan = plan_planes<decltype(block)>(sizes);
    launch_planes<T, decltype(block), blocks_of_multiprocessor>(pass, plan, plan.parameters);
  };
  using Many = std::integral_constant<int, 5>;
  using Few = std::integral_constant<int, 4>;
  if (width.kernel <= TapBlock<7, 2>::most_columns(shift)) {
    if (rows <= 3) return launch(TapBlock<3, 2>{}, Many{});
    if (rows <= 5 || rows == 9 || rows == 10) return launch(TapBlock<5, 2>{}, Many{});
    return launch(TapBlock<7, 2>{}, Many{});
  }
  if (width.kernel <= TapBlock<7, 3>::most_columns(shift)) return launch(TapBlock<7, 3>{}, Few{});
  launch(TapBlock<8, 5>{}, std::integral_constant<int, 3>{});
}

template void launch_diagonals_nchw(const WeightGrad<Half>&);
template void launch_diagonals_nchw(const WeightGrad<BFloat16>&);

}  // namespace torchgraft::depthwise::cuda
