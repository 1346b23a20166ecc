// Contiguous images whose rows have up to 256 columns (of halves 512): tiles of rows through shared memory.
//
// A plane of a skeleton, 300 x 25, is one piece of memory. A block takes tiles of it in turn: the rows of
// sources of a tile come into shared memory as one run, in pieces of sixteen bytes whatever a row's length,
// the next tile's while this one is computed; rows outside the plane are zeros there. A thread owns four
// bytes of results (one float, two halves; one double) every `step` words, a step being whole rows: so its
// columns, and which of its taps lie outside a row, stay what they are; and stores of a warp are whole
// sectors. In the backward passes it also reads the input at its results, once, four ahead.
//
// Bytes: each source once, but for one row a tile, and each result once: (128,64,300,25) fp32 491 MB forward,
// 737 backward: floors 115 and 172 us at 4283 GB/s, half of that in halves. Six blocks of 224 threads a
// multiprocessor hold 90 KB of sources under way, where 40 fill the memory's latency.
//
// Instructions a result: fp32 forward 16, backward 27, of 58 and 86 that are issued in the time its bytes
// take; halves 18 and 25 of 28 and 43. Shared memory: 5 and 7 cycles for 32 results in fp32, of 14 and 21; in
// halves 3 and 4 of 7 and 10. So memory bounds all of them, backward in halves least.

#include <algorithm>
#include <numeric>

#include "cuda_copies.cuh"
#include "cuda_kernels.h"
#include "cuda_taps.cuh"

namespace torchgraft::shift::cuda {
namespace {

constexpr int kMostThreads = 256;
constexpr int kBlocks = 4;                 // resident, of so many threads, by registers
constexpr int64_t kStageBytes = 16 << 10;  // of sources; a block has two stages
constexpr int kSectorBytes = 32;
constexpr int kBatch = 4;  // words of input under way

// Elements of a thread's word.
template <typename T>
inline constexpr int kWord = sizeof(T) == 2 ? 2 : 1;

struct PlanesParameters {
  FastDivisor tiles;  // of a plane
  FastDivisor channels, width, stride;
  int height, steps, source_rows, result_rows;
  int tile_rows, tile_count;
  int step;    // words
  int margin;  // elements in front of a stage: words reach there that are thrown away
  int stage_elements;
  int64_t source_elements;
  bool paired_input;  // words of the input begin where words of the result do
};

struct Tile {
  int plane, channel, part;
  int first_row, rows;  // of results

  __device__ Tile(int index, const PlanesParameters& parameters) {
    plane = parameters.tiles.divide(index);
    part = index - plane * parameters.tiles.divisor();
    channel = plane - parameters.channels.divide(plane) * parameters.channels.divisor();
    first_row = part * parameters.tile_rows;
    rows = min(parameters.tile_rows, parameters.result_rows - first_row);
  }
};

// The rows of sources of a tile, and where they lie in a stage: as in memory modulo sixteen bytes.
template <typename T>
struct SourceRows {
  int begin, rows;  // may reach outside the plane
  int place;        // of the first, in the stage
  int end;          // behind the last
  int existing;     // place of the first that exists
  int count;        // elements that exist
  int lead;         // elements of others in front of them in their piece
  int pieces;
  int64_t offset;  // of what exists, in the tensor

