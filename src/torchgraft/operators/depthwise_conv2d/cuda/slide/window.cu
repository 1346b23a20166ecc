// Forward and input gradient on NHWC images, k = 3, 5, 7, stride 1 and 2, where sliding kernels are a few
// blocks that wait for memory one row after another, or where pixels are no whole pieces for them to copy.
//
// A block owns some 32 channels of some patches of results, and a thread one or two channels of a patch:
// lanes lie along channels, of any number, so that warps read whole sectors. A thread asks for all sources of
// its patch, and its share of the block's weights, before it waits for any: what a small problem takes is one
// latency of memory. Weights are turned to [tap][channel] in fp32 on their way to shared memory, from where
// each is read once a patch. A patch of 2 x 4 results reads 3, 6, 10 sources a result for k = 3, 5, 7, from
// L1 for the most part; one of 2 x 2, for problems that would be few threads, 4, 9, 16.
//
// Predicted on an H200, of which an empty kernel takes 3.1 us, float32: (1,64,56x56,k3) 5.2 us,
// (1,768,7x7,k7) 6, (1,97,56x56,k7) 9, (2,61,113x113,k5) 12. Measured: 4.8, 6.5, 8.4 and 14.5, where sliding
// took 8.7 and 15.7 and gathering 22.7 and 19.9. The last is bound by instructions, of which a source takes
// four: address, test, zero and load. So are large problems, (32,97,56x56,k7) 100 us, where gathering took
// 140, but for k = 3 with stride 2, whose windows hardly overlap: (128,96,112x112) 189 us, and the input
// gradient 197.

#include "../kernels.h"

#include "../index.cuh"
#include "../supports.h"
#include "stream.cuh"

namespace torchgraft::depthwise::cuda {
namespace {

constexpr int kWindowThreads = 256;
constexpr int kWindowChannels = 32;  // of a block, about

struct SlideWindowParameters {
  FastDivisor slices;                       // of the channels; blockIdx.x counts them fastest
  FastDivisor column_patches, row_patches;  // of an image
  int patches;                              // of all images
  SlideImage source, result;                // first_row, first_column: of patch 0
  int channels;
  int weight_pitch;  // of a tap in shared memory
  bool flipped;
};

template <int kKernel, int kStride, bool kTransposed, int kRows, int kColumns, int kChannelCount>
struct SlideWindowShape {
  static constexpr int kCount = kChannelCount;  // neighbouring channels of a thread
  using Rows = Stencil<kKernel, kStride, kTransposed, kRows>;
  using Columns = Stencil<kKernel, kStride, kTransposed, kColumns>;
  static constexpr int kTaps = kKernel * kKernel;
  // Weights of a block that a thread brings to shared memory: of up to half as many channels more.
  static constexpr int kMostChannels = kWindowChannels * 3 / 2 + kCount;
  static constexpr int kTurns = ceil_divide(kMostChannels * kTaps, kWindowThreads - kMostChannels);
};

// The work of a thread.
template <typename T, typename Shape>
class SlideWindow {
 public:
  __device__ __forceinline__ explicit SlideWindow(const SlideWindowParameters& parameters)
      : parameters_(parameters),
        lanes_(static_cast<int>(blockDim.x)),
        threads_(lanes_ * static_cast<int>(blockDim.y)),
        thread_(static_cast<int>(threadIdx.y) * lanes_ + static_cast<int>(threadIdx.x)),
        slice_(static_cast<int>(blockIdx.x)),
        stretch_(split(slice_, parameters.slices)),
        block_channel_(slice_ * lanes_ * kCount),
        lane_channel_(static_cast<int>(threadIdx.x) * kCount),
        channel_(block_channel_ + lane_channel_),
        weights_(min(lanes_ * kCount, parameters.channels - block_channel_) * kTaps) {}

