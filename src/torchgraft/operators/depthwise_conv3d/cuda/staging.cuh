// Source planes in shared memory, and how a thread reads its part of one.
//
// A block stages the rows and columns of a plane that its results need, of one or of several volumes. Columns
// begin at a multiple of sixteen bytes of the plane's row, so that pieces of rows are copied asynchronously
// as they are aligned in memory. What lies outside of the plane is zero: it is cleared once, and copies never
// write there.
#pragma once

#include <torchgraft/async_copy.cuh>
#include <torchgraft/cuda.cuh>
#include <torchgraft/device.cuh>
#include <torchgraft/packed.cuh>

#include <bit>

#include "plan.h"

namespace torchgraft::depthwise::volumes {

// How all blocks of a launch stage the planes of one tensor.
struct StagedPlanes {
  int rows, columns;       // of a plane in memory
  int staged_rows, pitch;  // of a tile in shared memory
  int piece_bytes;
  int lane_bits;  // 2 to this power are the threads that copy a row
  FastDivisor rows_of_pack;

  StagedPlanes() = default;
  template <typename T>
  static StagedPlanes of(const T* memory, int64_t rows, int64_t columns, const TileSizes& tile) {
    constexpr int kAlignment = 16;
    const int alignment = is_aligned(memory, kAlignment) ? kAlignment : is_aligned(memory, 4) ? 4 : 1;
    StagedPlanes planes = {};
    planes.rows = static_cast<int>(rows);
    planes.columns = static_cast<int>(columns);
    planes.staged_rows = tile.rows;
    planes.pitch = tile.pitch;
    planes.piece_bytes = piece_of_rows(columns, sizeof(T), alignment);
    const int64_t pieces =
        ceil_divide(std::min<int64_t>(columns, tile.pitch) * static_cast<int>(sizeof(T)), planes.piece_bytes);
    while (1 << planes.lane_bits < std::min<int64_t>(pieces, kWarpThreads)) ++planes.lane_bits;
    planes.rows_of_pack = FastDivisor(tile.rows);
    return planes;
  }
};

template <typename... Arguments>
Occupancy occupancy_of(void (*kernel)(Arguments...), int threads, int64_t shared_bytes) {
  const Device& device = current_device();
  const int64_t by_threads = resident_blocks(kernel, threads) / device.multiprocessors;
  const int64_t by_memory = device.shared_of_multiprocessor / std::max<int64_t>(shared_bytes, 1);
  return {device.multiprocessors, std::max<int64_t>(std::min(by_threads, by_memory), 1),
          threads / kWarpThreads};
}

__device__ inline void clear_shared(void* shared, int bytes) {
  for (int i = static_cast<int>(threadIdx.x); i < bytes / 16; i += static_cast<int>(blockDim.x)) {
    static_cast<uint4*>(shared)[i] = make_uint4(0, 0, 0, 0);
  }
}

// Begins to copy a plane of each pack. `plane_of(pack)` is its first element in memory; the tile begins at
// `first_row` and `first_column`, which may lie in front of the plane.
template <int kBytes, typename T, typename PlaneOf>
__device__ void copy_pieces(T* shared, const PlaneOf& plane_of, int packs, int first_row, int first_column,
                            const StagedPlanes& planes) {
  constexpr int kElements = kBytes / static_cast<int>(sizeof(T));
  constexpr int kAtOnce = 4;  // rows of a thread, whose loads are in flight together
  const int lane = static_cast<int>(threadIdx.x) & ((1 << planes.lane_bits) - 1);
  const int first = static_cast<int>(threadIdx.x) >> planes.lane_bits;
  const int step = static_cast<int>(blockDim.x) >> planes.lane_bits;
  const int count = packs * planes.staged_rows;
  const int end = min(planes.pitch, planes.columns - first_column);
  const int pitch = planes.pitch, columns = planes.columns;
  for (int at = max(-first_column, 0) + lane * kElements; at < end; at += kElements << planes.lane_bits) {
    if (kBytes >= 4 && packs == 1) {
      const T* from = plane_of(0) + (first_row + first) * columns + first_column + at;
      T* to = shared + first * pitch + at;
      for (int row = first; row < count; row += step) {
        if (is_inside(first_row + row, planes.rows)) copy_async<std::max(kBytes, 4)>(to, from);
        from += step * columns;
        to += step * pitch;
      }
      continue;
    }
    for (int from = first; from < count; from += kAtOnce * step) {
      T values[kAtOnce];
      bool is_there[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int staged_row = from + i * step;
        const int pack = packs == 1 ? 0 : planes.rows_of_pack.divide(staged_row);
        const int row = first_row + staged_row - pack * planes.staged_rows;
        is_there[i] = staged_row < count && is_inside(row, planes.rows);
        if (!is_there[i]) continue;
        const T* const place = plane_of(pack) + row * columns + first_column + at;
        if constexpr (kBytes < 4) {
          values[i] = *place;
        } else {
          copy_async<kBytes>(shared + staged_row * pitch + at, place);
        }
      }
      if constexpr (kBytes < 4) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (is_there[i]) shared[(from + i * step) * pitch + at] = values[i];
        }
      }
    }
  }
}

