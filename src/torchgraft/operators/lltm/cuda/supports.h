// What each kernel of lltm on CUDA can compute at all: where there is room for it, and 32 bits do. Nothing
// that is tuned. Host code alone.
#pragma once

#include <torchgraft/detail/threshold.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <optional>

#include "problem.h"

namespace torchgraft::lltm::cuda {

// ---------------------------------------------------------------- the recurrence of a whole sequence

// Whether tensor cores may multiply weight_hh as numbers of two bytes. True float32 has more digits. Going
// back, two parts of bfloat16 keep 15 bits of a gradient (split.cuh). The more products a sum has, the less
// of it that is; of few, whose terms may be large and cancel each other, it would be more than a sum in float
// loses.
inline bool supports_two_byte_weights(const Problem& problem) {
  constexpr int64_t kFewestUnits = 16;
  const bool keeps_few_bits = problem.backward && problem.is_bfloat16;
  return problem.allows_two_byte_weights && !(keeps_few_bits && problem.units < kFewestUnits);
}

// Indices within a step have 32 bits.
template <typename S>
bool supports_few_units(const Problem& problem) {
  constexpr int64_t kRows = 65536;
  return problem.element_bytes != 8 && problem.units <= S::kMostUnits && problem.batch < kRows &&
         problem.steps < INT_MAX - 1;
}

// The rows of a block: one where all blocks then begin at once, or else as many as registers have room for.
template <typename S>
int few_units_rows(const Problem& problem) {
  return problem.batch <= int64_t{problem.multiprocessors} * S::kBlocks ? 1 : S::kMostRowsOfBlock;
}

// How the blocks of a launch share out units and rows: a group has all units of its rows.
struct Groups {
  int blocks;  // of a group, S::kUnits units each
  int rows;    // of a group
  int64_t count;
};

// The groups with the fewest rows for which all groups have room at once, or nothing. Blocks that wait for
// each other must be resident at once: a cluster is launched as one and waits for no other; all blocks of a
// grid wait for each other, and it is launched cooperatively.
template <typename S>
std::optional<Groups> fitting_groups(const Problem& problem) {
  constexpr bool kCluster = S::kGroup == Group::cluster;
  constexpr bool kGrid = S::kGroup == Group::grid;
  // For tensor cores and cp.async, and in clusters for messages between blocks.
  constexpr int kArchitecture = kCluster ? 900 : 800;
  // Indices within a step have 32 bits.
  constexpr int64_t kRows = 65536;
  const int64_t batch = problem.batch;
  if (batch >= kRows || problem.units > S::kMostUnits || problem.compiled_for < kArchitecture ||
      (kCluster && !problem.has_clusters) || (kGrid && !problem.has_cooperative_launches)) {
    return std::nullopt;
  }
  const int64_t blocks = ceil_divide(problem.units, S::kUnits);
  // One block is no cluster, and may not write to itself as if it were in one.
  if (kCluster && blocks < 2) return std::nullopt;
  const int64_t most_groups = problem.multiprocessors / blocks;
  if (most_groups == 0) return std::nullopt;
  // A block that waits for no other may begin when there is room for it.
  constexpr int64_t kMostRowsOfBlock = 32;
  const int64_t even = ceil_divide(batch, most_groups);
  const int64_t least = kCluster || kGrid ? even : std::min(even, kMostRowsOfBlock);
  // A cluster lies in one of the hardware's groups of multiprocessors, and some of such a group may stay
  // idle, so a few rows more than `least` may be needed.
  const int64_t most = std::min(2 * least + 2, S::kMostRows);
  for (int64_t rows = least; rows <= most; ++rows) {
    const int64_t shared_bytes = S::shared_bytes(rows, blocks);
    if (shared_bytes > problem.shared_of_block) break;
    const int64_t count = ceil_divide(batch, rows);
    const int64_t resident = problem.resident(problem, S::kTechnique, S::kKernel, blocks, shared_bytes);
    const int64_t room = kCluster ? resident : resident * most_groups;
    if (room >= (kCluster || kGrid ? count : 1)) {
      return Groups{static_cast<int>(blocks), static_cast<int>(rows), count};
    }
  }
  return std::nullopt;
}

// The groups of a kernel on chip in float, or nothing where it does not support a problem.
template <typename S>
std::optional<Groups> groups_on_chip(const Problem& problem) {
  if (problem.element_bytes == 8 || problem.steps >= INT_MAX - kStages) return std::nullopt;
  return fitting_groups<S>(problem);
}

// The same on tensor cores.
template <typename S>
std::optional<Groups> groups_on_chip_mma(const Problem& problem) {
  return supports_two_byte_weights(problem) ? fitting_groups<S>(problem) : std::nullopt;
}

template <typename S>
bool supports_on_chip(const Problem& problem) {
  return groups_on_chip<S>(problem).has_value();
}
template <typename S>
bool supports_on_chip_mma(const Problem& problem) {
  return groups_on_chip_mma<S>(problem).has_value();
}

inline bool supports_steps(const Problem& problem) { return supports_two_byte_weights(problem); }

// Rows of parts must begin at sixteen bytes, and each part has half of the units.
inline bool supports_steps_in_parts(const Problem& problem) {
  return supports_two_byte_weights(problem) && ceil_divide(problem.units, 8) % 2 == 0;
}

// Indices have 32 bits, and all blocks wait for each other.
template <typename S>
bool supports_grid(const Problem& problem) {
  constexpr int64_t kSize = 65536;
  if (problem.element_bytes == 8 || problem.batch >= kSize || problem.units >= kSize ||
      !problem.has_cooperative_launches) {
    return false;
  }
  const int64_t shared_bytes = S::shared_bytes(problem.batch, problem.units, problem.backward);
  if (shared_bytes > problem.shared_of_block) return false;
  const int64_t resident = problem.resident(problem, Technique::grid, S::kKernel, 1, shared_bytes);
  return ceil_divide(problem.units, S::kUnits) <= resident * problem.multiprocessors;
}

// ---------------------------------------------------------------- a cell, and products

// The grids of the kernels of a small cell, and of all products at once, have room for so many rows, features
// and units.
inline bool supports_products_together(const RowsProblem& problem) {
  constexpr int64_t kSize = int64_t{1} << 19;
  return problem.element_bytes != 8 && problem.rows < kSize && problem.features < kSize &&
         problem.units < kSize;
}
inline bool supports_cell(const RowsProblem& problem) {
  return problem.element_bytes == 4 && problem.rows > 0 && supports_products_together(problem);
}

inline bool supports_products_of_halves(const RowsProblem& problem) { return problem.is_half(); }

// The depth of a product that is not shared out, and what the parts' is a multiple of.
constexpr int64_t kDeepest = 2048;
constexpr int64_t kDepthStep = 64;

// Whether cuBLAS may share the depth out among blocks, and leave some of it out (products/in_parts.cu): of a
// deep product with fewer tiles than there are multiprocessors.
TORCHGRAFT_THRESHOLD(kDeepestAtOnce, kDeepest);
inline bool may_be_cut_short(const MatrixProblem& problem) {
  constexpr int64_t kTile = 128;
  const int64_t tiles = ceil_divide(problem.rows, kTile) * ceil_divide(problem.columns, kTile);
  return problem.depth > kDeepestAtOnce && tiles > 0 && tiles <= problem.multiprocessors;
}

// At least two parts.
inline bool supports_parts(const MatrixProblem& problem) {
  return problem.rows > 0 && problem.columns > 0 && problem.depth > kDepthStep;
}
inline bool is_never_cut_short(const MatrixProblem& problem) { return !may_be_cut_short(problem); }

}  // namespace torchgraft::lltm::cuda
