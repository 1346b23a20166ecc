// Where a kernel begins to pay, or no longer does: every size that the choice of a kernel (policy.h) compares
// with. Each was measured, on an H200 if its comment names no other GPU. A threshold that counts results,
// elements or products is for the whole device; another device takes the same share of it
// (`share_of_device`).
//
// Figures such as (4,16,9x9,k5) are a batch, channels, rows x columns, and the side of the kernel.
#pragma once

#include <torchgraft/detail/threshold.h>

#include "supports.h"

namespace torchgraft::depthwise::cuda {

// The device that the thresholds are for.
constexpr int64_t kMultiprocessorsOfH200 = 132;

// Kernel sizes and strides that kernels are compiled for, and that a choice tells apart.
constexpr int64_t kThreeTaps = 3, kFourTaps = 4, kFiveTaps = 5, kSevenTaps = 7;

// ---------------------------------------------------------------- layout

// With more taps than these, arithmetic counts for more than moving images into NCHW.
TORCHGRAFT_THRESHOLD(kTapsOfImagesAsGiven, 7 * 7);

// ---------------------------------------------------------------- gathering a forward pass or an input
// gradient

// With more taps along a direction no problem is small enough to gather it.
TORCHGRAFT_THRESHOLD(kGatheredTaps, 5);
// Up to this side a kernel counts as one of three taps.
TORCHGRAFT_THRESHOLD(kGatheredFewTaps, kThreeTaps);
// Results up to which it takes least time to gather them. In NHWC a thread of another kernel owns eight
// halves or four numbers at each tap: (4,16,9x9,k5) in halves takes 4.6 us gathered and 9.3 us otherwise,
// (4,32,5x5,k3) 4.1 and 5.1. An input gradient with a stride has this limit in NCHW too: to gather it, a
// thread asks of each tap whether there is a source under it, which strips know when they are compiled.
TORCHGRAFT_THRESHOLD(kGatheredResults, int64_t{1} << 15);
// The limits of NCHW, from 680 drawn problems on an H100.
TORCHGRAFT_THRESHOLD(kGatheredResultsOfPlanes, int64_t{3} << 17);
TORCHGRAFT_THRESHOLD(kGatheredResultsOfThreeTaps, int64_t{1} << 20);
TORCHGRAFT_THRESHOLD(kGatheredStridedResultsOfThreeTaps, int64_t{1} << 21);

// ---------------------------------------------------------------- small planes

// Elements for each multiprocessor: with fewer there are not enough planes for four warps on each, and a
// launch of few warps takes long.
TORCHGRAFT_THRESHOLD(kSmallPlanesElements, 4 * kSmallPlanesPixels);
// A weight gradient keeps its sums in registers from image to image. This needs some images, each with enough
// planes for a warp.
TORCHGRAFT_THRESHOLD(kSmallPlanesImages, 12);
TORCHGRAFT_THRESHOLD(kSmallPlanesElementsOfImage, kSmallPlanesPixels);

// Below 16 of the 32 images, one for each lane, most lanes of small_planes_whole have none.
TORCHGRAFT_THRESHOLD(kWholePlanesImages, 16);

// ---------------------------------------------------------------- rows

// Sequences, measured on an H100. A weight gradient with a stride or a dilation and fewer taps is gathered:
// (8,256,16000,k5,s2) in bfloat16 takes 77 us, and 104 from rows. With more taps halves would go to
// diagonals: (2,305,1944,k15,s2) takes 65 us there, and PyTorch 19.
TORCHGRAFT_THRESHOLD(kRowsApartTaps, 8);
// Long rows with a dilation are not gathered: (2937,91,164,k5,d2) in bfloat16 takes 165 us gathered and 281
// from rows, but (2,512,2001,k3,d8) 18 and 13.
TORCHGRAFT_THRESHOLD(kRowsDilatedOutputs, 2000);

// ---------------------------------------------------------------- gathering a weight gradient

// A block begins and ends for each result, so many results are not gathered.
TORCHGRAFT_THRESHOLD(kGatheredWeights, int64_t{1} << 16);
// Sides of kernels that the limits below tell apart. Images in NHWC are brought into NCHW before a kernel of
// kGatheredManyTaps.
TORCHGRAFT_THRESHOLD(kGatheredFiveTaps, kFiveTaps);
TORCHGRAFT_THRESHOLD(kGatheredSixTaps, 6);
TORCHGRAFT_THRESHOLD(kGatheredManyTaps, 9);

// Products up to which it takes least time to gather them. The other kernels share out images among blocks
// and add up their sums, which takes the smallest problem 7 to 15 us in halves and up to 35 us in float32 in
// NHWC. The limits are those of 2,700 drawn problems on an H100, if nothing else is said.
TORCHGRAFT_THRESHOLD(kGatheredProductsOfManyTaps, int64_t{1} << 23);
TORCHGRAFT_THRESHOLD(kGatheredDilatedProductsOfManyTaps, int64_t{1} << 25);
// NHWC, float32.
TORCHGRAFT_THRESHOLD(kGatheredFloatPixels, int64_t{1} << 25);
TORCHGRAFT_THRESHOLD(kGatheredFloatPixelsOfFiveTaps, int64_t{1} << 26);
// NHWC, other types. With 7 x 7 taps in halves 5 million products take 8 us gathered and 10 us by diagonals,
// 15 million 11 and 10. Tensor cores need a copy of an odd number of channels.
TORCHGRAFT_THRESHOLD(kGatheredHalfPixels, int64_t{1} << 24);
TORCHGRAFT_THRESHOLD(kGatheredHalfPixelsOfOddChannels, int64_t{1} << 25);
// NCHW. Strips read rows of odd widths element by element. With 3 x 3 taps this takes longer than to gather
// any number: (9,1418,21x21) in halves takes 53 us by strips and 27 us gathered.
TORCHGRAFT_THRESHOLD(kGatheredProductsOfOddWidth, int64_t{1} << 40);
TORCHGRAFT_THRESHOLD(kGatheredFiveTapsOfOddWidth, int64_t{1} << 27);
TORCHGRAFT_THRESHOLD(kGatheredSevenTapsOfOddWidth, int64_t{1} << 22);
TORCHGRAFT_THRESHOLD(kGatheredHalfSevenTapsOfOddWidth, int64_t{1} << 25);
// NCHW, with a stride.
TORCHGRAFT_THRESHOLD(kGatheredStridedProducts, int64_t{1} << 24);
TORCHGRAFT_THRESHOLD(kGatheredStridedFiveTaps, int64_t{1} << 23);
TORCHGRAFT_THRESHOLD(kGatheredStridedSevenTaps, int64_t{1} << 21);
// NCHW. A block of the gathering kernel sums all of a channel with few pixels in all images: (4,986,7x7,k5)
// takes 7 us gathered and 11 us otherwise. Narrow planes leave strips little to slide along: (80,120,9x9,k3)
// takes 9 and 15 us.
TORCHGRAFT_THRESHOLD(kFewPixelsOfChannel, int64_t{1} << 10);
TORCHGRAFT_THRESHOLD(kFewPixelsOfPlane, int64_t{1} << 7);
TORCHGRAFT_THRESHOLD(kGatheredProductsOfFewPixels, int64_t{1} << 24);
// All others in NCHW.
TORCHGRAFT_THRESHOLD(kGatheredProducts, int64_t{1} << 20);
TORCHGRAFT_THRESHOLD(kGatheredProductsOfFiveTaps, int64_t{1} << 21);

// Rows in NHWC, by their products: (32,128,104,k15,d4) takes 21 % less than gathered, and (8,95,137,k5) 16 %
// more. Many taps leave each few positions: (8,256,84,k48) takes 30 us and 11 us gathered. From 234 problems
// drawn on an H200.
TORCHGRAFT_THRESHOLD(kGatheredRowProducts, int64_t{5} << 18);

// ---------------------------------------------------------------- tensor cores

// From this side on, multiply-adds take longer than memory: in NHWC, and in NCHW for problems that are large
// enough to hide the cost of bringing halves to tensor cores.
TORCHGRAFT_THRESHOLD(kTapsOfPixelProducts, 5);
TORCHGRAFT_THRESHOLD(kTapsOfPlaneProducts, 6);
TORCHGRAFT_THRESHOLD(kElementsOfPlaneProducts, int64_t{1} << 20);
// From this side on tensor cores pay for the smallest problem too: of drawn problems with fewer than 2**20
// elements, tiles took 1.2 to 2 times as long in the median for k = 13, and 2.5 to 6 times for k = 31.
TORCHGRAFT_THRESHOLD(kTapsOfAnyProducts, 13);
// With fewer than 4 of the 16 images, most of each product is wasted.
TORCHGRAFT_THRESHOLD(kBatchProductsImages, 4);
// bands_large moves planes that are as small as a few units in pieces, which costs more than its products
// save.
TORCHGRAFT_THRESHOLD(kLargeProductsPixels, 8 * 8);
// Only kernels that gather tap by tap compute a convolution with a stride or a dilation otherwise. With more
// taps than they use at once phases pay, unless there is little to multiply.
TORCHGRAFT_THRESHOLD(kTapsOfPhases, 8);
TORCHGRAFT_THRESHOLD(kProductsOfPhases, int64_t{1} << 22);
// A phase of a stride has so few of the taps of an upsampling kernel that products are mostly empty: with k =
// 16 and stride 8 (32,96,136x136) in bfloat16 takes 577 us in phases and 174 us gathered, its weight gradient
// 1,113 and 218. From 117 problems drawn on an H200.
TORCHGRAFT_THRESHOLD(kTapsOfOnePhase, 4);
// With this many taps diagonals_nchw pays for any problem: (24,16,38x38,k11) takes 13 us by diagonals and 17
// us by tiles, (4,152,9x5,k11) 10 and 13.
TORCHGRAFT_THRESHOLD(kTapsOfDiagonals, 11);
// Planes of an odd width come to shared memory two bytes at a time, which takes small ones longer than
// strips: (24,847,34x15,k7) takes 237 us by diagonals and 68 us by strips. From 1,200 drawn problems on an
// H100.
TORCHGRAFT_THRESHOLD(kDiagonalsPixelsOfOddWidth, 512);
// With fewer taps there is less to multiply than it takes to bring pixels to tensor cores. A forward pass of
// stride 2 with three taps only moves data, which slide_correlate does faster: (128,96,112x112,k3,s2) takes
// 115 us, and 120 us by slide_correlate_mma.
TORCHGRAFT_THRESHOLD(kTapsOfSlideProducts, 3);
TORCHGRAFT_THRESHOLD(kTapsOfStridedSlideProducts, 4);
// With a dilation, problems with fewer results are gathered.
TORCHGRAFT_THRESHOLD(kDilatedSlideProductsFewTaps, kThreeTaps);
TORCHGRAFT_THRESHOLD(kDilatedSlideProducts, int64_t{1} << 17);
TORCHGRAFT_THRESHOLD(kDilatedSlideProductsOfThreeTaps, int64_t{1} << 20);
// An odd number of channels is copied into whole eights for a weight gradient in halves: tensor cores save
// more than the copy costs, except for 3 x 3 taps, which hardly do more than move data.
TORCHGRAFT_THRESHOLD(kTapsOfWholeChannels, 5);

// ---------------------------------------------------------------- NCHW in tiles

// A tile for each source plane of a result may take longer than to gather its few taps:
// (4,96,56x56,k3, multiplier 2) takes 18 us by tiles and 15 us by columns.
TORCHGRAFT_THRESHOLD(kTilesSideOfFewTaps, 5);
TORCHGRAFT_THRESHOLD(kTilesFewTaps, 3 * 3);
// Most of a tile would lie outside a plane this small: (4,152,9x5,k11) takes 15 us by tiles and 8 us
// gathered.
TORCHGRAFT_THRESHOLD(kTilesPixels, 8 * 8);
TORCHGRAFT_THRESHOLD(kTilesResultsOfSmallPlanes, int64_t{1} << 16);

// ---------------------------------------------------------------- NHWC

// Threads that slide on their own are enough for the device. Fewer results take less time in windows, and
// dilated ones gathered: (4,40,120x120,k3) in halves takes 9.7 us and in windows 10.1, (4,88,44x44,k3) 7.4
// and 6.7; (13,24,36x36,k3,d2) 6.3 and gathered 7.1, (4,18,28x28,k3,d2) 5.1 and 4.9. Large problems took 1.1
// to 2 times as long by any other kernel, in each dtype.
TORCHGRAFT_THRESHOLD(kColumnsResults, int64_t{3} << 19);
TORCHGRAFT_THRESHOLD(kColumnsDilatedResults, int64_t{1} << 18);
// The same for a weight gradient, which is gathered if it is smaller. For float32 with a multiple of four
// channels slide_weight_grad took 1.09 times as long, in the mean of 812 large problems drawn on an H100.
TORCHGRAFT_THRESHOLD(kColumnsWeightGradResults, int64_t{1} << 21);
TORCHGRAFT_THRESHOLD(kColumnsWeightGradDilatedResults, int64_t{1} << 22);
// Tensor cores take less time, unless they copy pixels four bytes at a time: (84,74,51x51) in halves takes 51
// us so, and 42 us by columns.
TORCHGRAFT_THRESHOLD(kColumnsWeightGradPiece, 4);

// Outputs of a multiprocessor up to which windows take less time than slides: more outputs make slides
// longer, and then it matters less that a slide waits for each of its rows. First with stride 2, then where
// slide_correlate_mma would take the problem, then all others.
TORCHGRAFT_THRESHOLD(kWindowOutputsOfStridedThreeTaps, 26000);
TORCHGRAFT_THRESHOLD(kWindowOutputsOfStridedFiveTaps, 8300);
TORCHGRAFT_THRESHOLD(kWindowOutputsOfStridedSevenTaps, 3000);
TORCHGRAFT_THRESHOLD(kWindowOutputsOfFiveTapProducts, 16000);
TORCHGRAFT_THRESHOLD(kWindowOutputsOfSevenTapProducts, 5000);
TORCHGRAFT_THRESHOLD(kWindowOutputsOfFiveTaps, 26000);
TORCHGRAFT_THRESHOLD(kWindowOutputsOfSevenTaps, 14000);

// ---------------------------------------------------------------- any geometry

// Threads that own four results of a column are enough for the device. With 5 x 5 taps four results share so
// many that fewer threads are enough.
TORCHGRAFT_THRESHOLD(kGatherColumnsOfThreeTaps, int64_t{1} << 16);
TORCHGRAFT_THRESHOLD(kGatherColumnsOfFiveTaps, int64_t{1} << 17);
TORCHGRAFT_THRESHOLD(kGatherColumnsOfSevenTaps, int64_t{1} << 19);
TORCHGRAFT_THRESHOLD(kGatherColumnsOfOtherTaps, int64_t{1} << 20);
// The results of a thread may lie far apart. At least this share of them, in percent, must lie in the image.
TORCHGRAFT_THRESHOLD(kGatherColumnsInImage, 75);
// In NHWC, with more results the weights belong in shared memory, where gather_large has them.
TORCHGRAFT_THRESHOLD(kGatherSmallPixels, int64_t{1} << 20);
// In NCHW, for kernels of four taps a direction and for rows of four or five, gather_small tests 5 x 5
// places, and gather_large walks the taps. In halves any problem is faster so: (16,64,128x128,k4,s2) takes
// 156 us by gather_small and 65 us by gather_large, (2,32,28x28,k4,s2) 3.6 and 3.1, an input gradient of
// 2**24 elements in rows with k = 7 and stride 2 582 and 179. In float32 the weights in shared memory cost
// more than they save up to these results: (1,96,64x64,k4,s4) takes 3.0 and 3.3 us, (16,64,128x128,k4,s2) 116
// and 64. From 1,300 drawn problems on an H100 and an H200.
TORCHGRAFT_THRESHOLD(kGatherSmallFloatsOfFewTaps, int64_t{1} << 16);

}  // namespace torchgraft::depthwise::cuda
