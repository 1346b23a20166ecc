// All steps of lltm on CPU, forward and back, one call a thread.
//
// A thread owns rows of the batch from the first step to the last, so threads never wait for each other. A
// step is a product of the rows' states with weight_hh, in register tiles of kTile rows by three vectors. In
// the forward pass the three are the gates of the same units: where a tile is summed up, the unit is computed
// from registers, and gates are written as activations only. weight_hh is packed once into panels in the
// order in which it is read, and each panel serves all rows of a thread before the next. With enough rows
// arithmetic bounds it, with few the reading of weight_hh from the second-level cache.

#include <algorithm>

#include "cpu_kernels.h"
#include "cpu_math.h"

namespace torchgraft::lltm::cpu {
namespace {

// Rows of a register tile: 24 of 32 registers, or 12 of 16.
template <int kBytes>
constexpr int kTile = kBytes == 64 ? 8 : 4;

// So many products are added up in registers before they are added to the sum: errors grow with the length of
// a chain, and two levels make each short.
constexpr int64_t kChain = 128;

// sums += rows[r][k] * panel[k][v], over all k.
template <typename T, int kBytes, int kRows>
TORCHGRAFT_INLINE void multiply_tile(const T* rows, int64_t stride, const T* panel, int64_t depth,
                                     typename Math<T, kBytes>::V (&sums)[kRows][3]) {
  using M = Math<T, kBytes>;
  using V = typename M::V;
  for (int64_t first = 0; first < depth; first += kChain) {
    const int64_t end = std::min(depth, first + kChain);
    V part[kRows][3] = {};
    for (int64_t k = first; k < end; ++k) {
      V weights[3];
      TORCHGRAFT_UNROLL
      for (int v = 0; v < 3; ++v) load(weights[v], panel + (k * 3 + v) * M::kLanes);
      TORCHGRAFT_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const T value = rows[r * stride + k];
        TORCHGRAFT_UNROLL
        for (int v = 0; v < 3; ++v) part[r][v] += value * weights[v];
      }
    }
    TORCHGRAFT_UNROLL
    for (int r = 0; r < kRows; ++r) {
      TORCHGRAFT_UNROLL
      for (int v = 0; v < 3; ++v) sums[r][v] += part[r][v];
    }
  }
}

// Calls `tile(row, Rows<n>)` for tiles that make up [begin, end).
template <int kRows>
struct Rows {
  static constexpr int kCount = kRows;
};

template <int kLargest, typename Function>
TORCHGRAFT_INLINE void over_tiles(int64_t begin, int64_t end, const Function& tile) {
  int64_t row = begin;
  for (; row + kLargest <= end; row += kLargest) tile(row, Rows<kLargest>{});
  if constexpr (kLargest == 8) {
    if (row + 4 <= end) {
      tile(row, Rows<4>{});
      row += 4;
    }
  }
  if (row + 2 <= end) {
    tile(row, Rows<2>{});
    row += 2;
  }
  if (row < end) tile(row, Rows<1>{});
}

template <typename T, int kBytes, int kRows>
TORCHGRAFT_INLINE void forward_tile(const SequenceForward<T>& pass, const T* h, const T* c, int64_t t,
                                    int64_t row, int64_t unit, const T* panel) {
  using M = Math<T, kBytes>;
  using V = typename M::V;
  const int64_t units = pass.units;
  const int64_t count = units - unit;
  V sums[kRows][3] = {};
  multiply_tile<T, kBytes, kRows>(h + row * units, units, panel, units, sums);
  V bias[3] = {};
  if (pass.bias != nullptr) {
    for (int g = 0; g < 3; ++g) M::load_some(bias[g], pass.bias + g * units + unit, count);
  }
  TORCHGRAFT_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const int64_t place = t * pass.batch + row + r;
    T* activations = pass.activations + place * 3 * units + unit;
    V state, output;
    M::load_some(state, c + (row + r) * units + unit, count);
    TORCHGRAFT_UNROLL
    for (int g = 0; g < 3; ++g) {
      V of_input;
      M::load_some(of_input, activations + g * units, count);
      sums[r][g] += of_input + bias[g];
    }
    M::forward(sums[r][0], sums[r][1], sums[r][2], state, output);
    TORCHGRAFT_UNROLL
    for (int g = 0; g < 3; ++g) M::store_some(sums[r][g], activations + g * units, count);
    M::store_some(state, pass.cells + place * units + unit, count);
    M::store_some(output, pass.output + place * units + unit, count);
  }
}

