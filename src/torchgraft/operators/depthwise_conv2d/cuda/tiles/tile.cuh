// Tiles of NCHW planes in shared memory: how planes are cut, and how a tile comes and goes.
//
// A tile is a rectangle of one plane, or all of several small planes. In device memory it is one run of
// neighbouring elements, or one run a plane, or one run a row; each run moves sixteen bytes at a time from
// the first sixteen-byte boundary on, whatever the width of the plane, so that 14 x 14 and 7 x 7 planes move
// as fast as large ones. In shared memory it has a border of zeros, room for whole patches and the type that
// sums are kept in: no test and no conversion is left in the inner loop.
#pragma once

#include "../stencil.cuh"
#include "../supports.h"

namespace torchgraft::depthwise::cuda {

// One direction of a tiling; a tile has `patches` patches. Both origins may lie outside the image.
struct TileAxis {
  FastDivisor source, result;  // sizes of the image
  int tiles, patches;
  int result_extent, source_extent;  // of a tile in shared memory
  int first_result, first_source;    // origins of tile 0
  int source_step;                   // between the origins of two tiles

  __device__ int result_origin(int tile) const { return first_result + tile * result_extent; }
  __device__ int source_origin(int tile) const { return first_source + tile * source_step; }
};

struct Tiling {
  TileAxis height, width;
  int planes;  // of a block; more than one only where a tile is a whole plane

  __host__ __device__ int patches() const { return planes * height.patches * width.patches; }
  __host__ __device__ int source_plane() const { return height.source_extent * width.source_extent; }
  __host__ __device__ int result_plane() const { return height.result_extent * width.result_extent; }
  int64_t tiles() const { return static_cast<int64_t>(height.tiles) * width.tiles; }
};

// Where one side of a tile, source or result, meets its image.
struct TilePart {
  int64_t offset;  // in the plane: its first element in device memory
  int shared;      // and in shared memory
  int rows, columns;
  int pitch, shared_plane;  // of shared memory
};

__device__ inline TilePart tile_part(int origin_y, int origin_x, int height, int width, int extent_y,
                                     int extent_x) {
  const int begin_y = max(origin_y, 0);
  const int begin_x = max(origin_x, 0);
  return {static_cast<int64_t>(begin_y) * width + begin_x,
          (begin_y - origin_y) * extent_x + begin_x - origin_x,
          max(min(origin_y + extent_y, height) - begin_y, 0),
          max(min(origin_x + extent_x, width) - begin_x, 0),
          extent_x,
          extent_y * extent_x};
}

__device__ inline TilePart source_part(const Tiling& tiling, int tile_y, int tile_x) {
  const TileAxis& height = tiling.height;
  const TileAxis& width = tiling.width;
  return tile_part(height.source_origin(tile_y), width.source_origin(tile_x), height.source.divisor(),
                   width.source.divisor(), height.source_extent, width.source_extent);
}

__device__ inline TilePart result_part(const Tiling& tiling, int tile_y, int tile_x) {
  const TileAxis& height = tiling.height;
  const TileAxis& width = tiling.width;
  return tile_part(height.result_origin(tile_y), width.result_origin(tile_x), height.result.divisor(),
                   width.result.divisor(), height.result_extent, width.result_extent);
}

// Sixteen bytes of a tile: elements [begin, end) of those behind `memory`, a sixteen-byte boundary, belong to
// it.
template <typename T>
struct TileSlot {
  static constexpr int kElements = kVectorElements<std::remove_const_t<T>>;
  T* memory;
  int begin, end;
  // Where element `begin` lies in shared memory, and in its plane.
  int index;
  int row, column;
  // Sizes of the plane, and what lies between two rows, and two planes, in shared memory.
  int height, width;
  int row_gap, plane_gap;

  __device__ bool whole() const { return end - begin == kElements; }
  // Whether the elements lie in two rows at most.
  __device__ bool two_rows() const { return width >= kElements; }

  // For a whole slot in two rows: how many elements lie in the first, and how far the second is set off.
  __device__ int left() const { return width - column; }
  __device__ int gap() const { return row_gap + (row + 1 == height ? plane_gap : 0); }

