// The three host functions, for any device and for images, sequences and volumes: what they are given is
// checked, results are allocated, and images are brought into the layout that kernels take. A sequence
// (N, C, L) is an image of one row, and a dense volume (N, C, D, H, W) one of D * H rows, in either layout.
// Device tells how that is done on one kind of device:
//
//   Device(tensor)                           makes the tensor's device current, for a scope
//   Layout layout<T>(geometry, asked)        that kernels are given
//   [layout, channels] arrange_weight_grad<T>(geometry, asked)
//                                            the same for a weight gradient, and the channels of its images,
//                                            which may be more than they have
//   Tensor with_channels(tensor, channels)   with zeros in more channels; the tensor itself where it has them
//   Tensor to_layout(tensor, layout)         the tensor itself where it lies so already
//   Tensor relayout(tensor, layout)          from the other dense layout, in a new tensor; optional
//   Tensor readable<T>(tensor, name)         a weight or bias as kernels for T can read it; contiguous
//   void forward(input, weight, bias, output, geometry, layout)
//                                            weight and bias as tensors, what `readable` made of them
//   bool turns_results<T>(geometry, layout)  whether the output may be written in the other layout, by
//                                            forward_turned, which takes what forward takes; optional
//   void input_grad(output_grad, weight, input_grad, geometry, layout)
//   void weight_grad(output_grad, input, weight_grad, geometry, layout, like)
//                                            of halves, weight_grad may be float: then sums are not rounded
#pragma once

#include <torchgraft/dispatch.h>
#include <torchgraft/empty.h>
#include <torchgraft/layout.h>

#include <array>
#include <optional>
#include <utility>

#include "geometry.h"
#include "layouts.h"
#include "names.h"

namespace torchgraft::depthwise {

// A result in the layout that was asked for.
template <typename Device>
Tensor result_in([[maybe_unused]] const Device& device, const Tensor& result, [[maybe_unused]] Layout layout,
                 [[maybe_unused]] Layout asked) {
  if constexpr (requires { device.relayout(result, asked); }) {
    if (layout != asked) return device.relayout(result, asked);
  }
  return result;
}

// An uninitialised weight. Its elements lie in the same order in both layouts.
inline Tensor empty_weight(int64_t channels, int64_t height, int64_t width, Layout layout, const Tensor& like,
                           ScalarType dtype) {
  const int64_t taps = checked_product(height, width, "a result");
  checked_product(checked_product(channels, taps, "a result"), sizeof(double), "a result");
  const Strides sizes = {channels, 1, height, width};
  const Strides strides = {taps, layout == Layout::channels_last ? 1 : taps, width, 1};
  return make_empty(4, sizes.data(), strides.data(), static_cast<int32_t>(dtype),
                    internal::device_type_of(like), like.get_device_index());
}

// A weight or bias of dtype T, whose elements lie in order: rounded where it has another dtype. Under
// autocast weights are float32 and images halves.
template <typename T>
Tensor rounded_to(const Tensor& tensor, const char* name, Layout layout = Layout::contiguous) {
  if (tensor.scalar_type() == kDtypeOf<T>) return to_contiguous(tensor, name);
  check_memory(tensor, name);
  const bool is_bias = tensor.dim() == 1;
  Tensor rounded =
      is_bias ? empty_contiguous({tensor.size(0)}, tensor, static_cast<int32_t>(kDtypeOf<T>))
              : empty_weight(tensor.size(0), tensor.size(2), tensor.size(3), layout, tensor, kDtypeOf<T>);
  torch::stable::copy_(rounded, tensor);
  return rounded;
}

// The window of an image of one row, over which that of a sequence moves; others stay.
inline const Window& as_window(const Window& window) { return window; }
inline const VolumeWindow& as_window(const VolumeWindow& window) { return window; }
inline Window as_window(const SequenceWindow& window) {
  return {1, window.stride(0), 0, window.front(0), 0, window.back(0), 1, window.dilation(0)};
}

// The memory of a tensor with other sizes and strides: no view to autograd, nor a copy.
template <size_t kDim>
Tensor reinterpreted(const Tensor& tensor, const StridedOf<kDim>& as) {
  AtenTensorHandle result = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch__reinterpret_tensor(tensor.get(), kDim, as.sizes.data(),
                                                        as.strides.data(), /*offset=*/0, &result));
  return Tensor(result);
}

