// Weight gradient of volumes, first pass: sweeps along depth, for halves and float32.
//
// A block owns one output channel and a part of its work: tiles of rows and columns of one volume, or of a
// few small ones, times a stretch of depth. A thread owns some neighbouring output gradients of a plane,
// multiplies them by the inputs under each tap, and keeps the sums of the taps in registers for all of the
// block's work. Planes of both come through rings in shared memory by asynchronous copies, two steps ahead.
//
// Up to 27 taps with stride 1 along depth, a thread sums all taps: a plane of the input meets the output
// gradients of the last planes, which stay in registers. With more taps or a stride, a block has as many
// groups of warps as the kernel is deep: a group owns the taps of one plane of the kernel, and a plane of
// output gradients meets as many planes of the input.
//
// At the end the threads of a warp, then the warps of a group are added up in a fixed order, and a second
// kernel adds up the blocks: the bits are the same at each run.
//
// Measured on an H100 (PyTorch 2.11; floors are the time of a copy): bf16 (8,54,16x56x56), k 3: 86 us
// (3.0 floors), PyTorch 1,246; fp32 94 us (1.6), PyTorch 1,216; bf16 (2,32,96x96x96), k 5: 549 us, PyTorch
// 13,318; bf16 (1,32,64x64x64), k 7: 178 us, PyTorch 4,112.
#include "kernels.h"
#include "staging.cuh"

#include <torchgraft/device.cuh>

namespace torchgraft::depthwise::volumes {
namespace {

constexpr int kAhead = 2;  // steps

struct SweepWeightGradParameters {
  StagedPlanes staged_input, staged_grad;
  int input_planes, output_planes, output_rows, output_columns;
  int padding_depth, origin_row, origin_column;
  int batch, packs, stretch_planes;
  int parts_of_block, all_parts;
  int threads_of_group;
  bool aligned;
  int channels;
  FastDivisor output_channels, multiplier, units, row_groups, tiles_wide, tiles_high, stretches;
};

template <typename T_, int kDepth_, int kHeight_, int kWidth_, int kStrideDepth_, int kStride_>
struct SweepWeightGradTraits {
  using T = T_;
  static constexpr int kDepth = kDepth_, kHeight = kHeight_, kWidth = kWidth_;
  static constexpr int kStrideDepth = kStrideDepth_, kStride = kStride_;
  static constexpr int kTapsOfPlane = kHeight * kWidth;
  static constexpr int kTaps = kDepth * kTapsOfPlane;
  // Whether a thread sums all taps, and keeps output gradients of kDepth planes.
  static constexpr bool kKeepsGrads = kTaps <= 27 && kStrideDepth == 1;
  static constexpr int kGroups = kKeepsGrads ? 1 : kDepth;
  static constexpr int kDepthOfGroup = kDepth / kGroups;

  static constexpr int kColumns = sizeof(T) == 2 && kStride == 1 ? 8 : 4;
  static constexpr int kRows = (kHeight > 1 && !kKeepsGrads ? 32 : kStride > 1 ? 8 : 16) / kColumns;
  using Columns = Reach<kWidth, kStride, false, kColumns>;
  using Rows = Reach<kHeight, kStride, false, kRows>;

  static constexpr int kInputStages = kKeepsGrads ? kAhead + 1 : kDepth + kAhead * kStrideDepth;
  static constexpr int kGradStages = kAhead + 1;
  static constexpr int kMostOfGroup = kGroups == 1 ? 128 : kGroups > 3 ? 32 : 64;
  static constexpr int kMostThreads = kGroups * kMostOfGroup;
  static constexpr int kBlocks = kGroups == 1 ? 4 : kGroups > 5 ? 2 : 3;
  static constexpr ThreadShape kShape = {.columns = kColumns,
                                         .rows = kRows,
                                         .step_columns = Columns::kStep,
                                         .step_rows = Rows::kStep,
                                         .source_columns = Columns::kSources,
                                         .source_rows = Rows::kSources,
                                         .most_threads = kMostOfGroup,
                                         .most_units = 16,
                                         .most_packs = 64,
                                         .source_stages = kInputStages,
                                         .result_stages = kGradStages,
                                         .pack_bytes = 0};
};

template <typename Traits>
class SweepWeightGradBlock {
 public:
  using T = typename Traits::T;
  using Columns = typename Traits::Columns;
  using Rows = typename Traits::Rows;
  using Reader = RowReader<T, Columns>;
  using GradReader = RowReader<T, Reach<1, 1, false, Traits::kColumns>>;
  using Sums = float[Traits::kDepthOfGroup][Traits::kHeight][Traits::kWidth];
  using Grads = float[Traits::kRows][Traits::kColumns];
  static constexpr int kVector = 16 / static_cast<int>(sizeof(T));

