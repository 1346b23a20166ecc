// Weight gradient of contiguous volumes, for halves and float32: by runs (runs.cuh), for kernels and strides
// that no sweep is compiled for, and for small volumes.
//
// A block owns up to four rows of taps of one channel, and a part of the runs of the output gradient in all
// images. A thread loads a run, and for each row of taps what it is multiplied with in the input; the loads
// of all rows are in flight together, and the sums of all taps in registers. Tap rows that are not in one
// block read the same output gradient, and the second reads it from L2.
//
// Predicted for float16 (3,88,8x68x68), k 1x3x3, stride (1,2,2), on an H200: 14 us, of which two launches
// take 5. What should bound it are the instructions of a thread: some 240 for each run and its three rows of
// taps, of which 36 are multiply-adds.
#include <torchgraft/device.cuh>

#include "runs.cuh"

namespace torchgraft::depthwise::volumes {
namespace {

constexpr int kMostTapRows = 4;  // of a block
constexpr int kMostWarps = kRunThreads / kWarpThreads;
// Runs are divided into parts as if each thread added up so many at least, before its sums are added to those
// of others: that takes as many instructions as a run. Parts of whole warps leave some threads fewer.
constexpr int kFewestRunsOfThread = 4;

struct RunsWeightGradParameters {
  RunExtent depth, height;
  RunRows rows;
  int items, items_of_block;  // runs of the output gradient of one channel, in all images
  int tap_rows, tap_rows_of_block;
  FastDivisor channels, groups, runs, output_rows, output_planes, tall;
};

// A run of the output gradient. Elements outside of the row are not read.
template <typename T, int kPiece>
__device__ __forceinline__ void load_pieces(const T* row, int first, int columns, float (&grads)[kRun]) {
#pragma unroll
  for (int i = 0; i < kRun; i += kPiece) {
    RunPiece<T, kPiece> piece = {};
    if (is_inside(first + i, columns)) piece.load(row + (first + i));
#pragma unroll
    for (int j = 0; j < kPiece; ++j) grads[i + j] = piece[j];
  }
}

template <typename Traits>
__global__ void __launch_bounds__(kRunThreads)
    runs_weight_grad(const typename Traits::T* __restrict__ output_grad,
                     const typename Traits::T* __restrict__ input, float* __restrict__ partials,
                     const __grid_constant__ RunsWeightGradParameters parameters) {
  using T = typename Traits::T;
  const RunExtent &depth = parameters.depth, &height = parameters.height;
  const int input_columns = parameters.rows.inputs, output_columns = parameters.rows.outputs;
  const int all_channels = parameters.channels.divisor();
  const int block = static_cast<int>(blockIdx.x), of_channel = parameters.groups.divide(block);
  const int part = parameters.channels.divide(of_channel), channel = of_channel - part * all_channels;
  const int first_tap_row = (block - of_channel * parameters.groups.divisor()) * parameters.tap_rows_of_block;
  const int tap_rows = min(parameters.tap_rows_of_block, parameters.tap_rows - first_tap_row);
  int plane_taps[kMostTapRows], row_taps[kMostTapRows];
#pragma unroll
  for (int i = 0; i < kMostTapRows; ++i) {
    plane_taps[i] = parameters.tall.divide(first_tap_row + i) - depth.padding;
    row_taps[i] = first_tap_row + i - (plane_taps[i] + depth.padding) * height.kernel - height.padding;
  }

  float sums[kMostTapRows][Traits::kWide] = {};
  const int end = min((part + 1) * parameters.items_of_block, parameters.items);
#pragma unroll 1
  for (int item = part * parameters.items_of_block + static_cast<int>(threadIdx.x); item < end;
       item += static_cast<int>(blockDim.x)) {
    const int line = parameters.runs.divide(item), run = item - line * parameters.runs.divisor();
    const int plane_at = parameters.output_rows.divide(line);
    const int row = line - plane_at * parameters.output_rows.divisor();
    const int image = parameters.output_planes.divide(plane_at);
    const int plane = plane_at - image * parameters.output_planes.divisor();
    const int64_t volume = static_cast<int64_t>(image) * all_channels + channel;
    const T* const inputs = input + volume * depth.inputs * height.inputs * input_columns;
    const int first_input = parameters.rows.first_input + run * Traits::kStep;
    RunSources<Traits> sources[kMostTapRows];
    bool is_there[kMostTapRows];
#pragma unroll
    for (int i = 0; i < kMostTapRows; ++i) {
      const int input_plane = plane * depth.stride + plane_taps[i];
      const int input_row = row * height.stride + row_taps[i];
      is_there[i] =
          i < tap_rows && is_inside(input_plane, depth.inputs) && is_inside(input_row, height.inputs);
      sources[i].load(inputs + (input_plane * height.inputs + input_row) * input_columns, first_input,
                      input_columns, is_there[i]);
    }
    const T* const grad_row =
        output_grad +
        (volume * depth.outputs * height.outputs + plane * height.outputs + row) * output_columns;
    const int first_output = parameters.rows.first_output + run * kRun;
    float grads[kRun];
    if (parameters.rows.output_piece == 4) {
      load_pieces<T, 4>(grad_row, first_output, output_columns, grads);
    } else if (parameters.rows.output_piece == 2) {
      load_pieces<T, 2>(grad_row, first_output, output_columns, grads);
    } else {
      load_pieces<T, 1>(grad_row, first_output, output_columns, grads);
    }
    // Outputs in front of the row and behind it have no window, and what lies there may be infinite.
    bool has_output[kRun];
#pragma unroll
    for (int j = 0; j < kRun; ++j) has_output[j] = is_inside(first_output + j, output_columns);
#pragma unroll
    for (int i = 0; i < kMostTapRows; ++i) {
      if (!is_there[i]) continue;
#pragma unroll
      for (int k = 0; k < Traits::kSources; ++k) {
        const float value = sources[i][k];
#pragma unroll
        for (int j = 0; j < kRun; ++j) {
          if (!Traits::meets(k, j) || !has_output[j]) continue;
          float& sum = sums[i][Traits::tap(k, j)];
          sum = fmaf(value, grads[j], sum);
        }
      }
    }
  }

  __shared__ float of_warps[kMostWarps][kMostTapRows * Traits::kWide];
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
#pragma unroll
  for (int i = 0; i < kMostTapRows; ++i) {
    if (i >= tap_rows) break;
#pragma unroll
    for (int k = 0; k < Traits::kWide; ++k) {
      for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
        sums[i][k] += __shfl_xor_sync(0xffffffff, sums[i][k], distance);
      }
      if (lane == 0) of_warps[warp][i * Traits::kWide + k] = sums[i][k];
    }
  }
  __syncthreads();
  const int at = static_cast<int>(threadIdx.x);
  if (at >= tap_rows * Traits::kWide) return;
  float sum = 0;
  for (int i = 0; i < static_cast<int>(blockDim.x) / kWarpThreads; ++i) sum += of_warps[i][at];
  partials[(static_cast<int64_t>(of_channel) * parameters.tap_rows + first_tap_row) * Traits::kWide + at] =
      sum;
}

}  // namespace

