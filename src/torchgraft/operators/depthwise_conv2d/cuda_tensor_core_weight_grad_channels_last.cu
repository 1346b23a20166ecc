// Weight gradient on tensor cores (cuda_tensor_core_weight_grad.cuh): NHWC images.
//
// A block owns sixteen neighbouring channels and a chunk of the tiles of the images: eight segments of rows,
// whole planes of several images or bands of large ones. It walks through a tile by octet columns, each once.
// cp.async brings columns as they are, eight channels of a pixel at a time, two columns ahead; ldmatrix turns
// them around, so that each channel's octets are written as they will be read. The windows of an octet column
// of the output gradient lie in two of input, the newest and the one before. A warp owns two channels and
// some rows of the kernel.

#include "cuda_choice.h"
#include "cuda_tensor_core_weight_grad.cuh"

namespace torchgraft::depthwise::cuda {
namespace {

constexpr int kChannelsOfBlock = 16;
constexpr int kChannelsOfWarp = 2;
constexpr int kWarpsOfRowGroup = kChannelsOfBlock / kChannelsOfWarp;
constexpr int kChannelsOfThread = 8;
constexpr int kLoadRows = 64;  // of an image, in one octet column
constexpr int kLoadThreads = kLoadRows * kChannelsOfBlock / kChannelsOfThread;
constexpr int kColumnsAhead = 2;
constexpr int kInputStages = 2;
constexpr int kRowBytes = kOctet * kOctetBytes;  // of eight channels, as loaded
static_assert(2 * kLoadThreads == kWarpsOfRowGroup * 32, "half of the threads load one image each");

struct ColumnSource {
  int height, width;
  FastDivisor rows;   // loaded of a plane
  int source_row;     // the first, for band 0
  int source_column;  // of the first octet, for strip 0
  int row;            // where it lies in shared memory
  int plane_rows;     // from plane to plane
  int channel_rows;   // from channel to channel; odd, so that these lie in different banks
  int loaded_rows;    // of all planes, rounded up to what is turned around at once
};

struct ChannelsLastParameters {
  ColumnSource input, grad;
  int batch, channels;
  bool vectors;       // sixteen-byte loads
  FastDivisor slabs;  // of channels
  int planes;         // images in a tile
  FastDivisor strips, bands;
  int strip_octets, band_rows;
  Chunks chunks;         // of tiles
  FastDivisor segments;  // of a plane
  int kernel_height, kernel_width;
};

// Where a pixel's eight channels lie in an octet column of `loaded_rows` rows, as loaded: pixels of
// neighbouring rows, and the two halves of the channels, lie in different banks.
__device__ inline int loaded_turn(int half, int row) { return row % 8 ^ half * 4; }

__device__ inline int loaded_place(int loaded_rows, int half, int row, int pixel) {
  return (half * loaded_rows + row) * kRowBytes + (pixel ^ loaded_turn(half, row)) * kOctetBytes;
}

__device__ __host__ constexpr int loaded_bytes(int loaded_rows) { return 2 * loaded_rows * kRowBytes; }

__device__ inline uint4 load_scalars(const uint16_t* source, int count) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t low = 2 * i < count ? source[2 * i] : 0;
    const uint32_t high = 2 * i + 1 < count ? source[2 * i + 1] : 0;
    words[i] = low | high << 16;
  }
  return {words[0], words[1], words[2], words[3]};
}

// What one thread loads, step after step: eight pixels of eight channels of one row. A step is an octet
// column.
class ColumnLoader {
 public:
  __device__ ColumnLoader(const ChannelsLastParameters& parameters, const uint16_t* output_grad,
                          const uint16_t* input, int first_channel, int begin, int end)
      : is_input_(threadIdx.x < kLoadThreads),
        memory_(is_input_ ? input : output_grad),
        pixel_step_(parameters.channels),
        vectors_(parameters.vectors),
        tile_(begin),
        end_(end) {
    const ColumnSource& from_input = parameters.input;
    const ColumnSource& from_grad = parameters.grad;
    const int thread = static_cast<int>(threadIdx.x) % kLoadThreads;
    const int half = thread % 2;
    const int row = thread / 2;
    plane_ = is_input_ ? from_input.rows.divide(row) : from_grad.rows.divide(row);
    const int plane_row = row - plane_ * (is_input_ ? from_input.rows.divisor() : from_grad.rows.divisor());
    loads_ = threadIdx.x < 2 * kLoadThreads && plane_ < parameters.planes;
    channel_ = first_channel + half * kChannelsOfThread;
    const int loaded_rows = is_input_ ? from_input.loaded_rows : from_grad.loaded_rows;
    target_ =
        (is_input_ ? 0 : loaded_bytes(from_input.loaded_rows)) + loaded_place(loaded_rows, half, row, 0);
    turn_ = loaded_turn(half, row);
    target_ -= turn_ * kOctetBytes;
    height_ = is_input_ ? from_input.height : from_grad.height;
    width_ = is_input_ ? from_input.width : from_grad.width;
    source_row_ = plane_row + (is_input_ ? from_input.source_row : from_grad.source_row);
    source_column_ = is_input_ ? from_input.source_column : from_grad.source_column - kOctet;
    if (tile_ < end_) enter_tile(parameters);
  }

