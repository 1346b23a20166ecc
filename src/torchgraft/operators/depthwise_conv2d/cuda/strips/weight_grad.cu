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
#include "strip.cuh"

namespace torchgraft::depthwise::cuda {

struct WeightGradStripParameters {
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

// A lane's own columns of both images, in a warp's ring.
template <typename Strip>
struct WeightGradRing {
  using T = typename Strip::T;
  // Deep, and past L1, which two streams of rows would overflow.
  using Input = StripRing<Strip, 8>;
  static constexpr int kOutputRow = kLanes * Strip::kResults;
  static constexpr int kOutputRows = Input::kRows / Strip::kStride;
  static constexpr int kInputElements = Input::kElements;
  static constexpr int kElements = kInputElements + kOutputRows * kOutputRow;
  static constexpr int kBytes = kStripThreads / kLanes * kElements * static_cast<int>(sizeof(T));
};

// Adds up the kCount values of each lane over the lanes of a warp and calls `take(index, sum)` with each sum
// in one lane: half of the lanes takes over half of the values, and so on.
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

template <typename Strip>
constexpr int weight_grad_strip_blocks() {
  return Strip::kKernel == 7 ? 4 : 5;
}

// Result is float for partial sums, or T if one chunk is all.
template <typename Strip, typename Result>
__global__ void __launch_bounds__(kStripThreads, weight_grad_strip_blocks<Strip>())
    strips_weight_grad(const typename Strip::T* __restrict__ output_grad,
                       const typename Strip::T* __restrict__ input, Result* __restrict__ result,
                       WeightGradStripParameters parameters) {
  using T = typename Strip::T;
  using WholeRing = WeightGradRing<Strip>;
  using Ring = typename WholeRing::Input;
  using InputRows = StripRows<T, Strip::kSources, Strip::kAligned, true>;
  using OutputRows = StripRows<T, Strip::kResults, Strip::kAligned, true>;
  constexpr bool kAsync = InputRows::kAsync && OutputRows::kAsync;
  constexpr unsigned kAllLanes = 0xffffffff;
  constexpr int kKernel = Strip::kKernel;
  constexpr int kStride = Strip::kStride;
  constexpr int kResults = Strip::kResults;
  constexpr int kSources = Strip::kSources;
  constexpr int kWarps = kStripThreads / kLanes;

  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int strip_of_warp = parameters.lanes.divide(lane);
  const int lane_of_strip = lane - strip_of_warp * parameters.lanes.divisor();
  const int channel = static_cast<int>(blockIdx.x % static_cast<unsigned>(parameters.output_channels));
  const int chunk = static_cast<int>(blockIdx.x / static_cast<unsigned>(parameters.output_channels));
  const int chunk_begin = chunk * parameters.strips_of_chunk;
  const int chunk_end = min(chunk_begin + parameters.strips_of_chunk, parameters.strips);
  const int unit_of_segment = lane_of_strip - parameters.halo_lanes;
  const bool has_strip = strip_of_warp < parameters.strips_of_warp;
  const bool has_results = has_strip && unit_of_segment >= 0 && unit_of_segment < parameters.units;

  T* const warp_ring = shared_memory<T>() + warp * WholeRing::kElements;
  T* const input_ring = prepare_ring<Strip, Ring>(warp_ring, parameters.lanes.divisor(),
                                                  parameters.strips_of_warp, strip_of_warp, lane_of_strip);
  T* const output_ring = warp_ring + WholeRing::kInputElements + lane * kResults;

  const int input_width = parameters.input_width;
  const int output_width = parameters.output_width;
  const int output_rows = parameters.output_rows;
  const int input_rows = (output_rows - 1) * kStride + kKernel;
  const int64_t input_plane = static_cast<int64_t>(parameters.input_height) * input_width;
  const int64_t output_plane = static_cast<int64_t>(parameters.output_height) * output_width;

  float sums[Strip::kTaps] = {};
  for (int first_strip = chunk_begin + warp * parameters.strips_of_warp; first_strip < chunk_end;
       first_strip += kWarps * parameters.strips_of_warp) {
    const int strip = first_strip + strip_of_warp;
    const bool active = has_strip && strip < chunk_end;
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
    const int unit = segment * parameters.units + unit_of_segment;
    const int input_column = parameters.first_input_column + unit * kSources;
    const int output_column = unit * kResults;
    const int first_output_row = stretch * output_rows;
    const int first_input_row = parameters.first_input_row + first_output_row * kStride;

    InputRows input_lane = {
        input + (image * parameters.channels + channel / parameters.multiplier) * input_plane +
            static_cast<int64_t>(first_input_row) * input_width + input_column,
        input_column, input_width, max(-first_input_row, 0),
        active && input_column + kSources > 0 && input_column < input_width
            ? min(parameters.input_height - first_input_row, input_rows)
            : 0};
    OutputRows output_lane = {output_grad + (image * parameters.output_channels + channel) * output_plane +
                                  static_cast<int64_t>(first_output_row) * output_width + output_column,
                              output_column, output_width, 0,
                              active && has_results && output_column < output_width
                                  ? min(parameters.output_height - first_output_row, output_rows)
                                  : 0};

    const auto copy = [&](int row, int slot) {
      input_lane.copy(row, input_ring + slot * Ring::kRow);
      if (slot % kStride == 0) {
        output_lane.copy(row / kStride, output_ring + slot / kStride * WholeRing::kOutputRow);
      }
      commit_copies();
    };
    constexpr int kPending = kAsync ? 1 : Ring::kRows;
    T pending_input[kPending][kSources], pending_output[kPending][kResults];
    const auto fetch = [&](int first_row) {
#pragma unroll
      for (int i = 0; i < kPending; ++i) {
        input_lane.fetch(first_row + i, pending_input[i]);
        if (i % kStride == 0) output_lane.fetch((first_row + i) / kStride, pending_output[i]);
      }
    };
    const auto put = [&] {
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kPending; ++i) {
#pragma unroll
        for (int j = 0; j < kSources; ++j) input_ring[i * Ring::kRow + j] = pending_input[i][j];
        if (i % kStride != 0) continue;
#pragma unroll
        for (int j = 0; j < kResults; ++j) {
          output_ring[i / kStride * WholeRing::kOutputRow + j] = pending_output[i][j];
        }
      }
      __syncwarp();
    };

    // What was read for the last strips is read.
    __syncwarp();
    if constexpr (kAsync) {
#pragma unroll
      for (int row = 0; row < Ring::kRows - 1; ++row) copy(row, row);
    } else {
      fetch(0);
      put();
    }

    float grads[Strip::kSlots][kResults] = {};
    for (int first_row = 0; first_row < input_rows; first_row += Strip::kUnroll) {
      if constexpr (!kAsync) fetch(first_row + Strip::kUnroll);
#pragma unroll
      for (int phase = 0; phase < Strip::kUnroll; ++phase) {
        const int row = first_row + phase;
        if (row >= input_rows) break;
        if constexpr (kAsync) {
          wait_for_copies<Ring::kRows - 2>();
          __syncwarp();
          copy(row + Ring::kRows - 1, (phase + Ring::kRows - 1) % Ring::kRows);
        }
        if (phase % kStride == 0) {
          load_elements<kResults, kResults>(
              output_ring + phase % Ring::kRows / kStride * WholeRing::kOutputRow, grads[phase / kStride]);
        }
        if (kKernel == 3 || __any_sync(kAllLanes, input_lane.inside(row))) {
          float values[Strip::kWindow];
          load_window<Strip>(input_ring + phase % Ring::kRows * Ring::kRow, values);
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
      }
      if constexpr (!kAsync) put();
    }
    if constexpr (kAsync) wait_for_copies<0>();
  }

  // Lanes without results multiplied zeros by whatever lay in the ring.
#pragma unroll
  for (int tap = 0; tap < Strip::kTaps; ++tap) sums[tap] = has_results ? sums[tap] : 0.0F;

  // The rings have done their part.
  __syncthreads();
  float* const warp_sums = shared_memory<float>();
  sum_lanes(sums, 0, Strip::kTaps, [&](int tap, float sum) { warp_sums[warp * Strip::kTaps + tap] = sum; });
  __syncthreads();
  if (threadIdx.x < Strip::kTaps) {
    result[(static_cast<int64_t>(chunk) * parameters.output_channels + channel) * Strip::kTaps +
           threadIdx.x] = static_cast<Result>(sum_in_order(warp_sums + threadIdx.x, kWarps, Strip::kTaps));
  }
}

namespace {

// Strips and how many chunks they are shared out to.
struct WeightGradPlan {
  int rows;  // of results of a stretch
  int64_t stretches, chunks;
};

// `strips` strips of whole height a channel. One chunk spares the second pass, which takes longer than a few
// dozen rows of a warp.
WeightGradPlan plan_weight_grad(const Geometry& geometry, int64_t strips, int strips_of_warp) {
  constexpr int64_t kWarps = kStripThreads / kLanes;
  constexpr int64_t kFewRows = 24;
  constexpr int64_t kBlocksOfMultiprocessor = 16;
  const int rows = static_cast<int>(geometry.height.output);
  const auto rows_for = [&](int64_t groups) {
    const int64_t stretches = std::clamp<int64_t>(groups * strips_of_warp / strips, 1, std::max(rows / 4, 1));
    return ceil_divide(rows, static_cast<int>(stretches));
  };
  const int64_t rows_of_warp = ceil_divide<int64_t>(strips * rows, strips_of_warp * kWarps);
  WeightGradPlan plan = {rows, 1, 1};
  if (rows_of_warp <= kFewRows) {
    plan.rows = rows_for(kWarps);
  } else {
    const int64_t wanted = ceil_divide<int64_t>(current_device().multiprocessors * kBlocksOfMultiprocessor,
                                                geometry.output_channels());
    plan.rows = rows_for(wanted * kWarps);
    plan.chunks = std::min(wanted, most_chunks(geometry, Layout::contiguous));
  }
  plan.stretches = ceil_divide(rows, plan.rows);
  plan.chunks =
      std::clamp<int64_t>(ceil_divide(strips * plan.stretches, kWarps * strips_of_warp), 1, plan.chunks);
  return plan;
}

template <typename Strip>
void launch(const WeightGrad<typename Strip::T>& pass) {
  using T = typename Strip::T;
  const auto& [output_grad, input, weight_grad, workspace, geometry, layout, stream] = pass;
  const Extent& height = geometry.height;
  const Extent& width = geometry.width;
  WeightGradStripParameters parameters = {};
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

  const WeightGradPlan plan =
      plan_weight_grad(geometry, geometry.batch * cut.segments, parameters.strips_of_warp);
  parameters.output_rows = plan.rows;
  parameters.stretches = FastDivisor(static_cast<int>(plan.stretches));
  parameters.strips = static_cast<int>(geometry.batch * cut.segments * plan.stretches);
  parameters.strips_of_chunk = ceil_divide(parameters.strips, static_cast<int>(plan.chunks));
  const int chunks = ceil_divide(parameters.strips, parameters.strips_of_chunk);

  constexpr int kBytes = std::max(WeightGradRing<Strip>::kBytes,
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

// Of rows in several segments two results a lane take longer than one: of (32,256,75x75,k3) in halves 133 us
// on an H100, and 123.
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
