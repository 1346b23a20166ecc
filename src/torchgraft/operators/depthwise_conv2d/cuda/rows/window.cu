// Rows with up to 256 taps, stride 1: forward pass and, with the kernel turned around, input gradient.
//
// A block owns a tile: a part of one long row, or several short rows. It stages the tile's sources and the
// weights of its rows in shared memory, each source once and kernel - 1 more at a part's end. A thread owns
// 8 or 16 neighbouring results, which begin where memory is aligned, so that they are stored in vectors. It
// walks along the taps eight at a time with a window of sources in registers, as floats: three accesses to
// shared memory feed 64 or 128 multiply-adds. Sums are float.
// On an H100 (8,768,1500,k128) in bfloat16 takes 66 us, of which multiply-adds need some 40.

#include <type_traits>

#include "../problem.cuh"
#include "rows.cuh"

namespace torchgraft::depthwise::cuda {
namespace {

template <typename T>
struct WindowPass {
  Rows<T> source;
  Rounded<T> weight, bias;
  T* result;
  PassAxis axis;
  bool reversed;  // the taps of a weight
  RowsWindowPlan plan;
  FastDivisor channels, segments, chunks, staged, weights;
};

template <typename T, int kOwn>
class WindowBlock {
 public:
  static constexpr int kChunks = kOwn / kVectorElements<T>;

  __device__ explicit WindowBlock(const WindowPass<T>& pass)
      : pass_(pass),
        sources_(shared_memory<T>()),
        weights_(reinterpret_cast<float*>(sources_ + pass.plan.rows * pass.plan.pitch)) {
    const int tile = static_cast<int>(blockIdx.x);
    const int group = pass.segments.divide(tile);
    first_row_ = group * pass.plan.rows;
    first_chunk_ = (tile - group * pass.segments.divisor()) * pass.plan.chunks;
    rows_ = min(pass.plan.rows, static_cast<int>(pass.source.count) - first_row_);
  }

  __device__ void run() {
    constexpr int kBatch = kChunks + 1;
    stage_rows<kChunks, kBatch>(
        sources_, rows_, pass_.staged, pass_.source, [&](int row) { return sources_of(row); },
        [&] { load_weights(); });
    __syncthreads();
    const int row = pass_.chunks.divide(static_cast<int>(threadIdx.x));
    if (row >= rows_) return;
    const int chunk = static_cast<int>(threadIdx.x) - row * pass_.chunks.divisor();
    float sums[kOwn];
    const float bias = pass_.bias.exists() ? pass_.bias[channel_of(row)] : 0.0f;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) sums[i] = bias;
    walk_taps(sums, sources_ + row * pass_.plan.pitch, chunk * kChunks,
              weights_ + row * pass_.plan.weight_pitch);
    T* result = pass_.result + static_cast<int64_t>(first_row_ + row) * pass_.axis.result;
    store_results(result, first_result(row) + chunk * kOwn, pass_.axis.result, sums);
  }

 private:
  __device__ int channel_of(int row) const {
    const int index = first_row_ + row;
    return index - pass_.channels.divide(index) * pass_.channels.divisor();
  }
  // Of the tile, in a row of the tensor. Results begin where memory is aligned, at most a vector before it.
  __device__ int first_result(int row) const {
    const unsigned begin = static_cast<unsigned>(first_row_ + row) * static_cast<unsigned>(pass_.axis.result);
    const unsigned shift = (begin + misalignment(pass_.result)) % kVectorElements<T>;
    return first_chunk_ * kOwn - static_cast<int>(shift);
  }
  __device__ RowPart sources_of(int row) const {
    return {first_row_ + row, first_result(row) - pass_.axis.padding};
  }

  __device__ void load_weights() {
    const int pitch = pass_.plan.weight_pitch, kernel = pass_.axis.kernel;
    pass_.weight.with_numbers([&](const auto* numbers) {
#pragma unroll 4
      for (int i = static_cast<int>(threadIdx.x); i < rows_ * pitch; i += static_cast<int>(blockDim.x)) {
        const int row = pass_.weights.divide(i), tap = i - row * pitch;
        // Sources behind the last tap are never used.
        const int place = min(pass_.reversed ? kernel - 1 - tap : tap, kernel - 1);
        weights_[i] =
            static_cast<float>(read_rounded<T>(numbers + int64_t{channel_of(row)} * kernel + max(place, 0)));
      }
    });
  }

