"""Benchmarks of the operators, with PyTorch's recurrent layers beside them."""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor

from torchgraft.sampling import Benchmark, Budget, Distribution, Sample, log_uniform, rounded


def lstm_cell(input: Tensor, h: Tensor, c: Tensor, *weights: Tensor | None) -> tuple[Callable[[], Any], list[Tensor]]:
    """A step of an LSTM of the same sizes."""
    layer = torch.nn.LSTMCell(input.shape[1], h.shape[1], device=input.device, dtype=input.dtype)
    return lambda: _as_it_is_used(layer)(input, (h, c)), [input, h, c, *layer.parameters()]


def lstm(
    input: Tensor, h0: Tensor, c0: Tensor, *others: Tensor | bool | None
) -> tuple[Callable[[], Any], list[Tensor]]:
    """An LSTM of the same sizes."""
    layer = torch.nn.LSTM(input.shape[2], h0.shape[1], device=input.device, dtype=input.dtype)
    states = h0.unsqueeze(0), c0.unsqueeze(0)
    return lambda: _as_it_is_used(layer)(input, states), [input, *states, *layer.parameters()]


def _as_it_is_used(layer: torch.nn.Module) -> torch.nn.Module:
    """A layer in training where gradients are recorded: without them cuDNN need not keep what a gradient takes."""
    return layer.train(torch.is_grad_enabled())


def _of_size(what: str, *sizes: int) -> str:
    return ",".join(f"{letter}{size}" for letter, size in zip(what, sizes, strict=True))


def cell_rows(make: Callable[..., Sample]) -> tuple[Benchmark, ...]:
    """A row a size, made of batch, features and units."""
    sizes = ((16, 32, 128), (1, 256, 256), (64, 512, 512), (256, 1024, 1024))
    return tuple(Benchmark(make(_of_size("BIS", *each), *each), "cell", quick=each == sizes[0]) for each in sizes)


_SEQUENCE_SIZES = (
    (128, 16, 32, 128),
    (256, 1, 512, 512),
    (64, 17, 96, 200),
    (256, 32, 512, 512),
)
# On a CPU these take too long; and sizes between and beyond those that kernels hold on a GPU's chip.
GPU_SEQUENCE_SIZES = (
    (512, 128, 256, 256),
    (256, 64, 1024, 1024),
    (64, 256, 96, 96),
    (64, 3, 768, 768),
    (32, 17, 1536, 1536),
    (32, 64, 2048, 2048),
)


def sequence_rows(make: Callable[..., Sample], on_gpu: Sequence[tuple[int, ...]]) -> tuple[Benchmark, ...]:
    """A row a size, made of steps, batch, features and units."""

    def row(sizes: tuple[int, ...], devices: tuple[str, ...], *, quick: bool = False, tf32: bool = False) -> Benchmark:
        return Benchmark(make(_of_size("TBIS", *sizes), *sizes, tf32=tf32), "sequence", devices, quick=quick)

    rows = [row(each, ("cpu", "cuda"), quick=each == _SEQUENCE_SIZES[0]) for each in _SEQUENCE_SIZES]
    rows += [row(each, ("cuda",)) for each in on_gpu]
    # The same sizes where PyTorch's layers may use tf32, as they do unless they are told not to.
    rows += [row(each, ("cuda",), tf32=True) for each in (*_SEQUENCE_SIZES, *on_gpu)]
    return tuple(rows)


# So many times as many products as of others, as libraries of matrix products take less time for each.
_PRODUCTS_OF_MATRICES = 4


def _draw_layer(random: Random) -> tuple[int, int, int]:
    """Rows, features and units of a layer as networks have it: of one utterance up to large batches."""
    batch = rounded(random, log_uniform(random, 1, 1024), 8, 0.6)
    units = rounded(random, log_uniform(random, 32, 2048), 32, 0.8)
    # A layer reads what one of as many units put out, or an embedding.
    features = units if random.random() < 0.5 else rounded(random, log_uniform(random, 16, 1024), 8, 0.85)
    return batch, features, units


def _fits(budget: Budget, rows: int, features: int, units: int) -> bool:
    """Whether a layer over so many rows, of all steps together, is within a budget."""
    elements = rows * (features + 5 * units) + 3 * units * (features + units)
    return elements <= budget.elements and rows * 3 * units * (features + units) <= (
        _PRODUCTS_OF_MATRICES * budget.products
    )


def _draw_cell(make: Callable[..., Sample], random: Random, budget: Budget) -> Benchmark | None:
    sizes = _draw_layer(random)
    return Benchmark(make(_of_size("BIS", *sizes), *sizes), "drawn") if _fits(budget, *sizes) else None


def _draw_sequence(make: Callable[..., Sample], random: Random, budget: Budget) -> Benchmark | None:
    steps = rounded(random, log_uniform(random, 8, 512), 8, 0.5)
    batch, *sizes = _draw_layer(random)
    # PyTorch's layers may use it unless they are told not to, on a GPU.
    tf32 = random.random() < 0.25
    if not _fits(budget, steps * batch, *sizes):
        return None
    name = _of_size("TBIS", steps, batch, *sizes)
    devices = ("cuda",) if tf32 else ("cpu", "cuda")
    return Benchmark(make(name, steps, batch, *sizes, tf32=tf32), "drawn", devices)


def cells_of_networks(make: Callable[..., Sample]) -> Distribution:
    """Single steps, beside those of an LSTM."""
    return Distribution(partial(_draw_cell, make), "nn.LSTMCell")


def sequences_of_networks(make: Callable[..., Sample]) -> Distribution:
    """Sequences, beside those of an LSTM."""
    return Distribution(partial(_draw_sequence, make), "nn.LSTM")
