// The loops of a correlation over whole vectors, for several instruction sets.

#include <torchgraft/cpu.h>

#include "correlation_microkernels.h"

namespace torchgraft::depthwise::cpu {
namespace {

TORCHGRAFT_VECTOR_CLONES(void make(const Row<float>& row), dispatch_row<kVectorBytes, kVectorBytes>(row);)
TORCHGRAFT_VECTOR_CLONES(void make(const Row<double>& row), dispatch_row<kVectorBytes, kVectorBytes>(row);)

}  // namespace

void make_row(const Row<float>& row) { make(row); }
void make_row(const Row<double>& row) { make(row); }

}  // namespace torchgraft::depthwise::cpu
