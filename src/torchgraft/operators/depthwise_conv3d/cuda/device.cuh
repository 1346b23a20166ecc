// CUDA as a device of the host functions of volumes (depthwise_conv2d/host.h): the choice of a kernel, and
// its launch. Kernels take contiguous volumes.
#pragma once

#include <torchgraft/cuda.cuh>
#include <torchgraft/relayout.cuh>
#include <torchgraft/sums.cuh>

#include <optional>
#include <utility>

#include "../../depthwise_conv2d/host.h"
#include "kernels.h"

namespace torchgraft::depthwise {

class CudaVolumes {
 public:
  explicit CudaVolumes(const Tensor& tensor) : scope_(tensor) {}

  // The forward pass and the input gradient of a convolution take the same layout.
  template <typename T>
  Layout layout(const Geometry& geometry, Layout asked) const {
    const bool as_given = volumes::supports_channels_last(
        problem_of<T>(geometry, /*transposed=*/true, asked == Layout::channels_last));
    return as_given ? asked : Layout::contiguous;
  }
  template <typename T>
  std::pair<Layout, int64_t> arrange_weight_grad(const Geometry& geometry, Layout asked) const {
    const bool as_given = volumes::supports_channels_last_weight_grad(
        problem_of<T>(geometry, /*transposed=*/false, asked == Layout::channels_last));
    return {as_given ? asked : Layout::contiguous, geometry.channels};
  }
  Tensor to_layout(const Tensor& tensor, Layout layout) const {
    return torchgraft::to_layout(tensor, layout, scope_.stream());
  }
  Tensor relayout(const Tensor& tensor, Layout layout) const {
    return torchgraft::relayout(tensor, layout, scope_.stream());
  }
  Tensor with_channels(const Tensor& tensor, int64_t) const { return tensor; }

  // Kernels for halves round float32 weights themselves.
  template <typename T>
  Tensor readable(const Tensor& weight, const char* name) const {
    return is_wide<T>(weight) ? to_contiguous(weight, name) : rounded_to<T>(weight, name);
  }

  template <typename T>
  void forward(const T* input, const Tensor& weight, const std::optional<Tensor>& bias, T* output,
               const Geometry& geometry, Layout layout) const {
    correlate<T>({input, numbers_of<T>(weight), bias ? numbers_of<T>(*bias) : cuda::Rounded<T>(), output,
                  geometry, /*transposed=*/false, scope_.stream()},
                 layout);
  }
  template <typename T>
  void input_grad(const T* output_grad, const Tensor& weight, T* input_grad, const Geometry& geometry,
                  Layout layout) const {
    correlate<T>({output_grad, numbers_of<T>(weight), cuda::Rounded<T>(), input_grad, geometry,
                  /*transposed=*/true, scope_.stream()},
                 layout);
  }
  template <typename T, typename R>
  void weight_grad(const T* output_grad, const T* input, R* weight_grad, const Geometry& geometry,
                   Layout layout, const Tensor& like) const {
    const volumes::WeightGrad<T> pass = {output_grad, input, geometry, like, scope_.stream()};
    const volumes::Partials partials = partials_of(pass, layout);
    sum_partials<R>(data_of<accumulate_t<T>>(partials.memory), partials.parts,
                    geometry.output_channels() * geometry.taps(), weight_grad, scope_.stream(), pass.kName);
  }

 protected:
  template <typename T>
  static volumes::Problem problem_of(const Geometry& geometry, bool transposed, bool channels_last) {
    return {geometry, transposed, channels_last, static_cast<int>(sizeof(T))};
  }

 private:
  template <typename T>
  static void correlate(const volumes::Correlation<T>& pass, Layout layout) {
    const volumes::Problem problem =
        problem_of<T>(pass.geometry, pass.transposed, layout == Layout::channels_last);
    const volumes::Kernel kernel = pass.transposed ? choose(volumes::kInputGradRules, problem).kernel
                                                   : choose(volumes::kCorrelationRules, problem).kernel;
    if constexpr (!std::is_same_v<T, double>) {
      if (kernel == volumes::Kernel::channels_last) return volumes::launch_channels_last(pass);
      if (kernel == volumes::Kernel::sweep) return volumes::launch_sweep(pass);
      if (kernel == volumes::Kernel::phases) return volumes::launch_phases(pass);
      if (kernel == volumes::Kernel::channels_last_phases) {
        return volumes::launch_channels_last_phases(pass);
      }
      if (kernel == volumes::Kernel::runs) return volumes::launch_runs(pass);
    }
    volumes::launch_any(pass);
  }
  template <typename T>
  static volumes::Partials partials_of(const volumes::WeightGrad<T>& pass, Layout layout) {
    const volumes::Problem problem =
        problem_of<T>(pass.geometry, /*transposed=*/false, layout == Layout::channels_last);
    const volumes::Kernel kernel = choose(volumes::kWeightGradRules, problem).kernel;
    if constexpr (!std::is_same_v<T, double>) {
      if (kernel == volumes::Kernel::channels_last) return volumes::launch_channels_last_weight_grad(pass);
      if (kernel == volumes::Kernel::sweep) return volumes::launch_sweep_weight_grad(pass);
      if (kernel == volumes::Kernel::runs) return volumes::launch_runs_weight_grad(pass);
    }
    return volumes::launch_any_weight_grad(pass);
  }

  template <typename T>
  static bool is_wide(const Tensor& weight) {
    return sizeof(T) == 2 && weight.scalar_type() == ScalarType::Float;
  }
  template <typename T>
  static cuda::Rounded<T> numbers_of(const Tensor& weight) {
    return {weight.const_data_ptr(), is_wide<T>(weight)};
  }

  Launch scope_;
};

// The same for input gradients alone: with a stride, more of them than of forward passes have kernels that
// take channels_last_3d as it is.
class CudaInputGradVolumes : public CudaVolumes {
 public:
  using CudaVolumes::CudaVolumes;

  template <typename T>
  Layout layout(const Geometry& geometry, Layout asked) const {
    const bool as_given = volumes::supports_channels_last_phases(
        problem_of<T>(geometry, /*transposed=*/true, asked == Layout::channels_last));
    return as_given ? asked : CudaVolumes::layout<T>(geometry, asked);
  }
};

}  // namespace torchgraft::depthwise
