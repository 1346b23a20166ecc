// Memory layouts: which layout a tensor has, new tensors in a layout, and copies into a layout, made only if
// needed.
//
// `to_layout`, `to_contiguous` and `to_dense` first check that the memory of their argument was not freed.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "allocation.h"
#include "checks.h"

namespace torchgraft {

// The two dense layouts of a batch of images. A tensor with one channel or one pixel has both, and counts as
// contiguous.
enum class Layout { contiguous, channels_last };

// The strides of a (N, C, H, W) tensor, in elements, and those of a tensor of any rank.
template <size_t kDim>
using StridesOf = std::array<int64_t, kDim>;
using Strides = StridesOf<4>;

// Strides of a dense (N, C, H, W) tensor.
inline Strides dense_strides(int64_t channels, int64_t height, int64_t width, Layout layout) {
  if (layout == Layout::contiguous) return {channels * height * width, height * width, width, 1};
  return {height * width * channels, 1, width * channels, channels};
}

// Strides of a dense tensor of these sizes: images (N, C, H, W), or volumes (N, C, D, H, W).
template <size_t kDim>
StridesOf<kDim> dense_strides(const std::array<int64_t, kDim>& sizes, Layout layout) {
  StridesOf<kDim> strides;
  int64_t step = layout == Layout::channels_last ? sizes[1] : 1;
  for (size_t d = kDim - 1; d > 1; step *= sizes[d--]) strides[d] = step;
  strides[0] = layout == Layout::channels_last ? step : step * sizes[1];
  strides[1] = layout == Layout::channels_last ? 1 : step;
  return strides;
}

// The sizes and strides of a tensor of images (N, C, H, W), or with another number of dimensions.
template <size_t kDim>
struct StridedOf {
  std::array<int64_t, kDim> sizes;
  StridesOf<kDim> strides;
};
using Strided = StridedOf<4>;

// The sizes and strides of a tensor with so many dimensions, which are four if it holds images.
template <size_t kDim = 4>
StridedOf<kDim> strided(const Tensor& tensor) {
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  StridedOf<kDim> result;
  for (size_t d = 0; d < kDim; ++d) {
    result.sizes[d] = sizes[d];
    result.strides[d] = strides[d];
  }
  return result;
}

// Whether PyTorch takes images for channels_last (`suggest_memory_format`): strides grow in the order C, W,
// H, N; those of volumes in the order C, W, H, D, N. Images may be that although they are contiguous, as
// those of one pixel. The Python twin of this function is `suggests_channels_last` in `torchgraft/layout.py`;
// the two must agree, or fake tensors lie.
template <size_t kDim>
bool suggests_channels_last(const StridedOf<kDim>& images) {
  const auto& [sizes, strides] = images;
  if (strides[1] == 0) return false;
  int64_t least = 0;
  for (size_t i = 0; i < kDim; ++i) {
    // Channels come first and the batch last.
    const size_t d = i == 0 ? 1 : i == kDim - 1 ? 0 : kDim - i;
    if (sizes[d] == 0 || strides[d] < least) return false;
    // (N, 1, 1, 1) and an expanded batch fit both orders.
    if (d == 0 && least == strides[1]) return false;
    least = strides[d] * sizes[d];
  }
  return true;
}

// Whether images are channels_last, or a slice of such images, and not also contiguous.
inline bool is_channels_last(const Tensor& tensor) {
  return !tensor.is_contiguous() && suggests_channels_last(strided(tensor));
}

// The layout in which a kernel should read a (N, C, H, W) tensor, and write its result.
inline Layout layout_of(const Tensor& tensor) {
  return is_channels_last(tensor) ? Layout::channels_last : Layout::contiguous;
}

// Whether images, or volumes, are dense in this layout. The stride of a dimension of size one does not
// matter.
template <size_t kDim>
bool has_layout(const StridedOf<kDim>& images, Layout layout) {
  const auto& [sizes, strides] = images;
  const StridesOf<kDim> wanted = dense_strides(sizes, layout);
  for (size_t d = 0; d < kDim; ++d) {
    if (sizes[d] != 1 && strides[d] != wanted[d]) return false;
  }
  return true;
}
inline bool has_layout(const Tensor& tensor, Layout layout) {
  return layout == Layout::contiguous ? tensor.is_contiguous() : has_layout(strided(tensor), layout);
}

// An uninitialised tensor with the dtype and device of `like`. Half the cost of `new_empty` through the
// dispatcher.
inline Tensor empty_strided(const int64_t* sizes, const int64_t* strides, int64_t dim, const Tensor& like) {
  int32_t dtype = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(like.get(), &dtype));
  return make_empty(dim, sizes, strides, dtype, internal::device_type_of(like), like.get_device_index());
}

