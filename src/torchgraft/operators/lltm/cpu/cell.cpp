// One step of lltm on CPU, elementwise, forward and back: each byte is read and written once.

#include "kernels.h"
#include "vector_math.h"

namespace torchgraft::lltm::cpu {
namespace {

template <typename T, int kBytes>
TORCHGRAFT_INLINE void forward_rows(const CellForward<T>& pass, int64_t begin, int64_t end) {
  using M = Math<T, kBytes>;
  using V = typename M::V;
  constexpr int kCount = M::kForward;
  const int64_t units = pass.units;
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t first = 0; first < units; first += kCount * M::kLanes) {
      V gates[3][kCount], c[kCount], h[kCount];
      TORCHGRAFT_UNROLL
      for (int n = 0; n < kCount; ++n) {
        const int64_t u = first + n * M::kLanes;
        TORCHGRAFT_UNROLL
        for (int g = 0; g < 3; ++g) {
          V more;
          M::load_some(gates[g][n], pass.activations + (row * 3 + g) * units + u, units - u);
          M::load_some(more, pass.of_hidden + (row * 3 + g) * units + u, units - u);
          gates[g][n] += more;
          if (pass.bias != nullptr) {
            M::load_some(more, pass.bias + g * units + u, units - u);
            gates[g][n] += more;
          }
        }
        M::load_some(c[n], pass.c + row * units + u, units - u);
      }
      M::forward(gates, c, h);
      TORCHGRAFT_UNROLL
      for (int n = 0; n < kCount; ++n) {
        const int64_t u = first + n * M::kLanes;
        TORCHGRAFT_UNROLL
        for (int g = 0; g < 3; ++g) {
          M::store_some(gates[g][n], pass.activations + (row * 3 + g) * units + u, units - u);
        }
        M::store_some(h[n], pass.h_after + row * units + u, units - u);
        M::store_some(c[n], pass.c_after + row * units + u, units - u);
      }
    }
  }
}

template <typename T, int kBytes>
TORCHGRAFT_INLINE void backward_rows(const CellBackward<T>& pass, int64_t begin, int64_t end) {
  using M = Math<T, kBytes>;
  using V = typename M::V;
  constexpr int kCount = M::kBackward;
  const int64_t units = pass.units;
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t first = 0; first < units; first += kCount * M::kLanes) {
      V gates[3][kCount], c[kCount], h_grad[kCount] = {}, c_grad[kCount] = {};
      TORCHGRAFT_UNROLL
      for (int n = 0; n < kCount; ++n) {
        const int64_t u = first + n * M::kLanes;
        TORCHGRAFT_UNROLL
        for (int g = 0; g < 3; ++g) {
          M::load_some(gates[g][n], pass.activations + (row * 3 + g) * units + u, units - u);
        }
        M::load_some(c[n], pass.c + row * units + u, units - u);
        if (pass.h_grad != nullptr) M::load_some(h_grad[n], pass.h_grad + row * units + u, units - u);
        if (pass.c_grad != nullptr) M::load_some(c_grad[n], pass.c_grad + row * units + u, units - u);
        c[n] += gates[2][n] * gates[0][n];
      }
      M::backward(gates, c, h_grad, c_grad);
      TORCHGRAFT_UNROLL
      for (int n = 0; n < kCount; ++n) {
        const int64_t u = first + n * M::kLanes;
        TORCHGRAFT_UNROLL
        for (int g = 0; g < 3; ++g) {
          M::store_some(gates[g][n], pass.gates_grad + (row * 3 + g) * units + u, units - u);
        }
        M::store_some(c_grad[n], pass.c_before_grad + row * units + u, units - u);
      }
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
