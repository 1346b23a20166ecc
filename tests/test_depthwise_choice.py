"""Which kernel serves a depthwise convolution on CUDA: both sides of every boundary of cuda_choice.h.

The header is host code alone: the tests compile it into a program and ask that, on a machine without a GPU.
"""

import os
import re
import subprocess
from dataclasses import dataclass, fields, replace
from pathlib import Path

import pytest

from torchgraft.operators.depthwise_conv2d.window import Window

FOLDER = Path(__file__).parent.parent / "src/torchgraft/operators/depthwise_conv2d"


@dataclass(frozen=True)
class Call:
    """A pass over images; None for the padding that keeps an odd kernel's size."""

    images: tuple[int, int, int, int] = (128, 96, 56, 56)
    kernel: int | tuple[int, int] = 3
    direction: str = "forward"
    layout: str = "NCHW"
    element_bytes: int = 4
    stride: int | tuple[int, int] = 1
    dilation: int | tuple[int, int] = 1
    padding: int | tuple[int, int] | None = None
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
        batch, channels, *sizes = self.images
        window = Window(*stride, *padding, *padding, *dilation)
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
WHOLE = Call(images=(64, 1024, 7, 7), kernel=13)
DILATED = Call(images=(1, 256, 64, 64), dilation=2, padding=2)
DILATED_PIXELS = replace(DILATED, layout="NHWC")
ANY = replace(PIXELS, images=(1, 1, 64, 64), kernel=6)
COLUMNS, ONE = "gather_small<T, k, 4>", "gather_small<T, k, 1>"
CHANNELS = "tensor_core_weight_grad_slide"
PLANES_OF_CHANNELS = "tensor_core_weight_grad_channels_last"
WINDOWS, SLIDING = "window_channels_last", "slide_channels_last"
SLIDING_PRODUCTS = "slide_tensor_core"
PRODUCTS, LARGE_PRODUCTS = "small_kernel_planes_tensor_core", "large_kernel_tensor_core"
BATCH_PRODUCTS = "large_kernel_batch_tensor_core"


def weight_grad(call, **changes):
    return replace(call, direction="weight_grad", **changes)


def input_grad(call, **changes):
    return replace(call, direction="input_grad", **changes)