// The volumes themselves if they are dense in the layout or in the other one, otherwise a copy in it; and the
// layout that they have then.
inline std::pair<Tensor, Layout> dense_volumes(const Tensor& volumes, Layout layout) {
  check_memory(volumes, "a tensor");
  const StridedOf<5> given = strided<5>(volumes);
  const Layout other = layout == Layout::contiguous ? Layout::channels_last : Layout::contiguous;
  for (const Layout found : {layout, other}) {
    if (has_layout(given, found)) return {volumes, found};
  }
  std::array<int64_t, 5> sizes;
  std::transform(given.sizes.begin(), given.sizes.end(), sizes.begin(),
                 [](int64_t size) { return std::max<int64_t>(size, 1); });
  Tensor copy = empty_strided(given.sizes.data(), dense_strides(sizes, layout).data(), 5, volumes);
  torch::stable::copy_(copy, volumes);
  return {copy, layout};
}

// A tensor of sequences (N, C, L) as images of one row (N, C, 1, L), or of volumes as images (N, C, D * H,
// W). Volumes that are dense in neither layout are copied into the one asked for. And images as what they
// were made of, where volumes have so many planes.
template <size_t kRank>
Tensor as_images(Tensor tensor, [[maybe_unused]] Layout layout = Layout::contiguous) {
  if constexpr (kRank == 1) {
    return reinterpreted(tensor, as_image(tensor));
  } else if constexpr (kRank == 2) {
    return tensor;
  } else {
    const std::array<int64_t, 5> sizes = strided<5>(tensor).sizes;
    const auto [volumes, found] = dense_volumes(tensor, layout);
    return reinterpreted(volumes, dense<4>({sizes[0], sizes[1], sizes[2] * sizes[3], sizes[4]}, found));
  }
}
template <size_t kRank>
Tensor from_images(Tensor images, [[maybe_unused]] int64_t planes = 1) {
  if constexpr (kRank == 1) {
    const auto [sizes, strides] = strided(images);
    return reinterpreted<3>(images, {{sizes[0], sizes[1], sizes[3]}, {strides[0], strides[1], strides[3]}});
  } else if constexpr (kRank == 2) {
    return images;
  } else {
    const auto [sizes, strides] = strided(images);
    const int64_t height = sizes[2] / planes;
    return reinterpreted<5>(images, {{sizes[0], sizes[1], planes, height, sizes[3]},
                                     {strides[0], strides[1], height * strides[2], strides[2], strides[3]}});
  }
}

// The dimensions in which strides of a rank are compared: those of sequences are those of images of one row.
template <size_t kRank>
inline constexpr size_t kDimOfImages = kRank == 3 ? 5 : 4;

// The layout that images have, or sequences and volumes.
template <size_t kRank>
Layout layout_of_rank(const Tensor& tensor) {
  const auto images = as_image<kDimOfImages<kRank>>(tensor);
  const bool is_last = !tensor.is_contiguous() && suggests_channels_last(images);
  return is_last ? Layout::channels_last : Layout::contiguous;
}

// The layout to compute in. PyTorch's results of sequences are contiguous, however its input lies: a device
// that can bring a result into the other layout takes the sequences as they lie.
template <typename Device, size_t kRank>
Layout computed_in([[maybe_unused]] const Tensor& tensor, Layout asked) {
  constexpr bool relayouts = requires(const Device& device) { device.relayout(tensor, Layout::contiguous); };
  if constexpr (relayouts && kRank == 1) {
    const Strided images = as_image(tensor);
    if (has_layout(images, asked)) return asked;
    const Layout other = asked == Layout::contiguous ? Layout::channels_last : Layout::contiguous;
    if (has_layout(images, other)) return other;
  }
  return asked;
}

// Uninitialised images for an output or an input, of as many rows as there are in all planes.
inline Tensor empty_output_images(const Geometry& geometry, Layout layout, const Tensor& like) {
  return empty_images(geometry.batch, geometry.output_channels(),
                      geometry.depth.output * geometry.height.output, geometry.width.output, layout, like);
}
inline Tensor empty_input_images(const Geometry& geometry, Layout layout, const Tensor& like) {
  return empty_images(geometry.batch, geometry.channels, geometry.depth.input * geometry.height.input,
                      geometry.width.input, layout, like);
}

