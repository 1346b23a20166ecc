// Where PyTorch's own convolution puts its results in memory. The operator puts its results there too, so
// that a layer can take the place of PyTorch's: strides are equal, also those of dimensions of one element.
//
// PyTorch computes a depthwise convolution in one of these ways:
//
//   on CUDA              by cuDNN where input or weight is channels_last, by kernels of its own otherwise and
//                        for float64; these give contiguous results
//   on a CPU, at once    by oneDNN
//   channel by channel   on a CPU, for float64 and for halves that the processor does not compute with: each
//                        channel is copied, convolved, and put beside the others; of volumes, results are
//                        contiguous
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

template <size_t kDim>
StridedOf<kDim> dense(const std::array<int64_t, kDim>& sizes, Layout layout) {
  return {sizes, dense_strides(sizes, layout)};
}

template <size_t kDim>
Layout suggested_by(const StridedOf<kDim>& images) {
  return suggests_channels_last(images) ? Layout::channels_last : Layout::contiguous;
}

template <size_t kDim>
Layout suggested_by_either(const StridedOf<kDim>& input, const StridedOf<kDim>& weight) {
  return suggests_channels_last(input) ? Layout::channels_last : suggested_by(weight);
}

// The same images as `Tensor::contiguous` gives them: a copy where they are not dense in this layout.
template <size_t kDim>
StridedOf<kDim> brought_to(const StridedOf<kDim>& images, Layout layout) {
  return has_layout(images, layout) ? images : dense(images.sizes, layout);
}

// One of several groups of channels, along a dimension, as PyTorch copies it.
inline Strided one_group(const Strided& images, int dim, int64_t channels) {
  Strided group = images;
  group.sizes[dim] = channels;
  return brought_to(group, suggested_by(images));
}

// The sizes and strides of volumes (kDim 5) or images (kDim 4), and those of sequences (N, C, L) as images of
// one row.
template <size_t kDim = 4>
StridedOf<kDim> as_image(const Tensor& tensor) {
  if (kDim != 4 || tensor.dim() == 4) return strided<kDim>(tensor);
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  return {{sizes[0], sizes[1], 1, sizes[2]}, {strides[0], strides[1], sizes[2] * strides[2], strides[2]}};
}

// An input as PyTorch convolves it. Sequences are copied where they are not contiguous. Both sides are padded
// alike; what one side has more is padded before, in a copy.
template <size_t kRank>
StridedOf<kRank + 2> as_convolved(const Tensor& input, const WindowOf<kRank>& window) {
  const StridedOf<kRank + 2> given = as_image<kRank + 2>(input);
  const bool is_sequence = input.dim() == 3;
  if (!window.is_uneven()) {
    return is_sequence && !input.is_contiguous() ? dense(given.sizes, Layout::contiguous) : given;
  }
  std::array<int64_t, kRank + 2> padded = given.sizes;
  for (size_t i = 0; i < kRank; ++i) padded[i + 2] += std::abs(window.back(i) - window.front(i));
  return dense(padded, is_sequence ? Layout::contiguous : suggested_by(given));
}

// The strides of a copy of a weight, or of zeros like it, as of an image.
template <size_t kDim>
StridesOf<kDim> strides_of_copy(const Tensor& weight) {
  if (is_dense(weight)) return as_image<kDim>(weight).strides;
  const std::vector<int64_t> like = dense_strides_like(weight);
  if (like.size() == kDim) {
    StridesOf<kDim> strides;
    std::copy_n(like.begin(), kDim, strides.begin());
    return strides;
  }
  return {like[0], like[1], weight.size(2) * like[2], like[2]};
}

