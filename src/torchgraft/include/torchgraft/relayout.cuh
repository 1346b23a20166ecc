// Copies images from one layout into the other on a GPU, for kernels that gain more than this copy costs.
//
// An image is a matrix, [channel][pixel] or [pixel][channel], and the other layout is its transpose. A block
// turns a tile of 64 x 64 elements around in shared memory, so that both sides are accessed along their rows.
// Every element is read once and written once. Or it gives NHWC images channels more.
#pragma once

#include "cuda.cuh"
#include "layout.h"

namespace torchgraft {

constexpr int kRelayoutTile = 64;
constexpr int kRelayoutThreads = 256;

template <typename Word>
__global__ void __launch_bounds__(kRelayoutThreads)
    transpose_matrices(const Word* __restrict__ from, Word* __restrict__ to, int rows, int columns,
                       int row_tiles, int column_tiles) {
  // Rows of an odd number of four-byte words: what a warp reads down a column lies in different banks.
  constexpr int kPitch = kRelayoutTile + 4 / static_cast<int>(sizeof(Word));
  __shared__ Word tile[kRelayoutTile * kPitch];
  const int column_tile = static_cast<int>(blockIdx.x % static_cast<unsigned>(column_tiles));
  const unsigned rest = blockIdx.x / static_cast<unsigned>(column_tiles);
  const int row_tile = static_cast<int>(rest % static_cast<unsigned>(row_tiles));
  const int64_t matrix = rest / static_cast<unsigned>(row_tiles) * static_cast<int64_t>(rows) * columns;

  const int first_row = row_tile * kRelayoutTile;
  const int first_column = column_tile * kRelayoutTile;
  const int lane = static_cast<int>(threadIdx.x) % kRelayoutTile;
  constexpr int kStep = kRelayoutThreads / kRelayoutTile;
  const int start = static_cast<int>(threadIdx.x) / kRelayoutTile;
  if (first_column + lane < columns) {
#pragma unroll 8
    for (int row = start; row < kRelayoutTile; row += kStep) {
      if (first_row + row < rows) {
        tile[row * kPitch + lane] =
            from[matrix + static_cast<int64_t>(first_row + row) * columns + first_column + lane];
      }
    }
  }
  __syncthreads();
  if (first_row + lane < rows) {
#pragma unroll 8
    for (int column = start; column < kRelayoutTile; column += kStep) {
      if (first_column + column < columns) {
        to[matrix + static_cast<int64_t>(first_column + column) * rows + first_row + lane] =
            tile[lane * kPitch + column];
      }
    }
  }
}

template <typename Word>
void launch_transpose(const void* from, void* to, int64_t matrices, int64_t rows, int64_t columns,
                      cudaStream_t stream) {
  const int64_t row_tiles = ceil_divide<int64_t>(rows, kRelayoutTile);
  const int64_t column_tiles = ceil_divide<int64_t>(columns, kRelayoutTile);
  transpose_matrices<Word>
      <<<grid_of(matrices * row_tiles * column_tiles, "relayout"), kRelayoutThreads, 0, stream>>>(
          static_cast<const Word*>(from), static_cast<Word*>(to), static_cast<int>(rows),
          static_cast<int>(columns), static_cast<int>(row_tiles), static_cast<int>(column_tiles));
  check_launch("relayout");
}

// Copies images that are dense in the other layout into a new tensor in `layout`.
inline Tensor relayout(const Tensor& images, Layout layout, cudaStream_t stream) {
  const int64_t bytes = static_cast<int64_t>(images.element_size());
  const int64_t channels = images.size(1);
  const int64_t pixels = images.size(2) * images.size(3);
  Tensor result = empty_images(images.size(0), channels, images.size(2), images.size(3), layout, images);
  if (images.numel() == 0) return result;
  if (channels > INT32_MAX / 2 || pixels > INT32_MAX / 2 || (bytes != 2 && bytes != 4)) {
    torch::stable::copy_(result, images);
    return result;
  }
  const auto launch = bytes == 2 ? launch_transpose<uint16_t> : launch_transpose<uint32_t>;
  const bool by_channel = layout == Layout::channels_last;
  launch(images.const_data_ptr(), result.mutable_data_ptr(), images.size(0), by_channel ? channels : pixels,
         by_channel ? pixels : channels, stream);
  return result;
}

// Copies NHWC images of two-byte elements and gives each pixel zeros behind its channels: eight elements a
// thread, written at once.
template <int kEight>
__global__ void __launch_bounds__(kRelayoutThreads)
    pad_channels(const uint16_t* __restrict__ from, uint4* __restrict__ to, int channels, FastDivisor eights,
                 int count) {
  const int index = static_cast<int>(blockIdx.x) * kRelayoutThreads + static_cast<int>(threadIdx.x);
  if (index >= count) return;
  const int pixel = eights.divide(index);
  const int first = (index - pixel * eights.divisor()) * kEight;
  const uint16_t* const source = from + static_cast<int64_t>(pixel) * channels + first;
  uint32_t words[kEight / 2];
#pragma unroll
  for (int i = 0; i < kEight / 2; ++i) {
    const uint32_t low = first + 2 * i < channels ? source[2 * i] : 0;
    const uint32_t high = first + 2 * i + 1 < channels ? source[2 * i + 1] : 0;
    words[i] = low | high << 16;
  }
  to[index] = make_uint4(words[0], words[1], words[2], words[3]);
}

// A copy of dense NHWC images of two-byte elements with zeros behind their channels, so that there are
// `channels` of them: a multiple of eight, of which all images together have fewer than 2**31.
inline Tensor with_channels(const Tensor& images, int64_t channels, cudaStream_t stream) {
  constexpr int kEight = 8;
  Tensor result =
      empty_images(images.size(0), channels, images.size(2), images.size(3), Layout::channels_last, images);
  const int64_t eights = channels / kEight;
  const int64_t count = images.size(0) * images.size(2) * images.size(3) * eights;
  if (count == 0) return result;
  pad_channels<kEight>
      <<<grid_of(ceil_divide<int64_t>(count, kRelayoutThreads), "relayout"), kRelayoutThreads, 0, stream>>>(
          static_cast<const uint16_t*>(images.const_data_ptr()),
          static_cast<uint4*>(result.mutable_data_ptr()), static_cast<int>(images.size(1)),
          FastDivisor(static_cast<int>(eights)), static_cast<int>(count));
  check_launch("relayout");
  return result;
}

// As to_layout, and from one dense layout into the other by the kernel that knows both.
inline Tensor to_layout(const Tensor& images, Layout layout, cudaStream_t stream) {
  const Layout other = layout == Layout::contiguous ? Layout::channels_last : Layout::contiguous;
  if (has_layout(images, layout) || !has_layout(images, other)) return to_layout(images, layout);
  return relayout(images, layout, stream);
}

}  // namespace torchgraft
