// Input gradient of volumes in channels_last_3d with stride 2, for halves and float32: by phases
// (phases.cuh).
//
// A thread owns two channels, or one, of four neighbouring cells of a row, in all phases of the height and of
// the width: up to 32 sums in registers. Neighbouring lanes own neighbouring channels, so that a warp reads
// and stores whole lines of memory. A block owns a group of channels and a part of one image; the weights of
// its channels lie in shared memory, tap by tap, and each that a thread reads counts for four results.
//
// Measured on an H200, k 5: 151 us for float32 (3,64,28x32x32), 2.9 times the time of a copy, and 186 us for
// float16 (3,16,52x56x56), 5.1 times. What should bound it are the instructions of a thread, some 1,200 for
// 32 results.
#include "phases.cuh"

#include <torchgraft/device.cuh>
#include <torchgraft/packed.cuh>

namespace torchgraft::depthwise::volumes {
namespace {

constexpr int kThreads = 256;
constexpr int kLanes = 32;
constexpr int kCells = 4;  // of a thread, along the width

struct ChannelsPhasesParameters {
  PhaseExtent depth, height, width;
  int channels;
  int pitch;                  // of the weights of a tap
  int units, units_of_block;  // of an image: planes, cells of the height, groups of cells of the width
  FastDivisor lanes;          // threads that own the channels of a block
  FastDivisor parts, groups;  // of an image, and of its channels
  FastDivisor runs, row_items, taps;
};

template <typename T_, int kChannels_, int kWide_, int kStride_, int kRowPhases_>
struct ChannelsPhasesTraits {
  using T = T_;
  static constexpr int kChannels = kChannels_, kWide = kWide_, kStride = kStride_, kRowPhases = kRowPhases_;
  static constexpr int kBefore = (kWide - 1) / kStride;
  static constexpr int kSources = kBefore + kCells, kResults = kCells * kStride;
};

template <typename Traits>
using ChannelsPhasesSums = float[Traits::kRowPhases][Traits::kResults][Traits::kChannels];
template <typename Traits>
using ChannelsPhasesWindow = Packed<typename Traits::T, Traits::kChannels>[Traits::kSources];

// Adds the sources of a row to the sums of one phase of the height.
template <typename Traits>
__device__ __forceinline__ void add_cells(const ChannelsPhasesWindow<Traits>& window, const float* weights,
                                          int pitch, float (&sums)[Traits::kResults][Traits::kChannels]) {
#pragma unroll
  for (int tap = 0; tap < Traits::kWide; ++tap) {
    const auto taps = *reinterpret_cast<const Vector<float, Traits::kChannels>*>(weights + tap * pitch);
#pragma unroll
    for (int cell = 0; cell < kCells; ++cell) {
      const auto& source = window[Traits::kBefore + cell - tap / Traits::kStride];
#pragma unroll
      for (int i = 0; i < Traits::kChannels; ++i) {
        float& sum = sums[cell * Traits::kStride + tap % Traits::kStride][i];
        sum = fmaf(source[i], taps[i], sum);
      }
    }
  }
}

// Adds every row of the sources that counts for a thread's results. `image` is the thread's first channel of
// the first source, `weights` those of its channels.
template <typename Traits>
__device__ __forceinline__ void add_rows(const typename Traits::T* image, const float* weights,
                                         const ChannelsPhasesParameters& parameters, const PhaseItem& deep,
                                         const PhaseItem& down, int first_column,
                                         ChannelsPhasesSums<Traits>& sums) {
  const PhaseExtent &depth = parameters.depth, &height = parameters.height;
  const int columns = parameters.width.sources, pitch = parameters.pitch;
  int plane = deep.source;
#pragma unroll 1
  for (int plane_tap = deep.tap; plane_tap < depth.kernel && plane >= 0; plane_tap += depth.stride, --plane) {
    int row = down.source;
#pragma unroll 1
    for (int row_tap = down.tap; row_tap < height.kernel && row >= 0; row_tap += height.stride, --row) {
      const typename Traits::T* const from =
          image + static_cast<int64_t>((plane * height.sources + row) * columns) * parameters.channels;
      ChannelsPhasesWindow<Traits> window;
#pragma unroll
      for (int i = 0; i < Traits::kSources; ++i) {
        window[i] = {};
        if (is_inside(first_column + i, columns)) {
          window[i].load(from + static_cast<int64_t>(first_column + i) * parameters.channels);
        }
      }
#pragma unroll
      for (int i = 0; i < Traits::kRowPhases; ++i) {
        if (row_tap + i >= height.kernel) continue;
        add_cells<Traits>(window, weights + (plane_tap * height.kernel + row_tap + i) * Traits::kWide * pitch,
                          pitch, sums[i]);
      }
    }
  }
}

template <typename Traits>
__device__ __forceinline__ void store_cells(const ChannelsPhasesSums<Traits>& sums,
                                            const ChannelsPhasesParameters& parameters, int plane,
                                            int first_row, int first_column, typename Traits::T* image) {
  const int rows = parameters.height.results, columns = parameters.width.results;
#pragma unroll
  for (int i = 0; i < Traits::kRowPhases; ++i) {
    const int row = first_row + i;
    if (!is_inside(row, rows)) continue;
    const int64_t line = static_cast<int64_t>(plane * rows + row) * columns;
#pragma unroll
    for (int j = 0; j < Traits::kResults; ++j) {
      if (!is_inside(first_column + j, columns)) continue;
      Packed<typename Traits::T, Traits::kChannels>(sums[i][j])
          .store(image + (line + first_column + j) * parameters.channels);
    }
  }
}

// Brings the weights of a block's channels into shared memory: tap by tap, those of a tap side by side.
template <typename T>
__device__ void load_weights(const Rounded<T>& weight, float* weights, const FastDivisor& taps,
                             int first_channel, int channels, int pitch) {
  const int count = channels * taps.divisor();
  const Rounded<T> first = weight + static_cast<int64_t>(first_channel) * taps.divisor();
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    const int channel = taps.divide(i);
    weights[(i - channel * taps.divisor()) * pitch + channel] = first[i];
  }
}

template <typename Traits>
__global__ void __launch_bounds__(kThreads)
    channels_last_phases_input_grad(const typename Traits::T* __restrict__ source,
                                    Rounded<typename Traits::T> weight,
                                    typename Traits::T* __restrict__ result,
                                    const __grid_constant__ ChannelsPhasesParameters parameters) {
  using T = typename Traits::T;
  const PhaseExtent &depth = parameters.depth, &height = parameters.height, &width = parameters.width;
  float* const weights = shared_memory<float>();
  const int block = static_cast<int>(blockIdx.x), of_image = parameters.parts.divide(block);
  const int part = block - of_image * parameters.parts.divisor();
  const int image = parameters.groups.divide(of_image), lanes = parameters.lanes.divisor();
  const int first_channel = (of_image - image * parameters.groups.divisor()) * lanes * Traits::kChannels;
  const int channels = min(lanes * Traits::kChannels, parameters.channels - first_channel);
  load_weights(weight, weights, parameters.taps, first_channel, channels, parameters.pitch);
  __syncthreads();

  const int thread = static_cast<int>(threadIdx.x), slot = parameters.lanes.divide(thread);
  const int slots = kThreads / lanes, channel = (thread - slot * lanes) * Traits::kChannels;
  if (slot >= slots || channel >= channels) return;
  const int64_t sources = static_cast<int64_t>(depth.sources) * height.sources * width.sources;
  const int64_t results = static_cast<int64_t>(depth.results) * height.results * width.results;
  const T* const from = source + image * sources * parameters.channels + first_channel + channel;
  T* const to = result + image * results * parameters.channels + first_channel + channel;
  const int end = min(parameters.units, (part + 1) * parameters.units_of_block);
  for (int unit = part * parameters.units_of_block + slot; unit < end; unit += slots) {
    const int line = parameters.runs.divide(unit), run = unit - line * parameters.runs.divisor();
    const int of_depth = parameters.row_items.divide(line);
    const PhaseItem deep = PhaseItem::of<1>(depth, of_depth).within(depth);
    const PhaseItem down =
        PhaseItem::of<Traits::kRowPhases>(height, line - of_depth * parameters.row_items.divisor())
            .within(height);
    const PhaseItem across = PhaseItem::of<Traits::kStride>(width, run * kCells);
    float sums[Traits::kRowPhases][Traits::kResults][Traits::kChannels] = {};
    add_rows<Traits>(from, weights + channel, parameters, deep, down, across.source - Traits::kBefore, sums);
    store_cells<Traits>(sums, parameters, deep.result, down.result, across.result, to);
  }
}

// How many threads own the channels of a block: about as many in every group, and as shared memory allows.
// Several groups are of whole sectors of memory, so that no two blocks write to the same one.
inline int lanes_of(int64_t channels, int channels_of_thread, int64_t taps) {
  const int64_t words = ceil_divide<int64_t>(channels, channels_of_thread);
  const int64_t channels_of_memory = kSharedBytes / (taps * static_cast<int64_t>(sizeof(float)));
  constexpr int64_t kLanesOfSectors = 8;
  // One word of the pitch is left, so that the weights of neighbouring taps lie in other banks.
  const int64_t most = std::min<int64_t>(kLanes, channels_of_memory / channels_of_thread - 1) /
                       kLanesOfSectors * kLanesOfSectors;
  const int64_t groups = ceil_divide(words, most);
  return static_cast<int>(groups == 1 ? words : round_up(ceil_divide(words, groups), kLanesOfSectors));
}

template <typename Traits>
void launch(const Correlation<typename Traits::T>& pass) {
  const Geometry& geometry = pass.geometry;
  constexpr int kChannels = Traits::kChannels;
  ChannelsPhasesParameters parameters = {};
  parameters.depth = PhaseExtent(geometry.depth);
  parameters.height = PhaseExtent(geometry.height);
  parameters.width = PhaseExtent(geometry.width);
  parameters.channels = static_cast<int>(geometry.channels);
  const int lanes = lanes_of(geometry.channels, kChannels, geometry.taps());
  const int groups = static_cast<int>(ceil_divide<int64_t>(geometry.channels, int64_t{lanes} * kChannels));
  parameters.pitch = (lanes + 1) * kChannels;
  const int runs = ceil_divide(parameters.width.items(Traits::kStride), kCells);
  const int row_items = parameters.height.items(Traits::kRowPhases);
  parameters.units = runs * row_items * parameters.depth.items(1);
  // Blocks enough for the device; as few of them as that takes, because each loads weights.
  constexpr int64_t kBlocksOfMultiprocessor = 12;
  const int64_t wanted = ceil_divide<int64_t>(current_device().multiprocessors * kBlocksOfMultiprocessor,
                                              geometry.batch * groups);
  const int slots = kThreads / lanes;
  parameters.units_of_block =
      static_cast<int>(round_up(ceil_divide<int64_t>(parameters.units, wanted), int64_t{slots}));
  const int parts = ceil_divide(parameters.units, parameters.units_of_block);
  parameters.lanes = FastDivisor(lanes);
  parameters.parts = FastDivisor(parts);
  parameters.groups = FastDivisor(groups);
  parameters.runs = FastDivisor(runs);
  parameters.row_items = FastDivisor(row_items);
  parameters.taps = FastDivisor(static_cast<int>(geometry.taps()));
  const unsigned grid = grid_of(geometry.batch * groups * parts, pass.name());
  const int64_t bytes = geometry.taps() * parameters.pitch * static_cast<int64_t>(sizeof(float));
  channels_last_phases_input_grad<Traits>
      <<<grid, kThreads, bytes, pass.stream>>>(pass.source, pass.weight, pass.result, parameters);
  check_launch(pass.name());
}

}  // namespace

template <typename T>
void launch_channels_last_phases(const Correlation<T>& pass) {
  constexpr int kPair = 2;
  const bool has_pairs = pass.geometry.channels % kPair == 0 && is_aligned(pass.source, kPair * sizeof(T)) &&
                         is_aligned(pass.result, kPair * sizeof(T));
  with_phases(pass.geometry, [&]<int kWide, int kStride, int kRowPhases>() {
    if (has_pairs) return launch<ChannelsPhasesTraits<T, kPair, kWide, kStride, kRowPhases>>(pass);
    launch<ChannelsPhasesTraits<T, 1, kWide, kStride, kRowPhases>>(pass);
  });
}

template void launch_channels_last_phases(const Correlation<float>&);
template void launch_channels_last_phases(const Correlation<Half>&);
template void launch_channels_last_phases(const Correlation<BFloat16>&);

}  // namespace torchgraft::depthwise::volumes
