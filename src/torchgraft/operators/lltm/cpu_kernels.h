// The CPU kernels of lltm, for float and double.
#pragma once

#include <cstdint>

namespace torchgraft::lltm::cpu {

// Vectors are at most this long; packed weights are padded to whole ones.
inline constexpr int64_t kLongestVector = 64;

// One step, elementwise. Gates of the input come in `activations`, which go out there.
template <typename T>
struct CellForward {
  const T* of_hidden;  // (batch, 3 units), h @ weight_hh.T
  const T* bias;       // (3 units), or null
  const T* c;          // (batch, units)
  T* activations;      // (batch, 3 units)
  T* h_after;          // (batch, units)
  T* c_after;          // (batch, units)
  int64_t units;
};

template <typename T>
struct CellBackward {
  const T* activations;  // (batch, 3 units)
  const T* c;            // (batch, units)
  const T* h_grad;       // (batch, units), or null
  const T* c_grad;       // (batch, units), or null
  T* gates_grad;         // (batch, 3 units)
  T* c_before_grad;      // (batch, units)
  int64_t units;
};

void cell_forward(const CellForward<float>& pass, int64_t begin, int64_t end);
void cell_forward(const CellForward<double>& pass, int64_t begin, int64_t end);
void cell_backward(const CellBackward<float>& pass, int64_t begin, int64_t end);
void cell_backward(const CellBackward<double>& pass, int64_t begin, int64_t end);

// All steps for some rows of the batch.
template <typename T>
struct SequenceForward {
  const T* packed;  // weight_hh, packed by pack_forward
  const T* bias;    // (3 units), or null
  const T* h0;      // (batch, units)
  const T* c0;      // (batch, units)
  T* activations;   // (steps, batch, 3 units), in which the gates of the inputs come
  T* output;        // (steps, batch, units)
  T* cells;         // (steps, batch, units)
  int64_t steps;
  int64_t batch;
  int64_t units;
  bool reverse;
};

template <typename T>
struct SequenceBackward {
  const T* packed;       // weight_hh, packed by pack_backward
  const T* activations;  // (steps, batch, 3 units)
  const T* cells;        // (steps, batch, units)
  const T* output_grad;  // (steps, batch, units), or null
  T* gates_grad;         // (steps, batch, 3 units)
  T* h_grad;             // (batch, units): of the last h, or zeros; becomes that of the first
  T* c_grad;             // (batch, units), likewise
  int64_t steps;
  int64_t batch;
  int64_t units;
  bool reverse;
};

void sequence_forward(const SequenceForward<float>& pass, int64_t begin, int64_t end);
void sequence_forward(const SequenceForward<double>& pass, int64_t begin, int64_t end);
void sequence_backward(const SequenceBackward<float>& pass, int64_t begin, int64_t end);
void sequence_backward(const SequenceBackward<double>& pass, int64_t begin, int64_t end);

// weight_hh (3 units, units) in the order in which a pass reads it: panels as wide as three vectors.
void pack_forward(const float* weight, float* packed, int64_t units);
void pack_forward(const double* weight, double* packed, int64_t units);
void pack_backward(const float* weight, float* packed, int64_t units);
void pack_backward(const double* weight, double* packed, int64_t units);

// Elements of packed weights.
template <typename T>
int64_t packed_count(int64_t units) {
  const int64_t panel = 3 * kLongestVector / static_cast<int64_t>(sizeof(T));
  return (units + panel) * 3 * units;
}

}  // namespace torchgraft::lltm::cpu
