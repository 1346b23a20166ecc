// Products on CPU: rows of a matrix by panels of another, in register tiles of up to kTile rows by three
// vectors. What calls them is compiled for an instruction set (cpu.h), whose registers have kBytes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../cpu.h"
#include "../cpu_transpose.h"

namespace torchgraft::cpu_products {

// Vectors are at most this long; packed weights are padded to whole ones.
inline constexpr int64_t kLongestVector = 64;
template <typename T>
inline constexpr int64_t kMostLanes = kLongestVector / static_cast<int64_t>(sizeof(T));

// Rows of the batch, and units or columns, which are whole panels.
struct Share {
  int64_t first_row, end_row;
  int64_t first_unit, end_unit;
};

// Rows of a matrix: element k of row r is first[r * row_step + k * depth_step].
template <typename T>
struct Rows {
  const T* first;
  int64_t row_step, depth_step;
};

// Columns of a matrix: element k of column c is first[k * depth_step + c * column_step]. One step is 1.
template <typename T>
struct Columns {
  const T* first;
  int64_t depth_step, column_step;
};

// result = left @ right, plus a number of each column if there is a bias.
template <typename T>
struct Product {
  Rows<T> left;
  Columns<T> right;
  T* result;  // (rows, columns)
  int64_t depth, columns;
  const T* bias = nullptr;
};

// The vectors that hold a row's elements.
template <typename T, int kBytes>
struct Lanes {
  using V = Vector<T, kBytes>;
  static constexpr int kLanes = kBytes / static_cast<int>(sizeof(T));

  // The first `count` elements, none where that is negative; the others are zero, and are not touched in
  // memory.
  static TORCHGRAFT_INLINE void load_some(V& vector, const T* from, int64_t count) {
    if (count >= kLanes) {
      load(vector, from);
    } else {
      T elements[kLanes] = {};
      for (int64_t l = 0; l < count; ++l) elements[l] = from[l];
      load(vector, elements);
    }
  }

