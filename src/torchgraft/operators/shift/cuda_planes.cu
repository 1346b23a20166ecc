// Contiguous images whose rows have up to 512 columns (of halves 1024): tiles of rows through shared memory.
//
// A plane of a skeleton, 300 x 25, is one piece of memory. A block takes tiles of it in turn: the rows of
// sources of a tile come into shared memory as one run, in pieces of sixteen bytes whatever a row's length,
// the next tile's while this one is computed; rows outside the plane are zeros there. A thread owns four
// bytes of results (one float, two halves; one double) every `step` words, a step being whole rows: so its
// columns, and which of its taps lie outside a row, stay what they are; and stores of a warp are whole
// sectors. In the backward passes it also reads the input at its results, once, four words ahead.
//
// Bytes: each source once, but for one row a tile, and each result once: (128,64,300,25) fp32 491 MB forward,
// 737 backward: floors 115 and 172 us at 4283 GB/s, half of that in halves. Under way are a tile of 15 KB a
// block and six blocks of 224 threads a multiprocessor, four in the backward passes: 90 and 60 KB, where 40
// fill the memory's latency.
//
// Instructions a result, by the machine code: fp32 forward 17, backward 25, of 58 and 86 that are issued in
// the time its bytes take; halves 17 and 24 of 28 and 43; and 3 to 7 for what a tile takes once. Shared
// memory in cycles for 32 results: 5 and 7 of 14 and 21; halves 3 and 4 of 7 and 10. So memory bounds all of
// them, the forward pass of halves least. Predicted, fp32 and halves: forward 125 and 68 us, backward 195 and
// 105; stride 2 on (128,128,300,25) forward 190 and 105, backward 320 and 170. Not yet measured.

#include <algorithm>
#include <numeric>

#include "cuda_copies.cuh"
#include "cuda_kernels.h"
#include "cuda_taps.cuh"

namespace torchgraft::shift::cuda {
namespace {

constexpr int kMostThreads = 512;           // of a block; where rows are short 256 are better
constexpr int64_t kStageBytes = 16 << 10;   // of sources; a block has two stages
constexpr int64_t kSharedBytes = 40 << 10;  // of two stages with their margins: granted without being asked
constexpr int kSectorBytes = 32;
constexpr int kBatch = 4;   // words of input under way
constexpr int kAhead = 16;  // tiles that are worked out at once

// Threads that are resident at once on a multiprocessor, by registers: of up to 64 and of up to 48 a thread.
constexpr int resident_threads(Pass pass) { return has_sums(pass) ? 1024 : 1344; }

struct PlanesParameters {
  FastDivisor tiles;  // of a plane
  FastDivisor channels, width, stride;
  int height, steps, source_rows, result_rows;
  int tile_rows, tile_count;
  int step;    // words
  int margin;  // elements in front of a stage: words reach there that are thrown away
  int stage_elements;
  int64_t source_elements;
  int64_t parts;      // sums of a channel
  bool paired_input;  // words of the input begin where words of the result do
};

// All that is to be known of a tile. Threads of a block work these out side by side, kAhead tiles each, for
// all to read.
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
  int results, head;           // elements; those since the last border of a sector
  int column;                  // of the left source of column 0
  int phase;  // in the strided transpose: rows of results since the one whose lower source is the first
  int plane;
  int first_share, end_share;  // rows of the output's gradient: the tile's share of those outside the image
  int first_row, end_row, first_column, end_column;  // what is not outside
};

template <typename T, Pass kPass, bool kStrided>
__device__ Tile<T> make_tile(int index, const T* source, const T* words, const T* x_offset, const T* y_offset,
                             const PlanesParameters& parameters) {
  constexpr bool kTransposed = is_transposed(kPass);
  constexpr int kPiece = kVectorElements<T>;
  const int width = parameters.width.divisor();
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
  tile.results = rows * width;
  tile.head =
      static_cast<int>(reinterpret_cast<uintptr_t>(words + tile.first_result) % kSectorBytes / sizeof(T));

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
  const int lead = static_cast<int>(reinterpret_cast<uintptr_t>(source + offset) % 16 / sizeof(T));
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

// Begins the copies of a tile's sources, and makes zeros of the rows that do not exist.
template <typename T>
__device__ void copy_sources(const T* source, const Tile<T>& tile, T* stage,
                             const PlanesParameters& parameters) {
  constexpr int kPiece = kVectorElements<T>;
  const int threads = static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.x);
  T* const to = stage + tile.stage_place;
  const int elements = tile.pieces * kPiece;
  if (tile.first_source >= 0 && tile.first_source + elements <= parameters.source_elements) {
    const T* const from = source + tile.first_source;
#pragma unroll 2
    for (int i = thread * kPiece; i < elements; i += threads * kPiece) copy_ahead<16>(to + i, from + i);
  } else {
    // The first or the last piece of a tensor that does not begin and end where pieces do.
#pragma unroll 1
    for (int i = thread * kPiece; i < elements; i += threads * kPiece) {
#pragma unroll 1
      for (int k = i; k < i + kPiece; ++k) {
        const int64_t element = tile.first_source + k;
        to[k] = element >= 0 && element < parameters.source_elements ? source[element] : T(0);
      }
    }
  }
#pragma unroll 1
  for (int i = tile.place + thread; i < tile.stage_place; i += threads) stage[i] = T(0);
#pragma unroll 1
  for (int i = tile.stage_place + elements + thread; i < tile.end; i += threads) stage[i] = T(0);
}

// Makes zeros of what copies brought of rows that do not belong to the plane: each thread in its own copies.
template <typename T>
__device__ void clear_others(const Tile<T>& tile, T* stage) {
  if (threadIdx.x == 0) {
#pragma unroll 1
    for (int i = max(tile.stage_place, tile.place); i < tile.existing; ++i) stage[i] = T(0);
  }
  if (tile.existing_end < tile.end && tile.pieces > 0 &&
      threadIdx.x == static_cast<unsigned>(tile.pieces - 1) % blockDim.x) {
    const int end = min(tile.stage_place + tile.pieces * kVectorElements<T>, tile.end);
#pragma unroll 1
    for (int i = tile.existing_end; i < end; ++i) stage[i] = T(0);
  }
}

// The sources of one word of results: upper left, upper right, lower left, lower right; or, where all come
// from one row, left and right.
template <typename T, int kTaps>
using Sources = accumulate_t<T>[kTaps][kWord<T>];

// A value that is read or not, without a branch and for all bits of it. A product with zero would not do.
__device__ inline float take(float value, bool is_taken) {
  return __uint_as_float(__float_as_uint(value) & (is_taken ? 0xffffffffU : 0U));
}
__device__ inline double take(double value, bool is_taken) { return is_taken ? value : 0.0; }

// Where the elements of a thread's word lie: row of the tile, column.
template <typename T>
struct WordPlace {
  int row[kWord<T>], column[kWord<T>];