// An uninitialised dense (N, C, H, W) tensor in a layout, with the dtype and device of `like`.
inline Tensor empty_images(int64_t batch, int64_t channels, int64_t height, int64_t width, Layout layout,
                           const Tensor& like) {
  const std::array<int64_t, 4> sizes = {batch, channels, height, width};
  // A size of zero must not make a stride of zero: strides are those of a tensor with size one there.
  const Strides strides = dense_strides(std::max<int64_t>(channels, 1), std::max<int64_t>(height, 1),
                                        std::max<int64_t>(width, 1), layout);
  return empty_strided(sizes.data(), strides.data(), 4, like);
}

// The tensor itself if it has the layout, otherwise a copy in the layout. Throws if its memory was freed.
inline Tensor to_layout(const Tensor& tensor, Layout layout, const char* name = "a tensor") {
  check_memory(tensor, name);
  if (has_layout(tensor, layout)) return tensor;
  Tensor copy = empty_images(tensor.size(0), tensor.size(1), tensor.size(2), tensor.size(3), layout, tensor);
  torch::stable::copy_(copy, tensor);
  return copy;
}

// The tensor itself if it is contiguous, otherwise a contiguous copy. Throws if its memory was freed.
inline Tensor to_contiguous(const Tensor& tensor, const char* name = "a tensor") {
  check_memory(tensor, name);
  if (tensor.is_contiguous()) return tensor;
  const auto sizes = tensor.sizes();
  std::vector<int64_t> strides(sizes.size());
  int64_t step = 1;
  for (size_t d = sizes.size(); d-- > 0; step *= std::max<int64_t>(sizes[d], 1)) strides[d] = step;
  Tensor copy = empty_strided(sizes.data(), strides.data(), tensor.dim(), tensor);
  torch::stable::copy_(copy, tensor);
  return copy;
}

// Whether the elements of the tensor fill its memory from the first to the last, each place once. An
// elementwise kernel can then go through memory in order, whatever the order of the dimensions.
inline bool is_dense(const Tensor& tensor) {
  if (tensor.is_contiguous()) return true;
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  std::vector<std::pair<int64_t, int64_t>> dimensions;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] != 1) dimensions.emplace_back(strides[d], sizes[d]);
  }
  std::sort(dimensions.begin(), dimensions.end());
  int64_t expected = 1;
  for (const auto& [stride, size] : dimensions) {
    if (stride != expected) return false;
    expected *= size;
  }
  return true;
}

// Dimensions from the innermost out, as PyTorch orders those of what it makes from a tensor. Those that are
// expanded, with a stride of zero, stay where they are.
template <typename Sizes>
std::vector<size_t> order_of_dimensions(const Sizes& sizes, const Sizes& strides) {
  // Sorted by insertion: which of two goes first may be left open, so the order of comparisons decides, and
  // it is PyTorch's (`infer_dense_strides`, and TensorIterator's).
  std::vector<size_t> order(sizes.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = order.size() - 1 - i;
  for (size_t i = 1; i < order.size(); ++i) {
    size_t at = i;
    for (size_t before = i; before-- > 0;) {
      const size_t inner = order[before], outer = order[at];
      if (strides[inner] == 0 || strides[outer] == 0) continue;
      if (strides[inner] < strides[outer]) break;
      if (strides[inner] == strides[outer] && sizes[inner] <= sizes[outer]) continue;
      std::swap(order[before], order[at]);
      at = before;
    }
  }
  return order;
}

// The strides that `torch.empty_like` gives where a tensor is not dense: its dimensions in the order of their
// strides, without what lies between.
inline std::vector<int64_t> dense_strides_like(const Tensor& tensor) {
  const auto sizes = tensor.sizes();
  std::vector<int64_t> result(sizes.size());
  int64_t step = 1;
  for (const size_t d : order_of_dimensions(sizes, tensor.strides())) {
    result[d] = step;
    if (sizes[d] > 1) step *= sizes[d];
  }
  return result;
}

// The tensor itself if it is dense, otherwise a copy with the strides that `torch.empty_like` gives. Throws
// if its memory was freed.
inline Tensor to_dense(const Tensor& tensor, const char* name = "a tensor") {
  check_memory(tensor, name);
  if (is_dense(tensor)) return tensor;
  Tensor copy = empty_strided(tensor.sizes().data(), dense_strides_like(tensor).data(), tensor.dim(), tensor);
  torch::stable::copy_(copy, tensor);
  return copy;
}

// An uninitialised tensor of the same sizes and strides as a dense one.
inline Tensor empty_as(const Tensor& dense) {
  return empty_strided(dense.sizes().data(), dense.strides().data(), dense.dim(), dense);
}

}  // namespace torchgraft
