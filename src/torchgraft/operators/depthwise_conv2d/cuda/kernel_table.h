// Every kernel, once: a row of one of two tables. The choice asks the rows of a table from the top, and takes
// the first kernel that supports the problem and pays for it. From a row follow a value of the table's enum,
// the rule of the choice (policy.h), the declaration of the launcher (kernels.h), and the case that launches
// it (dispatch.cu).
//
//   ROW(name, launcher, elements, regime, reason, supports, pays)
//
// name: the kernel's path: slide_correlate_mma is in slide/correlate_mma.*.
// launcher: the host function, in the kernel's file, that launches it.
// elements: the types that it is compiled for, one of the sets below.
// regime: the problems that it is for, in words. reason: why it is fast there.
// supports: whether it can compute a problem at all (supports.h). pays: whether it is then the fastest
// (policy.h).
#pragma once

#include <type_traits>

namespace torchgraft::depthwise::cuda {

// The types of elements that a kernel is compiled for. float64 is for checking gradients, not for speed.
template <typename T>
inline constexpr bool kAnyElements = true;
template <typename T>
inline constexpr bool kFastElements = !std::is_same_v<T, double>;
template <typename T>
inline constexpr bool kHalfElements = sizeof(T) == 2;
template <typename T>
inline constexpr bool kFloatElements = std::is_same_v<T, float>;

}  // namespace torchgraft::depthwise::cuda

// clang-format off
// Forward pass and input gradient.
#define TORCHGRAFT_DEPTHWISE_CORRELATIONS(ROW)                                                                        \
  ROW(rows_stream, launch_rows_stream, kFastElements, "(B, C, L), k <= 8, stride 1, length kept",                      \
      "rows are streams: neighbouring lanes exchange halos, all accesses are vectors",                                 \
      supports_rows_stream, always)                                                                                    \
  ROW(rows_window, launch_rows_window, kFastElements, "(B, C, L), k <= 256, stride 1",                                 \
      "every source is read once; a window of them slides along the taps in registers",                                \
      supports_rows_window, always)                                                                                    \
  ROW(rows_spread, launch_rows_spread, kFastElements, "(B, C, L), strides up to 8, any dilation",                      \
      "every source is read once; neighbouring lanes own neighbouring results",                                        \
      supports_rows_spread, always)                                                                                    \
  ROW(rows_nhwc, launch_rows_nhwc, kFastElements, "(B, C, L) in NHWC, k <= 256, any stride and dilation",          \
      "neighbouring results share sources in registers; lanes lie along channels",                                    \
      supports_rows_nhwc, always)                                                                                     \
  ROW(small_planes_correlate, launch_small_planes_correlate, kFastElements,                                           \
      "NCHW, 7 x 7, 14 x 14 and 28 x 28, k = 3, 5, 7, stride 1",                                                      \
      "planes are moved whole, sixteen bytes at a time",                                                              \
      supports_small_planes_correlate, small_planes_correlate_pays)                                                   \
  ROW(bands_small, launch_bands_small, kHalfElements, "halves, NCHW, k = 6, 7, stride 1",                             \
      "products of band matrices: 49 multiply-adds take longer than memory",                                          \
      supports_bands_small, products_pay)                                                                             \
  ROW(slide_columns, launch_slide_columns, kFastElements, "NHWC, k = 3, stride 1, any dilation",                      \
      "threads read whole lines, and slide on their own",                                                             \
      supports_slide_columns, slide_columns_pay)                                                                      \
  ROW(slide_window, launch_slide_window, kFastElements,                                                               \
      "NHWC, k = 3, 5, 7, stride 1, 2: small problems, odd channels",                                                 \
      "all loads of a thread are in flight at once",                                                                  \
      supports_slide_window, slide_window_pays)                                                                       \
  ROW(slide_correlate_mma, launch_slide_correlate_mma, kHalfElements,                                                 \
      "halves, NHWC, k = 4 to 7 and kernels as 1 x 3, stride 1, forward 2",                                           \
      "pairs of results of four channels: nothing is converted or turned",                                            \
      supports_slide_correlate_mma, slide_correlate_mma_pays)                                                         \
  ROW(bands_batch, launch_bands_batch, kHalfElements,                                                                 \
      "halves, NCHW, 4 images or more up to 56 columns wide, k >= 8, stride 1",                                       \
      "the same bands for sixteen images, which need no padding",                                                     \
      supports_bands_batch, bands_batch_pays)                                                                         \
  ROW(bands_large, launch_bands_large, kHalfElements, "halves, NCHW, k = 8 to 57, stride 1",                          \
      "band matrices as wide as the kernel",                                                                          \
      supports_bands_large, bands_large_pays)                                                                         \
  ROW(strips_correlate, launch_strips_correlate, kFastElements, "NCHW, k = 3, 5, 7, stride 1, 2",                     \
      "every source is read once, and slides by in registers",                                                        \
      supports_strips_correlate, does_not_gather)                                                                     \
  ROW(small_planes_whole, launch_small_planes_whole, kFloatElements,                                                  \
      "float32, NCHW, 7 x 7 and 14 x 14, 16 images or more, k >= 13 and 27, stride 1",                                \
      "every result depends on every source, and no padding is read",                                                 \
      supports_small_planes_whole, small_planes_whole_pays)                                                           \
  ROW(tiles_correlate, launch_tiles_correlate, kFastElements, "NCHW, other kernels, stride 1",                        \
      "tiles in shared memory: two accesses feed 32 multiply-adds",                                                   \
      supports_tiles_correlate, tiles_correlate_pays)                                                                 \
  ROW(slide_correlate, launch_slide_correlate, kFastElements, "NHWC, k = 5, 7, stride 1, 2; k = 3, stride 2",         \
      "every source is read once; lanes lie along channels",                                                          \
      supports_slide_correlate, does_not_gather)                                                                      \
  ROW(gather_columns, launch_gather_columns, kFastElements,                                                           \
      "NCHW, up to 5 x 5 taps a result, or k = 7, many results",                                                      \
      "four results of a column share their sources",                                                                 \
      supports_gather_columns, gather_columns_pay)                                                                    \
  ROW(gather_columns_nhwc, launch_gather_columns_nhwc, kFastElements, "the same, NHWC",                               \
      "the same; weights are turned in shared memory",                                                                \
      supports_gather_columns_nhwc, gather_columns_pay)                                                               \
  ROW(gather_small, launch_gather_small, kAnyElements, "up to 5 x 5 taps a result",                                   \
      "all loads of a result are in flight at once",                                                                  \
      supports_gather_small, gather_small_pays)                                                                       \
  ROW(gather_large, launch_gather_large, kAnyElements, "any kernel that fits shared memory",                          \
      "taps are walked a few at a time",                                                                              \
      supports_gather, always)                                                                                        \
  ROW(gather_any, launch_gather_any, kAnyElements, "anything", "sizes beyond 32 bits", always, always)