  // `first` counts results from the tile's first, and may be less than a sector in front.
  __device__ WordPlace(int first, const FastDivisor& width) {
    constexpr int kRowsInFront = kSectorBytes / 2;
    row[0] = width.divide(first + kRowsInFront * width.divisor()) - kRowsInFront;
    column[0] = first - row[0] * width.divisor();
    if constexpr (kWord<T> == 2) {
      const bool wraps = column[0] + 1 == width.divisor();
      row[1] = row[0] + (wraps ? 1 : 0);
      column[1] = wraps ? 0 : column[0] + 1;
    }
  }
};

// A thread's sources, element by element. kReadAll: also what weighs nothing.
template <typename T, bool kStrided, bool kReadAll>
class ElementSources {
 public:
  using A = accumulate_t<T>;
  static constexpr int kTaps = 4;

  __device__ ElementSources(const T* stage, const Tile<T>& tile, int, const WordPlace<T>& word,
                            const PlanesParameters& parameters)
      : width_(parameters.width.divisor()) {
    const int stride = kStrided ? parameters.stride.divisor() : 1;
    step_ = parameters.step * kWord<T> * stride;
    const bool reads_upper = kReadAll || tile.upper != 0;
    const bool reads_lower = kReadAll || tile.lower != 0;
#pragma unroll
    for (int e = 0; e < kWord<T>; ++e) {
      const int left = word.column[e] + tile.column;
      const bool reads_left = (kReadAll || tile.left != 0) && is_inside(left, width_);
      const bool reads_right = (kReadAll || tile.right != 0) && is_inside(left + 1, width_);
      reads_[0][e] = reads_upper && reads_left;
      reads_[1][e] = reads_upper && reads_right;
      reads_[2][e] = reads_lower && reads_left;
      reads_[3][e] = reads_lower && reads_right;
      upper_[e] = stage + (tile.place + word.row[e] * stride * width_ + left);
    }
  }

