// causal_conv1d on CUDA where neighbouring times are neighbours in memory.
//
// A thread owns a chunk of one row, a channel of an item: eight elements, sixteen of two bytes, four of
// float64. It reads them in vectors, and the four elements on either side that it needs too, which the first
// level of the cache has as a neighbouring thread reads them. Chunks begin where memory is aligned, so that
// rows of any length are read in vectors; the first and the last chunk of a row may then be partial. No
// thread waits for another.
//
// Forward, threads own the chunks of all rows in order. Backward, a block owns chunks of one channel, of all
// items in order, and sums up the gradients of the channel's weight and bias; a thread computes the gradient
// of the sums anew for the three elements behind its chunk.

#include "kernels.cuh"

namespace causal_conv1d {
namespace {

constexpr int kThreads = 256;
// Backward, blocks are small: while one waits for memory the others compute.
constexpr int kBackwardThreads = 128;
constexpr int kBackwardWarps = kBackwardThreads / 32;
// Elements beside a chunk that are read as one vector; a convolution needs three at most.
constexpr int kBeside = 4;
// So many blocks of the backward pass keep a multiprocessor busy to the end.
constexpr int kBlocksOfMultiprocessor = 32;
// Kernels count chunks in 32 bits, and may count on by a block's threads.
constexpr int kMost = INT32_MAX / 2;

// What a thread does once for its chunk is as much as the arithmetic of some ten elements, and elements of
// two bytes come so fast that they must share it among more.
template <typename T>
inline constexpr int kChunk = sizeof(T) == 8   ? 4
                              : sizeof(T) == 2 ? 16
                                               : 8;

// The distance of a row's first element from the boundary of a chunk before it.
template <typename T>
__host__ __device__ int misalignment(const T* row) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(row) / sizeof(T) % kChunk<T>);
}

// Elements [first, first + kCount) of a row; zero outside of it.
template <int kCount, bool kVectors, typename T, typename A>
__device__ void load(A* values, const T* row, int first, int length) {
  if (kVectors && first >= 0 && first + kCount <= length) {
    Packed<T, kCount> loaded;
    loaded.load(row + first);
#pragma unroll
    for (int k = 0; k < kCount; ++k) values[k] = loaded[k];
    return;
  }
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    values[k] = is_inside(first + k, length) ? static_cast<A>(row[first + k]) : A{0};
  }
}

// Puts the past in the place of what lies before a row; `first` is the time of the first value.
template <int kWidth, int kCount, typename T, typename A>
__device__ void load_past(A* values, const T* state, int64_t step, int first) {
  if (first >= 0 || state == nullptr) return;
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const int place = first + k + kWidth - 1;
    if (first + k < 0 && place >= 0) values[k] = static_cast<A>(state[place * step]);
  }
}

template <typename T, int kWidth, bool kVectors>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 2 ? 6 : 1)
    forward_kernel(Forward<T> call, FastDivisor chunks, FastDivisor channels, int count) {
  using A = accumulate_t<T>;
  constexpr int kOwn = kChunk<T>;
  const int index = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (index >= count) return;
  const int row = chunks.divide(index), chunk = index - row * chunks.divisor();
  const int item = channels.divide(row), channel = row - item * channels.divisor();
  const int length = static_cast<int>(call.sizes.length);
  const T* input = channel_of(call.input, item, channel);
  const T* state = channel_of(call.initial_state, item, channel);
  const int first = chunk * kOwn - (kVectors ? misalignment(input) : 0);

  A weight[kWidth];
#pragma unroll
  for (int tap = 0; tap < kWidth; ++tap) weight[tap] = static_cast<A>(call.weight[channel * kWidth + tap]);
  const A bias = call.bias == nullptr ? A{0} : static_cast<A>(call.bias[channel]);
  A values[kBeside + kOwn];
  load<kBeside, kVectors>(values, input, first - kBeside, length);
  load<kOwn, kVectors>(values + kBeside, input, first, length);
  load_past<kWidth, kBeside + kOwn>(values, state, call.initial_state.time, first - kBeside);
  Vector<T, kOwn> results;
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    A sum = bias;
#pragma unroll
    for (int tap = 0; tap < kWidth; ++tap) sum += weight[tap] * values[kBeside - kWidth + 1 + k + tap];
    if (call.silu) sum = silu<T>(sum);
    results[k] = static_cast<T>(sum);
  }
  T* output = channel_of(call.output, item, channel);
  if (kVectors && first >= 0 && first + kOwn <= length) {
    *reinterpret_cast<Vector<T, kOwn>*>(output + first) = results;
  } else {
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      if (is_inside(first + k, length)) output[first + k] = results[k];
    }
  }

  // The last chunk that holds anything, or the only one of an empty row.
  if (first + kOwn >= length && (first < length || chunk == 0)) {
    T* final_state = channel_of(call.final_state, item, channel);
    for (int j = 0; j < kWidth - 1; ++j) {
      final_state[j * call.final_state.time] =
          element_at<kWidth>(input, 1, state, call.initial_state.time, length - kWidth + 1 + j);
    }
  }
}

