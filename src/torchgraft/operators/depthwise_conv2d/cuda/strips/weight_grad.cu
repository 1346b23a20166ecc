// Weight gradient on NCHW planes, first pass, k = 3, 5, 7, stride 1 and 2, in strips as in strip.cuh.
//
// A block owns one output channel and a chunk of its strips: stretches of rows of one image each. Lanes own
// neighbouring columns of the output gradient and of the input, slide down both, and keep the sums of all
// k * k taps in registers for the whole chunk: a row of the input meets the last k rows of the output
// gradient, which stay in registers too. Both images are read from device memory once, through a warp's ring
// in shared memory. At the end the lanes of a warp, then the warps of the block, are added up in a fixed
// order.
//
// Predicted: k <= 5 bound by memory, k = 7 by its 49 multiply-adds and some eleven other instructions a
// pixel, about the time of fp32's memory. Measured on an H200, fp32: (128,32,112x112,k3) 117 us (floor 99),
// (128,144,56x56,k3) 132 (111), (128,96,112x112,k3,s2) 214 (186), (128,96,56x56,k7) 127 (74); bf16 70 (49),
// 92 (56), 124 (93), 137 (37).
#include "../chunks.cuh"
#include "../kernels.h"
#include "plan.h"
#include "strip.cuh"

namespace torchgraft::depthwise::cuda {

struct StripsWeightGradParameters {
  FastDivisor lanes, segments, stretches;
  int strips, strips_of_chunk;  // of a channel
  int strips_of_warp;
  int halo_lanes, units;
  int first_input_column;  // of unit 0
  int input_height, input_width, output_height, output_width;
  int first_input_row;  // of stretch 0
  int output_rows;      // of a stretch
  int channels, multiplier, output_channels;
};

// The sizes of a warp's ring, which holds its lanes' columns of both images.
template <typename Strip>
struct StripsWeightGradRing {
  using T = typename Strip::T;
  // Eight rows, whose copies bypass L1: two streams of rows would overflow it.
  using Input = StripRing<Strip, 8>;
  static constexpr int kOutputRow = kLanes * Strip::kResults;
  static constexpr int kOutputRows = Input::kRows / Strip::kStride;
  static constexpr int kInputElements = Input::kElements;
  static constexpr int kElements = kInputElements + kOutputRows * kOutputRow;
  static constexpr int kBytes = kStripThreads / kLanes * kElements * static_cast<int>(sizeof(T));
};

// Adds up the kCount values of each lane over the lanes of a warp, and calls `take(index, sum)` with each sum
// in one lane. At each step one half of the lanes takes over one half of the values.
template <int kCount, int kDistance = 16, typename Take>
__device__ void sum_lanes(const float (&values)[kCount], int first, int count, const Take& take) {
  if constexpr (kDistance == 0) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i < count) take(first + i, values[i]);
    }
  } else {
    constexpr unsigned kAllLanes = 0xffffffff;
    constexpr int kHalf = ceil_divide(kCount, 2);
    const bool upper = threadIdx.x % (2 * kDistance) >= kDistance;
    float kept[kHalf];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float other = i + kHalf < kCount ? values[i + kHalf] : 0.0F;
      kept[i] =
          (upper ? other : values[i]) + __shfl_xor_sync(kAllLanes, upper ? values[i] : other, kDistance);
    }
    sum_lanes<kHalf, kDistance / 2>(kept, upper ? first + kHalf : first,
                                    upper ? count - kHalf : min(count, kHalf), take);
  }
}

// One lane of a warp: its columns of the strips of a chunk, in both images. Arrays of a lane are local
// variables of its methods: while a loop over one is not unrolled, the compiler keeps the whole object that
// holds it in memory.
template <typename Strip>
class StripsWeightGrad {
 public:
  using T = typename Strip::T;
  using WholeRing = StripsWeightGradRing<Strip>;
  using Ring = typename WholeRing::Input;
  using InputRows = StripRows<T, Strip::kSources, Strip::kAligned, true>;
  using OutputRows = StripRows<T, Strip::kResults, Strip::kAligned, true>;
  static constexpr bool kAsync = InputRows::kAsync && OutputRows::kAsync;
  static constexpr int kKernel = Strip::kKernel;
  static constexpr int kStride = Strip::kStride;
  static constexpr int kResults = Strip::kResults;
  static constexpr int kSources = Strip::kSources;
  static constexpr int kWarps = kStripThreads / kLanes;
  // Rows that cannot be copied asynchronously go through registers, as many at a time.
  static constexpr int kPending = kAsync ? 1 : Ring::kRows;
  using PendingInput = T[kPending][kSources];
  using PendingOutput = T[kPending][kResults];
  using Grads = float[Strip::kSlots][kResults];
  using Sums = float[Strip::kTaps];

