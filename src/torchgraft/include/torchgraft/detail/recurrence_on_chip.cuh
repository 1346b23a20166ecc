// Whether the steps of a recurrence are one kernel, how many clusters of how many rows it has, and its
// launch.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

#include "../device.cuh"
#include "../numbers.h"
#include "recurrence_on_chip_backward.cuh"
#include "recurrence_on_chip_forward.cuh"

namespace torchgraft::recurrence {

// How a launch shares out units and rows.
struct Clusters {
  int blocks;  // of a cluster
  int rows;    // of a cluster
  int64_t count;
};

class ClusterConfig {
 public:
  ClusterConfig(const Clusters& clusters, int64_t shared_bytes, cudaStream_t stream = nullptr) {
    attribute_.id = cudaLaunchAttributeClusterDimension;
    attribute_.val.clusterDim.x = static_cast<unsigned>(clusters.blocks);
    attribute_.val.clusterDim.y = 1;
    attribute_.val.clusterDim.z = 1;
    config_.gridDim = dim3(static_cast<unsigned>(clusters.count * clusters.blocks));
    config_.blockDim = dim3(kThreads);
    config_.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
    config_.stream = stream;
    config_.attrs = &attribute_;
    config_.numAttrs = clusters.blocks > 1 ? 1 : 0;
  }
  ClusterConfig(const ClusterConfig&) = delete;
  ClusterConfig& operator=(const ClusterConfig&) = delete;

  cudaLaunchConfig_t& operator*() { return config_; }