  __device__ __forceinline__ void run(const T* source, const Rounded<T>& weight, const Rounded<T>& bias,
                                      T* result) {
    // Arrays are no members: the compiler would keep all members in memory until it has unrolled the loops.
    Staged staged;  // weights on their way
    load_weights(staged, weight);
    find_patch();
    Sources window;
    load_window(window, source);
    share_weights(staged);
    __syncthreads();
    if (!is_active_) return;
    Sums sums;
    start_sums(sums, bias);
    multiply(sums, window);
    store(result, sums);
  }

 private:
  using Rows = typename Shape::Rows;
  using Columns = typename Shape::Columns;
  static constexpr int kKernel = Rows::kKernel;
  static constexpr int kTaps = Shape::kTaps;
  static constexpr int kCount = Shape::kCount;
  using Piece = Vector<T, kCount>;
  using Staged = float[Shape::kTurns];
  using Sources = Piece[Rows::kWindow][Columns::kWindow];
  using Sums = float[Rows::kPatch][Columns::kPatch][kCount];

  // Loads the thread's share of the block's weights.
  __device__ __forceinline__ void load_weights(Staged& staged, const Rounded<T>& weight) const {
    T read[Shape::kTurns];
    (weight + static_cast<int64_t>(block_channel_) * kTaps).with_numbers([&](const auto* numbers) {
#pragma unroll
      for (int turn = 0; turn < Shape::kTurns; ++turn) {
        const int i = thread_ + turn * threads_;
        read[turn] = T(0.0F);
        if (i < weights_) read[turn] = read_rounded<T>(numbers + i);
      }
    });
#pragma unroll
    for (int turn = 0; turn < Shape::kTurns; ++turn) {
      staged[turn] = static_cast<float>(read[turn]);
      // Otherwise each is loaded where it is stored, and waited for in turn.
      ptx::keep(staged[turn]);
    }
  }

  // Finds the thread's patch: its place among all patches of all images.
  __device__ __forceinline__ void find_patch() {
    const int index = stretch_ * static_cast<int>(blockDim.y) + static_cast<int>(threadIdx.y);
    is_active_ = index < parameters_.patches && channel_ < parameters_.channels;
    x_ = index;
    y_ = split(x_, parameters_.column_patches);
    image_ = split(y_, parameters_.row_patches);
  }

  // Asks for all sources of the patch; those outside the image are zero.
  __device__ __forceinline__ void load_window(Sources& window, const T* source) const {
    const SlideImage& image = parameters_.source;
    const int y = y_ * Rows::kStep + image.first_row;
    const int x = x_ * Columns::kStep + image.first_column;
    const int row_elements = image.width * parameters_.channels;
    const T* from = kept(source + static_cast<int64_t>(image_) * image.height * row_elements + channel_);
    const int offset = y * row_elements + x * parameters_.channels;
    bool is_column[Columns::kWindow];
#pragma unroll
    for (int j = 0; j < Columns::kWindow; ++j) is_column[j] = is_active_ && is_inside(x + j, image.width);
#pragma unroll
    for (int i = 0; i < Rows::kWindow; ++i) {
      const bool is_row = is_inside(y + i, image.height);
#pragma unroll
      for (int j = 0; j < Columns::kWindow; ++j) {
        window[i][j] = {};
        if (is_row && is_column[j]) {
          window[i][j] =
              *reinterpret_cast<const Piece*>(from + (offset + i * row_elements + j * parameters_.channels));
        }
      }
    }
  }

  // Brings the weights to shared memory, as [tap][channel].
  __device__ __forceinline__ void share_weights(const Staged& staged) const {
    float* shared_weight = shared_memory<float>();
#pragma unroll
    for (int turn = 0; turn < Shape::kTurns; ++turn) {
      const int i = thread_ + turn * threads_;
      if (i < weights_) {
        const int of_channel = i / kTaps;
        const int tap = i - of_channel * kTaps;
        shared_weight[(parameters_.flipped ? kTaps - 1 - tap : tap) * parameters_.weight_pitch + of_channel] =
            staged[turn];
      }
    }
  }