  __device__ void load(int e, Sources<T, kTaps>& sources) const {
    const T* const lower = upper_[e] + width_;
    sources[0][e] = take(static_cast<A>(upper_[e][0]), reads_[0][e]);
    sources[1][e] = take(static_cast<A>(upper_[e][1]), reads_[1][e]);
    sources[2][e] = take(static_cast<A>(lower[0]), reads_[2][e]);
    sources[3][e] = take(static_cast<A>(lower[1]), reads_[3][e]);
  }

  __device__ void advance() {
#pragma unroll
    for (int e = 0; e < kWord<T>; ++e) upper_[e] += step_;
  }

 private:
  int width_, step_;
  const T* upper_[kWord<T>];
  bool reads_[kTaps][kWord<T>];
};

// The same in the transpose with a stride: a result has sources in one row or none. A step is so many rows
// that it stays the upper or the lower one.
template <typename T, bool kReadAll>
class RowSources {
 public:
  using A = accumulate_t<T>;
  static constexpr int kTaps = 2;

  __device__ RowSources(const T* stage, const Tile<T>& tile, int, const WordPlace<T>& word,
                        const PlanesParameters& parameters) {
    const int width = parameters.width.divisor();
    const int stride = parameters.stride.divisor();
    step_ = parameters.stride.divide(parameters.step * kWord<T>);
#pragma unroll
    for (int e = 0; e < kWord<T>; ++e) {
      const int left = word.column[e] + tile.column;
      const int distance = tile.phase + word.row[e];
      const int source_row = divide_down(distance, parameters.stride);
      phase[e] = distance - source_row * stride;
      const bool reads = phase[e] < 2 && (kReadAll || row_weight(tile, e) != 0);
      reads_[0][e] = reads && (kReadAll || tile.left != 0) && is_inside(left, width);
      reads_[1][e] = reads && (kReadAll || tile.right != 0) && is_inside(left + 1, width);
      left_[e] = stage + (tile.place + source_row * width + left);
    }
  }

  __device__ void load(int e, Sources<T, kTaps>& sources) const {
    sources[0][e] = take(static_cast<A>(left_[e][0]), reads_[0][e]);
    sources[1][e] = take(static_cast<A>(left_[e][1]), reads_[1][e]);
  }

  __device__ void advance() {
#pragma unroll
    for (int e = 0; e < kWord<T>; ++e) left_[e] += step_;
  }

  __device__ A row_weight(const Tile<T>& tile, int e) const {
    return phase[e] == 1 ? tile.upper : tile.lower;
  }

  int phase[kWord<T>];  // 1: from the upper row; 0: from the lower one; else from none

 private:
  int step_;
  const T* left_[kWord<T>];
  bool reads_[kTaps][kWord<T>];
};

// The sources of two halves: also where one row follows the other, they are three neighbours, in two words of
// the stage. What is not to be read becomes zero by its bits.
template <typename T, bool kReadAll>
class PairSources {
 public:
  static constexpr int kTaps = 4;

  __device__ PairSources(const T* stage, const Tile<T>& tile, int first, const WordPlace<T>& word,
                         const PlanesParameters& parameters) {
    const int width = parameters.width.divisor();
    const int index = tile.place + first + tile.column;
    const uint32_t* const words = reinterpret_cast<const uint32_t*>(stage);
    upper_ = words + index / 2;
    lower_ = words + (index + width) / 2;
    upper_shift_ = index % 2 * 16;
    lower_shift_ = (index + width) % 2 * 16;
    step_ = parameters.step;
    uint32_t left = 0;
    uint32_t right = 0;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int column = word.column[e] + tile.column;
      const uint32_t bits = 0xffffU << (16 * e);
      if ((kReadAll || tile.left != 0) && is_inside(column, width)) left |= bits;
      if ((kReadAll || tile.right != 0) && is_inside(column + 1, width)) right |= bits;
    }
    const bool reads_upper = kReadAll || tile.upper != 0;
    const bool reads_lower = kReadAll || tile.lower != 0;
    upper_left_ = reads_upper ? left : 0;
    upper_right_ = reads_upper ? right : 0;
    lower_left_ = reads_lower ? left : 0;
    lower_right_ = reads_lower ? right : 0;
  }

  __device__ void load(Sources<T, kTaps>& sources) const {
    load_row(upper_, upper_shift_, upper_left_, upper_right_, sources[0], sources[1]);
    load_row(lower_, lower_shift_, lower_left_, lower_right_, sources[2], sources[3]);
  }

