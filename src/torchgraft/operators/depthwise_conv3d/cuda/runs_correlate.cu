// Forward pass of contiguous volumes, and the input gradient of stride 1, for halves and float32: by runs
// (runs.cuh), for kernels and strides that no sweep is compiled for, and for small volumes.
//
// A block owns a part of one volume; its threads own runs. Depth and height of the kernel are walked row by
// row, and the next row is loaded before this one is added up. The weights of a channel lie in shared memory,
// which all threads read at almost the same place. Each row of the input comes from memory once, and from the
// caches as often as rows of taps lie on it.
//
// Predicted for float16 (3,88,8x68x68), k 1x3x3, stride (1,2,2), on an H200: 12 us, of which the launch takes
// 3. What should bound it are the instructions of a thread: some 60 for each row of taps, of which 12 are
// multiply-adds, and 170 for each run beside.
#include "runs.cuh"

namespace torchgraft::depthwise::volumes {
namespace {

struct RunsParameters {
  RunExtent depth, height;
  RunRows rows;
  int items;  // of a volume
  bool turned;
  FastDivisor channels, parts, runs, output_rows;
};

// The taps of one direction that lie inside of the volume, and the input under tap 0.
struct RunTaps {
  int input, first, end;

  __device__ RunTaps(const RunExtent& extent, int output)
      : input(output * extent.stride - extent.padding),
        first(max(-input, 0)),
        end(min(extent.kernel, extent.inputs - input)) {}
};

// Adds the elements of a row to the sums of a run.
template <typename Traits>
__device__ __forceinline__ void add_row(const RunSources<Traits>& sources, const float* weights,
                                        float (&sums)[kRun]) {
  float taps[Traits::kPitch];
#pragma unroll
  for (int i = 0; i < Traits::kPitch; i += 4) {
    const float4 four = *reinterpret_cast<const float4*>(weights + i);
    taps[i] = four.x;
    taps[i + 1] = four.y;
    taps[i + 2] = four.z;
    taps[i + 3] = four.w;
  }
#pragma unroll
  for (int i = 0; i < Traits::kSources; ++i) {
    const float value = sources[i];
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
      if (Traits::meets(i, j)) sums[j] = fmaf(value, taps[Traits::tap(i, j)], sums[j]);
    }
  }
}

// Stores what lies inside of the row of a run that begins in column `first` of it.
template <typename T, int kPiece>
__device__ __forceinline__ void store_pieces(const float (&sums)[kRun], T* row, int first, int columns) {
#pragma unroll
  for (int i = 0; i < kRun; i += kPiece) {
    if (!is_inside(first + i, columns)) continue;
    float piece[kPiece];
#pragma unroll
    for (int j = 0; j < kPiece; ++j) piece[j] = sums[i + j];
    Packed<T, kPiece>(piece).store(row + (first + i));
  }
}

template <typename Traits>
__global__ void __launch_bounds__(kRunThreads)
    runs_correlate(const typename Traits::T* __restrict__ source, Rounded<typename Traits::T> weight,
                   Rounded<typename Traits::T> bias, typename Traits::T* __restrict__ result,
                   const __grid_constant__ RunsParameters parameters) {
  using T = typename Traits::T;
  __shared__ __align__(16) float weights[kMostSide * kMostSide * Traits::kPitch];
  const RunExtent &depth = parameters.depth, &height = parameters.height;
  const int columns = parameters.rows.inputs;
  const int block = static_cast<int>(blockIdx.x), volume = parameters.parts.divide(block);
  const int part = block - volume * parameters.parts.divisor();
  const int channel = volume - parameters.channels.divide(volume) * parameters.channels.divisor();
  const int item = part * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
  const int line = parameters.runs.divide(item), run = item - line * parameters.runs.divisor();
  const int plane = parameters.output_rows.divide(line);
  const RunTaps deep(depth, plane), down(height, line - plane * parameters.output_rows.divisor());
  const int first_input = parameters.rows.first_input + run * Traits::kStep;
  const bool has_item = item < parameters.items;
  const bool has_rows = has_item && deep.first < deep.end && down.first < down.end;

  const T* const sources = source + static_cast<int64_t>(volume) * depth.inputs * height.inputs * columns;
  const int rows_of_plane = down.end - down.first;
  int plane_tap = deep.first, row_tap = down.first;
  int place = ((deep.input + plane_tap) * height.inputs + down.input + row_tap) * columns;
  RunSources<Traits> next;
  next.load(sources + place, first_input, columns, has_rows);

  const int taps = depth.kernel * height.kernel * Traits::kWide;
  for (int i = static_cast<int>(threadIdx.x); i < taps; i += static_cast<int>(blockDim.x)) {
    const int at = parameters.turned ? taps - 1 - i : i, row = i / Traits::kWide;
    weights[row * Traits::kPitch + i - row * Traits::kWide] =
        weight[static_cast<int64_t>(channel) * taps + at];
  }
  const float of_bias = bias.or_zero(true, channel);
  __syncthreads();
  if (!has_item) return;

  float sums[kRun];
#pragma unroll
  for (int i = 0; i < kRun; ++i) sums[i] = of_bias;
  bool has_more = has_rows;
#pragma unroll 1
  while (has_more) {
    const RunSources<Traits> current = next;
    const float* const of_row = weights + (plane_tap * height.kernel + row_tap) * Traits::kPitch;
    ++row_tap;
    place += columns;
    if (row_tap == down.end) {
      row_tap = down.first;
      ++plane_tap;
      place += (height.inputs - rows_of_plane) * columns;
    }
    has_more = plane_tap < deep.end;
    next.load(sources + place, first_input, columns, has_more);
    add_row<Traits>(current, of_row, sums);
  }

  const int output_columns = parameters.rows.outputs;
  T* const row =
      result + (static_cast<int64_t>(volume) * depth.outputs * height.outputs + line) * output_columns;
  const int first_output = parameters.rows.first_output + run * kRun;
  if (parameters.rows.output_piece == 4) {
    store_pieces<T, 4>(sums, row, first_output, output_columns);
  } else if (parameters.rows.output_piece == 2) {
    store_pieces<T, 2>(sums, row, first_output, output_columns);
  } else {
    store_pieces<T, 1>(sums, row, first_output, output_columns);
  }
}

}  // namespace

