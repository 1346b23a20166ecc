// causal_conv1d on CUDA where neighbouring times are neighbours in memory.
//
// A thread owns a chunk of one row, a channel of an item: vectors of sixteen bytes side by side in memory are
// those of neighbouring threads. What a chunk needs of the one before it, and backward of the one behind it,
// its thread takes from the neighbour in its warp. Chunks begin where memory is aligned, so that rows of any
// length are read in vectors; the first and the last chunk of a row may then be partial.
//
// Forward, threads own the chunks of all rows in order. Backward, a block owns chunks of one channel, of all
// items in order, and sums up the gradients of the channel's weight and bias. The last thread of a warp owns
// none there: it computes what the one before it needs, and the next warp begins with the same chunk.

#include "chunk.cuh"

namespace torchgraft::causal_conv1d {
namespace {

constexpr int kThreads = 256;
// Backward, blocks are small: while one waits for memory the others compute.
constexpr int kBackwardThreads = 128;
constexpr int kBackwardWarps = kBackwardThreads / 32;
// A warp owns all but one of the chunks that it reads backward.
constexpr int kOwned = 31;
// So many blocks of the backward pass keep a multiprocessor busy to the end.
constexpr int kBlocksOfMultiprocessor = 32;
// Kernels count chunks in 32 bits, and may count on by a block's threads.
constexpr int kMost = INT32_MAX / 2;

// Elements of a chunk. What a thread does once for it is as much as the arithmetic of some ten elements.
template <typename T>
inline constexpr int kChunk = sizeof(T) == 8   ? 4
                              : sizeof(T) == 2 ? 16
                                               : 8;
// Backward it is smaller: with sixteen elements of two bytes no registers are left to read the next ones
// ahead.
template <typename T>
inline constexpr int kChunkBackward = sizeof(T) == 8 ? 4 : 8;
// Blocks for which a multiprocessor has registers, as the compiler is told: more would have to keep some in
// memory.
template <typename T>
inline constexpr int kBlocksForward = sizeof(T) == 2 ? 6 : 1;
template <typename T>
inline constexpr int kBlocksBackward = sizeof(T) == 8   ? 1
                                       : sizeof(T) == 2 ? 6
                                                        : 7;

template <typename T, int kWidth, bool kVectors>
__global__ void __launch_bounds__(kThreads, kBlocksForward<T>)
    forward_kernel(Forward<T> call, FastDivisor chunks, FastDivisor channels, int count) {
  using A = accumulate_t<T>;
  constexpr int kOwn = kChunk<T>, kPast = kWidth - 1;
  const int thread = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  // Behind the last chunk threads go through the last one again, since their neighbours wait for them.
  const int index = min(thread, count - 1);
  const int row = chunks.divide(index), chunk = index - row * chunks.divisor();
  const int item = channels.divide(row), channel = row - item * channels.divisor();
  const int length = static_cast<int>(call.sizes.length);
  const T* input = row_of(call.input, item, channel);
  const int first = chunk * kOwn - (kVectors ? misalignment<kOwn>(input) : 0);
  const Place<kOwn, kVectors> place = {first, length};

  Inputs<T, kOwn> loaded;
  loaded.load(input, place);
  A weight[kWidth];
#pragma unroll
  for (int tap = 0; tap < kWidth; ++tap) weight[tap] = static_cast<A>(call.weight[channel * kWidth + tap]);
  const A bias = call.bias == nullptr ? A{0} : static_cast<A>(call.bias[channel]);
  const auto state_of = [&] { return channel_of(call.initial_state, item, channel); };
  A values[kPast + kOwn];
  unpack_inputs<T, A, kPast>(values, loaded, input, place, state_of, call.initial_state.time);
  if (thread >= count) return;
  A results[kOwn];
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    A sum = bias;
#pragma unroll
    for (int tap = 0; tap < kWidth; ++tap) sum += weight[tap] * values[k + tap];
    results[k] = call.silu ? silu<T>(sum) : sum;
  }
  T* output = row_of(call.output, item, channel);
  if (place.is_vector()) {
    Packed<T, kOwn>(results).store(output + first);
  } else {
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      if (is_inside(first + k, length)) output[first + k] = static_cast<T>(results[k]);
    }
  }