 private:
  cudaLaunchAttribute attribute_ = {};
  cudaLaunchConfig_t config_ = {};
};

// Whether the current device takes a kernel with clusters of so many blocks, and so much shared memory in
// each.
inline bool allow_clusters(const void* kernel, int blocks, int64_t shared_bytes) {
  constexpr int kPortableBlocks = 8;
  return allow_shared_memory(kernel, shared_bytes) &&
         (blocks <= kPortableBlocks ||
          set_attribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
}

// How many clusters of a kernel the current device runs at a time; zero if it cannot run one.
inline int64_t resident_clusters(const void* kernel, int blocks, int64_t shared_bytes) {
  static std::map<std::tuple<int, const void*, int, int64_t>, int64_t> known;
  static std::mutex mutex;
  const std::tuple key = {internal::current_device_index(), kernel, blocks, shared_bytes};
  return internal::made_once(known, mutex, key, [&]() -> int64_t {
    const int64_t multiprocessors = current_device().multiprocessors;
    if (!allow_clusters(kernel, blocks, shared_bytes) || multiprocessors < blocks) return 0;
    if (blocks == 1) return multiprocessors;
    int resident = 0;
    ClusterConfig config({blocks, 0, multiprocessors / blocks}, shared_bytes);
    if (cudaOccupancyMaxActiveClusters(&resident, kernel, &*config) == cudaSuccess) return resident;
    cudaGetLastError();
    return 0;
  });
}

// The clusters with the fewest rows of which all run at a time; or as many rows as have room, and some
// clusters wait for others to end. Nothing if the device or the weights are not for this.
template <typename Shape>
std::optional<Clusters> find_clusters(const void* kernel, const Sizes& sizes) {
  constexpr int64_t kMostSize = 1 << 24;  // of what is indexed within a step
  const int64_t blocks = ceil_divide<int64_t>(sizes.units, kUnits);
  const Device& device = current_device();
  if (sizes.batch == 0 || blocks > Shape::kMostBlocks || sizes.batch * sizes.units > kMostSize ||
      !device.has_clusters || architecture_of(kernel) < 900) {
    return std::nullopt;
  }
  int64_t most = 0;
  while (most < sizes.batch && Shape::shared_bytes(most + 1, blocks) <= device.shared_of_block) ++most;
  if (most == 0) return std::nullopt;
  const int64_t resident =
      resident_clusters(kernel, static_cast<int>(blocks), Shape::shared_bytes(most, blocks));
  if (resident == 0) return std::nullopt;
  const int64_t rows = std::min(most, ceil_divide(sizes.batch, resident));
  return Clusters{static_cast<int>(blocks), static_cast<int>(rows), ceil_divide(sizes.batch, rows)};
}

template <typename Shape, typename Pass>
void launch_clusters(void (*kernel)(Pass, int, int), const Clusters& clusters, const Pass& pass,
                     cudaStream_t stream) {
  const int64_t shared_bytes = Shape::shared_bytes(clusters.rows, clusters.blocks);
  TORCHGRAFT_CHECK(allow_clusters(reinterpret_cast<const void*>(kernel), clusters.blocks, shared_bytes),
                   "a recurrence: a kernel was chosen that this device does not take");
  ClusterConfig config(clusters, shared_bytes, stream);
  cudaLaunchKernelEx(&*config, kernel, pass, clusters.blocks, clusters.rows);
  check_launch("a recurrence");
}

// A number as one half, or as two if there is a place for the lower one.
__device__ __forceinline__ void store_halves(float number, int64_t place, Half* high, Half* low) {
  if (low == nullptr) {
    high[place] = rounded_to_no_zero<Half>(number);
  } else {
    const Split<Half> split(number);
    high[place] = split.high;
    low[place] = split.low;
  }
}

// A block a row of weight_hh: halves, divided by the row's power of two.
static __global__ void __launch_bounds__(kThreads)
    scale_rows(const float* weight, Half* high, Half* low, float* scales, int units, int padded) {
  const int row = static_cast<int>(blockIdx.x) % padded;
  const int gate = static_cast<int>(blockIdx.x) / padded;
  const float* from = weight + (int64_t{gate} * units + row) * units;
  const int count = row < units ? units : 0;
  float largest = 0.0f;
  for (int k = static_cast<int>(threadIdx.x); k < count; k += kThreads) {
    largest = fmaxf(largest, finite_magnitude(from[k]));
  }
  const float factor = power_to_fill_half(largest_of_block(largest));
  if (threadIdx.x == 0) scales[blockIdx.x] = 1.0f / factor;
  for (int k = static_cast<int>(threadIdx.x); k < padded; k += kThreads) {
    store_halves(k < count ? from[k] * factor : 0.0f, int64_t{blockIdx.x} * padded + k, high, low);
  }
}

// weight_hh as kernels on chip read it, and the memory that it lies in.
struct PreparedWeight {
  Tensor elements;
  Tensor scales;
  ScaledWeight view;
};

inline PreparedWeight prepared_weight(const Tensor& weight, int gates, Weights weights, cudaStream_t stream) {
  const int units = static_cast<int>(weight.size(1));
  const int padded = round_up(units, 8);
  const int64_t size = int64_t{gates} * padded * padded;
  Tensor elements = empty_contiguous({static_cast<int>(weights), size}, weight, aoti_torch_dtype_float16());
  Tensor scales = empty_contiguous({gates * padded}, weight);
  const float* const from = data_of<float>(weight);
  Half* const high = static_cast<Half*>(elements.mutable_data_ptr());
  Half* const low = weights == Weights::in_two_halves ? high + size : nullptr;
  float* const scales_to = mutable_data_of<float>(scales);
  const auto blocks = static_cast<unsigned>(gates * padded);
  scale_rows<<<blocks, kThreads, 0, stream>>>(from, high, low, scales_to, units, padded);
  check_launch("a recurrence");
  return {elements, scales, {{high, low}, scales_to, padded}};
}

// Sets the members that both passes have.
template <typename Cell, typename Pass, typename Steps>
void set_given(Pass& pass, const Steps& steps, const PreparedWeight& weight) {
  pass.weight = weight.view;
  for (int s = 0; s < Cell::kStates; ++s) pass.initial[s] = data_of<float>(steps.initial[s]);
  for (int p = 0; p < Cell::kParameters; ++p) pass.parameters[p] = data_of<float>(steps.parameters[p]);
  pass.steps = steps.sizes.steps;
  pass.batch = steps.sizes.batch;
  pass.units = steps.sizes.units;
  pass.reverse = steps.reverse;
}

template <typename Cell, Weights kWeights>
bool run_on_chip(ForwardSteps& steps, cudaStream_t stream) {
  using Shape = ForwardShape<Cell, kWeights>;
  void (*const kernel)(ForwardPass<Cell>, int, int) = recurrence_forward<Cell, kWeights>;
  const auto clusters = find_clusters<Shape>(reinterpret_cast<const void*>(kernel), steps.sizes);
  if (!clusters.has_value()) return false;
  const PreparedWeight weight = prepared_weight(steps.weight_hh, Cell::kGates, kWeights, stream);
  ForwardPass<Cell> pass = {};
  set_given<Cell>(pass, steps, weight);
  pass.gates = mutable_data_of<float>(steps.gates);
  pass.bias = steps.bias.has_value() ? data_of<float>(*steps.bias) : nullptr;
  pass.message_gates = mutable_data_of<float>(steps.message_gates);
  pass.message_bias = data_of<float>(steps.message_bias);
  pass.first_message = data_of<float>(steps.message);
  pass.states = mutable_data_of<float>(steps.states);
  pass.output = mutable_data_of<float>(steps.output);
  launch_clusters<Shape>(kernel, *clusters, pass, stream);
  return true;
}

// Whether the products at the end are made in float, as they are so few that launches cost more. What two
// bfloat16 lose of a number shows in a sum of few terms; of many terms, such errors mostly cancel.
template <typename Cell>
bool has_few_products(const Sizes& sizes) {
  constexpr int64_t kFew = int64_t{1} << 26;
  const int64_t gates = Cell::kGates * sizes.units;
  return sizes.steps * sizes.batch * gates * std::max(sizes.units, sizes.features) <= kFew;
}

// A place for what the steps back leave for products, (steps, batch, columns): in float, or as pairs of
// bfloat16, which tensor cores multiply.
inline Kept place_for(const BackwardSteps& steps, int64_t columns, bool in_float,
                      std::optional<Factor>& factor) {
  const int64_t rows = steps.sizes.steps * steps.sizes.batch;
  if (in_float) {
    factor = Factor{empty_contiguous({rows, columns}, steps.gates)};
    return {mutable_data_of<float>(factor->matrix), nullptr, nullptr};
  }
  factor = empty_factor(rows, columns, steps.gates);
  return {nullptr, mutable_data_of<BFloat16>(factor->matrix), mutable_data_of<BFloat16>(*factor->rest)};
}

template <typename Cell, Weights kWeights>
bool run_on_chip(BackwardSteps& steps, cudaStream_t stream) {
  using Shape = BackwardShape<Cell, kWeights>;
  void (*const kernel)(BackwardPass<Cell>, int, int) = recurrence_backward<Cell, kWeights>;
  const auto clusters = find_clusters<Shape>(reinterpret_cast<const void*>(kernel), steps.sizes);
  if (!clusters.has_value()) return false;
  const PreparedWeight weight = prepared_weight(steps.weight_hh, Cell::kGates, kWeights, stream);
  BackwardPass<Cell> pass = {};
  set_given<Cell>(pass, steps, weight);
  pass.gates = data_of<float>(steps.gates);
  pass.message_gates = data_of<float>(steps.message_gates);
  pass.states = data_of<float>(steps.states);
  pass.output_grad = steps.output_grad.has_value() ? data_of<float>(*steps.output_grad) : nullptr;
  for (int s = 0; s < Cell::kStates; ++s) {
    pass.state_grads[s] = mutable_data_of<float>(steps.state_grads[s]);
  }
  for (int p = 0; p < Cell::kParameters; ++p) {
    pass.parameter_grads[p] = mutable_data_of<float>(steps.sums[p]);
  }
  const int64_t width = Cell::kGates * steps.sizes.units;
  const bool in_float = kWeights == Weights::in_two_halves || has_few_products<Cell>(steps.sizes);
  pass.gates_grad = place_for(steps, width, in_float, steps.gates_grad);
  pass.messages = place_for(steps, steps.sizes.units, in_float, steps.messages);
  if constexpr (Cell::kGatesApart) {
    pass.message_gates_grad = place_for(steps, width, in_float, steps.message_gates_grad);
  } else {
    steps.message_gates_grad = steps.gates_grad;
  }
  pass.message_grad = mutable_data_of<float>(steps.message_grad);
  const auto sums = [&] { return empty_contiguous({steps.sizes.batch, width}, steps.gates); };
  steps.bias_sums = sums();
  pass.bias_sums[0] = mutable_data_of<float>(*steps.bias_sums);
  if constexpr (Cell::kGatesApart) {
    steps.message_bias_sums = sums();
    pass.bias_sums[1] = mutable_data_of<float>(*steps.message_bias_sums);
  }
  launch_clusters<Shape>(kernel, *clusters, pass, stream);
  return true;
}

template <typename Cell, Weights kWeights, typename Steps>
bool run_if_it_fits(Steps& steps, cudaStream_t stream) {
  if constexpr (most_blocks(Cell::kGates * static_cast<int>(kWeights)) > 0) {
    return run_on_chip<Cell, kWeights>(steps, stream);
  } else {
    return false;
  }
}

// Whether the steps were run, all by one kernel.
template <typename Cell, typename Steps>
bool run_at_once(Steps& steps, cudaStream_t stream) {
  return has_two_bytes(steps.dtype) ? run_if_it_fits<Cell, Weights::in_one_half>(steps, stream)
                                    : run_if_it_fits<Cell, Weights::in_two_halves>(steps, stream);
}

}  // namespace torchgraft::recurrence
