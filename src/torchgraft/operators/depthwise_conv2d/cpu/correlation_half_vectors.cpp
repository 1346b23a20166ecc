// The loops of a correlation over vectors of eight lanes, where registers have sixteen.

#include <torchgraft/cpu.h>

#include "correlation_microkernels.h"

namespace torchgraft::depthwise::cpu {
namespace {

TORCHGRAFT_VECTOR_CLONES(
    void make(const Row<float>& row),
    if constexpr (kVectorBytes == 64) { dispatch_row<kVectorBytes, kVectorBytes / 2>(row); })

}  // namespace

void make_row_of_half_vectors(const Row<float>& row) { make(row); }

}  // namespace torchgraft::depthwise::cpu
