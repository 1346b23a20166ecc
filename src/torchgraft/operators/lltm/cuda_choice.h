// Which kernels compute a call of lltm on CUDA: tables, asked from the top, of which the first rule that
// supports a problem and pays is the one. Host code alone, so that it is tested without a GPU. How a kernel
// works, and what it reaches, is told in its own file.
#pragma once

#include <torchgraft/choice.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <optional>

#include "cuda_shapes.h"

namespace torchgraft::lltm::cuda {

// What thresholds were measured on: of another device they are as large a share.
constexpr int64_t kMultiprocessorsOfH200 = 132;
constexpr int64_t share_of_device(int64_t on_h200, int multiprocessors) {
  return on_h200 * multiprocessors / kMultiprocessorsOfH200;
}

// ---------------------------------------------------------------- the recurrence of a whole sequence

// What a choice may ask. There are steps, rows and units.
struct Problem {
  int64_t steps;
  int64_t batch;
  int64_t units;
  bool backward;
  int element_bytes;  // eight: float64
  bool is_bfloat16;
  // Whether weight_hh may be multiplied in two bytes: that of float where tf32 is permitted.
  bool has_short_factor;
  // Whether kernels on the grid may read rows four numbers at a time.
  bool reads_four;
  // Of the device, and what kernels are compiled for; as 800 of compute capability 8.0.
  int architecture;
  int compiled_for;
  int multiprocessors;
  int64_t shared_of_block;
  bool has_clusters;
  bool has_cooperative_launches;
  // Of a kernel's blocks, with so many bytes of shared memory each: how many clusters of so many blocks can
  // be on the device at once, or where they make no clusters how many blocks on a multiprocessor. None of a
  // kernel that the device cannot run so.
  int (*resident)(const Problem&, Technique, Kernel, int64_t blocks, int64_t shared_bytes);
};

// How the blocks of a launch share out units and rows: a group has all units of its rows.
struct Groups {
  int blocks;  // of a group, S::kUnits units each
  int rows;    // of a group
  int64_t count;
};

// As few rows a group as there is room for all groups at once; nothing where no number of rows fits. All
// blocks that meet must be resident at once: a cluster is launched as one and waits for no other, a grid is
// launched cooperatively, and of that all blocks wait for each other.
template <typename S>
std::optional<Groups> fitting_groups(const Problem& problem) {
  constexpr bool kCluster = S::kWay == Way::cluster;
  constexpr bool kGrid = S::kWay == Way::grid;
  // Tensor cores and cp.async, and what the blocks of a cluster send each other.
  constexpr int kArchitecture = kCluster ? 900 : 800;
  // Places in a step are of 32 bits.
  constexpr int64_t kRows = 65536;
  const int64_t batch = problem.batch;
  if (batch >= kRows || problem.units > S::kMostUnits || problem.compiled_for < kArchitecture ||
      (kCluster && !problem.has_clusters) || (kGrid && !problem.has_cooperative_launches)) {
    return std::nullopt;
  }
  const int64_t blocks = divide_up(problem.units, S::kUnits);
  const int64_t most_groups = problem.multiprocessors / blocks;
  if (most_groups == 0) return std::nullopt;
  // A block that meets no other may wait until there is room for it.
  constexpr int64_t kMostRowsOfBlock = 32;
  const int64_t even = divide_up(batch, most_groups);
  const int64_t least = kCluster || kGrid ? even : std::min(even, kMostRowsOfBlock);
  // Multiprocessors come in groups of the hardware, and those of one that are too few for a cluster stay
  // idle, so a few rows more than `least` may be needed.
  const int64_t most = std::min(2 * least + 2, S::kMostRows);
  for (int64_t rows = least; rows <= most; ++rows) {
    const int64_t shared_bytes = S::shared_bytes(rows, blocks);
    if (shared_bytes > problem.shared_of_block) break;
    const int64_t count = divide_up(batch, rows);
    const int64_t resident = problem.resident(problem, S::kTechnique, S::kKernel, blocks, shared_bytes);
    const int64_t room = kCluster ? resident : resident * most_groups;
    if (room >= (kCluster || kGrid ? count : 1)) {
      return Groups{static_cast<int>(blocks), static_cast<int>(rows), count};
    }
  }
  return std::nullopt;
}

template <typename S>
bool supports_on_chip(const Problem& problem) {
  return problem.element_bytes != 8 && problem.steps < INT_MAX - kSlots &&
         fitting_groups<S>(problem).has_value();
}

// Their products are of numbers of two bytes.
template <typename S>
bool supports_on_chip_mma(const Problem& problem) {
  return problem.has_short_factor && fitting_groups<S>(problem).has_value();
}

inline bool supports_steps(const Problem& problem) { return problem.has_short_factor; }

// Rows of parts begin at sixteen bytes: each is of two ranges of units.
inline bool supports_steps_in_parts(const Problem& problem) {
  return problem.has_short_factor && divide_up(problem.units, 8) % 2 == 0;
}

// A warp has 32 bits for places, and all blocks wait for each other.
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
  return divide_up(problem.units, S::kUnits) <= resident * problem.multiprocessors;
}

