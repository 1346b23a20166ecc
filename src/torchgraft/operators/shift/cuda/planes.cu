// Contiguous images whose rows are not long: tiles of rows through shared memory.
//
// A block takes tiles of planes in turn. The source rows of a tile come into shared memory as one run,
// sixteen bytes a copy wherever a row begins, the next tile's while this one is computed; rows outside the
// plane are zeros there. A thread owns five columns of some rows and slides down: it reads and widens a
// source row once, for two rows of results. Results leave through shared memory too, sixteen bytes a store.
// The backward passes also bring the input at the results. A block has one to four warps, so that a tile
// gives each thread a dozen rows: what a thread does once a tile costs as much as three rows.
//
// Bytes: each source once, but for one row a tile, and each result once. Of (128,64,300,25) the floors on an
// H200 are 115 us forward and 172 backward in fp32, and half of that in halves. Predicted: 128 and 200,
// halves 69 and 110. Measured: 144 and 214, halves 76 and 120. docs/shift.md says what bounds it.

#include <torchgraft/async_copy.cuh>

#include <cstdint>

#include "kernels.h"
#include "planes_rows.cuh"
#include "planes_tile.cuh"
#include "supports.h"
#include "taps.cuh"

namespace torchgraft::shift::cuda {
namespace {

// Blocks that a multiprocessor takes at once. 7.5 and 8.6 take 16, and nvcc refuses to compile a kernel for
// them that asks for more; on 9.0 asking for 16 makes the smallest blocks up to 1.35 times as slow.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900)
constexpr int kMostBlocks = 32;
#else
constexpr int kMostBlocks = 16;
#endif

// Blocks of a multiprocessor for which its registers must suffice.
constexpr int least_blocks(int element_bytes, Pass pass, int threads) {
  const int blocks = planes_resident_threads(element_bytes, pass) / threads;
  return blocks < kMostBlocks ? blocks : kMostBlocks;
}

// A block takes tiles in turn: it copies one while it computes another.
template <typename T, Pass kPass, bool kStrided, int kThreads>
class PlanesBlock {
 public:
  using A = accumulate_t<T>;
  static constexpr int kTiles = 2 * kTilesAhead;  // that are worked out
  static constexpr int kWarpSums = 2 * kThreads / 32;

  // The tiles and the sums of warps lie in shared memory.
  __device__ PlanesBlock(const T* source, const T* input, const T* x_offset, const T* y_offset, T* result,
                         A* partial, PlanesTile<T>* tiles, A* warp_sums, const PlanesParameters& parameters)
      : source_(source),
        input_(input),
        x_offset_(x_offset),
        y_offset_(y_offset),
        result_(result),
        partial_(partial),
        tiles_(tiles),
        warp_sums_(warp_sums),
        parameters_(parameters),
        stages_(shared_memory<T>()),
        results_(stages_ + kStages * parameters.stage_elements),
        first_(static_cast<int>(blockIdx.x)),
        pitch_(static_cast<int>(gridDim.x)),
        count_(ceil_divide(parameters.tile_count - first_, pitch_)) {}

  __device__ void run() {
    static_assert(kStages < kTilesAhead);
    static_assert(kTiles <= 32, "a warp works out tiles");
    make_tiles(0, kTiles);
    __syncthreads();
#pragma unroll 1
    for (int slot = 0; slot < kStages; ++slot) begin_copies(slot, slot);
    int slot = 0;
#pragma unroll 1
    for (int index = 0; index < count_; ++index) {
      const PlanesTile<T>& tile = tiles_[index % kTiles];
      T* const stage = stages_ + slot * parameters_.stage_elements;
      wait_for_copies<kStages - 1>();
      clear_others<kThreads>(tile, stage);
      __syncthreads();
      // The block has used up half of the tiles that it knows: those after the other half take their place.
      if (index > 0 && index % kTilesAhead == 0) make_tiles(index + kTilesAhead, kTilesAhead);
      TapSums<A> sums;
      take_tile(tile, stage, sums);
      if constexpr (kSums) add_up_warp(tile, sums);
      __syncthreads();
      // Nobody reads this stage any more, and the results are complete.
      begin_copies(index + kStages, slot);
      slot = slot + 1 < kStages ? slot + 1 : 0;
      if constexpr (kImages) {
        store_results<kThreads>(result_ + tile.first_result, results_, tile.lead,
                                tile.rows * parameters_.width);
      }
      if (kSums && threadIdx.x < 2) store_sum(tile);
    }
  }

 private:
  static constexpr bool kTransposed = is_transposed(kPass);
  static constexpr bool kImages = has_images(kPass);
  static constexpr bool kSums = has_sums(kPass);
  static constexpr bool kFromOneRow = kTransposed && kStrided;
  using Sources = PlanesRowReader<T, kColumns + 1>;
  using Inputs = PlanesRowReader<T, kColumns>;

