// All steps of a recurrence on CPU, forward and back, for some rows of the batch and some units.
//
// A step is a product of the rows' messages with weight_hh, in register tiles of up to kTile rows by three
// vectors. The vectors of a unit's gates lie in the same panels, so a unit is computed where its gates are
// summed up, while they are in the first-level cache. weight_hh is packed once, in the order in which it is
// read. With enough rows arithmetic bounds a step. With few rows reading weight_hh does, so it is shared out
// among the threads' own caches (rounds.h).
#pragma once

#include <utility>

#include "recurrence_passes.h"
#include "rounds.h"

namespace torchgraft::recurrence {

using cpu_products::Lanes;
using cpu_products::OnBestVectors;
using cpu_products::Share;

// The fewest vectors of units whose gates fill whole panels of three vectors, and those panels.
template <typename Cell>
struct Group {
  static constexpr int kVectors = Cell::kGates % 3 == 0 ? 1 : 3;
  static constexpr int kPanels = kVectors * Cell::kGates / 3;
  // Rows whose sums of all panels lie in the first-level cache, beside the part of a panel that is read.
  static constexpr int64_t kBlock = kPanels == 1 ? cpu_products::kBlock : cpu_products::kBlock / 2;

  // Units of a group of the longest vectors.
  template <typename T>
  static constexpr int64_t kMostUnits = kVectors * cpu_products::kMostLanes<T>;
};

// Calls the step `Pass::unit` for a vector of units of one row. The numbers [kFirst, kFirst + kSums) that it
// reads are sums, and the others lie in memory.
template <int kBytes, int kFirst, int kSums, typename Pass, typename T, size_t... kRead, size_t... kWritten>
TORCHGRAFT_INLINE void run_vector(const Step<Pass, T>& step, int64_t row, int64_t unit,
                                  const Vector<T, kBytes> (&sums)[kSums], std::index_sequence<kRead...>,
                                  std::index_sequence<kWritten...>) {
  using L = Lanes<T, kBytes>;
  const int64_t count = step.units - unit;
  T read[Pass::kReads][L::kLanes], written[Pass::kWrites][L::kLanes];
  const auto fetch = [&](int i) __attribute__((always_inline)) {
    Vector<T, kBytes> vector;
    if (i >= kFirst && i < kFirst + kSums) {
      vector = sums[i - kFirst];
    } else {
      L::load_some(vector, step.read[i].first + row * step.read[i].stride + unit, count);
    }
    store(vector, read[i]);
  };
  (fetch(kRead), ...);
  for (int l = 0; l < L::kLanes; ++l) {
    const T given[] = {read[kRead][l]...};
    T made[Pass::kWrites];
    Pass::template unit<CpuMath>(given, made);
    ((written[kWritten][l] = made[kWritten]), ...);
  }
  const auto leave = [&](int i) __attribute__((always_inline)) {
    Vector<T, kBytes> vector;
    load(vector, written[i]);
    L::store_some(vector, step.written[i].first + row * step.written[i].stride + unit, count);
  };
  (leave(kWritten), ...);
}

template <int kBytes, int kFirst, int kSums, typename Pass, typename T>
TORCHGRAFT_INLINE void run_vector(const Step<Pass, T>& step, int64_t row, int64_t unit,
                                  const Vector<T, kBytes> (&sums)[kSums]) {
  run_vector<kBytes, kFirst>(step, row, unit, sums, std::make_index_sequence<Pass::kReads>(),
                             std::make_index_sequence<Pass::kWrites>());
}

// packed[panel][k][vector][lane], where the vectors of all panels of a group are those of its units' gates:
// unit after unit, and gate after gate; behind the last unit are zeros.
template <typename Cell, typename T>
struct PackForward {
  template <int kBytes>
  static TORCHGRAFT_INLINE void run(const T* weight, T* packed, int64_t units, int64_t begin, int64_t end) {
    using G = Group<Cell>;
    constexpr int64_t kLanes = Lanes<T, kBytes>::kLanes;
    for (int64_t first = begin; first < end; first += G::kVectors * kLanes) {
      T* const panels = packed + first * Cell::kGates * units;
      for (int64_t vector = 0; vector < 3 * G::kPanels; ++vector) {
        const int64_t unit = first + vector / Cell::kGates * kLanes, gate = vector % Cell::kGates;
        const cpu_products::Columns<T> columns = {weight + (gate * units + unit) * units, 1, units};
        cpu_products::pack_vector<T, kBytes>(columns, units - unit, units,
                                             panels + (vector / 3 * units * 3 + vector % 3) * kLanes);
      }
    }
  }
};

template <typename T>
struct ForwardPass {
  const T* packed;
  T* messages[2];  // (batch, units): what an even step is told, and an odd one
};

template <typename Cell, typename T>
struct ForwardRounds {
  template <int kBytes>
  static TORCHGRAFT_INLINE void run(const ForwardRows<Cell, T>& rows, const ForwardPass<T>& pass,
                                    const Sizes& sizes, const Share& share, int64_t begin, int64_t end) {
    using G = Group<Cell>;
    using L = Lanes<T, kBytes>;
    const int64_t units = sizes.units;
    for (int64_t round = begin; round < end; ++round) {
      const T* const message = pass.messages[round % 2];
      const Step<typename Cell::Forward, T> step = rows.at(round, nullptr, pass.messages[1 - round % 2]);
      for (int64_t first = share.first_unit; first < share.end_unit; first += G::kVectors * L::kLanes) {
        const T* const panels = pass.packed + first * Cell::kGates * units;
        const int64_t vectors = std::min<int64_t>(G::kVectors, (units - first + L::kLanes - 1) / L::kLanes);
        for (int64_t row = share.first_row; row < share.end_row; row += G::kBlock) {
          const int64_t count = std::min(G::kBlock, share.end_row - row);
          typename L::V sums[G::kPanels][G::kBlock][3];
          for (int64_t panel = 0; 3 * panel < vectors * Cell::kGates; ++panel) {
            cpu_products::multiply_rows<T, kBytes>({message + row * units, units, 1}, count,
                                                   panels + panel * units * 3 * L::kLanes, units,
                                                   sums[panel]);
          }
          for (int64_t vector = 0; vector < vectors; ++vector) {
            run_units<kBytes>(step, sums, row, count, first + vector * L::kLanes, vector);
          }
        }
      }
    }
  }

