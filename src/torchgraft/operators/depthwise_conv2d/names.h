// The names of the operators, by the rank of what they convolve: 1 for sequences, 2 for images, 3
// for volumes.
#pragma once

#include <cstddef>

namespace torchgraft::depthwise {

template <size_t kRank>
inline constexpr char kForward[] = "";
template <size_t kRank>
inline constexpr char kInputGrad[] = "";
template <size_t kRank>
inline constexpr char kWeightGrad[] = "";
// The name in messages of the dtype that a weight gradient is asked for.
template <size_t kRank>
inline constexpr char kDtypeOfWeightGrad[] = "";
// The names of the gradients for PyTorch's dispatcher: the raw ones, which have no gradients.
template <size_t kRank>
inline constexpr char kRawInputGrad[] = "";
template <size_t kRank>
inline constexpr char kRawWeightGrad[] = "";

template <>
inline constexpr char kForward<1>[] = "depthwise_conv1d";
template <>
inline constexpr char kInputGrad<1>[] = "depthwise_conv1d_input_grad";
template <>
inline constexpr char kWeightGrad<1>[] = "depthwise_conv1d_weight_grad";
template <>
inline constexpr char kDtypeOfWeightGrad<1>[] = "depthwise_conv1d_weight_grad, its dtype,";
template <>
inline constexpr char kRawInputGrad<1>[] = "torchgraft::_depthwise_conv1d_input_grad";
template <>
inline constexpr char kRawWeightGrad<1>[] = "torchgraft::_depthwise_conv1d_weight_grad";

template <>
inline constexpr char kForward<2>[] = "depthwise_conv2d";
template <>
inline constexpr char kInputGrad<2>[] = "depthwise_conv2d_input_grad";
template <>
inline constexpr char kWeightGrad<2>[] = "depthwise_conv2d_weight_grad";
template <>
inline constexpr char kDtypeOfWeightGrad<2>[] = "depthwise_conv2d_weight_grad, its dtype,";
template <>
inline constexpr char kRawInputGrad<2>[] = "torchgraft::_depthwise_conv2d_input_grad";
template <>
inline constexpr char kRawWeightGrad<2>[] = "torchgraft::_depthwise_conv2d_weight_grad";

template <>
inline constexpr char kForward<3>[] = "depthwise_conv3d";
template <>
inline constexpr char kInputGrad<3>[] = "depthwise_conv3d_input_grad";
template <>
inline constexpr char kWeightGrad<3>[] = "depthwise_conv3d_weight_grad";
template <>
inline constexpr char kDtypeOfWeightGrad<3>[] = "depthwise_conv3d_weight_grad, its dtype,";
template <>
inline constexpr char kRawInputGrad<3>[] = "torchgraft::_depthwise_conv3d_input_grad";
template <>
inline constexpr char kRawWeightGrad<3>[] = "torchgraft::_depthwise_conv3d_weight_grad";

}  // namespace torchgraft::depthwise