  __device__ void advance() {
    upper_ += step_;
    lower_ += step_;
  }

 private:
  __device__ static void load_row(const uint32_t* words, int shift, uint32_t left_mask, uint32_t right_mask,
                                  float (&left)[2], float (&right)[2]) {
    const uint32_t first = words[0];
    const uint32_t second = words[1];
    const uint32_t lefts = __funnelshift_r(first, second, shift) & left_mask;
    const uint32_t rights = __funnelshift_rc(first, second, shift + 16) & right_mask;
    widen<T>(reinterpret_cast<const Word<T>&>(lefts), left);
    widen<T>(reinterpret_cast<const Word<T>&>(rights), right);
  }

  const uint32_t* upper_;
  const uint32_t* lower_;
  int upper_shift_, lower_shift_, step_;
  uint32_t upper_left_, upper_right_, lower_left_, lower_right_;
};

// One element of the result. kSelect: what was read for the sums alone must not be a result's NaN.
template <bool kSelect, typename T, int kTaps>
__device__ accumulate_t<T> blend(const accumulate_t<T> (&weights)[kTaps], const Sources<T, kTaps>& sources,
                                 int e) {
  using A = accumulate_t<T>;
  A value = 0;
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap) {
    value += weights[tap] * (kSelect ? take(sources[tap][e], weights[tap] != 0) : sources[tap][e]);
  }
  return value;
}

// Zero times each gradient of the tile's share of results that lie outside the image.
template <typename T>
__device__ accumulate_t<T> add_outside(const T* output_grad, const Tile<T>& tile,
                                       const PlanesParameters& parameters) {
  using A = accumulate_t<T>;
  const int width = parameters.width.divisor();
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
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
      const int row = i / columns;
      sum += A(0) * static_cast<A>(plane[(begins[part] + row) * width + lefts[part] + i - row * columns]);
    }
  }
  return sum;
}