// Adds up each of some sums over the threads of a block, in a fixed order; thread j holds the j-th in the
// end.
template <int kCount, typename A>
__device__ A sum_of_block(A (&sums)[kCount]) {
  __shared__ A of_warps[kBackwardWarps][kCount];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) sums[j] += __shfl_xor_sync(0xffffffffu, sums[j], apart);
    if (lane == 0) of_warps[warp][j] = sums[j];
  }
  __syncthreads();
  A total = 0;
  if (threadIdx.x < kCount) {
    for (int other = 0; other < static_cast<int>(blockDim.x) / 32; ++other) {
      total += of_warps[other][threadIdx.x];
    }
  }
  return total;
}

// What a thread of the backward pass reads of its next chunk while it computes the one before.
template <typename T, bool kVectors>
struct NextChunk {
  static constexpr int kOwn = kChunk<T>;
  int item, chunk, first;
  Packed<T, kOwn> input, output_grad;

  __device__ bool is_read_ahead(int length) const { return kVectors && first >= 0 && first + kOwn <= length; }

  __device__ void load(const Backward<T>& call, const FastDivisor& chunks, int channel, int index) {
    item = chunks.divide(index);
    chunk = index - item * chunks.divisor();
    const T* from = channel_of(call.input, item, channel);
    first = chunk * kOwn - (kVectors ? misalignment(from) : 0);
    if (!is_read_ahead(static_cast<int>(call.sizes.length))) return;
    input.load(from + first);
    output_grad.load(channel_of(call.output_grad, item, channel) + first);
  }
};

