// A product of matrices on CPU, in float and double: what a sequence or a cell multiplies besides its states.

#include "kernels.h"

namespace torchgraft::lltm::cpu {
namespace {

using cpu_products::multiply_share;
using cpu_products::pack_panels;

}  // namespace

LLTM_CLONES(multiply, float, multiply_share, (const Product<float>& product, const Share& share), product,
            share)
LLTM_CLONES(multiply, double, multiply_share, (const Product<double>& product, const Share& share), product,
            share)
LLTM_CLONES(pack, float, pack_panels,
            (const Columns<float>& matrix, int64_t count, int64_t depth, float* packed), matrix, count, depth,
            packed)
LLTM_CLONES(pack, double, pack_panels,
            (const Columns<double>& matrix, int64_t count, int64_t depth, double* packed), matrix, count,
            depth, packed)

}  // namespace torchgraft::lltm::cpu