// A forward pass in one layout, whose output is in the layout that was asked for where the device can turn it
// as it writes, or else in the same one.
template <typename T, typename Device>
Tensor output_of(const Device& device, const Tensor& input, const Tensor& weight,
                 const std::optional<Tensor>& bias, const Geometry& geometry, Layout layout, Layout asked) {
  if constexpr (requires { device.template turns_results<T>(geometry, layout); }) {
    if (layout != asked && device.template turns_results<T>(geometry, layout)) {
      Tensor output = empty_output_images(geometry, asked, input);
      device.forward_turned(data_of<T>(input), weight, bias, mutable_data_of<T>(output), geometry, layout);
      return output;
    }
  }
  Tensor output = empty_output_images(geometry, layout, input);
  device.forward(data_of<T>(input), weight, bias, mutable_data_of<T>(output), geometry, layout);
  return result_in(device, output, layout, asked);
}

template <typename Device, size_t kRank>
Tensor forward_of(Tensor input, Tensor weight, std::optional<Tensor> bias, const WindowOf<kRank>& window) {
  const char* const name = kForward<kRank>;
  const Geometry geometry = forward_geometry(name, input, weight, bias, window);
  if (input.size(0) == 0) {
    dispatch_floating(input.scalar_type(), name, [](auto) {});
    const Tensor output = empty_output(input, geometry, as_window(window));
    return kRank == 1 ? from_images<kRank>(output) : output;
  }
  return dispatch_floating(input.scalar_type(), name, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Device device(input);
    const Layout asked = layouts_of(input, weight, geometry, as_window(window)).output;
    const Layout layout = device.template layout<T>(geometry, computed_in<Device, kRank>(input, asked));
    input = device.to_layout(as_images<kRank>(std::move(input), layout), layout);
    weight = device.template readable<T>(as_images<kRank>(std::move(weight)), "weight");
    if (bias) bias = device.template readable<T>(*bias, "bias");
    return from_images<kRank>(output_of<T>(device, input, weight, bias, geometry, layout, asked),
                              geometry.depth.output);
  });
}

template <typename Device, size_t kRank>
Tensor input_grad_of(Tensor output_grad, Tensor weight, int64_t channels,
                     const std::array<int64_t, kRank>& size, std::optional<bool> channels_last,
                     const WindowOf<kRank>& window) {
  const char* const name = kInputGrad<kRank>;
  const Geometry geometry = input_grad_geometry(name, output_grad, weight, channels, size, window);
  return dispatch_floating(output_grad.scalar_type(), name, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Device device(output_grad);
    Layout asked = layout_of_rank<kRank>(output_grad);
    if (channels_last) asked = *channels_last ? Layout::channels_last : Layout::contiguous;
    const Layout layout = device.template layout<T>(geometry, computed_in<Device, kRank>(output_grad, asked));
    Tensor result = empty_input_images(geometry, layout, output_grad);
    if (geometry.batch > 0) {
      output_grad = device.to_layout(as_images<kRank>(std::move(output_grad), layout), layout);
      weight = device.template readable<T>(as_images<kRank>(std::move(weight)), "weight");
      device.input_grad(data_of<T>(output_grad), weight, mutable_data_of<T>(result), geometry, layout);
    }
    return from_images<kRank>(result_in(device, result, layout, asked), geometry.depth.input);
  });
}

// The first `count` of the kernels of a weight, in a layout. A tensor that PyTorch has narrowed would be a
// view to autograd, which must not be changed in place as other gradients may.
inline Tensor first_of(const Tensor& weight, int64_t count, Layout layout) {
  const std::array<int64_t, 4> sizes = {count, 1, weight.size(2), weight.size(3)};
  const int64_t taps = sizes[2] * sizes[3];
  const std::array<int64_t, 4> strides = {taps, layout == Layout::channels_last ? 1 : taps, sizes[3], 1};
  AtenTensorHandle first = nullptr;
  TORCH_ERROR_CODE_CHECK(
      aoti_torch__reinterpret_tensor(weight.get(), 4, sizes.data(), strides.data(), 0, &first));
  return Tensor(first);
}

// The same; the weight itself where it has just so many.
inline Tensor at_most_first_of(const Tensor& weight, int64_t count, Layout layout) {
  return weight.size(0) == count ? weight : first_of(weight, count, layout);
}