  __device__ explicit SweepWeightGradBlock(const SweepWeightGradParameters& parameters)
      : parameters_(parameters) {}

  __device__ void run(const T* output_grad, const T* input, float* partials) {
    find_thread();
    Sums sums = {};
    const int end = min((chunk_ + 1) * parameters_.parts_of_block, parameters_.all_parts);
    for (int part = chunk_ * parameters_.parts_of_block; part < end; ++part) {
      find_part(part);
      // The last part has been read.
      __syncthreads();
      clear_shared(input_stages_, Traits::kInputStages * input_elements_ * static_cast<int>(sizeof(T)));
      clear_shared(grad_stages_, Traits::kGradStages * grad_elements_ * static_cast<int>(sizeof(T)));
      __syncthreads();
      sweep(output_grad, input, sums);
    }
    add_up(sums, partials);
  }

 private:
  __device__ void find_thread() {
    const int block = static_cast<int>(blockIdx.x);
    chunk_ = parameters_.output_channels.divide(block);
    channel_ = block - chunk_ * parameters_.output_channels.divisor();
    group_ = static_cast<int>(threadIdx.x) / parameters_.threads_of_group;
    const int thread = static_cast<int>(threadIdx.x) - group_ * parameters_.threads_of_group;
    const int rest = parameters_.units.divide(thread);
    const int unit = thread - rest * parameters_.units.divisor();
    const int pack = parameters_.row_groups.divide(rest);
    const int row_group = rest - pack * parameters_.row_groups.divisor();
    // Output gradients outside of a tile or of a plane are zeros in shared memory.
    has_results_ = pack < parameters_.packs;
    const StagedPlanes &of_input = parameters_.staged_input, &of_grad = parameters_.staged_grad;
    input_place_ = (pack * of_input.staged_rows + row_group * Rows::kStep) * of_input.pitch + Columns::kLead +
                   unit * Columns::kStep;
    grad_place_ =
        (pack * of_grad.staged_rows + row_group * Traits::kRows) * of_grad.pitch + unit * Traits::kColumns;
    if (!has_results_) input_place_ = Columns::kLead, grad_place_ = 0;
    input_elements_ = parameters_.packs * of_input.staged_rows * of_input.pitch;
    grad_elements_ = parameters_.packs * of_grad.staged_rows * of_grad.pitch;
    input_stages_ = shared_memory<T>();
    grad_stages_ = input_stages_ + Traits::kInputStages * input_elements_;
  }

  // The volumes, the tile and the stretch of depth of a part of the work.
  __device__ void find_part(int part) {
    const auto next = [&part](const FastDivisor& count) {
      const int quotient = count.divide(part), index = part - quotient * count.divisor();
      part = quotient;
      return index;
    };
    const int tile_column = next(parameters_.tiles_wide), tile_row = next(parameters_.tiles_high);
    const int stretch = next(parameters_.stretches);
    first_image_ = part * parameters_.packs;
    packs_ = min(parameters_.packs, parameters_.batch - first_image_);
    first_plane_ = stretch * parameters_.stretch_planes;
    end_plane_ = min(first_plane_ + parameters_.stretch_planes, parameters_.output_planes);
    first_row_ = tile_row * parameters_.row_groups.divisor() * Traits::kRows;
    first_column_ = tile_column * parameters_.units.divisor() * Traits::kColumns;
    const int column = parameters_.origin_column + first_column_ * Traits::kStride;
    first_input_row_ = parameters_.origin_row + first_row_ * Traits::kStride;
    first_input_column_ = floor_divide(column, kVector) * kVector;
    offset_ = column - first_input_column_;
  }

