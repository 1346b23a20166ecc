"""Inputs for depthwise_conv2d and its gradients: the traps in which published kernels were caught, each by name."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import torch

from torchgraft.nn import DepthwiseConv2d
from torchgraft.operators.depthwise_conv2d import benchmarks
from torchgraft.operators.depthwise_conv2d.case import PLAIN, ConvolutionCase, same
from torchgraft.operators.depthwise_conv2d.drawing import draw_any
from torchgraft.operators.depthwise_conv2d.window import Window
from torchgraft.sampling import Distribution, Drawn, Large, ModuleSample, ReplacedLayer, Sample, Samples

_BOTH_LAYOUTS = (
    ConvolutionCase("3x3 as in MobileNet", (2, 5, 9, 11), (3, 3), same(3)),
    ConvolutionCase("3x3 with stride 2", (2, 5, 9, 11), (3, 3), same(3, 2)),
    ConvolutionCase("3x3 with stride 3", (2, 5, 13, 40), (3, 3), same(3, 3)),
    ConvolutionCase("4x4 with stride 2 as in DCGAN", (2, 3, 6, 15), (4, 4), Window(2, 2, 1, 1, 1, 2)),
    ConvolutionCase("5x5 as in EfficientNet", (2, 3, 12, 10), (5, 5), same(5)),
    ConvolutionCase("5x5 with stride 2", (2, 3, 12, 10), (5, 5), same(5, 2)),
    ConvolutionCase("7x7 as in ConvNeXt", (2, 4, 14, 13), (7, 7), same(7)),
    ConvolutionCase("vector channels, narrow", (2, 4, 5, 3), (3, 3), same(3)),
    ConvolutionCase("vector channels", (1, 48, 6, 7), (3, 3), same(3)),
    ConvolutionCase("vector channels, six pixels a row", (1, 16, 6, 6), (3, 3), same(3)),
    ConvolutionCase("six pixels a row, kernel of five, stride 2", (2, 17, 9, 12), (5, 5), same(5, 2)),
    ConvolutionCase("five pixels a row, kernel of seven", (2, 17, 4, 5), (7, 7), same(7)),
    ConvolutionCase("four pixels a row, kernel of nine", (2, 17, 12, 12), (9, 9), PLAIN),
    ConvolutionCase("nine pixels a row, kernel of 17 rows", (2, 17, 5, 9), (17, 5), Window(1, 1, 8, 2, 8, 2)),
    ConvolutionCase("15 pixels a row, kernel of five, stride 2", (2, 17, 4, 30), (5, 5), same(5, 2)),
    # Rows of taps for two groups of warps, and few enough that images stay in their layout.
    ConvolutionCase("9x5", (2, 17, 10, 9), (9, 5), Window(1, 1, 4, 2, 4, 2)),
    ConvolutionCase("vector channels, 7x7", (1, 40, 8, 9), (7, 7), same(7)),
    ConvolutionCase("vector channels, stride 2", (1, 64, 7, 8), (5, 5), same(5, 2)),
    ConvolutionCase("eights of channels, wide", (2, 24, 9, 150), (3, 3), Window(padding_top=2, padding_right=1)),
    ConvolutionCase("eights of channels, many images", (9, 24, 5, 6), (7, 7), same(7, 2)),
    ConvolutionCase("fours of channels, wide", (2, 20, 9, 23), (3, 3), same(3)),
    ConvolutionCase("twos of channels", (3, 10, 6, 9), (5, 5), same(5)),
    ConvolutionCase("twos of channels, stride 2", (2, 22, 10, 11), (7, 7), same(7, 2)),
    ConvolutionCase("prime sizes", (3, 13, 17, 19), (3, 3), same(3)),
    ConvolutionCase("wider than a tile", (1, 2, 3, 131), (3, 3), same(3)),
    ConvolutionCase("taller than a tile", (1, 2, 131, 3), (3, 3), same(3)),
    ConvolutionCase(
        "an output grown by padding", (2, 3, 4, 5), (3, 3), Window(padding_top=3, padding_left=4, padding_bottom=5)
    ),
    ConvolutionCase("no padding", (2, 3, 6, 8), (3, 3), PLAIN),
    ConvolutionCase("1x1", (2, 3, 4, 5), (1, 1), PLAIN),
    ConvolutionCase("1x1 with stride", (2, 3, 4, 5), (1, 1), Window(2, 3)),
    ConvolutionCase("even kernel, padded as 'same'", (2, 3, 6, 5), (4, 2), Window(1, 1, 1, 0, 2, 1)),
    ConvolutionCase("kernel as large as the image", (2, 3, 5, 6), (5, 6), PLAIN),
    ConvolutionCase("kernel larger than the image", (2, 3, 4, 5), (9, 11), Window(1, 1, 4, 5, 4, 5)),
    ConvolutionCase("kernel clipped at the top and left alone", (1, 2, 6, 6), (5, 5), Window(1, 1, 4, 4, 0, 0)),
    ConvolutionCase("kernel clipped at the bottom and right alone", (1, 2, 6, 6), (5, 5), Window(1, 1, 0, 0, 4, 4)),
    ConvolutionCase("padding as large as the kernel", (1, 3, 4, 5), (3, 3), Window(1, 1, 3, 3, 3, 3)),
    ConvolutionCase("padding larger than the kernel", (1, 3, 4, 5), (3, 2), Window(2, 1, 5, 4, 6, 3)),
    ConvolutionCase("stride larger than the kernel", (2, 3, 11, 13), (2, 3), Window(4, 5, 1, 0, 1, 0)),
    ConvolutionCase("stride larger than the image", (2, 3, 4, 5), (3, 3), Window(7, 7, 1, 1, 1, 1)),
    ConvolutionCase("asymmetric everything", (2, 3, 10, 13), (3, 5), Window(2, 3, 1, 2, 3, 0, 2, 1)),
    ConvolutionCase("dilation 2", (1, 3, 11, 12), (3, 3), Window(1, 1, 2, 2, 2, 2, 2, 2)),
    ConvolutionCase("dilation 2, an odd width", (1, 3, 7, 13), (3, 3), Window(1, 1, 2, 2, 2, 2, 2, 2)),
    ConvolutionCase("dilation 2, narrow", (1, 3, 9, 6), (3, 3), Window(1, 1, 2, 2, 2, 2, 2, 2)),
    ConvolutionCase("dilation 3, narrow", (1, 32, 28, 9), (3, 3), Window(1, 1, 3, 2, 3, 2, 3, 3)),
    ConvolutionCase("dilation 3 with stride 2", (1, 3, 13, 12), (3, 3), Window(2, 2, 3, 3, 3, 3, 3, 3)),
    ConvolutionCase("dilation and stride with a common factor", (1, 2, 15, 14), (3, 4), Window(6, 4, 2, 3, 2, 3, 4, 2)),
    ConvolutionCase(
        "a stride that divides the dilation, 25 rows of 3x3", (1, 2, 56, 4), (3, 3), Window(2, 1, 1, 1, 1, 1, 4, 1)
    ),
    ConvolutionCase(
        "a stride that divides the dilation, 25 rows of 5x5", (1, 2, 25, 4), (5, 5), Window(1, 1, 4, 2, 4, 2, 2, 1)
    ),
    ConvolutionCase(
        "a stride that divides the dilation, 25 rows of 7x7", (1, 2, 25, 6), (7, 7), Window(1, 1, 6, 3, 6, 3, 2, 1)
    ),
    # The gathering kernel of the weight gradient: pixels of a column that lie apart, of each of its groups of taps.
    ConvolutionCase("columns of 3x3 taps with dilation 2", (1, 1, 33, 4), (3, 3), Window(1, 1, 2, 2, 2, 2, 2, 2)),
    ConvolutionCase("columns of 5x5 taps with dilation 2", (3, 66, 9, 4), (5, 5), Window(1, 1, 4, 4, 4, 4, 2, 2)),
    ConvolutionCase("columns of 7x7 taps with dilation 2", (1, 66, 17, 4), (7, 7), Window(1, 1, 6, 6, 6, 6, 2, 2)),
    ConvolutionCase("columns of 3x3 taps, stride 2, dilation 3", (2, 1, 25, 9), (3, 3), Window(2, 2, 3, 3, 3, 3, 3, 3)),
    ConvolutionCase(
        "columns of 5x5 taps, stride 2, dilation 3", (1, 33, 25, 9), (5, 5), Window(2, 2, 6, 6, 6, 6, 3, 3)
    ),
    ConvolutionCase("a stride as long as the dilation", (1, 3, 13, 9), (2, 3), Window(4, 3, 1, 1, 1, 1, 4, 3)),
    ConvolutionCase("dilation wider than the image", (1, 2, 4, 4), (2, 3), Window(1, 1, 5, 6, 5, 6, 5, 6)),
    ConvolutionCase(
        "3x3, dilation wider than the image", (2, 3, 5, 4), (3, 3), Window(1, 1, 6, 5, 6, 5, 6, 5), channels_last=True
    ),
    ConvolutionCase("no bias", (2, 3, 6, 7), (3, 3), same(3), bias=False),
    ConvolutionCase("multiplier 2", (2, 3, 6, 7), (3, 3), same(3), multiplier=2),
    ConvolutionCase("multiplier 3 with stride", (2, 2, 7, 6), (5, 3), Window(2, 2, 2, 1, 2, 1), multiplier=3),
    ConvolutionCase("one channel", (2, 1, 6, 7), (3, 3), same(3)),
    ConvolutionCase("one channel, multiplier 4", (2, 1, 6, 7), (3, 3), same(3), multiplier=4),
    ConvolutionCase("one pixel", (3, 4, 1, 1), (1, 1), PLAIN),
    ConvolutionCase("one pixel under 3x3", (3, 4, 1, 1), (3, 3), same(3)),
    ConvolutionCase("one row", (2, 3, 1, 9), (1, 5), Window(1, 1, 0, 2, 0, 2)),
    ConvolutionCase("one row under a stride, wide", (1, 8, 1, 224), (5, 5), Window(2, 2, 2, 0, 2, 0)),
    ConvolutionCase("one row under a stride, wider", (1, 8, 1, 530), (5, 5), Window(2, 2, 2, 0, 2, 0)),
    ConvolutionCase("one row that no tap meets", (2, 3, 1, 5), (1, 3), Window(3, 1, 1, 1, 1, 1)),
    ConvolutionCase("one column", (2, 3, 9, 1), (5, 1), Window(1, 1, 2, 0, 2, 0)),
    # What becomes of NaN is asked where nothing is padded; kernels on tensor cores take channels in eights.
    ConvolutionCase("eight channels, nothing padded", (1, 8, 6, 7), (3, 3), PLAIN),
    ConvolutionCase("empty batch", (0, 3, 6, 7), (3, 3), same(3)),
    ConvolutionCase("51x5 as in SLaK", (1, 2, 20, 19), (51, 5), Window(1, 1, 25, 2, 25, 2)),
    ConvolutionCase("5x51 as in SLaK", (1, 2, 19, 20), (5, 51), Window(1, 1, 2, 25, 2, 25)),
    ConvolutionCase("31x31 as in RepLKNet", (1, 2, 18, 17), (31, 31), same(31)),
    ConvolutionCase("51x51", (1, 1, 26, 25), (51, 51), same(51)),
)

_SINGLE = (
    # Few rows of the source are read, none of the first.
    ConvolutionCase("taps far apart under much padding", (1, 2, 2, 3), (2, 1), Window(1, 1, 12, 0, 9, 0, 9, 1)),
    # Channels of two images that are read twice each lie as far apart as eight would side by side.
    ConvolutionCase(
        "multiplier 2, three pixels", (2, 2, 1, 3), (1, 3), Window(1, 1, 0, 1, 0, 1), multiplier=2, channels_last=True
    ),
    # They fill a vector of sixteen.
    ConvolutionCase("two channels of eight images", (8, 2, 3, 4), (3, 3), same(3), channels_last=True),
    # Fewer than a tile of sixteen.
    ConvolutionCase("fifteen columns", (1, 2, 5, 15), (5, 5), same(5)),
    # Eights of channels in phases, some of which begin before the image.
    ConvolutionCase(
        "dilation 2, padded by one, eight channels",
        (1, 8, 6, 7),
        (3, 3),
        Window(1, 1, 1, 1, 1, 1, 2, 2),
        channels_last=True,
    ),
    # Phases of which most hold nothing, and one image more than lie side by side. Nothing is padded, as below.
    ConvolutionCase(
        "1x1 with dilation 8, 33 images of two pixels",
        (33, 8, 1, 2),
        (1, 1),
        Window(dilation_height=8, dilation_width=8),
        channels_last=True,
    ),
    ConvolutionCase(
        "3x4 with dilation 2, nothing padded", (1, 2, 8, 13), (3, 4), Window(dilation_height=2, dilation_width=2)
    ),
    # Blocks of rows as far apart as taps are, in whole vectors of sixteen.
    ConvolutionCase(
        "dilation 2, sixteen channels", (1, 16, 18, 30), (3, 3), Window(1, 1, 2, 2, 2, 2, 2, 2), channels_last=True
    ),
    # Columns one pixel wide, of more images and channels than a block has shared memory for.
    ConvolutionCase("31x1 on columns of 33 images", (33, 9, 31, 1), (31, 1), PLAIN),
    # The tallest whole planes, whose taps meet more rows of the output gradient than a block loads at a time.
    ConvolutionCase(
        "10x1 padded by nine, 56 rows", (1, 2, 56, 1), (10, 1), Window(1, 1, 9, 0, 9, 0), channels_last=True
    ),
    # A row of tiles takes more shared memory than there is.
    ConvolutionCase("31x31 on wide images", (1, 2, 3, 430), (31, 31), same(31)),
    # More columns than a tile of products has, and more rows than one holds of them.
    ConvolutionCase("rows of several tiles of products", (1, 2, 67, 203), (3, 3), same(3)),
    # Rows in whole fours or pairs, and pairs that windows meet at their second column.
    ConvolutionCase("3x3 with stride 2, rows in fours", (1, 2, 7, 12), (3, 3), Window(2, 2, 1, 1, 1, 1)),
    ConvolutionCase("3x3 with stride 2, rows in pairs", (1, 2, 7, 10), (3, 3), Window(2, 2, 1, 1, 1, 1)),
    ConvolutionCase("7x7 without padding, 70 columns", (1, 2, 8, 70), (7, 7), PLAIN),
    ConvolutionCase("3x3 padded by two, even rows", (1, 2, 4, 18), (3, 3), Window(1, 1, 2, 2, 2, 2)),
    ConvolutionCase("5x5 padded by one", (1, 2, 5, 12), (5, 5), Window(1, 1, 1, 1, 1, 1)),
    # Of seven columns, which leave padding no room to be rounded up to four.
    ConvolutionCase("7x7 padded by one", (1, 2, 7, 12), (7, 7), Window(1, 1, 1, 1, 1, 1)),
    ConvolutionCase("5x5 padded by a dozen", (1, 2, 4, 6), (5, 5), Window(1, 1, 12, 12, 12, 12)),
    # Tiles side by side, of which the first and the last lie in the padding.
    ConvolutionCase("1x3 padded by forty", (1, 2, 2, 3), (1, 3), Window(1, 1, 0, 40, 0, 30)),
    ConvolutionCase("3x3 with stride 2, without padding", (1, 2, 9, 42), (3, 3), Window(2, 2, 0, 0, 0, 1)),
    ConvolutionCase("3x3 with stride 2, 44 columns", (1, 2, 9, 44), (3, 3), Window(2, 2, 0, 0, 0, 0)),
    ConvolutionCase("5x5 with stride 2, padded by one", (1, 2, 9, 36), (5, 5), Window(2, 2, 1, 1, 1, 2)),
    ConvolutionCase("7x7 with stride 2, padded by two", (1, 2, 7, 12), (7, 7), Window(2, 2, 2, 2, 2, 2)),
    # 32 lanes with those that only hold sources, 33, and fewer, in whole pairs and not.
    *(
        ConvolutionCase(f"3x3 without padding, {width} columns", (2, 2, 5, width), (3, 3), PLAIN)
        for width in (17, 20, 21, 64, 65, 66)
    ),
    # Rows of an odd width that fill a warp or more, of one result a lane and of two.
    *(
        ConvolutionCase(f"{side}x{side}, {width} columns", (2, 3, 5, width), (side, side), same(side))
        for side, width in ((3, 17), (3, 63), (5, 37), (7, 37), (7, 65))
    ),
    *(
        ConvolutionCase(f"{side}x{side} with stride 2, eleven columns", (1, 2, 7, 11), (side, side), same(side, 2))
        for side in (5, 7)
    ),
    # Stride 2 with padding by which results of an input gradient move by two or four columns.
    ConvolutionCase("5x5 with stride 2, padded by four", (1, 2, 7, 12), (5, 5), Window(2, 2, 4, 4, 4, 3)),
    ConvolutionCase("5x5 with stride 2, without padding", (1, 2, 9, 12), (5, 5), Window(2, 2, 0, 0, 0, 1)),
    ConvolutionCase("7x7 with stride 2, padded by seven", (1, 2, 7, 16), (7, 7), Window(2, 2, 7, 7, 7, 6)),
    ConvolutionCase("empty batch, told channels_last", (0, 3, 6, 7), (3, 3), same(3), channels_last=True),
    # Two slices of channels, of which the second is not full.
    ConvolutionCase("3x3, 49 channels", (1, 49, 4, 5), (3, 3), same(3), channels_last=True),
    # Two slices of pairs of channels, a pair a lane, of which the second has a lane more than pairs.
    ConvolutionCase("7x7 with stride 2, 118 channels", (1, 118, 2, 3), (7, 7), same(7, 2), channels_last=True),
    # Blocks of a channel each, so many that they gather results in several turns.
    ConvolutionCase("1x1, 4096 channels", (1, 4096, 1, 2), (1, 1), PLAIN),
    # Rows that only fit the shared memory of several blocks more than have threads for them.
    ConvolutionCase(
        "3x3 with stride 2, 8650 columns of two channels", (1, 2, 1, 8650), (3, 3), same(3, 2), channels_last=True
    ),
    # Images that would fit side by side, but for the columns under their windows, which take more shared memory.
    ConvolutionCase("7x7 on 22 images of two pixels", (22, 32, 1, 2), (7, 7), same(7), channels_last=True),
)

# Either side of each border of the CPU's kernels on NHWC images, whose second vector of channels overlaps the first.
_ON_CPU = (
    # Strips of three to seven columns and up to sixteen rows; the weight gradient's hold up to 64 pixels.
    *(
        ConvolutionCase(f"3x3, {height} rows of {width} columns in NHWC", (1, 17, height, width), (3, 3), same(3))
        for height, width in ((17, 2), (17, 3), (16, 4), (17, 5), (17, 6), (16, 7), (17, 8), (3, 15), (3, 32), (3, 33))
    ),
    *(
        ConvolutionCase(f"3x3 with stride 2, {width} columns in NHWC", (1, 17, 33, width), (3, 3), same(3, 2))
        for width in (4, 5, 8, 9, 11, 14, 15)
    ),
    # Pairs of pixels of an input gradient, eight of them at a time, which begin within the image or before it.
    *(
        ConvolutionCase(
            f"3x3 with stride 2, padded by {padding} in NHWC", (1, 17, 8, width), (3, 3), Window(2, 2, *(padding,) * 4)
        )
        for padding, width in ((0, 37), (1, 38), (2, 37), (5, 18))
    ),
    # Patches of two rows or four of three to seven pixels, some of which have taps that no pixel meets.
    *(
        ConvolutionCase(
            f"{side}x{side} on planes of {size}x{size} in NHWC", (1, 17, size, size), (side, side), same(side)
        )
        for side in (5, 7, 9, 11, 13, 15)
        for size in (2, 3, 4, 5, 6, 7, 8)
    ),
    *(
        ConvolutionCase(
            f"{side}x{side} with stride 2 on planes of {size}x{size} in NHWC",
            (1, 17, size, size),
            (side, side),
            same(side, 2),
        )
        for side in (5, 7)
        for size in (7, 11, 13)
    ),
    ConvolutionCase(
        "5x5 on planes of 5x5 without padding on two sides", (1, 17, 7, 7), (5, 5), Window(1, 1, 2, 0, 0, 2)
    ),
    # Rows of patches under a kernel that is not centered on them, and rows that are narrower than their source.
    *(
        ConvolutionCase(
            f"{side}x{side} on {columns + shorter} columns, padded by {left} and {right} in NHWC",
            (1, 17, 3, columns + shorter),
            (side, side),
            Window(1, 1, side // 2, left, side // 2, right),
        )
        for side in (5, 7)
        for columns in (2, 3, 4, 5, 6, 7)
        for shorter, left, right in ((0, side // 2 + 1, side // 2 - 1), (1, side // 2, side // 2 - 1))
    ),
    *(
        ConvolutionCase(f"{side}x{side} on 2 columns in NHWC", (1, 17, 3, 2), (side, side), same(side))
        for side in (5, 7)
    ),
    # Patches under two taps: up to seven columns, under the one that lies where the output does or not.
    *(
        ConvolutionCase(
            f"2x2 with stride {stride} on {stride * columns} columns, padded by {left} and {right} in NHWC",
            (1, 17, 5, stride * columns),
            (2, 2),
            Window(stride, stride, left, left, right, right),
        )
        for stride, padding in ((1, ((1, 0), (0, 1))), (2, ((0, 0),)))
        for columns in (2, 3, 4, 5, 6, 7, 8)
        for left, right in padding
    ),
    # Patches of rows whose taps lie two columns apart: up to seven columns.
    *(
        ConvolutionCase(
            f"{side}x{side} with dilation 2 on {columns + shorter} columns, padded by {left} and {right} in NHWC",
            (1, 17, 3, columns + shorter),
            (side, side),
            Window(1, 1, side - 1, left, side - 1, right, 2, 2),
        )
        for side in (3, 5)
        for columns in (2, 3, 4, 5, 6, 7, 8)
        for shorter, left, right in ((0, side - 1, side - 1), (0, side, side - 2), (1, side - 1, side - 2))
    ),
    ConvolutionCase("16x5 on planes of 5x5 in NHWC", (1, 17, 5, 5), (16, 5), Window(1, 1, 8, 2, 7, 2)),
    ConvolutionCase("17x17 without padding, three rows and columns", (1, 17, 19, 19), (17, 17), PLAIN),
    ConvolutionCase("5x5 in NHWC, 17 vectors of channels", (1, 257, 3, 3), (5, 5), same(5)),
    # Tiles of ten to sixteen pixels.
    *(
        ConvolutionCase(f"5x5, {width} columns in NHWC", (1, 17, 3, width), (5, 5), same(5))
        for width in (9, 10, 11, 12, 13, 14, 15, 16, 17)
    ),
    # Sums that go to memory between groups of the kernel's rows.
    ConvolutionCase("31x31, 17 channels in NHWC", (1, 17, 20, 19), (31, 31), same(31)),
)

# Several vectors at a time, the last not full: all of an image, and some. In NHWC only halves are gathered.
_SEVERAL_VECTORS_ON_CPU = (
    *(
        ConvolutionCase(f"{channels} channels of nine images of {height}x3", (9, channels, height, 3), (3, 3), same(3))
        for channels, height in ((33, 3), (40, 5), (130, 5), (34, 60))
    ),
    # As many pixels as two vectors at a time may have, and one more.
    *(
        ConvolutionCase(f"33 channels of nine images of {height}x{width}", (9, 33, height, width), (3, 3), same(3))
        for height, width in ((8, 8), (5, 13))
    ),
    ConvolutionCase("20 channels of nine images, multiplier 2", (9, 20, 3, 3), (3, 3), same(3), multiplier=2),
    ConvolutionCase("two rows far apart, of several vectors", (9, 33, 12, 3), (2, 1), Window(1, 1, 0, 0, 0, 0, 11, 1)),
)

# Either side of each border of the CPU's kernels on NCHW images, whose channels are gathered into vectors.
_GATHERED_ON_CPU = (
    # Planes of fewer pixels than a vector has lanes, and of more; a vector of few planes, and one that they fill.
    *(
        ConvolutionCase(
            f"{channels} planes of {pixels} pixels", (1, channels, 1, pixels), (1, 3), Window(1, 1, 0, 1, 0, 1)
        )
        for channels in (2, 3, 17)
        for pixels in (1, 3, 4, 15, 16)
    ),
    *_SEVERAL_VECTORS_ON_CPU,
)

# Either side of what the CPU's kernels ask before they make an input gradient in strips or in pairs, and cut its rows.
_PHASES_ON_CPU = (
    ConvolutionCase("6x3 with stride 2 by 1", (1, 2, 9, 9), (6, 3), Window(2, 1, 2, 1, 2, 1)),
    ConvolutionCase("3x6 with stride 1 by 2", (1, 2, 9, 10), (3, 6), Window(1, 2, 1, 2, 1, 2)),
    ConvolutionCase("3x3 with stride 2 by 1", (1, 2, 8, 7), (3, 3), Window(2, 1, 1, 1, 1, 1)),
    ConvolutionCase("3x3 with stride 1 by 2", (1, 2, 7, 8), (3, 3), Window(1, 2, 1, 1, 1, 1)),
    ConvolutionCase("3x3 with stride 3 on planes of 2x2", (1, 2, 2, 2), (3, 3), Window(3, 3, 0, 0, 1, 1)),
    ConvolutionCase(
        "3x3 with stride 2 and dilation 3, 60 columns", (1, 2, 25, 60), (3, 3), Window(2, 2, 3, 3, 3, 3, 3, 3)
    ),
    ConvolutionCase(
        "3x3 with stride 2, padded behind", (1, 16, 8, 9), (3, 3), Window(2, 2, 1, 1, 3, 3), channels_last=True
    ),
    ConvolutionCase("3x3 with stride 2, 2400 columns", (1, 1, 5, 2400), (3, 3), Window(2, 2)),
    ConvolutionCase("a row of 2500 taps", (1, 1, 1, 3000), (1, 2500), PLAIN),
)

# Planes of the sizes that some kernels move whole, as few of them as a warp takes.
_WHOLE_PLANES = (
    ConvolutionCase("3x3 on planes of 7x7", (2, 40, 7, 7), (3, 3), same(3)),
    ConvolutionCase("5x5 on planes of 7x7", (14, 32, 7, 7), (5, 5), same(5)),
    ConvolutionCase("7x7 on planes of 7x7", (3, 33, 7, 7), (7, 7), same(7)),
    ConvolutionCase("3x3 on planes of 14x14", (13, 9, 14, 14), (3, 3), same(3)),
    ConvolutionCase("5x5 on planes of 14x14", (2, 8, 14, 14), (5, 5), same(5)),
    ConvolutionCase("7x7 on planes of 14x14", (3, 10, 14, 14), (7, 7), same(7)),
    ConvolutionCase("3x3 on planes of 28x28", (7, 3, 28, 28), (3, 3), same(3)),
    ConvolutionCase("5x5 on planes of 28x28", (2, 2, 28, 28), (5, 5), same(5)),
    ConvolutionCase("7x7 on planes of 28x28", (3, 5, 28, 28), (7, 7), same(7)),
    ConvolutionCase("13x13 over whole planes of 7x7", (17, 5, 7, 7), (13, 13), same(13)),
    ConvolutionCase("17x15 over whole planes of 7x7", (33, 3, 7, 7), (17, 15), Window(1, 1, 8, 8, 8, 6)),
    ConvolutionCase("27x29 over whole planes of 14x14", (17, 2, 14, 14), (27, 29), Window(1, 1, 13, 15, 13, 13)),
)

# Padding behind an image of a kernel's size or more, whose sources no result of an input gradient needs.
_PADDED_BEHIND = (
    ConvolutionCase("6x6, padded behind", (3, 5, 16, 16), (6, 6), Window(1, 1, 2, 2, 9, 16)),
    ConvolutionCase("7x7, padded behind", (3, 5, 16, 16), (7, 7), Window(1, 1, 4, 3, 3, 27)),
)

# Large kernels with a stride or a dilation, which are cut into phases: of odd and even padding, alike and unlike along
# the two directions, with phases that hold nothing.
_PHASES = (
    ConvolutionCase("11x11 with stride 2", (9, 3, 21, 22), (11, 11), same(11, 2)),
    ConvolutionCase("13x13 with stride 2", (2, 3, 22, 21), (13, 13), same(13, 2)),
    ConvolutionCase("12x15 with stride 3 and 2", (2, 3, 25, 20), (12, 15), Window(3, 2, 5, 7, 7, 3)),
    ConvolutionCase("11x11 with dilation 2", (2, 3, 22, 23), (11, 11), Window(1, 1, 10, 10, 10, 10, 2, 2)),
    ConvolutionCase("9x13 with dilation 3 and stride 2", (2, 3, 26, 21), (9, 13), Window(1, 2, 13, 5, 11, 6, 3, 1)),
    ConvolutionCase("13x9 with stride 4 and dilation 2", (2, 3, 19, 26), (13, 9), Window(4, 1, 6, 9, 6, 7, 1, 2)),
    ConvolutionCase(
        "8x8 with dilation 8, of which some phases hold nothing",
        (2, 3, 6, 17),
        (8, 8),
        Window(1, 1, 27, 28, 30, 28, 8, 8),
    ),
    # Phases of the most columns.
    ConvolutionCase("9x41 with stride 2", (2, 3, 11, 44), (9, 41), Window(2, 2, 4, 20, 4, 20)),
    ConvolutionCase("31x31 with stride 2 on one pixel", (2, 3, 1, 1), (31, 31), same(31, 2)),
    ConvolutionCase("31x8 with stride 8, nothing padded", (1, 3, 33, 40), (31, 8), Window(8, 8)),
    # The columns of one phase have as many rows in registers as the six of the other, and not as five have alone.
    ConvolutionCase(
        "1x18 with stride 2, eleven columns", (1, 16, 3, 11), (1, 18), Window(1, 2, 0, 7, 0, 8), channels_last=True
    ),
    # So much padding in front that no row of the output gradient meets a pixel.
    ConvolutionCase("14x7 with stride 2, none of it on pixels", (2, 3, 1, 9), (14, 7), Window(2, 2, 14, 3, 0, 3)),
)

# Slides on NHWC images that are long enough to pay on a device of a few multiprocessors, as the emulated one.
_LONG_SLIDES = (
    ConvolutionCase("3x3, long slides", (2, 40, 56, 57), (3, 3), same(3), channels_last=True),
    ConvolutionCase("3x3 with stride 2, long slides", (2, 40, 75, 77), (3, 3), same(3, 2), channels_last=True),
    ConvolutionCase("5x5, long slides", (1, 40, 52, 53), (5, 5), same(5), channels_last=True),
    ConvolutionCase("5x5 with stride 2, long slides", (1, 40, 57, 59), (5, 5), same(5, 2), channels_last=True),
    ConvolutionCase("7x7, long slides", (1, 40, 44, 45), (7, 7), same(7), channels_last=True),
    ConvolutionCase("7x7 with stride 2, long slides", (1, 40, 37, 39), (7, 7), same(7, 2), channels_last=True),
    # Of halves a copy with whole eights of channels pays from so many products on, where there are up to four
    # multiprocessors.
    ConvolutionCase("7x7, channels that are not in eights", (1, 9, 49, 49), (7, 7), same(7), channels_last=True),
)


def _both_layouts() -> Iterator[ConvolutionCase]:
    for number, case in enumerate(_BOTH_LAYOUTS):
        yield case
        # A gradient that is not told otherwise is laid out as what it is made of: here.
        yield replace(case, name=f"{case.name}, channels_last", channels_last=True, is_told=number % 2 == 0)


def _draw_case(random: Random) -> ConvolutionCase:
    dilation = random.randint(1, 3), random.randint(1, 3)
    kernel = random.randint(1, 5), random.randint(1, 5)
    size = random.randint(1, 9), random.randint(1, 9)
    spans = [gap * (taps - 1) + 1 for gap, taps in zip(dilation, kernel, strict=True)]
    # Padding before and behind, at least as much as the kernel needs to fit.
    top, left = random.randint(0, 4), random.randint(0, 4)
    bottom = max(random.randint(0, 4), spans[0] - size[0] - top)
    right = max(random.randint(0, 4), spans[1] - size[1] - left)
    return ConvolutionCase(
        "drawn",
        (random.randint(0, 3), random.randint(1, 5), *size),
        kernel,
        Window(random.randint(1, 4), random.randint(1, 4), top, left, bottom, right, *dilation),
        multiplier=random.randint(1, 3),
        bias=random.random() < 0.5,
        channels_last=random.random() < 0.5,
        is_told=random.random() < 0.5,
    )


def _taps_summed(input: Any, weight: Any, *rest: Any) -> int:
    return int(weight.shape[2] * weight.shape[3])


def _input_grad_summed(output_grad: Any, weight: Any, channels: int, *rest: Any) -> int:
    return int(weight.shape[2] * weight.shape[3] * (weight.shape[0] // channels))


def _outputs_summed(output_grad: Any, *rest: Any) -> int:
    return int(output_grad.shape[0] * output_grad.shape[2] * output_grad.shape[3])


def _is_defined(sample: Sample) -> bool:
    """Whether no tap lies over padding: there PyTorch's own implementations disagree about NaN times nothing."""
    return not Window(*sample.arguments[-len(PLAIN) :]).padded


