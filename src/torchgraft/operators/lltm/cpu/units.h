// The units of one step back on CPU: each byte is read and written once.
#pragma once

#include "kernels.h"
#include "unit_math.h"

namespace torchgraft::lltm::cpu {

// `kAfter`: whether c is that after the step.
template <typename T, int kBytes, bool kAfter>
TORCHGRAFT_INLINE void units_backward(const CellBackward<T>& pass, const Share& share) {
  using M = Math<T, kBytes>;
  using V = typename M::V;
  constexpr int kCount = M::kBackward;
  const int64_t units = pass.units;
  const int64_t end = share.end_unit;
  for (int64_t row = share.first_row; row < share.end_row; ++row) {
    for (int64_t first = share.first_unit; first < end; first += kCount * M::kLanes) {
      V gates[3][kCount], c[kCount], h_grad[kCount] = {}, c_grad[kCount] = {};
      TORCHGRAFT_UNROLL
      for (int n = 0; n < kCount; ++n) {
        const int64_t u = first + n * M::kLanes;
        const int64_t place = row * units + u;
        TORCHGRAFT_UNROLL
        for (int g = 0; g < 3; ++g) {
          M::load_some(gates[g][n], pass.activations + (row * 3 + g) * units + u, end - u);
        }
        M::load_some(c[n], pass.c + place, end - u);
        if (pass.h_grad != nullptr) M::load_some(h_grad[n], pass.h_grad + place, end - u);
        if (pass.c_grad != nullptr) M::load_some(c_grad[n], pass.c_grad + place, end - u);
        if (pass.output_grad != nullptr) {
          V more;
          M::load_some(more, pass.output_grad + place, end - u);
          h_grad[n] += more;
        }
        if constexpr (!kAfter) c[n] += gates[2][n] * gates[0][n];
      }
      M::backward(gates, c, h_grad, c_grad);
      TORCHGRAFT_UNROLL
      for (int n = 0; n < kCount; ++n) {
        const int64_t u = first + n * M::kLanes;
        const int64_t place = row * units + u;
        TORCHGRAFT_UNROLL
        for (int g = 0; g < 3; ++g) {
          M::store_some(gates[g][n], pass.gates_grad + (row * 3 + g) * units + u, end - u);
        }
        M::store_some(c_grad[n], pass.c_before_grad + place, end - u);
        if (pass.h_after != nullptr) M::store_some(c[n], pass.h_after + place, end - u);
      }
    }
  }
}

}  // namespace torchgraft::lltm::cpu
