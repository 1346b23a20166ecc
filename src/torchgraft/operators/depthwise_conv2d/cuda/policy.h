// Which kernel computes a convolution on CUDA: the first row of a table (kernel_table.h) whose kernel
// supports the problem (supports.h) and pays for it. Here are the conditions under which kernels pay; the
// sizes that they compare with, and why, are in thresholds.h. How a kernel works, and what it reaches, is in
// its own file.
#pragma once

#include <torchgraft/choice.h>

#include "kernel_table.h"
#include "supports.h"
#include "thresholds.h"

namespace torchgraft::depthwise::cuda {

// A threshold for the whole of an H200, as the same share of the device of a problem.
constexpr Threshold share_of_device(const Problem& problem, const Threshold& on_h200) {
  return on_h200.times(problem.multiprocessors).per(kMultiprocessorsOfH200);
}

inline bool is_odd(int64_t number) { return number % 2 != 0; }

// Whether each phase of a stride has taps enough for products.
inline bool phases_have_taps(const Geometry& geometry) {
  return std::max(ceil_divide(geometry.height.kernel, geometry.height.stride),
                  ceil_divide(geometry.width.kernel, geometry.width.stride)) >= kTapsOfOnePhase;
}

// Whether it pays to bring images into NCHW first: the kernel is so large that arithmetic counts for more
// than moving images, and windows slide along the rows of planes. With a stride or a dilation only the
// kernels of halves gain by this, which compute in phases.
inline bool planes_pay(const Geometry& geometry, int element_bytes) {
  constexpr int kHalfBytes = 2, kDoubleBytes = 8;
  const bool has_half_phases = element_bytes == kHalfBytes && geometry.multiplier == 1 &&
                               has_phases(geometry) && phases_have_taps(geometry);
  return element_bytes < kDoubleBytes && geometry.taps() > kTapsOfImagesAsGiven &&
         (is_unit_step(geometry) || has_half_phases);
}

// ---------------------------------------------------------------- what is gathered

// The results up to which it takes least time to gather a forward pass or an input gradient.
inline Threshold most_gathered_results(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  if (problem.channels_last || (is_strided(geometry) && problem.transposed)) return kGatheredResults;
  if (longest_side(geometry) > kGatheredFewTaps) return kGatheredResultsOfPlanes;
  return is_strided(geometry) ? kGatheredStridedResultsOfThreeTaps : kGatheredResultsOfThreeTaps;
}

// Whether a forward pass or an input gradient of up to 5 x 5 taps has so few results that they are gathered.
inline bool gathers(const Problem& problem) {
  return longest_side(problem.geometry) <= kGatheredTaps &&
         problem.results() <= share_of_device(problem, most_gathered_results(problem));
}
inline bool does_not_gather(const Problem& problem) { return !gathers(problem); }

// Whether there are enough planes for the warps that move them whole. The widest planes with the largest
// kernel are faster in strips, which need not wait for all of a plane.
inline bool small_planes_correlate_pays(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  const bool is_faster_in_strips = geometry.width.input == kWidePlane && geometry.width.kernel == kSevenTaps;
  return !is_faster_in_strips && geometry.batch * geometry.channels * geometry.input_pixels() >=
                                     kSmallPlanesElements.times(problem.multiprocessors);
}

// The same for a weight gradient.
inline bool has_many_images_of_small_planes(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  // Sums and two of these images leave room for too few warps.
  const bool has_few_warps =
      geometry.width.input == kWidePlane && geometry.width.kernel == kFiveTaps && problem.is_float32();
  return small_planes_correlate_pays(problem) && !has_few_warps && geometry.batch >= kSmallPlanesImages &&
         geometry.channels * geometry.input_pixels() >= kSmallPlanesElementsOfImage;
}

// The products up to which it takes least time to gather a weight gradient.
inline Threshold most_gathered_products(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  const int64_t longest = longest_side(geometry);
  if (longest >= kGatheredManyTaps) {
    return is_dilated(geometry) ? kGatheredDilatedProductsOfManyTaps : kGatheredProductsOfManyTaps;
  }
  // By the side of the kernel: up to 4, 5, or more.
  const auto by_side = [&](const Threshold& of_few, const Threshold& of_five, const Threshold& of_more) {
    return longest >= kGatheredSixTaps ? of_more : longest >= kGatheredFiveTaps ? of_five : of_few;
  };
  if (problem.channels_last && problem.is_float32()) {
    return by_side(kGatheredFloatPixels, kGatheredFloatPixelsOfFiveTaps, kGatheredFloatPixels);
  }
  if (problem.channels_last) {
    return is_odd(geometry.channels) && !is_strided(geometry) ? kGatheredHalfPixelsOfOddChannels
                                                              : kGatheredHalfPixels;
  }
  const bool has_whole_planes =
      supports_small_planes_weight_grad(problem) && has_many_images_of_small_planes(problem);
  if (is_odd(geometry.width.input) && !has_whole_planes) {
    return by_side(kGatheredProductsOfOddWidth, kGatheredFiveTapsOfOddWidth,
                   problem.is_half() && !is_strided(geometry) ? kGatheredHalfSevenTapsOfOddWidth
                                                              : kGatheredSevenTapsOfOddWidth);
  }
  if (is_strided(geometry)) {
    return by_side(kGatheredStridedProducts, kGatheredStridedFiveTaps, kGatheredStridedSevenTaps);
  }
  if (geometry.batch * geometry.output_pixels() <= kFewPixelsOfChannel ||
      (geometry.output_pixels() <= kFewPixelsOfPlane && !has_whole_planes)) {
    return kGatheredProductsOfFewPixels;
  }
  return by_side(kGatheredProducts, kGatheredProductsOfFiveTaps, kGatheredProductsOfFiveTaps);
}

// Whether a weight gradient is gathered: it has few products and not many results.
inline bool gathers_weight_grad(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  const int64_t results = geometry.output_channels() * geometry.taps();
  return supports_gather_weight_grad(problem) && results <= kGatheredWeights &&
         geometry.batch * geometry.output_pixels() * results <=
             share_of_device(problem, most_gathered_products(problem));
}
inline bool does_not_gather_weight_grad(const Problem& problem) { return !gathers_weight_grad(problem); }

inline bool small_planes_weight_grad_pays(const Problem& problem) {
  return has_many_images_of_small_planes(problem) && !gathers_weight_grad(problem);
}

// ---------------------------------------------------------------- rows

inline bool rows_weight_grad_pays(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  const bool has_long_rows = !is_strided(geometry) && geometry.width.output >= kRowsDilatedOutputs;
  return is_unit_step(geometry) || has_long_rows || geometry.width.kernel >= kRowsApartTaps;
}

// A few products of a row in NHWC take less time gathered.
inline bool rows_nhwc_weight_grad_pays(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  // Of two kernels with as many products, the one with more taps has fewer positions to share out.
  constexpr int64_t kManyTaps = 16;
  const int64_t taps = geometry.width.kernel;
  const int64_t products = geometry.batch * geometry.channels * geometry.width.output * taps;
  return products * kManyTaps / (kManyTaps + taps) >= share_of_device(problem, kGatheredRowProducts);
}

// ---------------------------------------------------------------- tensor cores

// Whether it pays to bring halves to tensor cores: multiply-adds would take longer than memory.
inline bool products_pay(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  const int64_t longest = longest_side(geometry);
  if (problem.channels_last) return longest >= kTapsOfPixelProducts;
  return longest >= kTapsOfAnyProducts ||
         (longest >= kTapsOfPlaneProducts && geometry.batch * geometry.channels * geometry.input_pixels() >=
                                                 share_of_device(problem, kElementsOfPlaneProducts));
}

inline bool bands_batch_pays(const Problem& problem) {
  return products_pay(problem) && problem.geometry.batch >= kBatchProductsImages;
}

// Whether a convolution with a stride or a dilation has enough taps and products to compute it in phases.
inline bool phases_pay(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  return longest_side(geometry) >= kTapsOfPhases && phases_have_taps(geometry) &&
         geometry.batch * geometry.output_channels() * geometry.output_pixels() * geometry.taps() >=
             share_of_device(problem, kProductsOfPhases);
}

inline bool bands_large_pays(const Problem& problem) {
  return problem.geometry.output_pixels() > kLargeProductsPixels &&
         (is_unit_step(problem.geometry) ? products_pay(problem) : phases_pay(problem));
}

inline bool diagonals_nhwc_pays(const Problem& problem) {
  return products_pay(problem) && !gathers_weight_grad(problem);
}

inline bool diagonals_nchw_pays(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  if (gathers_weight_grad(problem)) return false;
  if (is_odd(geometry.width.input) && geometry.input_pixels() <= kDiagonalsPixelsOfOddWidth &&
      supports_strips_weight_grad(problem)) {
    return false;
  }
  if (!is_unit_step(geometry)) return phases_pay(problem);
  return products_pay(problem) || longest_side(geometry) >= kTapsOfDiagonals;
}

inline bool slide_correlate_mma_pays(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  const int64_t longest = longest_side(geometry);
  if (is_dilated(geometry) &&
      problem.results() < share_of_device(problem, longest <= kDilatedSlideProductsFewTaps
                                                       ? kDilatedSlideProductsOfThreeTaps
                                                       : kDilatedSlideProducts)) {
    return false;
  }
  if (gathers(problem)) return false;
  return longest >= (geometry.height.stride == 1 ? kTapsOfSlideProducts : kTapsOfStridedSlideProducts);
}

// With 7 x 7 taps pixels make more products than planes do: (128,96,56x56) takes 113 us, and 94 us by planes.
inline bool slide_weight_grad_mma_pays(const Problem& problem) {
  return !(problem.geometry.height.kernel == kSevenTaps && supports_diagonals_nhwc(problem)) &&
         !gathers_weight_grad(problem);
}

// The same images in NHWC, whose channels are filled up with zeros to whole eights.
inline Problem with_whole_channels(const Problem& problem) {
  Problem whole = problem;
  whole.geometry.channels = round_up(problem.geometry.channels, kWholeChannels);
  whole.alignment = kWholeAlignment;
  return whole;
}

// Whether it pays for a weight gradient to copy halves in NHWC with an odd number of channels into images of
// whole eights. With an even number, kernels move pixels four bytes at a time, or more.
inline bool whole_channels_pay(const Problem& problem) {
  const Problem whole = with_whole_channels(problem);
  const Geometry& geometry = problem.geometry;
  return is_odd(geometry.channels) && geometry.multiplier == 1 &&
         longest_side(geometry) >= kTapsOfWholeChannels &&
         (supports_slide_weight_grad_mma(whole) || supports_diagonals_nhwc(whole)) &&
         eights_fit_32(whole.geometry);
}

// How the kernels of a weight gradient get their images.
enum class Images { as_given, planes, whole_channels };

// A weight gradient with few products is gathered from images as they lie.
inline Images images_of_weight_grad(const Problem& problem) {
  if (!problem.channels_last || gathers_weight_grad(problem)) return Images::as_given;
  if (planes_pay(problem.geometry, problem.element_bytes)) return Images::planes;
  return whole_channels_pay(problem) ? Images::whole_channels : Images::as_given;
}

// ---------------------------------------------------------------- NCHW

inline bool small_planes_whole_pays(const Problem& problem) {
  return problem.geometry.batch >= kWholePlanesImages;
}

inline bool tiles_correlate_pays(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  const bool is_small = problem.result(geometry.height) * problem.result(geometry.width) <= kTilesPixels &&
                        problem.results() < share_of_device(problem, kTilesResultsOfSmallPlanes);
  const bool gathers_few = problem.transposed && geometry.multiplier > 1 &&
                           longest_side(geometry) <= kTilesSideOfFewTaps && geometry.taps() <= kTilesFewTaps;
  return !gathers_few && !is_small && !gathers(problem);
}

// ---------------------------------------------------------------- NHWC

inline bool slide_columns_pay(const Problem& problem) {
  return problem.results() >=
         share_of_device(problem, is_dilated(problem.geometry) ? kColumnsDilatedResults : kColumnsResults);
}

inline bool slide_columns_weight_grad_pays(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  const bool is_for_tensor_cores =
      supports_slide_weight_grad_mma(problem) &&
      copied_piece(geometry.channels, problem.element_bytes, problem.alignment) > kColumnsWeightGradPiece;
  return !is_for_tensor_cores &&
         problem.results() >= share_of_device(problem, is_dilated(geometry) ? kColumnsWeightGradDilatedResults
                                                                            : kColumnsWeightGradResults);
}

// The outputs of a multiprocessor up to which windows take less time than slides. `products`: whether
// slide_correlate_mma would slide.
constexpr Threshold window_outputs(int64_t kernel, int64_t stride, bool products) {
  if (stride > 1) {
    return kernel == kThreeTaps  ? kWindowOutputsOfStridedThreeTaps
           : kernel == kFiveTaps ? kWindowOutputsOfStridedFiveTaps
                                 : kWindowOutputsOfStridedSevenTaps;
  }
  if (products) {
    return kernel == kFiveTaps ? kWindowOutputsOfFiveTapProducts : kWindowOutputsOfSevenTapProducts;
  }
  return kernel == kFiveTaps ? kWindowOutputsOfFiveTaps : kWindowOutputsOfSevenTaps;
}

// With 3 x 3 taps and stride 1 slide_columns, which is asked before, takes all but small problems.
//
// Three taps with stride 2 hardly share sources. In float32, which comes in sectors, windows are as fast as
// memory for any number of outputs: (128,96,112x112) takes 189 and 197 us in windows, and 197 and 250 us by
// slides.
inline bool slide_window_pays(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  const int64_t kernel = geometry.height.kernel;
  const int64_t stride = geometry.height.stride;
  if (gathers(problem)) return false;
  const bool products = supports_slide_correlate_mma(problem) && slide_correlate_mma_pays(problem);
  if (!products && !supports_slide_correlate(problem)) return true;
  return (kernel == kThreeTaps && (stride == 1 || problem.is_float32())) ||
         geometry.batch * geometry.channels * geometry.output_pixels() <=
             window_outputs(kernel, stride, products).times(problem.multiprocessors);
}

// ---------------------------------------------------------------- any geometry

// The results from which threads that own four of a column are enough for the device.
inline Threshold least_results_of_columns(int64_t taps, bool channels_last) {
  if (taps == kThreeTaps && !channels_last) return kGatherColumnsOfThreeTaps;
  if (taps == kFourTaps || taps == kFiveTaps) return kGatherColumnsOfFiveTaps;
  return taps == kThreeTaps || taps == kSevenTaps ? kGatherColumnsOfSevenTaps : kGatherColumnsOfOtherTaps;
}

inline bool gather_columns_pay(const Problem& problem) {
  constexpr int64_t kPercent = 100;
  const int64_t taps = gathered_taps(problem.geometry, problem.transposed);
  const int64_t rows = problem.result(problem.geometry.height);
  const int64_t rows_of_threads = row_groups(rows, spacing_of_column(problem)) * kResultsOfThread;
  return problem.results() >=
             share_of_device(problem, least_results_of_columns(taps, problem.channels_last)) &&
         kPercent * rows >= kGatherColumnsInImage.times(rows_of_threads);
}

// Whether gather_small, which is compiled for 5 x 5 taps that may be missing, would test many places in vain.
inline bool most_places_are_empty(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  const int64_t tall = gathered_taps(geometry.height, problem.transposed);
  const int64_t wide = gathered_taps(geometry.width, problem.transposed);
  const bool is_of_one_source = !problem.transposed || geometry.multiplier == 1;
  return std::max(tall, wide) >= kFourTaps && tall * wide <= kFourTaps * kFourTaps && is_of_one_source;
}

inline bool gather_small_pays(const Problem& problem) {
  if (problem.channels_last) return problem.results() < share_of_device(problem, kGatherSmallPixels);
  if (problem.is_float64() || !most_places_are_empty(problem)) return true;
  return problem.is_float32() && problem.results() <= share_of_device(problem, kGatherSmallFloatsOfFewTaps);
}

// ---------------------------------------------------------------- the tables

template <typename AnyKernel>
struct RuleOf {
  AnyKernel kernel;
  const char* name;
  const char* regime;
  const char* reason;
  bool (*supports)(const Problem&);
  bool (*pays)(const Problem&);
};

#define TORCHGRAFT_KERNEL_VALUE(NAME, ...) NAME,
enum class CorrelationKernel { TORCHGRAFT_DEPTHWISE_CORRELATIONS(TORCHGRAFT_KERNEL_VALUE) };
enum class WeightGradKernel { TORCHGRAFT_DEPTHWISE_WEIGHT_GRADS(TORCHGRAFT_KERNEL_VALUE) };
#undef TORCHGRAFT_KERNEL_VALUE

using CorrelationRule = RuleOf<CorrelationKernel>;
using WeightGradRule = RuleOf<WeightGradKernel>;

#define TORCHGRAFT_CORRELATION_RULE(NAME, LAUNCH, ELEMENTS, REGIME, REASON, SUPPORTS, PAYS) \
  {CorrelationKernel::NAME, #NAME, REGIME, REASON, SUPPORTS, PAYS},
#define TORCHGRAFT_WEIGHT_GRAD_RULE(NAME, LAUNCH, ELEMENTS, REGIME, REASON, SUPPORTS, PAYS) \
  {WeightGradKernel::NAME, #NAME, REGIME, REASON, SUPPORTS, PAYS},
inline constexpr CorrelationRule kCorrelationRules[] = {
    TORCHGRAFT_DEPTHWISE_CORRELATIONS(TORCHGRAFT_CORRELATION_RULE)};
inline constexpr WeightGradRule kWeightGradRules[] = {
    TORCHGRAFT_DEPTHWISE_WEIGHT_GRADS(TORCHGRAFT_WEIGHT_GRAD_RULE)};
#undef TORCHGRAFT_CORRELATION_RULE
#undef TORCHGRAFT_WEIGHT_GRAD_RULE

// The rule of a forward pass or, if the problem is transposed, of an input gradient.
inline const CorrelationRule& choose(const Problem& problem) {
  return torchgraft::choose(kCorrelationRules, problem);
}

// The rule of a weight gradient, for which `transposed` means nothing.
inline const WeightGradRule& choose_weight_grad(const Problem& problem) {
  return torchgraft::choose(kWeightGradRules, problem);
}

}  // namespace torchgraft::depthwise::cuda