  __device__ int stride() const { return kStrided ? parameters_.stride.divisor() : 1; }

  // Works out `count` of the block's tiles from `from` on, a tile a thread.
  __device__ void make_tiles(int from, int count) {
    const int index = from + static_cast<int>(threadIdx.x);
    if (static_cast<int>(threadIdx.x) < count && index < count_) {
      tiles_[index % kTiles] = make_tile<T, kPass, kStrided>(first_ + index * pitch_, source_, input_,
                                                             result_, x_offset_, y_offset_, parameters_);
    }
  }

  __device__ void begin_copies(int index, int slot) {
    if (index < count_) {
      copy_tile<kSums, kThreads>(source_, input_, tiles_[index % kTiles],
                                 stages_ + slot * parameters_.stage_elements, parameters_);
    }
    commit_copies();
  }

  // Computes this thread's part of a tile: some rows of some chunks of five columns.
  __device__ void take_tile(const PlanesTile<T>& tile, const T* stage, TapSums<A>& sums) {
    const bool is_blend =
        !kImages || (tile.upper != 0 && tile.lower != 0 && tile.left != 0 && tile.right != 0);
#pragma unroll 1
    for (int item = threadIdx.x;; item += kThreads) {
      const int group = parameters_.chunks.divide(item);
      const int first_row = group * parameters_.rows;
      if (first_row >= tile.rows) break;
      const int first_column = (item - group * parameters_.chunks.divisor()) * kColumns;
      if (is_blend) {
        take_rows<false>(tile, stage, first_row, first_column, sums);
      } else if constexpr (kImages) {
        take_rows<true>(tile, stage, first_row, first_column, sums);
      }
    }
  }

  // Some rows of five columns, and the place of the next row's results.
  struct Rows {
    int count;
    int columns;  // up to the image's end, if less than kColumns
    int place;
  };

  // Computes some rows of five columns, downwards. kSelect: a weight may be zero, and the source that it
  // weighs be NaN.
  template <bool kSelect>
  __device__ void take_rows(const PlanesTile<T>& tile, const T* stage, int first_row, int first_column,
                            TapSums<A>& sums) {
    const int width = parameters_.width;
    Rows rows;
    rows.count = min(parameters_.rows, tile.rows - first_row);
    rows.columns = width - first_column;
    const int first_of_tile = first_row * width + first_column;
    const int column = first_column + tile.column;
    int source_row = first_row * stride();
    int phase = 0;
    if constexpr (kFromOneRow) {
      const int distance = tile.phase + first_row;
      source_row = parameters_.stride.divide(distance);
      phase = distance - source_row * stride();
    }
    Sources sources(stage, tile.place + source_row * width + column, column, width);
    Inputs inputs(stage, parameters_.input_place + tile.input_lead + first_of_tile, first_column, width);
    rows.place = tile.lead + first_of_tile;
    if constexpr (kFromOneRow) {
      take_rows_from_one<kSelect>(tile, rows, phase, sources, inputs, sums);
    } else {
      take_rows_from_two<kSelect>(tile, rows, sources, inputs, sums);
    }
  }

  __device__ void put(Rows& rows, const A (&values)[kColumns]) {
    write_row(results_, rows.place, values, rows.columns);
    rows.place += parameters_.width;
  }

  __device__ void read_input(Inputs& inputs, A (&pixels)[kColumns]) {
    inputs.read(pixels);
    inputs.advance(parameters_.width);
  }

  // The transpose with a stride: a row of results lies on one row of sources, or on none. `phase` counts the
  // rows of results since the one whose lower source is this row.
  template <bool kSelect>
  __device__ void take_rows_from_one(const PlanesTile<T>& tile, Rows& rows, int phase, Sources& sources,
                                     Inputs& inputs, TapSums<A>& sums) {
    const A left = tile.left;
    const A right = tile.right;
    const A upper = tile.upper;
    const A lower = tile.lower;
#pragma unroll 1
    for (int row = 0; row < rows.count; ++row) {
      A neighbours[kColumns + 1];
      sources.read(neighbours);
      if constexpr (kImages) {
        const A weight = phase == 1 ? upper : lower;
        const bool is_row_read = phase < 2 && (!kSelect || weight != 0);
        const uint32_t left_mask = mask_of(is_row_read && (!kSelect || left != 0));
        const uint32_t right_mask = mask_of(is_row_read && (!kSelect || right != 0));
        A values[kColumns];
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
          const A blended =
              left * take(neighbours[i], left_mask) + right * take(neighbours[i + 1], right_mask);
          values[i] = weight * blended;
        }
        put(rows, values);
      }
      if constexpr (kSums) {
        A pixels[kColumns];
        read_input(inputs, pixels);
        A on_left = 0;
        A on_right = 0;
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
          on_left += pixels[i] * neighbours[i];
          on_right += pixels[i] * neighbours[i + 1];
        }
        if (phase == 0) {
          sums.lower_left += on_left;
          sums.lower_right += on_right;
        } else if (phase == 1) {
          sums.upper_left += on_left;
          sums.upper_right += on_right;
        }
      }
      if (++phase == stride()) {
        phase = 0;
        sources.advance(parameters_.width);
      }
    }
  }