template <typename AnyProblem>
bool always(const AnyProblem&) {
  return true;
}

// How many rows a group of blocks may have for a recurrence to take less time in float, on the cores for
// that, than on tensor cores: with a row or two a step is as long as h is on its way, and a product in float
// is done by then. (On an H200 16 rows of 128 units took 0.8 us a step and 1.1, one of 512 units 1.0 and 1.1;
// 17 rows of 200 units 1.8 and 1.1.)
inline int64_t rows_quicker_in_float(const Problem& problem) {
  if (!problem.has_short_factor) return kAnyRows;
  const bool one_block = problem.units <= 128;
  if (!problem.backward && problem.element_bytes == 2) return one_block || problem.units > 256 ? 1 : 0;
  return one_block ? 2 : 1;
}

// With so many rows a group of more and smaller blocks takes less time; more rows would leave it fewer
// multiprocessors than they need. (On an H200.)
constexpr int64_t kFewRowsForward = 2;
constexpr int64_t kFewRowsBackward = 2;
constexpr int64_t kFewRowsMmaForward = 2;
constexpr int64_t kFewRowsMmaBackward = kTileRows;

// Of more than so many units: those of a smaller shape take less time. And of so many rows a group.
template <typename S, int64_t kMoreUnits = 0, int64_t kFewRows = kAnyRows>
bool pays_on_chip(const Problem& problem) {
  return problem.units > kMoreUnits &&
         fitting_groups<S>(problem)->rows <= std::min(kFewRows, rows_quicker_in_float(problem));
}
template <typename S, int64_t kMoreUnits = 0, int64_t kFewRows = kAnyRows>
bool pays_on_chip_mma(const Problem& problem) {
  return problem.units > kMoreUnits && (kFewRows == kAnyRows || fitting_groups<S>(problem)->rows <= kFewRows);
}

// Without the tensor cores that the kernels on chip need there is no tf32, going back products of bfloat16
// are slow, and up to 512 units kernels in float take less time.
inline bool pays_by_steps(const Problem& problem) {
  constexpr int64_t kUnitsOfOlder = 512;
  const bool has_older = problem.element_bytes == 2 && !(problem.backward && problem.is_bfloat16);
  return problem.architecture >= 800 || (has_older && problem.units > kUnitsOfOlder);
}

