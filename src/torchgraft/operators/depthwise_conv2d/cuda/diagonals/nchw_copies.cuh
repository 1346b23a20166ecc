// How a tile of diagonals_nchw comes to shared memory.
#pragma once

#include <torchgraft/async_copy.cuh>
#include <torchgraft/cuda.cuh>

#include "nchw_plan.h"

namespace torchgraft::depthwise::cuda {

// A tile of one of the two images, with what its places are divided by.
struct TileSource : NchwTile {
  FastDivisor units_side_by_side;  // of one pass of the block
  FastDivisor units_of_row;
  FastDivisor rows;  // loaded of a plane

  explicit TileSource(const NchwTile& tile)
      : NchwTile(tile),
        units_side_by_side(tile.side_by_side),
        units_of_row(std::max(tile.units, 1)),
        rows(tile.loaded_rows) {}
};

// Which elements of an image a tile holds: all of them.
struct DenseSteps {
  static __device__ constexpr int row(int index) { return index; }
  static __device__ constexpr int column(int index) { return index; }
  static __device__ constexpr int rows(int count) { return count; }
};

// Or those of a phase.
struct PhaseSteps {
  int row_step, row_offset, column_step, column_offset;

  __device__ int row(int index) const { return index * row_step + row_offset; }
  __device__ int column(int index) const { return index * column_step + column_offset; }
  __device__ int rows(int count) const { return count * row_step; }
};

// Copies kElements elements, or writes zeros in their place, where the source is not touched. Through the
// first-level cache: 32 bytes from the second level may go to several octets, and would be fetched for each.
template <int kElements>
__device__ inline void copy_or_clear(uint32_t target, const uint16_t* source, bool inside) {
  constexpr int kBytes = kElements * 2;
  ptx::cp_async_ca<kBytes>(target, source, inside ? kBytes : 0);
}

// A thread's copies that lie equally far apart.
struct CopyRun {
  int count;
  bool one_more;              // of some threads of a warp
  int position, step, limit;  // copy i is inside if position + i * step is in [0, limit)
  uint32_t target;
  const uint16_t* source;
  uint32_t target_step;
  int64_t source_step;

