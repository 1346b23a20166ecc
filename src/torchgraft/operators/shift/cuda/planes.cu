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

#include "kernels.h"
#include "supports.h"
#include "taps.cuh"

namespace torchgraft::shift::cuda {
namespace {

struct PlanesParameters {
  FastDivisor tiles;  // of a plane
  FastDivisor channels, stride;
  FastDivisor chunks;  // threads of a row
  int width, height, steps, source_rows, result_rows;
  int tile_rows, tile_count;
  int rows;         // of a thread
  int margin;       // elements in front of a stage and behind it, which are read and thrown away
  int input_place;  // in a stage, behind the sources
  int stage_elements;
  int64_t source_elements, result_elements;
  int64_t parts;  // sums of a channel
};

// All that is to be known of a tile. Threads of a block work these out side by side, kTilesAhead tiles each,
// for all to read.
template <typename T>
struct alignas(16) Tile {
  using A = accumulate_t<T>;
  A left, right, upper, lower;  // weights
  int64_t first_source;         // element of the source: where the first piece begins
  int64_t first_result;         // element of the result
  int64_t part;                 // of the partial sums along x
  int stage_place, pieces;      // where the first piece goes, and how many there are
  int place, end;              // of the tile's rows of sources in the stage; they may reach outside the plane
  int existing, existing_end;  // of those that exist; the pieces may bring elements of others
  int rows;                    // of results
  int lead, input_lead;  // elements of the results, of the input, since the last border of sixteen bytes
  int column;            // of the left source of column 0
  int phase;  // in the strided transpose: rows of results since the one whose lower source is the first
  int plane;
  int first_share, end_share;  // rows of the output's gradient: the tile's share of those outside the image
  int first_row, end_row, first_column, end_column;  // what is not outside
};

// Of shared memory, next to a launch's.
template <typename T>
constexpr int64_t kDeclaredBytes =
    2 * kTilesAhead * sizeof(Tile<T>) + 2 * kTileThreads / 32 * sizeof(accumulate_t<T>);
static_assert(sizeof(Tile<float>) == tile_bytes(4) && sizeof(Tile<double>) == tile_bytes(8));

// Elements since the last border of sixteen bytes.
template <typename T>
__device__ int lead_of(const T* element) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(element) % 16 / sizeof(T));
}

template <typename T, Pass kPass, bool kStrided>
__device__ Tile<T> make_tile(int index, const T* source, const T* input, const T* result, const T* x_offset,
                             const T* y_offset, const PlanesParameters& parameters) {
  constexpr bool kTransposed = is_transposed(kPass);
  constexpr int kPiece = kVectorElements<T>;
  const int width = parameters.width;
  Tile<T> tile;
  tile.plane = parameters.tiles.divide(index);
  const int part_of_plane = index - tile.plane * parameters.tiles.divisor();
  const int image = parameters.channels.divide(tile.plane);
  const int channel = tile.plane - image * parameters.channels.divisor();
  const Taps<T, kTransposed, kStrided> taps(x_offset[channel], y_offset[channel], width, parameters.height);
  tile.left = taps.left;
  tile.right = taps.right;
  tile.upper = taps.upper;
  tile.lower = taps.lower;
  tile.column = taps.column;
  tile.part =
      channel * parameters.parts + static_cast<int64_t>(image) * parameters.tiles.divisor() + part_of_plane;

  const int first_row = part_of_plane * parameters.tile_rows;
  const int rows = min(parameters.tile_rows, parameters.result_rows - first_row);
  tile.first_result = (static_cast<int64_t>(tile.plane) * parameters.result_rows + first_row) * width;
  tile.rows = rows;
  tile.lead = has_images(kPass) ? lead_of(result + tile.first_result) : 0;
  tile.input_lead = has_sums(kPass) ? lead_of(input + tile.first_result) : 0;

  int begin = 0;
  int source_rows = 0;
  tile.phase = 0;
  if constexpr (kTransposed && kStrided) {
    begin = divide_down(first_row - taps.row, parameters.stride);
    source_rows = divide_down(first_row + rows - 1 - taps.row, parameters.stride) - begin + 1;
    tile.phase = first_row - taps.row - begin * parameters.stride.divisor();
  } else {
    const int stride = kStrided ? parameters.stride.divisor() : 1;
    begin = first_row * stride + taps.row;
    source_rows = (rows - 1) * stride + 2;
  }
  const int first = min(max(begin, 0), parameters.source_rows);
  const int last = min(max(begin + source_rows, 0), parameters.source_rows);
  const int count = (last - first) * width;
  const int64_t offset = (static_cast<int64_t>(tile.plane) * parameters.source_rows + first) * width;
  // In the stage as in memory, modulo sixteen bytes.
  const int lead = lead_of(source + offset);
  const int before = count > 0 ? (first - begin) * width : source_rows * width;
  tile.place = parameters.margin + ((lead - before) & (kPiece - 1));
  tile.end = tile.place + source_rows * width;
  tile.existing = tile.place + before;
  tile.existing_end = tile.existing + count;
  tile.pieces = count > 0 ? (lead + count + kPiece - 1) / kPiece : 0;
  tile.stage_place = count > 0 ? tile.existing - lead : tile.end;
  tile.first_source = offset - lead;

  if constexpr (has_sums(kPass)) {
    const Outside outside(taps, parameters.height, width, parameters.steps, parameters.stride);
    const int64_t tiles = parameters.tiles.divisor();
    tile.first_share = static_cast<int>(parameters.steps * int64_t{part_of_plane} / tiles);
    tile.end_share = static_cast<int>(parameters.steps * (int64_t{part_of_plane} + 1) / tiles);
    tile.first_row = min(max(outside.first_row, tile.first_share), tile.end_share);
    tile.end_row = max(min(outside.end_row, tile.end_share), tile.first_row);
    tile.first_column = outside.first_column;
    tile.end_column = outside.end_column;
  }
  return tile;
}

