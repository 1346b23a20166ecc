// What the weight gradients of the two layouts share: how a sum over a whole batch is cut into parts. The cut
// depends on the sizes alone, never on the number of threads, and the parts are added in order: so the result
// is the same bit for bit however many threads there are.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu_rows.h"
#include "geometry.h"

namespace torchgraft::depthwise::cpu {

// Units of work that there should be, and output rows' elements that are worth one.
inline constexpr int64_t kWeightGradUnits = 64;
inline constexpr int64_t kWeightGradLeast = 4096;
// Multiply-adds that are worth a thread.
inline constexpr int64_t kWeightGradGrain = 1 << 18;

// Parts that the (image, output row) pairs are cut into, where the channels are cut into `blocks` already.
inline int64_t weight_grad_parts(const Geometry& geometry, int64_t blocks) {
  const int64_t lines = geometry.batch * geometry.height.output;
  const int64_t most = lines * geometry.width.output / kWeightGradLeast;
  return std::clamp<int64_t>(ceil_div(kWeightGradUnits, blocks), 1,
                             std::max<int64_t>(std::min(lines, most), 1));
}

template <typename T>
void weight_grad_contiguous(const T* output_grad, const T* input, T* weight_grad, const Geometry& geometry);
template <typename T>
void weight_grad_channels_last(const T* output_grad, const T* input, T* weight_grad,
                               const Geometry& geometry);

}  // namespace torchgraft::depthwise::cpu