  template <typename Taps, bool kTransposed, bool kStrided>
  __device__ static SourceRows make(const T* source, const Tile& tile, const Taps& taps,
                                    const PlanesParameters& parameters,
                                    std::integral_constant<bool, kTransposed>,
                                    std::integral_constant<bool, kStrided>) {
    SourceRows found;
    if constexpr (kTransposed && kStrided) {
      found.begin = divide_down(tile.first_row - taps.row, parameters.stride);
      found.rows =
          divide_down(tile.first_row + tile.rows - 1 - taps.row, parameters.stride) - found.begin + 1;
    } else {
      const int stride = kStrided ? parameters.stride.divisor() : 1;
      found.begin = tile.first_row * stride + taps.row;
      found.rows = (tile.rows - 1) * stride + 2;
    }
    constexpr int kPiece = kVectorElements<T>;
    const int width = parameters.width.divisor();
    const int first = min(max(found.begin, 0), parameters.source_rows);
    const int last = min(max(found.begin + found.rows, 0), parameters.source_rows);
    found.count = (last - first) * width;
    found.offset = (static_cast<int64_t>(tile.plane) * parameters.source_rows + first) * width;
    found.lead = static_cast<int>(reinterpret_cast<uintptr_t>(source + found.offset) % 16 / sizeof(T));
    const int before = (first - found.begin) * width;
    found.place = parameters.margin + ((found.lead - before) & (kPiece - 1));
    found.end = found.place + found.rows * width;
    found.existing = found.place + before;
    found.pieces = found.count > 0 ? (found.lead + found.count + kPiece - 1) / kPiece : 0;
    return found;
  }

  // Begins the copies. A piece at either end may bring elements of other rows.
  __device__ void copy(const T* source, T* stage, const PlanesParameters& parameters) const {
    constexpr int kPiece = kVectorElements<T>;
    const int64_t first = offset - lead;
    const T* const from = source + first;
    const int begin_pieces = existing - lead;
    for (int piece = threadIdx.x; piece < pieces; piece += blockDim.x) {
      const int i = piece * kPiece;
      T* const to = stage + begin_pieces + i;
      if (first + i >= 0 && first + i + kPiece <= parameters.source_elements) {
        copy_ahead<16>(to, from + i);
      } else {
        for (int k = 0; k < kPiece; ++k) {
          const int64_t element = first + i + k;
          to[k] = element >= 0 && element < parameters.source_elements ? source[element] : T(0);
        }
      }
    }
    const int before = pieces > 0 ? begin_pieces : end;
    for (int i = place + threadIdx.x; i < before; i += blockDim.x) stage[i] = T(0);
    for (int i = before + pieces * kPiece + threadIdx.x; i < end; i += blockDim.x) stage[i] = T(0);
  }

  // Makes zeros of what copies brought of other rows, each thread in its own copies.
  __device__ void clear(T* stage) const {
    if (pieces == 0) return;
    const int begin_pieces = existing - lead;
    const int end_pieces = begin_pieces + pieces * kVectorElements<T>;
    if (threadIdx.x == 0) {
      for (int i = max(begin_pieces, place); i < existing; ++i) stage[i] = T(0);
    }
    if (threadIdx.x == static_cast<unsigned>(pieces - 1) % blockDim.x) {
      for (int i = existing + count; i < min(end_pieces, end); ++i) stage[i] = T(0);
    }
  }
};

// What lies around one word of results.
template <typename T>
struct Around {
  using A = accumulate_t<T>;
  A upper_left[kWord<T>], upper_right[kWord<T>], lower_left[kWord<T>], lower_right[kWord<T>];
};

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
template <typename T, bool kTransposed, bool kStrided, bool kReadAll>
class ElementSources {
 public:
  using A = accumulate_t<T>;

  template <typename Taps>
  __device__ ElementSources(const T* stage, const SourceRows<T>& rows, const Tile& tile,
                            const WordPlace<T>& word, const Taps& taps, const PlanesParameters& parameters)
      : stage_(stage), width_(parameters.width.divisor()) {
    reads_upper_ = kReadAll || taps.upper != 0;
    reads_lower_ = kReadAll || taps.lower != 0;
    const int rows_of_step = parameters.step * kWord<T> / width_;
    const int stride = parameters.stride.divisor();
    stride_ = stride;
#pragma unroll
    for (int e = 0; e < kWord<T>; ++e) {
      const int left = word.column[e] + taps.column;
      reads_left_[e] = (kReadAll || taps.left != 0) && is_inside(left, width_);
      reads_right_[e] = (kReadAll || taps.right != 0) && is_inside(left + 1, width_);
      if constexpr (kFromOneRow) {
        const int distance = tile.first_row + word.row[e] - taps.row;
        const int source_row = divide_down(distance, parameters.stride);
        phase_[e] = distance - source_row * stride;
        index_[e] = rows.place + (source_row - rows.begin) * width_ + left;
      } else {
        index_[e] = rows.place + word.row[e] * (kStrided ? stride : 1) * width_ + left;
      }
    }
    if constexpr (kFromOneRow) {
      const int source_rows = parameters.stride.divide(rows_of_step);
      phase_step_ = rows_of_step - source_rows * stride;
      step_ = source_rows * width_;
    } else {
      step_ = rows_of_step * (kStrided ? stride : 1) * width_;
    }
  }