// Begins the copies of so many pieces, from `first` of a tensor's elements on. It may lie in front of the
// tensor, or the last piece reach beyond it: tensors need not begin and end where pieces do.
template <int kThreads, typename T>
__device__ void copy_pieces(const T* tensor, int64_t elements, int64_t first, int pieces, T* to) {
  constexpr int kPiece = kVectorElements<T>;
  constexpr int kAtOnce = 4;
  const int thread = static_cast<int>(threadIdx.x);
  const int count = pieces * kPiece;
  if (first >= 0 && first + count <= elements) {
    const T* from = tensor + first + thread * kPiece;
    to += thread * kPiece;
#pragma unroll 1
    for (int left = count - thread * kPiece; left > 0; left -= kAtOnce * kThreads * kPiece) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (left > i * kThreads * kPiece)
          copy_async<16, true>(to + i * kThreads * kPiece, from + i * kThreads * kPiece);
      }
      from += kAtOnce * kThreads * kPiece;
      to += kAtOnce * kThreads * kPiece;
    }
  } else {
    // Threads bring the same pieces as above.
#pragma unroll 1
    for (int i = thread * kPiece; i < count; i += kThreads * kPiece) {
#pragma unroll 1
      for (int k = i; k < i + kPiece; ++k) {
        const int64_t element = first + k;
        to[k] = element >= 0 && element < elements ? tensor[element] : T(0);
      }
    }
  }
}

// Begins the copies of what a tile reads, and makes zeros of the rows of sources that do not exist.
template <bool kInput, int kThreads, typename T>
__device__ void copy_tile(const T* source, const T* input, const Tile<T>& tile, T* stage,
                          const PlanesParameters& parameters) {
  constexpr int kPiece = kVectorElements<T>;
  const int thread = static_cast<int>(threadIdx.x);
  copy_pieces<kThreads>(source, parameters.source_elements, tile.first_source, tile.pieces,
                        stage + tile.stage_place);
  if constexpr (kInput) {
    const int pieces = ceil_divide(tile.input_lead + tile.rows * parameters.width, kPiece);
    copy_pieces<kThreads>(input, parameters.result_elements, tile.first_result - tile.input_lead, pieces,
                          stage + parameters.input_place);
  }
#pragma unroll 1
  for (int i = tile.place + thread; i < tile.stage_place; i += kThreads) stage[i] = T(0);
#pragma unroll 1
  for (int i = tile.stage_place + tile.pieces * kPiece + thread; i < tile.end; i += kThreads) stage[i] = T(0);
}

