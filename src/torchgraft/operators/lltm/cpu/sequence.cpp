// The steps of lltm on CPU, forward and back, for some rows of the batch and some units.
//
// A step is a product of the rows' states with weight_hh, in register tiles of up to kTile rows by three
// vectors. Going forward the three are the gates of the same units, so a unit is computed where its gates are
// summed up, and only activations are written. weight_hh is packed once, into panels in the order in which it
// is read. A part of a panel that fits the first-level cache is used for all tiles of a block of rows before
// the next part. With enough rows arithmetic bounds a step. With few rows reading weight_hh does, so it is
// shared out among the threads' own caches (detail/rounds.h).

#include <algorithm>

#include "kernels.h"
#include "units.h"

namespace torchgraft::lltm::cpu {
namespace {

using cpu_products::kBlock;
using cpu_products::multiply_rows;
using cpu_products::pack_vector;
using cpu_products::Sums;

// The units of a vector in kRows rows, from what the hidden states give to their gates.
template <typename T, int kBytes, int kRows>
TORCHGRAFT_INLINE void forward_units(const SequenceForward<T>& pass, const T* c, int64_t t, int64_t first,
                                     int64_t unit, const typename Math<T, kBytes>::V (*sums)[3]) {
  using M = Math<T, kBytes>;
  using V = typename M::V;
  const int64_t units = pass.units;
  const int64_t count = units - unit;
  V bias[3] = {}, gates[3][kRows], state[kRows], output[kRows];
  if (pass.bias != nullptr) {
    TORCHGRAFT_UNROLL
    for (int g = 0; g < 3; ++g) M::load_some(bias[g], pass.bias + g * units + unit, count);
  }
  T* activations = pass.activations + (t * pass.batch + first) * 3 * units + unit;
  TORCHGRAFT_UNROLL
  for (int r = 0; r < kRows; ++r) {
    M::load_some(state[r], c + (first + r) * units + unit, count);
    TORCHGRAFT_UNROLL
    for (int g = 0; g < 3; ++g) {
      M::load_some(gates[g][r], activations + (3 * r + g) * units, count);
      gates[g][r] += sums[r][g] + bias[g];
    }
  }
  M::forward(gates, state, output);
  const int64_t place = (t * pass.batch + first) * units + unit;
  TORCHGRAFT_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TORCHGRAFT_UNROLL
    for (int g = 0; g < 3; ++g) M::store_some(gates[g][r], activations + (3 * r + g) * units, count);
    M::store_some(state[r], pass.cells + place + r * units, count);
    M::store_some(output[r], pass.output + place + r * units, count);
  }
}

template <typename T, int kBytes>
TORCHGRAFT_INLINE void forward_rounds(const SequenceForward<T>& pass, const Share& share, int64_t begin,
                                      int64_t end) {
  constexpr int64_t kLanes = Math<T, kBytes>::kLanes;
  const int64_t units = pass.units;
  const int64_t state = pass.batch * units;
  for (int64_t step = begin; step < end; ++step) {
    const int64_t t = pass.reverse ? pass.steps - 1 - step : step;
    const int64_t before = pass.reverse ? t + 1 : t - 1;
    const T* h = step == 0 ? pass.h0 : pass.output + before * state;
    const T* c = step == 0 ? pass.c0 : pass.cells + before * state;
    for (int64_t unit = share.first_unit; unit < share.end_unit; unit += kLanes) {
      const T* panel = pass.packed + unit * 3 * units;
      for (int64_t row = share.first_row; row < share.end_row; row += kBlock) {
        const int64_t count = std::min(kBlock, share.end_row - row);
        Sums<T, kBytes> sums;
        multiply_rows<T, kBytes>({h + row * units, units, 1}, count, panel, units, sums);
        constexpr int kRows = Math<T, kBytes>::kForward;
        int64_t r = 0;
        for (; r + kRows <= count; r += kRows) {
          forward_units<T, kBytes, kRows>(pass, c, t, row + r, unit, sums + r);
        }
        for (; r < count; ++r) forward_units<T, kBytes, 1>(pass, c, t, row + r, unit, sums + r);
      }
    }
  }
}

template <typename T, int kBytes>
TORCHGRAFT_INLINE void step_back(const SequenceBackward<T>& pass, const Share& share, int64_t t) {
  const int64_t state = pass.batch * pass.units;
  const int64_t next = pass.reverse ? t - 1 : t + 1;
  const bool has_next = pass.h_before != nullptr && next >= 0 && next < pass.steps;
  const CellBackward<T> step = {pass.activations + t * 3 * state,
                                pass.cells + t * state,
                                pass.h_grad,
                                pass.output_grad == nullptr ? nullptr : pass.output_grad + t * state,
                                pass.c_grad,
                                pass.gates_grad + t * 3 * state,
                                pass.c_grad,
                                has_next ? pass.h_before + next * state : nullptr,
                                pass.units};
  units_backward<T, kBytes, /*kAfter=*/true>(step, share);
}

template <typename T, int kBytes>
TORCHGRAFT_INLINE void multiply_back(const SequenceBackward<T>& pass, const Share& share, int64_t t) {
  using M = Math<T, kBytes>;
  constexpr int64_t kWidth = 3 * M::kLanes;
  const int64_t units = pass.units;
  for (int64_t column = share.first_unit; column < share.end_unit; column += kWidth) {
    const T* panel = pass.packed + column * 3 * units;
    for (int64_t row = share.first_row; row < share.end_row; row += kBlock) {
      const int64_t count = std::min(kBlock, share.end_row - row);
      Sums<T, kBytes> sums;
      multiply_rows<T, kBytes>({pass.gates_grad + (t * pass.batch + row) * 3 * units, 3 * units, 1}, count,
                               panel, 3 * units, sums);
      for (int64_t r = 0; r < count; ++r) {
        for (int64_t first = column; first < std::min(units, column + kWidth); first += M::kLanes) {
          M::store_some(sums[r][(first - column) / M::kLanes], pass.h_grad + (row + r) * units + first,
                        units - first);
        }
      }
    }
  }
}

// Round r multiplies the gates of step r - 1, which needs those of all units, and goes back through step r,
// which needs only the units themselves.
template <typename T, int kBytes>
TORCHGRAFT_INLINE void backward_rounds(const SequenceBackward<T>& pass, const Share& share, int64_t begin,
                                       int64_t end) {
  for (int64_t round = begin; round < end; ++round) {
    const auto time = [&](int64_t step) { return pass.reverse ? step : pass.steps - 1 - step; };
    if (round > 0) multiply_back<T, kBytes>(pass, share, time(round - 1));
    if (round < pass.steps) step_back<T, kBytes>(pass, share, time(round));
  }
}

// packed[unit / lanes][k][gate][unit % lanes] = weight[gate][unit][k].
template <typename T, int kBytes>
TORCHGRAFT_INLINE void pack_forward_panels(const T* weight, T* packed, int64_t units, int64_t begin,
                                           int64_t end) {
  constexpr int64_t kLanes = Math<T, kBytes>::kLanes;
  for (int64_t unit = begin; unit < end; unit += kLanes) {
    T* panel = packed + unit * 3 * units;
    for (int64_t gate = 0; gate < 3; ++gate) {
      const Columns<T> of_gate = {weight + (gate * units + unit) * units, 1, units};
      pack_vector<T, kBytes>(of_gate, units - unit, units, panel + gate * kLanes);
    }
  }
}

}  // namespace

LLTM_CLONES(sequence_forward, float, forward_rounds,
            (const SequenceForward<float>& pass, const Share& share, int64_t begin, int64_t end), pass, share,
            begin, end)
LLTM_CLONES(sequence_forward, double, forward_rounds,
            (const SequenceForward<double>& pass, const Share& share, int64_t begin, int64_t end), pass,
            share, begin, end)
LLTM_CLONES(sequence_backward, float, backward_rounds,
            (const SequenceBackward<float>& pass, const Share& share, int64_t begin, int64_t end), pass,
            share, begin, end)
LLTM_CLONES(sequence_backward, double, backward_rounds,
            (const SequenceBackward<double>& pass, const Share& share, int64_t begin, int64_t end), pass,
            share, begin, end)
LLTM_CLONES(pack_forward, float, pack_forward_panels,
            (const float* weight, float* packed, int64_t units, int64_t begin, int64_t end), weight, packed,
            units, begin, end)
LLTM_CLONES(pack_forward, double, pack_forward_panels,
            (const double* weight, double* packed, int64_t units, int64_t begin, int64_t end), weight, packed,
            units, begin, end)

}  // namespace torchgraft::lltm::cpu
