// The loops of a correlation over float16 and bfloat16 images where these lie, for registers of sixteen
// lanes.

#include <torchgraft/cpu.h>

#include "correlation_microkernels.h"

namespace torchgraft::depthwise::cpu {
namespace {

#define TORCHGRAFT_MAKE_ROW(T)             \
  TORCHGRAFT_VECTOR_CLONES(                \
      void make(const Row<float, T>& row), \
      if constexpr (kVectorBytes == 64) { dispatch_row<kVectorBytes, kVectorBytes>(row); })
TORCHGRAFT_MAKE_ROW(Half)
TORCHGRAFT_MAKE_ROW(BFloat16)
#undef TORCHGRAFT_MAKE_ROW

}  // namespace

void make_row(const Row<float, Half>& row) { make(row); }
void make_row(const Row<float, BFloat16>& row) { make(row); }

}  // namespace torchgraft::depthwise::cpu