  template <int kUnit>
  __device__ void copy() const {
    uint32_t to = target;
    const uint16_t* from = source;
    const int last = position + (count - (one_more ? 0 : 1)) * step;
    if constexpr (kUnit > 1) {
      if (position >= 0 && last < limit) {
#pragma unroll 4
        for (int i = 0; i < count; ++i, to += target_step, from += source_step)
          copy_async<2 * kUnit>(to, from);
        if (one_more) copy_async<2 * kUnit>(to, from);
      } else {
        const int copies = count + (one_more ? 1 : 0);
#pragma unroll 1
        for (int i = 0; i < copies; ++i, to += target_step, from += source_step) {
          copy_or_clear<kUnit>(to, from,
                               static_cast<unsigned>(position + i * step) < static_cast<unsigned>(limit));
        }
      }
    } else {
      // Through registers, some loads at a time.
      constexpr int kTogether = 8;
      const int copies = count + (one_more ? 1 : 0);
      for (int first = 0; first < copies; first += kTogether) {
        uint16_t values[kTogether];
#pragma unroll
        for (int i = 0; i < kTogether; ++i, from += source_step) {
          const int now = position + (first + i) * step;
          const bool inside = first + i < copies && static_cast<unsigned>(now) < static_cast<unsigned>(limit);
          values[i] = inside ? __ldg(from) : uint16_t{0};
        }
#pragma unroll
        for (int i = 0; i < kTogether; ++i, to += target_step) {
          if (first + i < copies) {
            ptx::store_shared(to, values[i]);
          }
        }
      }
    }
  }
};

struct TilePlace {
  int first_image, images;
  int row, column;  // added to the source's
};

// Where row `plane_row` and `column` of a tile lie in an image's part of shared memory.
__device__ inline uint32_t place_in_tile(const TileSource& source, int plane_row, int column) {
  return (column / kOctet * source.octet_rows + source.row + plane_row) * kOctetBytes + column % kOctet * 2;
}

// Where tiles are whole planes of several images, what is copied lies at the same places in all of them. They
// are worked out once: what to add to the address in shared memory, and to that of the first image.
template <typename Steps>
__device__ inline void list_places(const TileSource& source, const Steps& steps, int channels, int planes,
                                   uint32_t list) {
  for (int index = static_cast<int>(threadIdx.x); index < source.places;
       index += static_cast<int>(blockDim.x)) {
    const int all_rows = source.units_of_row.divide(index);
    const int unit = index - all_rows * source.units;
    const int channel = source.rows.divide(all_rows);
    const int row = all_rows - channel * source.rows.divisor();
    const uint32_t target =
        place_in_tile(source, channel * planes * source.plane_rows + row, source.column + unit * source.unit);
    const int source_row = steps.row(source.source_row + row);
    const int source_column = steps.column(source.source_column + unit * source.unit);
    const int offset = (channel * source.height + source_row) * source.width + source_column;
    // Nothing is copied for channels that do not exist, nor from outside of planes, where phases may begin
    // and end.
    bool exists = channel < channels;
    if constexpr (std::is_same_v<Steps, PhaseSteps>) {
      exists = exists && is_inside(source_row, source.height) && is_inside(source_column, source.width);
    }
    ptx::store_shared(list + index * kPlaceBytes,
                      make_uint2(target, static_cast<uint32_t>(exists ? offset : -1)));
  }
}

// Brings one image's part of a tile to shared memory; `memory` is that of the block's first channel.
template <int kUnit, typename Steps>
__device__ inline void load_units(const uint16_t* memory, const TileSource& source, const Steps& steps,
                                  const TilePlace& place, int planes, uint32_t list, uint32_t shared) {
  const int thread = static_cast<int>(threadIdx.x);
  const uint16_t* tile = memory + place.first_image * source.image;
  if (source.places == 0) {
    // A thread owns a column and steps from row to row.
    const int first_row = source.units_side_by_side.divide(thread);
    const int first_unit = thread - first_row * source.units_side_by_side.divisor();
    if (first_row >= source.rows_of_pass) return;
    const int source_row = source.source_row + place.row;
    for (int unit = first_unit; unit < source.units; unit += source.units_side_by_side.divisor()) {
      const int column = steps.column(source.source_column + place.column + unit * kUnit);
      const CopyRun run = {source.passes,
                           first_row < source.rows_beyond,
                           steps.row(source_row + first_row),
                           steps.rows(source.rows_of_pass),
                           column >= 0 && column < source.width ? source.height : 0,
                           shared + place_in_tile(source, first_row, source.column + unit * kUnit),
                           tile + steps.row(source_row + first_row) * source.width + column,
                           static_cast<uint32_t>(source.rows_of_pass * kOctetBytes),
                           steps.rows(source.rows_of_pass) * source.width};
      run.template copy<kUnit>();
    }
  } else {
    // A thread owns some places and steps from image to image.
    for (int index = thread; index < source.places; index += static_cast<int>(blockDim.x)) {
      const uint2 place_of = ptx::load_shared_pair(list + index * kPlaceBytes);
      const uint32_t target = place_of.x;
      const int offset = static_cast<int>(place_of.y);
      const CopyRun run = {planes,
                           false,
                           0,
                           1,
                           offset >= 0 ? place.images : 0,
                           shared + target,
                           tile + offset,
                           static_cast<uint32_t>(source.plane_rows * kOctetBytes),
                           source.image};
      run.template copy<kUnit>();
    }
  }
}

template <typename Steps>
__device__ inline void load_image(const uint16_t* memory, const TileSource& source, const Steps& steps,
                                  const TilePlace& place, int planes, uint32_t list, uint32_t shared) {
  if (source.unit == 8) {
    load_units<8>(memory, source, steps, place, planes, list, shared);
  } else if (source.unit == 4) {
    load_units<4>(memory, source, steps, place, planes, list, shared);
  } else if (source.unit == 2) {
    load_units<2>(memory, source, steps, place, planes, list, shared);
  } else {
    load_units<1>(memory, source, steps, place, planes, list, shared);
  }
}

}  // namespace torchgraft::depthwise::cuda
