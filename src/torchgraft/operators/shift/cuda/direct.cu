// Any shape in either layout: each result from its four sources in device memory. And the second pass of the
// offsets' gradients.
//
// A block owns up to kChunk neighbours of a row of results, in memory's order; the caches bring together what
// neighbours read twice. What ends here is rare: rows too long for a tile, images of 2**30 pixels, strides
// that leave most rows out.
//
// Sums go over results, by the definition: a block owns a range of the rows of one channel. The second pass
// is a block a channel: it adds up the parts in order; where the sum is not finite, it goes through all of
// the channel by the definition, for NaN and infinity come out right in no other.

#include <torchgraft/cuda.cuh>

#include <algorithm>

#include "kernels.h"

namespace torchgraft::shift::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kChunk = 4 * kThreads;
constexpr int64_t kMostBlocks = int64_t{1} << 30;

template <typename T>
__device__ Sampling<accumulate_t<T>> sampling_of(const T* x_offset, const T* y_offset, int64_t channel,
                                                 const Geometry& geometry) {
  using A = accumulate_t<T>;
  return Sampling<A>(static_cast<A>(x_offset[channel]), static_cast<A>(y_offset[channel]), geometry.width,
                     geometry.height);
}

// One result. Neighbours of a row lie `pitch` apart.
template <bool kTransposed, typename T>
__device__ accumulate_t<T> resample(const T* source, const Sampling<accumulate_t<T>>& sampling,
                                    const Geometry& geometry, int64_t pitch, int64_t row, int64_t column) {
  using A = accumulate_t<T>;
  if (!sampling.is_finite) return sampling.row_weights[0];
  A value = 0;
  for (int i = 0; i < 2; ++i) {
    int64_t source_row = row * geometry.stride + sampling.y + i;
    if (kTransposed) {
      const int64_t distance = row - sampling.y - i;
      source_row = distance / geometry.stride;
      if (distance < 0 || source_row * geometry.stride != distance) continue;
    }
    const int64_t source_rows = kTransposed ? geometry.steps : geometry.height;
    if (source_row < 0 || source_row >= source_rows || sampling.row_weights[i] == 0) continue;
    A blended = 0;
    for (int j = 0; j < 2; ++j) {
      const int64_t source_column = kTransposed ? column - sampling.x - j : column + sampling.x + j;
      if (source_column < 0 || source_column >= geometry.width || sampling.column_weights[j] == 0) continue;
      blended += sampling.column_weights[j] *
                 static_cast<A>(source[(source_row * geometry.width + source_column) * pitch]);
    }
    value += sampling.row_weights[i] * blended;
  }
  return value;
}

// Half of the instructions where 32 bits do.
__device__ int64_t divide(int64_t numerator, int64_t divisor) {
  if (numerator > INT32_MAX || divisor > INT32_MAX) return numerator / divisor;
  return static_cast<uint32_t>(numerator) / static_cast<uint32_t>(divisor);
}

struct DirectParameters {
  Geometry geometry;
  bool channels_last;
  int64_t length;  // of a row of results: neighbours in memory, of one channel or of all
  int64_t chunks;  // of a row
  int64_t blocks;
};

template <bool kTransposed, typename T>
__global__ void __launch_bounds__(kThreads)
    direct(const T* __restrict__ source, const T* __restrict__ x_offset, const T* __restrict__ y_offset,
           T* __restrict__ result, DirectParameters parameters) {
  const Geometry& geometry = parameters.geometry;
  const int64_t source_rows = kTransposed ? geometry.steps : geometry.height;
  const int64_t result_rows = kTransposed ? geometry.height : geometry.steps;
  const int64_t pitch = parameters.channels_last ? geometry.channels : 1;
  for (int64_t block = blockIdx.x; block < parameters.blocks; block += gridDim.x) {
    const int64_t row_of_all = block / parameters.chunks;
    const int64_t first = (block - row_of_all * parameters.chunks) * kChunk;
    const int64_t plane = row_of_all / result_rows;
    const int64_t row = row_of_all - plane * result_rows;
    const int64_t end = min(first + kChunk, parameters.length);
    for (int64_t i = first + threadIdx.x; i < end; i += kThreads) {
      const int64_t column = parameters.channels_last ? divide(i, pitch) : i;
      const int64_t inner = parameters.channels_last ? i - column * pitch : 0;
      const int64_t channel = parameters.channels_last ? inner : plane % geometry.channels;
      const auto sampling = sampling_of(x_offset, y_offset, channel, geometry);
      result[row_of_all * parameters.length + i] = static_cast<T>(resample<kTransposed>(
          source + plane * source_rows * parameters.length + inner, sampling, geometry, pitch, row, column));
    }
  }
}

