// Which kernel serves a pass (policy.h), and its launch: one exhaustive switch for either table. A kernel
// that none of them launches is an error and never something else's work.

#include "dispatch.h"

#include "policy.h"
#include "problem.cuh"

namespace torchgraft::depthwise::cuda {
namespace {

// float64 is for checking gradients, not for speed.
template <typename T>
constexpr bool kIsFast = !std::is_same_v<T, double>;
template <typename T>
constexpr bool kIsHalf = sizeof(T) == 2;

}  // namespace

template <typename T>
void correlate(const Correlation<T>& pass) {
  const Problem problem = make_problem(pass);
  const Rule& rule = choose(problem);
  switch (rule.kernel) {
    case Kernel::gather_small:
      return launch_gather_small(pass);
    case Kernel::gather_large:
      return launch_gather_large(pass);
    case Kernel::gather_any:
      return launch_gather_any(pass);
    case Kernel::strips_correlate:
      if constexpr (kIsFast<T>) return launch_strips_correlate(pass);
      break;
    case Kernel::small_planes_correlate:
      if constexpr (kIsFast<T>) return launch_small_planes_correlate(pass);
      break;
    case Kernel::small_planes_whole:
      if constexpr (std::is_same_v<T, float>) return launch_small_planes_whole(pass);
      break;
    case Kernel::tiles_correlate:
      if constexpr (kIsFast<T>) return launch_tiles_correlate(pass);
      break;
    case Kernel::slide_correlate:
      if constexpr (kIsFast<T>) return launch_slide_correlate(pass);
      break;
    case Kernel::slide_columns:
      if constexpr (kIsFast<T>) return launch_slide_columns(pass);
      break;
    case Kernel::slide_window:
      if constexpr (kIsFast<T>) return launch_slide_window(pass);
      break;
    case Kernel::gather_columns:
      if constexpr (kIsFast<T>) return launch_gather_columns(pass);
      break;
    case Kernel::gather_columns_nhwc:
      if constexpr (kIsFast<T>) return launch_gather_columns_nhwc(pass);
      break;
    case Kernel::slide_correlate_mma:
      if constexpr (kIsHalf<T>) return launch_slide_correlate_mma(pass);
      break;
    case Kernel::bands_small:
      if constexpr (kIsHalf<T>) return launch_bands_small(pass);
      break;
    case Kernel::bands_batch:
      if constexpr (kIsHalf<T>) return launch_bands_batch(pass);
      break;
    case Kernel::bands_large:
      if constexpr (kIsHalf<T>) return launch_bands_large(pass);
      break;
    case Kernel::strips_weight_grad:
    case Kernel::small_planes_weight_grad:
    case Kernel::tiles_weight_grad:
    case Kernel::slide_columns_weight_grad:
    case Kernel::slide_weight_grad:
    case Kernel::slide_weight_grad_mma:
    case Kernel::diagonals_nchw:
    case Kernel::diagonals_nhwc:
    case Kernel::gather_weight_grad:
    case Kernel::gather_weight_grad_any:
      break;
  }
  fail("depthwise_conv2d: nothing launches ", rule.name, " for elements of ", sizeof(T), " bytes");
}

template <typename T>
void sum_weight_grad(const WeightGrad<T>& pass) {
  const Problem problem = make_problem<T>(pass.geometry, /*transposed=*/false, pass.layout,
                                          common_alignment(pass.output_grad, pass.input));
  const Rule& rule = choose_weight_grad(problem);
  switch (rule.kernel) {
    case Kernel::gather_weight_grad:
      return launch_gather_weight_grad(pass);
    case Kernel::gather_weight_grad_any:
      return launch_gather_weight_grad_any(pass);
    case Kernel::strips_weight_grad:
      if constexpr (kIsFast<T>) return launch_strips_weight_grad(pass);
      break;
    case Kernel::small_planes_weight_grad:
      if constexpr (kIsFast<T>) return launch_small_planes_weight_grad(pass);
      break;
    case Kernel::tiles_weight_grad:
      if constexpr (kIsFast<T>) return launch_tiles_weight_grad(pass);
      break;
    case Kernel::slide_columns_weight_grad:
      if constexpr (kIsFast<T>) return launch_slide_columns_weight_grad(pass);
      break;
    case Kernel::slide_weight_grad:
      if constexpr (kIsFast<T>) return launch_slide_weight_grad(pass);
      break;
    case Kernel::slide_weight_grad_mma:
      if constexpr (kIsHalf<T>) return launch_slide_weight_grad_mma(pass);
      break;
    case Kernel::diagonals_nchw:
      if constexpr (kIsHalf<T>) return launch_diagonals_nchw(pass);
      break;
    case Kernel::diagonals_nhwc:
      if constexpr (kIsHalf<T>) return launch_diagonals_nhwc(pass);
      break;
    case Kernel::strips_correlate:
    case Kernel::small_planes_correlate:
    case Kernel::small_planes_whole:
    case Kernel::tiles_correlate:
    case Kernel::slide_correlate:
    case Kernel::slide_columns:
    case Kernel::slide_window:
    case Kernel::slide_correlate_mma:
    case Kernel::bands_small:
    case Kernel::bands_batch:
    case Kernel::bands_large:
    case Kernel::gather_columns:
    case Kernel::gather_columns_nhwc:
    case Kernel::gather_small:
    case Kernel::gather_large:
    case Kernel::gather_any:
      break;
  }
  fail("depthwise_conv2d: nothing launches ", rule.name, " for elements of ", sizeof(T), " bytes");
}

template <typename T>
Arrangement arrange_weight_grad(const Geometry& geometry, Layout asked) {
  constexpr int kAnyAlignment = 16;
  const Problem problem = make_problem<T>(geometry, /*transposed=*/false, asked, kAnyAlignment);
  switch (images_of_weight_grad(problem)) {
    case Images::planes:
      return {Layout::contiguous, geometry.channels};
    case Images::whole_channels:
      return {asked, with_whole_channels(problem).geometry.channels};
    case Images::as_given:
      break;
  }
  return {asked, geometry.channels};
}

template void correlate(const Correlation<double>&);
template void correlate(const Correlation<float>&);
template void correlate(const Correlation<Half>&);
template void correlate(const Correlation<BFloat16>&);
template void sum_weight_grad(const WeightGrad<double>&);
template void sum_weight_grad(const WeightGrad<float>&);
template void sum_weight_grad(const WeightGrad<Half>&);
template void sum_weight_grad(const WeightGrad<BFloat16>&);
template Arrangement arrange_weight_grad<double>(const Geometry&, Layout);
template Arrangement arrange_weight_grad<float>(const Geometry&, Layout);
template Arrangement arrange_weight_grad<Half>(const Geometry&, Layout);
template Arrangement arrange_weight_grad<BFloat16>(const Geometry&, Layout);

}  // namespace torchgraft::depthwise::cuda