  // To the next element, wherever rows end.
  __device__ void next() {
    ++index;
    if (++column < width) return;
    column = 0;
    index += row_gap;
    if (++row < height) return;
    row = 0;
    index += plane_gap;
  }
};

// Calls `move(slot)` for every sixteen bytes of a tile, which are shared out among the threads of the block.
template <typename T, typename Move>
__device__ void for_each_slot(T* first_plane, int64_t plane_stride, int planes, const FastDivisor& height,
                              const FastDivisor& width, const TilePart& part, const Move& move) {
  using Slot = TileSlot<T>;
  if (part.rows == 0 || part.columns == 0) return;
  const bool whole_rows = part.columns == width.divisor();
  const bool small_planes_whole = whole_rows && part.rows == height.divisor() &&
                                  plane_stride == static_cast<int64_t>(height.divisor()) * width.divisor();
  const int runs = small_planes_whole ? 1 : whole_rows ? planes : planes * part.rows;
  const int length = small_planes_whole ? planes * part.rows * part.columns
                     : whole_rows       ? part.rows * part.columns
                                        : part.columns;
  // A run that does not begin on a boundary touches one slot more.
  const unsigned slots = length / Slot::kElements + 2;
  for (unsigned index = threadIdx.x; index < runs * slots; index += blockDim.x) {
    const int run = runs == 1 ? 0 : static_cast<int>(index / slots);
    const int run_plane = whole_rows ? run : run / part.rows;
    const int run_row = whole_rows ? 0 : run - run_plane * part.rows;
    T* memory = first_plane + part.offset + run_plane * plane_stride +
                static_cast<int64_t>(run_row) * width.divisor();
    const int behind = static_cast<int>(reinterpret_cast<uintptr_t>(memory) % 16 / sizeof(T));
    const int element = static_cast<int>(index - run * slots) * Slot::kElements - behind;
    if (element >= length) continue;
    const int start = max(element, 0);
    const int row = width.divide(start);
    const int column = start - row * width.divisor();
    const int plane = height.divide(row);
    const int plane_row = row - plane * height.divisor();
    move(Slot{
        memory + element, start - element, min(length - element, Slot::kElements),
        part.shared + (run_plane + plane) * part.shared_plane + (run_row + plane_row) * part.pitch + column,
        plane_row, column, height.divisor(), width.divisor(), part.pitch - width.divisor(),
        part.shared_plane - height.divisor() * part.pitch});
  }
}

template <typename T, typename Accumulate>
__device__ void load_tile(const T* first_plane, int64_t plane_stride, int planes, const FastDivisor& height,
                          const FastDivisor& width, const TilePart& part, Accumulate* shared) {
  for_each_slot(first_plane, plane_stride, planes, height, width, part, [shared](TileSlot<const T> slot) {
    if (!slot.whole()) {
      for (int i = slot.begin; i < slot.end; ++i, slot.next()) {
        shared[slot.index] = static_cast<Accumulate>(slot.memory[i]);
      }
      return;
    }
    const Vector<T> values = *reinterpret_cast<const Vector<T>*>(slot.memory);
    if (slot.two_rows()) {
      Accumulate* first = shared + slot.index;
      Accumulate* second = first + slot.gap();
      const int left = slot.left();
#pragma unroll
      for (int i = 0; i < slot.kElements; ++i)
        (i < left ? first : second)[i] = static_cast<Accumulate>(values[i]);
    } else {
#pragma unroll
      for (int i = 0; i < slot.kElements; ++i, slot.next())
        shared[slot.index] = static_cast<Accumulate>(values[i]);
    }
  });
}

template <typename T, typename Accumulate>
__device__ void store_tile(T* first_plane, int64_t plane_stride, int planes, const FastDivisor& height,
                           const FastDivisor& width, const TilePart& part, const Accumulate* shared) {
  for_each_slot(first_plane, plane_stride, planes, height, width, part, [shared](TileSlot<T> slot) {
    if (!slot.whole()) {
      for (int i = slot.begin; i < slot.end; ++i, slot.next())
        slot.memory[i] = static_cast<T>(shared[slot.index]);
      return;
    }
    Vector<T> values;
    if (slot.two_rows()) {
      const Accumulate* first = shared + slot.index;
      const Accumulate* second = first + slot.gap();
      const int left = slot.left();
#pragma unroll
      for (int i = 0; i < slot.kElements; ++i) values[i] = static_cast<T>((i < left ? first : second)[i]);
    } else {
#pragma unroll
      for (int i = 0; i < slot.kElements; ++i, slot.next()) values[i] = static_cast<T>(shared[slot.index]);
    }
    *reinterpret_cast<Vector<T>*>(slot.memory) = values;
  });
}

// `count` is a multiple of four and `shared` on a boundary of four elements.
template <typename Accumulate>
__device__ void clear_shared(Accumulate* shared, int count) {
  for (int i = threadIdx.x * 4; i < count; i += blockDim.x * 4) {
    *reinterpret_cast<Vector<Accumulate, 4>*>(shared + i) = Vector<Accumulate, 4>{};
  }
}

// The first kCount elements behind `shared`, which lies on a boundary of kAligned elements.
template <int kCount, int kAligned, typename Accumulate>
__device__ void load_row(const Accumulate* shared, Accumulate (&values)[kCount]) {
  static_assert(kCount % kAligned == 0);
#pragma unroll
  for (int i = 0; i < kCount; i += kAligned) {
    const Vector<Accumulate, kAligned> part =
        *reinterpret_cast<const Vector<Accumulate, kAligned>*>(shared + i);
#pragma unroll
    for (int j = 0; j < kAligned; ++j) values[i + j] = part[j];
  }
}

constexpr int kTileThreads = 256;

// What of one direction is known before tiles are cut.
struct TilePlan {
  int source, result;              // sizes
  int patches;                     // of the whole image
  int patch;                       // results of a patch
  int step, window;                // sources between two patches, and under one
  int first_result, first_source;  // origins
};

// `tiles` tiles of equal size.
inline TileAxis cut(const TilePlan& plan, int tiles) {
  const int patches = ceil_divide(plan.patches, tiles);
  return {FastDivisor(plan.source),
          FastDivisor(plan.result),
          ceil_divide(plan.patches, patches),
          patches,
          patches * plan.patch,
          (patches - 1) * plan.step + plan.window,
          plan.first_result,
          plan.first_source,
          patches * plan.step};
}

// The same along rows of shared memory.
inline TileAxis cut_rows(const TilePlan& plan, int tiles) {
  TileAxis axis = cut(plan, tiles);
  axis.source_extent = static_cast<int>(tile_pitch(axis.source_extent));
  return axis;
}

// Tiles as large as `patches` patches and `elements` elements of shared memory allow: whole rows of a plane
// unless it is very wide, whole planes if they are small, and then as many of the `planes` planes as fit.
// `elements_of` says how many elements of shared memory a tiling takes; where one patch alone takes too many,
// it is for the caller to see.
template <typename ElementsOf>
Tiling make_tiling(const TilePlan& height, const TilePlan& width, int64_t planes, int patches,
                   int64_t elements, const ElementsOf& elements_of) {
  Tiling tiling = {{}, {}, 1};
  int columns = width.patches <= patches / 4 ? width.patches : patches / 8;
  for (;;) {
    tiling.width = cut_rows(width, ceil_divide(width.patches, columns));
    int rows = std::min(height.patches, patches / tiling.width.patches);
    do {
      tiling.height = cut(height, ceil_divide(height.patches, rows));
      rows = tiling.height.patches - 1;
    } while (rows > 0 && elements_of(tiling) > elements);
    if (columns == 1 || elements_of(tiling) <= elements) break;
    columns = ceil_divide(tiling.width.patches, 2);
  }
  if (tiling.tiles() == 1) {
    const int64_t most_planes = std::min<int64_t>(planes, patches / tiling.patches());
    while (tiling.planes < most_planes) {
      ++tiling.planes;
      if (elements_of(tiling) > elements) {
        --tiling.planes;
        break;
      }
    }
  }
  return tiling;
}

// One direction: a thread's patch is `patch` results, a kernel row is `padded_kernel`
// taps.
inline TilePlan large_kernel_plan(const Extent& extent, int patch, int padded_kernel, bool flipped) {
  const PassAxis axis(extent, flipped);
  return {axis.source, axis.result,  ceil_divide(axis.result, patch), patch, patch, patch + padded_kernel,
          0,           -axis.padding};
}

}  // namespace torchgraft::depthwise::cuda
