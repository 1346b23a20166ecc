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

template <typename T, typename Shape>
__global__ void __launch_bounds__(kWindowThreads, 2)
    slide_window(const T* __restrict__ source, Rounded<T> weight, Rounded<T> bias, T* __restrict__ result,
                 const __grid_constant__ SlideWindowParameters parameters) {
  using Rows = typename Shape::Rows;
  using Columns = typename Shape::Columns;
  constexpr int kKernel = Rows::kKernel;
  constexpr int kTaps = Shape::kTaps;
  constexpr int kCount = Shape::kCount;
  using Piece = Vector<T, kCount>;

  const int lanes = static_cast<int>(blockDim.x);
  const int threads = lanes * static_cast<int>(blockDim.y);
  const int thread = static_cast<int>(threadIdx.y) * lanes + static_cast<int>(threadIdx.x);
  int slice = static_cast<int>(blockIdx.x);
  const int stretch = split(slice, parameters.slices);
  const int block_channel = slice * lanes * kCount;
  const int lane_channel = static_cast<int>(threadIdx.x) * kCount;
  const int channel = block_channel + lane_channel;

  const int weights = min(lanes * kCount, parameters.channels - block_channel) * kTaps;
  T read[Shape::kTurns];
  (weight + static_cast<int64_t>(block_channel) * kTaps).with_numbers([&](const auto* numbers) {
#pragma unroll
    for (int turn = 0; turn < Shape::kTurns; ++turn) {
      const int i = thread + turn * threads;
      read[turn] = T(0.0F);
      if (i < weights) read[turn] = read_rounded<T>(numbers + i);
    }
  });
  float staged[Shape::kTurns];  // weights on their way
#pragma unroll
  for (int turn = 0; turn < Shape::kTurns; ++turn) {
    staged[turn] = static_cast<float>(read[turn]);
    // Else each is loaded where it is stored, and waited for in turn.
    ptx::keep(staged[turn]);
  }

  const int index = stretch * static_cast<int>(blockDim.y) + static_cast<int>(threadIdx.y);
  const bool active = index < parameters.patches && channel < parameters.channels;
  int x = index;
  int y = split(x, parameters.column_patches);
  const int image = split(y, parameters.row_patches);
  const int source_y = y * Rows::kStep + parameters.source.first_row;
  const int source_x = x * Columns::kStep + parameters.source.first_column;
  const int source_row = parameters.source.width * parameters.channels;
  const T* image_source =
      kept(source + static_cast<int64_t>(image) * parameters.source.height * source_row + channel);
  const int offset = source_y * source_row + source_x * parameters.channels;
  bool is_column[Columns::kWindow];
#pragma unroll
  for (int j = 0; j < Columns::kWindow; ++j) {
    is_column[j] = active && is_inside(source_x + j, parameters.source.width);
  }
  Piece window[Rows::kWindow][Columns::kWindow];
#pragma unroll
  for (int i = 0; i < Rows::kWindow; ++i) {
    const bool is_row = is_inside(source_y + i, parameters.source.height);
#pragma unroll
    for (int j = 0; j < Columns::kWindow; ++j) {
      window[i][j] = {};
      if (is_row && is_column[j]) {
        window[i][j] = *reinterpret_cast<const Piece*>(image_source +
                                                       (offset + i * source_row + j * parameters.channels));
      }
    }
  }

  float* shared_weight = shared_memory<float>();
#pragma unroll
  for (int turn = 0; turn < Shape::kTurns; ++turn) {
    const int i = thread + turn * threads;
    if (i < weights) {
      const int of_channel = i / kTaps;
      const int tap = i - of_channel * kTaps;
      shared_weight[(parameters.flipped ? kTaps - 1 - tap : tap) * parameters.weight_pitch + of_channel] =
          staged[turn];
    }
  }
  __syncthreads();
  if (!active) return;

  float sums[Rows::kPatch][Columns::kPatch][kCount];
  float start[kCount];
  bias.widen(true, channel, start);
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
#pragma unroll
    for (int row = 0; row < Rows::kPatch; ++row) {
#pragma unroll
      for (int column = 0; column < Columns::kPatch; ++column) sums[row][column][k] = start[k];
    }
  }
  const float* taps = shared_weight + lane_channel;
#pragma unroll
  for (int tap_row = 0; tap_row < kKernel; ++tap_row) {
    float row_taps[kKernel][kCount];
#pragma unroll
    for (int tap = 0; tap < kKernel; ++tap) {
      const Vector<float, kCount> values = *reinterpret_cast<const Vector<float, kCount>*>(
          taps + (tap_row * kKernel + tap) * parameters.weight_pitch);
#pragma unroll
      for (int k = 0; k < kCount; ++k) row_taps[tap][k] = values[k];
    }
#pragma unroll
    for (int row = 0; row < Rows::kPatch; ++row) {
#pragma unroll
      for (int i = 0; i < Rows::kWindow; ++i) {
        if (Rows::tap(row, i) != tap_row) continue;
#pragma unroll
        for (int j = 0; j < Columns::kWindow; ++j) {
          float values[kCount];
          widen<T>(window[i][j].elements, values);
#pragma unroll
          for (int column = 0; column < Columns::kPatch; ++column) {
            const int tap = Columns::tap(column, j);
            if (tap < 0 || tap >= kKernel) continue;
#pragma unroll
            for (int k = 0; k < kCount; ++k) sums[row][column][k] += row_taps[tap][k] * values[k];
          }
        }
      }
    }
  }

  const int result_y = y * Rows::kPatch + parameters.result.first_row;
  const int result_x = x * Columns::kPatch + parameters.result.first_column;
  const int result_row = parameters.result.width * parameters.channels;
  T* image_result =
      kept(result + static_cast<int64_t>(image) * parameters.result.height * result_row + channel);
  const int result_offset = result_y * result_row + result_x * parameters.channels;
#pragma unroll
  for (int row = 0; row < Rows::kPatch; ++row) {
#pragma unroll
    for (int column = 0; column < Columns::kPatch; ++column) {
      if (is_inside(result_y + row, parameters.result.height) &&
          is_inside(result_x + column, parameters.result.width)) {
        narrow<T>(image_result + (result_offset + row * result_row + column * parameters.channels),
                  sums[row][column]);
      }
    }
  }
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
