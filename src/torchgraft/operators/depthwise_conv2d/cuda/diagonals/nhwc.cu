// Weight gradient on tensor cores (diagonals.cuh): NHWC images.
//
// A block owns sixteen neighbouring channels and a chunk of the tiles of the images: eight segments of rows,
// whole planes of several images or bands of large ones. It walks through a tile by octet columns, each once:
// a thread loads eight pixels of eight channels of one row, sixteen bytes each, while the column before is
// worked on, turns them around in registers, and writes each channel's octet to shared memory. The windows of
// an octet column of the output gradient lie in two of input, the newest and the one before. A warp owns two
// channels and some rows of the kernel.

#include "../kernels.h"
#include "../supports.h"
#include "diagonals.cuh"

// Compiled for less, the kernel is a trap and uses nothing of this file.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#pragma nv_diag_suppress 177
#endif

namespace torchgraft::depthwise::cuda {
namespace {

constexpr int kChannelsOfBlock = 16;
constexpr int kChannelsOfWarp = 2;
constexpr int kWarpsOfRowGroup = kChannelsOfBlock / kChannelsOfWarp;
constexpr int kChannelsOfThread = 8;
constexpr int kLoadRows = 64;  // of an image, in one octet column
constexpr int kLoadThreads = kLoadRows * kChannelsOfBlock / kChannelsOfThread;
constexpr int kInputStages = 3;
constexpr int kGradStages = 2;
static_assert(2 * kLoadThreads == kWarpsOfRowGroup * 32, "half of the threads load one image each");

struct ColumnSource {
  int height, width;
  FastDivisor rows;   // loaded of a plane
  int source_row;     // the first, for band 0
  int source_column;  // of the first octet, for strip 0
  int row;            // where it lies in shared memory
  int plane_rows;     // from plane to plane
  int channel_rows;   // from channel to channel
};

struct ChannelsLastParameters {
  ColumnSource input, grad;
  int batch, channels;
  int load_bytes;     // of one load: sixteen, or as many as addresses are multiples of
  FastDivisor slabs;  // of channels
  int planes;         // images in a tile
  FastDivisor strips, bands;
  int strip_octets, band_rows;
  Chunks chunks;         // of tiles
  FastDivisor segments;  // of a plane
  int kernel_height, kernel_width;
};

// Eight pixels of a thread's channels.
struct Pixels {
  uint4 values[kOctet];
};

// The first `count` of a thread's channels of one pixel, loaded a Part at a time, and zeros.
template <typename Part>
__device__ __forceinline__ uint4 load_channels(const uint16_t* source, int count) {
  if constexpr (std::is_same_v<Part, uint4>) {
    return __ldg(reinterpret_cast<const uint4*>(source));
  } else {
    constexpr int kChannelsOfPart = sizeof(Part) / sizeof(uint16_t);
    Part parts[kChannelsOfThread / kChannelsOfPart];
#pragma unroll
    for (int i = 0; i < kChannelsOfThread; i += kChannelsOfPart) {
      parts[i / kChannelsOfPart] = i < count ? __ldg(reinterpret_cast<const Part*>(source + i)) : Part{};
    }
    uint4 whole;
    static_assert(sizeof(whole) == sizeof(parts));
    memcpy(&whole, parts, sizeof(whole));
    return whole;
  }
}

// What one thread loads, step after step; a step is one octet column.
class ColumnLoader {
 public:
  __device__ ColumnLoader(const ChannelsLastParameters& parameters, const uint16_t* output_grad,
                          const uint16_t* input, int first_channel, int begin, int end)
      : parameters_(parameters),
        is_input_(threadIdx.x < kLoadThreads),
        memory_(is_input_ ? input : output_grad),
        tile_(begin),
        end_(end) {
    const ColumnSource& source = is_input_ ? parameters.input : parameters.grad;
    const int thread = static_cast<int>(threadIdx.x) % kLoadThreads;
    // Lanes of a quarter warp lie in neighbouring rows, and so in different banks when they store.
    const int group = thread / 8 % 2;
    const int row = thread / 16 * 8 + thread % 8;
    plane_ = source.rows.divide(row);
    plane_row_ = row - plane_ * source.rows.divisor();
    channel_ = first_channel + group * kChannelsOfThread;
    loads_ = threadIdx.x < 2 * kLoadThreads && plane_ < parameters.planes;
    target_ = (group * kChannelsOfThread * source.channel_rows + source.row + plane_ * source.plane_rows +
               plane_row_) *
              kOctetBytes;
    height_ = source.height;
    width_ = source.width;
    source_row_ = source.source_row + plane_row_;
    source_column_ = source.source_column;
    channel_bytes_ = source.channel_rows * kOctetBytes;
    enter_tile();  // no chunk is empty
  }

