// Which kernel serves a convolution on CUDA: two tables, asked from the top. The first rule whose kernel
// supports the problem (supports.h) and pays for it is the one. Every threshold of this file was measured, on
// an H200 where nothing else is said; how a kernel works, and what it reaches, is told in its own file.
#pragma once

#include <torchgraft/choice.h>

#include "supports.h"

namespace torchgraft::depthwise::cuda {

enum class Kernel {
  small_planes_correlate,
  bands_small,
  slide_columns,
  slide_window,
  slide_correlate_mma,
  bands_batch,
  bands_large,
  strips_correlate,
  small_planes_whole,
  tiles_correlate,
  slide_correlate,
  gather_columns,
  gather_columns_nhwc,
  gather_small,
  gather_large,
  gather_any,
  small_planes_weight_grad,
  diagonals_nchw,
  slide_columns_weight_grad,
  slide_weight_grad_mma,
  diagonals_nhwc,
  strips_weight_grad,
  tiles_weight_grad,
  slide_weight_grad,
  gather_weight_grad,
  gather_weight_grad_any,
};

// A size from which a kernel pays on an H200, as the same share of the device in hand.
constexpr int64_t share_of_device(const Problem& problem, int64_t on_h200) {
  constexpr int64_t kMultiprocessors = 132;
  return on_h200 * problem.multiprocessors / kMultiprocessors;
}

// Whether images are better brought into NCHW first: where a kernel is so large that arithmetic counts for
// more than moving images, along whose rows its windows slide. With a stride or a dilation only kernels of
// halves gain by it, which take it in phases.
inline bool planes_pay(const Geometry& geometry, int element_bytes) {
  constexpr int64_t kFewTaps = 7 * 7;
  const bool has_half_phases = element_bytes == 2 && geometry.multiplier == 1 && has_phases(geometry);
  return element_bytes < 8 && geometry.taps() > kFewTaps && (is_unit_step(geometry) || has_half_phases);
}

// Whether a forward pass or an input gradient of up to 5 x 5 taps has so few results that it takes least time
// to gather them. In NHWC a thread of another kernel has eight halves or four numbers at each tap: of
// (4,16,9x9,k5) in halves 4.6 us gathered and 9.3, of (4,32,5x5,k3) 4.1 and 5.1. The limits of NCHW are those
// of 680 drawn problems of an H100. They are not for input gradients with a stride: to gather one asks of
// each tap whether it meets a source, which strips know when they are compiled.
inline bool gathers(const Problem& problem) {
  constexpr int64_t kMostTaps = 5;
  constexpr int64_t kFew = int64_t{1} << 15;
  constexpr int64_t kFewOfPlanes = int64_t{3} << 17;
  constexpr int64_t kFewOfThreeTaps = int64_t{1} << 20;
  constexpr int64_t kFewStridedOfThreeTaps = int64_t{1} << 21;
  const Geometry& geometry = problem.geometry;
  const int64_t longest = longest_side(geometry);
  if (longest > kMostTaps) return false;
  int64_t few = kFew;
  if (!problem.channels_last && !(is_strided(geometry) && problem.transposed)) {
    few = longest > 3 ? kFewOfPlanes : is_strided(geometry) ? kFewStridedOfThreeTaps : kFewOfThreeTaps;
  }
  return problem.results() <= share_of_device(problem, few);
}
inline bool does_not_gather(const Problem& problem) { return !gathers(problem); }

// Whether there are enough planes for the warps that move them whole, a warp some planes: a launch of few
// warps takes long. Wider planes with a large kernel are faster in strips, which need not wait for all of a
// plane.
inline bool small_planes_correlate_pays(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  const int64_t warps = problem.multiprocessors * 4;
  return !(geometry.width.input == 28 && geometry.width.kernel == 7) &&
         geometry.batch * geometry.channels * geometry.input_pixels() >= warps * kSmallPlanesPixels;
}

// The same of a weight gradient, whose sums stay in registers while images pass.
inline bool has_many_images_of_small_planes(const Problem& problem) {
  constexpr int64_t kFewImages = 12;
  const Geometry& geometry = problem.geometry;
  // Sums and two images of 28 x 28 leave fp32 too few warps.
  const bool has_few_warps =
      geometry.width.input == 28 && geometry.width.kernel == 5 && problem.element_bytes == 4;
  return small_planes_correlate_pays(problem) && !has_few_warps && geometry.batch >= kFewImages &&
         geometry.channels * geometry.input_pixels() >= kSmallPlanesPixels;
}

// Products up to which a weight gradient takes least time to gather. The other kernels share out images among
// blocks and add up what those have, which takes the smallest 7 to 15 us in halves and up to 35 in fp32 in
// NHWC. Most limits are those of 2,700 drawn problems of an H100. Of 7 x 7 taps in halves in NHWC 5 million
// products take 8 us gathered and 10 by diagonals, 15 million 11 and 10; an odd number of channels must be
// copied for tensor cores. In NCHW strips read rows of odd widths element by element, which takes 3 x 3
// taps longer than to gather any number: (9,1418,21x21) in halves 53 us and gathered 27. Where a channel has
// few pixels a block of the gathering kernel sums all of them: of (4,986,7x7,k5) 7 us gathered and 11; and
// narrow planes leave strips little to slide along: (80,120,9x9,k3) takes 9 and 15.
inline int64_t most_gathered_products(const Problem& problem) {
  constexpr int64_t kAnyNumber = int64_t{1} << 40;
  constexpr int64_t kFewPixels = int64_t{1} << 10;  // of a channel, in all images
  constexpr int64_t kFewPixelsOfPlane = int64_t{1} << 7;
  constexpr int64_t kManyTaps = 5;
  // Of a side: images in NHWC are brought into NCHW first, where a square kernel has so many.
  constexpr int64_t kMostTaps = 9;
  const Geometry& geometry = problem.geometry;
  const int64_t longest = longest_side(geometry);
  if (longest >= kMostTaps) return int64_t{1} << (is_dilated(geometry) ? 25 : 23);
  if (problem.channels_last) {
    if (problem.element_bytes == 4) return int64_t{1} << (longest == kManyTaps ? 26 : 25);
    return int64_t{1} << (geometry.channels % 2 != 0 && !is_strided(geometry) ? 25 : 24);
  }
  const bool has_whole_planes =
      supports_small_planes_weight_grad(problem) && has_many_images_of_small_planes(problem);
  if (geometry.width.input % 2 != 0 && !has_whole_planes) {
    if (longest < kManyTaps) return kAnyNumber;
    if (longest == kManyTaps) return int64_t{1} << 27;
    return int64_t{1} << (problem.is_half() && !is_strided(geometry) ? 25 : 22);
  }
  if (is_strided(geometry)) return int64_t{1} << (longest < kManyTaps ? 24 : longest == kManyTaps ? 23 : 21);
  if (geometry.batch * geometry.output_pixels() <= kFewPixels ||
      (geometry.output_pixels() <= kFewPixelsOfPlane && !has_whole_planes)) {
    return int64_t{1} << 24;
  }
  return int64_t{1} << (longest < kManyTaps ? 20 : 21);
}

// Whether a weight gradient is gathered: of few products, and not of many results, each of which a block
// would begin and end for little.
inline bool gathers_weight_grad(const Problem& problem) {
  constexpr int64_t kManyResults = int64_t{1} << 16;
  const Geometry& geometry = problem.geometry;
  const int64_t results = geometry.output_channels() * geometry.taps();
  return supports_gather_weight_grad(problem) && results <= kManyResults &&
         geometry.batch * geometry.output_pixels() * results <=
             share_of_device(problem, most_gathered_products(problem));
}
inline bool does_not_gather_weight_grad(const Problem& problem) { return !gathers_weight_grad(problem); }

// ---------------------------------------------------------------- planes moved whole

inline bool small_planes_weight_grad_pays(const Problem& problem) {
  return has_many_images_of_small_planes(problem) && !gathers_weight_grad(problem);
}

// ---------------------------------------------------------------- tensor cores

// Whether halves are worth bringing to tensor cores: where multiply-adds would take longer than memory. Of
// fewer than 13 x 13 taps the problem must be large enough to hide what that costs; with more it pays for the
// smallest too: of drawn problems of less than 2**20 elements tiles took 1.2 to 2 times as long in the median
// for k = 13, and 2.5 to 6 times for k = 31.
inline bool products_pay(const Problem& problem) {
  constexpr int64_t kFewElements = int64_t{1} << 20;
  constexpr int64_t kManyTaps = 13;
  const Geometry& geometry = problem.geometry;
  const int64_t longest = longest_side(geometry);
  if (problem.channels_last) return longest >= 5;
  return longest >= kManyTaps ||
         (longest >= 6 && geometry.batch * geometry.channels * geometry.input_pixels() >=
                              share_of_device(problem, kFewElements));
}

// With fewer images too much of each product is of none.
inline bool bands_batch_pays(const Problem& problem) {
  constexpr int64_t kFewestImages = 4;
  return products_pay(problem) && problem.geometry.batch >= kFewestImages;
}

// A convolution with a stride or a dilation has no kernel but those that gather tap by tap: with more taps
// than these take at once, phases pay unless there is little to multiply.
inline bool phases_pay(const Problem& problem) {
  constexpr int64_t kManyTaps = 8;
  constexpr int64_t kFewProducts = int64_t{1} << 22;
  const Geometry& geometry = problem.geometry;
  return longest_side(geometry) >= kManyTaps &&
         geometry.batch * geometry.output_channels() * geometry.output_pixels() * geometry.taps() >=
             share_of_device(problem, kFewProducts);
}

// Planes as small as a few units are moved in pieces that cost more than their products save.
inline bool bands_large_pays(const Problem& problem) {
  constexpr int64_t kFewPixels = 8 * 8;
  return problem.geometry.output_pixels() > kFewPixels &&
         (is_unit_step(problem.geometry) ? products_pay(problem) : phases_pay(problem));
}

inline bool diagonals_nhwc_pays(const Problem& problem) {
  return products_pay(problem) && !gathers_weight_grad(problem);
}

// With so many taps of any problem: of (24,16,38x38,k11) 13 us by diagonals and 17 by tiles, of
// (4,152,9x5,k11) 10 and 13. Planes of an odd width come to shared memory two bytes at a time, which takes
// small ones longer than strips do: of (24,847,34x15,k7) 237 us and 68.
inline bool diagonals_nchw_pays(const Problem& problem) {
  constexpr int64_t kManyTaps = 11;
  constexpr int64_t kFewPixels = 512;  // of 1,200 drawn problems of an H100
  const Geometry& geometry = problem.geometry;
  if (gathers_weight_grad(problem)) return false;
  if (geometry.width.input % 2 != 0 && geometry.input_pixels() <= kFewPixels &&
      supports_strips_weight_grad(problem)) {
    return false;
  }
  if (!is_unit_step(geometry)) return phases_pay(problem);
  return products_pay(problem) || longest_side(geometry) >= kManyTaps;
}

// Of fewer taps there is less to multiply than it takes to bring pixels to tensor cores; and a forward pass
// of stride two with few taps only moves, which takes slide_correlate less time: 115 us of
// (128,96,112x112,k3,s2), and 120.
inline bool slide_correlate_mma_pays(const Problem& problem) {
  constexpr int kLeastTaps = 3;
  constexpr int kLeastStridedTaps = 4;
  constexpr int64_t kFewResults = int64_t{1} << 17;  // with a dilation, gathered
  constexpr int64_t kFewResultsOfThreeTaps = int64_t{1} << 20;
  const int64_t longest = longest_side(problem.geometry);
  if (is_dilated(problem.geometry) &&
      problem.results() < share_of_device(problem, longest <= 3 ? kFewResultsOfThreeTaps : kFewResults)) {
    return false;
  }
  if (gathers(problem)) return false;
  return longest >= (problem.geometry.height.stride == 1 ? kLeastTaps : kLeastStridedTaps);
}

// Of 49 taps pixels make more products than planes do: (128,96,56x56) takes 113 us, and by planes 94.
inline bool slide_weight_grad_mma_pays(const Problem& problem) {
  return !(problem.geometry.height.kernel == 7 && supports_diagonals_nhwc(problem)) &&
         !gathers_weight_grad(problem);
}

// The same images in NHWC with as many channels more, all zeros, as make whole eights.
inline Problem with_whole_channels(const Problem& problem) {
  Problem whole = problem;
  whole.geometry.channels = ceil_divide<int64_t>(problem.geometry.channels, 8) * 8;
  whole.alignment = 16;
  return whole;
}

// Whether halves in NHWC whose channels are an odd number are worth copying into images of whole eights for
// their weight gradient: tensor cores save more than that takes, but for 3 x 3 taps, which hardly do more
// than move. Pixels of an even number of channels are moved four bytes at a time, or more.
inline bool whole_channels_pay(const Problem& problem) {
  constexpr int64_t kManyTaps = 5;
  const Problem whole = with_whole_channels(problem);
  const Geometry& geometry = problem.geometry;
  return geometry.channels % 2 != 0 && geometry.multiplier == 1 && longest_side(geometry) >= kManyTaps &&
         (supports_slide_weight_grad_mma(whole) || supports_diagonals_nhwc(whole)) &&
         eights_fit_32(whole.geometry);
}

// How the images of a weight gradient are given to its kernels.
enum class Images { as_given, planes, whole_channels };

// One of few products is gathered from images as they lie.
inline Images images_of_weight_grad(const Problem& problem) {
  if (!problem.channels_last || gathers_weight_grad(problem)) return Images::as_given;
  if (planes_pay(problem.geometry, problem.element_bytes)) return Images::planes;
  return whole_channels_pay(problem) ? Images::whole_channels : Images::as_given;
}

// ---------------------------------------------------------------- NCHW

inline bool small_planes_whole_pays(const Problem& problem) {
  constexpr int64_t kFewestImages = 16;  // of 32, a lane each
  return problem.geometry.batch >= kFewestImages;
}

// A tile for each of the source planes of a result may take longer than to gather their few taps:
// (8,64,28x28,k5x3, multiplier 2) takes 11 us by tiles and 12 by columns, a quarter of it 10 and 6,
// (4,96,56x56,k3, multiplier 2) 18 and 15.
inline bool tiles_correlate_pays(const Problem& problem) {
  constexpr int64_t kMostTaps = 5;  // along a direction, of the small gathering kernels
  constexpr int64_t kFewTaps = 3 * 3;
  constexpr int64_t kFewResults = int64_t{1} << 18;
  constexpr int64_t kFewPixels = 8 * 8;
  constexpr int64_t kFewResultsOfSmall = int64_t{1} << 16;
  const Geometry& geometry = problem.geometry;
  // Most of a tile would lie outside such a plane: (4,152,9x5,k11) takes 15 us by tiles and 8 gathered.
  const bool is_small = problem.result(geometry.height) * problem.result(geometry.width) <= kFewPixels &&
                        problem.results() < share_of_device(problem, kFewResultsOfSmall);
  const bool gathers_few =
      problem.transposed && geometry.multiplier > 1 && longest_side(geometry) <= kMostTaps &&
      (geometry.taps() <= kFewTaps || problem.results() < share_of_device(problem, kFewResults));
  return !gathers_few && !is_small && !gathers(problem);
}

// ---------------------------------------------------------------- NHWC

// Whether threads that slide on their own are enough for the device: fewer results take less time in windows,
// and dilated ones gathered. Of (4,40,120x120,k3) in halves 9.7 us and in windows 10.1, of (4,88,44x44,k3)
// 7.4 and 6.7; of (13,24,36x36,k3,d2) 6.3 and gathered 7.1, of (4,18,28x28,k3,d2) 5.1 and 4.9. Large
// problems took 1.1 to 2 times as long by any other kernel, in each dtype.
inline bool slide_columns_pay(const Problem& problem) {
  constexpr int64_t kFewResults = int64_t{3} << 19;
  constexpr int64_t kFewDilatedResults = int64_t{1} << 18;
  return problem.results() >=
         share_of_device(problem, is_dilated(problem.geometry) ? kFewDilatedResults : kFewResults);
}

// The same of a weight gradient, which is gathered where it is small. Tensor cores take less time where they
// can, unless pixels are copied four bytes at a time: (84,74,51x51) in halves takes 51 us so, and by columns
// 42. Of float32 in fours of channels slides took 1.09 times as long, by the mean of 812 large problems drawn
// on an H100.
inline bool slide_columns_weight_grad_pays(const Problem& problem) {
  constexpr int kFewBytes = 4;
  constexpr int64_t kFewResults = int64_t{1} << 21;
  constexpr int64_t kFewDilatedResults = int64_t{1} << 22;
  const Geometry& geometry = problem.geometry;
  const bool is_for_tensor_cores =
      supports_slide_weight_grad_mma(problem) &&
      copied_piece(geometry.channels, problem.element_bytes, problem.alignment) > kFewBytes;
  return !is_for_tensor_cores &&
         problem.results() >=
             share_of_device(problem, is_dilated(geometry) ? kFewDilatedResults : kFewResults);
}

// Outputs of a multiprocessor up to which windows take less time than slides: the more there are the longer
// is a slide, and the less it matters that each of its rows is waited for. `products`: those of
// slide_correlate_mma.
constexpr int64_t window_outputs(int64_t kernel, int64_t stride, bool products) {
  if (stride == 2) return kernel == 3 ? 26000 : kernel == 5 ? 8300 : 3000;
  if (products) return kernel == 5 ? 16000 : 5000;
  return kernel == 5 ? 26000 : 14000;
}

// With 3 x 3 taps and stride 1 slide_columns, which is asked before, takes all but small problems.
//
// Three taps with stride two hardly share sources: in fp32, where they come in sectors, windows of any number
// are as fast as memory, (128,96,112x112) 189 and 197 us, and slides 197 and 250.
inline bool slide_window_pays(const Problem& problem) {
  const Geometry& geometry = problem.geometry;
  const int64_t kernel = geometry.height.kernel;
  const int64_t stride = geometry.height.stride;
  if (gathers(problem)) return false;
  const bool products = supports_slide_correlate_mma(problem) && slide_correlate_mma_pays(problem);
  if (!products && !supports_slide_correlate(problem)) return true;
  return (kernel == 3 && (stride == 1 || problem.element_bytes == 4)) ||
         geometry.batch * geometry.channels * geometry.output_pixels() <=
             problem.multiprocessors * window_outputs(kernel, stride, products);
}

// ---------------------------------------------------------------- any geometry

constexpr int64_t kManyResults = int64_t{1} << 20;

// Whether threads that own four results are enough for the device, of 5 x 5 taps, where four share so many,
// fewer; and whether most of their results, which may lie far apart, lie in the image.
inline bool gather_columns_pay(const Problem& problem) {
  constexpr int64_t kManyOfThreeTaps = int64_t{1} << 16;
  constexpr int64_t kManyOfFiveTaps = int64_t{1} << 17;
  constexpr int64_t kManyOfOthers = int64_t{1} << 19;
  const int64_t taps = gathered_taps(problem.geometry, problem.transposed);
  const int64_t rows = problem.result(problem.geometry.height);
  const int64_t many = taps == 3 && !problem.channels_last ? kManyOfThreeTaps
                       : taps == 4 || taps == 5            ? kManyOfFiveTaps
                       : taps == 3 || taps == 7            ? kManyOfOthers
                                                           : kManyResults;
  return problem.results() >= share_of_device(problem, many) &&
         row_groups(rows, spacing_of_column(problem)) * kResultsOfThread * 3 <= rows * 4;
}

// In NHWC many results want the weights in shared memory.
inline bool gather_small_pays(const Problem& problem) {
  return !(problem.channels_last && problem.results() >= share_of_device(problem, kManyResults));
}

// ---------------------------------------------------------------- the tables

struct Rule {
  Kernel kernel;
  const char* name;  // of the kernel, as a profiler tells it
  const char* regime;
  const char* reason;
  bool (*supports)(const Problem&);
  bool (*pays)(const Problem&);
};

// clang-format off
// Forward pass and input gradient.
inline constexpr Rule kCorrelationRules[] = {
    {Kernel::small_planes_correlate, "small_planes_correlate", "NCHW, 7 x 7, 14 x 14 and 28 x 28, k = 3, 5, 7, stride 1",
     "planes are moved whole, sixteen bytes at a time", supports_small_planes_correlate, small_planes_correlate_pays},
    {Kernel::bands_small, "bands_small", "halves, NCHW, k = 6, 7, stride 1",
     "products of band matrices: 49 multiply-adds take longer than memory", supports_bands_small, products_pay},
    {Kernel::slide_columns, "slide_columns", "NHWC, k = 3, stride 1, any dilation",
     "threads read whole lines, and slide on their own", supports_slide_columns, slide_columns_pay},
    {Kernel::slide_window, "slide_window", "NHWC, k = 3, 5, 7, stride 1, 2: small problems, odd channels",
     "all loads of a thread are in flight at once", supports_slide_window, slide_window_pays},
    {Kernel::slide_correlate_mma, "slide_correlate_mma", "halves, NHWC, k = 4 to 7 and kernels as 1 x 3, stride 1, forward 2",
     "pairs of results of four channels: nothing is converted or turned", supports_slide_correlate_mma, slide_correlate_mma_pays},
    {Kernel::bands_batch, "bands_batch",
     "halves, NCHW, 8 images or more up to 56 columns wide, k >= 8, stride 1",
     "the same bands for sixteen images, which need no padding", supports_bands_batch, bands_batch_pays},
    {Kernel::bands_large, "bands_large", "halves, NCHW, k = 8 to 57, stride 1",
     "band matrices as wide as the kernel", supports_bands_large, bands_large_pays},
    {Kernel::strips_correlate, "strips_correlate", "NCHW, k = 3, 5, 7, stride 1, 2", "every source is read once, and slides by in registers",
     supports_strips_correlate, does_not_gather},
    {Kernel::small_planes_whole, "small_planes_whole", "float32, NCHW, 7 x 7 and 14 x 14, 16 images or more, k >= 13 and 27, stride 1",
     "every result meets every source, and no padding", supports_small_planes_whole, small_planes_whole_pays},
    {Kernel::tiles_correlate, "tiles_correlate", "NCHW, other kernels, stride 1",
     "tiles in shared memory: two accesses feed 32 multiply-adds", supports_tiles_correlate, tiles_correlate_pays},
    {Kernel::slide_correlate, "slide_correlate", "NHWC, k = 5, 7, stride 1, 2; k = 3, stride 2",
     "every source is read once; lanes lie along channels", supports_slide_correlate, does_not_gather},
    {Kernel::gather_columns, "gather_columns", "NCHW, up to 5 x 5 taps a result, or k = 7, many results",
     "four results of a column share their sources", supports_gather_columns, gather_columns_pay},
    {Kernel::gather_columns_nhwc, "gather_columns_nhwc", "the same, NHWC",
     "the same; weights are turned in shared memory", supports_gather_columns_nhwc, gather_columns_pay},
    {Kernel::gather_small, "gather_small", "up to 5 x 5 taps a result",
     "all loads of a result are in flight at once", supports_gather_small, gather_small_pays},
    {Kernel::gather_large, "gather_large", "any kernel that fits shared memory",
     "taps are walked a few at a time", supports_gather, always},
    {Kernel::gather_any, "gather_any", "anything", "sizes beyond 32 bits", always, always},
};

inline constexpr Rule kWeightGradRules[] = {
    {Kernel::small_planes_weight_grad, "small_planes_weight_grad",
     "NCHW, 7 x 7, 14 x 14 and 28 x 28, k = 3, 5, 7, stride 1", "planes are moved whole, sixteen bytes at a time",
     supports_small_planes_weight_grad, small_planes_weight_grad_pays},
    {Kernel::diagonals_nchw, "diagonals_nchw", "halves, NCHW, k >= 6, stride 1",
     "taps are the diagonals of products of both images", supports_diagonals_nchw, diagonals_nchw_pays},
    {Kernel::slide_columns_weight_grad, "slide_columns_weight_grad", "NHWC, k = 3, stride 1: any dilation, odd channels, float32",
     "threads read both images on their own; sums of all taps stay in registers", supports_slide_columns, slide_columns_weight_grad_pays},
    {Kernel::slide_weight_grad_mma, "slide_weight_grad_mma",
     "halves, NHWC, k = 3, 5, strided 7, stride 1, 2, even channels",
     "taps are the diagonals of products of channels, as they lie in memory", supports_slide_weight_grad_mma, slide_weight_grad_mma_pays},
    {Kernel::diagonals_nhwc, "diagonals_nhwc",
     "halves, NHWC, k = 5 to 10, stride 1", "the same; channels are turned into planes in registers",
     supports_diagonals_nhwc, diagonals_nhwc_pays},
    {Kernel::strips_weight_grad, "strips_weight_grad", "NCHW, k = 3, 5, 7, stride 1, 2",
     "both images are read once; all taps are summed in registers", supports_strips_weight_grad, does_not_gather_weight_grad},
    {Kernel::tiles_weight_grad, "tiles_weight_grad", "NCHW, other kernels, stride 1",
     "tiles in shared memory; threads own taps", supports_tiles_weight_grad, does_not_gather_weight_grad},
    {Kernel::slide_weight_grad, "slide_weight_grad", "NHWC, k = 3, 5, 7, stride 1, 2",
     "both images are read once; lanes lie along channels", supports_slide_weight_grad, does_not_gather_weight_grad},
    {Kernel::gather_weight_grad, "gather_weight_grad", "anything within 32 bits",
     "groups of taps in registers, pixels shared out", supports_gather_weight_grad, always},
    {Kernel::gather_weight_grad_any, "gather_weight_grad_any", "anything", "sizes beyond 32 bits", always, always},
};
// clang-format on

// Of the forward pass or, transposed, of the input gradient.
inline const Rule& choose(const Problem& problem) { return torchgraft::choose(kCorrelationRules, problem); }

// `transposed` says nothing here.
inline const Rule& choose_weight_grad(const Problem& problem) {
  return torchgraft::choose(kWeightGradRules, problem);
}

}  // namespace torchgraft::depthwise::cuda