template <typename A>
struct Sums {
  A x, y;
};

// The sums of a block's threads, in an order of their own; in thread 0. `scratch` holds two a warp.
template <typename A>
__device__ Sums<A> add_threads(Sums<A> sums, A* scratch) {
  for (int step = 16; step > 0; step /= 2) {
    sums.x += __shfl_xor_sync(0xffffffff, sums.x, step);
    sums.y += __shfl_xor_sync(0xffffffff, sums.y, step);
  }
  const int warp = static_cast<int>(threadIdx.x) / 32;
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    scratch[2 * warp] = sums.x;
    scratch[2 * warp + 1] = sums.y;
  }
  __syncthreads();
  for (int i = 1; i < kThreads / 32 && threadIdx.x == 0; ++i) {
    sums.x += scratch[2 * i];
    sums.y += scratch[2 * i + 1];
  }
  return sums;
}

// A thread's share of the sums over rows [begin, end) of the results of all images of a channel.
template <typename T>
__device__ Sums<accumulate_t<T>> sums_of_rows(const T* output_grad, const T* input,
                                              const Sampling<accumulate_t<T>>& sampling,
                                              const Geometry& geometry, bool channels_last, int64_t channel,
                                              int64_t begin, int64_t end) {
  using A = accumulate_t<T>;
  // As many threads along a row as it fills, and the others along further rows.
  int threads_of_row = kThreads;
  while (threads_of_row > 1 && threads_of_row / 2 >= geometry.width) threads_of_row /= 2;
  const int64_t rows_at_once = kThreads / threads_of_row;
  const int64_t pitch = channels_last ? geometry.channels : 1;
  Sums<A> sums = {0, 0};
  for (int64_t i = begin + static_cast<int64_t>(threadIdx.x) / threads_of_row; i < end; i += rows_at_once) {
    const int64_t image = i / geometry.steps;
    const int64_t row = i - image * geometry.steps;
    // The channel's plane in units of planes, then its place in a row.
    const int64_t plane = channels_last ? image * geometry.channels : image * geometry.channels + channel;
    const int64_t inner = channels_last ? channel : 0;
    const T* grads =
        output_grad +
        (plane * geometry.steps + row * (channels_last ? geometry.channels : 1)) * geometry.width + inner;
    const T* pixels = input + plane * geometry.height * geometry.width + inner;
    const auto at = [&](int64_t source_row, int64_t source_column) {
      const bool is_inside = source_row >= 0 && source_row < geometry.height && source_column >= 0 &&
                             source_column < geometry.width;
      return is_inside ? static_cast<A>(pixels[(source_row * geometry.width + source_column) * pitch]) : A(0);
    };
    const int64_t upper = row * geometry.stride + sampling.y;
    for (int64_t v = static_cast<int64_t>(threadIdx.x) % threads_of_row; v < geometry.width;
         v += threads_of_row) {
      const int64_t left = v + sampling.x;
      const A grad = static_cast<A>(grads[v * pitch]);
      const A upper_left = at(upper, left);
      const A upper_right = at(upper, left + 1);
      const A lower_left = at(upper + 1, left);
      const A lower_right = at(upper + 1, left + 1);
      sums.x += grad * (sampling.row_weights[0] * (upper_right - upper_left) +
                        sampling.row_weights[1] * (lower_right - lower_left));
      sums.y += grad * (sampling.column_weights[0] * (lower_left - upper_left) +
                        sampling.column_weights[1] * (lower_right - upper_right));
    }
  }
  return sums;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    direct_sums(const T* __restrict__ output_grad, const T* __restrict__ input,
                const T* __restrict__ x_offset, const T* __restrict__ y_offset,
                accumulate_t<T>* __restrict__ partial, Geometry geometry, bool channels_last, int64_t parts,
                int64_t rows_of_part) {
  __shared__ accumulate_t<T> scratch[2 * kThreads / 32];
  const int64_t rows = geometry.batch * geometry.steps;
  for (int64_t block = blockIdx.x; block < geometry.channels * parts; block += gridDim.x) {
    const int64_t channel = block / parts;
    const int64_t begin = (block - channel * parts) * rows_of_part;
    const auto sampling = sampling_of(x_offset, y_offset, channel, geometry);
    const auto sums = add_threads(sums_of_rows(output_grad, input, sampling, geometry, channels_last, channel,
                                               begin, min(begin + rows_of_part, rows)),
                                  scratch);
    if (threadIdx.x == 0) {
      partial[block] = sums.x;
      partial[geometry.channels * parts + block] = sums.y;
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    add_parts(const accumulate_t<T>* __restrict__ partial, int64_t parts, const T* __restrict__ output_grad,
              const T* __restrict__ input, const T* __restrict__ x_offset, const T* __restrict__ y_offset,
              T* __restrict__ x_grad, T* __restrict__ y_grad, Geometry geometry, bool channels_last) {
  using A = accumulate_t<T>;
  __shared__ A scratch[2 * kThreads / 32];
  for (int64_t channel = blockIdx.x; channel < geometry.channels; channel += gridDim.x) {
    const A* const x_parts = partial + channel * parts;
    const A* const y_parts = x_parts + geometry.channels * parts;
    Sums<A> sums = {0, 0};
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < parts; i += kThreads) {
      sums.x += x_parts[i];
      sums.y += y_parts[i];
    }
    sums = add_threads(sums, scratch);
    // What is not finite less itself is NaN.
    const bool is_finite = (sums.x - sums.x) + (sums.y - sums.y) == 0;
    // Of the threads only the first knows; what it says is added up for all to hear.
    if (__syncthreads_or(threadIdx.x == 0 && !is_finite)) {
      const auto sampling = sampling_of(x_offset, y_offset, channel, geometry);
      sums = add_threads(sums_of_rows(output_grad, input, sampling, geometry, channels_last, channel, 0,
                                      geometry.batch * geometry.steps),
                         scratch);
    }
    if (threadIdx.x == 0) {
      x_grad[channel] = static_cast<T>(sums.x);
      y_grad[channel] = static_cast<T>(sums.y);
    }
  }
}

template <bool kTransposed, typename T>
void launch_images(const Arguments<T>& arguments, cudaStream_t stream) {
  const Geometry& geometry = arguments.geometry;
  const bool channels_last = arguments.layout == Layout::channels_last;
  const int64_t length = channels_last ? geometry.width * geometry.channels : geometry.width;
  const int64_t planes = channels_last ? geometry.batch : geometry.planes();
  const int64_t chunks = ceil_divide<int64_t>(length, kChunk);
  const int64_t blocks = planes * arguments.result_rows(kTransposed) * chunks;
  const DirectParameters parameters = {geometry, channels_last, length, chunks, blocks};
  direct<kTransposed, T><<<static_cast<unsigned>(std::min(blocks, kMostBlocks)), kThreads, 0, stream>>>(
      arguments.source, arguments.x_offset, arguments.y_offset, arguments.result, parameters);
  check_launch(kTransposed ? "shift_input_grad" : "shift");
}

}  // namespace

template <typename T>
void launch_direct(const Arguments<T>& arguments, Pass pass, const Plan& plan, accumulate_t<T>* partial,
                   cudaStream_t stream) {
  const Geometry& geometry = arguments.geometry;
  if (!is_transposed(pass)) return launch_images<false>(arguments, stream);
  if (has_images(pass)) launch_images<true>(arguments, stream);
  if (!has_sums(pass)) return;
  const int64_t rows_of_part = ceil_divide(geometry.batch * geometry.steps, plan.parts);
  const int64_t blocks = geometry.channels * plan.parts;
  direct_sums<T><<<static_cast<unsigned>(std::min(blocks, kMostBlocks)), kThreads, 0, stream>>>(
      arguments.source, arguments.input, arguments.x_offset, arguments.y_offset, partial, geometry,
      arguments.layout == Layout::channels_last, plan.parts, rows_of_part);
  check_launch("shift_offset_grad");
}

template <typename T>
void launch_add_parts(const Arguments<T>& arguments, const accumulate_t<T>* partial, int64_t parts, T* x_grad,
                      T* y_grad, cudaStream_t stream) {
  const Geometry& geometry = arguments.geometry;
  add_parts<T><<<static_cast<unsigned>(std::min(geometry.channels, kMostBlocks)), kThreads, 0, stream>>>(
      partial, parts, arguments.source, arguments.input, arguments.x_offset, arguments.y_offset, x_grad,
      y_grad, geometry, arguments.layout == Layout::channels_last);
  check_launch("shift_offset_grad: sum");
}

#define SHIFT_DIRECT(T)                                                                                \
  template void launch_direct(const Arguments<T>&, Pass, const Plan&, accumulate_t<T>*, cudaStream_t); \
  template void launch_add_parts(const Arguments<T>&, const accumulate_t<T>*, int64_t, T*, T*, cudaStream_t);
SHIFT_DIRECT(double)
SHIFT_DIRECT(float)
SHIFT_DIRECT(Half)
SHIFT_DIRECT(BFloat16)
#undef SHIFT_DIRECT

}  // namespace torchgraft::shift::cuda