// Makes zeros of what copies brought of rows that do not belong to the plane: each thread in its own copies.
template <int kThreads, typename T>
__device__ void clear_others(const Tile<T>& tile, T* stage) {
  if (threadIdx.x == 0) {
#pragma unroll 1
    for (int i = max(tile.stage_place, tile.place); i < tile.existing; ++i) stage[i] = T(0);
  }
  // Where there are no pieces none of it exists, and its end is that of the tile.
  if (tile.existing_end < tile.end && threadIdx.x == static_cast<unsigned>(tile.pieces - 1) % kThreads) {
    const int end = min(tile.stage_place + tile.pieces * kVectorElements<T>, tile.end);
#pragma unroll 1
    for (int i = tile.existing_end; i < end; ++i) stage[i] = T(0);
  }
}

// Values that are read or not, without a branch and for all bits of them: a product with zero would not do.
__device__ inline uint32_t mask_of(bool is_read) {
  uint32_t mask = is_read ? 0xffffffffU : 0U;
  ptx::keep(mask);
  return mask;
}
__device__ inline float take(float value, uint32_t mask) {
  return __uint_as_float(__float_as_uint(value) & mask);
}
__device__ inline double take(double value, uint32_t mask) { return mask != 0 ? value : 0.0; }

// Reads kCount neighbours in a row of a stage; what lies beside the row is zero.
template <typename T, int kCount>
class ElementReader {
 public:
  using A = accumulate_t<T>;

  // `index` in the stage is the first one's, and it lies in column `column`.
  __device__ ElementReader(const T* stage, int index, int column, int width) : from_(stage + index) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) masks_[i] = mask_of(is_inside(column + i, width));
  }

  __device__ void read(A (&values)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = take(static_cast<A>(from_[i]), masks_[i]);
  }

  __device__ void advance(int elements) { from_ += elements; }

 private:
  const T* from_;
  uint32_t masks_[kCount];
};

// Of halves: two a word, whichever half of a word the first one is.
template <typename T, int kCount>
class PairReader {
 public:
  __device__ PairReader(const T* stage, int index, int column, int width)
      : stage_(reinterpret_cast<const char*>(stage)), bytes_(index * 2) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      masks_[i] = (is_inside(column + 2 * i, width) ? 0x0000ffffU : 0U) |
                  (2 * i + 1 < kCount && is_inside(column + 2 * i + 1, width) ? 0xffff0000U : 0U);
    }
  }

  __device__ void read(float (&values)[kCount]) const {
    constexpr int kWords = kCount / 2 + 1;
    const uint32_t* const from = reinterpret_cast<const uint32_t*>(stage_ + (bytes_ & ~3));
    const unsigned shift = (bytes_ & 2) * 8;
    uint32_t words[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = from[i];
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const uint32_t pair = __funnelshift_r(words[i], words[min(i + 1, kWords - 1)], shift) & masks_[i];
      float both[2];
      widen<T>(reinterpret_cast<const Word<T>&>(pair), both);
      values[2 * i] = both[0];
      if (2 * i + 1 < kCount) values[2 * i + 1] = both[1];
    }
  }

  __device__ void advance(int elements) { bytes_ += elements * 2; }

 private:
  static constexpr int kPairs = (kCount + 1) / 2;
  const char* stage_;
  int bytes_;  // from the stage's beginning
  uint32_t masks_[kPairs];
};

template <typename T, int kCount>
using RowReader = std::conditional_t<sizeof(T) == 2, PairReader<T, kCount>, ElementReader<T, kCount>>;

