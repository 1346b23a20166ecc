// Forward pass, and input gradient, of volumes: sweeps along depth, for halves and float32.
//
// A block owns a tile of rows and columns of one volume, or of a few small ones, and a stretch of depth. A
// thread owns some rows of neighbouring columns, and keeps the sums of all result planes in flight in
// registers: a source plane is read once and counts for each of them. Source planes come through a ring of
// four in shared memory by asynchronous copies, of which three are in flight while a fourth is used; a
// block meets once a plane.
//
// Measured on an H100 (PyTorch 2.11; floors are the time of a copy), forward: bf16 (8,54,16x56x56), k 3: 80
// us (2.8 floors), PyTorch 430; fp32 93 us (1.6), PyTorch 412; bf16 (2,32,96x96x96), k 5: 496 us, PyTorch
// 5,733; bf16 (1,32,64x64x64), k 7: 188 us, PyTorch 2,053. Instructions bound it, not memory: with k 3 there
// was another instruction for each multiply-add, with k 5 two for five; schedulers issue in 0.67 of all
// cycles, where warps wait for each other once a plane.
#include "kernels.h"
#include "staging.cuh"

#include <torchgraft/device.cuh>

namespace torchgraft::depthwise::volumes {
namespace {

constexpr int kStages = 4;

struct SweepParameters {
  StagedPlanes staged;
  int source_planes, result_planes, result_rows, result_columns;
  int padding_depth, origin_row, origin_column;
  int volumes, packs;
  int stretch_planes;
  int step_column;  // sources from tile to tile
  int step_row;
  int store_elements;  // that are stored at once
  bool aligned;        // whether windows begin where pieces can be read
  bool turned;         // whether the kernel is turned around
  FastDivisor channels, multiplier, units, row_groups, tiles_wide, tiles_high, stretches;
};

template <typename T_, int kDepth_, int kHeight_, int kWidth_, int kStrideDepth_, int kStride_,
          bool kTransposed_>
struct SweepTraits {
  using T = T_;
  static constexpr int kDepth = kDepth_, kHeight = kHeight_, kWidth = kWidth_;
  static constexpr int kStrideDepth = kStrideDepth_, kStride = kStride_;
  static constexpr bool kTransposed = kTransposed_;

  static constexpr int kTaps = kDepth * kHeight * kWidth;
  // Up to 27 weights stay in registers. Others are read from shared memory, four at a time.
  static constexpr bool kKeepsWeights = kTaps <= 27;

  // Eight results, or sixteen where few planes are in flight or a source counts for few: more sums would
  // leave registers for too few warps.
  static constexpr int kResults = kTransposed || kDepth == 1 ? 16 : 8;
  // Sixteen bytes of a row where its results are many; else rows share the rows of their sources.
  static constexpr bool kIsSparse = kStride > 1 && !kTransposed;
  static constexpr bool kIsSquare = kKeepsWeights && kHeight > 1 && kResults == 8;
  static constexpr int kColumns = sizeof(T) == 2 && !kIsSparse && !kIsSquare ? 8 : 4;
  static constexpr int kRows = kResults / kColumns;
  using Columns = Reach<kWidth, kStride, kTransposed, kColumns>;
  using Rows = Reach<kHeight, kStride, kTransposed, kRows>;

  using Depth = DepthReach<kDepth, kStrideDepth, kTransposed>;

  // Blocks of a multiprocessor: 80 registers a thread, or 128.
  static constexpr int kMostThreads = 256, kBlocks = kTransposed || kDepth > 5 ? 2 : 3;
  static constexpr int kWeightPitch = round_up(kWidth, 4);
  static constexpr int kWeights = kDepth * kHeight * kWeightPitch;

  static constexpr ThreadShape kShape = {.columns = kColumns,
                                         .rows = kRows,
                                         .step_columns = Columns::kStep,
                                         .step_rows = Rows::kStep,
                                         .source_columns = Columns::kSources,
                                         .source_rows = Rows::kSources,
                                         .most_threads = kMostThreads,
                                         .most_units = kIsSparse ? 16 : 32,
                                         .most_packs = 16,
                                         .source_stages = kStages,
                                         .result_stages = 0,
                                         .pack_bytes = kWeights * static_cast<int>(sizeof(float))};
};

template <typename Traits>
class SweepBlock {
 public:
  using T = typename Traits::T;
  using Depth = typename Traits::Depth;
  using Columns = typename Traits::Columns;
  using Rows = typename Traits::Rows;
  using Reader = RowReader<T, Columns>;
  using Sums = float[Depth::kSlots][Traits::kRows][Traits::kColumns];
  using KeptWeights = float[Traits::kDepth][Traits::kHeight][Traits::kWidth];
  static constexpr int kVector = 16 / static_cast<int>(sizeof(T));