template <typename T, Pass kPass, bool kStrided>
__global__ void __launch_bounds__(1024)
    shift_planes(const T* __restrict__ source, const T* __restrict__ input, const T* __restrict__ x_offset,
                 const T* __restrict__ y_offset, T* __restrict__ result,
                 accumulate_t<T>* __restrict__ partial, PlanesParameters parameters) {
  using A = accumulate_t<T>;
  constexpr bool kTransposed = is_transposed(kPass);
  constexpr bool kImages = has_images(kPass);
  constexpr bool kSums = has_sums(kPass);
  constexpr int kElements = kWord<T>;

  __shared__ Tile<T> tiles[2 * kAhead];
  __shared__ A warp_sums[2 * kMostThreads / 32];
  T* const stages = shared_memory<T>();
  const int begin = static_cast<int>(int64_t{parameters.tile_count} * blockIdx.x / gridDim.x);
  const int end = static_cast<int>(int64_t{parameters.tile_count} * (blockIdx.x + 1) / gridDim.x);
  const T* const words = kImages ? result : input;  // words are those of this image

  const auto make_tiles = [&](int first, int count) {
    const int index = first + static_cast<int>(threadIdx.x);
    if (static_cast<int>(threadIdx.x) < count && index < end) {
      tiles[(index - begin) % (2 * kAhead)] =
          make_tile<T, kPass, kStrided>(index, source, words, x_offset, y_offset, parameters);
    }
  };
  const auto begin_copies = [&](int index) {
    if (index < end) {
      copy_sources(source, tiles[(index - begin) % (2 * kAhead)],
                   stages + (index - begin) % 2 * parameters.stage_elements, parameters);
    }
    end_copies();
  };

  make_tiles(begin, 2 * kAhead);
  __syncthreads();
  begin_copies(begin);
#pragma unroll 1
  for (int index = begin; index < end; ++index) {
    begin_copies(index + 1);
    const Tile<T>& tile = tiles[(index - begin) % (2 * kAhead)];
    T* const stage = stages + (index - begin) % 2 * parameters.stage_elements;
    wait_for_copies<1>();
    clear_others(tile, stage);
    __syncthreads();

    const int results = tile.results;
    const int step = parameters.step * kElements;
    int first = static_cast<int>(threadIdx.x) * kElements - tile.head;
    const WordPlace<T> word(first, parameters.width);
    using Reader = std::conditional_t<kTransposed && kStrided, RowSources<T, kSums>,
                                      std::conditional_t<kElements == 2 && !kStrided, PairSources<T, kSums>,
                                                         ElementSources<T, kStrided, kSums>>>;
    constexpr int kTaps = Reader::kTaps;
    constexpr bool kFromOneRow = kTaps == 2;
    Reader reader(stage, tile, first, word, parameters);
    const int64_t offset = tile.first_result + first;
    const T* from = kSums ? input + offset : nullptr;
    T* to = kImages ? result + offset : nullptr;
    A weights[kFromOneRow ? kElements : 1][kTaps];
    if constexpr (kFromOneRow) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        weights[e][0] = reader.row_weight(tile, e) * tile.left;
        weights[e][1] = reader.row_weight(tile, e) * tile.right;
      }
    } else {
      weights[0][0] = tile.upper * tile.left;
      weights[0][1] = tile.upper * tile.right;
      weights[0][2] = tile.lower * tile.left;
      weights[0][3] = tile.lower * tile.right;
    }
    A sums[kFromOneRow ? kElements : 1][kTaps] = {};
    const auto add_input = [&](T value, const Sources<T, kTaps>& sources, int e) {
#pragma unroll
      for (int tap = 0; tap < kTaps; ++tap) {
        sums[kFromOneRow ? e : 0][tap] += static_cast<A>(value) * sources[tap][e];
      }
    };
    const auto advance = [&] {
      reader.advance();
      first += step;
      if constexpr (kSums) from += step;
      if constexpr (kImages) to += step;
    };
    const auto load_all = [&](Sources<T, kTaps>& sources) {
      if constexpr (std::is_same_v<Reader, PairSources<T, kSums>>) {
        reader.load(sources);
      } else {
#pragma unroll
        for (int e = 0; e < kElements; ++e) reader.load(e, sources);
      }
    };
    // Whole words, a batch at a time.
    const auto take_batches = [&](auto select) {
#pragma unroll 1
      while (first + (kBatch - 1) * step + kElements <= results) {
        [[maybe_unused]] Word<T> inputs[kBatch];
        if constexpr (kSums) {
#pragma unroll
          for (int i = 0; i < kBatch; ++i) {
            const T* const word_of_input = from + i * step;
            if (kElements == 1 || parameters.paired_input) {
              inputs[i] = *reinterpret_cast<const Word<T>*>(word_of_input);
            } else {
#pragma unroll
              for (int e = 0; e < kElements; ++e) inputs[i][e] = word_of_input[e];
            }
          }
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          Sources<T, kTaps> sources;
          load_all(sources);
          A values[kElements];
#pragma unroll
          for (int e = 0; e < kElements; ++e) {
            values[e] = blend<select, T, kTaps>(weights[kFromOneRow ? e : 0], sources, e);
            if constexpr (kSums) add_input(inputs[i][e], sources, e);
          }
          if constexpr (kImages) *reinterpret_cast<Word<T>*>(to) = round<T>(values);
          advance();
        }
      }
    };
    // What is left, and words that the tile's first and last result cut.
    const auto take_one = [&] {
      bool inside[kElements];
#pragma unroll
      for (int e = 0; e < kElements; ++e) inside[e] = is_inside(first + e, results);
      Sources<T, kTaps> sources;
      if constexpr (std::is_same_v<Reader, PairSources<T, kSums>>) reader.load(sources);
      A values[kElements] = {};
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        if (!inside[e]) continue;
        if constexpr (!std::is_same_v<Reader, PairSources<T, kSums>>) reader.load(e, sources);
        values[e] = blend < kSums && kImages, T, kTaps > (weights[kFromOneRow ? e : 0], sources, e);
        if constexpr (kSums) add_input(from[e], sources, e);
      }
      if constexpr (kImages) {
        const Word<T> rounded = round<T>(values);
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          if (inside[e]) to[e] = rounded[e];
        }
      }
      advance();
    };
    if (static_cast<int>(threadIdx.x) < parameters.step) {
#pragma unroll 1
      while (first < 0) take_one();
      if (kSums && kImages && (tile.upper == 0 || tile.lower == 0 || tile.left == 0 || tile.right == 0)) {
        take_batches(std::true_type{});
      } else {
        take_batches(std::false_type{});
      }
#pragma unroll 1
      while (first < results) take_one();
    }

    if constexpr (kSums) {
      const A outside = add_outside(source, tile, parameters);
      TapSums<A> all;
      if constexpr (kFromOneRow) {
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          if (reader.phase[e] == 1) {
            all.upper_left += sums[e][0];
            all.upper_right += sums[e][1];
          } else {
            all.lower_left += sums[e][0];
            all.lower_right += sums[e][1];
          }
        }
      } else {
        all = {sums[0][0], sums[0][1], sums[0][2], sums[0][3]};
      }
      const A along_x = all.along_x(tile) + outside;
      const A along_y = all.along_y(tile) + outside;
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
    const int64_t part = tile.part;
    __syncthreads();
    if (kSums && threadIdx.x < 2) {
      A sum = 0;
      for (unsigned i = threadIdx.x; i < blockDim.x / 16; i += 2) sum += warp_sums[i];
      partial[threadIdx.x * parameters.channels.divisor() * parameters.parts + part] = sum;
    }
    // Half of the tiles known is used up: in its place come those after the other half.
    const int done = index + 1 - begin;
    if (done % kAhead == 0) make_tiles(index + 1 + kAhead, kAhead);
  }
}