  __device__ void load(const bool (&inside)[kWord<T>], Around<T>& around) const {
#pragma unroll
    for (int e = 0; e < kWord<T>; ++e) {
      const auto read = [&](bool reads, int index) {
        return inside[e] && reads ? static_cast<A>(stage_[index]) : A(0);
      };
      if constexpr (kFromOneRow) {
        const bool upper = phase_[e] == 1 && reads_upper_;
        const bool lower = phase_[e] == 0 && reads_lower_;
        const A left = read(reads_left_[e] && (upper || lower), index_[e]);
        const A right = read(reads_right_[e] && (upper || lower), index_[e] + 1);
        around.upper_left[e] = upper ? left : A(0);
        around.upper_right[e] = upper ? right : A(0);
        around.lower_left[e] = lower ? left : A(0);
        around.lower_right[e] = lower ? right : A(0);
      } else {
        around.upper_left[e] = read(reads_left_[e] && reads_upper_, index_[e]);
        around.upper_right[e] = read(reads_right_[e] && reads_upper_, index_[e] + 1);
        around.lower_left[e] = read(reads_left_[e] && reads_lower_, index_[e] + width_);
        around.lower_right[e] = read(reads_right_[e] && reads_lower_, index_[e] + width_ + 1);
      }
    }
  }

  __device__ void advance() {
#pragma unroll
    for (int e = 0; e < kWord<T>; ++e) {
      index_[e] += step_;
      if constexpr (kFromOneRow) {
        phase_[e] += phase_step_;
        if (phase_[e] >= stride_) {
          phase_[e] -= stride_;
          index_[e] += width_;
        }
      }
    }
  }

 private:
  static constexpr bool kFromOneRow = kTransposed && kStrided;
  const T* stage_;
  int width_, stride_, step_, phase_step_ = 0;
  int index_[kWord<T>], phase_[kWord<T>];
  bool reads_left_[kWord<T>], reads_right_[kWord<T>], reads_upper_, reads_lower_;
};

// Two halves side by side, in float.
template <typename T>
__device__ void widen(uint32_t pair, float (&values)[2]) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    values[0] = __uint_as_float(pair << 16);
    values[1] = __uint_as_float(pair & 0xffff0000U);
  } else {
    const float2 both = __half22float2(reinterpret_cast<const __half2&>(pair));
    values[0] = both.x;
    values[1] = both.y;
  }
}

// The sources of two halves: also where one row follows the other, they are three neighbours, in two words of
// the stage. What is not to be read becomes zero by its bits.
template <typename T, bool kReadAll>
class PairSources {
 public:
  template <typename Taps>
  __device__ PairSources(const T* stage, const SourceRows<T>& rows, int first, const WordPlace<T>& word,
                         const Taps& taps, const PlanesParameters& parameters) {
    const int width = parameters.width.divisor();
    const int index = rows.place + first + taps.column;
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
      const int column = word.column[e] + taps.column;
      const uint32_t bits = 0xffffU << (16 * e);
      if ((kReadAll || taps.left != 0) && is_inside(column, width)) left |= bits;
      if ((kReadAll || taps.right != 0) && is_inside(column + 1, width)) right |= bits;
    }
    const bool reads_upper = kReadAll || taps.upper != 0;
    const bool reads_lower = kReadAll || taps.lower != 0;
    upper_left_ = reads_upper ? left : 0;
    upper_right_ = reads_upper ? right : 0;
    lower_left_ = reads_lower ? left : 0;
    lower_right_ = reads_lower ? right : 0;
  }

  __device__ void load(const bool (&inside)[2], Around<T>& around) const {
    load_row(upper_, upper_shift_, upper_left_, upper_right_, around.upper_left, around.upper_right);
    load_row(lower_, lower_shift_, lower_left_, lower_right_, around.lower_left, around.lower_right);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (inside[e]) continue;
      around.upper_left[e] = around.upper_right[e] = 0;
      around.lower_left[e] = around.lower_right[e] = 0;
    }
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
    widen<T>(__funnelshift_r(first, second, shift) & left_mask, left);
    widen<T>(__funnelshift_rc(first, second, shift + 16) & right_mask, right);
  }

  const uint32_t* upper_;
  const uint32_t* lower_;
  int upper_shift_, lower_shift_, step_;
  uint32_t upper_left_, upper_right_, lower_left_, lower_right_;
};