  __device__ explicit StripsWeightGrad(const StripsWeightGradParameters& parameters) {
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    warp_ = static_cast<int>(threadIdx.x) / kLanes;
    strip_of_warp_ = parameters.lanes.divide(lane);
    const int lane_of_strip = lane - strip_of_warp_ * parameters.lanes.divisor();
    channel_ = static_cast<int>(blockIdx.x % static_cast<unsigned>(parameters.output_channels));
    chunk_ = static_cast<int>(blockIdx.x / static_cast<unsigned>(parameters.output_channels));
    unit_of_segment_ = lane_of_strip - parameters.halo_lanes;
    has_strip_ = strip_of_warp_ < parameters.strips_of_warp;
    has_results_ = has_strip_ && unit_of_segment_ >= 0 && unit_of_segment_ < parameters.units;
    T* const warp_ring = shared_memory<T>() + warp_ * WholeRing::kElements;
    input_ring_ = prepare_ring<Strip, Ring>(warp_ring, parameters.lanes.divisor(), parameters.strips_of_warp,
                                            strip_of_warp_, lane_of_strip);
    output_ring_ = warp_ring + WholeRing::kInputElements + lane * kResults;
    input_rows_ = (parameters.output_rows - 1) * kStride + kKernel;
  }

  template <typename Result>
  __device__ void run(const T* output_grad, const T* input, Result* result,
                      const StripsWeightGradParameters& parameters) {
    const int chunk_begin = chunk_ * parameters.strips_of_chunk;
    const int chunk_end = min(chunk_begin + parameters.strips_of_chunk, parameters.strips);
    Sums sums = {};
    for (int first_strip = chunk_begin + warp_ * parameters.strips_of_warp; first_strip < chunk_end;
         first_strip += kWarps * parameters.strips_of_warp) {
      Columns columns = start_strip(first_strip + strip_of_warp_, chunk_end, output_grad, input, parameters);
      add_strip(columns, sums);
    }
    // Lanes without results multiplied zeros by whatever lay in the ring.
#pragma unroll
    for (int tap = 0; tap < Strip::kTaps; ++tap) sums[tap] = has_results_ ? sums[tap] : 0.0F;
    store_sums(sums, result, parameters);
  }

 private:
  // A lane's columns of a strip, in both images. As members of this class they take up to eleven registers
  // more.
  struct Columns {
    InputRows input;
    OutputRows output;
  };

  // Finds where this lane's columns of both images lie. Rows are counted from the first of the stretch.
  __device__ Columns start_strip(int strip, int chunk_end, const T* output_grad, const T* input,
                                 const StripsWeightGradParameters& parameters) {
    const int input_width = parameters.input_width;
    const int output_width = parameters.output_width;
    const int output_rows = parameters.output_rows;
    const int64_t input_plane = static_cast<int64_t>(parameters.input_height) * input_width;
    const int64_t output_plane = static_cast<int64_t>(parameters.output_height) * output_width;
    const bool active = has_strip_ && strip < chunk_end;
    int rest = active ? strip : 0;
    const auto next = [&rest](const FastDivisor& size) {
      const int quotient = size.divide(rest);
      const int remainder = rest - quotient * size.divisor();
      rest = quotient;
      return remainder;
    };
    const int segment = next(parameters.segments);
    const int stretch = next(parameters.stretches);
    const int64_t image = rest;
    const int unit = segment * parameters.units + unit_of_segment_;
    const int input_column = parameters.first_input_column + unit * kSources;
    const int output_column = unit * kResults;
    const int first_output_row = stretch * output_rows;
    const int first_input_row = parameters.first_input_row + first_output_row * kStride;
    return {{input + (image * parameters.channels + channel_ / parameters.multiplier) * input_plane +
                 static_cast<int64_t>(first_input_row) * input_width + input_column,
             input_column, input_width, max(-first_input_row, 0),
             active && input_column + kSources > 0 && input_column < input_width
                 ? min(parameters.input_height - first_input_row, input_rows_)
                 : 0},
            {output_grad + (image * parameters.output_channels + channel_) * output_plane +
                 static_cast<int64_t>(first_output_row) * output_width + output_column,
             output_column, output_width, 0,
             active && has_results_ && output_column < output_width
                 ? min(parameters.output_height - first_output_row, output_rows)
                 : 0}};
  }

