// The operators of torchgraft as functions of C++. `make schemas` has written this file.
//
// A call that fails throws std::invalid_argument where an argument makes no sense, with the text of Python's
// TypeError or ValueError, and std::runtime_error for anything else, as a library that is not loaded.
// Nothing is recorded for autograd: gradients are Python's.
// clang-format off
#pragma once

#include <torchgraft/calling.h>

namespace torchgraft {

// torchgraft::causal_conv1d(Tensor input, Tensor weight, Tensor? bias, Tensor? initial_state, Tensor? seq_idx, bool silu) -> (Tensor output, Tensor final_state)
inline std::tuple<Tensor, Tensor> causal_conv1d(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, const std::optional<Tensor>& initial_state, const std::optional<Tensor>& seq_idx, bool silu) {
  static constexpr ::torchgraft::internal::Declaration torchgraft_declared{
      "torchgraft", "causal_conv1d",
      "Tensor, Tensor, Tensor?, Tensor?, Tensor?, bool",
      "Tensor, Tensor",
      "input weight bias initial_state seq_idx silu",
      "input float64 float32 float16 bfloat16;~weight float64 float32 float16 bfloat16;~bias float64 float32 float16 bfloat16;initial_state float64 float32 float16 bfloat16;seq_idx int32",
      "batch channels length, channels width, channels, batch channels _, batch length -> batch channels length, batch channels _"};
  [[maybe_unused]] static const bool torchgraft_fits = ::torchgraft::internal::check_version(torchgraft_declared);
  return ::torchgraft::internal::call<std::tuple<Tensor, Tensor>>(
      torchgraft_declared, "torchgraft::causal_conv1d", input, weight, bias, initial_state, seq_idx, silu);
}

// torchgraft::causal_conv1d_backward(Tensor output_grad, Tensor? final_state_grad, Tensor input, Tensor weight, Tensor? bias, Tensor? initial_state, Tensor? seq_idx, bool silu, ScalarType? dtype=None) -> (Tensor input_grad, Tensor weight_grad, Tensor bias_grad, Tensor initial_state_grad)
inline std::tuple<Tensor, Tensor, Tensor, Tensor> causal_conv1d_backward(const Tensor& output_grad, const std::optional<Tensor>& final_state_grad, const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, const std::optional<Tensor>& initial_state, const std::optional<Tensor>& seq_idx, bool silu, const std::optional<ScalarType>& dtype = std::nullopt) {
  static constexpr ::torchgraft::internal::Declaration torchgraft_declared{
      "torchgraft", "causal_conv1d_backward",
      "Tensor, Tensor?, Tensor, Tensor, Tensor?, Tensor?, Tensor?, bool, ScalarType?",
      "Tensor, Tensor, Tensor, Tensor",
      "output_grad final_state_grad input weight bias initial_state seq_idx silu dtype",
      "output_grad float64 float32 float16 bfloat16;final_state_grad float64 float32 float16 bfloat16;input float64 float32 float16 bfloat16;~weight float64 float32 float16 bfloat16;~bias float64 float32 float16 bfloat16;initial_state float64 float32 float16 bfloat16;seq_idx int32",
      "batch channels length, batch channels _, batch channels length, channels width, channels, batch channels _, batch length -> batch channels length, channels width, channels, batch channels _"};
  [[maybe_unused]] static const bool torchgraft_fits = ::torchgraft::internal::check_version(torchgraft_declared);
  return ::torchgraft::internal::call<std::tuple<Tensor, Tensor, Tensor, Tensor>>(
      torchgraft_declared, "torchgraft::causal_conv1d_backward", output_grad, final_state_grad, input, weight, bias, initial_state, seq_idx, silu, dtype);
}

// torchgraft::causal_conv1d_packed(Tensor input, Tensor weight, Tensor? bias, Tensor? initial_state, Tensor cu_seqlens, bool silu) -> (Tensor output, Tensor final_state)
inline std::tuple<Tensor, Tensor> causal_conv1d_packed(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, const std::optional<Tensor>& initial_state, const Tensor& cu_seqlens, bool silu) {
  static constexpr ::torchgraft::internal::Declaration torchgraft_declared{
      "torchgraft", "causal_conv1d_packed",
      "Tensor, Tensor, Tensor?, Tensor?, Tensor, bool",
      "Tensor, Tensor",
      "input weight bias initial_state cu_seqlens silu",
      "input float64 float32 float16 bfloat16;~weight float64 float32 float16 bfloat16;~bias float64 float32 float16 bfloat16;initial_state float64 float32 float16 bfloat16;cu_seqlens int32 int64",
      "batch channels length, channels width, channels, sequences channels _, _ -> batch channels length, _ channels _"};
  [[maybe_unused]] static const bool torchgraft_fits = ::torchgraft::internal::check_version(torchgraft_declared);
  return ::torchgraft::internal::call<std::tuple<Tensor, Tensor>>(
      torchgraft_declared, "torchgraft::causal_conv1d_packed", input, weight, bias, initial_state, cu_seqlens, silu);
}

// torchgraft::causal_conv1d_packed_backward(Tensor output_grad, Tensor? final_state_grad, Tensor input, Tensor weight, Tensor? bias, Tensor? initial_state, Tensor cu_seqlens, bool silu, ScalarType? dtype=None) -> (Tensor input_grad, Tensor weight_grad, Tensor bias_grad, Tensor initial_state_grad)
inline std::tuple<Tensor, Tensor, Tensor, Tensor> causal_conv1d_packed_backward(const Tensor& output_grad, const std::optional<Tensor>& final_state_grad, const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, const std::optional<Tensor>& initial_state, const Tensor& cu_seqlens, bool silu, const std::optional<ScalarType>& dtype = std::nullopt) {
  static constexpr ::torchgraft::internal::Declaration torchgraft_declared{
      "torchgraft", "causal_conv1d_packed_backward",
      "Tensor, Tensor?, Tensor, Tensor, Tensor?, Tensor?, Tensor, bool, ScalarType?",
      "Tensor, Tensor, Tensor, Tensor",
      "output_grad final_state_grad input weight bias initial_state cu_seqlens silu dtype",
      "output_grad float64 float32 float16 bfloat16;final_state_grad float64 float32 float16 bfloat16;input float64 float32 float16 bfloat16;~weight float64 float32 float16 bfloat16;~bias float64 float32 float16 bfloat16;initial_state float64 float32 float16 bfloat16;cu_seqlens int32 int64",
      "batch channels length, sequences channels _, batch channels length, channels width, channels, sequences channels _, _ -> batch channels length, channels width, channels, _ channels _"};
  [[maybe_unused]] static const bool torchgraft_fits = ::torchgraft::internal::check_version(torchgraft_declared);
  return ::torchgraft::internal::call<std::tuple<Tensor, Tensor, Tensor, Tensor>>(
      torchgraft_declared, "torchgraft::causal_conv1d_packed_backward", output_grad, final_state_grad, input, weight, bias, initial_state, cu_seqlens, silu, dtype);
}

// torchgraft::causal_conv1d_update(Tensor input, Tensor(a!) state, Tensor weight, Tensor? bias, Tensor? cache_seqlens, Tensor? state_indices, bool silu) -> Tensor
inline Tensor causal_conv1d_update(const Tensor& input, const Tensor& state, const Tensor& weight, const std::optional<Tensor>& bias, const std::optional<Tensor>& cache_seqlens, const std::optional<Tensor>& state_indices, bool silu) {
  static constexpr ::torchgraft::internal::Declaration torchgraft_declared{
      "torchgraft", "causal_conv1d_update",
      "Tensor, Tensor, Tensor, Tensor?, Tensor?, Tensor?, bool",
      "Tensor",
      "input state weight bias cache_seqlens state_indices silu",
      "input float64 float32 float16 bfloat16;state float64 float32 float16 bfloat16;~weight float64 float32 float16 bfloat16;~bias float64 float32 float16 bfloat16;cache_seqlens int32;state_indices int32",
      "batch channels length, rows channels _, channels width, channels, batch, batch -> batch channels length"};
  [[maybe_unused]] static const bool torchgraft_fits = ::torchgraft::internal::check_version(torchgraft_declared);
  return std::get<0>(::torchgraft::internal::call<std::tuple<Tensor>>(
      torchgraft_declared, "torchgraft::causal_conv1d_update", input, state, weight, bias, cache_seqlens, state_indices, silu));
}

// torchgraft::depthwise_conv1d(Tensor input, Tensor weight, Tensor? bias, int stride, int padding_left, int padding_right, int dilation) -> Tensor
inline Tensor depthwise_conv1d(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, int64_t stride, int64_t padding_left, int64_t padding_right, int64_t dilation) {
  static constexpr ::torchgraft::internal::Declaration torchgraft_declared{
      "torchgraft", "depthwise_conv1d",
      "Tensor, Tensor, Tensor?, int, int, int, int",
      "Tensor",
      "input weight bias stride padding_left padding_right dilation",
      "input float64 float32 float16 bfloat16;~weight float64 float32 float16 bfloat16;~bias float64 float32 float16 bfloat16",
      "..., M 1 _, M -> ..."};
  [[maybe_unused]] static const bool torchgraft_fits = ::torchgraft::internal::check_version(torchgraft_declared);
  return std::get<0>(::torchgraft::internal::call<std::tuple<Tensor>>(
      torchgraft_declared, "torchgraft::depthwise_conv1d", input, weight, bias, stride, padding_left, padding_right, dilation));
}

// torchgraft::depthwise_conv1d_input_grad(Tensor output_grad, Tensor weight, SymInt channels, SymInt length, bool? channels_last, int stride, int padding_left, int padding_right, int dilation) -> Tensor
inline Tensor depthwise_conv1d_input_grad(const Tensor& output_grad, const Tensor& weight, int64_t channels, int64_t length, const std::optional<bool>& channels_last, int64_t stride, int64_t padding_left, int64_t padding_right, int64_t dilation) {
  static constexpr ::torchgraft::internal::Declaration torchgraft_declared{
      "torchgraft", "depthwise_conv1d_input_grad",
      "Tensor, Tensor, int, int, bool?, int, int, int, int",
      "Tensor",
      "output_grad weight channels length channels_last stride padding_left padding_right dilation",
      "output_grad float64 float32 float16 bfloat16;~weight float64 float32 float16 bfloat16",
      "N M _, M 1 _ -> N channels length"};
  [[maybe_unused]] static const bool torchgraft_fits = ::torchgraft::internal::check_version(torchgraft_declared);
  return std::get<0>(::torchgraft::internal::call<std::tuple<Tensor>>(
      torchgraft_declared, "torchgraft::depthwise_conv1d_input_grad", output_grad, weight, channels, length, channels_last, stride, padding_left, padding_right, dilation));
}

// torchgraft::depthwise_conv1d_weight_grad(Tensor output_grad, Tensor input, SymInt kernel_size, int stride, int padding_left, int padding_right, int dilation, ScalarType? dtype=None, bool channels_last=False) -> Tensor
inline Tensor depthwise_conv1d_weight_grad(const Tensor& output_grad, const Tensor& input, int64_t kernel_size, int64_t stride, int64_t padding_left, int64_t padding_right, int64_t dilation, const std::optional<ScalarType>& dtype = std::nullopt, bool channels_last = false) {
  static constexpr ::torchgraft::internal::Declaration torchgraft_declared{
      "torchgraft", "depthwise_conv1d_weight_grad",
      "Tensor, Tensor, int, int, int, int, int, ScalarType?, bool",
      "Tensor",
      "output_grad input kernel_size stride padding_left padding_right dilation dtype channels_last",
      "output_grad float64 float32 float16 bfloat16;input float64 float32 float16 bfloat16",
      "N M _, N C L -> M 1 kernel_size"};
  [[maybe_unused]] static const bool torchgraft_fits = ::torchgraft::internal::check_version(torchgraft_declared);
  return std::get<0>(::torchgraft::internal::call<std::tuple<Tensor>>(
      torchgraft_declared, "torchgraft::depthwise_conv1d_weight_grad", output_grad, input, kernel_size, stride, padding_left, padding_right, dilation, dtype, channels_last));
}

// torchgraft::depthwise_conv2d(Tensor input, Tensor weight, Tensor? bias, int stride_height, int stride_width, int padding_top, int padding_left, int padding_bottom, int padding_right, int dilation_height, int dilation_width) -> Tensor
inline Tensor depthwise_conv2d(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, int64_t stride_height, int64_t stride_width, int64_t padding_top, int64_t padding_left, int64_t padding_bottom, int64_t padding_right, int64_t dilation_height, int64_t dilation_width) {
  static constexpr ::torchgraft::internal::Declaration torchgraft_declared{
      "torchgraft", "depthwise_conv2d",
      "Tensor, Tensor, Tensor?, int, int, int, int, int, int, int, int",
      "Tensor",
      "input weight bias stride_height stride_width padding_top padding_left padding_bottom padding_right dilation_height dilation_width",
      "input float64 float32 float16 bfloat16;~weight float64 float32 float16 bfloat16;~bias float64 float32 float16 bfloat16",
      "..., M 1 _ _, M -> ..."};
  [[maybe_unused]] static const bool torchgraft_fits = ::torchgraft::internal::check_version(torchgraft_declared);
  return std::get<0>(::torchgraft::internal::call<std::tuple<Tensor>>(
      torchgraft_declared, "torchgraft::depthwise_conv2d", input, weight, bias, stride_height, stride_width, padding_top, padding_left, padding_bottom, padding_right, dilation_height, dilation_width));
}

// torchgraft::depthwise_conv2d_input_grad(Tensor output_grad, Tensor weight, SymInt channels, SymInt height, SymInt width, bool? channels_last, int stride_height, int stride_width, int padding_top, int padding_left, int padding_bottom, int padding_right, int dilation_height, int dilation_width) -> Tensor
inline Tensor depthwise_conv2d_input_grad(const Tensor& output_grad, const Tensor& weight, int64_t channels, int64_t height, int64_t width, const std::optional<bool>& channels_last, int64_t stride_height, int64_t stride_width, int64_t padding_top, int64_t padding_left, int64_t padding_bottom, int64_t padding_right, int64_t dilation_height, int64_t dilation_width) {
  static constexpr ::torchgraft::internal::Declaration torchgraft_declared{
      "torchgraft", "depthwise_conv2d_input_grad",
      "Tensor, Tensor, int, int, int, bool?, int, int, int, int, int, int, int, int",
      "Tensor",
      "output_grad weight channels height width channels_last stride_height stride_width padding_top padding_left padding_bottom padding_right dilation_height dilation_width",
      "output_grad float64 float32 float16 bfloat16;~weight float64 float32 float16 bfloat16",
      "N M _ _, M 1 _ _ -> N channels height width"};
  [[maybe_unused]] static const bool torchgraft_fits = ::torchgraft::internal::check_version(torchgraft_declared);
  return std::get<0>(::torchgraft::internal::call<std::tuple<Tensor>>(
      torchgraft_declared, "torchgraft::depthwise_conv2d_input_grad", output_grad, weight, channels, height, width, channels_last, stride_height, stride_width, padding_top, padding_left, padding_bottom, padding_right, dilation_height, dilation_width));
}

// torchgraft::depthwise_conv2d_weight_grad(Tensor output_grad, Tensor input, SymInt kernel_height, SymInt kernel_width, int stride_height, int stride_width, int padding_top, int padding_left, int padding_bottom, int padding_right, int dilation_height, int dilation_width, ScalarType? dtype=None, bool channels_last=False) -> Tensor
inline Tensor depthwise_conv2d_weight_grad(const Tensor& output_grad, const Tensor& input, int64_t kernel_height, int64_t kernel_width, int64_t stride_height, int64_t stride_width, int64_t padding_top, int64_t padding_left, int64_t padding_bottom, int64_t padding_right, int64_t dilation_height, int64_t dilation_width, const std::optional<ScalarType>& dtype = std::nullopt, bool channels_last = false) {
  static constexpr ::torchgraft::internal::Declaration torchgraft_declared{
      "torchgraft", "depthwise_conv2d_weight_grad",
      "Tensor, Tensor, int, int, int, int, int, int, int, int, int, int, ScalarType?, bool",
      "Tensor",
      "output_grad input kernel_height kernel_width stride_height stride_width padding_top padding_left padding_bottom padding_right dilation_height dilation_width dtype channels_last",
      "output_grad float64 float32 float16 bfloat16;input float64 float32 float16 bfloat16",
      "N M _ _, N C H W -> M 1 kernel_height kernel_width"};
  [[maybe_unused]] static const bool torchgraft_fits = ::torchgraft::internal::check_version(torchgraft_declared);
  return std::get<0>(::torchgraft::internal::call<std::tuple<Tensor>>(
      torchgraft_declared, "torchgraft::depthwise_conv2d_weight_grad", output_grad, input, kernel_height, kernel_width, stride_height, stride_width, padding_top, padding_left, padding_bottom, padding_right, dilation_height, dilation_width, dtype, channels_last));
}

// torchgraft::depthwise_conv3d(Tensor input, Tensor weight, Tensor? bias, int stride_depth, int stride_height, int stride_width, int padding_front, int padding_top, int padding_left, int padding_back, int padding_bottom, int padding_right, int dilation_depth, int dilation_height, int dilation_width) -> Tensor
inline Tensor depthwise_conv3d(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, int64_t stride_depth, int64_t stride_height, int64_t stride_width, int64_t padding_front, int64_t padding_top, int64_t padding_left, int64_t padding_back, int64_t padding_bottom, int64_t padding_right, int64_t dilation_depth, int64_t dilation_height, int64_t dilation_width) {
  static constexpr ::torchgraft::internal::Declaration torchgraft_declared{
      "torchgraft", "depthwise_conv3d",
      "Tensor, Tensor, Tensor?, int, int, int, int, int, int, int, int, int, int, int, int",
      "Tensor",
      "input weight bias stride_depth stride_height stride_width padding_front padding_top padding_left padding_back padding_bottom padding_right dilation_depth dilation_height dilation_width",
      "input float64 float32 float16 bfloat16;~weight float64 float32 float16 bfloat16;~bias float64 float32 float16 bfloat16",
      "..., M 1 _ _ _, M -> ..."};
  [[maybe_unused]] static const bool torchgraft_fits = ::torchgraft::internal::check_version(torchgraft_declared);
  return std::get<0>(::torchgraft::internal::call<std::tuple<Tensor>>(
      torchgraft_declared, "torchgraft::depthwise_conv3d", input, weight, bias, stride_depth, stride_height, stride_width, padding_front, padding_top, padding_left, padding_back, padding_bottom, padding_right, dilation_depth, dilation_height, dilation_width));
}

// torchgraft::depthwise_conv3d_input_grad(Tensor output_grad, Tensor weight, SymInt channels, SymInt depth, SymInt height, SymInt width, bool? channels_last, int stride_depth, int stride_height, int stride_width, int padding_front, int padding_top, int padding_left, int padding_back, int padding_bottom, int padding_right, int dilation_depth, int dilation_height, int dilation_width) -> Tensor
inline Tensor depthwise_conv3d_input_grad(const Tensor& output_grad, const Tensor& weight, int64_t channels, int64_t depth, int64_t height, int64_t width, const std::optional<bool>& channels_last, int64_t stride_depth, int64_t stride_height, int64_t stride_width, int64_t padding_front, int64_t padding_top, int64_t padding_left, int64_t padding_back, int64_t padding_bottom, int64_t padding_right, int64_t dilation_depth, int64_t dilation_height, int64_t dilation_width) {
  static constexpr ::torchgraft::internal::Declaration torchgraft_declared{
      "torchgraft", "depthwise_conv3d_input_grad",
      "Tensor, Tensor, int, int, int, int, bool?, int, int, int, int, int, int, int, int, int, int, int, int",
      "Tensor",
      "output_grad weight channels depth height width channels_last stride_depth stride_height stride_width padding_front padding_top padding_left padding_back padding_bottom padding_right dilation_depth dilation_height dilation_width",
      "output_grad float64 float32 float16 bfloat16;~weight float64 float32 float16 bfloat16",
      "N M _ _ _, M 1 _ _ _ -> N channels depth height width"};
  [[maybe_unused]] static const bool torchgraft_fits = ::torchgraft::internal::check_version(torchgraft_declared);
  return std::get<0>(::torchgraft::internal::call<std::tuple<Tensor>>(
      torchgraft_declared, "torchgraft::depthwise_conv3d_input_grad", output_grad, weight, channels, depth, height, width, channels_last, stride_depth, stride_height, stride_width, padding_front, padding_top, padding_left, padding_back, padding_bottom, padding_right, dilation_depth, dilation_height, dilation_width));
}

// torchgraft::depthwise_conv3d_weight_grad(Tensor output_grad, Tensor input, SymInt kernel_depth, SymInt kernel_height, SymInt kernel_width, int stride_depth, int stride_height, int stride_width, int padding_front, int padding_top, int padding_left, int padding_back, int padding_bottom, int padding_right, int dilation_depth, int dilation_height, int dilation_width, ScalarType? dtype=None, bool channels_last=False) -> Tensor
inline Tensor depthwise_conv3d_weight_grad(const Tensor& output_grad, const Tensor& input, int64_t kernel_depth, int64_t kernel_height, int64_t kernel_width, int64_t stride_depth, int64_t stride_height, int64_t stride_width, int64_t padding_front, int64_t padding_top, int64_t padding_left, int64_t padding_back, int64_t padding_bottom, int64_t padding_right, int64_t dilation_depth, int64_t dilation_height, int64_t dilation_width, const std::optional<ScalarType>& dtype = std::nullopt, bool channels_last = false) {
  static constexpr ::torchgraft::internal::Declaration torchgraft_declared{
      "torchgraft", "depthwise_conv3d_weight_grad",
      "Tensor, Tensor, int, int, int, int, int, int, int, int, int, int, int, int, int, int, int, ScalarType?, bool",
      "Tensor",
      "output_grad input kernel_depth kernel_height kernel_width stride_depth stride_height stride_width padding_front padding_top padding_left padding_back padding_bottom padding_right dilation_depth dilation_height dilation_width dtype channels_last",
      "output_grad float64 float32 float16 bfloat16;input float64 float32 float16 bfloat16",
      "N M _ _ _, N C D H W -> M 1 kernel_depth kernel_height kernel_width"};
  [[maybe_unused]] static const bool torchgraft_fits = ::torchgraft::internal::check_version(torchgraft_declared);
  return std::get<0>(::torchgraft::internal::call<std::tuple<Tensor>>(
      torchgraft_declared, "torchgraft::depthwise_conv3d_weight_grad", output_grad, input, kernel_depth, kernel_height, kernel_width, stride_depth, stride_height, stride_width, padding_front, padding_top, padding_left, padding_back, padding_bottom, padding_right, dilation_depth, dilation_height, dilation_width, dtype, channels_last));
}

// linear is not here: its best kernel is what PyTorch has, and a C++ program calls that.

// torchgraft::lltm(Tensor input, Tensor h0, Tensor c0, Tensor weight_ih, Tensor weight_hh, Tensor? bias, bool reverse, bool allow_tf32) -> (Tensor, Tensor, Tensor, Tensor, Tensor)
inline std::tuple<Tensor, Tensor, Tensor> lltm(const Tensor& input, const Tensor& h0, const Tensor& c0, const Tensor& weight_ih, const Tensor& weight_hh, const std::optional<Tensor>& bias, bool reverse, bool allow_tf32) {
  static constexpr ::torchgraft::internal::Declaration torchgraft_declared{
      "torchgraft", "lltm",
      "Tensor, Tensor, Tensor, Tensor, Tensor, Tensor?, bool, bool",
      "Tensor, Tensor, Tensor, Tensor, Tensor",
      "input h0 c0 weight_ih weight_hh bias reverse allow_tf32",
      "input float64 float32 float16 bfloat16;h0 float64 float32 float16 bfloat16;c0 float64 float32 float16 bfloat16;weight_ih float64 float32 float16 bfloat16;weight_hh float64 float32 float16 bfloat16;bias float64 float32 float16 bfloat16",
      "T B I, B S, B S, 3*S I, 3*S S, 3*S -> T B S, B S, B S, T B 3*S, T B S"};
  [[maybe_unused]] static const bool torchgraft_fits = ::torchgraft::internal::check_version(torchgraft_declared);
  auto torchgraft_results = ::torchgraft::internal::call<std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>>(
      torchgraft_declared, "torchgraft::lltm", input, h0, c0, weight_ih, weight_hh, bias, reverse, allow_tf32);
  return {std::move(std::get<0>(torchgraft_results)), std::move(std::get<1>(torchgraft_results)), std::move(std::get<2>(torchgraft_results))};
}

// torchgraft::lltm_cell(Tensor input, Tensor h, Tensor c, Tensor weight_ih, Tensor weight_hh, Tensor? bias) -> (Tensor, Tensor, Tensor)
inline std::tuple<Tensor, Tensor> lltm_cell(const Tensor& input, const Tensor& h, const Tensor& c, const Tensor& weight_ih, const Tensor& weight_hh, const std::optional<Tensor>& bias) {
  static constexpr ::torchgraft::internal::Declaration torchgraft_declared{
      "torchgraft", "lltm_cell",
      "Tensor, Tensor, Tensor, Tensor, Tensor, Tensor?",
      "Tensor, Tensor, Tensor",
      "input h c weight_ih weight_hh bias",
      "input float64 float32 float16 bfloat16;h float64 float32 float16 bfloat16;c float64 float32 float16 bfloat16;weight_ih float64 float32 float16 bfloat16;weight_hh float64 float32 float16 bfloat16;bias float64 float32 float16 bfloat16",
      "B I, B S, B S, 3*S I, 3*S S, 3*S -> B S, B S, B 3*S"};
  [[maybe_unused]] static const bool torchgraft_fits = ::torchgraft::internal::check_version(torchgraft_declared);
  auto torchgraft_results = ::torchgraft::internal::call<std::tuple<Tensor, Tensor, Tensor>>(
      torchgraft_declared, "torchgraft::lltm_cell", input, h, c, weight_ih, weight_hh, bias);
  return {std::move(std::get<0>(torchgraft_results)), std::move(std::get<1>(torchgraft_results))};
}

// torchgraft::lltm_cell_grads(Tensor input, Tensor h, Tensor c, Tensor weight_ih, Tensor weight_hh, Tensor activations, Tensor? h_grad, Tensor? c_grad, bool of_input, bool of_h, bool of_weight_ih, bool of_weight_hh, bool of_bias) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)
inline std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> lltm_cell_grads(const Tensor& input, const Tensor& h, const Tensor& c, const Tensor& weight_ih, const Tensor& weight_hh, const Tensor& activations, const std::optional<Tensor>& h_grad, const std::optional<Tensor>& c_grad, bool of_input, bool of_h, bool of_weight_ih, bool of_weight_hh, bool of_bias) {
  static constexpr ::torchgraft::internal::Declaration torchgraft_declared{
      "torchgraft", "lltm_cell_grads",
      "Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor?, Tensor?, bool, bool, bool, bool, bool",
      "Tensor, Tensor, Tensor, Tensor, Tensor, Tensor",
      "input h c weight_ih weight_hh activations h_grad c_grad of_input of_h of_weight_ih of_weight_hh of_bias",
      "input float64 float32 float16 bfloat16;h float64 float32 float16 bfloat16;c float64 float32 float16 bfloat16;weight_ih float64 float32 float16 bfloat16;weight_hh float64 float32 float16 bfloat16;~activations float64 float32 float16 bfloat16;h_grad float64 float32 float16 bfloat16;c_grad float64 float32 float16 bfloat16",
      "B I, B S, B S, 3*S I, 3*S S, B 3*S, B S, B S -> ..., ..., ..., ..., ..., ..."};
  [[maybe_unused]] static const bool torchgraft_fits = ::torchgraft::internal::check_version(torchgraft_declared);
  return ::torchgraft::internal::call<std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>>(
      torchgraft_declared, "torchgraft::lltm_cell_grads", input, h, c, weight_ih, weight_hh, activations, h_grad, c_grad, of_input, of_h, of_weight_ih, of_weight_hh, of_bias);
}

// torchgraft::lltm_grads(Tensor input, Tensor h0, Tensor weight_ih, Tensor weight_hh, Tensor activations, Tensor cells, Tensor? output_grad, Tensor? h_n_grad, Tensor? c_n_grad, bool reverse, bool allow_tf32, bool of_input, bool of_h0, bool of_weight_ih, bool of_weight_hh, bool of_bias) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)
inline std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> lltm_grads(const Tensor& input, const Tensor& h0, const Tensor& weight_ih, const Tensor& weight_hh, const Tensor& activations, const Tensor& cells, const std::optional<Tensor>& output_grad, const std::optional<Tensor>& h_n_grad, const std::optional<Tensor>& c_n_grad, bool reverse, bool allow_tf32, bool of_input, bool of_h0, bool of_weight_ih, bool of_weight_hh, bool of_bias) {
  static constexpr ::torchgraft::internal::Declaration torchgraft_declared{
      "torchgraft", "lltm_grads",
      "Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor?, Tensor?, Tensor?, bool, bool, bool, bool, bool, bool, bool",
      "Tensor, Tensor, Tensor, Tensor, Tensor, Tensor",
      "input h0 weight_ih weight_hh activations cells output_grad h_n_grad c_n_grad reverse allow_tf32 of_input of_h0 of_weight_ih of_weight_hh of_bias",
      "input float64 float32 float16 bfloat16;h0 float64 float32 float16 bfloat16;weight_ih float64 float32 float16 bfloat16;weight_hh float64 float32 float16 bfloat16;~activations float64 float32 float16 bfloat16;~cells float64 float32 float16 bfloat16;output_grad float64 float32 float16 bfloat16;h_n_grad float64 float32 float16 bfloat16;c_n_grad float64 float32 float16 bfloat16",
      "T B I, B S, 3*S I, 3*S S, T B 3*S, T B S, T B S, B S, B S -> ..., ..., ..., ..., ..., ..."};
  [[maybe_unused]] static const bool torchgraft_fits = ::torchgraft::internal::check_version(torchgraft_declared);
  return ::torchgraft::internal::call<std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>>(
      torchgraft_declared, "torchgraft::lltm_grads", input, h0, weight_ih, weight_hh, activations, cells, output_grad, h_n_grad, c_n_grad, reverse, allow_tf32, of_input, of_h0, of_weight_ih, of_weight_hh, of_bias);
}

// torchgraft::mul_constant(Tensor input, float constant) -> Tensor
inline Tensor mul_constant(const Tensor& input, double constant) {
  static constexpr ::torchgraft::internal::Declaration torchgraft_declared{
      "torchgraft", "mul_constant",
      "Tensor, float",
      "Tensor",
      "input constant",
      "input float64 float32 float16 bfloat16",
      ""};
  [[maybe_unused]] static const bool torchgraft_fits = ::torchgraft::internal::check_version(torchgraft_declared);
  return std::get<0>(::torchgraft::internal::call<std::tuple<Tensor>>(
      torchgraft_declared, "torchgraft::mul_constant", input, constant));
}

// torchgraft::shift(Tensor input, Tensor x_offset, Tensor y_offset, int stride) -> Tensor
inline Tensor shift(const Tensor& input, const Tensor& x_offset, const Tensor& y_offset, int64_t stride) {
  static constexpr ::torchgraft::internal::Declaration torchgraft_declared{
      "torchgraft", "shift",
      "Tensor, Tensor, Tensor, int",
      "Tensor",
      "input x_offset y_offset stride",
      "input float64 float32 float16 bfloat16;x_offset float64 float32 float16 bfloat16;y_offset float64 float32 float16 bfloat16",
      "N C T V, C, C -> N C _ V"};
  [[maybe_unused]] static const bool torchgraft_fits = ::torchgraft::internal::check_version(torchgraft_declared);
  return std::get<0>(::torchgraft::internal::call<std::tuple<Tensor>>(
      torchgraft_declared, "torchgraft::shift", input, x_offset, y_offset, stride));
}

// torchgraft::shift_grads(Tensor output_grad, Tensor input, Tensor x_offset, Tensor y_offset, int stride) -> (Tensor input_grad, Tensor x_offset_grad, Tensor y_offset_grad)
inline std::tuple<Tensor, Tensor, Tensor> shift_grads(const Tensor& output_grad, const Tensor& input, const Tensor& x_offset, const Tensor& y_offset, int64_t stride) {
  static constexpr ::torchgraft::internal::Declaration torchgraft_declared{
      "torchgraft", "shift_grads",
      "Tensor, Tensor, Tensor, Tensor, int",
      "Tensor, Tensor, Tensor",
      "output_grad input x_offset y_offset stride",
      "output_grad float64 float32 float16 bfloat16;input float64 float32 float16 bfloat16;x_offset float64 float32 float16 bfloat16;y_offset float64 float32 float16 bfloat16",
      "N C _ V, N C T V, C, C -> N C T V, C, C"};
  [[maybe_unused]] static const bool torchgraft_fits = ::torchgraft::internal::check_version(torchgraft_declared);
  return ::torchgraft::internal::call<std::tuple<Tensor, Tensor, Tensor>>(
      torchgraft_declared, "torchgraft::shift_grads", output_grad, input, x_offset, y_offset, stride);
}

// torchgraft::shift_input_grad(Tensor output_grad, Tensor x_offset, Tensor y_offset, SymInt height, bool channels_last, int stride) -> Tensor
inline Tensor shift_input_grad(const Tensor& output_grad, const Tensor& x_offset, const Tensor& y_offset, int64_t height, bool channels_last, int64_t stride) {
  static constexpr ::torchgraft::internal::Declaration torchgraft_declared{
      "torchgraft", "shift_input_grad",
      "Tensor, Tensor, Tensor, int, bool, int",
      "Tensor",
      "output_grad x_offset y_offset height channels_last stride",
      "output_grad float64 float32 float16 bfloat16;x_offset float64 float32 float16 bfloat16;y_offset float64 float32 float16 bfloat16",
      "N C _ V, C, C -> N C height V"};
  [[maybe_unused]] static const bool torchgraft_fits = ::torchgraft::internal::check_version(torchgraft_declared);
  return std::get<0>(::torchgraft::internal::call<std::tuple<Tensor>>(
      torchgraft_declared, "torchgraft::shift_input_grad", output_grad, x_offset, y_offset, height, channels_last, stride));
}

// torchgraft::shift_offset_grad(Tensor output_grad, Tensor input, Tensor x_offset, Tensor y_offset, int stride) -> (Tensor x_offset_grad, Tensor y_offset_grad)
inline std::tuple<Tensor, Tensor> shift_offset_grad(const Tensor& output_grad, const Tensor& input, const Tensor& x_offset, const Tensor& y_offset, int64_t stride) {
  static constexpr ::torchgraft::internal::Declaration torchgraft_declared{
      "torchgraft", "shift_offset_grad",
      "Tensor, Tensor, Tensor, Tensor, int",
      "Tensor, Tensor",
      "output_grad input x_offset y_offset stride",
      "output_grad float64 float32 float16 bfloat16;input float64 float32 float16 bfloat16;x_offset float64 float32 float16 bfloat16;y_offset float64 float32 float16 bfloat16",
      "N C _ V, N C T V, C, C -> C, C"};
  [[maybe_unused]] static const bool torchgraft_fits = ::torchgraft::internal::check_version(torchgraft_declared);
  return ::torchgraft::internal::call<std::tuple<Tensor, Tensor>>(
      torchgraft_declared, "torchgraft::shift_offset_grad", output_grad, input, x_offset, y_offset, stride);
}

}  // namespace torchgraft
