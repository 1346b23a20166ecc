// One pass over images that are dense in one layout, on one device: what the choice of a kernel may ask. Host
// code alone, so that every boundary is tested without a GPU.
#pragma once

#include <torchgraft/numbers.h>

#include <algorithm>
#include <cstdint>

#include "../sizes.h"

namespace torchgraft::depthwise::cuda {

struct Problem {
  Geometry geometry;
  bool transposed;  // the input gradient, and not the forward pass
  bool channels_last;
  int element_bytes;                // eight: float64, which is for checking gradients, not for speed
  int alignment;                    // of both images' pointers: the greatest power of two, at most 16
  bool tensor_cores;                // whether kernels are compiled for them, for halves
  int64_t shared_bytes = 48 << 10;  // of shared memory that a block of the device can have
  int multiprocessors = 132;

  constexpr int64_t result_channels() const {
    return transposed ? geometry.channels : geometry.output_channels();
  }
  constexpr int64_t result(const Extent& extent) const { return transposed ? extent.input : extent.output; }
  constexpr int64_t results() const {
    return geometry.batch * result_channels() * result(geometry.height) * result(geometry.width);
  }
  constexpr bool is_half() const { return element_bytes == 2; }
  constexpr bool is_float32() const { return element_bytes == 4; }
  constexpr bool is_float64() const { return element_bytes == 8; }
  constexpr bool has_half_tensor_cores() const { return is_half() && tensor_cores; }

  Problem on_any_device() const {
    Problem other = *this;
    other.tensor_cores = is_half();
    other.shared_bytes = 227 << 10;
    return other;
  }
};

// One direction of a forward pass or, transposed, of an input gradient, whose positions fit 32 bits: what is
// read, what is written and the padding between. With stride 1 an input gradient is a forward pass with the
// kernel turned around.
struct PassAxis {
  int source, result, kernel, padding;

  constexpr PassAxis(const Extent& extent, bool transposed)
      : source(static_cast<int>(transposed ? extent.output : extent.input)),
        result(static_cast<int>(transposed ? extent.input : extent.output)),
        kernel(static_cast<int>(extent.kernel)),
        padding(static_cast<int>(transposed && extent.stride == 1
                                     ? extent.dilation * (extent.kernel - 1) - extent.padding
                                     : extent.padding)) {}
};

inline int64_t longest_side(const Geometry& geometry) {
  return std::max(geometry.height.kernel, geometry.width.kernel);
}

inline bool is_unit_step(const Geometry& geometry) {
  return geometry.height.stride == 1 && geometry.width.stride == 1 && geometry.height.dilation == 1 &&
         geometry.width.dilation == 1;
}

inline bool is_strided(const Geometry& geometry) {
  return geometry.height.stride > 1 || geometry.width.stride > 1;
}

inline bool is_dilated(const Geometry& geometry) {
  return geometry.height.dilation > 1 || geometry.width.dilation > 1;
}

inline bool is_square_of_3_5_7(const Geometry& geometry) {
  const int64_t kernel = geometry.height.kernel;
  return kernel == geometry.width.kernel && (kernel == 3 || kernel == 5 || kernel == 7);
}

// The kernel sizes and strides that some kernels are compiled for (with_small_kernel).
inline bool has_small_kernel(const Geometry& geometry) {
  const Extent& height = geometry.height;
  const Extent& width = geometry.width;
  return is_square_of_3_5_7(geometry) && height.stride == width.stride && height.stride <= 2 &&
         height.dilation == 1 && width.dilation == 1;
}

// Whether every window touches the image: padding in front is less than the kernel.
inline bool is_padded_within_kernel(const Geometry& geometry) {
  return geometry.height.padding < geometry.height.kernel && geometry.width.padding < geometry.width.kernel;
}

// The same of a kernel whose taps lie apart.
inline bool is_padded_within_window(const Geometry& geometry) {
  const auto is_within = [](const Extent& extent) {
    return extent.padding <= extent.dilation * (extent.kernel - 1);
  };
  return is_within(geometry.height) && is_within(geometry.width);
}

// Whether every position along either direction, padding included, and every count of channels, images and
// planes is far from the end of 32 bits. Offsets between elements need not be.
inline bool positions_fit_32(const Geometry& geometry) {
  constexpr int64_t kLimit = int64_t{1} << 29;
  const auto fits = [](const Extent& extent) {
    return extent.input < kLimit && extent.padding < kLimit && extent.output * extent.stride < kLimit &&
           extent.kernel * extent.dilation < kLimit;
  };
  return geometry.batch < kLimit && geometry.output_channels() < kLimit &&
         geometry.batch * geometry.output_channels() < kLimit && fits(geometry.height) &&
         fits(geometry.width);
}

// Whether 32 bits hold, in any layout, an offset from the first element of an image to a source, even one in
// the padding, in loops that take `more_taps` taps more than the kernel has.
inline bool offsets_fit_32(const Geometry& geometry, int64_t more_taps) {
  constexpr int64_t kLimit = int64_t{1} << 31;
  if (!positions_fit_32(geometry)) return false;
  const auto span = [more_taps](const Extent& extent) {
    return std::max(extent.input, extent.output * extent.stride) + extent.padding +
           (extent.kernel + more_taps) * extent.dilation;
  };
  const int64_t rows = span(geometry.height);
  const int64_t columns = span(geometry.width);
  return rows < kLimit && columns < kLimit && rows * columns < kLimit / geometry.output_channels();
}

// How many chunks of the batch a weight gradient may sum apart: enough that blocks fill a large device
// several times, but few enough that partial sums stay a small part of the traffic: at most one for sixteen
// elements read, and 32 MB of float in all, unless one chunk alone is larger.
inline int64_t most_chunks(const Geometry& geometry, bool channels_last) {
  constexpr int64_t kBlocks = 4096;
  constexpr int64_t kMost = 512;
  constexpr int64_t kElementsOfPartialSum = 16;
  constexpr int64_t kPartialSums = int64_t{8} << 20;
  const int64_t weights = geometry.output_channels() * geometry.taps();
  // A block of the NHWC kernels owns up to 64 channels and takes half as long to start.
  const int64_t blocks_of_chunk =
      channels_last ? 2 * ceil_divide(geometry.output_channels(), 64) : geometry.output_channels();
  const int64_t elements = geometry.batch * (geometry.channels * geometry.input_pixels() +
                                             geometry.output_channels() * geometry.output_pixels());
  return std::max<int64_t>(
      1, std::min({kMost, ceil_divide(kBlocks, blocks_of_chunk), elements / (kElementsOfPartialSum * weights),
                   kPartialSums / weights}));
}

// Kernels that move whole pieces of pixels in NHWC move this many channels of two bytes at a time, which
// begin at this alignment.
constexpr int64_t kWholeChannels = 8;
constexpr int kWholeAlignment = 16;

// The widest piece, of 16, 8 and 4 bytes, in which a kernel can copy every pixel of images so aligned; 0:
// none.
inline int copied_piece(int64_t channels, int element_bytes, int alignment) {
  for (const int piece : {16, 8, 4}) {
    if (alignment % piece == 0 && channels * element_bytes % piece == 0) return piece;
  }
  return 0;
}

// The greatest power of two, at most 16, that every pointer is a multiple of.
template <typename... Pointers>
int common_alignment(const Pointers*... pointers) {
  const uintptr_t bits = (uintptr_t{16} | ... | reinterpret_cast<uintptr_t>(pointers));
  return static_cast<int>(bits & (~bits + 1));
}

}  // namespace torchgraft::depthwise::cuda
