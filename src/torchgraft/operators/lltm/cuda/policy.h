// Which kernel computes a call of lltm on CUDA: tables, asked from the top. The first rule whose kernel
// supports a problem (supports.h) and pays for it is the one. A kernel's name is its folder, its file and its
// shape. Thresholds were measured on an H200; how a kernel works is told in its own file. Host code alone, so
// that it is tested without a GPU.
#pragma once

#include <torchgraft/choice.h>

#include <algorithm>
#include <cstdint>

#include "supports.h"

namespace torchgraft::lltm::cuda {

// A threshold that was measured on an H200, as the same share of the device in hand.
constexpr int64_t kMultiprocessorsOfH200 = 132;
constexpr int64_t share_of_device(int64_t on_h200, int multiprocessors) {
  return on_h200 * multiprocessors / kMultiprocessorsOfH200;
}

// A rule whose kernel is one of `Choice`.
template <typename AnyProblem, typename Choice>
struct RuleOf {
  const char* name;
  Choice kernel;
  bool (*supports)(const AnyProblem&);
  bool (*pays)(const AnyProblem&);
};

// ---------------------------------------------------------------- the recurrence of a whole sequence

// How many rows a group of blocks may have for a recurrence to take less time in float, on the cores for
// that, than on tensor cores: with a row or two a step is as long as h is on its way, and a product in float
// is done by then. (On an H200 16 rows of 128 units took 0.8 us a step and 1.1, one of 512 units 1.0 and 1.1;
// 17 rows of 200 units 1.8 and 1.1.)
inline int64_t rows_quicker_in_float(const Problem& problem) {
  if (!problem.allows_two_byte_weights) return kAnyRows;
  const bool one_block = problem.units <= ForwardBlock128::kMostUnits;
  if (!problem.backward && problem.element_bytes == 2) {
    return one_block || problem.units > ForwardCluster4x64::kMostUnits ? 1 : 0;
  }
  return one_block ? 2 : 1;
}

// With so many rows a group of more and smaller blocks takes less time; more rows would leave it fewer
// multiprocessors than they need. (On an H200.)
constexpr int64_t kFewRowsOfGroup = 2;
constexpr int64_t kFewRowsMmaBackward = kTileRows;

// A kernel pays for more units than a smaller shape has room for, and for few rows a group.
struct NoShape {
  static constexpr int kMostUnits = 0;
};
template <typename S, typename Smaller = NoShape, int64_t kFewRows = kAnyRows>
bool pays_on_chip(const Problem& problem) {
  return problem.units > Smaller::kMostUnits &&
         fitting_groups<S>(problem)->rows <= std::min(kFewRows, rows_quicker_in_float(problem));
}
template <typename S, typename Smaller = NoShape, int64_t kFewRows = kAnyRows>
bool pays_on_chip_mma(const Problem& problem) {
  return problem.units > Smaller::kMostUnits &&
         (kFewRows == kAnyRows || fitting_groups<S>(problem)->rows <= kFewRows);
}

// Without the tensor cores that the kernels on chip need there is no tf32, going back products of bfloat16
// are slow, and up to 512 units kernels in float take less time.
inline bool pays_by_steps(const Problem& problem) {
  constexpr int64_t kUnitsOfOlder = 512;
  const bool has_older = problem.element_bytes == 2 && !(problem.backward && problem.is_bfloat16);
  return problem.architecture >= 800 || (has_older && problem.units > kUnitsOfOlder);
}

inline bool pays_by_steps_in_parts(const Problem& problem) {
  constexpr int64_t kMostRows = 64;  // with which products in parts take less time
  return problem.batch <= kMostRows && pays_by_steps(problem);
}

// As few units a block as there are multiprocessors for. Of more multiply-adds a step PyTorch's products win
// by more than a launch a step costs (on an H200).
template <typename S>
bool pays_on_grid(const Problem& problem) {
  constexpr int64_t kMostProducts = int64_t{1} << 28;
  const int64_t most = int64_t{S::kUnits} * problem.multiprocessors;
  return problem.units <= most && (S::kUnits == 1 || problem.units > most / 2) &&
         3 * problem.batch * problem.units * problem.units <=
             share_of_device(kMostProducts, problem.multiprocessors);
}

struct Rule {
  const char* name;
  Technique technique;
  Kernel kernel;
  bool (*supports)(const Problem&);
  bool (*pays)(const Problem&);
};

template <typename S, typename Smaller = NoShape, int64_t kFewRows = kAnyRows>
constexpr Rule on_chip(const char* name) {
  return {name, S::kTechnique, S::kKernel, supports_on_chip<S>, pays_on_chip<S, Smaller, kFewRows>};
}
template <typename S, typename Smaller = NoShape, int64_t kFewRows = kAnyRows>
constexpr Rule on_chip_mma(const char* name) {
  return {name, S::kTechnique, S::kKernel, supports_on_chip_mma<S>, pays_on_chip_mma<S, Smaller, kFewRows>};
}
template <typename S>
constexpr Rule on_grid(const char* name) {
  return {name, Technique::grid, S::kKernel, supports_grid<S>, pays_on_grid<S>};
}

// In clusters where there are such, as they meet in a fifth of the time.
inline constexpr Rule kForwardRules[] = {
    on_chip<ForwardBlock64>("on_chip_forward_block_64"),
    on_chip<ForwardBlock96, ForwardBlock64>("on_chip_forward_block_96"),
    on_chip<ForwardBlock128, ForwardBlock96>("on_chip_forward_block_128"),
    on_chip<ForwardCluster8x32, ForwardBlock128, kFewRowsOfGroup>("on_chip_forward_cluster_8x32"),
    on_chip<ForwardCluster4x64, ForwardBlock128>("on_chip_forward_cluster_4x64"),
    on_chip<ForwardCluster16x32, ForwardCluster4x64>("on_chip_forward_cluster_16x32"),
    on_chip_mma<MmaForwardBlock128>("on_chip_mma_forward_block_128"),
    on_chip_mma<MmaForwardCluster4x64OneRow, MmaForwardBlock128, kFewRowsOfGroup>(
        "on_chip_mma_forward_cluster_4x64_one_row"),
    on_chip_mma<MmaForwardCluster2x128OneRow, MmaForwardBlock128>(
        "on_chip_mma_forward_cluster_2x128_one_row"),
    on_chip_mma<MmaForwardCluster2x128, MmaForwardBlock128>("on_chip_mma_forward_cluster_2x128"),
    on_chip_mma<MmaForwardCluster8x64OneRow, MmaForwardBlock128>("on_chip_mma_forward_cluster_8x64_one_row"),
    on_chip_mma<MmaForwardCluster8x64, MmaForwardBlock128>("on_chip_mma_forward_cluster_8x64"),
    on_chip_mma<MmaForwardGrid16x32, MmaForwardBlock128>("on_chip_mma_forward_grid_16x32"),
    on_chip_mma<MmaForwardGrid32x32, MmaForwardGrid16x32>("on_chip_mma_forward_grid_32x32"),
    {"steps_forward", Technique::steps, Kernel::steps, supports_steps, pays_by_steps},
    on_grid<Grid1>("grid_forward_1"),
    on_grid<Grid2>("grid_forward_2"),
    on_grid<Grid4>("grid_forward_4"),
    on_grid<Grid8>("grid_forward_8"),
    {"elementwise_forward", Technique::elementwise, Kernel::elementwise, always, always},
};

inline constexpr Rule kBackwardRules[] = {
    on_chip<BackwardBlock64>("on_chip_backward_block_64"),
    on_chip<BackwardBlock96, BackwardBlock64>("on_chip_backward_block_96"),
    on_chip<BackwardBlock128, BackwardBlock96>("on_chip_backward_block_128"),
    on_chip<BackwardCluster8x32, BackwardBlock128, kFewRowsOfGroup>("on_chip_backward_cluster_8x32"),
    on_chip<BackwardCluster4x64, BackwardBlock128>("on_chip_backward_cluster_4x64"),
    on_chip<BackwardCluster16x32, BackwardCluster4x64>("on_chip_backward_cluster_16x32"),
    on_chip_mma<MmaBackwardBlock32>("on_chip_mma_backward_block_32"),
    on_chip_mma<MmaBackwardCluster4x32, MmaBackwardBlock32>("on_chip_mma_backward_cluster_4x32"),
    on_chip_mma<MmaBackwardCluster8x32, MmaBackwardBlock32, kFewRowsMmaBackward>(
        "on_chip_mma_backward_cluster_8x32"),
    on_chip_mma<MmaBackwardCluster2x128, MmaBackwardBlock32>("on_chip_mma_backward_cluster_2x128"),
    on_chip_mma<MmaBackwardCluster8x64, MmaBackwardBlock32>("on_chip_mma_backward_cluster_8x64"),
    on_chip_mma<MmaBackwardGrid16x32, MmaBackwardBlock32>("on_chip_mma_backward_grid_16x32"),
    on_chip_mma<MmaBackwardGrid32x32, MmaBackwardGrid16x32>("on_chip_mma_backward_grid_32x32"),
    {"steps_backward_in_parts", Technique::steps, Kernel::steps_in_parts, supports_steps_in_parts,
     pays_by_steps_in_parts},
    {"steps_backward", Technique::steps, Kernel::steps, supports_steps, pays_by_steps},
    on_grid<Grid1>("grid_backward_1"),
    on_grid<Grid2>("grid_backward_2"),
    on_grid<Grid4>("grid_backward_4"),
    on_grid<Grid8>("grid_backward_8"),
    {"elementwise_backward", Technique::elementwise, Kernel::elementwise, always, always},
};

// ---------------------------------------------------------------- a cell, and products of gradients

// Where one kernel takes less time than two products of PyTorch's and an elementwise one. In float, with few
// rows, PyTorch's products take 15 us each on an H200; of halves, which have tensor cores, they take less
// than this kernel: 12 us and 15 for 16 rows of 128 units.
inline bool pays_as_small_cell(const RowsProblem& problem) {
  constexpr int64_t kProducts = int64_t{1} << 27;
  return problem.rows * (problem.features + problem.units) <
         share_of_device(kProducts, problem.multiprocessors) / (3 * problem.units);
}

// Where several products of halves, on tensor cores, and what comes before and after them take less time than
// one in float. (On an H200 in float16, 96 rows of 512 units and features, 2**26.2 products, took 75 us and
// 81; 17 rows, 64 steps, 96 features and 200 units, 2**25.9, took 216 and 210.)
inline bool pays_in_halves(const RowsProblem& problem) {
  constexpr int64_t kProducts = int64_t{1} << 26;
  return problem.rows * 3 * problem.units >=
         share_of_device(kProducts, problem.multiprocessors) / std::min(problem.features, problem.units);
}

enum class CellKernel { cell, elementwise };

using CellRule = RuleOf<RowsProblem, CellKernel>;

inline constexpr CellRule kCellRules[] = {
    {"cell_forward", CellKernel::cell, supports_cell, pays_as_small_cell},
    {"elementwise_forward", CellKernel::elementwise, always, always},
};

enum class GradsKernel { cell_products, halves, plain };

using GradsRule = RuleOf<RowsProblem, GradsKernel>;

// Of two bytes too, as PyTorch's products would want them converted, a launch each.
inline constexpr GradsRule kCellGradsRules[] = {
    {"cell_products", GradsKernel::cell_products, supports_cell_products, pays_as_small_cell},
    {"products_halves", GradsKernel::halves, supports_products_of_halves, pays_in_halves},
    {"products_plain", GradsKernel::plain, always, always},
};
inline constexpr GradsRule kSequenceGradsRules[] = {
    {"products_halves", GradsKernel::halves, supports_products_of_halves, pays_in_halves},
    {"products_plain", GradsKernel::plain, always, always},
};

// ---------------------------------------------------------------- one product of two bytes

enum class MatrixKernel { in_parts, at_once };
using MatrixRule = RuleOf<MatrixProblem, MatrixKernel>;

inline constexpr MatrixRule kMatrixRules[] = {
    {"products_in_parts", MatrixKernel::in_parts, supports_parts, may_be_cut_short},
    {"products_at_once", MatrixKernel::at_once, is_never_cut_short, always},
};

}  // namespace torchgraft::lltm::cuda
