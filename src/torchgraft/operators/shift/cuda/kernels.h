// The passes on CUDA and the kernels that compute them. T is one of double, float, Half, BFloat16; images are
// dense, offsets contiguous.
//
// The gradient of the input gathers, as the forward pass does: four of the output's gradients are blended
// where that blends four of the inputs. So every pass resamples a `source`; `Transposed` names the direction.
// The gradients of the offsets come from the same four,
//
//     S[i][j] = sum over pixels of input[pixel] * (the output's gradient whose tap (i, j) lies at the pixel)
//     x_grad = sum over i of row_weights[i] * (S[i][1] - S[i][0]),  y_grad likewise along rows,
//
// so that an input is read once and where it lies. What that sum is not is exact about NaN and infinity: the
// second pass (direct.cu) sees that a sum is not finite and computes the channel by the definition.
#pragma once

#include <cuda_runtime.h>
#include <torchgraft/dispatch.h>
#include <torchgraft/layout.h>

#include "../geometry.h"
#include "kernel_table.h"
#include "problem.h"

namespace torchgraft::shift::cuda {

template <typename T>
struct Arguments {
  const T* source;  // the input, or the output's gradient
  const T* input;   // where offsets get gradients
  const T* x_offset;
  const T* y_offset;
  T* result;  // the output, or the input's gradient; or null
  Geometry geometry;
  Layout layout;

  int64_t source_rows(bool transposed) const { return transposed ? geometry.steps : geometry.height; }
  int64_t result_rows(bool transposed) const { return transposed ? geometry.height : geometry.steps; }
};

// Calls `function` with the pass as a constant.
template <typename Function>
void with_pass(Pass pass, Function&& function) {
  switch (pass) {
    case Pass::forward:
      return function(std::integral_constant<Pass, Pass::forward>{});
    case Pass::input_grad:
      return function(std::integral_constant<Pass, Pass::input_grad>{});
    case Pass::offset_grad:
      return function(std::integral_constant<Pass, Pass::offset_grad>{});
    case Pass::grads:
      return function(std::integral_constant<Pass, Pass::grads>{});
  }
}

// The launcher of each kernel, which does what the plan says. Nothing is empty.
#define TORCHGRAFT_LAUNCHER(NAME, LAUNCH, ...)                                                      \
  template <typename T>                                                                             \
  void LAUNCH(const Arguments<T>& arguments, Pass pass, const Plan& plan, accumulate_t<T>* partial, \
              cudaStream_t stream);
TORCHGRAFT_SHIFT_KERNELS(TORCHGRAFT_LAUNCHER)
#undef TORCHGRAFT_LAUNCHER

// The second pass over `parts` partial sums of each channel.
template <typename T>
void launch_add_parts(const Arguments<T>& arguments, const accumulate_t<T>* partial, int64_t parts, T* x_grad,
                      T* y_grad, cudaStream_t stream);

}  // namespace torchgraft::shift::cuda
