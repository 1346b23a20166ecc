// The choice of depthwise_conv1d and of its gradients: that of depthwise_conv2d for images of one row.

#include <torchgraft/detail/predicted.h>

namespace torchgraft::predicted {
namespace {

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
Names forward(const Arguments& arguments, const Gpu& gpu) {
  // A sequence is convolved as it lies, and the layout of a weight has no say.
  Arguments given = {images(arguments[0]), images(arguments[1]), arguments[2]};
  given[1].is_channels_last = false;
  append_window(given, &arguments[3]);
  return operators().at("depthwise_conv2d")(given, gpu);
}

// output_grad, weight, channels, length, channels_last, window
Names input_grad(const Arguments& arguments, const Gpu& gpu) {
  Arguments given = {images(arguments[0]), images(arguments[1]),
                     arguments[2],         number(1),
                     arguments[3],         number(arguments[0].is_channels_last ? 1 : 0)};
  append_window(given, &arguments[5]);
  return operators().at("depthwise_conv2d_input_grad")(given, gpu);
}

// output_grad, input, kernel_size, window, dtype, channels_last
Names weight_grad(const Arguments& arguments, const Gpu& gpu) {
  Arguments given = {images(arguments[0]), images(arguments[1]), number(1), arguments[2]};
  append_window(given, &arguments[3]);
  given.insert(given.end(), arguments.begin() + 7, arguments.end());
  return operators().at("depthwise_conv2d_weight_grad")(given, gpu);
}

const Registered kForward("depthwise_conv1d", forward);
const Registered kInputGrad("depthwise_conv1d_input_grad", input_grad);
const Registered kWeightGrad("depthwise_conv1d_weight_grad", weight_grad);

}  // namespace
}  // namespace torchgraft::predicted