template <typename T, int kWidth, bool kVectors>
__global__ void __launch_bounds__(kBackwardThreads, sizeof(T) == 2 ? 5 : 1)
    backward_kernel(Backward<T> call, accumulate_t<T>* partials, FastDivisor chunks, int count, int share) {
  using A = accumulate_t<T>;
  constexpr int kOwn = kChunk<T>, kPast = kWidth - 1, kGrads = kOwn + kPast;
  const int channels = static_cast<int>(call.sizes.channels), length = static_cast<int>(call.sizes.length);
  const int part = static_cast<int>(blockIdx.x) / channels;
  const int channel = static_cast<int>(blockIdx.x) - part * channels;
  A weight[kWidth];
#pragma unroll
  for (int tap = 0; tap < kWidth; ++tap) weight[tap] = static_cast<A>(call.weight[channel * kWidth + tap]);
  const A bias = call.bias == nullptr ? A{0} : static_cast<A>(call.bias[channel]);
  // Of each tap, and of the bias.
  A sums[kWidth + 1] = {};

  const int end = min(count, (part + 1) * share);
  const int begin = part * share + static_cast<int>(threadIdx.x), step = static_cast<int>(blockDim.x);
  NextChunk<T, kVectors> next;
  if (begin < end) next.load(call, chunks, channel, begin);
  for (int index = begin; index < end; index += step) {
    const NextChunk<T, kVectors> now = next;
    if (index + step < end) next.load(call, chunks, channel, index + step);
    const int item = now.item, chunk = now.chunk, first = now.first;
    const T* input = channel_of(call.input, item, channel);
    const T* output_grad = channel_of(call.output_grad, item, channel);

    A values[kBeside + kOwn + kBeside], grads[kOwn + kBeside];
    load<kBeside, kVectors>(values, input, first - kBeside, length);
    load<kBeside, kVectors>(values + kBeside + kOwn, input, first + kOwn, length);
    load<kBeside, kVectors>(grads + kOwn, output_grad, first + kOwn, length);
    if (now.is_read_ahead(length)) {
#pragma unroll
      for (int k = 0; k < kOwn; ++k) {
        values[kBeside + k] = now.input[k];
        grads[k] = now.output_grad[k];
      }
    } else {
      load<kOwn, false>(values + kBeside, input, first, length);
      load<kOwn, false>(grads, output_grad, first, length);
    }
    const T* state = channel_of(call.initial_state, item, channel);
    load_past<kWidth, kBeside + kOwn + kBeside>(values, state, call.initial_state.time, first - kBeside);

    // The gradient of each sum before SiLU, of this chunk and of the first that follow.
    if (call.silu) {
#pragma unroll
      for (int k = 0; k < kGrads; ++k) {
        A sum = bias;
#pragma unroll
        for (int tap = 0; tap < kWidth; ++tap) sum += weight[tap] * values[kBeside - kPast + k + tap];
        grads[k] *= silu_slope<T>(sum);
      }
    }

    // Where all that is read lies in the row nothing need be asked. Elsewhere products with what lies outside
    // are left out, rather than made zero: the other factor may be infinite.
    A results[kOwn];
    const auto multiply = [&](auto is_whole) {
      const auto counts = [&](int k) { return is_whole || is_inside(first + k, length); };
#pragma unroll
      for (int k = 0; k < kOwn; ++k) {
        results[k] = 0;
#pragma unroll
        for (int tap = 0; tap < kWidth; ++tap) {
          if (counts(k + kPast - tap)) results[k] += weight[tap] * grads[k + kPast - tap];
          if (counts(k)) sums[tap] += grads[k] * values[kBeside - kPast + k + tap];
        }
        if (counts(k)) sums[kWidth] += grads[k];
      }
    };
    T* input_grad = channel_of(call.input_grad, item, channel);
    const T* final_grad = channel_of(call.final_state_grad, item, channel);
    // What a result at a time adds to its gradient.
    const auto of_final_state = [&](int time) {
      const int place = time - (length - kPast);
      return final_grad == nullptr || place < 0
                 ? A{0}
                 : static_cast<A>(final_grad[place * call.final_state_grad.time]);
    };
    if (first >= 0 && first + kGrads <= length) {
      multiply(std::true_type{});
      if (kVectors) {
        Vector<T, kOwn> stored;
#pragma unroll
        for (int k = 0; k < kOwn; ++k) stored[k] = static_cast<T>(results[k]);
        *reinterpret_cast<Vector<T, kOwn>*>(input_grad + first) = stored;
      } else {
#pragma unroll
        for (int k = 0; k < kOwn; ++k) input_grad[first + k] = static_cast<T>(results[k]);
      }
    } else {
      multiply(std::false_type{});
#pragma unroll
      for (int k = 0; k < kOwn; ++k) {
        const int time = first + k;
        if (is_inside(time, length)) input_grad[time] = static_cast<T>(results[k] + of_final_state(time));
      }
    }

    if (chunk == 0) {
      T* state_grad = channel_of(call.initial_state_grad, item, channel);
      // Times before the row, of which the last may be before the chunk or in it.
#pragma unroll
      for (int k = -kPast; k < kOwn; ++k) {
        const int time = first + k;
        if (time >= 0 || time < -kPast) continue;
        A result = of_final_state(time);
#pragma unroll
        for (int tap = 0; tap < kWidth; ++tap) {
          const int other = k + kPast - tap;
          if (other >= 0 && is_inside(first + other, length)) result += weight[tap] * grads[max(other, 0)];
        }
        state_grad[(time + kPast) * call.initial_state_grad.time] = static_cast<T>(result);
      }
    }
  }

  const A total = sum_of_block(sums);
  if (threadIdx.x <= kWidth) partials[static_cast<int64_t>(blockIdx.x) * (kWidth + 1) + threadIdx.x] = total;
}

// How the rows of a call are cut.
struct Cut {
  int chunks;    // a row
  bool vectors;  // whether the rows of all tensors begin equally far behind the boundary of a chunk
};