  __device__ static void walk_taps_of(float (&sums)[kOwn], const float (&window)[kOwn + kWindowTaps],
                                      const float (&weight)[kWindowTaps], int taps) {
#pragma unroll
    for (int t = 0; t < kWindowTaps; ++t) {
      if (t >= taps) break;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) sums[i] += weight[t] * window[i + t];
    }
  }

  // `first`: the chunk in which the thread's window begins.
  __device__ void walk_taps(float (&sums)[kOwn], const T* sources, int first, const float* weights) const {
    constexpr int kVector = kVectorElements<T>;
    float window[kOwn + kWindowTaps], weight[kWindowTaps];
#pragma unroll
    for (int i = 0; i < kOwn; i += kVector) {
      load_chunk<kChunks>(window + i, sources, first + i / kVector);
    }
    const auto load_next = [&](int tap) {
#pragma unroll
      for (int i = 0; i < kWindowTaps; i += kVector) {
        load_chunk<kChunks>(window + kOwn + i, sources, first + (kOwn + tap + i) / kVector);
      }
#pragma unroll
      for (int i = 0; i < kWindowTaps; i += 4) load_chunk<1>(weight + i, weights, (tap + i) / 4);
    };
    int tap = 0;
#pragma unroll 2
    for (; tap + kWindowTaps <= pass_.axis.kernel; tap += kWindowTaps) {
      load_next(tap);
      walk_taps_of(sums, window, weight, kWindowTaps);
#pragma unroll
      for (int i = 0; i < kOwn; ++i) window[i] = window[i + kWindowTaps];
    }
    if (tap == pass_.axis.kernel) return;
    load_next(tap);
    walk_taps_of(sums, window, weight, pass_.axis.kernel - tap);
  }

  const WindowPass<T>& pass_;
  T* sources_;
  float* weights_;
  int first_row_, first_chunk_, rows_;
};

template <typename T, int kOwn>
__global__ void __launch_bounds__(kWindowMostThreads, kOwn == 8 ? 4 : 3) rows_window(WindowPass<T> pass) {
  WindowBlock<T, kOwn>(pass).run();
}

}  // namespace

template <typename T>
void launch_rows_window(const Correlation<T>& call) {
  const Geometry& geometry = call.geometry;
  const PassAxis axis(geometry.width, call.transposed);
  const int64_t rows = geometry.batch * geometry.channels;
  const bool is_aligned_everywhere =
      common_alignment(call.result) == kRowVectorBytes && axis.result % kVectorElements<T> == 0;
  const auto launch = [&](auto own) {
    constexpr int kOwn = own;
    const RowsWindowPlan plan =
        plan_rows_window(axis, rows, kOwn, is_aligned_everywhere ? 0 : kVectorElements<T> - 1, sizeof(T),
                         current_device().multiprocessors);
    const WindowPass<T> pass = {{call.source, rows, axis.source},
                                call.weight,
                                call.bias,
                                call.result,
                                axis,
                                call.transposed,
                                plan,
                                FastDivisor(static_cast<int>(geometry.channels)),
                                FastDivisor(plan.segments),
                                FastDivisor(plan.chunks),
                                FastDivisor(plan.pitch / kVectorElements<T>),
                                FastDivisor(plan.weight_pitch)};
    const unsigned blocks = grid_of(ceil_divide<int64_t>(rows, plan.rows) * plan.segments, call.name());
    require_shared_memory(rows_window<T, kOwn>, plan.shared_bytes, call.name());
    rows_window<T, kOwn><<<blocks, plan.threads, plan.shared_bytes, call.stream>>>(pass);
  };
  if (has_long_windows(axis)) {
    launch(std::integral_constant<int, 16>{});
  } else {
    launch(std::integral_constant<int, 8>{});
  }
  check_launch(call.name());
}

template void launch_rows_window(const Correlation<float>&);
template void launch_rows_window(const Correlation<Half>&);
template void launch_rows_window(const Correlation<BFloat16>&);

}  // namespace torchgraft::depthwise::cuda