# What is asked: a call and its kernel, then changes to the call and the kernel that each leads to.
BOUNDARIES = {
    "small planes: sides": (
        (PLANES, "small_planes"),
        ({"images": (128, 768, 6, 6)}, "strips"),
        ({"images": (128, 768, 8, 8)}, "strips"),
        ({"images": (128, 768, 13, 13)}, "strips"),
        ({"images": (128, 768, 14, 14)}, "small_planes"),
        ({"images": (128, 768, 28, 28)}, "small_planes"),
        ({"images": (128, 768, 29, 29)}, "strips"),
        ({"images": (128, 768, 7, 14)}, "strips"),
        ({"images": (128, 768, 28, 28), "kernel": 5}, "small_planes"),
        ({"images": (128, 768, 28, 28), "kernel": 7}, "strips"),
    ),
    "small planes: kernels": (
        (replace(PLANES, kernel=7), "small_planes"),
        ({"kernel": 5}, "small_planes"),
        ({"kernel": 9}, "large_kernel_planes"),
        ({"kernel": (7, 5)}, "large_kernel_planes"),
        ({"padding": 2}, "strips"),
        ({"stride": 2}, "strips"),
        ({"dilation": 2, "kernel": 3, "padding": 2}, COLUMNS),
        ({"multiplier": 2}, "strips"),
        ({"element_bytes": 2}, "small_planes"),
        ({"element_bytes": 8}, "gather_large"),
        ({"alignment": 8}, "strips"),
        ({"direction": "input_grad"}, "small_planes"),
    ),
    "small planes: enough of them": (
        (replace(PLANES, images=(132, 128, 7, 7)), "small_planes"),
        ({"images": (131, 128, 7, 7)}, "strips"),
        ({"images": (1000, 32, 7, 7)}, "small_planes"),
        ({"images": (1000, 31, 7, 7)}, "strips"),
        ({"images": (1, 2**23 - 1, 7, 7)}, "small_planes"),
        ({"images": (1, 2**23, 7, 7)}, "strips"),
        ({"images": (2**14, 2**15 - 1, 7, 7)}, "small_planes"),
        ({"images": (2**14, 2**15, 7, 7)}, "direct_kernel"),
    ),
    "a share of a smaller device: planes": (
        (replace(PLANES, images=(66, 128, 7, 7), multiprocessors=66), "small_planes"),
        ({"images": (65, 128, 7, 7)}, "strips"),
        ({"images": (66, 128, 7, 7), "multiprocessors": 67}, "strips"),
    ),
    "a share of a smaller device: products": (
        (replace(HALVES, images=(1, 512, 32, 32), multiprocessors=66), PRODUCTS),
        ({"images": (1, 511, 32, 32)}, "strips"),
        ({"direction": "weight_grad"}, "tensor_core_weight_grad_planes"),
        ({"images": (1, 511, 32, 32), "direction": "weight_grad"}, "weight_grad_strips"),
    ),
    "a share of a smaller device: columns": (
        (replace(DILATED, images=(1, 128, 64, 64), multiprocessors=66), COLUMNS),
        ({"images": (1, 127, 64, 64)}, ONE),
        ({"images": (1, 16, 64, 64), "kernel": 5, "padding": 4}, COLUMNS),
        ({"images": (1, 15, 64, 64), "kernel": 5, "padding": 4}, ONE),
        ({"layout": "NHWC"}, "gather_small_channels_last"),
        ({"images": (1, 127, 64, 64), "layout": "NHWC"}, ONE),
    ),
    "small planes: weight gradient": (
        (weight_grad(PLANES), "small_planes_weight_grad"),
        ({"images": (12, 1408, 7, 7)}, "small_planes_weight_grad"),
        ({"images": (11, 1536, 7, 7)}, "weight_grad_strips"),
        ({"images": (1000, 36, 7, 7)}, "small_planes_weight_grad"),
        ({"images": (1000, 34, 7, 7)}, "weight_grad_strips"),
        ({"images": (1000, 36, 7, 7), "element_bytes": 2}, "weight_grad_strips"),
        ({"images": (1000, 40, 7, 7), "element_bytes": 2}, "small_planes_weight_grad"),
        ({"images": (128, 768, 28, 28), "kernel": 5}, "weight_grad_strips"),
        ({"images": (128, 768, 28, 28), "kernel": 3}, "small_planes_weight_grad"),
        ({"images": (128, 768, 28, 28), "kernel": 5, "element_bytes": 2}, "small_planes_weight_grad"),
    ),
    "band matrices, NCHW": (
        (HALVES, PRODUCTS),
        ({"kernel": 5}, "strips"),
        ({"kernel": 6}, PRODUCTS),
        ({"kernel": (1, 6)}, PRODUCTS),
        ({"kernel": (7, 8)}, PRODUCTS),
        ({"kernel": (7, 9)}, BATCH_PRODUCTS),
        ({"kernel": (8, 7)}, BATCH_PRODUCTS),
        ({"images": (1, 256, 64, 64)}, PRODUCTS),
        ({"images": (1, 255, 64, 64)}, "strips"),
        ({"tensor_cores": False}, "strips"),
        ({"element_bytes": 4}, "strips"),
        ({"padding": 6}, PRODUCTS),
        ({"padding": 7}, "strips"),
        ({"stride": 2}, "strips"),
        ({"dilation": 2}, COLUMNS),
        ({"alignment": 2}, PRODUCTS),
        ({"multiplier": 2}, LARGE_PRODUCTS),
        ({"direction": "input_grad"}, PRODUCTS),
        ({"direction": "input_grad", "multiplier": 2}, "large_kernel_planes"),
        ({"images": (1, 2**15, 2**16 - 1, 1)}, PRODUCTS),
        ({"images": (1, 2**15, 2**16, 1)}, "large_kernel_planes"),
    ),
    "products of four channels": (
        (HALF_PIXELS, SLIDING_PRODUCTS),
        ({"kernel": 5}, SLIDING_PRODUCTS),
        ({"kernel": 3}, SLIDING_PRODUCTS),
        ({"kernel": 2}, "gather_small_channels_last"),
        ({"kernel": (1, 3)}, SLIDING_PRODUCTS),
        ({"kernel": (7, 6)}, SLIDING_PRODUCTS),
        ({"kernel": (5, 8)}, "small_kernel_tensor_core"),
        ({"images": (128, 104, 56, 56)}, SLIDING_PRODUCTS),
        ({"images": (128, 100, 56, 56)}, "slide_channels_last"),
        ({"alignment": 8}, "slide_channels_last"),
        ({"tensor_cores": False}, "slide_channels_last"),
        ({"element_bytes": 4}, "slide_channels_last"),
        ({"padding": 7}, SLIDING_PRODUCTS),
        ({"stride": 2}, SLIDING_PRODUCTS),
        ({"kernel": 4, "stride": 2}, SLIDING_PRODUCTS),
        ({"kernel": 3, "stride": 2}, "slide_channels_last"),
        ({"stride": 3}, "gather_large"),
        ({"stride": (1, 2)}, "gather_small_channels_last"),
        ({"dilation": (1, 2)}, "gather_small_channels_last"),
        ({"direction": "input_grad"}, SLIDING_PRODUCTS),
        ({"direction": "input_grad", "stride": 2}, "slide_channels_last"),
        ({"multiplier": 2}, "gather_small_channels_last"),
        ({"images": (1, 8, 2**14, 2**14 - 1)}, SLIDING_PRODUCTS),
        ({"images": (1, 8, 2**14, 2**14)}, "slide_channels_last"),
        ({"images": (2**20, 8, 1023, 1), "kernel": 3}, SLIDING_PRODUCTS),
        ({"images": (2**20, 8, 1024, 1), "kernel": 3}, "window_channels_last"),
    ),
    "band matrices, NHWC": (
        (replace(HALF_PIXELS, kernel=(5, 8)), "small_kernel_tensor_core"),
        ({"kernel": (5, 9)}, "gather_large"),
        ({"kernel": (1, 8)}, "small_kernel_tensor_core"),
        ({"images": (1, 96, 7, 7)}, "small_kernel_tensor_core"),
        ({"images": (128, 100, 56, 56)}, "gather_large"),
        ({"alignment": 8}, "gather_large"),
        ({"tensor_cores": False}, "gather_large"),
        ({"element_bytes": 4}, "gather_large"),
        ({"padding": (4, 7)}, "small_kernel_tensor_core"),
        ({"padding": (5, 7)}, "gather_large"),
        ({"stride": 2}, "gather_large"),
        ({"multiplier": 2}, "gather_large"),
    ),
    "band matrices of many images": (
        (BATCH, BATCH_PRODUCTS),
        ({"images": (8, 96, 56, 56)}, BATCH_PRODUCTS),
        ({"images": (7, 96, 56, 56)}, LARGE_PRODUCTS),
        ({"images": (1024, 1024, 7, 7), "kernel": 13}, BATCH_PRODUCTS),
        ({"images": (1024, 1024, 8, 8)}, BATCH_PRODUCTS),
        ({"images": (64, 41, 28, 28), "kernel": 29}, BATCH_PRODUCTS),
        ({"images": (4, 335, 28, 28), "kernel": 29}, LARGE_PRODUCTS),
        ({"images": (64, 20, 28, 28), "kernel": 29}, "large_kernel_planes"),
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
        ({"padding": 31}, "large_kernel_planes"),
        ({"tensor_cores": False}, "large_kernel_planes"),
        ({"element_bytes": 4}, "large_kernel_planes"),
        ({"stride": 2}, "gather_large"),
        ({"layout": "NHWC"}, "gather_large"),
        ({"multiplier": 2}, LARGE_PRODUCTS),
        ({"alignment": 2}, BATCH_PRODUCTS),
        ({"direction": "input_grad"}, BATCH_PRODUCTS),
        ({"direction": "input_grad", "multiplier": 2}, "large_kernel_planes"),
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
        ({"images": (7, 1024, 14, 14)}, LARGE_PRODUCTS),
        ({"images": (4, 4096, 8, 8), "kernel": 13}, "large_kernel_planes"),
        ({"images": (4, 4096, 8, 9), "kernel": 13}, LARGE_PRODUCTS),
        ({"kernel": 57}, LARGE_PRODUCTS),
        ({"kernel": (57, 58)}, "large_kernel_planes"),
        ({"kernel": (256, 3)}, LARGE_PRODUCTS),
        ({"kernel": (257, 3)}, "large_kernel_planes"),
        ({"padding": 31}, "large_kernel_planes"),
        ({"tensor_cores": False}, "large_kernel_planes"),
        ({"element_bytes": 4}, "large_kernel_planes"),
        ({"stride": 2}, "gather_large"),
        ({"layout": "NHWC"}, "gather_large"),
        ({"multiplier": 2}, LARGE_PRODUCTS),
        ({"direction": "input_grad"}, LARGE_PRODUCTS),
        ({"direction": "input_grad", "multiplier": 2}, "large_kernel_planes"),
        # An image in shared memory.
        ({"images": (128, 96, 517, 56)}, LARGE_PRODUCTS),
        ({"images": (128, 96, 518, 56)}, "large_kernel_planes"),
        ({"images": (128, 96, 517, 56), "shared_bytes": 96 * 1024}, LARGE_PRODUCTS),
        ({"images": (128, 96, 517, 56), "shared_bytes": 95 * 1024}, "large_kernel_planes"),
        ({"images": (300, 1, 1, 4096), "kernel": (256, 3), "padding": (255, 1)}, LARGE_PRODUCTS),
        ({"images": (300, 1, 1, 4097), "kernel": (256, 3), "padding": (255, 1)}, "large_kernel_planes"),
    ),
    "whole planes": (
        (WHOLE, "whole_planes"),
        ({"images": (64, 512, 14, 14), "kernel": 27}, "whole_planes"),
        ({"images": (64, 512, 14, 14), "kernel": 25}, "large_kernel_planes"),
        ({"images": (64, 1024, 6, 6)}, "large_kernel_planes"),
        ({"images": (64, 1024, 7, 14), "kernel": 27}, "large_kernel_planes"),
        ({"images": (16, 1, 7, 7)}, "whole_planes"),
        ({"images": (15, 1024, 7, 7)}, "large_kernel_planes"),
        ({"kernel": 15}, "whole_planes"),
        ({"kernel": 12, "padding": 6}, "large_kernel_planes"),
        ({"kernel": (13, 15)}, "whole_planes"),
        ({"kernel": 15, "padding": 6}, "large_kernel_planes"),
        ({"element_bytes": 2, "tensor_cores": False}, "large_kernel_planes"),
        ({"element_bytes": 8}, "gather_large"),
        ({"alignment": 4}, "whole_planes"),
        ({"multiplier": 2}, "large_kernel_planes"),
        ({"layout": "NHWC"}, "gather_large"),
        ({"direction": "input_grad"}, "whole_planes"),
    ),
    "diagonals, NCHW": (
        (weight_grad(HALVES), "tensor_core_weight_grad_planes"),
        ({"kernel": 5}, "weight_grad_strips"),
        ({"kernel": 6}, "tensor_core_weight_grad_planes"),
        ({"kernel": 111}, "tensor_core_weight_grad_planes"),
        ({"images": (1, 256, 64, 64)}, "tensor_core_weight_grad_planes"),
        ({"images": (1, 255, 64, 64)}, "weight_grad_strips"),
        ({"tensor_cores": False}, "weight_grad_strips"),
        ({"element_bytes": 4}, "weight_grad_strips"),
        ({"alignment": 2}, "tensor_core_weight_grad_planes"),
        ({"stride": 2}, "weight_grad_strips"),
        ({"dilation": 2}, "weight_grad_general"),
        ({"multiplier": 2}, "weight_grad_strips"),
        ({"kernel": (7, 1), "images": (1, 1, 2**27, 1)}, "tensor_core_weight_grad_planes"),
        ({"kernel": (7, 1), "images": (1, 1, 2**27 + 1, 1)}, "large_weight_grad_planes"),
        ({"images": (2**10, 2**10, 7, 1), "kernel": (7, 1), "padding": (2**20, 0)}, "tensor_core_weight_grad_planes"),
        ({"images": (2**10, 2**10, 7, 1), "kernel": (7, 1), "padding": (2**20 + 1, 0)}, "large_weight_grad_planes"),
        ({"images": (2**31 - 2, 1, 7, 7)}, "tensor_core_weight_grad_planes"),
        ({"images": (2**31 - 1, 1, 7, 7)}, "weight_grad_direct"),
    ),
    "diagonals of channels": (
        (weight_grad(HALF_PIXELS, kernel=5), CHANNELS),
        ({"kernel": 3}, CHANNELS),
        ({"kernel": 7}, PLANES_OF_CHANNELS),
        ({"kernel": 7, "images": (128, 96, 56, 8)}, CHANNELS),
        ({"kernel": 7, "images": (128, 96, 56, 9)}, PLANES_OF_CHANNELS),
        ({"kernel": 7, "stride": 2}, CHANNELS),
        ({"kernel": 6}, PLANES_OF_CHANNELS),
        ({"kernel": 9}, PLANES_OF_CHANNELS),
        ({"kernel": (5, 7)}, PLANES_OF_CHANNELS),
        ({"stride": 2}, CHANNELS),
        ({"stride": 3}, "weight_grad_general"),
        ({"stride": (1, 2)}, "weight_grad_general"),
        ({"dilation": 2}, "weight_grad_general"),
        ({"padding": 4}, CHANNELS),
        ({"padding": 5}, PLANES_OF_CHANNELS),
        ({"padding": 5, "stride": 2}, "slide_weight_grad"),
        ({"images": (128, 100, 56, 56)}, PLANES_OF_CHANNELS),
        ({"images": (128, 100, 56, 56), "kernel": 3}, "slide_weight_grad"),
        ({"alignment": 8}, PLANES_OF_CHANNELS),
        ({"alignment": 8, "kernel": 3}, "slide_weight_grad"),
        ({"tensor_cores": False}, "slide_weight_grad"),
        ({"element_bytes": 4}, "slide_weight_grad"),
        ({"multiplier": 2}, "weight_grad_general"),
        ({"images": (1, 8, 1, 64), "kernel": 3}, CHANNELS),
        ({"images": (1, 8, 1, 65), "kernel": 3}, "slide_weight_grad"),
        ({"images": (1, 2**24 - 8, 1, 64), "kernel": 3}, CHANNELS),
        ({"images": (1, 2**24, 1, 64), "kernel": 3}, "weight_grad_direct"),
        ({"images": (2**20, 8, 1017, 1), "kernel": 3}, CHANNELS),
        ({"images": (2**20, 8, 1018, 1), "kernel": 3}, "slide_weight_grad"),
    ),
    "diagonals, NHWC": (
        (weight_grad(HALF_PIXELS, images=(128, 97, 56, 56)), "tensor_core_weight_grad_channels_last"),
        ({"kernel": 5}, "tensor_core_weight_grad_channels_last"),
        ({"kernel": 4}, "weight_grad_general"),
        ({"kernel": (3, 4)}, "weight_grad_general"),
        ({"kernel": (10, 9)}, "tensor_core_weight_grad_channels_last"),
        ({"kernel": (11, 9)}, "weight_grad_general"),
        ({"kernel": (10, 10)}, "weight_grad_general"),
        ({"images": (1, 97, 7, 7), "alignment": 2}, "tensor_core_weight_grad_channels_last"),
        ({"images": (128, 98, 56, 56), "tensor_cores": False}, "slide_weight_grad"),
        ({"images": (128, 98, 56, 56), "stride": 2}, "slide_weight_grad"),
        ({"multiplier": 2}, "weight_grad_general"),
    ),
    "strips": (
        (Call(), "strips"),
        ({"kernel": 7}, "strips"),
        ({"kernel": 2}, "large_kernel_planes"),
        ({"kernel": 4}, "large_kernel_planes"),
        ({"kernel": 9}, "large_kernel_planes"),
        ({"kernel": (3, 5)}, "large_kernel_planes"),
        ({"stride": 2}, "strips"),
        ({"stride": 3}, ONE),
        ({"stride": (1, 2)}, COLUMNS),
        ({"dilation": (1, 2)}, COLUMNS),
        ({"element_bytes": 8}, ONE),
        ({"multiplier": 2}, "strips"),
        ({"direction": "input_grad", "stride": 2}, "strips"),
        ({"direction": "input_grad", "multiplier": 2}, COLUMNS),
        ({"images": (2**13, 2**13 - 1, 15, 15)}, "strips"),
        ({"images": (2**13, 2**13, 15, 15)}, "large_kernel_planes"),
        ({"images": (1, 1, 2**29 - 1, 1), "padding": (1, 1)}, "strips"),
        ({"images": (1, 1, 2**29, 1), "padding": (1, 1)}, "direct_kernel"),
    ),
    "strips: weight gradient": (
        (weight_grad(Call()), "weight_grad_strips"),
        ({"kernel": 4}, "large_weight_grad_planes"),
        ({"stride": 2}, "weight_grad_strips"),
        ({"stride": 3}, "weight_grad_general"),
        ({"dilation": 2}, "weight_grad_general"),
        ({"element_bytes": 8}, "weight_grad_general"),
        ({"multiplier": 2}, "weight_grad_strips"),
        ({"images": (2**26 - 1, 1, 15, 15)}, "weight_grad_strips"),
        ({"images": (2**26, 1, 15, 15)}, "large_weight_grad_planes"),
    ),
    "large planes: what fits shared memory": (
        (Call(kernel=76), "large_kernel_planes"),
        ({"kernel": 77}, "gather_large"),
        ({"stride": 2}, "gather_large"),
        ({"dilation": 2}, "gather_large"),
        ({"layout": "NHWC"}, "gather_large"),
        ({"element_bytes": 8}, "gather_large"),
        ({"multiplier": 2}, "large_kernel_planes"),
        ({"direction": "input_grad"}, "large_kernel_planes"),
        ({"direction": "input_grad", "multiplier": 2}, "large_kernel_planes"),
        ({"direction": "weight_grad", "kernel": 105}, "large_weight_grad_planes"),
        ({"direction": "weight_grad", "kernel": 106}, "weight_grad_general"),
        ({"direction": "weight_grad", "stride": 2}, "weight_grad_general"),
        ({"direction": "weight_grad", "element_bytes": 8}, "weight_grad_general"),
    ),
    "sliding": (
        (PIXELS, "slide_channels_last"),
        ({"kernel": 7}, "slide_channels_last"),
        ({"kernel": 4}, "gather_small_channels_last"),
        ({"kernel": (3, 5)}, "gather_small_channels_last"),
        ({"kernel": (3, 6)}, "gather_large"),
        ({"stride": 2}, WINDOWS),
        ({"stride": 2, "kernel": 5}, SLIDING),
        ({"stride": 2, "element_bytes": 2}, SLIDING),
        ({"stride": 3}, "gather_large"),
        ({"dilation": 2}, "gather_small_channels_last"),
        ({"multiplier": 2}, "gather_small_channels_last"),
        ({"element_bytes": 8}, "gather_large"),
        ({"images": (128, 98, 56, 56)}, "window_channels_last"),
        ({"images": (128, 98, 56, 56), "kernel": 5}, "slide_channels_last"),
        ({"images": (128, 97, 56, 56), "kernel": 5}, "window_channels_last"),
        ({"alignment": 4}, "slide_channels_last"),
        ({"alignment": 2, "element_bytes": 2}, "window_channels_last"),
        ({"images": (1, 1020, 1, 2**20)}, "slide_channels_last"),
        ({"images": (1, 1024, 1, 2**20)}, "direct_kernel"),
        ({"images": (2**20, 4, 1023, 1)}, "slide_channels_last"),
        ({"images": (2**20, 4, 1024, 1)}, WINDOWS),
        ({"direction": "input_grad", "stride": 2}, WINDOWS),
        ({"direction": "input_grad", "stride": 2, "kernel": 5}, SLIDING),
    ),
    "windows": (
        (replace(PIXELS, images=(1, 4, 1100, 1500)), WINDOWS),
        ({"images": (1, 4, 1100, 1501)}, SLIDING),
        ({"images": (1, 4, 1100, 750), "multiprocessors": 66}, WINDOWS),
        ({"images": (1, 4, 1100, 751), "multiprocessors": 66}, SLIDING),
        ({"direction": "input_grad"}, WINDOWS),
        ({"direction": "input_grad", "images": (1, 4, 1100, 1501)}, SLIDING),
        ({"images": (1, 4, 1100, 780), "kernel": 5}, WINDOWS),
        ({"images": (1, 4, 1100, 781), "kernel": 5}, SLIDING),
        ({"images": (1, 4, 700, 660), "kernel": 7}, WINDOWS),
        ({"images": (1, 4, 700, 661), "kernel": 7}, SLIDING),
        ({"images": (1, 4, 1100, 1500), "kernel": 4}, "gather_small_channels_last"),
        ({"images": (1, 4, 1100, 1500), "kernel": (3, 5)}, "gather_small_channels_last"),
        ({"images": (1, 4, 1100, 1500), "stride": (1, 2)}, "gather_small_channels_last"),
        ({"images": (1, 4, 1100, 1500), "multiplier": 2}, "gather_small_channels_last"),
        ({"images": (1, 4, 11, 15), "element_bytes": 8}, ONE),
        ({"images": (1, 97, 1100, 1500), "kernel": 7}, WINDOWS),
        ({"images": (1, 97, 1100, 1500), "kernel": 7, "element_bytes": 2}, WINDOWS),
    ),
    "windows: products of halves": (
        (replace(HALF_PIXELS, images=(1, 8, 750, 1100), kernel=3), WINDOWS),
        ({"images": (1, 8, 750, 1101)}, SLIDING_PRODUCTS),
        ({"images": (1, 8, 480, 550), "kernel": 5}, WINDOWS),
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
        (replace(PIXELS, images=(2**28, 1, 2, 3)), WINDOWS),
        ({"images": (2**28, 1, 2, 4)}, "gather_large"),
        ({"images": (1, 1, 2**15, 2**16 - 40)}, WINDOWS),
        ({"images": (1, 1, 2**15, 2**16)}, "direct_kernel"),
    ),
    "few taps of several source planes": (
        (input_grad(Call(images=(8, 64, 32, 32), kernel=(5, 3), multiplier=2)), "large_kernel_planes"),
        ({"images": (8, 64, 16, 31)}, COLUMNS),
        ({"images": (8, 64, 32, 32), "kernel": 3}, ONE),
        ({"images": (8, 64, 64, 64), "kernel": 3}, COLUMNS),
        ({"images": (8, 64, 32, 32), "kernel": (1, 6)}, "large_kernel_planes"),
        ({"images": (1, 1, 8, 8), "kernel": (1, 6)}, "large_kernel_planes"),
        ({"images": (8, 64, 16, 31), "multiplier": 1}, "large_kernel_planes"),
        ({"images": (8, 64, 16, 31), "direction": "forward"}, "large_kernel_planes"),
    ),
    "sliding: weight gradient": (
        (weight_grad(PIXELS), "slide_weight_grad"),
        ({"kernel": 4}, "weight_grad_general"),
        ({"stride": 2}, "slide_weight_grad"),
        ({"stride": 3}, "weight_grad_general"),
        ({"multiplier": 2}, "weight_grad_general"),
        ({"element_bytes": 8}, "weight_grad_general"),
        ({"images": (128, 98, 56, 56)}, "weight_grad_general"),
        ({"images": (128, 98, 56, 56), "kernel": 5}, "slide_weight_grad"),
        ({"images": (128, 97, 56, 56), "kernel": 5}, "weight_grad_general"),
        ({"images": (128, 97, 56, 56), "kernel": 7}, "slide_weight_grad"),
        ({"images": (128, 97, 56, 56), "kernel": 7, "element_bytes": 2, "tensor_cores": False}, "weight_grad_general"),
    ),
    "gathering columns": (
        (DILATED, COLUMNS),
        ({"images": (1, 255, 64, 64)}, ONE),
        ({"images": (1, 32, 64, 64), "kernel": 5, "padding": 4}, COLUMNS),
        ({"images": (1, 31, 64, 64), "kernel": 5, "padding": 4}, ONE),
        ({"images": (1, 32, 64, 64), "kernel": 4, "padding": 3}, COLUMNS),
        ({"images": (1, 255, 64, 64), "kernel": 6}, "gather_large"),
        ({"images": (1, 255, 64, 64), "kernel": 7, "padding": 6}, "gather_large"),
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
        ({"kernel": 5, "padding": 4, "multiplier": 491}, COLUMNS),
        ({"kernel": 5, "padding": 4, "multiplier": 492}, ONE),
    ),
    "gathering columns, NHWC": (
        (DILATED_PIXELS, "gather_small_channels_last"),
        ({"images": (1, 255, 64, 64)}, ONE),
        ({"images": (1, 32, 64, 64), "kernel": 5, "padding": 4}, "gather_small_channels_last"),
        ({"images": (1, 31, 64, 64), "kernel": 5, "padding": 4}, ONE),
        ({"images": (64, 256, 12, 64)}, "gather_small_channels_last"),
        ({"images": (64, 256, 11, 64)}, "gather_large"),
        ({"element_bytes": 8}, "gather_large"),
    ),
    "gathering: what fits shared memory and 32 bits": (
        (Call(kernel=78, stride=3), "gather_large"),
        ({"kernel": (78, 79)}, "direct_kernel"),
        ({"direction": "input_grad", "kernel": 76}, "gather_large"),
        ({"direction": "input_grad", "kernel": 77}, "direct_kernel"),
        ({"kernel": (2, 1), "stride": 1, "images": (1, 8, 40000, 1), "dilation": (32768, 1)}, ONE),
    ),
    "gathering: dilation of the input gradient": (
        (input_grad(ANY, kernel=(2, 1), images=(1, 8, 40000, 1), dilation=(32767, 1)), ONE),
        ({"dilation": (32768, 1)}, "direct_kernel"),
    ),
    "anything within 32 bits": (
        (ANY, "gather_large"),
        ({"images": (1, 1, 2**26 - 15, 18), "padding": 0}, "gather_large"),
        ({"images": (1, 1, 2**26 - 14, 18), "padding": 0}, "direct_kernel"),
        ({"images": (2**29 - 1, 1, 6, 6)}, "gather_large"),
        ({"images": (2**29, 1, 6, 6)}, "direct_kernel"),
        ({"direction": "weight_grad", "images": (1, 1, 2**26 - 23, 10), "padding": 0}, "weight_grad_general"),
        ({"direction": "weight_grad", "images": (1, 1, 2**26 - 22, 10), "padding": 0}, "weight_grad_direct"),
        ({"direction": "weight_grad", "images": (2**28 - 1, 1, 9, 6), "padding": 0}, "weight_grad_general"),
        ({"direction": "weight_grad", "images": (2**28, 1, 9, 6), "padding": 0}, "weight_grad_direct"),
    ),
    "layout": (
        (replace(PIXELS, direction="layout", kernel=7), "as given"),
        ({"kernel": (7, 8)}, "NCHW"),
        ({"kernel": (7, 8), "stride": 2}, "as given"),
        ({"kernel": (7, 8), "dilation": 2, "padding": 7}, "as given"),
        ({"kernel": (7, 8), "element_bytes": 8}, "as given"),
        ({"kernel": (7, 8), "element_bytes": 2}, "NCHW"),
    ),
}