// A word of memory, zeros for elements that are not inside.
template <typename T>
__device__ void load_word(const T* word, const bool (&inside)[kWord<T>], bool paired,
                          Vector<T, kWord<T>>& values) {
  using Word = Vector<T, kWord<T>>;
  if (kWord<T> == 1 ? inside[0] : inside[0] && inside[kWord<T> - 1] && paired) {
    values = *reinterpret_cast<const Word*>(word);
    return;
  }
#pragma unroll
  for (int e = 0; e < kWord<T>; ++e) values[e] = inside[e] ? word[e] : T(0);
}

template <typename T>
__device__ void store_word(const accumulate_t<T> (&values)[kWord<T>], const bool (&inside)[kWord<T>],
                           T* word) {
  Vector<T, kWord<T>> rounded;
  if constexpr (std::is_same_v<T, BFloat16>) {
    reinterpret_cast<__nv_bfloat162&>(rounded) = __floats2bfloat162_rn(values[0], values[1]);
  } else if constexpr (std::is_same_v<T, Half>) {
    reinterpret_cast<__half2&>(rounded) = __floats2half2_rn(values[0], values[1]);
  } else {
    rounded[0] = values[0];
  }
  if (kWord<T> == 1 ? inside[0] : inside[0] && inside[kWord<T> - 1]) {
    *reinterpret_cast<Vector<T, kWord<T>>*>(word) = rounded;
    return;
  }
#pragma unroll
  for (int e = 0; e < kWord<T>; ++e) {
    if (inside[e]) word[e] = rounded[e];
  }
}

// Zero times each gradient of the tile's share of results that lie outside the image.
template <typename T, typename Taps>
__device__ accumulate_t<T> add_outside(const T* output_grad, const Tile& tile, const Taps& taps,
                                       const PlanesParameters& parameters) {
  using A = accumulate_t<T>;
  const int width = parameters.width.divisor();
  const int64_t tiles = parameters.tiles.divisor();
  const int begin = static_cast<int>(parameters.steps * int64_t{tile.part} / tiles);
  const int end = static_cast<int>(parameters.steps * (int64_t{tile.part} + 1) / tiles);
  const Outside outside(taps, parameters.height, width, parameters.steps, parameters.stride);
  const T* const plane = output_grad + static_cast<int64_t>(tile.plane) * parameters.steps * width;
  A sum = 0;
  const auto add = [&](int first_row, int end_row, int first_column, int end_column) {
    const int columns = end_column - first_column;
    const int count = (end_row - first_row) * columns;
    if (end_row <= first_row || columns <= 0) return;
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
      const int row = i / columns;
      sum += A(0) * static_cast<A>(plane[(first_row + row) * width + first_column + i - row * columns]);
    }
  };
  const int first_row = min(max(outside.first_row, begin), end);
  const int end_row = max(min(outside.end_row, end), first_row);
  add(begin, first_row, 0, width);
  add(end_row, end, 0, width);
  add(first_row, end_row, 0, outside.first_column);
  add(first_row, end_row, outside.end_column, width);
  return sum;
}