template <typename T, typename... Views>
Cut cut_rows(const Sizes& sizes, const View<const T>& input, const Views&... others) {
  constexpr int64_t kOwn = kChunk<T>;
  const int64_t shift = misalignment(input.data);
  const auto begins_alike = [&](const auto& view) {
    return misalignment(view.data) == shift && (view.batch - input.batch) % kOwn == 0 &&
           (view.channel - input.channel) % kOwn == 0;
  };
  const bool vectors = (begins_alike(others) && ...);
  const bool aligned = shift == 0 && input.batch % kOwn == 0 && input.channel % kOwn == 0;
  const int64_t before = vectors && !aligned ? kOwn - 1 : 0;
  const int64_t chunks = std::max<int64_t>(ceil_divide(sizes.length + before, kOwn), 1);
  TORCHGRAFT_CHECK(chunks < kMost, "causal_conv1d: input is too long for one launch");
  return {static_cast<int>(chunks), vectors};
}

// The number of all chunks, which kernels count in 32 bits.
int count_chunks(const Cut& cut, int64_t rows) {
  TORCHGRAFT_CHECK(rows <= kMost / cut.chunks, "causal_conv1d: input is too large for one launch");
  return static_cast<int>(rows * cut.chunks);
}

template <typename Function>
void dispatch(const Sizes& sizes, bool vectors, const Function& function) {
  dispatch_width(sizes.width, [&](auto width) {
    if (vectors) {
      function(width, std::true_type{});
    } else {
      function(width, std::false_type{});
    }
  });
}

}  // namespace

template <typename T>
void forward_channels_first(const Forward<T>& call, cudaStream_t stream) {
  const Sizes& sizes = call.sizes;
  const Cut cut = cut_rows(sizes, call.input, call.output);
  const int count = count_chunks(cut, sizes.batch * sizes.channels);
  const unsigned blocks = grid_of(ceil_divide(count, kThreads), "causal_conv1d");
  dispatch(sizes, cut.vectors, [&](auto width, auto vectors) {
    forward_kernel<T, width, vectors><<<blocks, kThreads, 0, stream>>>(
        call, FastDivisor(cut.chunks), FastDivisor(static_cast<int>(sizes.channels)), count);
  });
  check_launch("causal_conv1d");
}

template <typename T>
Partials backward_channels_first(const Backward<T>& call, const Tensor& like, cudaStream_t stream) {
  const Sizes& sizes = call.sizes;
  const Cut cut = cut_rows(sizes, call.input, call.output_grad, call.input_grad);
  const int count = count_chunks(cut, sizes.batch);
  const int threads = std::min(kBackwardThreads, round_up(std::max(count, 1), 32));
  // Several blocks share a channel where there are not enough channels for the device.
  const int64_t wanted =
      ceil_divide(int64_t{kBlocksOfMultiprocessor} * current_device().multiprocessors, sizes.channels);
  const int rounds = ceil_divide(count, threads);
  const int share = threads * std::max<int>(rounds / static_cast<int>(std::min<int64_t>(wanted, kMost)), 1);
  const int parts = std::max(ceil_divide(count, share), 1);
  Partials partials = {empty_workspace<accumulate_t<T>>(parts * sizes.channels * (sizes.width + 1), like),
                       parts};
  const unsigned blocks = grid_of(parts * sizes.channels, "causal_conv1d_backward");
  dispatch(sizes, cut.vectors, [&](auto width, auto vectors) {
    backward_kernel<T, width, vectors><<<blocks, threads, 0, stream>>>(
        call, mutable_data_of<accumulate_t<T>>(partials.memory), FastDivisor(cut.chunks), count, share);
  });
  check_launch("causal_conv1d_backward");
  return partials;
}

#define INSTANTIATE(T)                                                      \
  template void forward_channels_first<T>(const Forward<T>&, cudaStream_t); \
  template Partials backward_channels_first<T>(const Backward<T>&, const Tensor&, cudaStream_t);
INSTANTIATE(double)
INSTANTIATE(float)
INSTANTIATE(Half)
INSTANTIATE(BFloat16)
#undef INSTANTIATE

}  // namespace causal_conv1d
