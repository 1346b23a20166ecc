// Strips of NCHW planes for the weight gradient: how planes are cut, and the launch. The kernel is in
// cuda_weight_grad_strips.cuh.

#include "cuda_weight_grad_strips.h"

#include "cuda_weight_grad_strips.cuh"

namespace torchgraft::depthwise::cuda {
namespace {

// Strips and how many chunks they are shared out to.
struct WeightGradPlan {
  int rows;  // of results of a stretch
  int64_t stretches, chunks;
};

// `strips` strips of whole height a channel. One chunk spares the second pass, which takes longer than a few
// dozen rows of a warp.
WeightGradPlan plan_weight_grad(const Geometry& geometry, int64_t strips, int strips_of_warp) {
  constexpr int64_t kWarps = kStripThreads / 32;
  constexpr int64_t kFewRows = 24;
  constexpr int64_t kBlocks = 132 * 16;
  const int rows = static_cast<int>(geometry.height.output);
  const auto rows_for = [&](int64_t groups) {
    const int64_t stretches = std::clamp<int64_t>(groups * strips_of_warp / strips, 1, std::max(rows / 4, 1));
    return ceil_divide(rows, static_cast<int>(stretches));
  };
  const int64_t rows_of_warp = ceil_divide<int64_t>(strips * rows, strips_of_warp * kWarps);
  WeightGradPlan plan = {rows, 1, 1};
  if (rows_of_warp <= kFewRows) {
    plan.rows = rows_for(kWarps);
  } else {
    const int64_t wanted = ceil_divide<int64_t>(kBlocks, geometry.output_channels());
    plan.rows = rows_for(wanted * kWarps);
    plan.chunks = std::min(wanted, most_chunks(geometry, Layout::contiguous));
  }
  plan.stretches = ceil_divide(rows, plan.rows);
  plan.chunks =
      std::clamp<int64_t>(ceil_divide(strips * plan.stretches, kWarps * strips_of_warp), 1, plan.chunks);
  return plan;
}

template <typename Strip>
void launch(const typename Strip::T* output_grad, const typename Strip::T* input,
            typename Strip::T* weight_grad, float* workspace, const Geometry& geometry, cudaStream_t stream) {
  using T = typename Strip::T;
  const Extent& height = geometry.height;
  const Extent& width = geometry.width;
  WeightGradStripParameters parameters = {};
  parameters.input_height = static_cast<int>(height.input);
  parameters.input_width = static_cast<int>(width.input);
  parameters.output_height = static_cast<int>(height.output);
  parameters.output_width = static_cast<int>(width.output);
  parameters.first_input_row = -static_cast<int>(height.padding);
  parameters.first_input_column = Strip::kReach - static_cast<int>(width.padding);
  parameters.channels = static_cast<int>(geometry.channels);
  parameters.multiplier = static_cast<int>(geometry.multiplier);
  parameters.output_channels = static_cast<int>(geometry.output_channels());

  constexpr int kLanes = 32;
  const int units = ceil_divide(parameters.output_width, Strip::kResults);
  const bool inputs_outside =
      parameters.first_input_column > 0 ||
      parameters.first_input_column + units * Strip::kSources < parameters.input_width;
  parameters.halo_lanes = inputs_outside || units > kLanes ? Strip::kHaloLanes : 0;
  const int segments = ceil_divide(units, kLanes - 2 * parameters.halo_lanes);
  parameters.units = ceil_divide(units, segments);
  const int lanes = parameters.units + 2 * parameters.halo_lanes;
  parameters.lanes = FastDivisor(lanes);
  parameters.segments = FastDivisor(segments);
  parameters.strips_of_warp = StripRing<Strip>::strips(lanes);

  const WeightGradPlan plan =
      plan_weight_grad(geometry, geometry.batch * segments, parameters.strips_of_warp);
  parameters.output_rows = plan.rows;
  parameters.stretches = FastDivisor(static_cast<int>(plan.stretches));
  parameters.strips = static_cast<int>(geometry.batch * segments * plan.stretches);
  parameters.strips_of_chunk = ceil_divide(parameters.strips, static_cast<int>(plan.chunks));
  const int chunks = ceil_divide(parameters.strips, parameters.strips_of_chunk);

  constexpr int kBytes = std::max(WeightGradRing<Strip>::kBytes,
                                  kStripThreads / 32 * Strip::kTaps * static_cast<int>(sizeof(float)));
  static_assert(kBytes <= 48 * 1024);
  const char* name = "depthwise_conv2d_weight_grad";
  const unsigned grid = grid_of(geometry.output_channels() * chunks, name);
  if (chunks == 1) {
    weight_grad_strips<Strip, T>
        <<<grid, kStripThreads, kBytes, stream>>>(output_grad, input, weight_grad, parameters);
    check_launch(name);
  } else {
    weight_grad_strips<Strip, float>
        <<<grid, kStripThreads, kBytes, stream>>>(output_grad, input, workspace, parameters);
    check_launch(name);
    launch_sum_chunks(workspace, weight_grad, geometry, chunks, stream);
  }
}

template <typename Strip>
bool is_strip_aligned(const void* output_grad, const void* input, const Extent& width) {
  using T = typename Strip::T;
  return width.padding == Strip::kReach && width.input % Strip::kSources == 0 &&
         width.output % Strip::kResults == 0 && is_aligned(input, Strip::kSources * sizeof(T)) &&
         is_aligned(output_grad, Strip::kResults * sizeof(T));
}

}  // namespace

template <typename T>
void launch_weight_grad_strips(const T* output_grad, const T* input, T* weight_grad, float* workspace,
                               const Geometry& geometry, cudaStream_t stream) {
  with_small_kernel(geometry, [&](auto kernel, auto stride) {
    using Wide = Strip<T, kernel, stride, false, 4 / stride, true>;
    using Narrow = Strip<T, kernel, stride, false, 2 / stride, true>;
    using Any = Strip<T, kernel, stride, false, 1, false>;
    if (is_strip_aligned<Wide>(output_grad, input, geometry.width)) {
      launch<Wide>(output_grad, input, weight_grad, workspace, geometry, stream);
    } else if (is_strip_aligned<Narrow>(output_grad, input, geometry.width)) {
      launch<Narrow>(output_grad, input, weight_grad, workspace, geometry, stream);
    } else {
      launch<Any>(output_grad, input, weight_grad, workspace, geometry, stream);
    }
  });
}

template void launch_weight_grad_strips(const float*, const float*, float*, float*, const Geometry&,
                                        cudaStream_t);
template void launch_weight_grad_strips(const Half*, const Half*, Half*, float*, const Geometry&,
                                        cudaStream_t);
template void launch_weight_grad_strips(const BFloat16*, const BFloat16*, BFloat16*, float*, const Geometry&,
                                        cudaStream_t);

}  // namespace torchgraft::depthwise::cuda
