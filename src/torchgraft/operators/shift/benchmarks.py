"""Benchmarks of the operators, with PyTorch's own sampling beside them."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

import torch
import torch.nn.functional as F
from torch import Tensor

from torchgraft.operators.shift.case import ShiftCase
from torchgraft.sampling import Benchmark, Budget, Distribution, Sample, log_uniform, rounded

# Learnt offsets, as far as they begin apart; no two neighbours alike, and none whole: there the derivative jumps, and a
# rival that rounds to the other side is not wrong.
_X = tuple((37 * i % 41 - 20.5) / 20.3 for i in range(41))
_Y = tuple((29 * i % 61 - 30.5) / 10.1 for i in range(61))


def _case(network: str, batch: int, channels: int, height: int, width: int, stride: int = 1) -> ShiftCase:
    name = f"{batch},{channels},{height}x{width}" + (f",s{stride}" if stride > 1 else "")
    return ShiftCase(f"{name} {network}", (batch, channels, height, width), stride, _X, _Y)


_AT_REST = replace(_case("Shift-GCN, x at rest", 128, 64, 300, 25), x=(1e-8, -1e-8))
_ON_GPU = (
    _case("Shift-GCN", 128, 64, 300, 25),
    _AT_REST,
    _case("Shift-GCN", 128, 128, 300, 25, 2),
    _case("Shift-GCN", 128, 128, 150, 25),
    _case("Shift-GCN", 128, 256, 75, 25),
)
_ON_CPU = (
    _case("Shift-GCN", 8, 64, 300, 25),
    _case("Shift-GCN", 8, 128, 300, 25, 2),
    _case("Shift-GCN", 8, 256, 75, 25),
)
# What no network of skeletons holds: small, odd, alone; images, and rows longer than a tile.
_AWKWARD = (
    _case("one skeleton", 1, 64, 75, 25),
    _case("odd sizes", 3, 37, 29, 31),
    _case("few channels", 16, 3, 64, 64),
    _case("images", 16, 64, 56, 56),
    _case("small images", 64, 256, 7, 7),
    _case("long rows", 2, 16, 33, 3000),
    _case("stride 3", 4, 64, 300, 25, 3),
)
# On a CPU a larger one would take a quick run a minute, for its reference alone.
_QUICK = {"128,64,300x25 Shift-GCN", "1,64,75x25 one skeleton", "128,128,300x25,s2 Shift-GCN"}


def of(sample: Callable[[ShiftCase], Sample]) -> Iterator[Benchmark]:
    """Every row, in both layouts, as a sample of one of the operators that `sample` makes of a case."""
    for suite, cases, devices in (
        ("networks", _ON_GPU, ("cuda",)),
        ("networks", _ON_CPU, ("cpu",)),
        ("awkward", _AWKWARD, ("cpu", "cuda")),
    ):
        for case in cases:
            for channels_last in (False, True):
                made = sample(replace(case, channels_last=channels_last))
                yield Benchmark(made, suite, devices, quick=case.name in _QUICK)


def draw(random: Random, budget: Budget) -> Benchmark | None:
    """A shift as networks have it: frames of skeletons, three of four times, or images."""
    if random.random() < 0.75:
        height, width = rounded(random, log_uniform(random, 16, 320), 4, 0.7), random.randint(15, 34)
    else:
        height = width = -(-32 * random.randint(4, 14) // 2 ** random.randint(1, 5))
    stride = 2 if random.random() < 0.2 else 1
    channels = rounded(random, log_uniform(random, 16, 768), 8, 0.85)
    batch = rounded(random, log_uniform(random, 1, 256), 4, 0.7)
    # How far channels have learnt to move.
    reach = log_uniform(random, 0.2, 4)
    x, y = (tuple(reach * each for each in values) for values in (_X, _Y))
    shape = batch, channels, height, width
    if height < stride or 2 * batch * channels * height * width > budget.elements:
        return None
    name = f"{batch},{channels},{height}x{width}" + (f",s{stride}" if stride > 1 else "") + f",reach {reach:.1f}"
    return Benchmark(ShiftCase(name, shape, stride, x, y, channels_last=random.random() < 0.5).forward(), "drawn")


NETWORKS = Distribution(draw, "grid_sample")


def grid_sample(input: Tensor, x_offset: Tensor, y_offset: Tensor, stride: int) -> Tensor:
    """F.grid_sample with the channels as its batch, so that each has a grid of its own."""
    height, width = input.shape[2:]
    grid = _grid(x_offset, y_offset, height, width, stride)
    sampled = F.grid_sample(input.transpose(0, 1), grid, align_corners=False)
    return sampled.transpose(0, 1)


def grid_sample_input_grad(
    output_grad: Tensor, x_offset: Tensor, y_offset: Tensor, height: int, channels_last: bool, stride: int
) -> Tensor:
    """The function that autograd calls for the input of F.grid_sample."""
    batch, channels, _, width = output_grad.shape
    # Of the input only the shape is read.
    input = output_grad.new_empty((1, 1, 1, 1)).expand(channels, batch, height, width)
    grid = _grid(x_offset, y_offset, height, width, stride)
    return _backward(output_grad, input, grid, (True, False))[0].transpose(0, 1)


def grid_sample_offset_grad(
    output_grad: Tensor, input: Tensor, x_offset: Tensor, y_offset: Tensor, stride: int
) -> tuple[Tensor, Tensor]:
    """The function that autograd calls for the grid of F.grid_sample, added up."""
    return _grid_sample_grads(output_grad, input, x_offset, y_offset, stride, input_too=False)[1:]


def grid_sample_grads(
    output_grad: Tensor, input: Tensor, x_offset: Tensor, y_offset: Tensor, stride: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The function that autograd calls for both arguments of F.grid_sample."""
    return _grid_sample_grads(output_grad, input, x_offset, y_offset, stride, input_too=True)