def _is_never_defined(sample: Sample) -> bool:
    """For the gradients: at the border of an image even a convolution without padding has taps over nothing."""
    return False


_MODULES = (
    ModuleSample("3x3 with padding", lambda: DepthwiseConv2d(3, 3, padding=1), (Drawn((2, 3, 6, 7)),)),
    ModuleSample(
        "every option",
        lambda: DepthwiseConv2d(2, (3, 2), 2, (2, 1), (1, 2), bias=False, channel_multiplier=3, padding_mode="reflect"),
        (Drawn((2, 2, 7, 8), channels_last=True),),
    ),
)


def _replaced(name: str, bias: bool) -> ReplacedLayer:
    return ReplacedLayer(
        name,
        "nn.Conv2d",
        partial(DepthwiseConv2d, 8, 3, padding=1, bias=bias),
        partial(torch.nn.Conv2d, 8, 8, 3, padding=1, groups=8, bias=bias),
        (2, 8, 8, 8),
    )


_REPLACED = (_replaced("DepthwiseConv2d", bias=True), _replaced("DepthwiseConv2d, no bias", bias=False))

_CASES = (
    *_both_layouts(),
    *_SINGLE,
    *(replace(case, channels_last=True) for case in _ON_CPU),
    *_GATHERED_ON_CPU,
    *(replace(case, name=f"{case.name} in NHWC", channels_last=True) for case in _SEVERAL_VECTORS_ON_CPU),
    *_PHASES_ON_CPU,
    *_WHOLE_PLANES,
    *_PADDED_BEHIND,
    *_PHASES,
    *_LONG_SLIDES,
)