  __device__ explicit SweepBlock(const SweepParameters& parameters) : parameters_(parameters) {}

  __device__ void run(const T* source, const Rounded<T>& weight, const Rounded<T>& bias, T* result) {
    find_tile();
    find_thread();
    clear_shared(stages_, kStages * stage_elements_ * static_cast<int>(sizeof(T)));
    __syncthreads();
    const typename Depth::Stretch stretch(first_plane_, end_plane_, parameters_.padding_depth,
                                          parameters_.source_planes);
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) copy(source, stretch.first_source + i, i, stretch.end_source);
    // Weights come while the first planes are under way.
    load_weights(weight);
    const float first_sum = bias.or_zero(true, channel_of(first_volume_ + pack_));
    __syncthreads();
    sweep(source, stretch, first_sum, result);
  }

 private:
  // The volumes, the rows and columns and the stretch of depth of this block.
  __device__ void find_tile() {
    int rest = static_cast<int>(blockIdx.x);
    const auto next = [&rest](const FastDivisor& count) {
      const int quotient = count.divide(rest), index = rest - quotient * count.divisor();
      rest = quotient;
      return index;
    };
    const int tile_column = next(parameters_.tiles_wide), tile_row = next(parameters_.tiles_high);
    const int stretch = next(parameters_.stretches);
    first_volume_ = rest * parameters_.packs;
    packs_ = min(parameters_.packs, parameters_.volumes - first_volume_);
    first_plane_ = stretch * parameters_.stretch_planes;
    end_plane_ = min(first_plane_ + parameters_.stretch_planes, parameters_.result_planes);
    tile_row_ = tile_row * parameters_.row_groups.divisor();
    tile_unit_ = tile_column * parameters_.units.divisor();
    first_source_row_ = parameters_.origin_row + tile_row_ * Rows::kStep;
    const int column = parameters_.origin_column + tile_unit_ * Columns::kStep;
    first_source_column_ = floor_divide(column, kVector) * kVector;
    offset_ = column - first_source_column_;
    stage_elements_ = parameters_.packs * parameters_.staged.staged_rows * parameters_.staged.pitch;
    weights_ = shared_memory<float>();
    stages_ = reinterpret_cast<T*>(weights_ + parameters_.packs * Traits::kWeights);
  }

  // The results of this thread. One that has none computes what the first thread does.
  __device__ void find_thread() {
    const int thread = static_cast<int>(threadIdx.x);
    const int rest = parameters_.units.divide(thread);
    int unit = thread - rest * parameters_.units.divisor();
    pack_ = parameters_.row_groups.divide(rest);
    int group = rest - pack_ * parameters_.row_groups.divisor();
    row_ = (tile_row_ + group) * Traits::kRows;
    column_ = (tile_unit_ + unit) * Traits::kColumns;
    is_active_ = pack_ < packs_ && row_ < parameters_.result_rows && column_ < parameters_.result_columns;
    if (!is_active_) pack_ = group = unit = 0;
    place_ = (pack_ * parameters_.staged.staged_rows + group * Rows::kStep) * parameters_.staged.pitch +
             offset_ + Columns::kLead + unit * Columns::kStep;
  }

  __device__ int channel_of(int volume) const {
    return volume - parameters_.channels.divide(volume) * parameters_.channels.divisor();
  }

  __device__ void load_weights(const Rounded<T>& weight) {
    for (int i = static_cast<int>(threadIdx.x); i < packs_ * Traits::kWeights;
         i += static_cast<int>(blockDim.x)) {
      const int pack = i / Traits::kWeights, place = i % Traits::kWeights;
      const int column = place % Traits::kWeightPitch;
      int tap = place / Traits::kWeightPitch * Traits::kWidth + column;
      if (parameters_.turned) tap = Traits::kTaps - 1 - tap;
      weights_[i] = column < Traits::kWidth
                        ? weight[int64_t{channel_of(first_volume_ + pack)} * Traits::kTaps + tap]
                        : 0.0F;
    }
  }

