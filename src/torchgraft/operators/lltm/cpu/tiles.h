// Products on CPU: rows of a matrix by a panel of another, in register tiles of up to kTile rows by three
// vectors.
#pragma once

#include <algorithm>

#include "kernels.h"
#include "unit_math.h"

namespace torchgraft::lltm::cpu {

// Rows of a register tile at most: 27 of 32 registers hold sums, or 12 of 16.
template <int kBytes>
constexpr int kTile = kBytes == 64 ? 9 : 4;

// Rows whose sums lie in the first-level cache, beside the part of a panel that is read.
constexpr int64_t kBlock = 36;

// So many products are added up in registers before they are added to the sum: errors grow with the length of
// a chain, and two levels make each short. As many rows of a panel are what the first-level cache holds.
constexpr int64_t kChain = 128;

template <typename T, int kBytes>
using Sums = typename Math<T, kBytes>::V[kBlock][3];

// sums[r][v] += rows[r][k] * panel[k][v], over k from `first` to `end`; of the first k, they begin. What lies
// `ahead` elements behind what is read of the panel is brought to the first-level cache.
template <typename T, int kBytes, int kRows>
struct Tile {
  static TORCHGRAFT_INLINE void run(const Rows<T>& rows, const T* panel, int64_t first, int64_t end,
                                    int64_t ahead, typename Math<T, kBytes>::V (*sums)[3]) {
    using M = Math<T, kBytes>;
    using V = typename M::V;
    const int64_t row_step = rows.row_step, depth_step = rows.depth_step;
    const T* values = rows.first + first * depth_step;
    V part[kRows][3] = {};
    for (int64_t k = first; k < end; ++k, values += depth_step) {
      V weights[3];
      TORCHGRAFT_UNROLL
      for (int v = 0; v < 3; ++v) {
        const T* from = panel + (k * 3 + v) * M::kLanes;
        load(weights[v], from);
        __builtin_prefetch(from + ahead);
      }
      TORCHGRAFT_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const T value = values[r * row_step];
        TORCHGRAFT_UNROLL
        for (int v = 0; v < 3; ++v) part[r][v] += value * weights[v];
      }
    }
    TORCHGRAFT_UNROLL
    for (int r = 0; r < kRows; ++r) {
      TORCHGRAFT_UNROLL
      for (int v = 0; v < 3; ++v) sums[r][v] = first == 0 ? part[r][v] : sums[r][v] + part[r][v];
    }
  }
};

template <typename T, int kBytes, int kRows>
TORCHGRAFT_INLINE void multiply_tile(int64_t count, const Rows<T>& rows, const T* panel, int64_t first,
                                     int64_t end, int64_t ahead, typename Math<T, kBytes>::V (*sums)[3]) {
  if (count == kRows) {
    Compiled<kBytes>::template call<Tile<T, kBytes, kRows>>(rows, panel, first, end, ahead, sums);
  } else if constexpr (kRows > 1) {
    multiply_tile<T, kBytes, kRows - 1>(count, rows, panel, first, end, ahead, sums);
  }
}

// sums = rows @ panel for at most kBlock rows, in tiles of nearly equally many, as small ones are slow. While
// the last of them is computed the next part of the panel, or of the one behind it, comes to the cache.
template <typename T, int kBytes>
TORCHGRAFT_INLINE void multiply(const Rows<T>& rows, int64_t count, const T* panel, int64_t depth,
                                Sums<T, kBytes>& sums) {
  const int64_t tiles = (count + kTile<kBytes> - 1) / kTile<kBytes>;
  const int64_t parts = (depth + kChain - 1) / kChain;
  const int64_t length = (depth + parts - 1) / parts;
  for (int64_t first = 0; first < depth; first += length) {
    const int64_t end = std::min(depth, first + length);
    int64_t row = 0;
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t size = (count - row + tiles - tile - 1) / (tiles - tile);
      const int64_t ahead = tile == tiles - 1 ? length * 3 * Math<T, kBytes>::kLanes : 0;
      const Rows<T> some = {rows.first + row * rows.row_step, rows.row_step, rows.depth_step};
      multiply_tile<T, kBytes, kTile<kBytes>>(size, some, panel, first, end, ahead, sums + row);
      row += size;
    }
  }
}

}  // namespace torchgraft::lltm::cpu