def _weight_grad_in_parts(sample: Sample) -> Large:
    return Large(sample, batched=(0, 1), combine="sum")


# The last image lies beyond what 32 bits can index.
_LARGE = tuple(
    ConvolutionCase(
        f"more than 2**31 elements{name}", (130, 64, 512, 512), (3, 3), same(3), channels_last=channels_last
    )
    for name, channels_last in (("", False), (", channels_last", True))
)


def _samples(
    make: Callable[[ConvolutionCase], Sample],
    summed: Callable[..., int],
    non_finite: Callable[[Sample], bool],
    rival: Callable[..., Any],
    large: Callable[[Sample], Large] = Large,
    modules: tuple[ModuleSample, ...] = (),
    replaced: tuple[ReplacedLayer, ...] = (),
    networks: Distribution | None = None,
) -> Samples:
    return Samples(
        tuple(make(case) for case in _CASES),
        lambda random: make(_draw_case(random)),
        stress=lambda random, budget: make(draw_any(random, budget)),
        summed=summed,
        large=tuple(large(make(case)) for case in _LARGE),
        non_finite=non_finite,
        modules=modules,
        replaced=replaced,
        benchmarks=tuple(benchmarks.of(make, large)),
        rivals={"pytorch": rival},
        networks=networks,
    )


samples = {
    # Its gradients are passes of the rows that are drawn of it. A transposed convolution is an input gradient.
    "depthwise_conv2d": _samples(
        ConvolutionCase.forward,
        _taps_summed,
        _is_defined,
        benchmarks.conv2d,
        modules=_MODULES,
        replaced=_REPLACED,
        networks=benchmarks.NETWORKS,
    ),
    "depthwise_conv2d_input_grad": _samples(
        ConvolutionCase.input_grad,
        _input_grad_summed,
        _is_never_defined,
        benchmarks.conv2d_input_grad,
        networks=benchmarks.TRANSPOSED,
    ),
    "depthwise_conv2d_weight_grad": _samples(
        ConvolutionCase.weight_grad,
        _outputs_summed,
        _is_never_defined,
        benchmarks.conv2d_weight_grad,
        _weight_grad_in_parts,
    ),
}
