// The weight gradient of rows with up to eight taps, stride 1.
//
// A block owns a channel and a part of its chunks, those of all items in order, and reads both rows once, in
// vectors. A thread owns eight positions at a time and keeps the sums of all taps in registers; while it
// multiplies, its next chunk is in flight. Halos of the input come from neighbouring lanes (stream.cuh). The
// sums of a block are added up by shuffles, then by warps in order, and leave it once. On an H100
// (8,4096,2048,k4) in bfloat16 takes 91 us, and a copy of as many bytes 90.

#include "../chunks.cuh"
#include "../problem.cuh"
#include "stream.cuh"

namespace torchgraft::depthwise::cuda {
namespace {

constexpr int kOwnPositions = kStreamOwnLeast;

template <typename T>
struct StreamGradPass {
  const T* output_grad;
  const T* input;
  float* partial;  // of a part and channel, each tap
  T* direct;       // or null; else the sums are rounded to it
  int64_t elements;
  int length, padding, channels;
  int count, share;  // of all chunks of a channel, and of a part's; a share is whole blocks of threads
  FastDivisor chunks;
};

template <typename T, int kTaps>
class StreamGradBlock {
 public:
  __device__ explicit StreamGradBlock(const StreamGradPass<T>& pass)
      : pass_(pass),
        part_(static_cast<int>(blockIdx.x) / pass.channels),
        channel_(static_cast<int>(blockIdx.x) - part_ * pass.channels) {}

  __device__ void run() {
    const int end = min(pass_.count, (part_ + 1) * pass_.share);
    float sums[kTaps] = {};
    // All lanes of a warp go on together, since they exchange halos.
    int first = part_ * pass_.share + static_cast<int>(threadIdx.x) / kRowWarp * kRowWarp;
    Chunk next;
    if (first < end) load(next, first);
    while (first < end) {
      const Chunk chunk = next;
      const bool is_owned = first + lane() < end;
      first += kStreamWeightGradThreads;
      if (first < end) load(next, first);
      add_products(sums, chunk, is_owned);
    }
    write(sums);
  }

 private:
  struct Chunk {
    StreamedChunk<T, kOwnPositions> input, output_grad;
    int64_t row;
    ChunkPlace place;
  };

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kRowWarp; }

  __device__ __forceinline__ void load(Chunk& chunk, int first) const {
    const int index = min(first + lane(), pass_.count - 1);
    const int item = pass_.chunks.divide(index);
    chunk.row = (static_cast<int64_t>(item) * pass_.channels + channel_) * pass_.length;
    const T* input = pass_.input + chunk.row;
    chunk.place = ChunkPlace((index - item * pass_.chunks.divisor()) * kOwnPositions - misalignment(input),
                             pass_.length, chunk.row, pass_.elements);
    chunk.input.load(input, chunk.place, pass_.padding > 0, pass_.padding < kTaps - 1);
    chunk.output_grad.load(pass_.output_grad + chunk.row, chunk.place);
  }

  __device__ __forceinline__ void add_products(float (&sums)[kTaps], const Chunk& chunk,
                                               bool is_owned) const {
    float output_grads[kOwnPositions];
    chunk.output_grad.unpack(output_grads, pass_.output_grad + chunk.row, chunk.place);
    with_constant_below<kTaps>(pass_.padding, [&](auto before) {
      constexpr int kBefore = before, kBehind = kTaps - 1 - kBefore;
      float values[kBefore + kOwnPositions + kBehind];
      chunk.input.template unpack_with_halo<kBefore, kBehind>(values, pass_.input + chunk.row, chunk.place);
#pragma unroll
      for (int i = 0; i < kOwnPositions; ++i) {
        // Where there is no output gradient, a product with zero would turn infinity into NaN.
        if (!is_owned || !is_inside(chunk.place.first + i, chunk.place.length)) continue;
#pragma unroll
        for (int tap = 0; tap < kTaps; ++tap) sums[tap] += output_grads[i] * values[i + tap];
      }
    });
  }

  __device__ void write(float (&sums)[kTaps]) const {
    constexpr int kWarps = kStreamWeightGradThreads / kRowWarp;
    __shared__ float of_warps[kWarps * kTaps];
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
#pragma unroll
      for (int apart = kRowWarp / 2; apart > 0; apart /= 2) {
        sums[tap] += __shfl_xor_sync(kWholeWarp, sums[tap], apart);
      }
      if (lane() == 0) of_warps[static_cast<int>(threadIdx.x) / kRowWarp * kTaps + tap] = sums[tap];
    }
    __syncthreads();
    const int tap = static_cast<int>(threadIdx.x);
    if (tap >= kTaps) return;
    const float sum = sum_in_order(of_warps + tap, kWarps, kTaps);
    const int64_t place = static_cast<int64_t>(blockIdx.x) * kTaps + tap;
    if (pass_.direct != nullptr) {
      pass_.direct[place] = static_cast<T>(sum);
    } else {
      pass_.partial[place] = sum;
    }
  }

  const StreamGradPass<T>& pass_;
  int part_, channel_;
};

// Blocks for which a multiprocessor has registers, as the compiler is told: more would have to keep some of a
// thread's next chunk in memory.
template <typename T, int kTaps>
inline constexpr int kStreamGradBlocks = sizeof(T) == 2 ? (kTaps <= 4 ? 8 : 6)
                                                        : (kTaps <= 2   ? 8
                                                           : kTaps <= 4 ? 6
                                                                        : 5);

template <typename T, int kTaps>
__global__ void __launch_bounds__(kStreamWeightGradThreads, kStreamGradBlocks<T, kTaps>)
    rows_stream_weight_grad(StreamGradPass<T> pass) {
  StreamGradBlock<T, kTaps>(pass).run();
}

}  // namespace

template <typename T>
void launch_rows_stream_weight_grad(const WeightGrad<T>& call) {
  const Geometry& geometry = call.geometry;
  const int length = static_cast<int>(geometry.width.input);
  const int chunks = stream_chunks(length, kOwnPositions, kVectorElements<T>);
  const int count = static_cast<int>(geometry.batch * chunks);
  const int64_t most =
      parts_of_rows(geometry.channels, most_chunks(geometry, call.layout), current_device().multiprocessors);
  const Chunks parts = make_chunks(ceil_divide(count, kStreamWeightGradThreads), 1, most);
  const StreamGradPass<T> pass = {call.output_grad,
                                  call.input,
                                  call.weight_grad.partials(parts.count, call.workspace),
                                  call.weight_grad.direct(parts.count),
                                  geometry.batch * geometry.channels * length,
                                  length,
                                  static_cast<int>(geometry.width.padding),
                                  static_cast<int>(geometry.channels),
                                  count,
                                  static_cast<int>(parts.units_of_chunk) * kStreamWeightGradThreads,
                                  FastDivisor(chunks)};
  const unsigned blocks = grid_of(parts.count * geometry.channels, call.kName);
  with_stream_taps(geometry.width.kernel, [&](auto taps) {
    rows_stream_weight_grad<T, taps><<<blocks, kStreamWeightGradThreads, 0, call.stream>>>(pass);
  });
  check_launch(call.kName);
  if (parts.count > 1)
    launch_sum_chunks(call.workspace, call.weight_grad, geometry, parts.count, call.stream);
}

template void launch_rows_stream_weight_grad(const WeightGrad<float>&);
template void launch_rows_stream_weight_grad(const WeightGrad<Half>&);
template void launch_rows_stream_weight_grad(const WeightGrad<BFloat16>&);

}  // namespace torchgraft::depthwise::cuda