// Rows of sources that so many rows of results need.
int64_t source_rows_of(int64_t rows, int64_t stride, bool transposed) {
  return transposed && stride > 1 ? (rows - 1) / stride + 2 : (rows - 1) * stride + 2;
}

// Elements in front of a stage and behind it: a word that is thrown away lies less than a sector from its
// tile, and its sources a row further.
template <typename T>
int64_t margin_of(int64_t width) {
  constexpr int64_t kPiece = kVectorElements<T>;
  return ceil_divide<int64_t>(width + kSectorBytes / sizeof(T) + kWord<T>, kPiece) * kPiece;
}

// Strides beyond the image are all alike; this one still divides fast.
int stride_of(const Geometry& geometry) {
  return static_cast<int>(std::min(geometry.stride, geometry.height + 1));
}

template <typename T, Pass kPass, bool kStrided>
void launch(const Arguments<T>& arguments, const Plan& plan, accumulate_t<T>* partial, cudaStream_t stream) {
  constexpr bool kTransposed = is_transposed(kPass);
  const Geometry& geometry = arguments.geometry;
  const int64_t result_rows = arguments.result_rows(kTransposed);
  const int tiles = static_cast<int>(ceil_divide<int64_t>(result_rows, plan.tile_rows));
  PlanesParameters parameters;
  parameters.tiles = FastDivisor(tiles);
  parameters.channels = FastDivisor(static_cast<int>(geometry.channels));
  parameters.width = FastDivisor(static_cast<int>(geometry.width));
  parameters.stride = FastDivisor(stride_of(geometry));
  parameters.height = static_cast<int>(geometry.height);
  parameters.steps = static_cast<int>(geometry.steps);
  parameters.source_rows = static_cast<int>(arguments.source_rows(kTransposed));
  parameters.result_rows = static_cast<int>(result_rows);
  parameters.tile_rows = plan.tile_rows;
  parameters.tile_count = static_cast<int>(geometry.planes()) * tiles;
  parameters.step = plan.step;
  parameters.margin = static_cast<int>(margin_of<T>(geometry.width));
  parameters.stage_elements = static_cast<int>(plan.shared_bytes / 2 / static_cast<int64_t>(sizeof(T)));
  parameters.source_elements = geometry.planes() * parameters.source_rows * geometry.width;
  parameters.parts = plan.parts;
  parameters.paired_input = !has_sums(kPass) || !has_images(kPass) ||
                            reinterpret_cast<uintptr_t>(arguments.input) % (kWord<T> * sizeof(T)) ==
                                reinterpret_cast<uintptr_t>(arguments.result) % (kWord<T> * sizeof(T));
  shift_planes<T, kPass, kStrided><<<static_cast<unsigned>(plan.blocks), static_cast<unsigned>(plan.threads),
                                     static_cast<size_t>(plan.shared_bytes), stream>>>(
      arguments.source, arguments.input, arguments.x_offset, arguments.y_offset, arguments.result, partial,
      parameters);
  check_launch(kTransposed ? "shift_grads" : "shift");
}

template <typename T, Pass kPass>
void launch(const Arguments<T>& arguments, const Plan& plan, accumulate_t<T>* partial, cudaStream_t stream) {
  if (arguments.geometry.stride == 1) return launch<T, kPass, false>(arguments, plan, partial, stream);
  launch<T, kPass, true>(arguments, plan, partial, stream);
}

}  // namespace

