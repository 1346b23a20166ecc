// How long each kernel of a recurrence is predicted to take, from what its step consists of. policy.h has the
// figures of each kernel and takes the kernel with the least time. Times are in microseconds. What all
// kernels share, such as the product with all inputs, is left out. Host code alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

#include "supports.h"

namespace torchgraft::lltm::cuda {

constexpr int64_t kMultiprocessorsOfH200 = 132;

// The time that a kernel takes where it does not support a problem, or never pays.
constexpr float kNever = std::numeric_limits<float>::infinity();

// What a step of a kernel takes, measured on an H200. What its technique does not have is zero.
struct Cost {
  float step = 0;  // at the least: how long a launch or a message is on its way
  // On chip, and on the grid:
  float row = 0;      // for each row of a group, or of few units for each row of a multiprocessor
  float tile = 0;     // for each tile of rows, which are multiplied at a time
  float turn = 0;     // for as many rows as the warps of a block compute, or multiply, at a time
  float start = 0;    // of few units, once a call: for as many rows as a multiprocessor has room for
  float message = 0;  // for each row and each block of a group
  float read = 0;     // for each million of numbers that the blocks of a grid read
  // Step by step, elementwise, and on the grid:
  float element = 0;  // for each million of units of all rows
  float waiting = 0;  // for each thousand of rows beyond those that the device has room for at once
  float product = 0;  // for each billion of multiply-adds; on the grid for each thousand of a warp's
  float wave = 0;     // for each thousand of the depth of as many tiles as there are multiprocessors
  float cut = 0;      // where the product of a step is computed in parts, since cuBLAS may cut it short
  float spill = 0;    // for each million bytes of sums that do not stay in L2
};

// What a call takes beside its steps, forward and back: launches, and weights on their way to the chip.
constexpr float kCallOfFewUnits[] = {3.5f, 6.0f};
constexpr float kCallOnChip[] = {10.2f, 17.6f};
constexpr float kCallOnChipMma[] = {9.5f, 12.8f};
constexpr float kCallOnGrid[] = {6.1f, 12.8f};
constexpr float kCallBySteps[] = {7.0f, 6.0f};
constexpr float kCallElementwise[] = {3.0f, 1.0f};
// What conversions take there: of weights for tensor cores, and of numbers of two bytes to float.
constexpr float kConversionOfWeights[] = {2.5f, 9.4f};
constexpr float kConversionToFloat[] = {10.6f, 0.0f};

namespace internal {

inline float as_float(int64_t number) { return static_cast<float>(number); }

// Weights of float, and forward those of bfloat16.
inline float conversion_of_weights(const Problem& problem) {
  const bool converts = problem.element_bytes == 4 || (problem.is_bfloat16 && !problem.backward);
  return converts ? kConversionOfWeights[problem.backward] : 0;
}

// What a device of another size takes for the same, in times of an H200.
inline float share_of_h200(const Problem& problem) {
  return as_float(kMultiprocessorsOfH200) / as_float(problem.multiprocessors);
}

}  // namespace internal

// ---------------------------------------------------------------- few units

// The rows of a multiprocessor share its arithmetic.
template <typename S>
float time_of_few_units(const Problem& problem, const Cost& cost) {
  if (!supports_few_units<S>(problem)) return kNever;
  const int64_t rows = ceil_divide<int64_t>(problem.batch, problem.multiprocessors);
  const int64_t at_once = S::kBlocks * few_units_rows<S>(problem);
  const float turns = internal::as_float(ceil_divide(rows, at_once));
  const float step = cost.step * turns + cost.row * internal::as_float(rows);
  return kCallOfFewUnits[problem.backward] + cost.start * turns + internal::as_float(problem.steps) * step;
}

// ---------------------------------------------------------------- on chip

// How often the blocks of a launch begin, where not all of them have room at once.
inline float rounds_of(const Problem& problem, const Groups& groups) {
  return internal::as_float(ceil_divide<int64_t>(groups.count * groups.blocks, problem.multiprocessors));
}

template <typename S>
float time_on_chip(const Problem& problem, const Cost& cost) {
  const std::optional<Groups> groups = groups_on_chip<S>(problem);
  if (!groups) return kNever;
  const int tiles = ceil_divide(groups->rows, tile_rows_of(groups->rows, S::kTiles));
  const float step = cost.step + cost.row * internal::as_float(groups->rows) +
                     cost.tile * internal::as_float(tiles) +
                     cost.message * internal::as_float(groups->rows * groups->blocks);
  return kCallOnChip[problem.backward] +
         internal::as_float(problem.steps) * rounds_of(problem, *groups) * step;
}

template <typename S>
float time_on_chip_mma(const Problem& problem, const Cost& cost) {
  // Going back, halves of float16 are scaled by the largest gradient of a row; for each turn:
  constexpr float kScaling = 0.223f;
  const std::optional<Groups> groups = groups_on_chip_mma<S>(problem);
  if (!groups) return kNever;
  const bool is_scaled = problem.backward && !problem.is_bfloat16;
  const int tiles = ceil_divide(groups->rows, kTileRows);
  const int turns = ceil_divide(groups->rows, S::kRowsAtOnce);
  const float step = cost.step + cost.tile * internal::as_float(tiles) +
                     (cost.turn + (is_scaled ? kScaling : 0)) * internal::as_float(turns) +
                     cost.message * internal::as_float(groups->rows * groups->blocks);
  return kCallOnChipMma[problem.backward] + internal::conversion_of_weights(problem) +
         internal::as_float(problem.steps) * rounds_of(problem, *groups) * step;
}

// ---------------------------------------------------------------- on older devices

// Without the tensor cores that the kernels on chip need there is no tf32, going back products of bfloat16
// are slow, and up to 512 units kernels in float take less time.
inline bool pays_by_steps(const Problem& problem) {
  constexpr int64_t kUnitsOfOlder = 512;
  const bool has_older = problem.element_bytes == 2 && !(problem.backward && problem.is_bfloat16);
  return problem.architecture >= 800 || (has_older && problem.units > kUnitsOfOlder);
}

inline bool may_go_by_steps(const Problem& problem) {
  return supports_steps(problem) && pays_by_steps(problem);
}

// ---------------------------------------------------------------- on the grid

template <typename S>
float time_on_grid(const Problem& problem, const Cost& cost) {
  if (!supports_grid<S>(problem) || (problem.architecture < 800 && may_go_by_steps(problem))) return kNever;
  constexpr int64_t kDepthOfTurn = 128;  // four numbers a lane
  const int columns = S::columns(problem.backward);
  const int rows = grid_rows_of(columns);
  const int64_t depth = problem.backward ? 3 * problem.units : problem.units;
  const int parts = parts_of(S::kWarps, static_cast<int>(problem.batch), rows);
  const int64_t turns = ceil_divide<int64_t>(ceil_divide<int64_t>(problem.batch, rows) * parts, S::kWarps);
  const int64_t products = turns * ceil_divide<int64_t>(depth, kDepthOfTurn * parts) * rows * columns;
  const int64_t read = problem.batch * depth * ceil_divide<int64_t>(problem.units, S::kUnits);
  // Numbers that do not lie in fours are read one at a time.
  constexpr float kByOnes[] = {1.2f, 2.5f};
  const float by_ones = problem.reads_float4 ? 1 : kByOnes[problem.backward];
  const float step = cost.step + cost.turn * internal::as_float(turns) +
                     by_ones * (cost.product * 1e-3f * internal::as_float(products) +
                                cost.read * 1e-6f * internal::as_float(read));
  // Numbers of two bytes are converted, the results of all steps too.
  const float conversion =
      problem.element_bytes == 2
          ? kConversionToFloat[problem.backward] +
                cost.element * 1e-6f * internal::as_float(problem.steps * problem.batch * problem.units)
          : 0;
  return kCallOnGrid[problem.backward] + conversion + internal::as_float(problem.steps) * step;
}

// ---------------------------------------------------------------- step by step

// What the products and the kernel of a step take. The product is `parts` products of (rows, depth) and
// (depth, columns), which cuBLAS computes in tiles of 128 x 128.
inline float time_of_product(const Problem& problem, const Cost& cost, int64_t parts, int64_t rows,
                             int64_t columns, int64_t depth) {
  constexpr int64_t kTile = 128;
  const int64_t tiles = parts * ceil_divide(rows, kTile) * ceil_divide(columns, kTile);
  const int64_t waves = ceil_divide<int64_t>(tiles, problem.multiprocessors);
  return cost.wave * 1e-3f * internal::as_float(waves * depth) +
         cost.product * internal::share_of_h200(problem) * 1e-9f *
             internal::as_float(parts * rows * columns * depth);
}

// The rows that wait for others. The kernel of a step has a warp for each row, whose lanes share the units.
inline int64_t waiting_rows(const Problem& problem) {
  constexpr int64_t kRowsAtOnce = 8;  // of a multiprocessor
  return std::max<int64_t>(0, problem.batch - kRowsAtOnce * problem.multiprocessors);
}

inline float time_by_steps(const Problem& problem, const Cost& cost, float product) {
  const float step =
      cost.step + product +
      cost.waiting * internal::share_of_h200(problem) * 1e-3f * internal::as_float(waiting_rows(problem)) +
      cost.element * 1e-6f * internal::as_float(problem.batch * problem.units);
  return kCallBySteps[problem.backward] + internal::conversion_of_weights(problem) +
         internal::as_float(problem.steps) * step;
}

// Forward the gates are columns; back they are the depth.
inline float time_steps_forward(const Problem& problem, const Cost& cost) {
  if (!may_go_by_steps(problem)) return kNever;
  return time_by_steps(
      problem, cost, time_of_product(problem, cost, 1, 2 * problem.batch, 3 * problem.units, problem.units));
}

inline float time_steps_backward(const Problem& problem, const Cost& cost) {
  if (!may_go_by_steps(problem)) return kNever;
  const int64_t depth = 3 * round_up(problem.units, 8);  // units are filled up to sixteen bytes
  const bool is_cut = may_be_cut_short({2 * problem.batch, problem.units, depth, problem.multiprocessors});
  const int64_t parts = is_cut ? ceil_divide(depth, kDeepest) : 1;
  const float product =
      time_of_product(problem, cost, parts, 2 * problem.batch, problem.units, depth / parts);
  return time_by_steps(problem, cost, product + (is_cut ? cost.cut : 0));
}

inline float time_steps_backward_in_parts(const Problem& problem, const Cost& cost) {
  if (!supports_steps_in_parts(problem) || !pays_by_steps(problem)) return kNever;
  constexpr int64_t kParts = 6;
  constexpr int64_t kBytesInL2 = 25'000'000;  // of sums that a product writes and the next kernel reads
  const int64_t bytes = kParts * 2 * problem.batch * problem.units * 4;
  const float spill = cost.spill * 1e-6f * internal::as_float(std::max<int64_t>(0, bytes - kBytesInL2));
  const float product =
      time_of_product(problem, cost, kParts, 2 * problem.batch, problem.units, problem.units / 2);
  return time_by_steps(problem, cost, product + spill);
}

// In float and double cuBLAS computes at least 64 rows, and of fewer a product may take ten times as long as
// of one more or one less: there, where tensor cores may be used, this is never the least.
inline float time_elementwise(const Problem& problem, const Cost& cost) {
  if (may_go_by_steps(problem) && waiting_rows(problem) == 0) return kNever;
  constexpr int64_t kLeastRows = 64;
  const int64_t rows = ceil_divide(problem.batch, kLeastRows) * kLeastRows;
  const float step = (problem.batch < kLeastRows ? 2 : 1) * cost.step +
                     time_of_product(problem, cost, 1, rows, 3 * problem.units, problem.units) +
                     cost.element * 1e-6f * internal::as_float(problem.batch * problem.units);
  return kCallElementwise[problem.backward] +
         (problem.element_bytes == 2 ? kConversionToFloat[problem.backward] : 0) +
         internal::as_float(problem.steps) * step;
}

}  // namespace torchgraft::lltm::cuda
