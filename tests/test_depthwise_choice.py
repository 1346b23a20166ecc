"""Which kernel serves a depthwise convolution on CUDA: both sides of every boundary of cuda/policy.h.

The header is host code alone: the tests compile it into a program and ask that, on a machine without a GPU.
"""

import itertools
import re
import subprocess
from dataclasses import dataclass, fields, replace

import pytest

from choice import PACKAGE, build, kernels_in
from torchgraft.operators.depthwise_conv2d.window import Window

FOLDER = PACKAGE / "operators/depthwise_conv2d"


@dataclass(frozen=True)
class Call:
    """A pass over images; None for the padding that keeps an odd kernel's size, and for as much behind as in front."""

    images: tuple[int, int, int, int] = (128, 96, 56, 56)
    kernel: int | tuple[int, int] = 3
    direction: str = "forward"
    layout: str = "NCHW"
    element_bytes: int = 4
    stride: int | tuple[int, int] = 1
    dilation: int | tuple[int, int] = 1
    padding: int | tuple[int, int] | None = None
    padding_behind: int | None = None
    multiplier: int = 1
    alignment: int = 16
    tensor_cores: bool = True
    shared_bytes: int = 227 * 1024
    multiprocessors: int = 132

    def __str__(self):
        changed = [field for field in fields(self) if getattr(self, field.name) != field.default]
        return ", ".join(f"{field.name} {getattr(self, field.name)}" for field in changed)

    def line(self):
        """What the program reads."""
        kernel, stride, dilation = (_both(each) for each in (self.kernel, self.stride, self.dilation))
        padding = (kernel[0] // 2, kernel[1] // 2) if self.padding is None else _both(self.padding)
        behind = padding if self.padding_behind is None else _both(self.padding_behind)
        batch, channels, *sizes = self.images
        window = Window(*stride, *padding, *behind, *dilation)
        outputs = window.output_size(*sizes, *kernel)
        rows, columns = zip(sizes, outputs, kernel, stride, padding, dilation, strict=True)
        layout = self.layout == "NHWC", self.element_bytes, self.alignment
        device = self.tensor_cores, self.shared_bytes, self.multiprocessors
        numbers = (*layout, *device, batch, channels, self.multiplier, *rows, *columns)
        return " ".join([self.direction, *(str(int(number)) for number in numbers)])


def _both(value):
    return (value, value) if isinstance(value, int) else value


PLANES = Call(images=(128, 768, 7, 7))
HALVES = Call(element_bytes=2, kernel=7)
PIXELS = Call(layout="NHWC")
HALF_PIXELS = replace(PIXELS, element_bytes=2, kernel=7)
BATCH = replace(HALVES, kernel=31)
LARGE = replace(BATCH, images=(128, 96, 64, 64))
PHASES = Call(element_bytes=2, kernel=13, dilation=2, padding=12)
WHOLE = Call(images=(64, 1024, 7, 7), kernel=13)
DILATED = Call(images=(1, 256, 64, 64), dilation=2, padding=2)
DILATED_PIXELS = replace(DILATED, layout="NHWC")
ANY = replace(PIXELS, images=(1, 1, 64, 64), kernel=6)
COLUMNS, ONE = "gather_columns", "gather_small"
CHANNELS = "slide_weight_grad_mma"
PLANES_OF_CHANNELS = "diagonals_nhwc"
WINDOWS, SLIDING = "slide_window", "slide_correlate"
SLIDING_PRODUCTS = "slide_correlate_mma"
BY_COLUMNS, GRAD_BY_COLUMNS = "slide_columns", "slide_columns_weight_grad"
PRODUCTS, LARGE_PRODUCTS = "bands_small", "bands_large"
BATCH_PRODUCTS = "bands_batch"


def weight_grad(call, **changes):
    return replace(call, direction="weight_grad", **changes)


def input_grad(call, **changes):
    return replace(call, direction="input_grad", **changes)


# What is asked: a call and its kernel, then changes to the call and the kernel that each leads to.
BOUNDARIES = {
    "small planes: sides": (
        (PLANES, "small_planes_correlate"),
        ({"images": (128, 768, 6, 6)}, "strips_correlate"),
        ({"images": (128, 768, 8, 8)}, "strips_correlate"),
        ({"images": (128, 768, 13, 13)}, "strips_correlate"),
        ({"images": (128, 768, 14, 14)}, "small_planes_correlate"),
        ({"images": (128, 768, 28, 28)}, "small_planes_correlate"),
        ({"images": (128, 768, 29, 29)}, "strips_correlate"),
        ({"images": (128, 768, 7, 8)}, "strips_correlate"),
        ({"images": (128, 768, 7, 14)}, "strips_correlate"),
        ({"images": (128, 768, 28, 28), "kernel": 5}, "small_planes_correlate"),
        ({"images": (128, 768, 28, 28), "kernel": 7}, "strips_correlate"),
    ),
    "small planes: kernels": (
        (replace(PLANES, kernel=7), "small_planes_correlate"),
        ({"kernel": 5}, "small_planes_correlate"),
        ({"kernel": 9}, "tiles_correlate"),
        ({"kernel": (7, 5)}, "tiles_correlate"),
        ({"padding": 2}, "strips_correlate"),
        ({"padding_behind": 2}, "strips_correlate"),
        ({"padding_behind": 4}, "strips_correlate"),
        ({"stride": 2}, "strips_correlate"),
        ({"dilation": 2, "kernel": 3, "padding": 2}, COLUMNS),
        ({"multiplier": 2}, "strips_correlate"),
        ({"element_bytes": 2}, "small_planes_correlate"),
        ({"element_bytes": 8}, "gather_large"),
        ({"alignment": 8}, "strips_correlate"),
        ({"direction": "input_grad"}, "small_planes_correlate"),
    ),
    "small planes: enough of them": (
        (replace(PLANES, images=(132, 128, 7, 7)), "small_planes_correlate"),
        ({"images": (131, 128, 7, 7)}, COLUMNS),
        ({"images": (1000, 32, 7, 7)}, "small_planes_correlate"),
        ({"images": (1000, 31, 7, 7)}, "strips_correlate"),
        ({"images": (1, 2**23 - 1, 7, 7)}, "small_planes_correlate"),
        ({"images": (1, 2**23, 7, 7)}, "strips_correlate"),
        ({"images": (2**14, 2**15 - 1, 7, 7)}, "small_planes_correlate"),
        ({"images": (2**14, 2**15, 7, 7)}, "gather_any"),
    ),
    "a share of a smaller device: planes": (
        (replace(PLANES, images=(66, 128, 7, 7), multiprocessors=66), "small_planes_correlate"),
        ({"images": (65, 128, 7, 7)}, COLUMNS),
        ({"images": (66, 128, 7, 7), "multiprocessors": 67}, COLUMNS),
    ),
    "a share of a smaller device: products": (
        (replace(HALVES, images=(1, 512, 32, 32), multiprocessors=66), PRODUCTS),
        ({"images": (1, 511, 32, 32)}, "strips_correlate"),
        ({"direction": "weight_grad"}, "diagonals_nchw"),
        ({"images": (1, 511, 32, 32), "direction": "weight_grad"}, "strips_weight_grad"),
    ),
    "a share of a smaller device: columns": (
        (replace(DILATED, images=(1, 8, 64, 64), multiprocessors=66), COLUMNS),
        ({"images": (1, 7, 64, 64)}, ONE),
        ({"images": (1, 16, 64, 64), "kernel": 5, "padding": 4}, COLUMNS),
        ({"images": (1, 15, 64, 64), "kernel": 5, "padding": 4}, ONE),
        ({"images": (1, 32, 64, 64), "layout": "NHWC", "multiplier": 2}, "gather_columns_nhwc"),
        ({"images": (1, 31, 64, 64), "layout": "NHWC", "multiplier": 2}, ONE),
    ),
    "small planes: weight gradient": (
        (weight_grad(PLANES), "small_planes_weight_grad"),
        ({"images": (12, 352, 14, 14)}, "small_planes_weight_grad"),
        ({"images": (11, 384, 14, 14)}, "strips_weight_grad"),
        ({"images": (32, 132, 14, 14)}, "small_planes_weight_grad"),
        ({"images": (32, 131, 14, 14)}, "strips_weight_grad"),
        ({"images": (1000, 36, 7, 7)}, "small_planes_weight_grad"),
        ({"images": (1200, 34, 7, 7)}, "gather_weight_grad"),
        ({"images": (1000, 32, 7, 7)}, "small_planes_weight_grad"),
        ({"images": (1400, 28, 7, 7)}, "gather_weight_grad"),
        # Of few pixels of a channel.
        ({"images": (12, 3168, 7, 7)}, "gather_weight_grad"),
        ({"images": (12, 3172, 7, 7)}, "small_planes_weight_grad"),
        ({"images": (1200, 36, 7, 7), "element_bytes": 2}, "gather_weight_grad"),
        ({"images": (1000, 40, 7, 7), "element_bytes": 2}, "small_planes_weight_grad"),
        ({"images": (128, 768, 28, 28), "kernel": 5}, "strips_weight_grad"),
        ({"images": (128, 768, 28, 28), "kernel": 3}, "small_planes_weight_grad"),
        ({"images": (128, 768, 28, 28), "kernel": 5, "element_bytes": 2}, "small_planes_weight_grad"),
    ),
    "band matrices, NCHW": (
        (HALVES, PRODUCTS),
        ({"kernel": 5}, "strips_correlate"),
        ({"kernel": 6}, PRODUCTS),
        ({"kernel": (1, 6)}, PRODUCTS),
        ({"kernel": (7, 8)}, PRODUCTS),
        ({"kernel": (7, 9)}, BATCH_PRODUCTS),
        ({"kernel": (8, 7)}, BATCH_PRODUCTS),
        ({"images": (1, 256, 64, 64)}, PRODUCTS),
        ({"images": (1, 255, 64, 64)}, "strips_correlate"),
        ({"tensor_cores": False}, "strips_correlate"),
        ({"element_bytes": 4}, "strips_correlate"),
        ({"padding": 6}, PRODUCTS),
        ({"padding": 7}, "strips_correlate"),
        ({"padding": (6, 7)}, "strips_correlate"),
        ({"stride": 2}, "strips_correlate"),
        ({"dilation": 2}, COLUMNS),
        ({"alignment": 2}, PRODUCTS),
        ({"multiplier": 2}, LARGE_PRODUCTS),
        ({"direction": "input_grad"}, PRODUCTS),
        ({"direction": "input_grad", "multiplier": 2}, "tiles_correlate"),
        ({"images": (1, 2**15, 2**16 - 1, 1)}, PRODUCTS),
        ({"images": (1, 2**15, 2**16, 1)}, "tiles_correlate"),
    ),
    "products of four channels": (
        (HALF_PIXELS, SLIDING_PRODUCTS),
        ({"kernel": 5}, SLIDING_PRODUCTS),
        ({"kernel": 3}, BY_COLUMNS),
        ({"kernel": 2}, "gather_columns_nhwc"),
        ({"kernel": (1, 3)}, SLIDING_PRODUCTS),
        ({"kernel": (7, 6)}, SLIDING_PRODUCTS),
        ({"kernel": (5, 8)}, "gather_large"),
        ({"images": (128, 104, 56, 56)}, SLIDING_PRODUCTS),
        ({"images": (128, 100, 56, 56)}, "slide_correlate"),
        ({"alignment": 8}, "slide_correlate"),
        ({"tensor_cores": False}, "slide_correlate"),
        ({"element_bytes": 4}, "slide_correlate"),
        ({"padding": 7}, SLIDING_PRODUCTS),
        ({"stride": 2}, SLIDING_PRODUCTS),
        ({"kernel": 4, "stride": 2}, SLIDING_PRODUCTS),
        ({"kernel": 3, "stride": 2}, "slide_correlate"),
        ({"stride": 3}, "gather_large"),
        ({"stride": (1, 2)}, "gather_columns_nhwc"),
        ({"dilation": (1, 2)}, SLIDING_PRODUCTS),
        ({"dilation": 2, "padding": 6, "images": (1, 8, 128, 128)}, SLIDING_PRODUCTS),
        ({"dilation": 2, "padding": 6, "images": (1, 8, 127, 129)}, "gather_large"),
        ({"direction": "input_grad"}, SLIDING_PRODUCTS),
        ({"direction": "input_grad", "stride": 2}, "slide_correlate"),
        ({"multiplier": 2}, "gather_columns_nhwc"),
        ({"images": (1, 8, 2**14, 2**14 - 1)}, SLIDING_PRODUCTS),
        ({"images": (1, 8, 2**14, 2**14)}, "slide_correlate"),
        ({"images": (2**20, 8, 1023, 1), "kernel": 5}, SLIDING_PRODUCTS),
        ({"images": (2**20, 8, 1024, 1), "kernel": 5}, WINDOWS),
    ),
    "band matrices of many images": (
        (BATCH, BATCH_PRODUCTS),
        ({"images": (4, 96, 56, 56)}, BATCH_PRODUCTS),
        ({"images": (3, 96, 56, 56)}, LARGE_PRODUCTS),
        ({"images": (1024, 1024, 7, 7), "kernel": 13}, BATCH_PRODUCTS),
        ({"images": (1024, 1024, 8, 8)}, BATCH_PRODUCTS),
        ({"images": (64, 41, 28, 28), "kernel": 29}, BATCH_PRODUCTS),
        ({"images": (3, 335, 28, 28), "kernel": 29}, LARGE_PRODUCTS),
        ({"images": (64, 1, 28, 28), "kernel": 29}, BATCH_PRODUCTS),
        ({"images": (64, 1, 28, 28), "kernel": 13}, BATCH_PRODUCTS),
        ({"images": (64, 1, 28, 28), "kernel": 12}, "tiles_correlate"),
        ({"images": (64, 21, 28, 28), "kernel": 11}, BATCH_PRODUCTS),
        ({"images": (64, 20, 28, 28), "kernel": 11}, "tiles_correlate"),
        # The columns that a kernel reaches.
        ({"images": (128, 96, 56, 57)}, LARGE_PRODUCTS),
        ({"kernel": 33}, BATCH_PRODUCTS),
        ({"kernel": 34}, LARGE_PRODUCTS),
        ({"images": (128, 96, 54, 54), "padding": 16}, BATCH_PRODUCTS),
        ({"images": (128, 96, 52, 52), "padding": 17}, LARGE_PRODUCTS),
        ({"padding": 13}, LARGE_PRODUCTS),
        ({"padding": 14}, BATCH_PRODUCTS),
        ({"images": (128, 96, 32, 32), "kernel": 55}, BATCH_PRODUCTS),
        ({"images": (128, 96, 32, 33), "kernel": 55}, LARGE_PRODUCTS),
        ({"images": (128, 96, 56, 30), "kernel": (3, 101), "padding": (1, 50)}, BATCH_PRODUCTS),
        ({"images": (8, 1, 1, 1), "kernel": (2**14, 2**13)}, BATCH_PRODUCTS),
        ({"images": (8, 1, 1, 1), "kernel": (2**14, 2**13 + 1)}, "gather_any"),
        ({"padding": 31}, "tiles_correlate"),
        ({"tensor_cores": False}, "tiles_correlate"),
        ({"element_bytes": 4}, "tiles_correlate"),
        ({"stride": 2}, LARGE_PRODUCTS),
        ({"layout": "NHWC"}, "gather_large"),
        ({"multiplier": 2}, LARGE_PRODUCTS),
        ({"alignment": 2}, BATCH_PRODUCTS),
        ({"direction": "input_grad"}, BATCH_PRODUCTS),
        ({"direction": "input_grad", "multiplier": 2}, "tiles_correlate"),
        ({"direction": "input_grad", "padding": 14}, BATCH_PRODUCTS),
        ({"direction": "input_grad", "padding": 13}, LARGE_PRODUCTS),
        # Sixteen images and the taps of a channel in shared memory.
        ({"images": (128, 96, 126, 56)}, BATCH_PRODUCTS),
        ({"images": (128, 96, 127, 56)}, LARGE_PRODUCTS),
        ({"shared_bytes": 99 * 1024}, LARGE_PRODUCTS),
        ({"shared_bytes": 99 * 1024, "images": (128, 96, 28, 28), "kernel": 29}, BATCH_PRODUCTS),
    ),
    "band matrices of large kernels": (
        (LARGE, LARGE_PRODUCTS),
        ({"images": (3, 1024, 14, 14)}, LARGE_PRODUCTS),
        ({"images": (3, 4096, 8, 8), "kernel": 13}, "tiles_correlate"),
        ({"images": (3, 4096, 8, 9), "kernel": 13}, LARGE_PRODUCTS),
        ({"kernel": 57}, LARGE_PRODUCTS),
        ({"kernel": (57, 58)}, "tiles_correlate"),
        ({"kernel": (256, 3)}, LARGE_PRODUCTS),
        ({"kernel": (257, 3)}, "tiles_correlate"),
        ({"padding": 31}, "tiles_correlate"),
        ({"padding": (30, 31)}, "tiles_correlate"),
        ({"tensor_cores": False}, "tiles_correlate"),
        ({"element_bytes": 4}, "tiles_correlate"),
        ({"stride": 2}, LARGE_PRODUCTS),
        ({"layout": "NHWC"}, "gather_large"),
        ({"multiplier": 2}, LARGE_PRODUCTS),
        ({"direction": "input_grad"}, LARGE_PRODUCTS),
        ({"direction": "input_grad", "multiplier": 2}, "tiles_correlate"),
        # An image in shared memory.
        ({"images": (128, 96, 517, 56)}, LARGE_PRODUCTS),
        ({"images": (128, 96, 518, 56)}, "tiles_correlate"),
        ({"images": (128, 96, 517, 56), "shared_bytes": 96 * 1024}, LARGE_PRODUCTS),
        ({"images": (128, 96, 517, 56), "shared_bytes": 95 * 1024}, "tiles_correlate"),
        ({"images": (300, 1, 1, 4096), "kernel": (256, 3), "padding": (255, 1)}, LARGE_PRODUCTS),
        ({"images": (300, 1, 1, 4097), "kernel": (256, 3), "padding": (255, 1)}, "tiles_correlate"),
    ),
    # Kernels compute strides and dilations in phases too, which are not timed yet: none is chosen for them.
    "phases": (
        (PHASES, LARGE_PRODUCTS),
        ({"dilation": 1, "stride": 2}, LARGE_PRODUCTS),
        ({"direction": "input_grad", "dilation": 1, "stride": 2}, LARGE_PRODUCTS),
        ({"direction": "weight_grad"}, "diagonals_nchw"),
        ({"direction": "weight_grad", "dilation": 1, "stride": 2}, "diagonals_nchw"),
        ({"layout": "NHWC", "kernel": 7, "padding": 6}, SLIDING_PRODUCTS),
        # Products enough, and more pixels than 64.
        ({"images": (1, 1, 65, 64), "kernel": 32, "dilation": 1, "stride": 1, "padding": (15, 16)}, LARGE_PRODUCTS),
        ({"images": (1, 16, 64, 64), "kernel": 8, "padding": 7}, LARGE_PRODUCTS),
        ({"images": (1, 16, 63, 64), "kernel": 8, "padding": 7}, "gather_large"),
        ({"images": (2, 4096, 8, 9)}, LARGE_PRODUCTS),
        ({"images": (2, 4096, 8, 8)}, "gather_large"),
    ),
    "whole planes": (
        (WHOLE, "small_planes_whole"),
        ({"images": (64, 512, 14, 14), "kernel": 27}, "small_planes_whole"),
        ({"images": (64, 512, 14, 14), "kernel": 25}, "tiles_correlate"),
        ({"images": (64, 1024, 6, 6)}, "tiles_correlate"),
        ({"images": (64, 1024, 7, 14), "kernel": 27}, "tiles_correlate"),
        ({"images": (64, 1024, 7, 8), "kernel": 15}, "tiles_correlate"),
        ({"images": (16, 1, 7, 7)}, "small_planes_whole"),
        ({"images": (15, 1024, 7, 7)}, "tiles_correlate"),
        ({"kernel": 15}, "small_planes_whole"),
        ({"kernel": 12, "padding": 6}, "tiles_correlate"),
        ({"kernel": (13, 15)}, "small_planes_whole"),
        ({"kernel": 15, "padding": 6}, "tiles_correlate"),
        ({"kernel": 15, "padding_behind": 6}, "tiles_correlate"),
        ({"kernel": (2**14 - 1, 2**13 - 1)}, "small_planes_whole"),
        ({"kernel": (2**14 + 1, 2**13 + 1)}, "gather_any"),
        ({"element_bytes": 2, "tensor_cores": False}, "tiles_correlate"),
        ({"element_bytes": 8}, "gather_large"),
        ({"alignment": 4}, "small_planes_whole"),
        ({"multiplier": 2}, "tiles_correlate"),
        ({"layout": "NHWC"}, "gather_large"),
        ({"direction": "input_grad"}, "small_planes_whole"),
    ),
    "diagonals, NCHW": (
        (weight_grad(HALVES), "diagonals_nchw"),
        ({"kernel": 5}, "strips_weight_grad"),
        ({"kernel": 6}, "diagonals_nchw"),
        ({"kernel": 111}, "diagonals_nchw"),
        ({"images": (1, 256, 64, 64)}, "diagonals_nchw"),
        ({"images": (1, 255, 64, 64)}, "strips_weight_grad"),
        ({"tensor_cores": False}, "strips_weight_grad"),
        ({"element_bytes": 4}, "strips_weight_grad"),
        ({"alignment": 2}, "diagonals_nchw"),
        ({"stride": 2}, "strips_weight_grad"),
        ({"dilation": 2}, "gather_weight_grad"),
        ({"multiplier": 2}, "strips_weight_grad"),
        ({"kernel": (7, 1), "images": (1, 1, 2**27, 1)}, "diagonals_nchw"),
        ({"kernel": (7, 1), "images": (1, 1, 2**27 + 1, 1)}, "tiles_weight_grad"),
        ({"images": (2**10, 2**10, 7, 1), "kernel": (7, 1), "padding": (2**20, 0)}, "diagonals_nchw"),
        ({"images": (2**10, 2**10, 7, 1), "kernel": (7, 1), "padding": (2**20 + 1, 0)}, "tiles_weight_grad"),
        # Small planes of an odd width.
        ({"images": (128, 96, 73, 7)}, "strips_weight_grad"),
        ({"images": (128, 96, 64, 8)}, "diagonals_nchw"),
        ({"images": (128, 96, 27, 19)}, "diagonals_nchw"),
        ({"images": (128, 96, 73, 7), "kernel": 6}, "diagonals_nchw"),
        ({"images": (2**31 - 2, 1, 7, 7)}, "diagonals_nchw"),
        ({"images": (2**31 - 1, 1, 7, 7)}, "gather_weight_grad_any"),
    ),
    "diagonals of channels": (
        (weight_grad(HALF_PIXELS, kernel=5), CHANNELS),
        ({"kernel": 3}, CHANNELS),
        ({"kernel": 7}, PLANES_OF_CHANNELS),
        ({"kernel": 7, "images": (128, 96, 56, 8)}, PLANES_OF_CHANNELS),
        ({"kernel": 7, "stride": 2}, CHANNELS),
        ({"kernel": 6}, PLANES_OF_CHANNELS),
        ({"kernel": 9}, PLANES_OF_CHANNELS),
        ({"kernel": (5, 7)}, PLANES_OF_CHANNELS),
        ({"stride": 2}, CHANNELS),
        ({"stride": 3}, "gather_weight_grad"),
        ({"stride": (1, 2)}, "gather_weight_grad"),
        ({"dilation": 2}, "gather_weight_grad"),
        ({"padding": 4}, CHANNELS),
        ({"padding": 5}, PLANES_OF_CHANNELS),
        ({"padding": 5, "stride": 2}, "slide_weight_grad"),
        # Pixels are copied in pieces of eight bytes, of four, and of two, which cannot be.
        ({"images": (128, 100, 56, 56)}, CHANNELS),
        ({"images": (128, 100, 56, 56), "kernel": 3}, CHANNELS),
        ({"images": (128, 98, 56, 56)}, CHANNELS),
        ({"images": (128, 98, 56, 56), "kernel": 3}, GRAD_BY_COLUMNS),
        ({"images": (128, 97, 56, 56)}, PLANES_OF_CHANNELS),
        ({"alignment": 8, "kernel": 3}, CHANNELS),
        ({"alignment": 4}, CHANNELS),
        ({"alignment": 4, "kernel": 3}, GRAD_BY_COLUMNS),
        ({"alignment": 2}, PLANES_OF_CHANNELS),
        ({"tensor_cores": False}, "slide_weight_grad"),
        ({"element_bytes": 4}, "slide_weight_grad"),
        ({"multiplier": 2}, "gather_weight_grad"),
        ({"images": (1, 7288, 1, 64), "kernel": 3}, CHANNELS),
        ({"images": (1, 7288, 1, 65), "kernel": 3}, "slide_weight_grad"),
        ({"images": (1, 2**24 - 8, 1, 64), "kernel": 3}, CHANNELS),
        ({"images": (1, 2**24, 1, 64), "kernel": 3}, "gather_weight_grad_any"),
        ({"images": (2**20, 8, 1017, 1), "kernel": 3}, CHANNELS),
        ({"images": (2**20, 8, 1018, 1), "kernel": 3}, GRAD_BY_COLUMNS),
    ),
    "diagonals, NHWC": (
        (weight_grad(HALF_PIXELS, images=(128, 97, 56, 56)), "diagonals_nhwc"),
        ({"kernel": 5}, "diagonals_nhwc"),
        ({"kernel": 4}, "gather_weight_grad"),
        ({"kernel": (3, 4)}, "gather_weight_grad"),
        ({"kernel": (10, 9)}, "diagonals_nhwc"),
        ({"kernel": (11, 9)}, "gather_weight_grad"),
        ({"kernel": (10, 10)}, "gather_weight_grad"),
        ({"images": (16, 97, 28, 28), "alignment": 2}, "diagonals_nhwc"),
        ({"images": (128, 98, 56, 56), "tensor_cores": False}, "slide_weight_grad"),
        ({"images": (128, 98, 56, 56), "stride": 2}, CHANNELS),
        ({"multiplier": 2}, "gather_weight_grad"),
    ),
    "strips_correlate": (
        (Call(), "strips_correlate"),
        ({"kernel": 7}, "strips_correlate"),
        ({"kernel": 2}, "tiles_correlate"),
        ({"kernel": 4}, "tiles_correlate"),
        ({"kernel": 9}, "tiles_correlate"),
        ({"kernel": (3, 5)}, "tiles_correlate"),
        ({"stride": 2}, "strips_correlate"),
        ({"stride": 3}, ONE),
        ({"stride": (1, 2)}, COLUMNS),
        ({"dilation": (1, 2)}, COLUMNS),
        ({"element_bytes": 8}, ONE),
        ({"multiplier": 2}, "strips_correlate"),
        ({"direction": "input_grad", "stride": 2}, "strips_correlate"),
        ({"direction": "input_grad", "multiplier": 2}, COLUMNS),
        ({"images": (2**13, 2**13 - 1, 15, 15)}, "strips_correlate"),
        ({"images": (2**13, 2**13, 15, 15)}, "tiles_correlate"),
        ({"images": (1, 1, 2**29 - 1, 1), "padding": (1, 1)}, "strips_correlate"),
        ({"images": (1, 1, 2**29, 1), "padding": (1, 1)}, "gather_any"),
    ),
    "strips: weight gradient": (
        (weight_grad(Call()), "strips_weight_grad"),
        ({"kernel": 4}, "tiles_weight_grad"),
        ({"stride": 2}, "strips_weight_grad"),
        ({"stride": 3}, "gather_weight_grad"),
        ({"dilation": 2}, "gather_weight_grad"),
        ({"element_bytes": 8}, "gather_weight_grad"),
        ({"multiplier": 2}, "strips_weight_grad"),
        ({"images": (2**26 - 1, 1, 15, 15)}, "strips_weight_grad"),
        ({"images": (2**26, 1, 15, 15)}, "tiles_weight_grad"),
    ),
    "large planes: what fits shared memory": (
        (Call(kernel=76), "tiles_correlate"),
        ({"kernel": 77}, "gather_large"),
        ({"kernel": (1, 12289)}, "gather_any"),
        ({"stride": 2}, "gather_large"),
        ({"dilation": 2}, "gather_large"),
        ({"layout": "NHWC"}, "gather_large"),
        ({"element_bytes": 8}, "gather_large"),
        ({"multiplier": 2}, "tiles_correlate"),
        ({"direction": "input_grad"}, "tiles_correlate"),
        ({"direction": "input_grad", "multiplier": 2}, "tiles_correlate"),
        ({"direction": "weight_grad", "kernel": 105}, "tiles_weight_grad"),
        ({"direction": "weight_grad", "kernel": 106}, "gather_weight_grad"),
        ({"direction": "weight_grad", "stride": 2}, "gather_weight_grad"),
        ({"direction": "weight_grad", "element_bytes": 8}, "gather_weight_grad"),
    ),
    "columns": (
        (replace(PIXELS, images=(1, 4, 512, 768)), BY_COLUMNS),
        ({"images": (1, 4, 512, 767)}, WINDOWS),
        ({"images": (1, 4, 256, 768), "multiprocessors": 66}, BY_COLUMNS),
        ({"images": (1, 4, 256, 767), "multiprocessors": 66}, WINDOWS),
        ({"images": (1, 1, 2048, 768), "element_bytes": 2}, BY_COLUMNS),
        ({"images": (1, 1, 2047, 768), "element_bytes": 2}, WINDOWS),
        ({"images": (1, 8, 512, 512), "element_bytes": 2}, BY_COLUMNS),
        ({"alignment": 2, "element_bytes": 2}, BY_COLUMNS),
        ({"direction": "input_grad"}, BY_COLUMNS),
        ({"direction": "input_grad", "padding": 7}, BY_COLUMNS),
        ({"dilation": (1, 2)}, BY_COLUMNS),
        ({"images": (1, 4, 256, 256), "dilation": 2, "padding": 2}, BY_COLUMNS),
        ({"images": (1, 4, 256, 255), "dilation": 2, "padding": 2}, ONE),
        ({"images": (1, 4, 256, 256), "dilation": (1, 2), "padding": (1, 2)}, BY_COLUMNS),
        ({"images": (1, 4, 256, 256), "dilation": (2, 1), "padding": (2, 1)}, BY_COLUMNS),
        ({"images": (1, 8, 256, 128), "dilation": 2, "padding": 2, "element_bytes": 2}, BY_COLUMNS),
        ({"images": (1, 8, 256, 127), "dilation": 2, "padding": 2, "element_bytes": 2}, ONE),
        ({"element_bytes": 8}, "gather_large"),
        ({"stride": 2}, WINDOWS),
        ({"stride": (1, 2)}, "gather_columns_nhwc"),
        ({"stride": (2, 1)}, ONE),
        ({"kernel": (1, 3)}, "gather_columns_nhwc"),
        ({"kernel": (3, 1)}, "gather_columns_nhwc"),
        ({"multiplier": 2}, "gather_columns_nhwc"),
    ),
    "columns: what 32 bits count": (
        (replace(PIXELS, images=(2**27, 2, 1, 8)), BY_COLUMNS),
        ({"images": (2**27, 2, 1, 9)}, WINDOWS),
        ({"images": (2**20, 2, 256, 4), "dilation": (256, 1), "padding": (256, 1)}, BY_COLUMNS),
        ({"images": (2**20, 2, 257, 4), "dilation": (257, 1), "padding": (257, 1)}, "gather_large"),
        ({"images": (2**20, 2, 4, 256), "dilation": (1, 256), "padding": (1, 256)}, BY_COLUMNS),
        ({"images": (2**20, 2, 4, 257), "dilation": (1, 257), "padding": (1, 257)}, "gather_columns_nhwc"),
        # Rows and columns that are not there are not counted.
        ({"images": (2**20, 2, 256, 4), "dilation": (257, 1), "padding": (257, 1)}, BY_COLUMNS),
        ({"images": (2**20, 2, 4, 256), "dilation": (1, 257), "padding": (1, 257)}, BY_COLUMNS),
        # A row of the results, of which an input gradient has fewer here.
        ({"images": (2**27, 2, 1, 8), "padding": (1, 2), "direction": "input_grad"}, BY_COLUMNS),
        ({"images": (2**27, 2, 1, 8), "padding": (1, 2)}, WINDOWS),
        ({"images": (1, 1, 2**15, 2**16 - 36)}, BY_COLUMNS),
        ({"images": (1, 1, 2**15, 2**16 - 35)}, "gather_any"),
        ({"images": (1, 64, 2**13, 2**13)}, SLIDING),
    ),
    "columns: weight gradient": (
        (weight_grad(PIXELS, images=(8, 96, 112, 112)), GRAD_BY_COLUMNS),
        ({"images": (128, 98, 56, 56)}, GRAD_BY_COLUMNS),
        ({"images": (128, 96, 56, 56), "dilation": 2, "padding": 2}, GRAD_BY_COLUMNS),
        ({"images": (1, 64, 256, 256), "dilation": 2, "padding": 2}, GRAD_BY_COLUMNS),
        ({"images": (1, 64, 255, 256), "dilation": 2, "padding": 2}, "gather_weight_grad"),
        ({"images": (1, 2, 1024, 1024)}, GRAD_BY_COLUMNS),
        ({"images": (1, 2, 1023, 1024)}, "gather_weight_grad"),
        ({"images": (1, 2, 512, 1024), "multiprocessors": 66}, GRAD_BY_COLUMNS),
        ({"images": (1, 2, 511, 1024), "multiprocessors": 66}, "gather_weight_grad"),
        ({"element_bytes": 2}, CHANNELS),
        ({"element_bytes": 2, "images": (1, 14, 387, 388)}, GRAD_BY_COLUMNS),
        ({"element_bytes": 2, "images": (1, 14, 387, 387)}, CHANNELS),
        ({"element_bytes": 2, "images": (1, 13, 402, 402)}, GRAD_BY_COLUMNS),
        ({"element_bytes": 2, "images": (1, 13, 401, 402)}, "gather_weight_grad"),
        ({"element_bytes": 2, "images": (1, 13, 284, 285), "multiprocessors": 66}, GRAD_BY_COLUMNS),
        ({"element_bytes": 2, "images": (1, 13, 284, 284), "multiprocessors": 66}, "gather_weight_grad"),
        ({"element_bytes": 2, "images": (1, 64, 256, 256), "dilation": 2, "padding": 2}, GRAD_BY_COLUMNS),
        ({"element_bytes": 2, "images": (1, 64, 255, 256), "dilation": 2, "padding": 2}, "gather_weight_grad"),
        ({"element_bytes": 8}, "gather_weight_grad"),
        ({"stride": 2}, "gather_weight_grad"),
        ({"stride": (2, 1)}, "gather_weight_grad"),
        ({"kernel": (1, 3)}, "gather_weight_grad"),
        ({"multiplier": 2}, "gather_weight_grad"),
    ),
    "sliding": (
        (replace(PIXELS, kernel=5), SLIDING),
        ({"kernel": 7}, SLIDING),
        ({"kernel": 4}, "gather_columns_nhwc"),
        ({"kernel": (3, 5)}, "gather_columns_nhwc"),
        ({"kernel": (3, 6)}, "gather_large"),
        ({"stride": 2, "kernel": 3}, WINDOWS),
        ({"stride": 2}, SLIDING),
        ({"stride": 2, "kernel": 3, "element_bytes": 2}, SLIDING),
        ({"stride": 2, "kernel": 3, "element_bytes": 2, "images": (128, 98, 112, 112)}, WINDOWS),
        ({"stride": 3}, "gather_large"),
        ({"dilation": 2}, "gather_columns_nhwc"),
        ({"multiplier": 2}, "gather_columns_nhwc"),
        ({"element_bytes": 8}, "gather_large"),
        ({"images": (128, 98, 56, 56)}, SLIDING),
        ({"images": (128, 97, 56, 56)}, WINDOWS),
        ({"alignment": 4}, SLIDING),
        ({"alignment": 2, "element_bytes": 2}, WINDOWS),
        ({"images": (1, 1020, 1, 2**20)}, SLIDING),
        ({"images": (1, 1024, 1, 2**20)}, "gather_any"),
        ({"images": (2**20, 4, 1023, 1)}, SLIDING),
        ({"images": (2**20, 4, 1024, 1)}, WINDOWS),
        ({"direction": "input_grad", "stride": 2, "kernel": 3}, WINDOWS),
        ({"direction": "input_grad", "stride": 2}, SLIDING),
    ),
    "windows": (
        (replace(PIXELS, images=(1, 4, 1100, 780), kernel=5), WINDOWS),
        ({"images": (1, 4, 1100, 781)}, SLIDING),
        ({"images": (1, 4, 1100, 390), "multiprocessors": 66}, WINDOWS),
        ({"images": (1, 4, 1100, 391), "multiprocessors": 66}, SLIDING),
        ({"direction": "input_grad"}, WINDOWS),
        ({"direction": "input_grad", "images": (1, 4, 1100, 781)}, SLIDING),
        ({"images": (1, 4, 700, 660), "kernel": 7}, WINDOWS),
        ({"images": (1, 4, 700, 661), "kernel": 7}, SLIDING),
        ({"images": (1, 4, 1100, 1500), "kernel": 4}, "gather_columns_nhwc"),
        ({"images": (1, 4, 1100, 1500), "kernel": (3, 5)}, "gather_columns_nhwc"),
        ({"images": (1, 4, 1100, 1500), "kernel": 3, "stride": (1, 2)}, "gather_columns_nhwc"),
        ({"images": (1, 4, 1100, 1500), "kernel": 3, "multiplier": 2}, "gather_columns_nhwc"),
        ({"images": (1, 4, 11, 15), "kernel": 3, "element_bytes": 8}, ONE),
        ({"images": (1, 97, 1100, 1500), "kernel": 7}, WINDOWS),
        ({"images": (1, 97, 1100, 1500), "kernel": 7, "element_bytes": 2}, WINDOWS),
    ),
    "windows: products of halves": (
        (replace(HALF_PIXELS, images=(1, 8, 480, 550), kernel=5), WINDOWS),
        ({"images": (1, 8, 480, 551), "kernel": 5}, SLIDING_PRODUCTS),
        ({"images": (1, 8, 480, 551), "kernel": 5, "tensor_cores": False}, WINDOWS),
        ({"images": (1, 8, 250, 330), "kernel": 7}, WINDOWS),
        ({"images": (1, 8, 250, 331), "kernel": 7}, SLIDING_PRODUCTS),
    ),
    "windows: stride 2": (
        (replace(PIXELS, images=(1, 8, 1430, 1200), kernel=3, stride=2, element_bytes=2), WINDOWS),
        ({"images": (1, 8, 1430, 1201)}, SLIDING),
        ({"images": (1, 8, 1430, 1201), "element_bytes": 4}, WINDOWS),
        ({"direction": "input_grad"}, WINDOWS),
        ({"direction": "input_grad", "images": (1, 8, 1430, 1201)}, SLIDING),
        ({"images": (1, 8, 600, 913), "kernel": 5}, SLIDING_PRODUCTS),
        ({"images": (1, 8, 600, 912), "kernel": 5}, WINDOWS),
        ({"images": (1, 8, 600, 330), "kernel": 7}, WINDOWS),
        ({"images": (1, 8, 600, 331), "kernel": 7}, SLIDING_PRODUCTS),
        ({"images": (1, 8, 600, 331), "kernel": 7, "direction": "input_grad"}, SLIDING),
    ),
    "windows: what 32 bits count": (
        (replace(PIXELS, images=(2**28, 1, 2, 3), kernel=5), WINDOWS),
        ({"images": (2**28, 1, 2, 4)}, "gather_large"),
        ({"images": (1, 1, 2**15, 2**16 - 45)}, WINDOWS),
        ({"images": (1, 1, 2**15, 2**16)}, "gather_any"),
    ),
    # Of so few results that each is gathered.
    "few results, NCHW": (
        (Call(images=(1, 8, 1024, 128)), COLUMNS),
        ({"images": (1, 8, 1025, 128)}, "strips_correlate"),
        ({"images": (1, 128, 2048, 32), "stride": 2}, ONE),
        ({"images": (1, 128, 2049, 32), "stride": 2}, "strips_correlate"),
        ({"images": (1, 2, 1024, 66), "stride": 2}, ONE),
        ({"images": (1, 3, 1024, 128), "kernel": 5}, COLUMNS),
        ({"images": (1, 3, 1025, 128), "kernel": 5}, "strips_correlate"),
        ({"images": (1, 3, 2048, 256), "kernel": 5, "stride": 2}, ONE),
        ({"images": (1, 3, 2050, 256), "kernel": 5, "stride": 2}, "strips_correlate"),
        ({"images": (1, 1, 512, 64), "stride": 2, "direction": "input_grad"}, ONE),
        ({"images": (1, 1, 513, 64), "stride": 2, "direction": "input_grad"}, "strips_correlate"),
        ({"images": (1, 1, 64, 64), "kernel": 7}, "strips_correlate"),
        ({"images": (1, 1023, 8, 8), "kernel": 9}, "gather_large"),
        ({"images": (1, 1024, 8, 8), "kernel": 9}, "tiles_correlate"),
        ({"images": (1, 100, 8, 9), "kernel": 9}, "tiles_correlate"),
    ),
    "few results, NHWC": (
        (replace(PIXELS, images=(1, 4, 128, 64), kernel=3), ONE),
        ({"images": (1, 4, 8193, 1)}, WINDOWS),
        ({"kernel": 5}, ONE),
        ({"kernel": 7}, WINDOWS),
        ({"images": (1, 8, 4096, 1), "kernel": 5, "element_bytes": 2}, ONE),
        ({"images": (1, 8, 4097, 1), "kernel": 5, "element_bytes": 2}, WINDOWS),
    ),
    "few results with a dilation, halves, NHWC": (
        (
            replace(DILATED_PIXELS, images=(1, 8, 256, 511), element_bytes=2, kernel=(3, 1), padding=(2, 0)),
            "gather_columns_nhwc",
        ),
        ({"images": (1, 8, 256, 512)}, SLIDING_PRODUCTS),
        ({"images": (1, 8, 127, 128), "kernel": 5, "padding": 4}, ONE),
        ({"images": (1, 8, 128, 128), "kernel": 5, "padding": 4}, SLIDING_PRODUCTS),
    ),
    "few products of a weight gradient": (
        (weight_grad(Call(images=(1, 1, 291, 400))), "gather_weight_grad"),
        ({"images": (1, 1, 292, 400)}, "strips_weight_grad"),
        ({"images": (1, 1, 291, 400), "multiprocessors": 131}, "strips_weight_grad"),
        ({"images": (1, 1, 291, 288), "kernel": 5}, "gather_weight_grad"),
        ({"images": (1, 1, 292, 288), "kernel": 5}, "strips_weight_grad"),
        # Rows of an odd width.
        ({"images": (64, 64, 255, 255)}, "gather_weight_grad"),
        ({"images": (64, 64, 255, 256)}, "strips_weight_grad"),
        ({"images": (2**26 - 1, 1, 15, 15)}, "strips_weight_grad"),
        ({"images": (1, 1, 2319, 2315), "kernel": 5}, "gather_weight_grad"),
        ({"images": (1, 1, 2320, 2315), "kernel": 5}, "strips_weight_grad"),
        ({"images": (1, 1, 292, 293), "kernel": 7}, "gather_weight_grad"),
        ({"images": (1, 1, 293, 293), "kernel": 7}, "strips_weight_grad"),
        ({"images": (1, 1, 828, 827), "kernel": 7, "element_bytes": 2}, "gather_weight_grad"),
        ({"images": (1, 1, 829, 827), "kernel": 7, "element_bytes": 2}, "strips_weight_grad"),
        ({"images": (1, 1, 584, 585), "kernel": 7, "element_bytes": 2, "stride": 2}, "gather_weight_grad"),
        ({"images": (1, 1, 586, 585), "kernel": 7, "element_bytes": 2, "stride": 2}, "strips_weight_grad"),
        # Few pixels of a channel, few of a plane, and what has more of both.
        ({"images": (1, 1820, 32, 32)}, "gather_weight_grad"),
        ({"images": (1, 1821, 32, 32)}, "strips_weight_grad"),
        ({"images": (1, 1760, 33, 32)}, "strips_weight_grad"),
        ({"images": (100, 64, 8, 16)}, "gather_weight_grad"),
        ({"images": (100, 64, 8, 18)}, "strips_weight_grad"),
        ({"images": (16, 200, 8, 8), "kernel": 5}, "gather_weight_grad"),
        # With a stride.
        ({"images": (1, 1, 2730, 2730), "stride": 2}, "gather_weight_grad"),
        ({"images": (1, 1, 2732, 2730), "stride": 2}, "strips_weight_grad"),
        ({"images": (1, 1, 1158, 1158), "stride": 2, "kernel": 5}, "gather_weight_grad"),
        ({"images": (1, 1, 1160, 1158), "stride": 2, "kernel": 5}, "strips_weight_grad"),
        ({"images": (1, 1, 412, 414), "stride": 2, "kernel": 7}, "gather_weight_grad"),
        ({"images": (1, 1, 414, 414), "stride": 2, "kernel": 7}, "strips_weight_grad"),
        # Many results.
        ({"images": (1, 7281, 8, 8)}, "gather_weight_grad"),
        ({"images": (1, 7282, 8, 8)}, "strips_weight_grad"),
        ({"images": (1, 7280, 8, 8), "layout": "NHWC"}, "gather_weight_grad"),
        ({"images": (1, 7284, 8, 8), "layout": "NHWC"}, "slide_weight_grad"),
        ({"images": (1, 4, 1930, 1930), "layout": "NHWC", "stride": 2}, "gather_weight_grad"),
        ({"images": (1, 4, 1932, 1930), "layout": "NHWC", "stride": 2}, "slide_weight_grad"),
        ({"images": (1, 4, 819, 819), "layout": "NHWC", "kernel": 5}, "gather_weight_grad"),
        ({"images": (1, 4, 820, 819), "layout": "NHWC", "kernel": 5}, "slide_weight_grad"),
        ({"images": (1, 4, 413, 414), "layout": "NHWC", "kernel": 7}, "gather_weight_grad"),
        ({"images": (1, 4, 414, 414), "layout": "NHWC", "kernel": 7}, "slide_weight_grad"),
        # Halves in NHWC: an even number of channels, and an odd one.
        ({"images": (1, 1816, 32, 32), "layout": "NHWC", "element_bytes": 2}, "gather_weight_grad"),
        ({"images": (1, 1824, 32, 32), "layout": "NHWC", "element_bytes": 2}, CHANNELS),
        ({"images": (1, 1816, 32, 33), "layout": "NHWC", "element_bytes": 2}, CHANNELS),
        ({"images": (1, 8, 482, 483), "layout": "NHWC", "element_bytes": 2}, "gather_weight_grad"),
        ({"images": (1, 8, 483, 483), "layout": "NHWC", "element_bytes": 2}, CHANNELS),
        ({"images": (1, 8, 289, 290), "layout": "NHWC", "element_bytes": 2, "kernel": 5}, "gather_weight_grad"),
        ({"images": (1, 8, 290, 290), "layout": "NHWC", "element_bytes": 2, "kernel": 5}, CHANNELS),
        ({"images": (1, 12, 788, 788), "layout": "NHWC", "element_bytes": 2, "stride": 2}, "gather_weight_grad"),
        ({"images": (1, 12, 790, 788), "layout": "NHWC", "element_bytes": 2, "stride": 2}, CHANNELS),
        ({"images": (1, 13, 321, 321), "layout": "NHWC", "element_bytes": 2, "kernel": 5}, "gather_weight_grad"),
        ({"images": (1, 13, 321, 322), "layout": "NHWC", "element_bytes": 2, "kernel": 5}, PLANES_OF_CHANNELS),
        # Many taps.
        ({"images": (1, 1, 263, 263), "kernel": 11, "element_bytes": 2}, "gather_weight_grad"),
        ({"images": (1, 1, 264, 263), "kernel": 11, "element_bytes": 2}, "diagonals_nchw"),
        ({"images": (1, 1, 321, 322), "kernel": 9, "element_bytes": 2}, "gather_weight_grad"),
        ({"images": (1, 1, 322, 322), "kernel": 9, "element_bytes": 2}, "tiles_weight_grad"),
        (
            {"images": (1, 1, 445, 446), "kernel": 13, "element_bytes": 2, "dilation": 2, "padding": 12},
            "gather_weight_grad",
        ),
        (
            {"images": (1, 1, 446, 446), "kernel": 13, "element_bytes": 2, "dilation": 2, "padding": 12},
            "diagonals_nchw",
        ),
    ),
    "images of a weight gradient": (
        (replace(HALF_PIXELS, direction="images_of_weight_grad", images=(128, 97, 56, 56)), "whole eights"),
        ({"images": (128, 98, 56, 56)}, "as given"),
        ({"kernel": 5}, "whole eights"),
        ({"kernel": 6}, "whole eights"),
        ({"kernel": 3}, "as given"),
        ({"kernel": 4}, "as given"),
        ({"kernel": (7, 8)}, "NCHW"),
        ({"stride": 2}, "whole eights"),
        ({"stride": 3}, "as given"),
        ({"multiplier": 2}, "as given"),
        ({"tensor_cores": False}, "as given"),
        ({"element_bytes": 4}, "as given"),
        ({"layout": "NCHW"}, "as given"),
        ({"images": (8, 97, 28, 28)}, "as given"),
        ({"images": (16, 97, 28, 28)}, "whole eights"),
        ({"images": (2**17, 97, 36, 35)}, "whole eights"),
        ({"images": (2**17, 97, 36, 36)}, "as given"),
        ({"images": (1, 8, 100, 100), "kernel": 9}, "as given"),
        ({"images": (1, 8, 120, 120), "kernel": 9}, "NCHW"),
    ),
    "few taps of several source planes": (
        (input_grad(Call(images=(8, 64, 32, 32), kernel=(5, 3), multiplier=2)), "tiles_correlate"),
        ({"images": (8, 64, 16, 31)}, COLUMNS),
        ({"images": (8, 64, 32, 32), "kernel": 3}, COLUMNS),
        ({"images": (8, 64, 64, 64), "kernel": 3}, COLUMNS),
        ({"images": (8, 64, 32, 32), "kernel": (1, 6)}, "tiles_correlate"),
        ({"images": (1, 1, 8, 9), "kernel": (1, 6)}, "tiles_correlate"),
        ({"images": (8, 64, 32, 32), "multiplier": 1}, "tiles_correlate"),
        ({"images": (8, 64, 16, 31), "multiplier": 1}, COLUMNS),
        ({"images": (8, 64, 16, 31), "direction": "forward"}, "tiles_correlate"),
    ),
    "sliding: weight gradient": (
        (weight_grad(PIXELS, kernel=5), "slide_weight_grad"),
        ({"kernel": 4}, "gather_weight_grad"),
        ({"stride": 2}, "slide_weight_grad"),
        ({"stride": 3}, "gather_weight_grad"),
        ({"multiplier": 2}, "gather_weight_grad"),
        ({"element_bytes": 8}, "gather_weight_grad"),
        ({"images": (128, 98, 56, 56), "kernel": 5}, "slide_weight_grad"),
        ({"images": (128, 97, 56, 56), "kernel": 5}, "gather_weight_grad"),
        ({"images": (128, 97, 56, 56), "kernel": 7}, "slide_weight_grad"),
        ({"images": (128, 97, 56, 56), "kernel": 7, "element_bytes": 2, "tensor_cores": False}, "gather_weight_grad"),
    ),
    "gathering columns": (
        (DILATED, COLUMNS),
        ({"images": (1, 16, 64, 64)}, COLUMNS),
        ({"images": (1, 15, 64, 64)}, ONE),
        ({"images": (1, 32, 64, 64), "kernel": 5, "padding": 4}, COLUMNS),
        ({"images": (1, 31, 64, 64), "kernel": 5, "padding": 4}, ONE),
        ({"images": (1, 32, 64, 64), "kernel": 4, "padding": 3}, COLUMNS),
        ({"images": (1, 255, 64, 64), "kernel": 6}, "gather_large"),
        ({"images": (1, 128, 64, 64), "kernel": 7, "padding": 6}, COLUMNS),
        ({"images": (1, 127, 64, 64), "kernel": 7, "padding": 6}, "gather_large"),
        ({"images": (2, 256, 64, 64), "kernel": (1, 5)}, COLUMNS),
        ({"images": (2, 256, 64, 64), "kernel": (1, 6)}, "gather_large"),
        ({"kernel": 7, "padding": 6}, COLUMNS),
        ({"kernel": (7, 6), "padding": 6}, "gather_large"),
        ({"element_bytes": 8}, ONE),
        ({"stride": (2, 2), "images": (4, 256, 64, 64)}, COLUMNS),
        ({"stride": (3, 3), "images": (16, 256, 64, 64)}, ONE),
        ({"images": (64, 256, 12, 64)}, COLUMNS),
        ({"images": (64, 256, 11, 64)}, ONE),
    ),
    "gathering columns of the input gradient": (
        (input_grad(DILATED), COLUMNS),
        ({"stride": 2}, COLUMNS),
        ({"stride": 2, "dilation": 1, "kernel": 10, "padding": 4}, COLUMNS),
        ({"stride": 2, "dilation": 1, "kernel": 11, "padding": 4}, "gather_large"),
        ({"stride": 3, "images": (16, 256, 24, 64)}, COLUMNS),
        ({"stride": 3, "images": (16, 256, 17, 64)}, ONE),
        ({"kernel": 7, "padding": 6}, COLUMNS),
        ({"kernel": 7, "padding": 6, "multiplier": 2}, "gather_large"),
        ({"stride": 2, "dilation": 1, "kernel": 13, "padding": 6}, "gather_large"),
        ({"stride": (1, 2), "dilation": 1, "kernel": 7, "padding": 3}, "gather_large"),
        ({"kernel": 5, "padding": 4, "multiplier": 491}, COLUMNS),
        ({"kernel": 5, "padding": 4, "multiplier": 492}, ONE),
    ),
    "gathering columns, NHWC": (
        (replace(DILATED_PIXELS, multiplier=2), "gather_columns_nhwc"),
        ({"images": (1, 64, 64, 64)}, "gather_columns_nhwc"),
        ({"images": (1, 63, 64, 64)}, ONE),
        ({"images": (1, 16, 64, 64), "kernel": 5, "padding": 4}, "gather_columns_nhwc"),
        ({"images": (1, 15, 64, 64), "kernel": 5, "padding": 4}, ONE),
        ({"images": (64, 256, 12, 64)}, "gather_columns_nhwc"),
        ({"images": (64, 256, 11, 64)}, "gather_large"),
        ({"element_bytes": 8}, "gather_large"),
    ),
    "gathering: what fits shared memory and 32 bits": (
        (Call(kernel=78, stride=3), "gather_large"),
        ({"kernel": (78, 79)}, "gather_any"),
        ({"direction": "input_grad", "kernel": 76}, "gather_large"),
        ({"direction": "input_grad", "kernel": 77}, "gather_any"),
        ({"kernel": (2, 1), "stride": 1, "images": (1, 8, 40000, 1), "dilation": (32768, 1)}, ONE),
    ),
    "gathering: steps of the input gradient": (
        (input_grad(ANY, kernel=(2, 1), images=(1, 8, 40000, 1), dilation=(32767, 1)), ONE),
        ({"dilation": (32768, 1)}, "gather_any"),
        ({"kernel": (1, 2), "images": (1, 8, 1, 40000), "dilation": (1, 32767)}, ONE),
        ({"kernel": (1, 2), "images": (1, 8, 1, 40000), "dilation": (1, 32768)}, "gather_any"),
        # The taps of all phases of a stride lie in shared memory.
        ({"dilation": 1, "stride": (6143, 1)}, ONE),
        ({"dilation": 1, "stride": (6144, 1)}, "gather_any"),
    ),
    # Taps that lie so far behind the kernel are counted too; 64 bits do not hold the last one's rows times columns.
    "gathering: taps beyond the kernel": (
        (Call(images=(1, 1, 9, 9), kernel=1, element_bytes=8), ONE),
        ({"dilation": (2**28, 1)}, "gather_any"),
        ({"dilation": (1, 2**28)}, "gather_any"),
        ({"dilation": (400_000_000, 400_000_000)}, "gather_any"),
    ),
    "anything within 32 bits": (
        (ANY, "gather_large"),
        ({"images": (1, 1, 2**26 - 15, 18), "padding": 0}, "gather_large"),
        ({"images": (1, 1, 2**26 - 14, 18), "padding": 0}, "gather_any"),
        ({"images": (2**29 - 1, 1, 6, 6)}, "gather_large"),
        ({"images": (2**29, 1, 6, 6)}, "gather_any"),
        ({"direction": "weight_grad", "images": (1, 1, 2**26 - 23, 10), "padding": 0}, "gather_weight_grad"),
        ({"direction": "weight_grad", "images": (1, 1, 2**26 - 22, 10), "padding": 0}, "gather_weight_grad_any"),
        ({"direction": "weight_grad", "images": (2**28 - 1, 1, 9, 6), "padding": 0}, "gather_weight_grad"),
        ({"direction": "weight_grad", "images": (2**28, 1, 9, 6), "padding": 0}, "gather_weight_grad_any"),
    ),
    "layout": (
        (replace(PIXELS, direction="layout", kernel=7), "as given"),
        ({"kernel": (7, 8)}, "NCHW"),
        ({"kernel": (7, 8), "stride": 2}, "as given"),
        ({"kernel": (7, 8), "dilation": 2, "padding": 7}, "as given"),
        ({"kernel": (7, 8), "element_bytes": 8}, "as given"),
        ({"kernel": (7, 8), "element_bytes": 2}, "NCHW"),
        ({"kernel": (7, 8), "element_bytes": 2, "stride": 2}, "NCHW"),
        ({"kernel": (7, 8), "element_bytes": 2, "dilation": 2, "padding": 7}, "NCHW"),
    ),
}


# Whether a kernel supports a call, where it pays for none: of phases.
SUPPORTED = {
    "diagonals_nchw": (
        (weight_grad(PHASES, images=(1, 1, 600, 600), kernel=(64, 3), dilation=8, padding=0), True),
        ({"kernel": (65, 3)}, False),
        ({"kernel": (3, 64)}, True),
        ({"kernel": (3, 65)}, False),
        ({"padding": (512, 0)}, True),
        ({"padding": (513, 0)}, False),
        ({"padding": (0, 512)}, True),
        ({"padding": (0, 513)}, False),
        ({"images": (1, 1, 1024, 1024)}, True),
        ({"images": (1, 1, 1024, 1025)}, False),
        ({"dilation": (9, 8), "kernel": 3}, False),
        ({"dilation": (8, 9), "kernel": 3}, False),
        ({"dilation": 1, "stride": 8}, True),
        ({"dilation": 1, "stride": (9, 8)}, False),
        ({"dilation": (2, 8), "stride": (2, 1)}, False),
        ({"dilation": (8, 2), "stride": (1, 2)}, False),
        ({"layout": "NHWC"}, False),
    ),
    "bands_large": (
        (replace(PHASES, images=(1, 1, 64, 64)), True),
        ({"dilation": (8, 2)}, True),
        ({"dilation": (9, 2)}, False),
        ({"dilation": (2, 9)}, False),
        ({"dilation": 1, "stride": 2}, True),
        ({"stride": 2}, False),
        ({"padding": 24}, True),
        ({"padding": 25}, False),
        ({"multiplier": 2}, True),
        ({"multiplier": 2, "direction": "input_grad"}, False),
        ({"kernel": (13, 33)}, True),
        ({"kernel": (13, 34)}, False),
    ),
}


# Whether threads of gather_large take neighbouring channels of a call.
TOGETHER = {
    "gather_large": (
        (replace(PIXELS, kernel=9), True),
        ({"layout": "NCHW"}, False),
        ({"element_bytes": 2}, True),
        ({"element_bytes": 8}, False),
        ({"images": (128, 100, 56, 56)}, True),
        ({"images": (128, 98, 56, 56)}, False),
        ({"multiplier": 2}, False),
        ({"alignment": 8}, False),
        ({"alignment": 8, "element_bytes": 2}, True),
        ({"alignment": 4, "element_bytes": 2}, False),
        # Pixels of either image.
        ({"images": (2**24 - 1, 4, 8, 8)}, True),
        ({"images": (2**24, 4, 8, 8)}, False),
        ({"images": (2**24 - 1, 4, 4, 8), "padding": (6, 4)}, True),
        ({"images": (2**24, 4, 4, 8), "padding": (6, 4)}, False),
        # What fits shared memory.
        ({"kernel": (64, 48)}, True),
        ({"kernel": (64, 49)}, False),
        ({"kernel": (64, 48), "stride": (2, 1)}, True),
        ({"kernel": (63, 48), "stride": (2, 1), "direction": "input_grad"}, True),
        ({"kernel": (64, 48), "stride": (2, 1), "direction": "input_grad"}, False),
    ),
}


def rows(table):
    """Every call, and what is said of it."""
    for boundary, ((call, kernel), *changes) in table.items():
        yield boundary, call, kernel
        for change, changed_kernel in changes:
            yield boundary, replace(call, **change), changed_kernel


ROWS = list(rows(BOUNDARIES))
SUPPORTED_ROWS = list(rows(SUPPORTED))


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return build("depthwise_conv2d", tmp_path_factory.mktemp("choice"))


@pytest.fixture(scope="module")
def ask(program):
    """`ask(calls)`: what the program, perhaps with an argument, says of each."""

    def ask(calls, *arguments):
        asked = "".join(f"{call.line()}\n" for call in calls)
        done = subprocess.run([program, *arguments], input=asked, capture_output=True, text=True, check=True)
        return dict(zip(calls, done.stdout.splitlines(), strict=True))

    return ask


@pytest.fixture(scope="module")
def chosen(ask):
    return ask([call for _, call, _ in ROWS])


@pytest.mark.parametrize(
    ("call", "kernel"), [pytest.param(call, kernel, id=f"{name}: {call}") for name, call, kernel in ROWS]
)
def test_the_kernel(call, kernel, chosen):
    assert chosen[call] == kernel


def test_what_kernels_support_in_phases(ask):
    found = ask([call for _, call, _ in SUPPORTED_ROWS], "supported")
    for kernel, call, is_supported in SUPPORTED_ROWS:
        assert (kernel in found[call].split()) == is_supported, (kernel, call)


def test_which_channels_are_gathered_together(ask):
    asked = [(call, is_together) for _, call, is_together in rows(TOGETHER)]
    found = ask([call for call, _ in asked], "together")
    for call, is_together in asked:
        assert found[call] == ("together" if is_together else "apart"), call


# Each is one more than positions of 32 bits, or that many planes, allow; those that are about planes have small ones.
LIMIT = 1 << 29
TOO_LARGE = [
    ({"images": (2, 8, LIMIT, 3)}, False),
    ({"images": (2, 8, 3, LIMIT)}, False),
    ({"images": (1, 8, LIMIT - 1, 1), "stride": 2}, False),
    ({"images": (1, 8, 9, 9), "padding": LIMIT}, False),
    ({"images": (1, 8, 9, 9), "dilation": LIMIT // 2, "padding": LIMIT // 2}, False),
    ({"images": (LIMIT, 1, 9, 9)}, True),
    ({"images": (1, LIMIT, 9, 9)}, True),
    ({"images": (1 << 15, 1 << 15, 9, 9)}, True),
]


@pytest.mark.parametrize(("sizes", "are_planes_small"), TOO_LARGE)
def test_positions_beyond_32_bits_are_left_to_the_kernels_for_anything(ask, sizes, are_planes_small):
    alternatives = itertools.product(
        ("forward", "input_grad", "weight_grad"), ("NCHW", "NHWC"), (2, 4, 8), (3, 7, 9), (1, 2), (True, False)
    )
    names = "direction", "layout", "element_bytes", "kernel", "multiplier", "tensor_cores"
    calls = [Call(**sizes, **dict(zip(names, each, strict=True))) for each in alternatives]
    for call, kernel in ask(calls).items():
        # Products on diagonals count images and channels each by itself, and positions within a plane.
        on_diagonals = are_planes_small and kernel in ("diagonals_nchw", "diagonals_nhwc")
        anything = "gather_weight_grad_any" if call.direction == "weight_grad" else "gather_any"
        assert kernel == anything or (on_diagonals and call.direction == "weight_grad"), call


@pytest.fixture(scope="module")
def table(program):
    """Passes, kernel, regime and reason of each rule."""
    done = subprocess.run([program, "tables"], capture_output=True, text=True, check=True)
    return [tuple(line.split("\t")) for line in done.stdout.splitlines()]


def test_every_rule_is_asked(table):
    images = {"NCHW", "as given", "whole eights"}
    assert {kernel for _, kernel, _, _ in table} == {kernel for _, _, kernel in ROWS} - images


def test_names_are_those_of_the_kernels(table):
    """`graft bench --explain` prints the names of kernels; one that no rule names cannot run."""
    kernels = kernels_in(FOLDER / "cuda").keys()
    # Columns are four results of a thread of the same kernel.
    assert {kernel for _, kernel, _, _ in table} - {"gather_columns"} == kernels - {"sum_chunks"}


def test_a_name_is_a_path(table):
    """The room of a kernel, which is a technique, and its file there, or the room's own."""
    for _, kernel, _, _ in table:
        places = [(room, kernel.removeprefix(f"{room.name}_")) for room in FOLDER.glob("cuda/*/") if room.is_dir()]
        assert any(
            name != kernel and (list(room.glob(f"{name}*.cu")) or (room / f"{room.name}.cuh").is_file())
            for room, name in places
        ), kernel


def test_every_launcher_is_in_the_folder_of_its_kernel():
    rows = re.findall(r"^  ROW\((\w+), (\w+),", (FOLDER / "cuda/kernel_table.h").read_text(), re.MULTILINE)
    assert len(rows) == 26
    for kernel, launcher in rows:
        definition = re.compile(rf"void {launcher}\([^;]*?\) \{{")
        [path] = [path for path in FOLDER.glob("cuda/*/*.cu*") if definition.search(path.read_text())]
        assert (launcher, kernel) == (
            f"launch_{kernel}",
            f"{path.parent.name}_{kernel.partition(path.parent.name)[2][1:]}",
        )