  // The last chunk that holds anything, or the only one of an empty row.
  if (first + kOwn >= length && (first < length || chunk == 0)) {
    T* final_state = row_of(call.final_state, item, channel);
#pragma unroll
    for (int j = 0; j < kPast; ++j) {
      final_state[j * call.final_state.time] =
          first + kOwn == length
              ? static_cast<T>(values[kOwn + j])
              : element_at<kWidth>(input, 1, state_of(), call.initial_state.time, length - kPast + j);
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
    for (int apart = 16; apart > 0; apart /= 2) sums[j] += __shfl_xor_sync(kAll, sums[j], apart);
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

// Holds what a thread of the backward pass reads of a chunk while it computes the one before.
template <typename T, bool kVectors>
struct BackwardChunk {
  static constexpr int kOwn = kChunkBackward<T>;
  int item, chunk;
  Place<kOwn, kVectors> place;
  Inputs<T, kOwn> input;
  Packed<T, kOwn> output_grad;

  // Whether some elements of the chunk are in the final state: the last ones of a row.
  __device__ bool is_in_final_state(const Backward<T>& call, int past) const {
    return call.final_state_grad.data != nullptr && place.first + kOwn > place.length - past;
  }
  __device__ void load(const Backward<T>& call, const FastDivisor& chunks, int channel, int past, int index) {
    item = chunks.divide(index);
    chunk = index - item * chunks.divisor();
    const T* from = row_of(call.input, item, channel);
    place = {chunk * kOwn - (kVectors ? misalignment<kOwn>(from) : 0), static_cast<int>(call.sizes.length)};
    input.load(from, place);
    if (place.is_vector()) output_grad.load(row_of(call.output_grad, item, channel) + place.first);
    // There is no room in registers for these few.
    if (is_in_final_state(call, past)) ptx::prefetch_global(row_of(call.final_state_grad, item, channel));
  }
};

// The work of a thread of the backward pass.
template <typename T, int kWidth, bool kVectors>
class BackwardThread {
 public:
  using A = accumulate_t<T>;

  __device__ __forceinline__ BackwardThread(const Backward<T>& call, const FastDivisor& chunks, int count)
      : call_(call),
        chunks_(chunks),
        count_(count),
        channels_(static_cast<int>(call.sizes.channels)),
        length_(static_cast<int>(call.sizes.length)),
        part_(static_cast<int>(blockIdx.x) / channels_),
        channel_(static_cast<int>(blockIdx.x) - part_ * channels_) {
#pragma unroll
    for (int tap = 0; tap < kWidth; ++tap) {
      weight_[tap] = static_cast<A>(call.weight[channel_ * kWidth + tap]);
    }
    bias_ = call.bias == nullptr ? A{0} : static_cast<A>(call.bias[channel_]);
  }

  // Goes through the thread's chunks, every so many of its block's `share`.
  __device__ __forceinline__ void run(int share) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int end = min(count_, (part_ + 1) * share), step = static_cast<int>(blockDim.x) / 32 * kOwned;
    // A thread without a chunk goes through the last one.
    const auto load_next = [&](int begin) {
      next_.load(call_, chunks_, channel_, kPast, min(begin + lane, count_ - 1));
    };
    int begin = part_ * share + warp * kOwned;
    if (kReadsAhead && begin < end) load_next(begin);
    for (; begin < end; begin += step) {
      if (!kReadsAhead) load_next(begin);
      Chunk chunk(next_);
      load_final_state_grad(chunk);
      unpack_next(chunk);
      if (kReadsAhead && begin + step < end) load_next(begin + step);
      if (call_.silu) multiply_by_slopes(chunk);
#pragma unroll
      for (int k = 0; k < kPast; ++k) chunk.grads[kOwn + k] = __shfl_down_sync(kAll, chunk.grads[k], 1);
      if (lane >= kOwned || begin + lane >= end) continue;

      A results[kOwn];
      if (chunk.place.is_whole()) {
        multiply<true>(results, chunk);
      } else {
        multiply<false>(results, chunk);
      }
      add_final_state_grad(results, chunk);
      store(results, chunk);
      if (chunk.index == 0) store_state_grad(chunk);
    }
  }

  // Leaves the sums of the block.
  __device__ __forceinline__ void store_sums(A* partials) {
    const A total = sum_of_block(sums_);
    if (threadIdx.x <= kWidth)
      partials[static_cast<int64_t>(blockIdx.x) * (kWidth + 1) + threadIdx.x] = total;
  }

 private:
  using Next = BackwardChunk<T, kVectors>;
  static constexpr bool kReadsAhead = sizeof(T) == 2;
  static constexpr int kOwn = kChunkBackward<T>, kPast = kWidth - 1;

  // A chunk that is being computed.
  struct Chunk {
    const int item, index;
    const Place<kOwn, kVectors> place;
    const int first;
    bool goes_on;             // whether the final state holds some of its elements
    T of_final_state[kPast];  // gradients of the final state
    A values[kPast + kOwn];   // inputs, behind those before the chunk
    A grads[kOwn + kPast];    // gradients of the sums before SiLU, and of those behind the chunk

    __device__ __forceinline__ explicit Chunk(const Next& next)
        : item(next.item), index(next.chunk), place(next.place), first(place.first) {}
  };

  // The final state holds the last elements of a row, or of the past where the row is shorter. Its gradients
  // are read long before they are used.
  __device__ __forceinline__ void load_final_state_grad(Chunk& chunk) const {
    chunk.goes_on = next_.is_in_final_state(call_, kPast);
    if (chunk.goes_on) {
      const T* from = row_of(call_.final_state_grad, chunk.item, channel_);
#pragma unroll
      for (int j = 0; j < kPast; ++j) chunk.of_final_state[j] = from[j * call_.final_state_grad.time];
    }
  }

  __device__ __forceinline__ void unpack_next(Chunk& chunk) const {
    unpack_inputs<T, A, kPast>(
        chunk.values, next_.input, row_of(call_.input, chunk.item, channel_), chunk.place,
        [&] { return channel_of(call_.initial_state, chunk.item, channel_); }, call_.initial_state.time);
    unpack(chunk.grads, next_.output_grad, row_of(call_.output_grad, chunk.item, channel_), chunk.place);
  }

  // Makes gradients of the sums before SiLU of those behind it.
  __device__ __forceinline__ void multiply_by_slopes(Chunk& chunk) const {
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      A sum = bias_;
#pragma unroll
      for (int tap = 0; tap < kWidth; ++tap) sum += weight_[tap] * chunk.values[k + tap];
      chunk.grads[k] *= silu_slope<T>(sum);
    }
  }

  // Products with what lies outside the row are left out, rather than made zero: the other factor may be
  // infinite.
  template <bool kWhole>
  __device__ __forceinline__ void multiply(A (&results)[kOwn], const Chunk& chunk) {
    const auto counts = [&](int k) { return (kWhole && k < kOwn) || is_inside(chunk.first + k, length_); };
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      results[k] = 0;
#pragma unroll
      for (int tap = 0; tap < kWidth; ++tap) {
        if (counts(k + kPast - tap)) results[k] += weight_[tap] * chunk.grads[k + kPast - tap];
        if (counts(k)) sums_[tap] += chunk.grads[k] * chunk.values[k + tap];
      }
      if (counts(k)) sums_[kWidth] += chunk.grads[k];
    }
  }

