// Weight gradient of volumes, first pass: sweeps along depth, for halves and float32.
//
// A block owns one output channel and a part of its work: tiles of rows and columns of one volume, or of a
// few small ones, times a stretch of depth. It has as many groups of warps as the kernel is deep. A group
// owns the taps of one plane of the kernel, and a thread some neighbouring output gradients of a plane: it
// multiplies them by the inputs under each of these taps, and keeps the sums of the taps in registers for all
// of the block's work. At each step a plane of output gradients meets as many planes of the input as the
// kernel is deep; both come through rings in shared memory by asynchronous copies, two steps ahead.
//
// At the end the threads of a warp, then the warps of a group are added up in a fixed order, and a second
// kernel adds up the blocks: the bits are the same at each run.
//
// Predicted on an H100, bf16, X3D (8,54,16x56x56), k 3: 585 M multiply-adds and 40 % more for loads and
// conversions, 28 us, and 36 of memory. With k = 5 and 7 multiply-adds bound, as forward.
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
  static constexpr int kColumns = sizeof(T) == 2 && kStride == 1 ? 8 : 4;
  static constexpr int kRows = kHeight == 1 ? 2 : 4;
  using Columns = Reach<kWidth, kStride, false, kColumns>;
  using Rows = Reach<kHeight, kStride, false, kRows>;
  static constexpr int kTapsOfPlane = kHeight * kWidth;
  static constexpr int kTaps = kDepth * kTapsOfPlane;

  static constexpr int kInputStages = kDepth + kAhead * kStrideDepth, kGradStages = kAhead + 1;
  static constexpr int kMostThreads = 256;  // of a block
  static constexpr int kMostOfGroup = kMostThreads / kDepth / kWarpThreads * kWarpThreads;
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
  using Sums = float[Traits::kHeight][Traits::kWidth];
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
    // The planes of the first step, and of each further one those that are new.
    for (int i = 0; i < Traits::kDepth - Traits::kStrideDepth; ++i) copy_input(input, first_input, i);