inline bool pays_by_steps_in_parts(const Problem& problem) {
  constexpr int64_t kMostRows = 64;  // of which products in parts take less time
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

template <typename S, bool (*kPays)(const Problem&)>
constexpr Rule on_chip(const char* name) {
  return {name, S::kTechnique, S::kKernel, supports_on_chip<S>, kPays};
}
template <typename S, bool (*kPays)(const Problem&)>
constexpr Rule on_chip_mma(const char* name) {
  return {name, S::kTechnique, S::kKernel, supports_on_chip_mma<S>, kPays};
}
template <typename S>
constexpr Rule on_grid(const char* name) {
  return {name, Technique::grid, S::kKernel, supports_grid<S>, pays_on_grid<S>};
}

// In clusters where there are such, as they meet in a fifth of the time.
inline constexpr Rule kForwardRules[] = {
    on_chip<ForwardBlock64, pays_on_chip<ForwardBlock64>>("on_chip_forward_block_64"),
    on_chip<ForwardBlock96, pays_on_chip<ForwardBlock96, 64>>("on_chip_forward_block_96"),
    on_chip<ForwardBlock128, pays_on_chip<ForwardBlock128, 96>>("on_chip_forward_block_128"),
    on_chip<ForwardCluster8x32, pays_on_chip<ForwardCluster8x32, 128, kFewRowsForward>>(
        "on_chip_forward_cluster_8x32"),
    on_chip<ForwardCluster4x64, pays_on_chip<ForwardCluster4x64, 128>>("on_chip_forward_cluster_4x64"),
    on_chip<ForwardCluster16x32, pays_on_chip<ForwardCluster16x32, 256>>("on_chip_forward_cluster_16x32"),
    on_chip_mma<MmaForwardBlock128, pays_on_chip_mma<MmaForwardBlock128>>("on_chip_mma_forward_block_128"),
    on_chip_mma<MmaForwardCluster4x64OneRow,
                pays_on_chip_mma<MmaForwardCluster4x64OneRow, 128, kFewRowsMmaForward>>(
        "on_chip_mma_forward_cluster_4x64_one_row"),
    on_chip_mma<MmaForwardCluster2x128OneRow, pays_on_chip_mma<MmaForwardCluster2x128OneRow, 128>>(
        "on_chip_mma_forward_cluster_2x128_one_row"),
    on_chip_mma<MmaForwardCluster2x128, pays_on_chip_mma<MmaForwardCluster2x128, 128>>(
        "on_chip_mma_forward_cluster_2x128"),
    on_chip_mma<MmaForwardCluster8x64OneRow, pays_on_chip_mma<MmaForwardCluster8x64OneRow, 128>>(
        "on_chip_mma_forward_cluster_8x64_one_row"),
    on_chip_mma<MmaForwardCluster8x64, pays_on_chip_mma<MmaForwardCluster8x64, 128>>(
        "on_chip_mma_forward_cluster_8x64"),
    on_chip_mma<MmaForwardGrid16x32, pays_on_chip_mma<MmaForwardGrid16x32, 128>>(
        "on_chip_mma_forward_grid_16x32"),
    on_chip_mma<MmaForwardGrid32x32, pays_on_chip_mma<MmaForwardGrid32x32, 512>>(
        "on_chip_mma_forward_grid_32x32"),
    {"steps_forward", Technique::steps, Kernel::steps, supports_steps, pays_by_steps},
    on_grid<Grid1>("grid_forward_1"),
    on_grid<Grid2>("grid_forward_2"),
    on_grid<Grid4>("grid_forward_4"),
    on_grid<Grid8>("grid_forward_8"),
    {"elementwise_forward", Technique::elementwise, Kernel::elementwise, always, always},
};

inline constexpr Rule kBackwardRules[] = {
    on_chip<BackwardBlock64, pays_on_chip<BackwardBlock64>>("on_chip_backward_block_64"),
    on_chip<BackwardBlock96, pays_on_chip<BackwardBlock96, 64>>("on_chip_backward_block_96"),
    on_chip<BackwardBlock128, pays_on_chip<BackwardBlock128, 96>>("on_chip_backward_block_128"),
    on_chip<BackwardCluster8x32, pays_on_chip<BackwardCluster8x32, 128, kFewRowsBackward>>(
        "on_chip_backward_cluster_8x32"),
    on_chip<BackwardCluster4x64, pays_on_chip<BackwardCluster4x64, 128>>("on_chip_backward_cluster_4x64"),
    on_chip<BackwardCluster16x32, pays_on_chip<BackwardCluster16x32, 256>>("on_chip_backward_cluster_16x32"),
    on_chip_mma<MmaBackwardBlock32, pays_on_chip_mma<MmaBackwardBlock32>>("on_chip_mma_backward_block_32"),
    on_chip_mma<MmaBackwardCluster4x32, pays_on_chip_mma<MmaBackwardCluster4x32, 32>>(
        "on_chip_mma_backward_cluster_4x32"),
    on_chip_mma<MmaBackwardCluster8x32, pays_on_chip_mma<MmaBackwardCluster8x32, 32, kFewRowsMmaBackward>>(
        "on_chip_mma_backward_cluster_8x32"),
    on_chip_mma<MmaBackwardCluster2x128, pays_on_chip_mma<MmaBackwardCluster2x128, 32>>(
        "on_chip_mma_backward_cluster_2x128"),
    on_chip_mma<MmaBackwardCluster8x64, pays_on_chip_mma<MmaBackwardCluster8x64, 32>>(
        "on_chip_mma_backward_cluster_8x64"),
    on_chip_mma<MmaBackwardGrid16x32, pays_on_chip_mma<MmaBackwardGrid16x32, 32>>(
        "on_chip_mma_backward_grid_16x32"),
    on_chip_mma<MmaBackwardGrid32x32, pays_on_chip_mma<MmaBackwardGrid32x32, 512>>(
        "on_chip_mma_backward_grid_32x32"),
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

// A cell's rows, or those of all steps of a sequence.
struct RowsProblem {
  int64_t rows;
  int64_t features;
  int64_t units;
  int element_bytes;
  int multiprocessors;
};

// The grids of the kernels of a small cell have room for so many rows, features and units.
inline bool supports_cell_products(const RowsProblem& problem) {
  constexpr int64_t kSize = int64_t{1} << 19;
  return problem.element_bytes != 8 && problem.rows < kSize && problem.features < kSize &&
         problem.units < kSize;
}
inline bool supports_cell(const RowsProblem& problem) {
  return problem.element_bytes == 4 && problem.rows > 0 && supports_cell_products(problem);
}

// Where one kernel takes less time than two products of PyTorch's and an elementwise one. In float, with few
// rows, PyTorch's products take 15 us each on an H200; of halves, which have tensor cores, they take less
// than this kernel: 12 us and 15 for 16 rows of 128 units.
inline bool pays_as_small_cell(const RowsProblem& problem) {
  constexpr int64_t kProducts = int64_t{1} << 27;
  return problem.rows * (problem.features + problem.units) <
         share_of_device(kProducts, problem.multiprocessors) / (3 * problem.units);
}

inline bool supports_products_of_halves(const RowsProblem& problem) { return problem.element_bytes == 2; }

// Where several products of halves, on tensor cores, and what comes before and after them take less time than
// one in float. (On an H200 in float16, 96 rows of 512 units and features, 2**26.2 products, took 75 us and
// 81; 17 rows, 64 steps, 96 features and 200 units, 2**25.9, took 216 and 210.)
inline bool pays_in_halves(const RowsProblem& problem) {
  constexpr int64_t kProducts = int64_t{1} << 26;
  return problem.rows * 3 * problem.units >=
         share_of_device(kProducts, problem.multiprocessors) / std::min(problem.features, problem.units);
}

enum class CellKernel { cell, elementwise };

struct CellRule {
  const char* name;
  CellKernel kernel;
  bool (*supports)(const RowsProblem&);
  bool (*pays)(const RowsProblem&);
};

inline constexpr CellRule kCellRules[] = {
    {"cell_forward", CellKernel::cell, supports_cell, pays_as_small_cell},
    {"elementwise_forward", CellKernel::elementwise, always, always},
};

enum class GradsKernel { cell_products, halves, plain };

// Of what the gradients of a sequence, or of a cell, are multiplied from those of gates.
struct GradsRule {
  const char* name;
  GradsKernel kernel;
  bool (*supports)(const RowsProblem&);
  bool (*pays)(const RowsProblem&);
};

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

// left @ right with a result of float, (rows, depth) and (depth, columns).
struct MatrixProblem {
  int64_t rows;
  int64_t columns;
  int64_t depth;
  int multiprocessors;
};

// The depth of a product that is not shared out, and what the parts' is a multiple of.
constexpr int64_t kDeepest = 2048;
constexpr int64_t kDepthStep = 64;

// Whether cuBLAS may share the depth out among blocks, and leave some of it out (cuda_multiply.cu): of a deep
// product with fewer tiles than there are multiprocessors.
inline bool may_be_cut_short(const MatrixProblem& problem) {
  constexpr int64_t kTile = 128;
  const int64_t tiles = divide_up(problem.rows, kTile) * divide_up(problem.columns, kTile);
  return problem.depth > kDeepest && tiles > 0 && tiles <= problem.multiprocessors;
}

// At least two parts; and a grid with a row of blocks a row.
inline bool supports_parts(const MatrixProblem& problem) {
  return problem.rows > 0 && problem.rows < 65536 && problem.columns > 0 && problem.depth > kDepthStep;
}
inline bool is_never_cut_short(const MatrixProblem& problem) { return !may_be_cut_short(problem); }

struct MatrixRule {
  const char* name;
  bool in_parts;
  bool (*supports)(const MatrixProblem&);
  bool (*pays)(const MatrixProblem&);
};

inline constexpr MatrixRule kMatrixRules[] = {
    {"products_in_parts", true, supports_parts, may_be_cut_short},
    {"products_at_once", false, is_never_cut_short, always},
};

}  // namespace torchgraft::lltm::cuda
