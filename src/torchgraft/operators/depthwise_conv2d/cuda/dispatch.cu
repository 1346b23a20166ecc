// Chooses the kernel of a pass (policy.h) and launches it: one exhaustive switch for each table, made from
// its rows. If a table has a kernel without a launcher, the library does not link. If a kernel is chosen for
// elements that it is not compiled for, the call fails; no other kernel computes it instead.

#include "dispatch.h"

#include "policy.h"
#include "problem.cuh"

namespace torchgraft::depthwise::cuda {
namespace {

[[noreturn]] void fail_to_launch(const char* kernel, size_t element_bytes) {
  fail("depthwise_conv2d: nothing launches ", kernel, " for elements of ", element_bytes, " bytes");
}

}  // namespace

template <typename T>
void correlate(const Correlation<T>& pass) {
  const CorrelationRule& rule = choose(make_problem(pass));
  switch (rule.kernel) {
#define TORCHGRAFT_CASE(NAME, LAUNCH, ELEMENTS, ...)   \
  case CorrelationKernel::NAME:                        \
    if constexpr (ELEMENTS<T>) return LAUNCH<T>(pass); \
    break;
    TORCHGRAFT_DEPTHWISE_CORRELATIONS(TORCHGRAFT_CASE)
#undef TORCHGRAFT_CASE
  }
  fail_to_launch(rule.name, sizeof(T));
}

template <typename T>
bool turns_results(const Geometry& geometry, Layout layout) {
  const Problem problem = make_problem<T>(geometry, /*transposed=*/false, layout, kWholeAlignment);
  return problem.shared_bytes >= kTurnedSharedBytes &&
         internal::choose_untraced(kCorrelationRules, problem).kernel == CorrelationKernel::rows_nhwc;
}

template <typename T>
void correlate_turned(const Correlation<T>& pass) {
  const CorrelationRule& rule = choose(make_problem(pass));
  if constexpr (kFastElements<T>) {
    if (rule.kernel == CorrelationKernel::rows_nhwc) return launch_rows_nhwc_turned(pass);
  }
  fail_to_launch(rule.name, sizeof(T));
}

template <typename T>
void sum_weight_grad(const WeightGrad<T>& pass) {
  const WeightGradRule& rule = choose_weight_grad(make_problem<T>(
      pass.geometry, /*transposed=*/false, pass.layout, common_alignment(pass.output_grad, pass.input)));
  switch (rule.kernel) {
#define TORCHGRAFT_CASE(NAME, LAUNCH, ELEMENTS, ...)   \
  case WeightGradKernel::NAME:                         \
    if constexpr (ELEMENTS<T>) return LAUNCH<T>(pass); \
    break;
    TORCHGRAFT_DEPTHWISE_WEIGHT_GRADS(TORCHGRAFT_CASE)
#undef TORCHGRAFT_CASE
  }
  fail_to_launch(rule.name, sizeof(T));
}

template <typename T>
Arrangement arrange_weight_grad(const Geometry& geometry, Layout asked) {
  const Problem problem = make_problem<T>(geometry, /*transposed=*/false, asked, kWholeAlignment);
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
template bool turns_results<double>(const Geometry&, Layout);
template void correlate_turned(const Correlation<double>&);
template void sum_weight_grad(const WeightGrad<double>&);
template bool turns_results<float>(const Geometry&, Layout);
template void correlate_turned(const Correlation<float>&);
template void sum_weight_grad(const WeightGrad<float>&);
template bool turns_results<Half>(const Geometry&, Layout);
template void correlate_turned(const Correlation<Half>&);
template void sum_weight_grad(const WeightGrad<Half>&);
template bool turns_results<BFloat16>(const Geometry&, Layout);
template void correlate_turned(const Correlation<BFloat16>&);
template void sum_weight_grad(const WeightGrad<BFloat16>&);
template Arrangement arrange_weight_grad<double>(const Geometry&, Layout);
template Arrangement arrange_weight_grad<float>(const Geometry&, Layout);
template Arrangement arrange_weight_grad<Half>(const Geometry&, Layout);
template Arrangement arrange_weight_grad<BFloat16>(const Geometry&, Layout);

}  // namespace torchgraft::depthwise::cuda
