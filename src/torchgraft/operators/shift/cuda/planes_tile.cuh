// A tile of the kernel planes: where its rows lie in device and in shared memory, and the copies that bring
// them.
#pragma once

#include <torchgraft/async_copy.cuh>

#include <cstdint>

#include "kernels.h"
#include "supports.h"
#include "taps.cuh"

namespace torchgraft::shift::cuda {

struct PlanesParameters {
  FastDivisor tiles;  // of a plane
  FastDivisor channels, stride;
  FastDivisor chunks;  // threads along a row
  int width, height, steps, source_rows, result_rows;
  int tile_rows, tile_count;
  int rows;         // of results of a thread
  int margin;       // elements in front of a stage and behind it, which threads read and throw away
  int input_place;  // where the inputs begin in a stage, behind the sources
  int stage_elements;
  int64_t source_elements, result_elements;
  int64_t parts;  // partial sums of a channel
};

// Everything that threads must know of a tile. One thread works it out for the whole block; the first threads
// of a block do so side by side, for kTilesAhead tiles at a time.
template <typename T>
struct alignas(16) PlanesTile {
  using A = accumulate_t<T>;
  A left, right, upper, lower;  // weights
  int64_t first_source;         // element of the source where the first piece begins
  int64_t first_result;         // element of the result where the tile begins
  int64_t part;                 // which of the partial sums along x is the tile's
  int stage_place, pieces;      // where the first piece goes, and how many there are
  int place, end;              // of the tile's rows of sources in the stage; they may reach outside the plane
  int existing, existing_end;  // of the rows that exist; the pieces may bring elements of other planes
  int rows;                    // of results
  int lead, input_lead;  // elements of the result and the input since the last multiple of sixteen bytes
  int column;            // of the left source of column 0
  int phase;  // in the strided transpose: rows of results since the one whose lower source is the first
  int plane;
  int first_share, end_share;  // rows of the output's gradient: the tile's share of those outside the image
  int first_row, end_row, first_column, end_column;  // the part of the share that is not outside
};

// Shared memory that the kernel declares itself, beside what a launch gives it.
template <typename T>
constexpr int64_t kPlanesDeclaredBytes =
    2 * kTilesAhead * sizeof(PlanesTile<T>) + 2 * kTileThreads / 32 * sizeof(accumulate_t<T>);
static_assert(sizeof(PlanesTile<float>) == tile_bytes(4) && sizeof(PlanesTile<double>) == tile_bytes(8));

// Elements since the last multiple of sixteen bytes.
template <typename T>
__device__ int lead_of(const T* element) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(element) % 16 / sizeof(T));
}

template <typename T, Pass kPass, bool kStrided>
__device__ PlanesTile<T> make_tile(int index, const T* source, const T* input, const T* result,
                                   const T* x_offset, const T* y_offset, const PlanesParameters& parameters) {
  constexpr bool kTransposed = is_transposed(kPass);
  constexpr int kPiece = kVectorElements<T>;
  const int width = parameters.width;
  PlanesTile<T> tile;
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
  // An element has the same place modulo sixteen bytes in the stage as in memory.
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

// Begins to copy `pieces` pieces, from element `first` of a tensor on. The first piece may begin in front of
// the tensor, and the last one end behind it: tensors need not begin and end where pieces do.
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
    // Each thread brings the same pieces as above.
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

// Begins to copy what a tile reads, and writes zeros for the rows of sources that do not exist.
template <bool kInput, int kThreads, typename T>
__device__ void copy_tile(const T* source, const T* input, const PlanesTile<T>& tile, T* stage,
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

// Overwrites with zeros what the copies brought of other planes' rows; each thread in its own copies.
template <int kThreads, typename T>
__device__ void clear_others(const PlanesTile<T>& tile, T* stage) {
  if (threadIdx.x == 0) {
#pragma unroll 1
    for (int i = max(tile.stage_place, tile.place); i < tile.existing; ++i) stage[i] = T(0);
  }
  // Without pieces no row exists, and existing_end is the end of the tile.
  if (tile.existing_end < tile.end && threadIdx.x == static_cast<unsigned>(tile.pieces - 1) % kThreads) {
    const int end = min(tile.stage_place + tile.pieces * kVectorElements<T>, tile.end);
#pragma unroll 1
    for (int i = tile.existing_end; i < end; ++i) stage[i] = T(0);
  }
}

// Zero times each gradient of the tile's share of the results that lie outside the image: they count for the
// gradients of the offsets.
template <int kThreads, typename T>
__device__ accumulate_t<T> add_outside(const T* output_grad, const PlanesTile<T>& tile,
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

}  // namespace torchgraft::shift::cuda