template <typename T>
Partials launch_runs_weight_grad(const WeightGrad<T>& pass) {
  constexpr const char* kName = WeightGrad<T>::kName;
  const Geometry& geometry = pass.geometry;
  Partials partials = {};
  with_runs(geometry.width, /*turned=*/false, pass.input, kName, [&]<typename Traits>(Traits traits) {
    RunsWeightGradParameters parameters = {};
    parameters.depth = RunExtent(geometry.depth, /*turned=*/false);
    parameters.height = RunExtent(geometry.height, /*turned=*/false);
    parameters.rows = RunRows::of(geometry.width, /*turned=*/false, pass.output_grad, traits);
    parameters.items = static_cast<int>(geometry.batch) * parameters.depth.outputs *
                       parameters.height.outputs * parameters.rows.runs;
    parameters.tap_rows = parameters.depth.kernel * parameters.height.kernel;
    const int groups = ceil_divide(parameters.tap_rows, kMostTapRows);
    parameters.tap_rows_of_block = ceil_divide(parameters.tap_rows, groups);
    const int64_t blocks_of_part = geometry.channels * groups;
    constexpr int64_t kBlocksOfMultiprocessor = 16, kMostParts = 512;
    const int64_t wanted =
        ceil_divide<int64_t>(current_device().multiprocessors * kBlocksOfMultiprocessor, blocks_of_part);
    const int most_parts = ceil_divide(parameters.items, kRunThreads * kFewestRunsOfThread);
    const int64_t few_parts = std::clamp<int64_t>(std::min<int64_t>(wanted, most_parts), 1, kMostParts);
    parameters.items_of_block =
        static_cast<int>(round_up(ceil_divide<int64_t>(parameters.items, few_parts), kWarpThreads));
    const int parts = ceil_divide(parameters.items, parameters.items_of_block);
    const int threads = std::min(kRunThreads, parameters.items_of_block);
    parameters.channels = FastDivisor(static_cast<int>(geometry.channels));
    parameters.groups = FastDivisor(groups);
    parameters.runs = FastDivisor(parameters.rows.runs);
    parameters.output_rows = FastDivisor(parameters.height.outputs);
    parameters.output_planes = FastDivisor(parameters.depth.outputs);
    parameters.tall = FastDivisor(parameters.height.kernel);
    partials = {empty_workspace<float>(parts * geometry.channels * geometry.taps(), pass.like), parts};
    const unsigned grid = grid_of(blocks_of_part * parts, kName);
    runs_weight_grad<Traits><<<grid, threads, 0, pass.stream>>>(
        pass.output_grad, pass.input, static_cast<float*>(partials.memory.mutable_data_ptr()), parameters);
    check_launch(kName);
  });
  return partials;
}

template Partials launch_runs_weight_grad(const WeightGrad<float>&);
template Partials launch_runs_weight_grad(const WeightGrad<Half>&);
template Partials launch_runs_weight_grad(const WeightGrad<BFloat16>&);

}  // namespace torchgraft::depthwise::volumes