template <typename T>
bool plan_planes(const Arguments<T>& arguments, Pass pass, Plan& plan) {
  constexpr int64_t kLimit = int64_t{1} << 30;
  const Geometry& geometry = arguments.geometry;
  const bool transposed = is_transposed(pass);
  const int64_t width = geometry.width;
  // Words after which columns repeat.
  const int64_t period = width / std::gcd(width, int64_t{kWord<T>});
  const int64_t rows = arguments.result_rows(transposed);
  const int64_t stride = stride_of(geometry);
  if (period > kMostThreads || geometry.height >= kLimit / (2 * width + 2)) return false;

  constexpr int64_t kPiece = kVectorElements<T>;
  const int64_t margin = margin_of<T>(width);
  const int64_t room = kSharedBytes / 2 - (2 * margin + 2 * kPiece) * static_cast<int64_t>(sizeof(T));
  const int64_t stage_rows = std::min(kStageBytes, room) / (width * static_cast<int64_t>(sizeof(T)));
  const int64_t most_rows =
      transposed && stride > 1 ? (stage_rows - 1) * stride : (stage_rows - 2) / stride + 1;
  if (stage_rows < 2 || most_rows < 1) return false;
  const int64_t tiles = ceil_divide(rows, std::min(most_rows, rows));
  const int64_t tile_rows = ceil_divide(rows, tiles);
  const int64_t tile_count = geometry.planes() * ceil_divide(rows, tile_rows);
  if (tile_count >= kLimit) return false;

  // As many whole periods as leave few threads without a word, and of whole sectors if possible.
  constexpr int64_t kSectorElements = kSectorBytes / sizeof(T);
  const int64_t words = ceil_divide<int64_t>(tile_rows * width + kSectorElements, kWord<T>);
  double best = 0;
  const auto try_step = [&](int64_t step) {
    // A result's sources must stay of one kind from step to step.
    if (transposed && step * kWord<T> / width % stride != 0) return;
    const int64_t threads = ceil_divide<int64_t>(step, 32) * 32;
    const double sectors = step * kWord<T> % kSectorElements == 0 ? 1.0 : 0.9;
    const double score = sectors * static_cast<double>(step) / static_cast<double>(threads);
    if (score < best) return;
    best = score;
    plan.step = static_cast<int>(step);
    plan.threads = static_cast<int>(threads);
  };
  for (const int64_t most : {kMostThreads / 2, kMostThreads}) {
    if (best > 0) break;
    for (int64_t step = period; step <= most; step += period) {
      try_step(step);
      if (step >= words) break;
    }
  }
  if (best == 0) return false;

  const int64_t stage =
      ceil_divide(source_rows_of(tile_rows, stride, transposed) * width, kPiece) * kPiece + kPiece;
  plan.kernel = Plan::Kernel::planes;
  plan.tile_rows = static_cast<int>(tile_rows);
  plan.shared_bytes = 2 * (stage + 2 * margin) * static_cast<int64_t>(sizeof(T));
  const int resident = Device().resident_blocks(plan.threads, plan.shared_bytes, resident_threads(pass));
  plan.blocks = static_cast<int>(std::min<int64_t>(resident, tile_count));
  plan.parts = geometry.batch * ceil_divide(rows, tile_rows);
  return true;
}

template <typename T>
void launch_planes(const Arguments<T>& arguments, Pass pass, const Plan& plan, accumulate_t<T>* partial,
                   cudaStream_t stream) {
  switch (pass) {
    case Pass::forward:
      return launch<T, Pass::forward>(arguments, plan, partial, stream);
    case Pass::input_grad:
      return launch<T, Pass::input_grad>(arguments, plan, partial, stream);
    case Pass::offset_grad:
      return launch<T, Pass::offset_grad>(arguments, plan, partial, stream);
    case Pass::grads:
      return launch<T, Pass::grads>(arguments, plan, partial, stream);
  }
}

#define SHIFT_PLANES(T)                                        \
  template bool plan_planes(const Arguments<T>&, Pass, Plan&); \
  template void launch_planes(const Arguments<T>&, Pass, const Plan&, accumulate_t<T>*, cudaStream_t);
SHIFT_PLANES(double)
SHIFT_PLANES(float)
SHIFT_PLANES(Half)
SHIFT_PLANES(BFloat16)
#undef SHIFT_PLANES

}  // namespace torchgraft::shift::cuda