  __device__ void sweep(const T* source, const typename Depth::Stretch& stretch, float first_sum, T* result) {
    KeptWeights kept;
    const float* const weights = weights_ + pack_ * Traits::kWeights;
    if constexpr (Traits::kKeepsWeights) {
#pragma unroll
      for (int i = 0; i < Traits::kTaps; ++i) {
        const int width = i % Traits::kWidth, row = i / Traits::kWidth;
        kept[row / Traits::kHeight][row % Traits::kHeight][width] =
            weights[row * Traits::kWeightPitch + width];
      }
    }
    Sums sums;
#pragma unroll
    for (int slot = 0; slot < Depth::kSlots; ++slot) start(sums[slot], first_sum);

    const int padding = parameters_.padding_depth;
    const int first_source = stretch.first_source, end_source = stretch.end_source;
    int plane = first_source;
    for (int step = stretch.first_step; step < stretch.end_step; ++step) {
#pragma unroll
      for (int i = 0; i < Depth::kPlanes; ++i, ++plane) {
        const int number = plane - first_source;
        wait_for_copies<kStages - 2>();
        __syncthreads();
        copy(source, plane + kStages - 1, (number + kStages - 1) % kStages, end_source);
        if (plane >= 0 && plane < end_source) {
          const T* const staged = stages_ + number % kStages * stage_elements_ + place_;
          parameters_.aligned ? add_plane<true>(staged, i, kept, weights, sums)
                              : add_plane<false>(staged, i, kept, weights, sums);
        }
      }
#pragma unroll
      for (int slot = 0; slot < Depth::kDone; ++slot) {
        const int done = Depth::result(step, slot, padding);
        if (done >= first_plane_ && done < end_plane_) store(result, done, sums[slot]);
      }
#pragma unroll
      for (int slot = 0; slot < Depth::kSlots; ++slot) {
        if (slot + Depth::kDone < Depth::kSlots) {
#pragma unroll
          for (int row = 0; row < Traits::kRows; ++row) {
#pragma unroll
            for (int column = 0; column < Traits::kColumns; ++column) {
              sums[slot][row][column] = sums[slot + Depth::kDone][row][column];
            }
          }
        } else {
          start(sums[slot], first_sum);
        }
      }
    }
  }

  __device__ static void start(float (&sums)[Traits::kRows][Traits::kColumns], float first_sum) {
#pragma unroll
    for (int row = 0; row < Traits::kRows; ++row) {
#pragma unroll
      for (int column = 0; column < Traits::kColumns; ++column) sums[row][column] = first_sum;
    }
  }

  // Every step ends a group of copies, if only an empty one.
  __device__ void copy(const T* source, int plane, int stage, int end_source) const {
    if (plane >= 0 && plane < end_source) {
      const int64_t of_plane = static_cast<int64_t>(parameters_.staged.rows) * parameters_.staged.columns;
      const auto plane_of = [&](int pack) {
        const int volume = parameters_.multiplier.divide(first_volume_ + pack);
        return source + (static_cast<int64_t>(volume) * parameters_.source_planes + plane) * of_plane;
      };
      copy_plane(stages_ + stage * stage_elements_, plane_of, packs_, first_source_row_, first_source_column_,
                 parameters_.staged);
    }
    commit_copies();
  }

  // Adds what a source plane, one of those of a step, counts for all results in flight.
  template <bool kAligned>
  __device__ void add_plane(const T* plane, int of_step, const KeptWeights& kept, const float* weights,
                            Sums& sums) const {
    const int pitch = parameters_.staged.pitch;
    if constexpr (Traits::kKeepsWeights || Traits::kTransposed) {
#pragma unroll
      for (int source_row = 0; source_row < Rows::kSources; ++source_row) {
        float sources[Columns::kSources];
        Reader::read(plane + source_row * pitch, kAligned, sources);
#pragma unroll
        for (int row = 0; row < Traits::kRows; ++row) {
          if (!Rows::meets(source_row, row)) continue;
          add_row(sources, row, Rows::tap(source_row, row), of_step, kept, weights, sums);
        }
      }
    } else {
      // More instructions than the first instruction cache holds, if this were unrolled.
#pragma unroll 1
      for (int tap = 0; tap < Traits::kHeight; ++tap) {
#pragma unroll
        for (int row = 0; row < Traits::kRows; ++row) {
          float sources[Columns::kSources];
          Reader::read(plane + (row * Traits::kStride + tap) * pitch, kAligned, sources);
          add_row(sources, row, tap, of_step, kept, weights, sums);
        }
      }
    }
  }