  __device__ __forceinline__ void start_sums(Sums& sums, const Rounded<T>& bias) const {
    float start[kCount];
    bias.widen(true, channel_, start);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
#pragma unroll
      for (int row = 0; row < Rows::kPatch; ++row) {
#pragma unroll
        for (int column = 0; column < Columns::kPatch; ++column) sums[row][column][k] = start[k];
      }
    }
  }

  __device__ __forceinline__ void multiply(Sums& sums, const Sources& window) const {
#pragma unroll
    for (int tap_row = 0; tap_row < kKernel; ++tap_row) {
      float row_taps[kKernel][kCount];
      load_taps(row_taps, tap_row);
#pragma unroll
      for (int row = 0; row < Rows::kPatch; ++row) {
#pragma unroll
        for (int i = 0; i < Rows::kWindow; ++i) {
          if (Rows::tap(row, i) == tap_row) add_row(sums[row], window[i], row_taps);
        }
      }
    }
  }

  // Loads the taps of one row of the kernel from shared memory.
  __device__ __forceinline__ void load_taps(float (&row_taps)[kKernel][kCount], int tap_row) const {
    const float* taps = shared_memory<float>() + lane_channel_;
#pragma unroll
    for (int tap = 0; tap < kKernel; ++tap) {
      const Vector<float, kCount> values = *reinterpret_cast<const Vector<float, kCount>*>(
          taps + (tap_row * kKernel + tap) * parameters_.weight_pitch);
#pragma unroll
      for (int k = 0; k < kCount; ++k) row_taps[tap][k] = values[k];
    }
  }

  // Adds the products of a row of sources and a row of taps to a row of results.
  __device__ __forceinline__ static void add_row(float (&sums)[Columns::kPatch][kCount],
                                                 const Piece (&sources)[Columns::kWindow],
                                                 const float (&row_taps)[kKernel][kCount]) {
#pragma unroll
    for (int j = 0; j < Columns::kWindow; ++j) {
      float values[kCount];
      widen<T>(sources[j].elements, values);
#pragma unroll
      for (int column = 0; column < Columns::kPatch; ++column) {
        const int tap = Columns::tap(column, j);
        if (tap < 0 || tap >= kKernel) continue;
#pragma unroll
        for (int k = 0; k < kCount; ++k) sums[column][k] += row_taps[tap][k] * values[k];
      }
    }
  }

  __device__ __forceinline__ void store(T* result, const Sums& sums) const {
    const SlideImage& image = parameters_.result;
    const int y = y_ * Rows::kPatch + image.first_row;
    const int x = x_ * Columns::kPatch + image.first_column;
    const int row_elements = image.width * parameters_.channels;
    T* to = kept(result + static_cast<int64_t>(image_) * image.height * row_elements + channel_);
    const int offset = y * row_elements + x * parameters_.channels;
#pragma unroll
    for (int row = 0; row < Rows::kPatch; ++row) {
#pragma unroll
      for (int column = 0; column < Columns::kPatch; ++column) {
        if (is_inside(y + row, image.height) && is_inside(x + column, image.width)) {
          narrow<T>(to + (offset + row * row_elements + column * parameters_.channels), sums[row][column]);
        }
      }
    }
  }