  static TORCHGRAFT_INLINE void store_some(const V& vector, T* to, int64_t count) {
    if (count >= kLanes) {
      store(vector, to);
    } else {
      T elements[kLanes];
      store(vector, elements);
      for (int64_t l = 0; l < count; ++l) to[l] = elements[l];
    }
  }
};

// Rows of a register tile at most: 27 of 32 registers hold sums, or 12 of 16.
template <int kBytes>
constexpr int kTile = kBytes == 64 ? 9 : 4;

// Rows whose sums lie in the first-level cache, beside the part of a panel that is read.
constexpr int64_t kBlock = 36;

// So many products are added up in registers before they are added to the sum: errors grow with the length of
// a chain, and two levels make each short. As many rows of a panel are what the first-level cache holds.
constexpr int64_t kChain = 128;

template <typename T, int kBytes>
using Sums = typename Lanes<T, kBytes>::V[kBlock][3];

// sums[r][v] += rows[r][k] * panel[k][v], over k from `first` to `end`; of the first k, they begin. What lies
// `ahead` elements behind what is read of the panel is brought to the first-level cache.
template <typename T, int kBytes, int kRows>
struct Tile {
  static TORCHGRAFT_INLINE void run(const Rows<T>& rows, const T* panel, int64_t first, int64_t end,
                                    int64_t ahead, typename Lanes<T, kBytes>::V (*sums)[3]) {
    using L = Lanes<T, kBytes>;
    using V = typename L::V;
    const int64_t row_step = rows.row_step, depth_step = rows.depth_step;
    const T* values = rows.first + first * depth_step;
    V part[kRows][3] = {};
    for (int64_t k = first; k < end; ++k, values += depth_step) {
      V weights[3];
      TORCHGRAFT_UNROLL
      for (int v = 0; v < 3; ++v) {
        const T* from = panel + (k * 3 + v) * L::kLanes;
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
                                     int64_t end, int64_t ahead, typename Lanes<T, kBytes>::V (*sums)[3]) {
  if (count == kRows) {
    Compiled<kBytes>::template call<Tile<T, kBytes, kRows>>(rows, panel, first, end, ahead, sums);
  } else if constexpr (kRows > 1) {
    multiply_tile<T, kBytes, kRows - 1>(count, rows, panel, first, end, ahead, sums);
  }
}

// sums = rows @ panel for few rows, at most kBlock, in tiles of nearly equally many, as small ones are slow.
// While the last of them is computed the next part of the panel, or of the one behind it, comes to the cache.
template <typename T, int kBytes>
TORCHGRAFT_INLINE void multiply_rows(const Rows<T>& rows, int64_t count, const T* panel, int64_t depth,
                                     typename Lanes<T, kBytes>::V (*sums)[3]) {
  const int64_t tiles = (count + kTile<kBytes> - 1) / kTile<kBytes>;
  const int64_t parts = (depth + kChain - 1) / kChain;
  const int64_t length = (depth + parts - 1) / parts;
  for (int64_t first = 0; first < depth; first += length) {
    const int64_t end = std::min(depth, first + length);
    int64_t row = 0;
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t size = (count - row + tiles - tile - 1) / (tiles - tile);
      const int64_t ahead = tile == tiles - 1 ? length * 3 * Lanes<T, kBytes>::kLanes : 0;
      const Rows<T> some = {rows.first + row * rows.row_step, rows.row_step, rows.depth_step};
      multiply_tile<T, kBytes, kTile<kBytes>>(size, some, panel, first, end, ahead, sums + row);
      row += size;
    }
  }
}

// packed[k][0][l] = matrix[k][l] for a vector of columns, where packed[k] is three vectors; behind the last
// column are zeros. Columns that lie in memory one after the other, each whole, are turned in registers: one
// element at a time takes as long as some ten steps of a sequence of few rows.
template <typename T, int kBytes>
TORCHGRAFT_INLINE void pack_vector(const Columns<T>& matrix, int64_t count, int64_t depth, T* packed) {
  using L = Lanes<T, kBytes>;
  using V = typename L::V;
  constexpr int64_t kStep = 3 * L::kLanes;
  int64_t k = 0;
  if (matrix.column_step == 1) {
    for (; k < depth; ++k) {
      V some;
      L::load_some(some, matrix.first + k * matrix.depth_step, count);
      store(some, packed + k * kStep);
    }
  } else if (count >= L::kLanes) {
    for (; k + L::kLanes <= depth; k += L::kLanes) {
      V square[L::kLanes];
      TORCHGRAFT_UNROLL
      for (int l = 0; l < L::kLanes; ++l) load(square[l], matrix.first + l * matrix.column_step + k);
      transpose(square);
      TORCHGRAFT_UNROLL
      for (int l = 0; l < L::kLanes; ++l) store(square[l], packed + (k + l) * kStep);
    }
  }
  for (; k < depth; ++k) {
    for (int64_t l = 0; l < L::kLanes; ++l) {
      packed[k * kStep + l] = l < count ? matrix.first[k + l * matrix.column_step] : T(0);
    }
  }
}

// Parts of a panel are at most as deep as this.
constexpr int64_t kDepth = 512;

// packed[column / width][k][column % width] = matrix[k][column], in panels of three vectors; behind the last
// column are zeros.
template <typename T, int kBytes>
TORCHGRAFT_INLINE void pack_panels(const Columns<T>& matrix, int64_t count, int64_t depth, T* packed) {
  constexpr int64_t kLanes = Lanes<T, kBytes>::kLanes;
  for (int64_t column = 0; column < count; column += 3 * kLanes) {
    for (int64_t first = 0; first < 3 * kLanes; first += kLanes) {
      const Columns<T> some = {matrix.first + (column + first) * matrix.column_step, matrix.depth_step,
                               matrix.column_step};
      pack_vector<T, kBytes>(some, count - column - first, depth, packed + column * depth + first);
    }
  }
}

// Adds what lies in memory to the sums of a row, and writes them to it.
template <typename T, int kBytes>
TORCHGRAFT_INLINE void store_sums(typename Lanes<T, kBytes>::V (&sums)[3], const T* more, T* to,
                                  int64_t count) {
  using L = Lanes<T, kBytes>;
  for (int v = 0; v < 3; ++v) {
    if (more != nullptr) {
      typename L::V before;
      L::load_some(before, more + v * L::kLanes, count - v * L::kLanes);
      sums[v] += before;
    }
    L::store_some(sums[v], to + v * L::kLanes, count - v * L::kLanes);
  }
}

// The share of a product. One factor is packed into panels, in the order in which it is read, a part of its
// depth at a time: a part lies in the second-level cache while all rows are multiplied by it, and nothing is
// allocated.
template <typename T, int kBytes>
TORCHGRAFT_INLINE void multiply_share(const Product<T>& product, const Share& share) {
  constexpr int64_t kWidth = 3 * Lanes<T, kBytes>::kLanes;
  alignas(64) T packed[kDepth * kWidth];
  const int64_t parts = (product.depth + kDepth - 1) / kDepth;
  const int64_t length = (product.depth + parts - 1) / parts;
  // Several panels are packed if their depth is little: then what is written of a row lies together.
  const int64_t width = kDepth / length * kWidth;
  for (int64_t begin = share.first_unit; begin < share.end_unit; begin += width) {
    const int64_t end = std::min(share.end_unit, begin + width);
    for (int64_t first = 0; first < product.depth; first += length) {
      const int64_t depth = std::min(length, product.depth - first);
      const Columns<T>& right = product.right;
      pack_panels<T, kBytes>({right.first + first * right.depth_step + begin * right.column_step,
                              right.depth_step, right.column_step},
                             end - begin, depth, packed);
      for (int64_t row = share.first_row; row < share.end_row; row += kBlock) {
        const int64_t count = std::min(kBlock, share.end_row - row);
        const Rows<T>& left = product.left;
        for (int64_t column = begin; column < end; column += kWidth) {
          Sums<T, kBytes> sums;
          multiply_rows<T, kBytes>(
              {left.first + row * left.row_step + first * left.depth_step, left.row_step, left.depth_step},
              count, packed + (column - begin) * depth, depth, sums);
          for (int64_t r = 0; r < count; ++r) {
            T* to = product.result + (row + r) * product.columns + column;
            const T* bias = product.bias == nullptr ? nullptr : product.bias + column;
            store_sums<T, kBytes>(sums[r], first > 0 ? to : bias, to, end - column);
          }
        }
      }
    }
  }
}

// Calls `Function::run<kVectorBytes>(arguments...)` compiled for the best instruction set that the processor
// has: what TORCHGRAFT_VECTOR_CLONES does, for templates too, which it cannot define. It costs a call and a
// question to the processor, and `run` and what it calls must be TORCHGRAFT_INLINE.
template <typename Function>
struct OnBestVectors {
  template <typename... Arguments>
  static void call(const Arguments&... arguments) {
#if !defined(TORCHGRAFT_HAS_TARGETS)
    call_for<16>(arguments...);
#elif defined(TORCHGRAFT_X86_64_LEVEL)
    call_for<(TORCHGRAFT_X86_64_LEVEL == 4 ? 64 : 32)>(arguments...);
#else
    if (__builtin_cpu_supports("x86-64-v4")) {
      call_for<64>(arguments...);
    } else if (__builtin_cpu_supports("x86-64-v3")) {
      call_for<32>(arguments...);
    } else {
      call_for<16>(arguments...);
    }
#endif
  }

 private:
  template <int kVectorBytes>
  struct For {
    template <typename... Arguments>
    static TORCHGRAFT_INLINE void run(const Arguments&... arguments) {
      Function::template run<kVectorBytes>(arguments...);
    }
  };

  template <int kVectorBytes, typename... Arguments>
  static void call_for(const Arguments&... arguments) {
    Compiled<kVectorBytes>::template call<For<kVectorBytes>>(arguments...);
  }
};

// The least multiplications for which a thread is worth waking.
inline constexpr int64_t kProductsGrain = 1 << 18;

// Calls `run(share)` with shares of a product that together are all of it, on threads.
template <typename T, typename Run>
void share_out(const Product<T>& product, int64_t rows, const Run& run) {
  // Fewer rows than this share what a thread packs; more are shared out, and each thread packs all columns.
  constexpr int64_t kManyRows = 256;
  // To pack a column takes as long as to multiply so many rows by it.
  constexpr int64_t kPackingRows = 8;
  constexpr int64_t kPanel = 3 * kMostLanes<T>;
  const int64_t panels = (product.columns + kPanel - 1) / kPanel;
  if (rows < kManyRows && panels >= 2 * torch::stable::get_num_threads()) {
    parallel_for(0, panels,
                 std::max<int64_t>(1, kProductsGrain / ((rows + kPackingRows) * product.depth * kPanel)),
                 [&](int64_t begin, int64_t end) {
                   run(Share{0, rows, begin * kPanel, std::min(product.columns, end * kPanel)});
                 });
    return;
  }
  parallel_for(0, rows, std::max<int64_t>(1, kProductsGrain / (product.depth * product.columns)),
               [&](int64_t begin, int64_t end) { run(Share{begin, end, 0, product.columns}); });
}

}  // namespace torchgraft::cpu_products