// The sums in R, which is T or, for halves, float: then nothing is rounded.
template <typename R, typename T, typename Device>
Tensor sum_weight_grad(const Device& device, Tensor output_grad, Tensor input, const Geometry& geometry,
                       Layout result_layout) {
  const auto [layout, channels] = device.template arrange_weight_grad<T>(geometry, layout_of(input));
  Geometry given = geometry;
  given.channels = channels;
  const int64_t rows = checked_product(geometry.depth.kernel, geometry.height.kernel, "a result");
  Tensor result =
      empty_weight(given.output_channels(), rows, geometry.width.kernel, result_layout, input, kDtypeOf<R>);
  // No images have any layout, and count as contiguous: nothing is given to their channels.
  if (geometry.batch == 0) {
    torch::stable::zero_(result);
    return result;
  }
  input = device.with_channels(device.to_layout(input, layout), channels);
  output_grad = device.with_channels(device.to_layout(output_grad, layout), given.output_channels());
  device.weight_grad(data_of<T>(output_grad), data_of<T>(input), mutable_data_of<R>(result), given, layout,
                     input);
  return at_most_first_of(result, geometry.output_channels(), result_layout);
}

template <typename Device, size_t kRank>
Tensor weight_grad_of(Tensor output_grad, Tensor input, const std::array<int64_t, kRank>& kernel,
                      const WindowOf<kRank>& window, std::optional<ScalarType> dtype, bool channels_last) {
  const char* const name = kWeightGrad<kRank>;
  const Geometry geometry = weight_grad_geometry(name, output_grad, input, kernel, window);
  const Layout layout = channels_last ? Layout::channels_last : Layout::contiguous;
  return dispatch_floating(input.scalar_type(), name, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = accumulate_t<T>;
    const Device device(input);
    const Layout given = layout_of_rank<kRank>(input);
    input = as_images<kRank>(std::move(input), given);
    output_grad = as_images<kRank>(std::move(output_grad), given);
    const auto result = [&](const Tensor& images) {
      return from_images<kRank>(images, geometry.depth.kernel);
    };
    if (!dtype || *dtype == kDtypeOf<T>) {
      return result(sum_weight_grad<T, T>(device, output_grad, input, geometry, layout));
    }
    const Tensor sums = sum_weight_grad<A, T>(device, output_grad, input, geometry, layout);
    return dispatch_floating(*dtype, kDtypeOfWeightGrad<kRank>, [&](auto result_tag) {
      using R = typename decltype(result_tag)::type;
      return result(rounded_to<R>(sums, "the sums", layout));
    });
  });
}

// The host functions of images, with the arguments of the schemas; those of sequences are in
// sequences.h, and those of volumes in volumes.h.

template <typename Device>
Tensor forward_on(Tensor input, Tensor weight, std::optional<Tensor> bias, int64_t stride_height,
                  int64_t stride_width, int64_t padding_top, int64_t padding_left, int64_t padding_bottom,
                  int64_t padding_right, int64_t dilation_height, int64_t dilation_width) {
  return forward_of<Device, 2>(std::move(input), std::move(weight), std::move(bias),
                               {stride_height, stride_width, padding_top, padding_left, padding_bottom,
                                padding_right, dilation_height, dilation_width});
}

template <typename Device>
Tensor input_grad_on(Tensor output_grad, Tensor weight, int64_t channels, int64_t height, int64_t width,
                     std::optional<bool> channels_last, int64_t stride_height, int64_t stride_width,
                     int64_t padding_top, int64_t padding_left, int64_t padding_bottom, int64_t padding_right,
                     int64_t dilation_height, int64_t dilation_width) {
  return input_grad_of<Device, 2>(std::move(output_grad), std::move(weight), channels, {height, width},
                                  channels_last,
                                  {stride_height, stride_width, padding_top, padding_left, padding_bottom,
                                   padding_right, dilation_height, dilation_width});
}

template <typename Device>
Tensor weight_grad_on(Tensor output_grad, Tensor input, int64_t kernel_height, int64_t kernel_width,
                      int64_t stride_height, int64_t stride_width, int64_t padding_top, int64_t padding_left,
                      int64_t padding_bottom, int64_t padding_right, int64_t dilation_height,
                      int64_t dilation_width, std::optional<ScalarType> dtype, bool channels_last) {
  return weight_grad_of<Device, 2>(std::move(output_grad), std::move(input), {kernel_height, kernel_width},
                                   {stride_height, stride_width, padding_top, padding_left, padding_bottom,
                                    padding_right, dilation_height, dilation_width},
                                   dtype, channels_last);
}

}  // namespace torchgraft::depthwise