  // A row of results lies between two rows of sources. Without a stride the lower one is the next row's upper
  // one, and is read once.
  template <bool kSelect>
  __device__ void take_rows_from_two(const PlanesTile<T>& tile, Rows& rows, Sources& sources, Inputs& inputs,
                                     TapSums<A>& sums) {
    const int width = parameters_.width;
    const A left = tile.left;
    const A right = tile.right;
    const A upper = tile.upper;
    const A lower = tile.lower;
    [[maybe_unused]] uint32_t is_read[4] = {};
    if constexpr (kSelect) {
      is_read[0] = mask_of(upper != 0 && left != 0);
      is_read[1] = mask_of(upper != 0 && right != 0);
      is_read[2] = mask_of(lower != 0 && left != 0);
      is_read[3] = mask_of(lower != 0 && right != 0);
    }
    const auto product = [](A weight, A value, uint32_t mask) {
      return weight * (kSelect ? take(value, mask) : value);
    };
    [[maybe_unused]] const A upper_left = upper * left;
    [[maybe_unused]] const A upper_right = upper * right;
    [[maybe_unused]] const A lower_left = lower * left;
    [[maybe_unused]] const A lower_right = lower * right;
    A above[kColumns + 1];
    if constexpr (!kStrided) sources.read(above);
#pragma unroll 2
    for (int row = 0; row < rows.count; ++row) {
      if constexpr (kStrided) sources.read(above);
      sources.advance(width);
      A below[kColumns + 1];
      sources.read(below);
      if constexpr (kImages) {
        A values[kColumns];
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
          values[i] =
              product(upper_left, above[i], is_read[0]) + product(upper_right, above[i + 1], is_read[1]) +
              product(lower_left, below[i], is_read[2]) + product(lower_right, below[i + 1], is_read[3]);
        }
        put(rows, values);
      }
      if constexpr (kSums) {
        A pixels[kColumns];
        read_input(inputs, pixels);
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
          sums.upper_left += pixels[i] * above[i];
          sums.upper_right += pixels[i] * above[i + 1];
          sums.lower_left += pixels[i] * below[i];
          sums.lower_right += pixels[i] * below[i + 1];
        }
      }
      if constexpr (kStrided) {
        sources.advance((stride() - 1) * width);
      } else {
#pragma unroll
        for (int i = 0; i <= kColumns; ++i) above[i] = below[i];
      }
    }
  }

  // Adds up a warp's sums. The first half of the warp does so along x, the second along y.
  __device__ void add_up_warp(const PlanesTile<T>& tile, const TapSums<A>& sums) {
    const A outside = add_outside<kThreads>(source_, tile, parameters_);
    const A along_x = sums.along_x(tile) + outside;
    const A along_y = sums.along_y(tile) + outside;
    const bool is_second = threadIdx.x % 32 >= 16;
    A sum = is_second ? along_y : along_x;
    sum += __shfl_xor_sync(0xffffffff, is_second ? along_x : along_y, 16);
#pragma unroll
    for (int distance = 8; distance > 0; distance /= 2) {
      sum += __shfl_xor_sync(0xffffffff, sum, distance);
    }
    if (threadIdx.x % 16 == 0) warp_sums_[threadIdx.x / 16] = sum;
  }

  // The first thread of a block stores the tile's sum along x, the second the one along y.
  __device__ void store_sum(const PlanesTile<T>& tile) {
    A sum = 0;
    for (unsigned i = threadIdx.x; i < kThreads / 16; i += 2) sum += warp_sums_[i];
    partial_[threadIdx.x * parameters_.channels.divisor() * parameters_.parts + tile.part] = sum;
  }

  const T* source_;
  const T* input_;
  const T* x_offset_;
  const T* y_offset_;
  T* result_;
  A* partial_;
  PlanesTile<T>* tiles_;
  A* warp_sums_;
  const PlanesParameters& parameters_;
  T* stages_;
  T* results_;
  // Blocks take tiles in turn, so that what is in flight lies together in device memory. This block takes
  // `count_` tiles from `first_` on, `pitch_` apart.
  int first_, pitch_, count_;
};