  // Sends the octet column of the next step on its way.
  __device__ void load(const ChannelsLastParameters& parameters, uint32_t stage) {
    if (tile_ < end_) {
      if (loads_) load_pixels(stage + target_);
      column_ += kOctet;
      if (++step_ > parameters.strip_octets) {
        step_ = 0;
        if (++tile_ < end_) enter_tile(parameters);
      }
    }
    ptx::cp_async_commit_group();
  }

 private:
  __device__ void load_pixels(uint32_t target) const {
    const uint16_t* source = row_ + static_cast<int64_t>(column_) * pixel_step_;
    // The column of the output gradient before the first is of no use.
    const bool exists = row_exists_ && (is_input_ || step_ > 0);
    const unsigned width = exists ? width_ : 0;
    if (vectors_) {
#pragma unroll
      for (int i = 0; i < kOctet; ++i, source += pixel_step_) {
        // Through the first-level cache, so that the 32 bytes of both halves are fetched once.
        ptx::cp_async_ca<16>(target + (i ^ turn_) * kOctetBytes, source,
                             static_cast<unsigned>(column_ + i) < width ? 16 : 0);
      }
    } else {
      for (int i = 0; i < kOctet; ++i, source += pixel_step_) {
        const bool inside = static_cast<unsigned>(column_ + i) < width;
        const uint4 value = inside ? load_scalars(source, pixel_step_ - channel_) : uint4{};
        ptx::store_shared(target + (i ^ turn_) * kOctetBytes, value);
      }
    }
  }

  __device__ void enter_tile(const ChannelsLastParameters& parameters) {
    const int rest = parameters.strips.divide(tile_);
    const int strip = tile_ - rest * parameters.strips.divisor();
    const int group = parameters.bands.divide(rest);
    const int band = rest - group * parameters.bands.divisor();
    const int image = group * parameters.planes + plane_;
    const int row = source_row_ + band * parameters.band_rows;
    row_exists_ = image < parameters.batch && channel_ < pixel_step_ && row >= 0 && row < height_;
    column_ = source_column_ + strip * parameters.strip_octets * kOctet;
    row_ = memory_ + (static_cast<int64_t>(image) * height_ + row) * width_ * pixel_step_ + channel_;
  }

  const bool is_input_;
  const uint16_t* const memory_;
  const int pixel_step_;
  const bool vectors_;
  int tile_;
  const int end_;
  int step_ = 0;
  int plane_, channel_;
  int height_, width_, source_row_, source_column_;
  uint32_t target_;
  int turn_;
  bool loads_;
  bool row_exists_ = false;
  int column_ = 0;
  const uint16_t* row_ = nullptr;
};

// Turns a warp's share of a loaded column around: from [half][row][pixel][channel] to [channel][row][pixel].
// `places` says where each loaded row lies below the others.
__device__ inline void turn_around(uint32_t loaded, int loaded_rows, uint32_t target, int channel_rows,
                                   uint32_t places, int half, int first_quad, int quad_step) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t lane_target =
      target + (half * kChannelsOfThread + lane / 4) * channel_rows * kOctetBytes + lane % 4 * 4;
  // Some at a time, so that loads do not wait for stores.
  constexpr int kTogether = 2;
#pragma unroll 1
  for (int first = first_quad * 4; first < loaded_rows; first += kTogether * quad_step * 4) {
    uint32_t pixels[kTogether][4];
    uint32_t two_places[kTogether][2];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int row = first + i * quad_step * 4;
      if (row >= loaded_rows) break;
      load_slices<4>(loaded + loaded_place(loaded_rows, half, row + lane / 8, lane % 8), pixels[i]);
      const uint2 pair = ptx::load_shared_pair(places + row * 2);
      two_places[i][0] = pair.x;
      two_places[i][1] = pair.y;
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (first + i * quad_step * 4 >= loaded_rows) break;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t place = j % 2 == 0 ? two_places[i][j / 2] & 0xffff : two_places[i][j / 2] >> 16;
        ptx::store_shared(lane_target + place, pixels[i][j]);
      }
    }
  }
}