template <typename T, Pass kPass, bool kStrided>
__global__ void __launch_bounds__(kMostThreads, kBlocks)
    shift_planes(const T* __restrict__ source, const T* __restrict__ input, const T* __restrict__ x_offset,
                 const T* __restrict__ y_offset, T* __restrict__ result,
                 accumulate_t<T>* __restrict__ partial, int64_t parts, PlanesParameters parameters) {
  using A = accumulate_t<T>;
  constexpr bool kTransposed = is_transposed(kPass);
  constexpr bool kImages = has_images(kPass);
  constexpr bool kSums = has_sums(kPass);
  constexpr int kElements = kWord<T>;
  using TapsOfT = Taps<T, kTransposed, kStrided>;
  constexpr std::integral_constant<bool, kTransposed> transposed;
  constexpr std::integral_constant<bool, kStrided> strided;

  __shared__ A warp_sums[2 * kMostThreads / 32];
  T* const stages = shared_memory<T>();
  const int width = parameters.width.divisor();
  const int begin = static_cast<int>(int64_t{parameters.tile_count} * blockIdx.x / gridDim.x);
  const int end = static_cast<int>(int64_t{parameters.tile_count} * (blockIdx.x + 1) / gridDim.x);
  const T* const aligned = kImages ? result : input;  // words are those of this image

  const auto begin_copies = [&](int index, T x, T y) {
    const Tile tile(index, parameters);
    const TapsOfT taps(x, y, width, parameters.height);
    const auto rows = SourceRows<T>::make(source, tile, taps, parameters, transposed, strided);
    rows.copy(source, stages + index % 2 * parameters.stage_elements, parameters);
  };
  const auto offset_of = [&](const T* offsets, int index) {
    return offsets[Tile(min(index, parameters.tile_count - 1), parameters).channel];
  };

  T x = offset_of(x_offset, begin);
  T y = offset_of(y_offset, begin);
  T next_x = offset_of(x_offset, begin + 1);
  T next_y = offset_of(y_offset, begin + 1);
  begin_copies(begin, x, y);
  end_copies();
#pragma unroll 1
  for (int index = begin; index < end; ++index) {
    if (index + 1 < end) begin_copies(index + 1, next_x, next_y);
    end_copies();
    const T later_x = offset_of(x_offset, index + 2);
    const T later_y = offset_of(y_offset, index + 2);

    const Tile tile(index, parameters);
    const TapsOfT taps(x, y, width, parameters.height);
    const auto rows = SourceRows<T>::make(source, tile, taps, parameters, transposed, strided);
    T* const stage = stages + index % 2 * parameters.stage_elements;
    wait_for_copies<1>();
    rows.clear(stage);
    __syncthreads();

    const int64_t offset =
        (static_cast<int64_t>(tile.plane) * parameters.result_rows + tile.first_row) * width;
    const int head =
        static_cast<int>(reinterpret_cast<uintptr_t>(aligned + offset) % kSectorBytes / sizeof(T));
    const int results = tile.rows * width;
    const int step = parameters.step * kElements;
    int first = static_cast<int>(threadIdx.x) * kElements - head;
    const WordPlace<T> word(first, parameters.width);
    auto sources = [&] {
      if constexpr (kElements == 2 && !kStrided) {
        return PairSources<T, kSums>(stage, rows, first, word, taps, parameters);
      } else {
        return ElementSources<T, kTransposed, kStrided, kSums>(stage, rows, tile, word, taps, parameters);
      }
    }();
    if (static_cast<int>(threadIdx.x) >= parameters.step) first = results;

    const A weights[4] = {taps.upper * taps.left, taps.upper * taps.right, taps.lower * taps.left,
                          taps.lower * taps.right};
    TapSums<A> sums;
    while (first < results) {
      bool inside[kBatch][kElements];
      Vector<T, kElements> inputs[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
#pragma unroll
        for (int e = 0; e < kElements; ++e) inside[i][e] = is_inside(first + i * step + e, results);
        if constexpr (kSums) {
          load_word(input + offset + first + i * step, inside[i], parameters.paired_input, inputs[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (first + i * step < results) {
          Around<T> around;
          sources.load(inside[i], around);
          A values[kElements];
#pragma unroll
          for (int e = 0; e < kElements; ++e) {
            const A taken[4] = {around.upper_left[e], around.upper_right[e], around.lower_left[e],
                                around.lower_right[e]};
            values[e] = 0;
#pragma unroll
            for (int tap = 0; tap < 4; ++tap) {
              // What is read for the sums alone must not be a result's NaN.
              if (!kSums || weights[tap] != 0) values[e] += weights[tap] * taken[tap];
            }
            if constexpr (kSums) {
              sums.add(static_cast<A>(inputs[i][e]), taken[0], taken[1], taken[2], taken[3]);
            }
          }
          if constexpr (kImages) store_word<T>(values, inside[i], result + offset + first + i * step);
        }
        sources.advance();
      }
      first += kBatch * step;
    }

    if constexpr (kSums) {
      const A outside = add_outside(source, tile, taps, parameters);
      const A along_x = sums.along_x(taps) + outside;
      const A along_y = sums.along_y(taps) + outside;
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
    if (kSums && threadIdx.x < 2) {
      A sum = 0;
      for (unsigned i = threadIdx.x; i < blockDim.x / 16; i += 2) sum += warp_sums[i];
      const int64_t channels = parameters.channels.divisor();
      const int64_t image = parameters.channels.divide(tile.plane);
      partial[(threadIdx.x * channels + tile.channel) * parts + image * parameters.tiles.divisor() +
              tile.part] = sum;
    }
    x = next_x;
    y = next_y;
    next_x = later_x;
    next_y = later_y;
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
  parameters.paired_input = !has_sums(kPass) || !has_images(kPass) ||
                            reinterpret_cast<uintptr_t>(arguments.input) % (kWord<T> * sizeof(T)) ==
                                reinterpret_cast<uintptr_t>(arguments.result) % (kWord<T> * sizeof(T));
  shift_planes<T, kPass, kStrided><<<static_cast<unsigned>(plan.blocks), static_cast<unsigned>(plan.threads),
                                     static_cast<size_t>(plan.shared_bytes), stream>>>(
      arguments.source, arguments.input, arguments.x_offset, arguments.y_offset, arguments.result, partial,
      plan.parts, parameters);
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

  const int64_t stage_rows = kStageBytes / (width * static_cast<int64_t>(sizeof(T)));
  const int64_t most_rows =
      transposed && stride > 1 ? (stage_rows - 2) * stride : (stage_rows - 2) / stride + 1;
  if (stage_rows < 2 || most_rows < 1) return false;
  const int64_t tiles = ceil_divide(rows, std::min(most_rows, rows));
  const int64_t tile_rows = ceil_divide(rows, tiles);
  const int64_t tile_count = geometry.planes() * ceil_divide(rows, tile_rows);
  if (tile_count >= kLimit) return false;

  // As many whole periods as leave few threads without a word, and of whole sectors if possible.
  constexpr int64_t kSectorElements = kSectorBytes / sizeof(T);
  const int64_t words = ceil_divide<int64_t>(tile_rows * width + kSectorElements, kWord<T>);
  double best = 0;
  for (int64_t step = period; step <= kMostThreads; step += period) {
    const int64_t threads = ceil_divide<int64_t>(step, 32) * 32;
    const double sectors = step * kWord<T> % kSectorElements == 0 ? 1.0 : 0.9;
    const double score = sectors * static_cast<double>(step) / static_cast<double>(threads);
    if (score >= best) {
      best = score;
      plan.step = static_cast<int>(step);
      plan.threads = static_cast<int>(threads);
    }
    if (step >= words) break;
  }

  const int64_t margin = margin_of<T>(width);
  const int64_t piece = kVectorElements<T>;
  const int64_t stage =
      ceil_divide(source_rows_of(tile_rows, stride, transposed) * width + 2 * piece, piece) * piece;
  plan.kernel = Plan::Kernel::planes;
  plan.tile_rows = static_cast<int>(tile_rows);
  plan.shared_bytes = 2 * (stage + 2 * margin) * static_cast<int64_t>(sizeof(T));
  const int resident = Device().resident_blocks(plan.threads, plan.shared_bytes, kMostThreads * kBlocks);
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