#define TORCHGRAFT_DEPTHWISE_WEIGHT_GRADS(ROW)                                                                        \
  ROW(rows_stream_weight_grad, launch_rows_stream_weight_grad, kFastElements,                                          \
      "(B, C, L), k <= 8, stride 1, length kept",                                                                      \
      "both rows are streams; all taps are summed in registers",                                                       \
      supports_rows_stream, always)                                                                                    \
  ROW(rows_weight_grad, launch_rows_weight_grad, kFastElements,                                                        \
      "(B, C, L), k <= 256, strides up to 8, any dilation",                                                            \
      "both rows are read once; warps share out taps, lanes positions",                                                \
      supports_rows_weight_grad, rows_weight_grad_pays)                                                                \
  ROW(rows_nhwc_weight_grad, launch_rows_nhwc_weight_grad, kFastElements, "(B, C, L) in NHWC, k <= 256, any stride and dilation",      \
      "sums of eight taps in registers; lanes lie along channels",                                                    \
      supports_rows_nhwc_weight_grad, rows_nhwc_weight_grad_pays)                                                                         \
  ROW(small_planes_weight_grad, launch_small_planes_weight_grad, kFastElements,                                       \
      "NCHW, 7 x 7, 14 x 14 and 28 x 28, k = 3, 5, 7, stride 1",                                                      \
      "planes are moved whole, sixteen bytes at a time",                                                              \
      supports_small_planes_weight_grad, small_planes_weight_grad_pays)                                               \
  ROW(diagonals_nchw, launch_diagonals_nchw, kHalfElements, "halves, NCHW, k >= 6, stride 1",                         \
      "taps are the diagonals of products of both images",                                                            \
      supports_diagonals_nchw, diagonals_nchw_pays)                                                                   \
  ROW(slide_columns_weight_grad, launch_slide_columns_weight_grad, kFastElements,                                     \
      "NHWC, k = 3, stride 1: any dilation, odd channels, float32",                                                   \
      "threads read both images on their own; sums of all taps stay in registers",                                    \
      supports_slide_columns, slide_columns_weight_grad_pays)                                                         \
  ROW(slide_weight_grad_mma, launch_slide_weight_grad_mma, kHalfElements,                                             \
      "halves, NHWC, k = 3, 5, strided 7, stride 1, 2, even channels",                                                \
      "taps are the diagonals of products of channels, as they lie in memory",                                        \
      supports_slide_weight_grad_mma, slide_weight_grad_mma_pays)                                                     \
  ROW(diagonals_nhwc, launch_diagonals_nhwc, kHalfElements, "halves, NHWC, k = 5 to 10, stride 1",                    \
      "the same; channels are turned into planes in registers",                                                       \
      supports_diagonals_nhwc, diagonals_nhwc_pays)                                                                   \
  ROW(strips_weight_grad, launch_strips_weight_grad, kFastElements, "NCHW, k = 3, 5, 7, stride 1, 2",                 \
      "both images are read once; all taps are summed in registers",                                                  \
      supports_strips_weight_grad, does_not_gather_weight_grad)                                                       \
  ROW(tiles_weight_grad, launch_tiles_weight_grad, kFastElements, "NCHW, other kernels, stride 1",                    \
      "tiles in shared memory; threads own taps",                                                                     \
      supports_tiles_weight_grad, does_not_gather_weight_grad)                                                        \
  ROW(slide_weight_grad, launch_slide_weight_grad, kFastElements, "NHWC, k = 3, 5, 7, stride 1, 2",                   \
      "both images are read once; lanes lie along channels",                                                          \
      supports_slide_weight_grad, does_not_gather_weight_grad)                                                        \
  ROW(gather_weight_grad, launch_gather_weight_grad, kAnyElements, "anything within 32 bits",                         \
      "groups of taps in registers, pixels shared out",                                                               \
      supports_gather_weight_grad, always)                                                                            \
  ROW(gather_weight_grad_any, launch_gather_weight_grad_any, kAnyElements, "anything",                                \
      "sizes beyond 32 bits", always, always)
// clang-format on