 private:
  // The units of a vector in some rows, from what the messages give to their gates.
  template <int kBytes>
  static TORCHGRAFT_INLINE void run_units(const Step<typename Cell::Forward, T>& step,
                                          const Vector<T, kBytes> (*sums)[Group<Cell>::kBlock][3],
                                          int64_t row, int64_t count, int64_t unit, int64_t vector) {
    using L = Lanes<T, kBytes>;
    for (int64_t r = 0; r < count; ++r) {
      typename L::V gates[Cell::kGates];
      for (int gate = 0; gate < Cell::kGates; ++gate) {
        const int64_t place = vector * Cell::kGates + gate;
        gates[gate] = sums[place / 3][r][place % 3];
      }
      run_vector<kBytes, Cell::kGates>(step, row + r, unit, gates);
    }
  }
};

template <typename T>
struct BackwardPass {
  const T* packed;
  T* message_grad;  // (batch, units): of what the first step is told, in the end
};

// Round r multiplies the gradients of the gates of the step before, which needs those of all units, and goes
// back through the next step, which needs only the units themselves.
template <typename Cell, typename T>
struct BackwardRounds {
  template <int kBytes>
  static TORCHGRAFT_INLINE void run(const BackwardRows<Cell, T>& rows, const BackwardPass<T>& pass,
                                    const Sizes& sizes, const Share& share, int64_t begin, int64_t end) {
    using L = Lanes<T, kBytes>;
    constexpr int64_t kWidth = 3 * L::kLanes;
    constexpr int kMessageGrad =
        Cell::kGates * (1 + Cell::kGatesApart) + 2 * Cell::kStates + Cell::kParameters;
    const int64_t units = sizes.units, width = Cell::kGates * units;
    for (int64_t round = begin; round < end; ++round) {
      // The last round goes through no step.
      const int64_t at = sizes.steps - 1 - round;
      const Step<typename Cell::Backward, T> step = rows.at(std::max<int64_t>(at, 0), nullptr);
      for (int64_t column = share.first_unit; column < share.end_unit; column += kWidth) {
        for (int64_t row = share.first_row; row < share.end_row; row += cpu_products::kBlock) {
          const int64_t count = std::min(cpu_products::kBlock, share.end_row - row);
          cpu_products::Sums<T, kBytes> sums;
          if (round == 0) {
            for (int64_t r = 0; r < count; ++r) {
              for (auto& each : sums[r]) each = typename L::V{};
            }
          } else {
            cpu_products::multiply_rows<T, kBytes>({rows.message_gates_grad(at + 1) + row * width, width, 1},
                                                   count, pass.packed + column * width, width, sums);
          }
          for (int64_t r = 0; r < count; ++r) {
            for (int64_t v = 0; v < 3 && column + v * L::kLanes < units; ++v) {
              const int64_t unit = column + v * L::kLanes;
              if (at < 0) {
                L::store_some(sums[r][v], pass.message_grad + (row + r) * units + unit, units - unit);
              } else {
                const typename L::V gradient[1] = {sums[r][v]};
                run_vector<kBytes, kMessageGrad>(step, row + r, unit, gradient);
              }
            }
          }
        }
      }
    }
  }
};

template <typename T>
struct PackBackward {
  template <int kBytes>
  static TORCHGRAFT_INLINE void run(const T* weight, T* packed, int64_t width, int64_t units, int64_t begin,
                                    int64_t end) {
    cpu_products::pack_panels<T, kBytes>({weight + begin, units, 1}, end - begin, width,
                                         packed + begin * width);
  }
};

template <typename T>
struct MultiplyShare {
  template <int kBytes>
  static TORCHGRAFT_INLINE void run(const cpu_products::Product<T>& product, const Share& share) {
    cpu_products::multiply_share<T, kBytes>(product, share);
  }
};

}  // namespace torchgraft::recurrence
