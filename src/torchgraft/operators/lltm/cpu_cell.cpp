// One step of lltm on CPU, elementwise, forward and back: each byte is read and written once.

#include "cpu_kernels.h"
#include "cpu_math.h"

namespace torchgraft::lltm::cpu {
namespace {

template <typename T, int kBytes>
TORCHGRAFT_INLINE void forward_rows(const CellForward<T>& pass, int64_t begin, int64_t end) {
  using M = Math<T, kBytes>;
  using V = typename M::V;
  const int64_t units = pass.units;
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t u = 0; u < units; u += M::kLanes) {
      const int64_t count = units - u;
      V gates[3], c, h;
      TORCHGRAFT_UNROLL
      for (int g = 0; g < 3; ++g) {
        V more;
        M::load_some(gates[g], pass.activations + (row * 3 + g) * units + u, count);
        M::load_some(more, pass.of_hidden + (row * 3 + g) * units + u, count);
        gates[g] += more;
        if (pass.bias != nullptr) {
          M::load_some(more, pass.bias + g * units + u, count);
          gates[g] += more;
        }
      }
      M::load_some(c, pass.c + row * units + u, count);
      M::forward(gates[0], gates[1], gates[2], c, h);
      TORCHGRAFT_UNROLL
      for (int g = 0; g < 3; ++g) {
        M::store_some(gates[g], pass.activations + (row * 3 + g) * units + u, count);
      }
      M::store_some(h, pass.h_after + row * units + u, count);
      M::store_some(c, pass.c_after + row * units + u, count);
    }
  }
}

template <typename T, int kBytes>
TORCHGRAFT_INLINE void backward_rows(const CellBackward<T>& pass, int64_t begin, int64_t end) {
  using M = Math<T, kBytes>;
  using V = typename M::V;
  const int64_t units = pass.units;
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t u = 0; u < units; u += M::kLanes) {
      const int64_t count = units - u;
      V gates[3], c, h_grad = {}, c_grad = {};
      TORCHGRAFT_UNROLL
      for (int g = 0; g < 3; ++g) {
        M::load_some(gates[g], pass.activations + (row * 3 + g) * units + u, count);
      }
      M::load_some(c, pass.c + row * units + u, count);
      if (pass.h_grad != nullptr) M::load_some(h_grad, pass.h_grad + row * units + u, count);
      if (pass.c_grad != nullptr) M::load_some(c_grad, pass.c_grad + row * units + u, count);
      const V c_after = c + gates[2] * gates[0];
      M::backward(gates[0], gates[1], gates[2], c_after, h_grad, c_grad);
      TORCHGRAFT_UNROLL
      for (int g = 0; g < 3; ++g) {
        M::store_some(gates[g], pass.gates_grad + (row * 3 + g) * units + u, count);
      }
      M::store_some(c_grad, pass.c_before_grad + row * units + u, count);
    }
  }
}

TORCHGRAFT_VECTOR_CLONES(void forward_float(const CellForward<float>& pass, int64_t begin, int64_t end),
                         forward_rows<float, kVectorBytes>(pass, begin, end);)
TORCHGRAFT_VECTOR_CLONES(void forward_double(const CellForward<double>& pass, int64_t begin, int64_t end),
                         forward_rows<double, kVectorBytes>(pass, begin, end);)
TORCHGRAFT_VECTOR_CLONES(void backward_float(const CellBackward<float>& pass, int64_t begin, int64_t end),
                         backward_rows<float, kVectorBytes>(pass, begin, end);)
TORCHGRAFT_VECTOR_CLONES(void backward_double(const CellBackward<double>& pass, int64_t begin, int64_t end),
                         backward_rows<double, kVectorBytes>(pass, begin, end);)

}  // namespace

void cell_forward(const CellForward<float>& pass, int64_t begin, int64_t end) {
  forward_float(pass, begin, end);
}
void cell_forward(const CellForward<double>& pass, int64_t begin, int64_t end) {
  forward_double(pass, begin, end);
}
void cell_backward(const CellBackward<float>& pass, int64_t begin, int64_t end) {
  backward_float(pass, begin, end);
}
void cell_backward(const CellBackward<double>& pass, int64_t begin, int64_t end) {
  backward_double(pass, begin, end);
}

}  // namespace torchgraft::lltm::cpu
