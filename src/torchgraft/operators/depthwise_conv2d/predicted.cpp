// The choice of depthwise_conv2d and of its gradients, and that of depthwise_conv1d for images of one row.
// Arguments are changed before the choice as the host functions do it
// (operators/depthwise_conv2d/host.h and cuda/problem.cuh).

#include <torchgraft/detail/predicted.h>
#include "cuda/policy.h"

namespace torchgraft::predicted {
namespace {

using depthwise::Extent;
using depthwise::Geometry;
using depthwise::cuda::Problem;

// `numbers`: stride, padding in front and behind, dilation, each of height and width.
Extent extent(int64_t input, int64_t kernel, const Argument* numbers, int axis) {
  const int64_t stride = numbers[axis].number, front = numbers[2 + axis].number;
  const int64_t behind = numbers[4 + axis].number, dilation = numbers[6 + axis].number;
  const int64_t output = (input + front + behind - dilation * (kernel - 1) - 1) / stride + 1;
  return {input, output, kernel, stride, front, dilation};
}

Geometry geometry(int64_t batch, int64_t channels, int64_t output_channels, int64_t height, int64_t width,
                  int64_t kernel_height, int64_t kernel_width, const Argument* numbers) {
  return {batch, channels, output_channels / channels, extent(height, kernel_height, numbers, 0),
          extent(width, kernel_width, numbers, 1)};
}

Problem problem(const Geometry& geometry, bool transposed, bool channels_last, const Argument& images,
                const Gpu& gpu) {
  constexpr int kHalfBytes = 2, kHalfTensorCores = 800;
  return {geometry,
          transposed,
          channels_last,
          images.element_bytes,
          depthwise::cuda::kWholeAlignment,
          images.element_bytes == kHalfBytes && gpu.architecture >= kHalfTensorCores,
          gpu.shared_of_block,
          gpu.multiprocessors};
}

Names correlation(Problem problem) {
  if (problem.geometry.batch == 0) return {};
  if (depthwise::cuda::planes_pay(problem.geometry, problem.element_bytes)) problem.channels_last = false;
  return {depthwise::cuda::choose(problem).name};
}

// input, weight, bias, window
Names forward(const Arguments& arguments, const Gpu& gpu) {
  constexpr int kDoubleBytes = 8;
  const Argument &input = arguments[0], &weight = arguments[1];
  const bool channels_last =
      (input.is_channels_last || weight.is_channels_last) && input.element_bytes != kDoubleBytes;
  return correlation(problem(geometry(input.sizes[0], input.sizes[1], weight.sizes[0], input.sizes[2],
                                      input.sizes[3], weight.sizes[2], weight.sizes[3], &arguments[3]),
                             false, channels_last, input, gpu));
}

// output_grad, weight, channels, height, width, channels_last, window
Names input_grad(const Arguments& arguments, const Gpu& gpu) {
  const Argument &output_grad = arguments[0], &weight = arguments[1], &asked = arguments[5];
  const bool channels_last = asked.is_given ? asked.number != 0 : output_grad.is_channels_last;
  return correlation(
      problem(geometry(output_grad.sizes[0], arguments[2].number, weight.sizes[0], arguments[3].number,
                       arguments[4].number, weight.sizes[2], weight.sizes[3], &arguments[6]),
              true, channels_last, output_grad, gpu));
}

// output_grad, input, kernel_height, kernel_width, window, dtype, channels_last
Names weight_grad(const Arguments& arguments, const Gpu& gpu) {
  using depthwise::cuda::Images;
  const Argument &output_grad = arguments[0], &input = arguments[1];
  Problem found = problem(geometry(input.sizes[0], input.sizes[1], output_grad.sizes[1], input.sizes[2],
                                   input.sizes[3], arguments[2].number, arguments[3].number, &arguments[4]),
                          false, input.is_channels_last, input, gpu);
  if (found.geometry.batch == 0) return {};
  switch (depthwise::cuda::images_of_weight_grad(found)) {
    case Images::planes:
      found.channels_last = false;
      break;
    case Images::whole_channels:
      found = with_whole_channels(found);
      break;
    case Images::as_given:
      break;
  }
  return {depthwise::cuda::choose_weight_grad(found).name};
}

// The arguments of depthwise_conv1d are those of images of one row.
Argument number(int64_t value) {
  Argument argument;
  argument.is_given = true;
  argument.number = value;
  return argument;
}

// A tensor of sequences, or of their kernels, as images of one row.
Argument images(Argument sequences) {
  sequences.sizes.insert(sequences.sizes.begin() + 2, 1);
  return sequences;
}

// The arguments of images, from the eight numbers of a window on: stride, padding in front and behind, and
// dilation, each of height and width.
void append_window(Arguments& arguments, const Argument* numbers) {
  constexpr int64_t kOfOneRow[] = {1, 0, 0, 1};
  for (int i = 0; i < 4; ++i) {
    arguments.push_back(number(kOfOneRow[i]));
    arguments.push_back(numbers[i]);
  }
}

// input, weight, bias, window
Names forward_of_sequences(const Arguments& arguments, const Gpu& gpu) {
  // A sequence is convolved as it lies, and the layout of a weight has no say.
  Arguments given = {images(arguments[0]), images(arguments[1]), arguments[2]};
  given[1].is_channels_last = false;
  append_window(given, &arguments[3]);
  return forward(given, gpu);
}

// output_grad, weight, channels, length, channels_last, window
Names input_grad_of_sequences(const Arguments& arguments, const Gpu& gpu) {
  Arguments given = {images(arguments[0]), images(arguments[1]),
                     arguments[2],         number(1),
                     arguments[3],         number(arguments[0].is_channels_last ? 1 : 0)};
  append_window(given, &arguments[5]);
  return input_grad(given, gpu);
}

// output_grad, input, kernel_size, window, dtype, channels_last
Names weight_grad_of_sequences(const Arguments& arguments, const Gpu& gpu) {
  Arguments given = {images(arguments[0]), images(arguments[1]), number(1), arguments[2]};
  append_window(given, &arguments[3]);
  given.insert(given.end(), arguments.begin() + 7, arguments.end());
  return weight_grad(given, gpu);
}

const Registered kForward("depthwise_conv2d", forward);
const Registered kInputGrad("depthwise_conv2d_input_grad", input_grad);
const Registered kWeightGrad("depthwise_conv2d_weight_grad", weight_grad);
const Registered kSequencesForward("depthwise_conv1d", forward_of_sequences);
const Registered kSequencesInputGrad("depthwise_conv1d_input_grad", input_grad_of_sequences);
const Registered kSequencesWeightGrad("depthwise_conv1d_weight_grad", weight_grad_of_sequences);

}  // namespace
}  // namespace torchgraft::predicted