template <typename T, typename PlaneOf>
__device__ void copy_plane(T* shared, const PlaneOf& plane_of, int packs, int first_row, int first_column,
                           const StagedPlanes& planes) {
  switch (planes.piece_bytes) {
    case 16:
      return copy_pieces<16>(shared, plane_of, packs, first_row, first_column, planes);
    case 8:
      return copy_pieces<8>(shared, plane_of, packs, first_row, first_column, planes);
    case 4:
      return copy_pieces<4>(shared, plane_of, packs, first_row, first_column, planes);
    default:
      if constexpr (sizeof(T) < 4) copy_pieces<2>(shared, plane_of, packs, first_row, first_column, planes);
  }
}

// A conversion of bfloat16 would take the time of eight multiply-adds; a shift takes that of two.
template <typename T>
__device__ float widened(T element) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return __uint_as_float(uint32_t{element.x} << 16);
  } else {
    return static_cast<float>(element);
  }
}

// The columns that a thread reads of a row, widened. With the padding that keeps sizes they begin kLead
// columns in front of a place that is aligned for kChunk elements: pieces are loaded then. With another
// padding, or tiles that begin elsewhere, elements are loaded one by one.
template <typename T, typename Columns>
struct RowReader {
  static constexpr int kSources = Columns::kSources, kLead = Columns::kLead;
  static constexpr int kVector = 16 / static_cast<int>(sizeof(T));
  // The largest power of two by which threads are apart, at most a vector.
  static constexpr int kChunk = std::min(kVector, Columns::kStep & -Columns::kStep);
  static_assert(kLead >= 0 && kLead <= kChunk && kChunk * sizeof(T) >= 4, "what lies in front is one piece");

  // `row` is where the aligned place is.
  static __device__ __forceinline__ void read(const T* row, bool aligned, float (&values)[kSources]) {
    if (aligned) {
      constexpr int kBody = kSources - kLead, kWhole = kBody / kChunk * kChunk;
      if constexpr (kLead > 0) {
        constexpr int kFront = piece_of(kLead);
        read_piece<kFront, kLead - kFront>(row - kFront, values);
      }
      read_chunks<0, kWhole>(row, values);
      if constexpr (kBody > kWhole) {
        read_piece<piece_of(kBody - kWhole), kLead + kWhole>(row + kWhole, values);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kSources; ++i) values[i] = widened(row[i - kLead]);
    }
  }

 private:
  // The elements of a piece that has so many: at least four bytes, whose halves are widened in one
  // instruction.
  static constexpr int piece_of(int elements) {
    return std::max(static_cast<int>(std::bit_ceil(static_cast<unsigned>(elements))),
                    4 / static_cast<int>(sizeof(T)));
  }

  template <int kFrom, int kEnd>
  static __device__ void read_chunks(const T* row, float (&values)[kSources]) {
    if constexpr (kFrom < kEnd) {
      read_piece<kChunk, kLead + kFrom>(row + kFrom, values);
      read_chunks<kFrom + kChunk, kEnd>(row, values);
    }
  }
  // The values from index kFirst on.
  template <int kElements, int kFirst>
  static __device__ void read_piece(const T* from, float (&values)[kSources]) {
    Packed<T, kElements> piece;
    piece.load(from);
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      if (kFirst + i >= 0 && kFirst + i < kSources) values[kFirst + i] = piece[i];
    }
  }
};

}  // namespace torchgraft::depthwise::volumes
