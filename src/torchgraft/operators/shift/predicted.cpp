// The choice of shift and of its gradients (operators/shift/cuda/dispatch.h).

#include <torchgraft/detail/predicted.h>
#include "cuda/policy.h"

namespace torchgraft::predicted {
namespace {

using shift::Geometry;
using shift::cuda::Pass;

Names choose(const Geometry& geometry, Pass pass, bool channels_last, int element_bytes, const Gpu& gpu) {
  if (geometry.results() == 0) return {};
  const shift::cuda::Problem problem = {geometry,
                                        pass,
                                        channels_last,
                                        element_bytes,
                                        gpu.multiprocessors,
                                        gpu.shared_of_block,
                                        gpu.shared_of_multiprocessor};
  return {torchgraft::choose(shift::cuda::kRules, problem).name};
}

Geometry geometry(const Argument& images, int64_t height, int64_t stride) {
  return {images.sizes[0], images.sizes[1], height, images.sizes[3], height / stride, stride};
}

// input, x_offset, y_offset, stride
Names forward(const Arguments& arguments, const Gpu& gpu) {
  const Argument& input = arguments[0];
  return choose(geometry(input, input.sizes[2], arguments[3].number), Pass::forward, input.is_channels_last,
                input.element_bytes, gpu);
}

// output_grad, x_offset, y_offset, height, channels_last, stride
Names input_grad(const Arguments& arguments, const Gpu& gpu) {
  const Argument& output_grad = arguments[0];
  return choose(geometry(output_grad, arguments[3].number, arguments[5].number), Pass::input_grad,
                arguments[4].number != 0, output_grad.element_bytes, gpu);
}

// output_grad, input, x_offset, y_offset, stride
template <Pass kPass>
Names grads(const Arguments& arguments, const Gpu& gpu) {
  const Argument& input = arguments[1];
  return choose(geometry(input, input.sizes[2], arguments[4].number), kPass, input.is_channels_last,
                input.element_bytes, gpu);
}

const Registered kForward("shift", forward);
const Registered kInputGrad("shift_input_grad", input_grad);
const Registered kOffsetGrad("shift_offset_grad", grads<Pass::offset_grad>);
const Registered kGrads("shift_grads", grads<Pass::grads>);

}  // namespace
}  // namespace torchgraft::predicted