template <typename T, int kBytes>
TORCHGRAFT_INLINE void forward_rows(const SequenceForward<T>& pass, int64_t begin, int64_t end) {
  constexpr int kLanes = Math<T, kBytes>::kLanes;
  const int64_t state = pass.batch * pass.units;
  const T* h = pass.h0;
  const T* c = pass.c0;
  for (int64_t step = 0; step < pass.steps; ++step) {
    const int64_t t = pass.reverse ? pass.steps - 1 - step : step;
    for (int64_t unit = 0; unit < pass.units; unit += kLanes) {
      const T* panel = pass.packed + unit * 3 * pass.units;
      over_tiles<kTile<kBytes>>(begin, end, [&](int64_t row, auto rows) __attribute__((always_inline)) {
        forward_tile<T, kBytes, decltype(rows)::kCount>(pass, h, c, t, row, unit, panel);
      });
    }
    h = pass.output + t * state;
    c = pass.cells + t * state;
  }
}

template <typename T, int kBytes>
TORCHGRAFT_INLINE void step_back(const SequenceBackward<T>& pass, int64_t t, int64_t begin, int64_t end) {
  using M = Math<T, kBytes>;
  using V = typename M::V;
  const int64_t units = pass.units;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t place = t * pass.batch + row;
    for (int64_t unit = 0; unit < units; unit += M::kLanes) {
      const int64_t count = units - unit;
      V gates[3], c_after, h_grad, c_grad;
      TORCHGRAFT_UNROLL
      for (int g = 0; g < 3; ++g) {
        M::load_some(gates[g], pass.activations + (place * 3 + g) * units + unit, count);
      }
      M::load_some(c_after, pass.cells + place * units + unit, count);
      M::load_some(h_grad, pass.h_grad + row * units + unit, count);
      M::load_some(c_grad, pass.c_grad + row * units + unit, count);
      if (pass.output_grad != nullptr) {
        V more;
        M::load_some(more, pass.output_grad + place * units + unit, count);
        h_grad += more;
      }
      M::backward(gates[0], gates[1], gates[2], c_after, h_grad, c_grad);
      TORCHGRAFT_UNROLL
      for (int g = 0; g < 3; ++g) {
        M::store_some(gates[g], pass.gates_grad + (place * 3 + g) * units + unit, count);
      }
      M::store_some(c_grad, pass.c_grad + row * units + unit, count);
    }
  }
}

template <typename T, int kBytes, int kRows>
TORCHGRAFT_INLINE void backward_tile(const SequenceBackward<T>& pass, int64_t t, int64_t row, int64_t column,
                                     const T* panel) {
  using M = Math<T, kBytes>;
  const int64_t units = pass.units;
  typename M::V sums[kRows][3] = {};
  multiply_tile<T, kBytes, kRows>(pass.gates_grad + (t * pass.batch + row) * 3 * units, 3 * units, panel,
                                  3 * units, sums);
  TORCHGRAFT_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TORCHGRAFT_UNROLL
    for (int v = 0; v < 3; ++v) {
      const int64_t first = column + v * M::kLanes;
      if (first < units) M::store_some(sums[r][v], pass.h_grad + (row + r) * units + first, units - first);
    }
  }
}

template <typename T, int kBytes>
TORCHGRAFT_INLINE void backward_rows(const SequenceBackward<T>& pass, int64_t begin, int64_t end) {
  constexpr int64_t kWidth = 3 * Math<T, kBytes>::kLanes;
  for (int64_t step = 0; step < pass.steps; ++step) {
    const int64_t t = pass.reverse ? step : pass.steps - 1 - step;
    step_back<T, kBytes>(pass, t, begin, end);
    for (int64_t column = 0; column < pass.units; column += kWidth) {
      const T* panel = pass.packed + column * 3 * pass.units;
      over_tiles<kTile<kBytes>>(begin, end, [&](int64_t row, auto rows) __attribute__((always_inline)) {
        backward_tile<T, kBytes, decltype(rows)::kCount>(pass, t, row, column, panel);
      });
    }
  }
}