  __device__ void sweep(const T* output_grad, const T* input, Sums& sums) const {
    const int first_input = first_plane_ * Traits::kStrideDepth - parameters_.padding_depth;
    const int planes = end_plane_ - first_plane_;
    // The planes of the first step, but for those that are new in each.
    for (int i = 0; i < kEarlier; ++i) copy_input(input, first_input, i);
#pragma unroll 1
    for (int ahead = 0; ahead < kAhead; ++ahead) copy_step(output_grad, input, first_input, ahead);
    Grads kept[Traits::kDepthOfGroup] = {};
    const int steps = planes + Traits::kDepthOfGroup - 1;
    for (int step = 0; step < steps; ++step) {
      wait_for_copies<kAhead - 1>();
      __syncthreads();
      copy_step(output_grad, input, first_input, step + kAhead);
#pragma unroll
      for (int i = Traits::kDepthOfGroup - 1; i > 0; --i) {
#pragma unroll
        for (int j = 0; j < Traits::kRows * Traits::kColumns; ++j) {
          kept[i][j / Traits::kColumns][j % Traits::kColumns] =
              kept[i - 1][j / Traits::kColumns][j % Traits::kColumns];
        }
      }
      read_grads(grad_stages_ + step % Traits::kGradStages * grad_elements_ + grad_place_, step < planes,
                 kept[0]);
      const int number = step * Traits::kStrideDepth + group_;
      if (is_inside(first_input + number, parameters_.input_planes)) {
        const T* const plane =
            input_stages_ + number % Traits::kInputStages * input_elements_ + input_place_ + offset_;
        parameters_.aligned ? add_plane<true>(plane, kept, sums) : add_plane<false>(plane, kept, sums);
      }
    }
    wait_for_copies<0>();
  }

  // Input planes of a step that earlier ones have read, too.
  static constexpr int kEarlier = Traits::kKeepsGrads ? 0 : Traits::kDepth - Traits::kStrideDepth;

  // Begins to copy what is new in a step, and ends a group of copies.
  __device__ void copy_step(const T* output_grad, const T* input, int first_input, int step) const {
    const int planes = end_plane_ - first_plane_;
    if (step < planes + Traits::kDepthOfGroup - 1) {
#pragma unroll
      for (int i = 0; i < Traits::kStrideDepth; ++i) {
        copy_input(input, first_input, kEarlier + step * Traits::kStrideDepth + i);
      }
    }
    if (step < planes) {
      const StagedPlanes& staged = parameters_.staged_grad;
      const int64_t of_plane = static_cast<int64_t>(staged.rows) * staged.columns;
      const auto plane_of = [&](int pack) {
        const int64_t volume =
            static_cast<int64_t>(first_image_ + pack) * parameters_.output_channels.divisor() + channel_;
        return output_grad + (volume * parameters_.output_planes + first_plane_ + step) * of_plane;
      };
      copy_plane(grad_stages_ + step % Traits::kGradStages * grad_elements_, plane_of, packs_, first_row_,
                 first_column_, staged);
    }
    commit_copies();
  }

  // The input plane of a number, counted from the first.
  __device__ void copy_input(const T* input, int first_input, int number) const {
    const int plane = first_input + number;
    if (!is_inside(plane, parameters_.input_planes)) return;
    const StagedPlanes& staged = parameters_.staged_input;
    const int64_t of_plane = static_cast<int64_t>(staged.rows) * staged.columns;
    const int channel = parameters_.multiplier.divide(channel_);
    const auto plane_of = [&](int pack) {
      const int64_t volume = static_cast<int64_t>(first_image_ + pack) * parameters_.channels + channel;
      return input + (volume * parameters_.input_planes + plane) * of_plane;
    };
    copy_plane(input_stages_ + number % Traits::kInputStages * input_elements_, plane_of, packs_,
               first_input_row_, first_input_column_, staged);
  }

  __device__ void read_grads(const T* plane, bool is_there, Grads& grads) const {
#pragma unroll
    for (int row = 0; row < Traits::kRows; ++row) {
      if (is_there) {
        GradReader::read(plane + row * parameters_.staged_grad.pitch, true, grads[row]);
      } else {
#pragma unroll
        for (int column = 0; column < Traits::kColumns; ++column) grads[row][column] = 0;
      }
    }
  }