template <typename T, typename Block, int kRowGroups>
__global__ void __launch_bounds__(kRowGroups * kWarpsOfRowGroup * 32, kRowGroups == 1 ? 2 : 1)
    tensor_core_weight_grad_channels_last(const uint16_t* __restrict__ output_grad,
                                          const uint16_t* __restrict__ input, float* __restrict__ partial,
                                          const __grid_constant__ ChannelsLastParameters parameters) {
// mma.sync m16n8k16; the launch refuses older devices.
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
  const uint32_t grads = shared + kInputStages * input_bytes;
  const uint32_t zeros = grads + grad_bytes;
  const uint32_t loaded = zeros + kZeroBytes;
  const uint32_t input_loaded_bytes = loaded_bytes(parameters.input.loaded_rows);
  const uint32_t loaded_stage = input_loaded_bytes + loaded_bytes(parameters.grad.loaded_rows);
  const uint32_t places = loaded + kColumnsAhead * loaded_stage;
  clear_octets(shared, kInputStages * input_bytes + grad_bytes + kZeroBytes);
  for (int i = static_cast<int>(threadIdx.x); i < 2 * kLoadRows; i += static_cast<int>(blockDim.x)) {
    const ColumnSource& source = i < kLoadRows ? parameters.input : parameters.grad;
    const int row = i % kLoadRows;
    const int plane = source.rows.divide(row);
    // What is loaded beyond the last plane goes where nothing is read.
    const int place = plane < parameters.planes
                          ? source.row + plane * source.plane_rows + row - plane * source.rows.divisor()
                          : source.channel_rows - 1;
    ptx::store_shared(places + i * 2, static_cast<uint16_t>(place * kOctetBytes));
  }

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
  const int steps = (end - begin) * (parameters.strip_octets + 1);
  loader.load(parameters, loaded);
  loader.load(parameters, loaded + loaded_stage);
  int step_of_tile = 0;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    const uint32_t loaded_now = loaded + (step % kColumnsAhead) * loaded_stage;
    const uint32_t newest = shared + (step % kInputStages) * input_bytes;
    const uint32_t before = shared + ((step + 1) % kInputStages) * input_bytes;
    ptx::cp_async_wait_group<kColumnsAhead - 1>();
    __syncthreads();
    if (warp < 4) {
      turn_around(loaded_now, parameters.input.loaded_rows, newest, parameters.input.channel_rows, places,
                  warp % 2, warp / 2, 2);
    } else if (warp < 8) {
      turn_around(loaded_now + input_loaded_bytes, parameters.grad.loaded_rows, grads,
                  parameters.grad.channel_rows, places + kLoadRows * 2, warp % 2, warp / 2 - 2, 2);
    }
    __syncthreads();
    loader.load(parameters, loaded_now);
    if (step_of_tile > 0) {
      const uint32_t stage = second_octet ? newest : before;
#pragma unroll
      for (int i = 0; i < kChannelsOfWarp; ++i) {
        const uint32_t channel_offset = i * parameters.input.channel_rows * kOctetBytes;
        add_products<T>(sums[i], exists ? stage + input_offset + channel_offset : zeros, 0, 0,
                        grads + grad_offset + i * parameters.grad.channel_rows * kOctetBytes);
      }
    }
    if (++step_of_tile > parameters.strip_octets) step_of_tile = 0;
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
#endif
}