#pragma unroll
    for (int ahead = 0; ahead < kAhead; ++ahead) copy_step(output_grad, input, first_input, ahead);
    for (int step = 0; step < end_plane_ - first_plane_; ++step) {
      wait_for_copies<kAhead - 1>();
      __syncthreads();
      copy_step(output_grad, input, first_input, step + kAhead);
      const int number = step * Traits::kStrideDepth + group_;
      if (is_inside(first_input + number, parameters_.input_planes)) {
        add_plane(grad_stages_ + step % Traits::kGradStages * grad_elements_ + grad_place_,
                  input_stages_ + number % Traits::kInputStages * input_elements_ + input_place_ + offset_,
                  sums);
      }
    }
    wait_for_copies<0>();
  }

  __device__ void copy_step(const T* output_grad, const T* input, int first_input, int step) const {
    const int plane = first_plane_ + step;
    if (plane < end_plane_) {
#pragma unroll
      for (int i = 0; i < Traits::kStrideDepth; ++i) {
        copy_input(input, first_input,
                   Traits::kDepth - Traits::kStrideDepth + step * Traits::kStrideDepth + i);
      }
      const StagedPlanes& staged = parameters_.staged_grad;
      const int64_t of_plane = static_cast<int64_t>(staged.rows) * staged.columns;
      const auto plane_of = [&](int pack) {
        const int64_t volume =
            static_cast<int64_t>(first_image_ + pack) * parameters_.output_channels.divisor() + channel_;
        return output_grad + (volume * parameters_.output_planes + plane) * of_plane;
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

  // Multiplies the thread's output gradients by the inputs under each tap of the group.
  __device__ void add_plane(const T* grad_plane, const T* input_plane, Sums& sums) const {
    float grads[Traits::kRows][Traits::kColumns];
#pragma unroll
    for (int row = 0; row < Traits::kRows; ++row) {
      GradReader::read(grad_plane + row * parameters_.staged_grad.pitch, true, grads[row]);
    }
#pragma unroll
    for (int input_row = 0; input_row < Rows::kSources; ++input_row) {
      float inputs[Columns::kSources];
      Reader::read(input_plane + input_row * parameters_.staged_input.pitch, parameters_.aligned, inputs);
#pragma unroll
      for (int row = 0; row < Traits::kRows; ++row) {
        if (!Rows::meets(input_row, row)) continue;
#pragma unroll
        for (int column = 0; column < Traits::kColumns; ++column) {
#pragma unroll
          for (int tap = 0; tap < Traits::kWidth; ++tap) {
            float& sum = sums[Rows::tap(input_row, row)][tap];
            sum = fmaf(grads[row][column], inputs[column * Traits::kStride + tap], sum);
          }
        }
      }
    }
  }

  // Adds up the sums of each tap over the threads of a group, in a fixed order.
  __device__ void add_up(Sums& sums, float* partials) const {
    constexpr unsigned kAllLanes = 0xffffffff;
    const int warps = parameters_.threads_of_group / kWarpThreads;
    const int warp = static_cast<int>(threadIdx.x) / kWarpThreads, lane = threadIdx.x % kWarpThreads;
    float* const of_warps = shared_memory<float>();
    __syncthreads();
#pragma unroll
    for (int tap = 0; tap < Traits::kTapsOfPlane; ++tap) {
      float sum = has_results_ ? sums[tap / Traits::kWidth][tap % Traits::kWidth] : 0.0F;
#pragma unroll
      for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(kAllLanes, sum, distance);
      }
      if (lane == 0) of_warps[warp * Traits::kTapsOfPlane + tap] = sum;
    }
    __syncthreads();
    float* const to =
        partials +
        (static_cast<int64_t>(chunk_) * parameters_.output_channels.divisor() + channel_) * Traits::kTaps;
    for (int i = static_cast<int>(threadIdx.x); i < Traits::kTaps; i += static_cast<int>(blockDim.x)) {
      const int group = i / Traits::kTapsOfPlane, tap = i % Traits::kTapsOfPlane;
      float sum = 0;
      for (int j = 0; j < warps; ++j) sum += of_warps[(group * warps + j) * Traits::kTapsOfPlane + tap];
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
__global__ void __launch_bounds__(Traits::kMostThreads)
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
  grad_tile.pitch = tile.units * Traits::kColumns;

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

  const int threads = tile.threads * Traits::kDepth;
  const int64_t tiles = ceil_divide<int64_t>(geometry.batch, tile.packs) * tile.tiles_wide * tile.tiles_high;
  constexpr int64_t kWarpsOfMultiprocessor = 48;
  const int64_t wanted = current_device().multiprocessors * kWarpsOfMultiprocessor * kWarpThreads / threads;
  const int64_t stretch =
      planes_of_stretch(planes, geometry.output_channels() * tiles, wanted, std::max(4, 2 * Traits::kDepth));
  parameters.stretch_planes = static_cast<int>(stretch);
  const int64_t stretches = ceil_divide<int64_t>(planes, stretch);
  parameters.stretches = FastDivisor(static_cast<int>(stretches));
  const int64_t parts = tiles * stretches;
  const int64_t wanted_chunks =
      std::clamp<int64_t>(ceil_divide(wanted, geometry.output_channels()), 1, parts);
  const int64_t parts_of_block = ceil_divide(parts, wanted_chunks);
  const int64_t chunks = ceil_divide(parts, parts_of_block);
  parameters.all_parts = static_cast<int>(parts);
  parameters.parts_of_block = static_cast<int>(parts_of_block);

  const int64_t bytes =
      std::max<int64_t>(shared_bytes_of(tile, Traits::kShape, sizeof(T)),
                        threads / kWarpThreads * Traits::kTapsOfPlane * static_cast<int>(sizeof(float)));
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