  // Slides down a strip, and adds all products of both images to the sums.
  __device__ void add_strip(Columns& columns, Sums& sums) const {
    PendingInput pending_input;
    PendingOutput pending_output;
    // All lanes have read the last strip.
    __syncwarp();
    if constexpr (kAsync) {
#pragma unroll
      for (int row = 0; row < Ring::kRows - 1; ++row) copy(columns, row, row);
    } else {
      fetch(columns, 0, pending_input, pending_output);
      put(pending_input, pending_output);
    }
    Grads grads = {};
    for (int first_row = 0; first_row < input_rows_; first_row += Strip::kUnroll) {
      if constexpr (!kAsync) fetch(columns, first_row + Strip::kUnroll, pending_input, pending_output);
#pragma unroll
      for (int phase = 0; phase < Strip::kUnroll; ++phase) {
        const int row = first_row + phase;
        if (row >= input_rows_) break;
        if constexpr (kAsync) {
          wait_for_copies<Ring::kRows - 2>();
          __syncwarp();
          copy(columns, row + Ring::kRows - 1, (phase + Ring::kRows - 1) % Ring::kRows);
        }
        if (phase % kStride == 0) {
          load_elements<kResults, kResults>(
              output_ring_ + phase % Ring::kRows / kStride * WholeRing::kOutputRow, grads[phase / kStride]);
        }
        if (kKernel == 3 || __any_sync(0xffffffff, columns.input.inside(row))) add_row(phase, grads, sums);
      }
      if constexpr (!kAsync) put(pending_input, pending_output);
    }
    if constexpr (kAsync) wait_for_copies<0>();
  }

  __device__ void copy(Columns& columns, int row, int slot) const {
    columns.input.copy(row, input_ring_ + slot * Ring::kRow);
    if (slot % kStride == 0) {
      columns.output.copy(row / kStride, output_ring_ + slot / kStride * WholeRing::kOutputRow);
    }
    commit_copies();
  }

  __device__ void fetch(Columns& columns, int first_row, PendingInput& pending_input,
                        PendingOutput& pending_output) const {
#pragma unroll
    for (int i = 0; i < kPending; ++i) {
      columns.input.fetch(first_row + i, pending_input[i]);
      if (i % kStride == 0) columns.output.fetch((first_row + i) / kStride, pending_output[i]);
    }
  }

  __device__ void put(const PendingInput& pending_input, const PendingOutput& pending_output) const {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kPending; ++i) {
#pragma unroll
      for (int j = 0; j < kSources; ++j) input_ring_[i * Ring::kRow + j] = pending_input[i][j];
      if (i % kStride != 0) continue;
#pragma unroll
      for (int j = 0; j < kResults; ++j) {
        output_ring_[i / kStride * WholeRing::kOutputRow + j] = pending_output[i][j];
      }
    }
    __syncwarp();
  }

  // Adds the products of a row of the input with the last rows of the output gradient.
  __device__ void add_row(int phase, const Grads& grads, Sums& sums) const {
    float values[Strip::kWindow];
    load_window<Strip>(input_ring_ + phase % Ring::kRows * Ring::kRow, values);
#pragma unroll
    for (int tap_row = 0; tap_row < kKernel; ++tap_row) {
      if (!Strip::meets(phase, tap_row)) continue;
      const float* row_grads = grads[Strip::slot(phase, tap_row)];
#pragma unroll
      for (int tap = 0; tap < kKernel; ++tap) {
#pragma unroll
        for (int i = 0; i < kResults; ++i) {
          sums[tap_row * kKernel + tap] += row_grads[i] * values[Strip::window(i, tap)];
        }
      }
    }
  }

  // Adds up the sums of the block's lanes, in a fixed order.
  template <typename Result>
  __device__ void store_sums(const Sums& sums, Result* result, const StripsWeightGradParameters& parameters) {
    // No warp needs its ring any more: the sums of warps take its place.
    __syncthreads();
    float* const warp_sums = shared_memory<float>();
    sum_lanes(sums, 0, Strip::kTaps,
              [&](int tap, float sum) { warp_sums[warp_ * Strip::kTaps + tap] = sum; });
    __syncthreads();
    if (threadIdx.x < Strip::kTaps) {
      result[(static_cast<int64_t>(chunk_) * parameters.output_channels + channel_) * Strip::kTaps +
             threadIdx.x] = static_cast<Result>(sum_in_order(warp_sums + threadIdx.x, kWarps, Strip::kTaps));
    }
  }

  int warp_, strip_of_warp_, channel_, chunk_;
  int unit_of_segment_;
  bool has_strip_, has_results_;
  int input_rows_;  // of a stretch
  // This lane's elements in the ring's first row.
  T* input_ring_;
  T* output_ring_;
};

