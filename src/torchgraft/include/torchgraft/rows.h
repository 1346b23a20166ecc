// A tensor of any rank as a matrix, for operators that work along the last dimensions.
#pragma once

#include <cstdint>

#include "checks.h"
#include "layout.h"

namespace torchgraft {

// `count` rows of `columns` elements each, which lie one after the other in the memory of `tensor`.
struct Rows {
  Tensor tensor;
  int64_t count = 0;
  int64_t columns = 0;

  bool is_empty() const { return count == 0 || columns == 0; }
};

// The last `kept` dimensions become the columns, and those before them the rows: a tensor of (2, 3, 5) has
// six rows of five, or, with kept = 2, two rows of fifteen. A tensor that is not contiguous is copied. Throws
// if the tensor has fewer than `kept` dimensions, if its memory was freed, or if a product of its sizes
// overflows, which can happen for an empty tensor.
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