def rows():
    """Every call and its kernel."""
    for boundary, ((call, kernel), *changes) in BOUNDARIES.items():
        yield boundary, call, kernel
        for change, changed_kernel in changes:
            yield boundary, replace(call, **change), changed_kernel


ROWS = list(rows())


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("choice") / "choice"
    source = Path(__file__).parent / "choice/depthwise_conv2d.cpp"
    warnings = ["-Wall", "-Wextra", "-Werror"]
    subprocess.run(
        [os.environ.get("CXX", "c++"), "-std=c++20", *warnings, f"-I{FOLDER}", str(source), "-o", str(path)], check=True
    )
    return path


@pytest.fixture(scope="module")
def chosen(program):
    asked = "".join(f"{call.line()}\n" for _, call, _ in ROWS)
    done = subprocess.run([program], input=asked, capture_output=True, text=True, check=True)
    return dict(zip((call for _, call, _ in ROWS), done.stdout.splitlines(), strict=True))


@pytest.mark.parametrize(
    ("call", "kernel"), [pytest.param(call, kernel, id=f"{name}: {call}") for name, call, kernel in ROWS]
)
def test_the_kernel(call, kernel, chosen):
    assert chosen[call] == kernel


@pytest.fixture(scope="module")
def table(program):
    """Passes, kernel, regime and reason of each rule."""
    done = subprocess.run([program, "tables"], capture_output=True, text=True, check=True)
    return [tuple(line.split("\t")) for line in done.stdout.splitlines()]


def test_every_rule_is_asked(table):
    assert {kernel for _, kernel, _, _ in table} == {kernel for _, _, kernel in ROWS} - {"NCHW", "as given"}


def test_names_are_those_of_the_kernels(table):
    """`graft bench --explain` prints the names of kernels; one that no rule names cannot run."""
    sources = "".join(path.read_text() for path in sorted(FOLDER.glob("*.cu*")))
    kernels = set(re.findall(r"__global__ void (?:__launch_bounds__\((?:[^()]|\([^()]*\))*\)\s+)?(\w+)\(", sources))
    assert {kernel.partition("<")[0] for _, kernel, _, _ in table} == kernels - {"sum_chunks"}


@pytest.mark.parametrize("file", ["cuda_correlate.cuh", "cuda_weight_grad.cu"])
def test_every_kernel_has_its_case_where_it_is_launched(file):
    """What stands in no case would be launched as something else, or not at all."""
    kernels = re.search(r"enum class Kernel \{([^}]*)\}", (FOLDER / "cuda_choice.h").read_text())[1]
    dispatch = (FOLDER / file).read_text()
    assert sorted(re.findall(r"case Kernel::(\w+):", dispatch)) == sorted(re.findall(r"\w+", kernels))
    assert "default:" not in dispatch