  // Adds the gradients of the final state to those of the elements that it holds. Mostly a row ends where its
  // last chunk does.
  __device__ __forceinline__ void add_final_state_grad(A (&results)[kOwn], const Chunk& chunk) const {
    if (chunk.goes_on && chunk.first + kOwn == length_) {
#pragma unroll
      for (int j = 0; j < kPast; ++j) {
        results[kOwn - kPast + j] += static_cast<A>(chunk.of_final_state[j]);
      }
    } else if (chunk.goes_on) {
#pragma unroll
      for (int j = 0; j < kPast; ++j) {
#pragma unroll
        for (int k = 0; k < kOwn; ++k) {
          if (chunk.first + k == length_ - kPast + j) results[k] += static_cast<A>(chunk.of_final_state[j]);
        }
      }
    }
  }

  __device__ __forceinline__ void store(const A (&results)[kOwn], const Chunk& chunk) const {
    T* input_grad = row_of(call_.input_grad, chunk.item, channel_);
    if (chunk.place.is_vector()) {
      Packed<T, kOwn>(results).store(input_grad + chunk.first);
    } else {
#pragma unroll
      for (int k = 0; k < kOwn; ++k) {
        if (is_inside(chunk.first + k, length_)) input_grad[chunk.first + k] = static_cast<T>(results[k]);
      }
    }
  }

