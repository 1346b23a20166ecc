"""Inputs for multi_tensor_sgd: one tensor and several, tensors without elements, and a size around each chunk."""

from collections.abc import Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor

from torchgraft.sampling import Benchmark, Drawn, Sample, Samples

_CHUNK = 16384
_OPTIONS = (0.9, 0.0, 0.0, False, False)


def _sample(name: str, *shapes: tuple[int, ...], rate: float = 0.1, options: tuple[Any, ...] = _OPTIONS) -> Sample:
    tensors = [Drawn(shape) for shape in shapes]
    return Sample(name, (tensors, tensors, tensors, rate, *options))


def _draw(random: Random) -> Sample:
    shapes = [tuple(random.randint(0, 5) for _ in range(random.randint(0, 3))) for _ in range(random.randint(1, 4))]
    options = (
        random.uniform(0, 1),
        random.choice((0.0, 0.3)),
        random.choice((0.0, 0.01)),
        random.random() < 0.5,
        random.random() < 0.2,
    )
    return _sample(f"drawn {shapes}", *shapes, rate=random.uniform(0, 1), options=options)


_TABLE = (
    _sample("one element", (1,)),
    _sample("one scalar", ()),
    _sample("three tensors", (3,), (2, 5), (4, 1, 3)),
    _sample("one tensor without elements", (0,)),
    _sample("a tensor without elements among others", (3,), (2, 0), (4,)),
    _sample("the first step", (7,), (3, 5), options=(0.9, 0.3, 0.01, False, True)),
    _sample("dampening and decay of weights", (7,), (3, 5), options=(0.9, 0.3, 0.01, False, False)),
    _sample("Nesterov's momentum", (7,), (3, 5), options=(0.9, 0.0, 0.01, True, False)),
    _sample("no momentum", (7,), (3, 5), options=(0.0, 0.0, 0.0, False, False)),
    _sample("a rate of zero", (7,), rate=0.0),
    _sample("one less than a chunk, a chunk, and one more", (_CHUNK - 1,), (_CHUNK,), (_CHUNK + 1,)),
    _sample("images in channels_last", (2, 3, 5, 4)),
)

_RESNET = [(64, 3, 7, 7), (64,), *[(64, 64, 3, 3), (64,)] * 4, *[(256, 256, 3, 3), (256,)] * 4, (1000, 512), (1000,)]
_BENCHMARKS = (
    Benchmark(_sample("200 tensors of 1000 elements", *[(1000,)] * 200), "models"),
    Benchmark(_sample("parts of a ResNet", *_RESNET), "models", quick=True),
)


def _foreach(
    parameters: Sequence[Tensor],
    grads: Sequence[Tensor],
    momentum: Sequence[Tensor],
    learning_rate: float,
    momentum_decay: float,
    dampening: float,
    weight_decay: float,
    nesterov: bool,
    is_first: bool,
) -> None:
    """PyTorch's operators for lists, as torch.optim.SGD(foreach=True) calls them."""
    decayed = torch._foreach_add(grads, parameters, alpha=weight_decay) if weight_decay else grads
    if is_first:
        torch._foreach_copy_(momentum, decayed)
    else:
        torch._foreach_mul_(momentum, momentum_decay)
        torch._foreach_add_(momentum, decayed, alpha=1 - dampening)
    step = torch._foreach_add(decayed, momentum, alpha=momentum_decay) if nesterov else momentum
    torch._foreach_add_(parameters, step, alpha=-learning_rate)


samples = {"multi_tensor_sgd": Samples(_TABLE, _draw, benchmarks=_BENCHMARKS, rivals={"foreach": _foreach})}