// Writes the first `columns` of kColumns neighbours.
template <typename T>
__device__ void write_row(T* stage, int index, const accumulate_t<T> (&values)[kColumns], int columns) {
  if constexpr (sizeof(T) == 2) {
    if (columns >= kColumns) {
      // Two whole words, and before or behind them a half.
      static_assert(kColumns == 5);
      uint32_t pairs[3];
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        const float both[2] = {values[2 * i], i < 2 ? values[2 * i + 1] : 0.0F};
        reinterpret_cast<Word<T>&>(pairs[i]) = round<T>(both);
      }
      const bool is_odd = index % 2 != 0;
      const unsigned shift = is_odd ? 16 : 0;
      uint32_t* const words = reinterpret_cast<uint32_t*>(stage + index + (is_odd ? 1 : 0));
      words[0] = __funnelshift_r(pairs[0], pairs[1], shift);
      words[1] = __funnelshift_r(pairs[1], pairs[2], shift);
      const uint32_t single = is_odd ? pairs[0] : pairs[2];
      stage[index + (is_odd ? 0 : 4)] = reinterpret_cast<const Word<T>&>(single)[0];
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    if (i < columns) stage[index + i] = static_cast<T>(values[i]);
  }
}

// Stores a run of results from shared memory, where it lies as in device memory modulo sixteen bytes.
template <int kThreads, typename T>
__device__ void store_results(T* result, const T* stage, int lead, int results) {
  constexpr int kPiece = kVectorElements<T>;
  constexpr int kAtOnce = 4;
  const int thread = static_cast<int>(threadIdx.x);
  result -= lead;
  const int end = lead + results;
  const int first_whole = lead > 0 ? kPiece : 0;
  const int end_whole = end & -kPiece;
  const int first = first_whole + thread * kPiece;
  const T* from = stage + first;
  T* to = result + first;
#pragma unroll 1
  for (int left = end_whole - first; left > 0; left -= kAtOnce * kThreads * kPiece) {
    Vector<T> pieces[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int distance = i * kThreads * kPiece;
      if (left > distance) pieces[i] = *reinterpret_cast<const Vector<T>*>(from + distance);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int distance = i * kThreads * kPiece;
      if (left > distance) *reinterpret_cast<Vector<T>*>(to + distance) = pieces[i];
    }
    from += kAtOnce * kThreads * kPiece;
    to += kAtOnce * kThreads * kPiece;
  }
  // The pieces at both ends, of which others own a part.
  if (thread < kPiece) {
    if (thread >= lead && thread < min(first_whole, end)) result[thread] = stage[thread];
    const int last = max(end_whole, first_whole) + thread;
    if (last < end) result[last] = stage[last];
  }
}

// Zero times each gradient of the tile's share of results that lie outside the image.
template <int kThreads, typename T>
__device__ accumulate_t<T> add_outside(const T* output_grad, const Tile<T>& tile,
                                       const PlanesParameters& parameters) {
  using A = accumulate_t<T>;
  const int width = parameters.width;
  A sum = 0;
  if (tile.first_row == tile.first_share && tile.end_row == tile.end_share && tile.first_column == 0 &&
      tile.end_column == width) {
    return sum;
  }
  const T* const plane = output_grad + static_cast<int64_t>(tile.plane) * parameters.steps * width;
  const int begins[] = {tile.first_share, tile.end_row, tile.first_row, tile.first_row};
  const int ends[] = {tile.first_row, tile.end_share, tile.end_row, tile.end_row};
  const int lefts[] = {0, 0, 0, tile.end_column};
  const int rights[] = {width, width, tile.first_column, width};
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    const int columns = rights[part] - lefts[part];
    const int count = (ends[part] - begins[part]) * columns;
#pragma unroll 1
    for (int i = threadIdx.x; i < count; i += kThreads) {
      const int row = i / columns;
      sum += A(0) * static_cast<A>(plane[(begins[part] + row) * width + lefts[part] + i - row * columns]);
    }
  }
  return sum;
}

// Blocks that a multiprocessor takes at once. 7.5 and 8.6 take 16, and nvcc refuses to compile a kernel for
// them that asks for more; on 9.0 asking for 16 makes the smallest blocks up to 1.35 times as slow.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900)
constexpr int kMostBlocks = 32;
#else
constexpr int kMostBlocks = 16;
#endif

// Blocks for which registers must suffice.
constexpr int least_blocks(int element_bytes, Pass pass, int threads) {
  const int blocks = planes_resident_threads(element_bytes, pass) / threads;
  return blocks < kMostBlocks ? blocks : kMostBlocks;
}