  // Loads the octet column of the next step.
  __device__ void load(Pixels& pixels) {
    if (tile_ == end_) return;
    switch (parameters_.load_bytes) {
      case sizeof(uint4):
        load_in<uint4>(pixels);
        break;
      case sizeof(uint2):
        load_in<uint2>(pixels);
        break;
      case sizeof(uint32_t):
        load_in<uint32_t>(pixels);
        break;
      default:
        load_in<uint16_t>(pixels);
    }
    if (++step_ > parameters_.strip_octets) {
      step_ = 0;
      if (++tile_ < end_) enter_tile();
    }
  }

  // Writes them to shared memory, each channel's eight pixels in one access.
  __device__ void store(const Pixels& pixels, uint32_t input_stage, uint32_t grad_stage) const {
    if (!loads_) return;
    const uint32_t target = (is_input_ ? input_stage : grad_stage) + target_;
#pragma unroll
    for (int channel = 0; channel < kChannelsOfThread; ++channel) {
      const uint32_t half = channel % 2 == 0 ? 0x5410 : 0x7632;
      const auto word = [&](int i) {
        const uint4& value = pixels.values[i];
        return channel < 2 ? value.x : channel < 4 ? value.y : channel < 6 ? value.z : value.w;
      };
      ptx::store_shared(target + channel * channel_bytes_,
                        make_uint4(__byte_perm(word(0), word(1), half), __byte_perm(word(2), word(3), half),
                                   __byte_perm(word(4), word(5), half), __byte_perm(word(6), word(7), half)));
    }
  }

 private:
  template <typename Part>
  __device__ __forceinline__ void load_in(Pixels& pixels) const {
    const int octet = is_input_ ? step_ : step_ - 1;
    const int first = column_ + octet * kOctet;
    const uint16_t* source = row_ + static_cast<int64_t>(first) * parameters_.channels;
    const bool exists = row_exists_ && octet >= 0;
#pragma unroll
    for (int i = 0; i < kOctet; ++i) {
      uint4 value = {};
      if (exists && first + i >= 0 && first + i < width_) {
        value = load_channels<Part>(source + static_cast<int64_t>(i) * parameters_.channels,
                                    parameters_.channels - channel_);
      }
      pixels.values[i] = value;
    }
  }

  __device__ void enter_tile() {
    const int rest = parameters_.strips.divide(tile_);
    const int strip = tile_ - rest * parameters_.strips.divisor();
    const int group = parameters_.bands.divide(rest);
    const int band = rest - group * parameters_.bands.divisor();
    const int image = group * parameters_.planes + plane_;
    const int row = source_row_ + band * parameters_.band_rows;
    row_exists_ =
        loads_ && image < parameters_.batch && channel_ < parameters_.channels && row >= 0 && row < height_;
    column_ = source_column_ + strip * parameters_.strip_octets * kOctet;
    row_ = memory_ + (static_cast<int64_t>(image) * height_ + row) * width_ * parameters_.channels + channel_;
  }

