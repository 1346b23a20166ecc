// Weight gradient on CPU: one sum over the whole batch for each channel and tap. Each layout has its loops in
// a file of its own; both keep a tile of taps in registers while they go along the rows, read every image
// once from memory for a vector of channels or a plane, and never give a thread less than all the taps of
// what it has read.

#include "cpu_weight_grad.h"

#include <torchgraft/dispatch.h>

#include "cpu_kernels.h"

namespace torchgraft::depthwise::cpu {

template <typename T>
void weight_grad(const T* output_grad, const T* input, T* weight_grad, const Geometry& geometry,
                 Layout layout) {
  if (layout == Layout::contiguous) {
    weight_grad_contiguous(output_grad, input, weight_grad, geometry);
  } else {
    weight_grad_channels_last(output_grad, input, weight_grad, geometry);
  }
}

template void weight_grad(const double*, const double*, double*, const Geometry&, Layout);
template void weight_grad(const float*, const float*, float*, const Geometry&, Layout);
template void weight_grad(const Half*, const Half*, Half*, const Geometry&, Layout);
template void weight_grad(const BFloat16*, const BFloat16*, BFloat16*, const Geometry&, Layout);

}  // namespace torchgraft::depthwise::cpu