// packed[unit / lanes][k][gate][unit % lanes] = weight[gate][unit][k].
template <typename T, int kBytes>
TORCHGRAFT_INLINE void pack_forward_panels(const T* weight, T* packed, int64_t units) {
  constexpr int64_t kLanes = Math<T, kBytes>::kLanes;
  for (int64_t unit = 0; unit < units; unit += kLanes) {
    T* panel = packed + unit * 3 * units;
    for (int64_t gate = 0; gate < 3; ++gate) {
      for (int64_t l = 0; l < kLanes; ++l) {
        const bool is_there = unit + l < units;
        const T* row = weight + (gate * units + unit + l) * units;
        for (int64_t k = 0; k < units; ++k) panel[(k * 3 + gate) * kLanes + l] = is_there ? row[k] : T(0);
      }
    }
  }
}

// packed[column / width][k][column % width] = weight[k][column].
template <typename T, int kBytes>
TORCHGRAFT_INLINE void pack_backward_panels(const T* weight, T* packed, int64_t units) {
  constexpr int64_t kWidth = 3 * Math<T, kBytes>::kLanes;
  for (int64_t column = 0; column < units; column += kWidth) {
    T* panel = packed + column * 3 * units;
    const int64_t count = std::min(kWidth, units - column);
    for (int64_t k = 0; k < 3 * units; ++k) {
      for (int64_t l = 0; l < kWidth; ++l)
        panel[k * kWidth + l] = l < count ? weight[k * units + column + l] : T(0);
    }
  }
}

TORCHGRAFT_VECTOR_CLONES(void forward_float(const SequenceForward<float>& pass, int64_t begin, int64_t end),
                         forward_rows<float, kVectorBytes>(pass, begin, end);)
TORCHGRAFT_VECTOR_CLONES(void forward_double(const SequenceForward<double>& pass, int64_t begin, int64_t end),
                         forward_rows<double, kVectorBytes>(pass, begin, end);)
TORCHGRAFT_VECTOR_CLONES(void backward_float(const SequenceBackward<float>& pass, int64_t begin, int64_t end),
                         backward_rows<float, kVectorBytes>(pass, begin, end);)
TORCHGRAFT_VECTOR_CLONES(void backward_double(const SequenceBackward<double>& pass, int64_t begin,
                                              int64_t end),
                         backward_rows<double, kVectorBytes>(pass, begin, end);)
TORCHGRAFT_VECTOR_CLONES(void pack_forward_float(const float* weight, float* packed, int64_t units),
                         pack_forward_panels<float, kVectorBytes>(weight, packed, units);)
TORCHGRAFT_VECTOR_CLONES(void pack_forward_double(const double* weight, double* packed, int64_t units),
                         pack_forward_panels<double, kVectorBytes>(weight, packed, units);)
TORCHGRAFT_VECTOR_CLONES(void pack_backward_float(const float* weight, float* packed, int64_t units),
                         pack_backward_panels<float, kVectorBytes>(weight, packed, units);)
TORCHGRAFT_VECTOR_CLONES(void pack_backward_double(const double* weight, double* packed, int64_t units),
                         pack_backward_panels<double, kVectorBytes>(weight, packed, units);)

}  // namespace

void sequence_forward(const SequenceForward<float>& pass, int64_t begin, int64_t end) {
  forward_float(pass, begin, end);
}
void sequence_forward(const SequenceForward<double>& pass, int64_t begin, int64_t end) {
  forward_double(pass, begin, end);
}
void sequence_backward(const SequenceBackward<float>& pass, int64_t begin, int64_t end) {
  backward_float(pass, begin, end);
}
void sequence_backward(const SequenceBackward<double>& pass, int64_t begin, int64_t end) {
  backward_double(pass, begin, end);
}
void pack_forward(const float* weight, float* packed, int64_t units) {
  pack_forward_float(weight, packed, units);
}
void pack_forward(const double* weight, double* packed, int64_t units) {
  pack_forward_double(weight, packed, units);
}
void pack_backward(const float* weight, float* packed, int64_t units) {
  pack_backward_float(weight, packed, units);
}
void pack_backward(const double* weight, double* packed, int64_t units) {
  pack_backward_double(weight, packed, units);
}

}  // namespace torchgraft::lltm::cpu
