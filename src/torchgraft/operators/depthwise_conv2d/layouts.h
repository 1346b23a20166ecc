// Where PyTorch's own convolution puts its results in memory. The operator puts its results there too, so
// that a layer can take the place of PyTorch's: strides are equal, also those of dimensions of one element.
//
// PyTorch computes a depthwise convolution in one of these ways:
//
//   on CUDA              by cuDNN where input or weight is channels_last, by kernels of its own otherwise and
//                        for float64; these give contiguous results
//   on a CPU, at once    by oneDNN
//   channel by channel   on a CPU, for float64 and for halves that the processor does not compute with: each
//                        channel is copied, convolved, and put beside the others
//   no images            the output is a product of the input and a number, and gradients are zeros
//
// The Python twin of this file is layouts.py; the two must agree, or fake tensors lie. The rules hold for
// PyTorch 2.11 to 2.13 with cuDNN and oneDNN switched on, as they are by default.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torchgraft/layout.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>

#include "sizes.h"

namespace torchgraft::depthwise {

struct Layouts {
  Layout output;
  Layout input_grad;
  Layout weight_grad;
};

inline Strided dense(const std::array<int64_t, 4>& sizes, Layout layout) {
  return {sizes, dense_strides(sizes[1], sizes[2], sizes[3], layout)};
}

inline Layout suggested_by(const Strided& images) {
  return suggests_channels_last(images) ? Layout::channels_last : Layout::contiguous;
}

inline Layout suggested_by_either(const Strided& input, const Strided& weight) {
  return suggests_channels_last(input) ? Layout::channels_last : suggested_by(weight);
}

// The same images as `Tensor::contiguous` gives them: a copy where they are not dense in this layout.
inline Strided brought_to(const Strided& images, Layout layout) {
  return has_layout(images, layout) ? images : dense(images.sizes, layout);
}

// One of several groups of channels, along a dimension, as PyTorch copies it.
inline Strided one_group(const Strided& images, int dim, int64_t channels) {
  Strided group = images;
  group.sizes[dim] = channels;
  return brought_to(group, suggested_by(images));
}

// The sizes and strides of images, and those of sequences (N, C, L) as images of one row.
inline Strided as_image(const Tensor& tensor) {
  if (tensor.dim() == 4) return strided(tensor);
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  return {{sizes[0], sizes[1], 1, sizes[2]}, {strides[0], strides[1], sizes[2] * strides[2], strides[2]}};
}

// An input as PyTorch convolves it. Sequences are copied where they are not contiguous. Both sides are padded
// alike; what one side has more is padded before, in a copy.
inline Strided as_convolved(const Tensor& input, const Window& window) {
  const Strided given = as_image(input);
  const auto& [batch, channels, height, width] = given.sizes;
  const bool is_sequence = input.dim() == 3;
  const int64_t rows = std::abs(window.back(0) - window.front(0));
  const int64_t columns = std::abs(window.back(1) - window.front(1));
  if (rows == 0 && columns == 0) {
    return is_sequence && !input.is_contiguous() ? dense(given.sizes, Layout::contiguous) : given;
  }
  return dense({batch, channels, height + rows, width + columns},
               is_sequence ? Layout::contiguous : suggested_by(given));
}

// The strides of a copy of a weight, or of zeros like it, as of an image.
inline Strides strides_of_copy(const Tensor& weight) {
  const Strides strides = as_image(weight).strides;
  if (is_dense(weight)) return strides;
  const std::vector<int64_t> like = dense_strides_like(weight);
  if (like.size() == 4) return {like[0], like[1], like[2], like[3]};
  return {like[0], like[1], weight.size(2) * like[2], like[2]};
}

// A weight as PyTorch convolves with it: in the dtype of the images.
inline Strided as_rounded(const Tensor& weight, const Tensor& input) {
  Strided result = as_image(weight);
  if (weight.scalar_type() != input.scalar_type()) result.strides = strides_of_copy(weight);
  return result;
}

// Asks PyTorch whether oneDNN computes with a dtype on this processor: `name` is an operator without
// arguments.
inline bool ask_onednn(const char* name) {
  std::array<StableIValue, 1> stack{};
  return torch_call_dispatcher(name, "", stack.data(), TORCH_ABI_VERSION) == 0 &&
         torch::stable::detail::to<bool>(stack[0]);
}

// Whether a CPU computes all channels at once.
inline bool is_by_onednn(const Strided& input, const Strided& weight, const Window& window,
                         ScalarType dtype) {
  if (dtype == ScalarType::Double) return false;
  if (dtype == ScalarType::BFloat16) {
    static const bool takes = ask_onednn("mkldnn::_is_mkldnn_bf16_supported");
    return takes;
  }
  if (dtype == ScalarType::Half) {
    static const bool takes = ask_onednn("mkldnn::_is_mkldnn_fp16_supported");
    return takes;
  }
  const auto& [batch, channels, height, width] = input.sizes;
  const int64_t tall = weight.sizes[2], wide = weight.sizes[3];
  if (channels == 1 && !(tall > 3 && wide > 3) && batch == 1 && height * width <= 20480) return false;
  const bool is_plain =
      window.stride(0) == 1 && window.stride(1) == 1 && window.dilation(0) == 1 && window.dilation(1) == 1;
  return !is_plain || batch >= 16 || tall * wide != 1 || torch::stable::get_num_threads() > 1;
}

inline Layouts layouts_by_cudnn(const Strided& input, const Strided& weight) {
  const Layout layout = suggested_by_either(input, weight);
  // The gradient of the weight is computed from the two others, brought into the layout, and cuDNN looks
  // again.
  return {layout, layout, layout == Layout::contiguous ? layout : suggested_by(brought_to(input, layout))};
}

inline Layouts layouts_by_onednn(const Strided& input, const Strided& weight) {
  const Layout asked = suggested_by_either(input, weight);
  if (asked == Layout::contiguous) return {asked, asked, asked};
  // It looks again at what was brought into the layout.
  const Layout layout = suggested_by_either(brought_to(input, asked), brought_to(weight, asked));
  return {layout, layout, layout};
}

inline Layouts layouts_channel_by_channel(const Strided& input, const Strided& weight,
                                          const std::array<int64_t, 4>& output_sizes, bool is_dilated) {
  const Layout asked = suggested_by_either(input, weight);
  Strided images = brought_to(input, asked), kernels = brought_to(weight, asked);
  const int64_t channels = input.sizes[1], multiplier = weight.sizes[0] / channels;
  if (channels > 1) {
    images = one_group(images, 1, 1);
    kernels = one_group(kernels, 0, multiplier);
  }
  const Layout each = suggested_by_either(images, kernels);
  const Layout weight_grad = is_dilated ? each : suggested_by(kernels);
  if (channels == 1) return {each, each, weight_grad};
  // What is put together has the layout that all parts suggest.
  const auto& [batch, output_channels, height, width] = output_sizes;
  return {suggested_by(dense({batch, multiplier, height, width}, each)),
          suggested_by(dense(images.sizes, each)), suggested_by(dense(kernels.sizes, weight_grad))};
}

// Where the results of a convolution lie, and its gradients. Not for a batch without images.
inline Layouts layouts_of(const Tensor& input, const Tensor& weight, const Geometry& geometry,
                          const Window& window) {
  const ScalarType dtype = input.scalar_type();
  const Strided images = as_convolved(input, window), kernels = as_rounded(weight, input);
  if (!input.is_cpu()) {
    if (dtype == ScalarType::Double) return {Layout::contiguous, Layout::contiguous, Layout::contiguous};
    return layouts_by_cudnn(images, kernels);
  }
  if (is_by_onednn(images, kernels, window, dtype)) return layouts_by_onednn(images, kernels);
  return layouts_channel_by_channel(
      images, kernels,
      {geometry.batch, geometry.output_channels(), geometry.height.output, geometry.width.output},
      window.dilation(0) != 1 || window.dilation(1) != 1);
}

// The output of a batch without images; of sequences, too, as of images.
inline Tensor empty_output(const Tensor& input, const Geometry& geometry, const Window& window) {
  const Strided images = as_convolved(input, window);
  const Strided output = dense({0, geometry.output_channels(), geometry.height.output, geometry.width.output},
                               Layout::contiguous);
  Strides strides = output.strides;
  const std::vector<size_t> order = order_of_dimensions(images.sizes, images.strides);
  if (output.sizes == images.sizes && !std::is_sorted(order.rbegin(), order.rend())) {
    int64_t step = 1;
    for (const size_t d : order) {
      strides[d] = step;
      step *= images.sizes[d];
    }
  }
  return empty_strided(output.sizes.data(), strides.data(), 4, input);
}

// The strides of the gradient of an input, whose layout is known, as of an image.
inline Strides input_grad_strides(const Tensor& input, Layout layout, const Window& window) {
  const Strided images = as_image(input);
  const bool is_empty = images.sizes[0] == 0;
  const Strided padded = as_convolved(input, window), plain = dense(images.sizes, layout);
  if (padded.sizes == images.sizes) return is_empty ? padded.strides : plain.strides;
  // Cut out of the gradient of the padded input, which is copied where it is not dense then.
  const Strides cut = dense(padded.sizes, is_empty ? Layout::contiguous : layout).strides;
  return is_empty || has_layout({images.sizes, cut}, layout) ? cut : plain.strides;
}

// The same images with these strides, if need be a copy.
inline Tensor with_strides(const Tensor& tensor, const Strides& strides) {
  if (as_image(tensor).strides == strides) return tensor;
  const bool is_sequence = tensor.dim() == 3;
  const Strides own = is_sequence ? Strides{strides[0], strides[1], strides[3]} : strides;
  Tensor copy = empty_strided(tensor.sizes().data(), own.data(), tensor.dim(), tensor);
  torch::stable::copy_(copy, tensor);
  return copy;
}

}  // namespace torchgraft::depthwise