  const ChannelsLastParameters& parameters_;
  const bool is_input_;
  const uint16_t* const memory_;
  int tile_;
  const int end_;
  int step_ = 0;
  int plane_, plane_row_, channel_;
  int height_, width_, source_row_, source_column_;
  uint32_t target_, channel_bytes_;
  bool loads_;
  bool row_exists_ = false;
  int column_ = 0;
  const uint16_t* row_ = nullptr;
};

template <typename T, typename Block, int kRowGroups>
__global__ void __launch_bounds__(kRowGroups * kWarpsOfRowGroup * 32, kRowGroups == 1 ? 2 : 1)
    diagonals_nhwc(const uint16_t* __restrict__ output_grad, const uint16_t* __restrict__ input,
                   float* __restrict__ partial, const __grid_constant__ ChannelsLastParameters parameters) {
// mma.sync m16n8k16: not chosen where this is compiled for less.
#if __CUDA_ARCH__ >= 800
  const int chunk = parameters.slabs.divide(static_cast<int>(blockIdx.x));
  const int first_channel =
      (static_cast<int>(blockIdx.x) - chunk * parameters.slabs.divisor()) * kChannelsOfBlock;
  const int begin = static_cast<int>(chunk * parameters.chunks.units_of_chunk);
  const int end = static_cast<int>(
      min(static_cast<int64_t>(begin) + parameters.chunks.units_of_chunk, parameters.chunks.units));

  float* shared_sums = shared_memory<float>();
  const uint32_t shared = shared_address(shared_sums);
  const uint32_t input_bytes = kChannelsOfBlock * parameters.input.channel_rows * kOctetBytes;
  const uint32_t grad_bytes = kChannelsOfBlock * parameters.grad.channel_rows * kOctetBytes;
  const uint32_t grad_stages = shared + kInputStages * input_bytes;
  const uint32_t zeros = grad_stages + kGradStages * grad_bytes;
  clear_octets(shared, kInputStages * input_bytes + kGradStages * grad_bytes + kZeroBytes);

  // Where this lane reads, without stage and channel.
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int row_group = warp / kWarpsOfRowGroup;
  const int warp_channel = warp % kWarpsOfRowGroup * kChannelsOfWarp;
  const int segment = lane % kSegments;
  const int plane = parameters.segments.divide(segment);
  const bool exists = plane < parameters.planes;
  const int row = (segment - plane * parameters.segments.divisor()) * kSegment;
  const uint32_t input_offset =
      (warp_channel * parameters.input.channel_rows + plane * parameters.input.plane_rows + row + lane / 16) *
      kOctetBytes;
  const uint32_t grad_offset =
      (warp_channel * parameters.grad.channel_rows + (exists ? plane * parameters.grad.plane_rows + row : 0) +
       (kRowGroups - 1 - row_group) * Block::kTapRows + lane / 8) *
      kOctetBytes;
  const bool second_octet = lane / 8 % 2 != 0;

  DiagonalSums<Block> sums[kChannelsOfWarp] = {};
  ColumnLoader loader(parameters, output_grad, input, first_channel, begin, end);
  Pixels pixels;
  const int steps = (end - begin) * (parameters.strip_octets + 1);
  loader.load(pixels);
  __syncthreads();
  loader.store(pixels, shared, grad_stages);
  loader.load(pixels);
  __syncthreads();
  int step_of_tile = 0;
  uint32_t before = shared;
  uint32_t newest = shared;
  uint32_t grad_stage = grad_stages;
#pragma unroll 1
  for (int step = 0;; ++step) {
    if (step_of_tile > 0) {
#pragma unroll
      for (int i = 0; i < kChannelsOfWarp; ++i) {
        const uint32_t channel_offset = i * parameters.input.channel_rows * kOctetBytes;
        const uint32_t stage = second_octet ? newest : before;
        add_products<T>(sums[i], exists ? stage + input_offset + channel_offset : zeros, 0, 0,
                        grad_stage + grad_offset + i * parameters.grad.channel_rows * kOctetBytes);
      }
    }
    if (++step_of_tile > parameters.strip_octets) step_of_tile = 0;
    if (step + 1 == steps) break;
    before = newest;
    newest += input_bytes;
    if (newest == grad_stages) newest = shared;
    grad_stage = grad_stage == grad_stages ? grad_stages + grad_bytes : grad_stages;
    loader.store(pixels, newest, grad_stage);
    loader.load(pixels);
    __syncthreads();
  }

  __syncthreads();
#pragma unroll
  for (int i = 0; i < kChannelsOfWarp; ++i) {
    store_sums(sums[i], shared_sums + (row_group * kChannelsOfBlock + warp_channel + i) * Block::kFloats);
  }
  __syncthreads();
  const int channels = min(kChannelsOfBlock, parameters.channels - first_channel);
  const int taps = parameters.kernel_height * parameters.kernel_width;
  float* block_partial = partial + (static_cast<int64_t>(chunk) * parameters.channels + first_channel) * taps;
  for (int i = static_cast<int>(threadIdx.x); i < channels * taps; i += static_cast<int>(blockDim.x)) {
    const int channel = i / taps;
    const int tap_row = i % taps / parameters.kernel_width;
    const int tap_column = i % parameters.kernel_width;
    const int group = tap_row / Block::kTapRows;
    block_partial[i] =
        diagonal_sum<Block>(shared_sums + (group * kChannelsOfBlock + channel) * Block::kFloats,
                            tap_row - group * Block::kTapRows, tap_column);
  }
#else
  __trap();
#endif
}

// Rows of octets that a channel of a tile of so many planes has, and the shared memory that all stages of a
// block's tiles take.
int input_rows_of_channel(const SegmentRows& rows, int planes) { return planes * rows.input_rows; }

int grad_rows_of_channel(const SegmentRows& rows, int planes, int tap_rows) {
  return std::max(planes * rows.grad_rows, (planes - 1) * rows.grad_rows + rows.input_rows + tap_rows - 1);
}

int64_t stage_bytes(const SegmentRows& rows, int planes, int tap_rows) {
  const int64_t all_rows = int64_t{kInputStages} * input_rows_of_channel(rows, planes) +
                           int64_t{kGradStages} * grad_rows_of_channel(rows, planes, tap_rows);
  return all_rows * kChannelsOfBlock * kOctetBytes + kZeroBytes;
}

template <typename T, typename Block, int kRowGroups>
void launch(const WeightGrad<T>& pass) {
  const auto& [output_grad, input, weight_grad, workspace, geometry, layout, stream] = pass;
  const int64_t blocks = int64_t{current_device().multiprocessors} * 2;
  constexpr int kTapRows = kRowGroups * Block::kTapRows;
  const Extent& height = geometry.height;
  const Extent& width = geometry.width;
  ChannelsLastParameters parameters = {};
  parameters.batch = static_cast<int>(geometry.batch);
  parameters.channels = static_cast<int>(geometry.channels);
  parameters.load_bytes = copied_piece(geometry.channels, sizeof(T), common_alignment(output_grad, input));
  parameters.kernel_height = static_cast<int>(height.kernel);
  parameters.kernel_width = static_cast<int>(width.kernel);

  // Tiles: as many whole planes as fill eight segments, or bands of one.
  SegmentRows rows = small_planes_whole(height, kTapRows);
  int planes = 1;
  int bands = 1;
  if (rows.segments <= kSegments && rows.grad_loaded <= kLoadRows) {
    const int64_t most = std::min(kSegments / rows.segments, kLoadRows / std::max(rows.grad_loaded, 1));
    // With each plane shared memory grows by the same number of bytes, from those of none.
    const int64_t bytes_of_none = stage_bytes(rows, 0, kTapRows);
    const int64_t fitting =
        (current_device().shared_of_block - bytes_of_none) / (stage_bytes(rows, 1, kTapRows) - bytes_of_none);
    planes = static_cast<int>(std::min(geometry.batch, std::clamp<int64_t>(fitting, 1, most)));
    parameters.input.rows = FastDivisor(static_cast<int>(height.input));
    parameters.grad.rows = FastDivisor(std::max(rows.grad_loaded, 1));
  } else {
    constexpr int kMostSegments = std::min((kLoadRows - kTapRows + 1) / kSegment, kSegments);
    const int plane_segments = rows.segments;
    bands = ceil_divide(plane_segments, kMostSegments);
    rows = band_of_plane(height, kTapRows, ceil_divide(plane_segments, bands));
    bands = ceil_divide(plane_segments, rows.segments);
    parameters.input.rows = FastDivisor(rows.input_rows);
    parameters.grad.rows = FastDivisor(rows.grad_loaded);
  }
  parameters.planes = planes;
  parameters.bands = FastDivisor(bands);
  parameters.band_rows = rows.segments * kSegment;
  parameters.segments = FastDivisor(rows.segments);
  ColumnSource& from_input = parameters.input;
  ColumnSource& from_grad = parameters.grad;
  from_input.height = static_cast<int>(height.input);
  from_input.width = static_cast<int>(width.input);
  from_input.source_column = -static_cast<int>(width.padding);
  from_input.plane_rows = rows.input_rows;
  from_input.channel_rows = input_rows_of_channel(rows, planes);
  from_grad.height = static_cast<int>(height.output);
  from_grad.width = static_cast<int>(width.output);
  from_grad.source_row = rows.grad_source;
  from_grad.row = rows.grad_row;
  from_grad.plane_rows = rows.grad_rows;
  from_grad.channel_rows = grad_rows_of_channel(rows, planes, kTapRows);

  // Strips of as many octets as make least work of a chunk: a strip has a step for each, and one to begin.
  const int octets = static_cast<int>(ceil_divide<int64_t>(width.output, kOctet));
  const int slabs = ceil_divide(parameters.channels, kChannelsOfBlock);
  parameters.slabs = FastDivisor(slabs);
  const int64_t bands_of_all = ceil_divide<int64_t>(geometry.batch, planes) * bands;
  const int64_t most_of_chunks =
      std::min(most_chunks(geometry, Layout::channels_last), std::max<int64_t>(blocks / slabs, 1));
  const auto steps_of_chunk = [&](int strip_octets) {
    const int64_t tiles = bands_of_all * ceil_divide(octets, strip_octets);
    return ceil_divide(tiles, std::min(tiles, most_of_chunks)) * (strip_octets + 1);
  };
  // More would share the work hardly better, and images may be wide.
  constexpr int64_t kTilesOfChunk = 4;
  const int64_t most_strips =
      std::min<int64_t>(octets / 2, ceil_divide(kTilesOfChunk * most_of_chunks, bands_of_all));
  parameters.strip_octets = octets;
  for (int strips = 2; strips <= most_strips; ++strips) {
    const int strip_octets = ceil_divide(octets, strips);
    if (steps_of_chunk(strip_octets) < steps_of_chunk(parameters.strip_octets)) {
      parameters.strip_octets = strip_octets;
    }
  }
  parameters.strips = FastDivisor(ceil_divide(octets, parameters.strip_octets));
  const int64_t tiles = bands_of_all * parameters.strips.divisor();
  TORCHGRAFT_CHECK(tiles <= INT32_MAX / (octets + 1), pass.kName,
                   ": the tensors are too large for one launch");
  parameters.chunks = make_chunks(tiles, 1, most_of_chunks);

  constexpr int64_t kSums = int64_t{kRowGroups} * kChannelsOfBlock * Block::kFloats * sizeof(float);
  const int64_t bytes = std::max(stage_bytes(rows, planes, kTapRows), kSums);
  const auto kernel = diagonals_nhwc<T, Block, kRowGroups>;
  require_shared_memory(kernel, bytes, pass.kName);
  kernel<<<grid_of(int64_t{slabs} * parameters.chunks.count, pass.kName), kRowGroups * kWarpsOfRowGroup * 32,
           static_cast<size_t>(bytes), stream>>>(reinterpret_cast<const uint16_t*>(output_grad),
                                                 reinterpret_cast<const uint16_t*>(input), workspace,
                                                 parameters);
  check_launch(pass.kName);
  launch_sum_chunks(workspace, weight_grad, geometry, parameters.chunks.count, stream);
}

}  // namespace

template <typename T>
void launch_diagonals_nhwc(const WeightGrad<T>& pass) {
  static_assert(kMostChannelsLastTapColumns == TapBlock<7, 2>::most_columns(0));
  static_assert(kMostChannelsLastTapRows == 2 * TapBlock<5, 2>::kTapRows);
  const int64_t rows = pass.geometry.height.kernel;
  if (rows <= 3) return launch<T, TapBlock<3, 2>, 1>(pass);
  if (rows <= 5) return launch<T, TapBlock<5, 2>, 1>(pass);
  if (rows <= 7) return launch<T, TapBlock<7, 2>, 1>(pass);
  launch<T, TapBlock<5, 2>, 2>(pass);
}

template void launch_diagonals_nhwc(const WeightGrad<Half>&);
template void launch_diagonals_nhwc(const WeightGrad<BFloat16>&);

}  // namespace torchgraft::depthwise::cuda