template <typename T>
void launch_runs(const Correlation<T>& pass) {
  const Geometry& geometry = pass.geometry;
  const bool turned = pass.transposed;
  with_runs(geometry.width, turned, pass.source, pass.name(), [&]<typename Traits>(Traits traits) {
    RunsParameters parameters = {};
    parameters.depth = RunExtent(geometry.depth, turned);
    parameters.height = RunExtent(geometry.height, turned);
    parameters.rows = RunRows::of(geometry.width, turned, pass.result, traits);
    parameters.turned = turned;
    parameters.items = parameters.rows.runs * parameters.height.outputs * parameters.depth.outputs;
    // Blocks of small volumes are smaller: no warp is without work.
    const int parts = ceil_divide(parameters.items, kRunThreads);
    const int threads = round_up(ceil_divide(parameters.items, parts), kWarpThreads);
    parameters.channels = FastDivisor(static_cast<int>(geometry.channels));
    parameters.parts = FastDivisor(parts);
    parameters.runs = FastDivisor(parameters.rows.runs);
    parameters.output_rows = FastDivisor(parameters.height.outputs);
    const unsigned grid = grid_of(geometry.batch * geometry.channels * parts, pass.name());
    runs_correlate<Traits>
        <<<grid, threads, 0, pass.stream>>>(pass.source, pass.weight, pass.bias, pass.result, parameters);
    check_launch(pass.name());
  });
}

template void launch_runs(const Correlation<float>&);
template void launch_runs(const Correlation<Half>&);
template void launch_runs(const Correlation<BFloat16>&);

}  // namespace torchgraft::depthwise::volumes