def _grid(x_offset: Tensor, y_offset: Tensor, height: int, width: int, stride: int) -> Tensor:
    """(C, T // stride, V, 2): where to sample, between -1 and 1 for the outer borders of an image's pixels."""
    wide = torch.promote_types(x_offset.dtype, torch.float32)
    rows = torch.arange(height // stride, device=x_offset.device) * stride + y_offset[:, None].to(wide)
    columns = torch.arange(width, device=x_offset.device) + x_offset[:, None].to(wide)
    rows, columns = (2 * rows + 1) / height - 1, (2 * columns + 1) / width - 1
    shape = (len(x_offset), rows.shape[1], width)
    grid = torch.stack((columns[:, None, :].expand(shape), rows[:, :, None].expand(shape)), -1)
    # A pixel is 2 wide at most: from 3 on, where float16 is still finite, nothing is in sight.
    return grid.clamp(-4, 4).to(x_offset.dtype)


def _backward(output_grad: Tensor, input: Tensor, grid: Tensor, wanted: tuple[bool, bool]) -> tuple[Tensor, Tensor]:
    bilinear, zeros = 0, 0
    return torch.ops.aten.grid_sampler_2d_backward(
        output_grad.transpose(0, 1), input, grid, bilinear, zeros, False, wanted
    )


def _grid_sample_grads(
    output_grad: Tensor, input: Tensor, x_offset: Tensor, y_offset: Tensor, stride: int, *, input_too: bool
) -> tuple[Tensor, Tensor, Tensor]:
    height, width = input.shape[2:]
    grid = _grid(x_offset, y_offset, height, width, stride)
    input_grad, grid_grad = _backward(output_grad, input.transpose(0, 1), grid, (input_too, True))
    x_grad, y_grad = grid_grad.sum((1, 2)).unbind(1)
    return input_grad.transpose(0, 1) if input_too else input, x_grad * 2 / width, y_grad * 2 / height