// A weight as PyTorch convolves with it: in the dtype of the images.
template <size_t kDim>
StridedOf<kDim> as_rounded(const Tensor& weight, const Tensor& input) {
  StridedOf<kDim> result = as_image<kDim>(weight);
  if (weight.scalar_type() != input.scalar_type()) result.strides = strides_of_copy<kDim>(weight);
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
template <size_t kRank>
bool is_by_onednn(const StridedOf<kRank + 2>& input, const StridedOf<kRank + 2>& weight,
                  const WindowOf<kRank>& window, ScalarType dtype) {
  if (dtype == ScalarType::Double) return false;
  if (dtype == ScalarType::BFloat16) {
    static const bool takes = ask_onednn("mkldnn::_is_mkldnn_bf16_supported");
    return takes;
  }
  if (dtype == ScalarType::Half) {
    static const bool takes = ask_onednn("mkldnn::_is_mkldnn_fp16_supported");
    return takes;
  }
  const int64_t batch = input.sizes[0], channels = input.sizes[1];
  const int64_t tall = weight.sizes[kRank], wide = weight.sizes[kRank + 1];
  // PyTorch looks at depth and height of volumes here, and at height and width of their kernels.
  const bool is_small = batch == 1 && input.sizes[2] * input.sizes[3] <= 20480;
  if (channels == 1 && !(tall > 3 && wide > 3) && is_small) return false;
  bool is_plain = true;
  for (size_t i = 0; i < kRank; ++i) is_plain = is_plain && window.stride(i) == 1 && window.dilation(i) == 1;
  return !is_plain || batch >= 16 || tall * wide != 1 || torch::stable::get_num_threads() > 1;
}

template <size_t kDim>
Layouts layouts_by_cudnn(const StridedOf<kDim>& input, const StridedOf<kDim>& weight) {
  const Layout layout = suggested_by_either(input, weight);
  // The gradient of the weight is computed from the two others, brought into the layout, and cuDNN looks
  // again.
  return {layout, layout, layout == Layout::contiguous ? layout : suggested_by(brought_to(input, layout))};
}

template <size_t kDim>
Layouts layouts_by_onednn(const StridedOf<kDim>& input, const StridedOf<kDim>& weight) {
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
  return {suggested_by(dense<4>({batch, multiplier, height, width}, each)),
          suggested_by(dense(images.sizes, each)), suggested_by(dense(kernels.sizes, weight_grad))};
}

// Where the results of a convolution lie, and its gradients. Not for a batch without images.
template <size_t kRank>
Layouts layouts_of(const Tensor& input, const Tensor& weight, const Geometry& geometry,
                   const WindowOf<kRank>& window) {
  constexpr Layouts kContiguous = {Layout::contiguous, Layout::contiguous, Layout::contiguous};
  const ScalarType dtype = input.scalar_type();
  const StridedOf<kRank + 2> images = as_convolved(input, window);
  const StridedOf<kRank + 2> kernels = as_rounded<kRank + 2>(weight, input);
  if (!input.is_cpu()) {
    if (dtype == ScalarType::Double) return kContiguous;
    return layouts_by_cudnn(images, kernels);
  }
  if (is_by_onednn(images, kernels, window, dtype)) return layouts_by_onednn(images, kernels);
  if constexpr (kRank == 3) {
    // Volumes are made contiguous first.
    return kContiguous;
  } else {
    return layouts_channel_by_channel(
        images, kernels,
        {geometry.batch, geometry.output_channels(), geometry.height.output, geometry.width.output},
        window.dilation(0) != 1 || window.dilation(1) != 1);
  }
}

// The output of a batch without images; of sequences, too, as of images.
template <size_t kRank>
Tensor empty_output(const Tensor& input, const Geometry& geometry, const WindowOf<kRank>& window) {
  const StridedOf<kRank + 2> images = as_convolved(input, window);
  std::array<int64_t, kRank + 2> sizes = {0, geometry.output_channels()};
  if (kRank == 3) sizes[2] = geometry.depth.output;
  sizes[kRank] = geometry.height.output;
  sizes[kRank + 1] = geometry.width.output;
  const StridedOf<kRank + 2> output = dense(sizes, Layout::contiguous);
  StridesOf<kRank + 2> strides = output.strides;
  const std::vector<size_t> order = order_of_dimensions(images.sizes, images.strides);
  if (output.sizes == images.sizes && !std::is_sorted(order.rbegin(), order.rend())) {
    int64_t step = 1;
    for (const size_t d : order) {
      strides[d] = step;
      step *= images.sizes[d];
    }
  }
  return empty_strided(output.sizes.data(), strides.data(), kRank + 2, input);
}

// The strides of the gradient of an input, whose layout is known, as of an image.
template <size_t kRank>
StridesOf<kRank + 2> input_grad_strides(const Tensor& input, Layout layout, const WindowOf<kRank>& window) {
  constexpr size_t kDim = kRank + 2;
  const StridedOf<kDim> images = as_image<kDim>(input);
  const bool is_empty = images.sizes[0] == 0;
  const StridedOf<kDim> padded = as_convolved(input, window), plain = dense(images.sizes, layout);
  if (padded.sizes == images.sizes) return is_empty ? padded.strides : plain.strides;
  // Cut out of the gradient of the padded input, which is copied where it is not dense then.
  const StridesOf<kDim> cut = dense_strides(padded.sizes, is_empty ? Layout::contiguous : layout);
  return is_empty || has_layout(StridedOf<kDim>{images.sizes, cut}, layout) ? cut : plain.strides;
}

// The same images with these strides, if need be a copy.
template <size_t kDim>
Tensor with_strides(const Tensor& tensor, const StridesOf<kDim>& strides) {
  if (as_image<kDim>(tensor).strides == strides) return tensor;
  StridesOf<kDim> own = strides;
  if (tensor.dim() == 3) own[2] = strides[3];
  Tensor copy = empty_strided(tensor.sizes().data(), own.data(), tensor.dim(), tensor);
  torch::stable::copy_(copy, tensor);
  return copy;
}

}  // namespace torchgraft::depthwise
