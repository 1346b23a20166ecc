// One step of lltm on CPU, elementwise, forward and back: each byte is read and written once.

#include "units.h"

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
          M::load_some(more, pass.hidden_gates + (row * 3 + g) * units + u, units - u);
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
  units_backward<T, kBytes, /*kAfter=*/false>(pass, {begin, end, 0, pass.units});
}

}  // namespace

LLTM_CLONES(cell_forward, float, forward_rows, (const CellForward<float>& pass, int64_t begin, int64_t end),
            pass, begin, end)
LLTM_CLONES(cell_forward, double, forward_rows, (const CellForward<double>& pass, int64_t begin, int64_t end),
            pass, begin, end)
LLTM_CLONES(cell_backward, float, backward_rows,
            (const CellBackward<float>& pass, int64_t begin, int64_t end), pass, begin, end)
LLTM_CLONES(cell_backward, double, backward_rows,
            (const CellBackward<double>& pass, int64_t begin, int64_t end), pass, begin, end)

}  // namespace torchgraft::lltm::cpu
