// The CPU kernels of lltm, for float and double. LLTM_CLONES defines one.
#pragma once

#include <torchgraft/detail/cpu_products.h>

#include <cstdint>

namespace torchgraft::lltm::cpu {

using cpu_products::Columns;
using cpu_products::Product;
using cpu_products::Share;

// The units of one step.
template <typename T>
struct CellForward {
  const T* hidden_gates;  // (batch, 3 units), h @ weight_hh.T
  const T* bias;          // (3 units), or null
  const T* c;             // (batch, units)
  T* activations;         // (batch, 3 units); before the call, the input's part of the gates
  T* h_after;             // (batch, units)
  T* c_after;             // (batch, units)
  int64_t units;
};

template <typename T>
struct CellBackward {
  const T* activations;  // (batch, 3 units)
  const T* c;            // (batch, units), before the step; of a sequence after it
  const T* h_grad;       // (batch, units), or null
  const T* output_grad;  // (batch, units), more of it, or null
  const T* c_grad;       // (batch, units), or null
  T* gates_grad;         // (batch, 3 units)
  T* c_before_grad;      // (batch, units)
  T* h_after;            // (batch, units), or null
  int64_t units;
};

// Rows from `begin` to `end`.
void cell_forward(const CellForward<float>& pass, int64_t begin, int64_t end);
void cell_forward(const CellForward<double>& pass, int64_t begin, int64_t end);
void cell_backward(const CellBackward<float>& pass, int64_t begin, int64_t end);
void cell_backward(const CellBackward<double>& pass, int64_t begin, int64_t end);

// Units of the widest panel: a vector of each gate forward, and three vectors back.
template <typename T>
inline constexpr int64_t kForwardPanel = cpu_products::kMostLanes<T>;
template <typename T>
inline constexpr int64_t kBackwardPanel = 3 * kForwardPanel<T>;

template <typename T>
struct SequenceForward {
  const T* packed;  // weight_hh, packed by pack_forward
  const T* bias;    // (3 units), or null
  const T* h0;      // (batch, units)
  const T* c0;      // (batch, units)
  T* activations;   // (steps, batch, 3 units); before the call, the inputs' part of the gates
  T* output;        // (steps, batch, units)
  T* cells;         // (steps, batch, units)
  int64_t steps;
  int64_t batch;
  int64_t units;
  bool reverse;
};

template <typename T>
struct SequenceBackward {
  const T* packed;       // weight_hh, packed by pack
  const T* activations;  // (steps, batch, 3 units)
  const T* cells;        // (steps, batch, units)
  const T* output_grad;  // (steps, batch, units), or null
  T* gates_grad;         // (steps, batch, 3 units)
  T* h_before;           // (steps, batch, units): h before each step but the first, or null
  T* h_grad;             // (batch, units): of the last h, or zeros; becomes that of the first
  T* c_grad;             // (batch, units), likewise
  int64_t steps;
  int64_t batch;
  int64_t units;
  bool reverse;
};

// Rounds from `begin` to `end` of one share. A round needs what the one before gave to all units of the
// share's rows. Forward a round is a step; back there is one round more than steps.
void sequence_forward(const SequenceForward<float>& pass, const Share& share, int64_t begin, int64_t end);
void sequence_forward(const SequenceForward<double>& pass, const Share& share, int64_t begin, int64_t end);
void sequence_backward(const SequenceBackward<float>& pass, const Share& share, int64_t begin, int64_t end);
void sequence_backward(const SequenceBackward<double>& pass, const Share& share, int64_t begin, int64_t end);

// weight_hh (3 units, units) in the order in which the forward pass reads it: panels of a vector of each
// gate. `begin` and `end`: of the units, whole panels.
void pack_forward(const float* weight, float* packed, int64_t units, int64_t begin, int64_t end);
void pack_forward(const double* weight, double* packed, int64_t units, int64_t begin, int64_t end);

// So many columns in panels as wide as three vectors, in the order in which the backward pass reads them.
void pack(const Columns<float>& matrix, int64_t count, int64_t depth, float* packed);
void pack(const Columns<double>& matrix, int64_t count, int64_t depth, double* packed);

// Rows of the result, and columns, which are whole panels of kBackwardPanel.
void multiply(const Product<float>& product, const Share& share);
void multiply(const Product<double>& product, const Share& share);

// Elements of packed weights.
template <typename T>
int64_t packed_count(int64_t units) {
  return (units + kBackwardPanel<T>)*3 * units;
}

}  // namespace torchgraft::lltm::cpu

// Defines NAME by a template KERNEL<T, kVectorBytes>, compiled for several instruction sets.
#define LLTM_CLONES(NAME, T, KERNEL, PARAMETERS, ...)                                                \
  TORCHGRAFT_VECTOR_CLONES(static void NAME##_##T PARAMETERS, KERNEL<T, kVectorBytes>(__VA_ARGS__);) \
  void NAME PARAMETERS { NAME##_##T(__VA_ARGS__); }