template <typename T, typename Block, int kRowGroups>
int launch_channels_last(const T* output_grad, const T* input, float* partial, const Geometry& geometry,
                         cudaStream_t stream) {
  const char* name = "depthwise_conv2d_weight_grad";
  constexpr int kBlocks = 264;
  constexpr int kTapRows = kRowGroups * Block::kTapRows;
  const Extent& height = geometry.height;
  const Extent& width = geometry.width;
  ChannelsLastParameters parameters = {};
  parameters.batch = static_cast<int>(geometry.batch);
  parameters.channels = static_cast<int>(geometry.channels);
  parameters.vectors =
      geometry.channels % kChannelsOfThread == 0 && is_aligned(output_grad, 16) && is_aligned(input, 16);
  parameters.kernel_height = static_cast<int>(height.kernel);
  parameters.kernel_width = static_cast<int>(width.kernel);

  // Tiles: as many whole planes as fill eight segments, or bands of one.
  SegmentRows rows = whole_planes(height, kTapRows);
  int planes = 1;
  int bands = 1;
  if (rows.segments <= kSegments && rows.grad_loaded <= kLoadRows) {
    const int64_t most = std::min(kSegments / rows.segments, kLoadRows / std::max(rows.grad_loaded, 1));
    planes = static_cast<int>(std::min(geometry.batch, most));
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
  // One row more than is needed, for what is loaded beyond the last plane.
  from_input.channel_rows = (planes * rows.input_rows + 1) | 1;
  from_input.loaded_rows = ceil_divide(planes * from_input.rows.divisor(), 4) * 4;
  from_grad.height = static_cast<int>(height.output);
  from_grad.width = static_cast<int>(width.output);
  from_grad.source_row = rows.grad_source;
  from_grad.row = rows.grad_row;
  from_grad.plane_rows = rows.grad_rows;
  from_grad.channel_rows =
      (std::max(planes * rows.grad_rows, (planes - 1) * rows.grad_rows + rows.input_rows + kTapRows - 1) +
       1) |
      1;
  from_grad.loaded_rows = ceil_divide(planes * from_grad.rows.divisor(), 4) * 4;

  // Strips where blocks would be few.
  const int octets = static_cast<int>(ceil_divide<int64_t>(width.output, kOctet));
  const int slabs = ceil_divide(parameters.channels, kChannelsOfBlock);
  parameters.slabs = FastDivisor(slabs);
  const int64_t bands_of_all = ceil_divide<int64_t>(geometry.batch, planes) * bands;
  const int64_t most_of_chunks =
      std::min(most_chunks(geometry, Layout::channels_last), std::max<int64_t>(kBlocks / slabs, 1));
  const int64_t strips = std::clamp<int64_t>(most_of_chunks / bands_of_all, 1, ceil_divide(octets, 2));
  parameters.strip_octets = static_cast<int>(ceil_divide<int64_t>(octets, strips));
  parameters.strips = FastDivisor(ceil_divide(octets, parameters.strip_octets));
  const int64_t tiles = bands_of_all * parameters.strips.divisor();
  TORCHGRAFT_CHECK(tiles <= INT32_MAX / (octets + 1), name, ": the tensors are too large for one launch");
  parameters.chunks = make_chunks(tiles, 1, most_of_chunks);

  const size_t turned = size_t(kInputStages * from_input.channel_rows + from_grad.channel_rows) *
                            kChannelsOfBlock * kOctetBytes +
                        kZeroBytes;
  const size_t stages =
      turned +
      kColumnsAhead * size_t(loaded_bytes(from_input.loaded_rows) + loaded_bytes(from_grad.loaded_rows)) +
      2 * kLoadRows * sizeof(uint16_t);
  const size_t sums = size_t{kRowGroups} * kChannelsOfBlock * Block::kFloats * sizeof(float);
  const size_t bytes = std::max(stages, sums);
  const auto kernel = tensor_core_weight_grad_channels_last<T, Block, kRowGroups>;
  allow_shared_memory(kernel, bytes, name);
  kernel<<<grid_of(int64_t{slabs} * parameters.chunks.count, name), kRowGroups * kWarpsOfRowGroup * 32, bytes,
           stream>>>(reinterpret_cast<const uint16_t*>(output_grad), reinterpret_cast<const uint16_t*>(input),
                     partial, parameters);
  check_launch(name);
  return parameters.chunks.count;
}

}  // namespace

template <typename T>
int launch_tensor_core_weight_grad_channels_last(const T* output_grad, const T* input, float* partial,
                                                 const Geometry& geometry, cudaStream_t stream) {
  static_assert(kMostChannelsLastTapColumns == TapBlock<7, 2>::most_columns(0));
  static_assert(kMostChannelsLastTapRows == 2 * TapBlock<5, 2>::kTapRows);
  const int64_t rows = geometry.height.kernel;
  if (rows <= 3)
    return launch_channels_last<T, TapBlock<3, 2>, 1>(output_grad, input, partial, geometry, stream);
  if (rows <= 5)
    return launch_channels_last<T, TapBlock<5, 2>, 1>(output_grad, input, partial, geometry, stream);
  if (rows <= 7)
    return launch_channels_last<T, TapBlock<7, 2>, 1>(output_grad, input, partial, geometry, stream);
  return launch_channels_last<T, TapBlock<5, 2>, 2>(output_grad, input, partial, geometry, stream);
}

template int launch_tensor_core_weight_grad_channels_last(const Half*, const Half*, float*, const Geometry&,
                                                          cudaStream_t);
template int launch_tensor_core_weight_grad_channels_last(const BFloat16*, const BFloat16*, float*,
                                                          const Geometry&, cudaStream_t);

}  // namespace torchgraft::depthwise::cuda