template <typename T, Pass kPass, bool kStrided, int kThreads>
__global__ void __launch_bounds__(kThreads, least_blocks(sizeof(T), kPass, kThreads))
    planes(const T* __restrict__ source, const T* __restrict__ input, const T* __restrict__ x_offset,
           const T* __restrict__ y_offset, T* __restrict__ result, accumulate_t<T>* __restrict__ partial,
           PlanesParameters parameters) {
  using Block = PlanesBlock<T, kPass, kStrided, kThreads>;
  __shared__ PlanesTile<T> tiles[Block::kTiles];
  __shared__ accumulate_t<T> warp_sums[Block::kWarpSums];
  Block(source, input, x_offset, y_offset, result, partial, tiles, warp_sums, parameters).run();
}

template <typename T, Pass kPass, bool kStrided, int kThreads>
void launch(const Arguments<T>& arguments, const Plan& plan, accumulate_t<T>* partial, cudaStream_t stream) {
  constexpr bool kTransposed = is_transposed(kPass);
  const Geometry& geometry = arguments.geometry;
  const int64_t result_rows = arguments.result_rows(kTransposed);
  const int tiles = static_cast<int>(ceil_divide<int64_t>(result_rows, plan.tile_rows));
  const Room room(plan.tile_rows, plan.stage_rows, geometry.width, kPass, sizeof(T));
  PlanesParameters parameters;
  parameters.tiles = FastDivisor(tiles);
  parameters.channels = FastDivisor(static_cast<int>(geometry.channels));
  parameters.stride = FastDivisor(stride_of(geometry));
  parameters.chunks = FastDivisor(static_cast<int>(ceil_divide<int64_t>(geometry.width, kColumns)));
  parameters.width = static_cast<int>(geometry.width);
  parameters.height = static_cast<int>(geometry.height);
  parameters.steps = static_cast<int>(geometry.steps);
  parameters.source_rows = static_cast<int>(arguments.source_rows(kTransposed));
  parameters.result_rows = static_cast<int>(result_rows);
  parameters.tile_rows = plan.tile_rows;
  parameters.tile_count = static_cast<int>(geometry.planes()) * tiles;
  parameters.rows = plan.step;
  parameters.margin = static_cast<int>(room.margin);
  parameters.input_place = static_cast<int>(room.input_place);
  parameters.stage_elements = static_cast<int>(room.stage);
  parameters.source_elements = geometry.planes() * parameters.source_rows * geometry.width;
  parameters.result_elements = geometry.planes() * result_rows * geometry.width;
  parameters.parts = plan.parts;
  const char* name = kTransposed ? "shift_grads" : "shift";
  require_shared_memory(reinterpret_cast<const void*>(planes<T, kPass, kStrided, kThreads>),
                        plan.shared_bytes, name, kPlanesDeclaredBytes<T>);
  planes<T, kPass, kStrided, kThreads>
      <<<static_cast<unsigned>(plan.blocks), kThreads, static_cast<size_t>(plan.shared_bytes), stream>>>(
          arguments.source, arguments.input, arguments.x_offset, arguments.y_offset, arguments.result,
          partial, parameters);
  check_launch(name);
}

template <typename T, Pass kPass, bool kStrided>
void launch(const Arguments<T>& arguments, const Plan& plan, accumulate_t<T>* partial, cudaStream_t stream) {
  if constexpr (has_narrow_blocks(sizeof(T), kStrided)) {
    if (plan.threads == 32) return launch<T, kPass, kStrided, 32>(arguments, plan, partial, stream);
    if (plan.threads == 64) return launch<T, kPass, kStrided, 64>(arguments, plan, partial, stream);
  }
  launch<T, kPass, kStrided, kTileThreads>(arguments, plan, partial, stream);
}

}  // namespace

template <typename T>
void launch_planes(const Arguments<T>& arguments, Pass pass, const Plan& plan, accumulate_t<T>* partial,
                   cudaStream_t stream) {
  with_pass(pass, [&](auto constant) {
    constexpr Pass kPass = constant;
    if (arguments.geometry.stride == 1) return launch<T, kPass, false>(arguments, plan, partial, stream);
    launch<T, kPass, true>(arguments, plan, partial, stream);
  });
}

#define SHIFT_PLANES(T) \
  template void launch_planes(const Arguments<T>&, Pass, const Plan&, accumulate_t<T>*, cudaStream_t);
SHIFT_PLANES(double)
SHIFT_PLANES(float)
SHIFT_PLANES(Half)
SHIFT_PLANES(BFloat16)
#undef SHIFT_PLANES

}  // namespace torchgraft::shift::cuda
