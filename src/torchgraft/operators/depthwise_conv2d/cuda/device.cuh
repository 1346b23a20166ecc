// CUDA as a device of the host functions (host.h), with the kernels that lie in rooms of this folder by
// technique.
#pragma once

#include <torchgraft/cuda.cuh>
#include <torchgraft/relayout.cuh>

#include "../../depthwise_conv3d/cuda/device.cuh"
#include "../host.h"
#include "dispatch.h"
#include "policy.h"

namespace torchgraft::depthwise {

class Cuda {
 public:
  // These kernels have two directions.
  using Volumes = CudaVolumes;

  explicit Cuda(const Tensor& tensor) : scope_(tensor) {}

  template <typename T>
  Layout layout(const Geometry& geometry, Layout asked) const {
    return cuda::planes_pay(geometry, sizeof(T)) ? Layout::contiguous : asked;
  }
  template <typename T>
  cuda::Arrangement arrange_weight_grad(const Geometry& geometry, Layout asked) const {
    return cuda::arrange_weight_grad<T>(geometry, asked);
  }
  Tensor to_layout(const Tensor& tensor, Layout layout) const {
    return torchgraft::to_layout(tensor, layout, scope_.stream());
  }
  Tensor with_channels(const Tensor& tensor, int64_t channels) const {
    return channels == tensor.size(1) ? tensor : torchgraft::with_channels(tensor, channels, scope_.stream());
  }
  Tensor relayout(const Tensor& tensor, Layout layout) const {
    return torchgraft::relayout(tensor, layout, scope_.stream());
  }

  // Kernels for halves round float32 ones themselves.
  template <typename T>
  Tensor readable(const Tensor& weight, const char* name) const {
    return is_wide<T>(weight) ? to_contiguous(weight, name) : rounded_to<T>(weight, name);
  }

  template <typename T>
  bool turns_results(const Geometry& geometry, Layout layout) const {
    return cuda::turns_results<T>(geometry, layout);
  }
  template <typename T>
  void forward(const T* input, const Tensor& weight, const std::optional<Tensor>& bias, T* output,
               const Geometry& geometry, Layout layout) const {
    cuda::correlate<T>(forward_pass(input, weight, bias, output, geometry, layout));
  }
  template <typename T>
  void forward_turned(const T* input, const Tensor& weight, const std::optional<Tensor>& bias, T* output,
                      const Geometry& geometry, Layout layout) const {
    cuda::correlate_turned<T>(forward_pass(input, weight, bias, output, geometry, layout));
  }
  template <typename T>
  void input_grad(const T* output_grad, const Tensor& weight, T* input_grad, const Geometry& geometry,
                  Layout layout) const {
    cuda::correlate<T>({output_grad, numbers_of<T>(weight), cuda::Rounded<T>(), input_grad, geometry, layout,
                        /*transposed=*/true, scope_.stream()});
  }
  template <typename T, typename R>
  void weight_grad(const T* output_grad, const T* input, R* weight_grad, const Geometry& geometry,
                   Layout layout, const Tensor& like) const {
    using A = accumulate_t<T>;
    const int64_t weights = geometry.output_channels() * geometry.taps();
    const int64_t chunks = cuda::most_chunks(geometry, layout == Layout::channels_last);
    const Tensor workspace = empty_workspace<A>(chunks * weights, like);
    cuda::GradOfWeight<T> result = {};
    if constexpr (std::is_same_v<R, T>) {
      result.rounded = weight_grad;
    } else {
      result.sums = weight_grad;
    }
    cuda::sum_weight_grad<T>({output_grad, input, result, static_cast<A*>(workspace.mutable_data_ptr()),
                              geometry, layout, scope_.stream()});
  }

 private:
  template <typename T>
  static bool is_wide(const Tensor& weight) {
    return sizeof(T) == 2 && weight.scalar_type() == ScalarType::Float;
  }
  template <typename T>
  cuda::Correlation<T> forward_pass(const T* input, const Tensor& weight, const std::optional<Tensor>& bias,
                                    T* output, const Geometry& geometry, Layout layout) const {
    return {input,
            numbers_of<T>(weight),
            bias ? numbers_of<T>(*bias) : cuda::Rounded<T>(),
            output,
            geometry,
            layout,
            /*transposed=*/false,
            scope_.stream()};
  }
  template <typename T>
  static cuda::Rounded<T> numbers_of(const Tensor& weight) {
    return {weight.const_data_ptr(), is_wide<T>(weight)};
  }

  Launch scope_;
};

}  // namespace torchgraft::depthwise