  // Multiplies the thread's output gradients by the inputs of a plane under each tap of the group.
  template <bool kAligned>
  __device__ void add_plane(const T* plane, const Grads (&grads)[Traits::kDepthOfGroup], Sums& sums) const {
#pragma unroll
    for (int input_row = 0; input_row < Rows::kSources; ++input_row) {
      float inputs[Columns::kSources];
      Reader::read(plane + input_row * parameters_.staged_input.pitch, kAligned, inputs);
#pragma unroll
      for (int depth_tap = 0; depth_tap < Traits::kDepthOfGroup; ++depth_tap) {
#pragma unroll
        for (int row = 0; row < Traits::kRows; ++row) {
          if (!Rows::meets(input_row, row)) continue;
#pragma unroll
          for (int column = 0; column < Traits::kColumns; ++column) {
#pragma unroll
            for (int tap = 0; tap < Traits::kWidth; ++tap) {
              float& sum = sums[depth_tap][Rows::tap(input_row, row)][tap];
              sum = fmaf(grads[depth_tap][row][column], inputs[column * Traits::kStride + tap], sum);
            }
          }
        }
      }
    }
  }

  static constexpr int kTapsOfGroup = Traits::kDepthOfGroup * Traits::kTapsOfPlane;

  // Adds up the sums of each tap over the threads of a group, in a fixed order.
  __device__ void add_up(Sums& sums, float* partials) const {
    constexpr unsigned kAllLanes = 0xffffffff;
    const int warps = parameters_.threads_of_group / kWarpThreads;
    const int warp = static_cast<int>(threadIdx.x) / kWarpThreads, lane = threadIdx.x % kWarpThreads;
    float* const of_warps = shared_memory<float>();
    __syncthreads();
#pragma unroll
    for (int tap = 0; tap < kTapsOfGroup; ++tap) {
      float sum =
          has_results_
              ? sums[tap / Traits::kTapsOfPlane][tap / Traits::kWidth % Traits::kHeight][tap % Traits::kWidth]
              : 0.0F;
#pragma unroll
      for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(kAllLanes, sum, distance);
      }
      if (lane == 0) of_warps[warp * kTapsOfGroup + tap] = sum;
    }
    __syncthreads();
    float* const to =
        partials +
        (static_cast<int64_t>(chunk_) * parameters_.output_channels.divisor() + channel_) * Traits::kTaps;
    for (int i = static_cast<int>(threadIdx.x); i < Traits::kTaps; i += static_cast<int>(blockDim.x)) {
      const int group = i / kTapsOfGroup, tap = i % kTapsOfGroup;
      float sum = 0;
      for (int j = 0; j < warps; ++j) sum += of_warps[(group * warps + j) * kTapsOfGroup + tap];
      to[i] = sum;
    }
  }