  // Stores the gradient of the initial state, of which the first chunk of a row knows all.
  __device__ __forceinline__ void store_state_grad(const Chunk& chunk) const {
    T* state_grad = row_of(call_.initial_state_grad, chunk.item, channel_);
    // Gradients of the first times, which may lie anywhere in the chunk.
    A earliest[kPast];
#pragma unroll
    for (int time = 0; time < kPast; ++time) {
#pragma unroll
      for (int k = time; k < kOwn + kPast; ++k) {
        if (k == time || chunk.first + k == time) earliest[time] = chunk.grads[k];
      }
    }
#pragma unroll
    for (int j = 0; j < kPast; ++j) {
      A result = 0;
#pragma unroll
      for (int tap = 0; tap <= j; ++tap) {
        if (chunk.goes_on && j - tap == length_) result += static_cast<A>(chunk.of_final_state[tap]);
      }
#pragma unroll
      for (int tap = 0; tap <= j; ++tap) {
        if (j - tap < length_) result += weight_[tap] * earliest[j - tap];
      }
      state_grad[j * call_.initial_state_grad.time] = static_cast<T>(result);
    }
  }

  const Backward<T>& call_;
  const FastDivisor& chunks_;
  const int count_;  // of all chunks
  const int channels_, length_;
  const int part_, channel_;
  A weight_[kWidth];
  A bias_;
  A sums_[kWidth + 1] = {};  // one for each tap, and one for the bias
  Next next_;
};

template <typename T, int kWidth, bool kVectors>
__global__ void __launch_bounds__(kBackwardThreads, kBlocksBackward<T>)
    backward_kernel(Backward<T> call, accumulate_t<T>* partials, FastDivisor chunks, int count, int share) {
  BackwardThread<T, kWidth, kVectors> thread(call, chunks, count);
  thread.run(share);
  thread.store_sums(partials);
}

// How the rows of a call are cut.
struct Cut {
  int chunks;    // a row
  bool vectors;  // whether the rows of all tensors begin equally far behind the boundary of a chunk
};

template <int kOwn, typename T, typename... Views>
Cut cut_rows(const Sizes& sizes, const View<const T>& input, const Views&... others) {
  const int64_t shift = misalignment<kOwn>(input.data);
  const auto begins_alike = [&](const auto& view) {
    return misalignment<kOwn>(view.data) == shift && (view.batch - input.batch) % kOwn == 0 &&
           (view.channel - input.channel) % kOwn == 0;
  };
  const bool vectors = (begins_alike(others) && ...);
  const bool aligned = shift == 0 && input.batch % kOwn == 0 && input.channel % kOwn == 0;
  const int64_t before = vectors && !aligned ? kOwn - 1 : 0;
  const int64_t chunks = std::max<int64_t>(ceil_divide(sizes.length + before, int64_t{kOwn}), 1);
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
  const Cut cut = cut_rows<kChunk<T>>(sizes, call.input, call.output);
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
  const Cut cut = cut_rows<kChunkBackward<T>>(sizes, call.input, call.output_grad, call.input_grad);
  const int count = count_chunks(cut, sizes.batch);
  const int warps = std::min(kBackwardThreads / 32, std::max(ceil_divide(count, kOwned), 1));
  const int owned = warps * kOwned;
  // Several blocks share a channel where there are not enough channels for the device.
  const int64_t wanted =
      ceil_divide(int64_t{kBlocksOfMultiprocessor} * current_device().multiprocessors, sizes.channels);
  const int rounds = ceil_divide(count, owned);
  const int share = owned * std::max<int>(rounds / static_cast<int>(std::min<int64_t>(wanted, kMost)), 1);
  const int parts = std::max(ceil_divide(count, share), 1);
  Partials partials = {empty_workspace<accumulate_t<T>>(parts * sizes.channels * (sizes.width + 1), like),
                       parts};
  const unsigned blocks = grid_of(parts * sizes.channels, "causal_conv1d_backward");
  dispatch(sizes, cut.vectors, [&](auto width, auto vectors) {
    backward_kernel<T, width, vectors><<<blocks, static_cast<unsigned>(warps) * 32, 0, stream>>>(
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

}  // namespace torchgraft::causal_conv1d