  __device__ void add_row(const float (&sources)[Columns::kSources], int row, int height_tap, int of_step,
                          const KeptWeights& kept, const float* weights, Sums& sums) const {
#pragma unroll
    for (int slot = 0; slot < Depth::kSlots; ++slot) {
      const int depth_tap = Depth::tap(slot, of_step);
      if (depth_tap >= Traits::kDepth) continue;
      float taps[Traits::kWeightPitch];
      if constexpr (Traits::kKeepsWeights) {
#pragma unroll
        for (int i = 0; i < Traits::kWidth; ++i) taps[i] = kept[depth_tap][height_tap][i];
      } else {
        const float* const from = weights + (depth_tap * Traits::kHeight + height_tap) * Traits::kWeightPitch;
#pragma unroll
        for (int i = 0; i < Traits::kWeightPitch; i += 4) {
          const float4 four = *reinterpret_cast<const float4*>(from + i);
          taps[i] = four.x, taps[i + 1] = four.y, taps[i + 2] = four.z, taps[i + 3] = four.w;
        }
      }
#pragma unroll
      for (int source = 0; source < Columns::kSources; ++source) {
#pragma unroll
        for (int column = 0; column < Traits::kColumns; ++column) {
          if (!Columns::meets(source, column)) continue;
          float& sum = sums[slot][row][column];
          sum = fmaf(sources[source], taps[Columns::tap(source, column)], sum);
        }
      }
    }
  }

  __device__ void store(T* result, int plane, const float (&sums)[Traits::kRows][Traits::kColumns]) const {
    if (!is_active_) return;
    const int columns = parameters_.result_columns;
    const int64_t planes_before =
        static_cast<int64_t>(first_volume_ + pack_) * parameters_.result_planes + plane;
    T* const to = result + (planes_before * parameters_.result_rows + row_) * columns + column_;
#pragma unroll
    for (int row = 0; row < Traits::kRows; ++row) {
      if (row_ + row >= parameters_.result_rows) break;
      T* const to_row = to + row * columns;
      if (parameters_.store_elements == Traits::kColumns) {
        Packed<T, Traits::kColumns>(sums[row]).store(to_row);
      } else if (parameters_.store_elements >= 2) {
        store_pieces<2>(to_row, sums[row]);
      } else {
        store_pieces<1>(to_row, sums[row]);
      }
    }
  }

  template <int kElements>
  __device__ void store_pieces(T* to, const float (&sums)[Traits::kColumns]) const {
#pragma unroll
    for (int column = 0; column < Traits::kColumns; column += kElements) {
      if (column_ + column >= parameters_.result_columns) break;
      float values[kElements];
#pragma unroll
      for (int i = 0; i < kElements; ++i) values[i] = sums[column + i];
      Packed<T, kElements>(values).store(to + column);
    }
  }