template <typename Strip>
constexpr int strips_weight_grad_blocks() {
  return Strip::kKernel == 7 ? 4 : 5;
}

// Result is float for partial sums, or T if one chunk is all.
template <typename Strip, typename Result>
__global__ void __launch_bounds__(kStripThreads, strips_weight_grad_blocks<Strip>())
    strips_weight_grad(const typename Strip::T* __restrict__ output_grad,
                       const typename Strip::T* __restrict__ input, Result* __restrict__ result,
                       StripsWeightGradParameters parameters) {
  StripsWeightGrad<Strip>(parameters).run(output_grad, input, result, parameters);
}

namespace {

template <typename Strip>
void launch(const WeightGrad<typename Strip::T>& pass) {
  using T = typename Strip::T;
  const auto& [output_grad, input, weight_grad, workspace, geometry, layout, stream] = pass;
  const Extent& height = geometry.height;
  const Extent& width = geometry.width;
  StripsWeightGradParameters parameters = {};
  parameters.input_height = static_cast<int>(height.input);
  parameters.input_width = static_cast<int>(width.input);
  parameters.output_height = static_cast<int>(height.output);
  parameters.output_width = static_cast<int>(width.output);
  parameters.first_input_row = -static_cast<int>(height.padding);
  parameters.first_input_column = Strip::first_source(static_cast<int>(width.padding));
  parameters.channels = static_cast<int>(geometry.channels);
  parameters.multiplier = static_cast<int>(geometry.multiplier);
  parameters.output_channels = static_cast<int>(geometry.output_channels());

  const StripLanes cut = cut_into_lanes<Strip>(PassAxis(width, /*transposed=*/false));
  parameters.units = cut.units;
  parameters.halo_lanes = cut.halo_left;
  parameters.lanes = FastDivisor(cut.lanes());
  parameters.segments = FastDivisor(cut.segments);
  parameters.strips_of_warp = StripRing<Strip>::strips(cut.lanes());

  const StripsWeightGradPlan plan =
      plan_strips_weight_grad(geometry, geometry.batch * cut.segments, parameters.strips_of_warp,
                              most_chunks(geometry, Layout::contiguous), current_device().multiprocessors);
  parameters.output_rows = plan.rows;
  parameters.stretches = FastDivisor(static_cast<int>(plan.stretches));
  parameters.strips = static_cast<int>(geometry.batch * cut.segments * plan.stretches);
  parameters.strips_of_chunk = ceil_divide(parameters.strips, static_cast<int>(plan.chunks));
  const int chunks = ceil_divide(parameters.strips, parameters.strips_of_chunk);

  constexpr int kBytes = std::max(StripsWeightGradRing<Strip>::kBytes,
                                  kStripThreads / kLanes * Strip::kTaps * static_cast<int>(sizeof(float)));
  static_assert(kBytes <= 48 * 1024);
  const unsigned grid = grid_of(geometry.output_channels() * chunks, pass.kName);
  if (T* const direct = weight_grad.direct(chunks); direct != nullptr) {
    strips_weight_grad<Strip, T>
        <<<grid, kStripThreads, kBytes, stream>>>(output_grad, input, direct, parameters);
    check_launch(pass.kName);
  } else {
    float* const partials = weight_grad.partials(chunks, workspace);
    strips_weight_grad<Strip, float>
        <<<grid, kStripThreads, kBytes, stream>>>(output_grad, input, partials, parameters);
    check_launch(pass.kName);
    if (chunks > 1) launch_sum_chunks(partials, weight_grad, geometry, chunks, stream);
  }
}

}  // namespace

// If a row takes several segments, two results a lane take longer than one: (32,256,75x75,k3) in halves takes
// 133 us on an H100, and 123 with one.
template <typename T>
void launch_strips_weight_grad(const WeightGrad<T>& pass) {
  const PassAxis width(pass.geometry.width, /*transposed=*/false);
  with_small_kernel(pass.geometry, [&](auto kernel, auto stride) {
    with_strip<T, kernel, stride, false>(pass.input, pass.output_grad, width, /*most_segments=*/1,
                                         [&](auto strip) { launch<decltype(strip)>(pass); });
  });
}

template void launch_strips_weight_grad(const WeightGrad<float>&);
template void launch_strips_weight_grad(const WeightGrad<Half>&);
template void launch_strips_weight_grad(const WeightGrad<BFloat16>&);

}  // namespace torchgraft::depthwise::cuda
