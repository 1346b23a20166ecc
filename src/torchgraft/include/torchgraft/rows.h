// A tensor as a matrix in memory: what operators over the last dimension of a tensor of any rank read and
// write.
#pragma once

#include <cstdint>

#include "checks.h"
#include "layout.h"

namespace torchgraft {

// `count` rows of `columns` elements each, one after the other in the memory of `tensor`.
struct Rows {
  Tensor tensor;
  int64_t count = 0;
  int64_t columns = 0;

  bool is_empty() const { return count == 0 || columns == 0; }
};

// The last `kept` dimensions are the columns, those before them the rows: of (2, 3, 5) six rows of five, or,
// where two are kept, two rows of fifteen. What is not contiguous is copied. Fewer dimensions than `kept` are
// an error, as are memory that was freed and sizes whose product overflows, which those of an empty tensor
// may.
inline Rows rows_of(const Tensor& tensor, const char* name, int64_t kept = 1) {
  TORCHGRAFT_CHECK(tensor.dim() >= kept, name, " must have at least ", kept,
                   kept == 1 ? " dimension" : " dimensions", ", got ", tensor.dim());
  Rows rows = {to_contiguous(tensor, name), 1, 1};
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    int64_t& factor = d < tensor.dim() - kept ? rows.count : rows.columns;
    factor = checked_product(factor, tensor.size(d), name);
  }
  return rows;
}

}  // namespace torchgraft