  const SweepWeightGradParameters& parameters_;
  T* input_stages_;
  T* grad_stages_;
  int input_elements_, grad_elements_, input_place_, grad_place_;
  int chunk_, channel_, group_;
  bool has_results_;
  int first_image_, packs_, first_plane_, end_plane_, first_row_, first_column_;
  int first_input_row_, first_input_column_, offset_;
};

template <typename Traits>
__global__ void __launch_bounds__(Traits::kMostThreads, Traits::kBlocks)
    sweep_weight_grad(const typename Traits::T* __restrict__ output_grad,
                      const typename Traits::T* __restrict__ input, float* __restrict__ partials,
                      const __grid_constant__ SweepWeightGradParameters parameters) {
  SweepWeightGradBlock<Traits>(parameters).run(output_grad, input, partials);
}

template <typename Traits>
Partials launch(const WeightGrad<typename Traits::T>& pass) {
  using T = typename Traits::T;
  constexpr const char* kName = WeightGrad<T>::kName;
  const Geometry& geometry = pass.geometry;
  const int64_t planes = geometry.depth.output;
  const TileSizes tile =
      plan_tile(geometry.height.output, geometry.width.output, geometry.batch, sizeof(T), Traits::kShape);
  TileSizes grad_tile = tile;
  grad_tile.rows = tile.row_groups * Traits::kRows;
  grad_tile.pitch = result_pitch_of(tile, Traits::kShape, sizeof(T));

  SweepWeightGradParameters parameters = {};
  parameters.staged_input = StagedPlanes::of(pass.input, geometry.height.input, geometry.width.input, tile);
  parameters.staged_grad =
      StagedPlanes::of(pass.output_grad, geometry.height.output, geometry.width.output, grad_tile);
  parameters.input_planes = static_cast<int>(geometry.depth.input);
  parameters.output_planes = static_cast<int>(planes);
  parameters.output_rows = static_cast<int>(geometry.height.output);
  parameters.output_columns = static_cast<int>(geometry.width.output);
  parameters.padding_depth = static_cast<int>(geometry.depth.padding);
  parameters.origin_row = Traits::Rows::origin(static_cast<int>(geometry.height.padding));
  parameters.origin_column = Traits::Columns::origin(static_cast<int>(geometry.width.padding));
  parameters.batch = static_cast<int>(geometry.batch);
  parameters.packs = tile.packs;
  parameters.threads_of_group = tile.threads;
  constexpr int kVector = 16 / static_cast<int>(sizeof(T));
  parameters.aligned = (parameters.origin_column + Traits::Columns::kLead) % kVector == 0;
  parameters.channels = static_cast<int>(geometry.channels);
  parameters.output_channels = FastDivisor(static_cast<int>(geometry.output_channels()));
  parameters.multiplier = FastDivisor(static_cast<int>(geometry.multiplier));
  parameters.units = FastDivisor(tile.units);
  parameters.row_groups = FastDivisor(tile.row_groups);
  parameters.tiles_wide = FastDivisor(tile.tiles_wide);
  parameters.tiles_high = FastDivisor(tile.tiles_high);

  const int threads = tile.threads * Traits::kGroups;
  const int64_t tiles = ceil_divide<int64_t>(geometry.batch, tile.packs) * tile.tiles_wide * tile.tiles_high;
  const int64_t bytes = std::max<int64_t>(
      shared_bytes_of(tile, Traits::kShape, sizeof(T)),
      threads / kWarpThreads * Traits::kTaps / Traits::kGroups * static_cast<int>(sizeof(float)));
  const Occupancy device = occupancy_of(sweep_weight_grad<Traits>, threads, bytes);
  const int64_t stretch =
      planes_of_stretch(planes, geometry.output_channels() * tiles, Traits::kDepthOfGroup - 1, device);
  parameters.stretch_planes = static_cast<int>(stretch);
  const int64_t stretches = ceil_divide<int64_t>(planes, stretch);
  parameters.stretches = FastDivisor(static_cast<int>(stretches));
  const int64_t parts = tiles * stretches;
  // As many blocks as the device runs at once have the fewest sums to add up.
  const int64_t at_once = device.resident * device.multiprocessors;
  const int64_t wanted_chunks =
      std::clamp<int64_t>(ceil_divide(at_once, geometry.output_channels()), 1, parts);
  const int64_t parts_of_block = ceil_divide(parts, wanted_chunks);
  const int64_t chunks = ceil_divide(parts, parts_of_block);
  parameters.all_parts = static_cast<int>(parts);
  parameters.parts_of_block = static_cast<int>(parts_of_block);

  const Partials partials = {
      empty_workspace<float>(chunks * geometry.output_channels() * Traits::kTaps, pass.like),
      static_cast<int>(chunks)};
  const unsigned grid = grid_of(geometry.output_channels() * chunks, kName);
  sweep_weight_grad<Traits><<<grid, threads, bytes, pass.stream>>>(
      pass.output_grad, pass.input, static_cast<float*>(partials.memory.mutable_data_ptr()), parameters);
  check_launch(kName);
  return partials;
}

}  // namespace

template <typename T>
Partials launch_sweep_weight_grad(const WeightGrad<T>& pass) {
  const Extent &depth = pass.geometry.depth, &height = pass.geometry.height, &width = pass.geometry.width;
#define TORCHGRAFT_CASE(DEPTH, HEIGHT, WIDTH, STRIDE_DEPTH, STRIDE)                \
  if (depth.kernel == DEPTH && height.kernel == HEIGHT && width.kernel == WIDTH && \
      depth.stride == STRIDE_DEPTH && height.stride == STRIDE)                     \
    return launch<SweepWeightGradTraits<T, DEPTH, HEIGHT, WIDTH, STRIDE_DEPTH, STRIDE>>(pass);
  TORCHGRAFT_SWEPT(TORCHGRAFT_CASE)
#undef TORCHGRAFT_CASE
  fail(WeightGrad<T>::kName, ": no sweep is compiled for this kernel");
}

template Partials launch_sweep_weight_grad(const WeightGrad<float>&);
template Partials launch_sweep_weight_grad(const WeightGrad<Half>&);
template Partials launch_sweep_weight_grad(const WeightGrad<BFloat16>&);

}  // namespace torchgraft::depthwise::volumes
