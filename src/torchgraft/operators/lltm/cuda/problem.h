// What the choice of a kernel for a call of lltm on CUDA may ask.
#pragma once

#include <cstdint>

#include "shapes.h"

namespace torchgraft::lltm::cuda {

// The recurrence of a whole sequence, forward or back, with at least one step, row and unit.
struct Problem {
  int64_t steps;
  int64_t batch;
  int64_t units;
  bool backward;
  int element_bytes;  // eight: float64
  bool is_bfloat16;
  // Whether weight_hh may be multiplied in two bytes: for float where tf32 is permitted.
  bool allows_two_byte_weights;
  // Whether kernels on the grid may read rows four numbers at a time.
  bool reads_float4;
  // Of the device, and what kernels are compiled for; 800 for compute capability 8.0.
  int architecture;
  int compiled_for;
  int multiprocessors;
  int64_t shared_of_block;
  bool has_clusters;
  bool has_cooperative_launches;
  // How many clusters of so many blocks, with so many bytes of shared memory each, can be on the device at
  // once; for a kernel without clusters how many blocks can be on a multiprocessor. Zero for a kernel that
  // the device cannot run so.
  int (*resident)(const Problem&, Technique, Kernel, int64_t blocks, int64_t shared_bytes);

  Problem on_any_device() const {
    Problem other = *this;
    other.architecture = other.compiled_for = 900;
    other.multiprocessors = 132;
    other.shared_of_block = 227 << 10;
    other.has_clusters = other.has_cooperative_launches = true;
    other.resident = [](const Problem& problem, Technique, Kernel, int64_t blocks, int64_t) {
      return problem.multiprocessors / static_cast<int>(blocks);
    };
    return other;
  }
};

// A cell, or the products of gradients, with the rows of a cell or of all steps of a sequence.
struct RowsProblem {
  int64_t rows;
  int64_t features;
  int64_t units;
  int element_bytes;
  int multiprocessors;

  bool is_half() const { return element_bytes == 2; }
};

// One product of numbers of two bytes, (rows, depth) @ (depth, columns), with a result of float.
struct MatrixProblem {
  int64_t rows;
  int64_t columns;
  int64_t depth;
  int multiprocessors;
};

}  // namespace torchgraft::lltm::cuda