  const SlideWindowParameters& parameters_;
  const int lanes_, threads_, thread_;  // of the block
  int slice_;
  const int stretch_;
  const int block_channel_, lane_channel_;  // the first of the block, and the thread's behind it
  const int channel_;
  const int weights_;  // of the block
  bool is_active_;
  int x_, y_, image_;  // of the patch, in patches
};

template <typename T, typename Shape>
__global__ void __launch_bounds__(kWindowThreads, 2)
    slide_window(const T* __restrict__ source, Rounded<T> weight, Rounded<T> bias, T* __restrict__ result,
                 const __grid_constant__ SlideWindowParameters parameters) {
  SlideWindow<T, Shape>(parameters).run(source, weight, bias, result);
}

template <typename T, typename Shape>
void launch_window_shape(const Correlation<T>& pass) {
  const auto& [source, weight, bias, result, geometry, layout, transposed, stream] = pass;
  using Rows = typename Shape::Rows;
  using Columns = typename Shape::Columns;
  const auto [flipped, padding_y, padding_x, source_image, result_image] =
      slide_images<Rows, Columns>(geometry, transposed);

  const int groups = static_cast<int>(geometry.channels / Shape::kCount);
  // As near to kWindowChannels as makes slices alike.
  int slices = std::max(1, static_cast<int>((geometry.channels + kWindowChannels / 2 - 1) / kWindowChannels));
  const int lanes = ceil_divide(groups, slices);
  slices = ceil_divide(groups, lanes);
  const int rows = kWindowThreads / lanes;
  const int row_patches = Rows::patches(result_image.height, padding_y);
  const int column_patches = Columns::patches(result_image.width, padding_x);
  const int patches = static_cast<int>(geometry.batch * row_patches * column_patches);
  // Vectors of a tap lie at multiples of themselves; channels of a tap and taps of a channel in many banks.
  const int pitch = (lanes | 1) * Shape::kCount;
  const SlideWindowParameters parameters = {FastDivisor(slices),
                                            FastDivisor(column_patches),
                                            FastDivisor(row_patches),
                                            patches,
                                            source_image,
                                            result_image,
                                            static_cast<int>(geometry.channels),
                                            pitch,
                                            flipped};
  slide_window<T, Shape>
      <<<grid_of(int64_t{ceil_divide(patches, rows)} * slices, pass.name()), dim3(lanes, rows),
         sizeof(float) * Shape::kTaps * pitch, stream>>>(source, weight, bias, result, parameters);
  check_launch(pass.name());
}

// Fewer results are too few threads for a large device in patches of 2 x 4.
constexpr int64_t kSmallPatchResults = int64_t{1} << 18;

}  // namespace

template <typename T>
void launch_slide_window(const Correlation<T>& pass) {
  const auto& [source, weight, bias, result, geometry, layout, transposed, stream] = pass;
  constexpr std::integral_constant<int, 1> kOne;
  constexpr std::integral_constant<int, 2> kTwo;
  constexpr std::integral_constant<int, 4> kFour;
  const int64_t pixels = transposed ? geometry.input_pixels() : geometry.output_pixels();
  const bool small = geometry.batch * geometry.channels * pixels < kSmallPatchResults;
  const bool pairs = geometry.channels % 2 == 0 && common_alignment(source, result) >= int{2 * sizeof(T)};
  with_small_kernel(geometry, [&](auto kernel, auto stride) {
    const auto launch = [&](auto rows, auto columns, auto strided) {
      const auto launch_shape = [&](auto channels) {
        using Shape = SlideWindowShape<kernel, stride, strided, rows, columns, channels>;
        launch_window_shape<T, Shape>(pass);
      };
      // Two channels of a window of k = 7 are more than registers hold.
      if constexpr (kernel < 7) {
        if (pairs) return launch_shape(kTwo);
      }
      launch_shape(kOne);
    };
    if constexpr (stride == 1) {
      // An input gradient is a forward pass with turned taps.
      if (small) return launch(kTwo, kTwo, std::false_type{});
      launch(kTwo, kFour, std::false_type{});
    } else {
      if (transposed) return launch(kTwo, kFour, std::true_type{});
      launch(kOne, kFour, std::false_type{});
    }
  });
}

template void launch_slide_window(const Correlation<float>&);
template void launch_slide_window(const Correlation<Half>&);
template void launch_slide_window(const Correlation<BFloat16>&);

}  // namespace torchgraft::depthwise::cuda