template <typename T, Pass kPass, bool kStrided, int kThreads>
__global__ void __launch_bounds__(kThreads, least_blocks(sizeof(T), kPass, kThreads))
    planes(const T* __restrict__ source, const T* __restrict__ input, const T* __restrict__ x_offset,
           const T* __restrict__ y_offset, T* __restrict__ result, accumulate_t<T>* __restrict__ partial,
           PlanesParameters parameters) {
  using A = accumulate_t<T>;
  constexpr bool kTransposed = is_transposed(kPass);
  constexpr bool kImages = has_images(kPass);
  constexpr bool kSums = has_sums(kPass);
  constexpr bool kFromOneRow = kTransposed && kStrided;

  __shared__ Tile<T> tiles[2 * kTilesAhead];
  __shared__ A warp_sums[2 * kThreads / 32];
  T* const stages = shared_memory<T>();
  T* const results = stages + kStages * parameters.stage_elements;
  // Blocks take tiles in turn, so that what is in flight lies together in device memory: this one's are
  // `count` from `first` on, `pitch` apart.
  const int first = static_cast<int>(blockIdx.x);
  const int pitch = static_cast<int>(gridDim.x);
  const int count = ceil_divide(parameters.tile_count - first, pitch);

  const auto make_tiles = [&](int from, int of) {
    const int index = from + static_cast<int>(threadIdx.x);
    if (static_cast<int>(threadIdx.x) < of && index < count) {
      tiles[index % (2 * kTilesAhead)] = make_tile<T, kPass, kStrided>(
          first + index * pitch, source, input, result, x_offset, y_offset, parameters);
    }
  };
  const auto begin_copies = [&](int index, int slot) {
    if (index < count) {
      copy_tile<kSums, kThreads>(source, input, tiles[index % (2 * kTilesAhead)],
                                 stages + slot * parameters.stage_elements, parameters);
    }
    commit_copies();
  };

  const int width = parameters.width;
  const int stride = kStrided ? parameters.stride.divisor() : 1;
  static_assert(kStages < kTilesAhead);
  static_assert(2 * kTilesAhead <= 32, "a warp works out tiles");
  make_tiles(0, 2 * kTilesAhead);
  __syncthreads();
#pragma unroll 1
  for (int slot = 0; slot < kStages; ++slot) begin_copies(slot, slot);
  int slot = 0;
#pragma unroll 1
  for (int index = 0; index < count; ++index) {
    const Tile<T>& tile = tiles[index % (2 * kTilesAhead)];
    T* const stage = stages + slot * parameters.stage_elements;
    wait_for_copies<kStages - 1>();
    clear_others<kThreads>(tile, stage);
    __syncthreads();
    // Half of the tiles known is used up: in its place come those after the other half.
    if (index > 0 && index % kTilesAhead == 0) make_tiles(index + kTilesAhead, kTilesAhead);

    TapSums<A> sums;
    // Rows of five columns, downwards. kSelect: a weight may be zero, and what it weighs be NaN.
    const auto take_rows = [&](auto select, int first_row, int first_column) {
      constexpr bool kSelect = select;
      const int rows = min(parameters.rows, tile.rows - first_row);
      [[maybe_unused]] const int columns = width - first_column;
      [[maybe_unused]] const int first_of_tile = first_row * width + first_column;
      const int column = first_column + tile.column;
      int source_row = first_row * stride;
      [[maybe_unused]] int phase = 0;
      if constexpr (kFromOneRow) {
        const int distance = tile.phase + first_row;
        source_row = parameters.stride.divide(distance);
        phase = distance - source_row * stride;
      }
      RowReader<T, kColumns + 1> sources(stage, tile.place + source_row * width + column, column, width);
      [[maybe_unused]] RowReader<T, kColumns> inputs(
          stage, parameters.input_place + tile.input_lead + first_of_tile, first_column, width);
      [[maybe_unused]] int place = tile.lead + first_of_tile;
      [[maybe_unused]] const A left = tile.left;
      [[maybe_unused]] const A right = tile.right;
      [[maybe_unused]] const A upper = tile.upper;
      [[maybe_unused]] const A lower = tile.lower;
      [[maybe_unused]] uint32_t is_read[4] = {};
      if constexpr (kSelect && !kFromOneRow) {
        is_read[0] = mask_of(upper != 0 && left != 0);
        is_read[1] = mask_of(upper != 0 && right != 0);
        is_read[2] = mask_of(lower != 0 && left != 0);
        is_read[3] = mask_of(lower != 0 && right != 0);
      }
      const auto product = [](A weight, A value, uint32_t mask) {
        return weight * (kSelect ? take(value, mask) : value);
      };
      [[maybe_unused]] const auto put = [&](const A(&values)[kColumns]) {
        write_row(results, place, values, columns);
        place += width;
      };
      [[maybe_unused]] const auto read_input = [&](A(&pixels)[kColumns]) {
        inputs.read(pixels);
        inputs.advance(width);
      };

      if constexpr (kFromOneRow) {
#pragma unroll 1
        for (int row = 0; row < rows; ++row) {
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
            put(values);
          }
          if constexpr (kSums) {
            A pixels[kColumns];
            read_input(pixels);
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
          if (++phase == stride) {
            phase = 0;
            sources.advance(width);
          }
        }
      } else {
        [[maybe_unused]] const A upper_left = upper * left;
        [[maybe_unused]] const A upper_right = upper * right;
        [[maybe_unused]] const A lower_left = lower * left;
        [[maybe_unused]] const A lower_right = lower * right;
        A above[kColumns + 1];
        if constexpr (!kStrided) sources.read(above);
#pragma unroll 2
        for (int row = 0; row < rows; ++row) {
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
            put(values);
          }
          if constexpr (kSums) {
            A pixels[kColumns];
            read_input(pixels);
#pragma unroll
            for (int i = 0; i < kColumns; ++i) {
              sums.upper_left += pixels[i] * above[i];
              sums.upper_right += pixels[i] * above[i + 1];
              sums.lower_left += pixels[i] * below[i];
              sums.lower_right += pixels[i] * below[i + 1];
            }
          }
          if constexpr (kStrided) {
            sources.advance((stride - 1) * width);
          } else {
#pragma unroll
            for (int i = 0; i <= kColumns; ++i) above[i] = below[i];
          }
        }
      }
    };
    const bool is_blend =
        !kImages || (tile.upper != 0 && tile.lower != 0 && tile.left != 0 && tile.right != 0);
#pragma unroll 1
    for (int item = threadIdx.x;; item += kThreads) {
      const int group = parameters.chunks.divide(item);
      const int first_row = group * parameters.rows;
      if (first_row >= tile.rows) break;
      const int first_column = (item - group * parameters.chunks.divisor()) * kColumns;
      if (is_blend) {
        take_rows(std::false_type{}, first_row, first_column);
      } else if constexpr (kImages) {
        take_rows(std::true_type{}, first_row, first_column);
      }
    }

    if constexpr (kSums) {
      const A outside = add_outside<kThreads>(source, tile, parameters);
      const A along_x = sums.along_x(tile) + outside;
      const A along_y = sums.along_y(tile) + outside;
      // The first half of a warp adds up along x, the second along y.
      const bool is_second = threadIdx.x % 32 >= 16;
      A sum = is_second ? along_y : along_x;
      sum += __shfl_xor_sync(0xffffffff, is_second ? along_x : along_y, 16);
#pragma unroll
      for (int distance = 8; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(0xffffffff, sum, distance);
      }
      if (threadIdx.x % 16 == 0) warp_sums[threadIdx.x / 16] = sum;
    }
    __syncthreads();
    // Nobody reads this stage any more, and the results are complete.
    begin_copies(index + kStages, slot);
    slot = slot + 1 < kStages ? slot + 1 : 0;
    if constexpr (kImages) {
      store_results<kThreads>(result + tile.first_result, results, tile.lead, tile.rows * width);
    }
    if (kSums && threadIdx.x < 2) {
      A sum = 0;
      for (unsigned i = threadIdx.x; i < kThreads / 16; i += 2) sum += warp_sums[i];
      partial[threadIdx.x * parameters.channels.divisor() * parameters.parts + tile.part] = sum;
    }
  }
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
                        plan.shared_bytes, name, kDeclaredBytes<T>);
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
