// Which kernel computes a call of lltm on CUDA: tables, asked from the top. The first rule whose kernel
// supports a problem (supports.h) and pays for it is the one. A kernel's name is its folder, its file and its
// shape. Thresholds were measured on an H200; how a kernel works is told in its own file. Host code alone, so
// that it is tested without a GPU.
#pragma once

#include <torchgraft/choice.h>
#include <torchgraft/detail/threshold.h>

#include <algorithm>
#include <cstdint>

#include "cost.h"

namespace torchgraft::lltm::cuda {

// A threshold for the whole of an H200, as the same share of a device with so many multiprocessors.
constexpr Threshold share_of_device(const Threshold& on_h200, int multiprocessors) {
  return on_h200.times(multiprocessors).per(kMultiprocessorsOfH200);
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

// The kernel with the least predicted time (cost.h). The figures are those of an H200: least squares over the
// times of all kernels for a random half of 902 problems, back also of 312 later ones; the other half
// confirmed them (docs/lltm.md). Those of few units, of the elementwise kernel and of waiting rows are of 764
// problems of any number of rows and units, on an H200 and an H100.
struct Rule {
  const char* name;
  Technique technique;
  Kernel kernel;
  bool (*supports)(const Problem&);
  Cost cost;
  float (*time)(const Problem&, const Cost&);

  float microseconds(const Problem& problem) const { return time(problem, cost); }
};

template <typename S>
constexpr Rule few_units(const char* name, const Cost& cost) {
  return {name, S::kTechnique, S::kKernel, supports_few_units<S>, cost, time_of_few_units<S>};
}
template <typename S>
constexpr Rule on_chip(const char* name, const Cost& cost) {
  return {name, S::kTechnique, S::kKernel, supports_on_chip<S>, cost, time_on_chip<S>};
}
template <typename S>
constexpr Rule on_chip_mma(const char* name, const Cost& cost) {
  return {name, S::kTechnique, S::kKernel, supports_on_chip_mma<S>, cost, time_on_chip_mma<S>};
}
template <typename S>
constexpr Rule on_grid(const char* name, const Cost& cost) {
  return {name, Technique::grid, S::kKernel, supports_grid<S>, cost, time_on_grid<S>};
}

// In either direction.
constexpr Cost kElementwise = {.step = 10, .element = 29, .product = 45};

inline constexpr Rule kForwardRules[] = {
    few_units<FewUnits32>("few_units_forward_32", {.step = 0.181f, .row = 0.044f, .start = 2.2f}),
    few_units<FewUnits64>("few_units_forward_64", {.step = 0.15f, .row = 0.101f, .start = 1.8f}),
    on_chip<ForwardBlock96>("on_chip_forward_block_96", {.step = 0.347f, .row = 0.124f, .tile = 0.352f}),
    on_chip<ForwardBlock128>("on_chip_forward_block_128", {.step = 0.42f, .row = 0.351f, .tile = 0.17f}),
    on_chip<ForwardCluster8x32>("on_chip_forward_cluster_8x32",
                                {.step = 0.293f, .tile = 0.561f, .message = 0.02f}),
    on_chip<ForwardCluster4x64>("on_chip_forward_cluster_4x64",
                                {.step = 0.331f, .row = 0.032f, .tile = 0.427f, .message = 0.068f}),
    on_chip<ForwardCluster16x32>("on_chip_forward_cluster_16x32",
                                 {.step = 0.371f, .row = 0.045f, .tile = 0.566f, .message = 0.016f}),
    on_chip_mma<MmaForwardBlock128>("on_chip_mma_forward_block_128",
                                    {.step = 0.475f, .tile = 0.172f, .turn = 0.303f}),
    on_chip_mma<MmaForwardCluster4x64OneRow>("on_chip_mma_forward_cluster_4x64_one_row",
                                             {.step = 0.942f, .message = 0.011f}),
    on_chip_mma<MmaForwardCluster2x128>("on_chip_mma_forward_cluster_2x128",
                                        {.step = 0.444f, .tile = 0.557f, .turn = 0.16f, .message = 0.024f}),
    on_chip_mma<MmaForwardCluster8x64OneRow>("on_chip_mma_forward_cluster_8x64_one_row",
                                             {.step = 1.182f, .message = 0.005f}),
    on_chip_mma<MmaForwardCluster8x64>("on_chip_mma_forward_cluster_8x64",
                                       {.step = 0.611f, .tile = 0.682f, .turn = 0.003f, .message = 0.009f}),
    on_chip_mma<MmaForwardGrid16x32>("on_chip_mma_forward_grid_16x32",
                                     {.step = 1.938f, .tile = 0.137f, .turn = 0.471f, .message = 0.004f}),
    on_chip_mma<MmaForwardGrid32x32>("on_chip_mma_forward_grid_32x32",
                                     {.step = 1.896f, .tile = 0.378f, .turn = 0.444f, .message = 0.003f}),
    {"steps_forward",
     Technique::steps,
     Kernel::steps,
     supports_steps,
     {.step = 4.803f, .element = 12.6f, .waiting = 0.9f, .product = 5.3f, .wave = 1.805f},
     time_steps_forward},
    on_grid<Grid1>("grid_forward_1",
                   {.step = 2.685f, .turn = 1.221f, .read = 0.267f, .element = 8.3f, .product = 15.1f}),
    on_grid<Grid2>("grid_forward_2",
                   {.step = 2.061f, .turn = 1.221f, .read = 0.267f, .element = 8.3f, .product = 15.1f}),
    on_grid<Grid4>("grid_forward_4",
                   {.step = 2.321f, .turn = 1.221f, .read = 0.267f, .element = 8.3f, .product = 15.1f}),
    on_grid<Grid8>("grid_forward_8",
                   {.step = 2.114f, .turn = 1.221f, .read = 0.267f, .element = 8.3f, .product = 15.1f}),
    {"elementwise_forward", Technique::elementwise, Kernel::elementwise, always, kElementwise,
     time_elementwise},
};

inline constexpr Rule kBackwardRules[] = {
    few_units<FewUnits32>("few_units_backward_32", {.step = 0.201f, .row = 0.044f, .start = 3.7f}),
    few_units<FewUnits64>("few_units_backward_64", {.step = 0.18f, .row = 0.1f, .start = 3.5f}),
    on_chip<BackwardBlock96>("on_chip_backward_block_96", {.step = 0.514f, .row = 0.137f, .tile = 0.535f}),
    on_chip<BackwardBlock128>("on_chip_backward_block_128", {.step = 0.505f, .row = 0.351f, .tile = 0.435f}),
    on_chip<BackwardCluster8x32>("on_chip_backward_cluster_8x32",
                                 {.step = 0.486f, .row = 0.017f, .tile = 0.563f, .message = 0.026f}),
    on_chip<BackwardCluster4x64>("on_chip_backward_cluster_4x64",
                                 {.step = 0.463f, .row = 0.021f, .tile = 0.545f, .message = 0.097f}),
    on_chip<BackwardCluster16x32>("on_chip_backward_cluster_16x32",
                                  {.step = 0.562f, .row = 0.077f, .tile = 0.514f, .message = 0.022f}),
    on_chip_mma<MmaBackwardCluster4x32>("on_chip_mma_backward_cluster_4x32",
                                        {.step = 0.667f, .tile = 0.226f, .turn = 0.513f, .message = 0.007f}),
    on_chip_mma<MmaBackwardCluster8x32>("on_chip_mma_backward_cluster_8x32",
                                        {.step = 0.899f, .tile = 0.344f, .turn = 0.275f, .message = 0.008f}),
    on_chip_mma<MmaBackwardCluster2x128>("on_chip_mma_backward_cluster_2x128",
                                         {.step = 0.483f, .tile = 0.535f, .turn = 0.654f, .message = 0.061f}),
    on_chip_mma<MmaBackwardCluster8x64>("on_chip_mma_backward_cluster_8x64",
                                        {.step = 0.522f, .tile = 1.163f, .turn = 0.006f, .message = 0.02f}),
    on_chip_mma<MmaBackwardGrid16x32>("on_chip_mma_backward_grid_16x32",
                                      {.step = 1.845f, .tile = 0.36f, .turn = 0.598f, .message = 0.01f}),
    on_chip_mma<MmaBackwardGrid32x32>("on_chip_mma_backward_grid_32x32",
                                      {.step = 2.282f, .tile = 0.629f, .turn = 0.902f, .message = 0.009f}),
    {"steps_backward_in_parts",
     Technique::steps,
     Kernel::steps_in_parts,
     supports_steps_in_parts,
     {.step = 5.443f, .element = 35.6f, .waiting = 1.9f, .product = 10.7f, .wave = 2.649f, .spill = 0.98f},
     time_steps_backward_in_parts},
    {"steps_backward",
     Technique::steps,
     Kernel::steps,
     supports_steps,
     {.step = 5.334f, .element = 14.5f, .waiting = 0.8f, .product = 14.7f, .wave = 1.727f, .cut = 5.884f},
     time_steps_backward},
    on_grid<Grid1>("grid_backward_1",
                   {.step = 1.573f, .turn = 1.683f, .read = 0.262f, .element = 20.3f, .product = 12.3f}),
    on_grid<Grid2>("grid_backward_2",
                   {.step = 1.488f, .turn = 1.683f, .read = 0.262f, .element = 20.3f, .product = 12.3f}),
    on_grid<Grid4>("grid_backward_4",
                   {.step = 1.737f, .turn = 1.683f, .read = 0.262f, .element = 20.3f, .product = 12.3f}),
    on_grid<Grid8>("grid_backward_8",
                   {.step = 1.184f, .turn = 1.683f, .read = 0.262f, .element = 20.3f, .product = 12.3f}),
    {"elementwise_backward", Technique::elementwise, Kernel::elementwise, always, kElementwise,
     time_elementwise},
};

// ---------------------------------------------------------------- a cell, and products of gradients

constexpr int64_t kGates = 3;

// Multiply-adds up to which one kernel takes less time than two products of PyTorch's and an elementwise
// kernel. In float32 with few rows, PyTorch's products take 15 us each on an H200. Products of halves, on
// tensor cores, take less than this kernel: 12 us and 15 us for 16 rows of 128 units.
TORCHGRAFT_THRESHOLD(kSmallCellProducts, int64_t{1} << 27);
inline bool pays_as_small_cell(const RowsProblem& problem) {
  return problem.rows * (problem.features + problem.units) <
         share_of_device(kSmallCellProducts, problem.multiprocessors).per(kGates * problem.units);
}

// Multiply-adds from which several products of halves, on tensor cores, take less time than one in float32.
// Each number of the gates' gradients is multiplied by all features and units. It must be split first, which
// takes as long as kSplitting of its products in float32.
TORCHGRAFT_THRESHOLD(kHalfProducts, int64_t{1} << 27);
inline bool pays_in_halves(const RowsProblem& problem) {
  constexpr int64_t kSplitting = 96;
  return problem.rows * kGates * problem.units * (problem.features + problem.units - kSplitting) >=
         share_of_device(kHalfProducts, problem.multiprocessors);
}

enum class CellKernel { cell, elementwise };

using CellRule = RuleOf<RowsProblem, CellKernel>;

inline constexpr CellRule kCellRules[] = {
    {"cell_forward", CellKernel::cell, supports_cell, pays_as_small_cell},
    {"elementwise_forward", CellKernel::elementwise, always, always},
};

// Steps up to which one kernel for all products of a sequence pays. Its blocks go through the whole depth of
// their results, 64 in a step of 1.1 us. The other ways are five launches of PyTorch's or more, and twice as
// many for halves, whose factors and results are converted. Fitted to a drawn half of 2,531 problems on an
// H200: where it is chosen, it takes 26 % less time in float32, and 34 % less in halves.
TORCHGRAFT_THRESHOLD(kStepsTogether, 12);
TORCHGRAFT_THRESHOLD(kStepsTogetherOfHalves, 20);
inline bool pays_together(const RowsProblem& problem) {
  constexpr int64_t kTile = 32;
  constexpr int64_t kDepth = 64;
  constexpr int64_t kTilesOfMultiprocessor = 6;  // which take twice as long as one
  const auto of_tiles = [](int64_t size) { return ceil_divide(size, kTile); };
  const int64_t width = kGates * problem.units;
  const int64_t tiles = of_tiles(problem.rows) * of_tiles(problem.features) +
                        of_tiles(width) * (of_tiles(problem.features) + of_tiles(problem.units) + 1);
  const int64_t steps = ceil_divide(std::max(problem.rows, width), kDepth);
  const int64_t at_once = kTilesOfMultiprocessor * problem.multiprocessors;
  return steps * (at_once + tiles) <=
         (problem.is_half() ? kStepsTogetherOfHalves : kStepsTogether).times(at_once);
}

enum class GradsKernel { together, halves, plain };

using GradsRule = RuleOf<RowsProblem, GradsKernel>;

// Of two bytes too, as PyTorch's products would want them converted, a launch each.
inline constexpr GradsRule kCellGradsRules[] = {
    {"products_together", GradsKernel::together, supports_products_together, pays_as_small_cell},
    {"products_halves", GradsKernel::halves, supports_products_of_halves, pays_in_halves},
    {"products_plain", GradsKernel::plain, always, always},
};
inline constexpr GradsRule kSequenceGradsRules[] = {
    {"products_together", GradsKernel::together, supports_products_together, pays_together},
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