  const SweepParameters& parameters_;
  float* weights_;
  T* stages_;
  int stage_elements_;
  int first_volume_, packs_, first_plane_, end_plane_, tile_row_, tile_unit_;
  int first_source_row_, first_source_column_, offset_;
  int pack_, row_, column_, place_;
  bool is_active_;
};

template <typename Traits>
__global__ void __launch_bounds__(Traits::kMostThreads, Traits::kBlocks)
    sweep_correlate(const typename Traits::T* __restrict__ source, Rounded<typename Traits::T> weight,
                    Rounded<typename Traits::T> bias, typename Traits::T* __restrict__ result,
                    const __grid_constant__ SweepParameters parameters) {
  SweepBlock<Traits>(parameters).run(source, weight, bias, result);
}

template <typename Traits>
void launch(const Correlation<typename Traits::T>& pass) {
  using T = typename Traits::T;
  const Geometry& geometry = pass.geometry;
  const auto sources = [&](const Extent& extent) { return pass.transposed ? extent.output : extent.input; };
  const auto results = [&](const Extent& extent) { return pass.transposed ? extent.input : extent.output; };
  const bool turned = pass.transposed && !Traits::kTransposed;
  const int64_t volumes = geometry.batch * pass.result_channels();
  const int64_t rows = results(geometry.height), columns = results(geometry.width);
  const TileSizes tile = plan_tile(rows, columns, volumes, sizeof(T), Traits::kShape);

  SweepParameters parameters = {};
  parameters.staged = StagedPlanes::of(pass.source, sources(geometry.height), sources(geometry.width), tile);
  parameters.source_planes = static_cast<int>(sources(geometry.depth));
  parameters.result_planes = static_cast<int>(results(geometry.depth));
  parameters.result_rows = static_cast<int>(rows);
  parameters.result_columns = static_cast<int>(columns);
  parameters.padding_depth = padding_of(geometry.depth, turned);
  parameters.origin_row = Traits::Rows::origin(padding_of(geometry.height, turned));
  parameters.origin_column = Traits::Columns::origin(padding_of(geometry.width, turned));
  parameters.volumes = static_cast<int>(volumes);
  parameters.packs = tile.packs;
  parameters.turned = turned;
  constexpr int kVector = 16 / static_cast<int>(sizeof(T));
  parameters.aligned = (parameters.origin_column + Traits::Columns::kLead) % kVector == 0;
  parameters.store_elements = 1;
  for (const int elements : {2, Traits::kColumns}) {
    if (columns % elements == 0 && is_aligned(pass.result, elements * sizeof(T))) {
      parameters.store_elements = elements;
    }
  }
  parameters.channels = FastDivisor(static_cast<int>(pass.result_channels()));
  parameters.multiplier = FastDivisor(static_cast<int>(geometry.multiplier));
  parameters.units = FastDivisor(tile.units);
  parameters.row_groups = FastDivisor(tile.row_groups);
  parameters.tiles_wide = FastDivisor(tile.tiles_wide);
  parameters.tiles_high = FastDivisor(tile.tiles_high);

  const int64_t blocks_of_depth =
      ceil_divide<int64_t>(volumes, tile.packs) * tile.tiles_wide * tile.tiles_high;
  const int64_t bytes = shared_bytes_of(tile, Traits::kShape, sizeof(T));
  const int64_t stretch =
      planes_of_stretch(parameters.result_planes, blocks_of_depth, Traits::Depth::kSlots - 1,
                        occupancy_of(sweep_correlate<Traits>, tile.threads, bytes));
  parameters.stretch_planes = static_cast<int>(stretch);
  const int64_t stretches = ceil_divide<int64_t>(parameters.result_planes, stretch);
  parameters.stretches = FastDivisor(static_cast<int>(stretches));

  const unsigned grid = grid_of(blocks_of_depth * stretches, pass.name());
  sweep_correlate<Traits><<<grid, tile.threads, bytes, pass.stream>>>(pass.source, pass.weight, pass.bias,
                                                                      pass.result, parameters);
  check_launch(pass.name());
}

}  // namespace

template <typename T>
void launch_sweep(const Correlation<T>& pass) {
  const Extent &depth = pass.geometry.depth, &height = pass.geometry.height, &width = pass.geometry.width;
#define TORCHGRAFT_CASE(DEPTH, HEIGHT, WIDTH, STRIDE_DEPTH, STRIDE)                                \
  if (depth.kernel == DEPTH && height.kernel == HEIGHT && width.kernel == WIDTH &&                 \
      depth.stride == STRIDE_DEPTH && height.stride == STRIDE) {                                   \
    constexpr bool kIsStrided = STRIDE_DEPTH > 1 || STRIDE > 1;                                    \
    if (kIsStrided && pass.transposed)                                                             \
      return launch<SweepTraits<T, DEPTH, HEIGHT, WIDTH, STRIDE_DEPTH, STRIDE, kIsStrided>>(pass); \
    return launch<SweepTraits<T, DEPTH, HEIGHT, WIDTH, STRIDE_DEPTH, STRIDE, false>>(pass);        \
  }
  TORCHGRAFT_SWEPT(TORCHGRAFT_CASE)
#undef TORCHGRAFT_CASE
  fail(pass.name(), ": no sweep is compiled for this kernel");
}

template void launch_sweep(const Correlation<float>&);
template void launch_sweep(const Correlation<Half>&);
template void launch_sweep(const Correlation<BFloat16>&);

}  // namespace torchgraft::depthwise::volumes
