"""Inputs of causal_conv1d: lengths around its width, a chunk and a stretch of time, in both layouts."""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from causal_conv1d.operator import WIDTHS
from torchgraft.sampling import Benchmark, Budget, Drawn, Sample, Samples, any_size


class _Case(NamedTuple):
    """One call, of the operator or of its gradient."""

    name: str
    batch: int
    channels: int
    length: int
    width: int = 4
    bias: bool = True
    past: bool = False
    silu: bool = False
    channels_last: bool = False
    # Whether something depends on the final state.
    goes_on: bool = False

    def _sequence(self) -> Drawn:
        return Drawn((self.batch, self.channels, self.length), self.channels_last)

    def _state(self, wanted: bool) -> Drawn | None:
        return Drawn((self.batch, self.channels, self.width - 1), self.channels_last) if wanted else None

    @property
    def _others(self) -> tuple[Any, ...]:
        bias = Drawn((self.channels,)) if self.bias else None
        return self._sequence(), Drawn((self.channels, self.width)), bias, self._state(self.past), self.silu

    def forward(self) -> Sample:
        """The sample as a call of causal_conv1d."""
        return Sample(self.name, self._others)

    def backward(self) -> Sample:
        """The sample as a call of causal_conv1d_backward."""
        return Sample(self.name, (self._sequence(), self._state(self.goes_on), *self._others))


_CASES = (
    _Case("one element, and nothing else", 1, 1, 1, 2, bias=False),
    _Case("no time", 2, 3, 0, past=True, goes_on=True),
    _Case("no time, channels_last", 2, 3, 0, past=True, channels_last=True, goes_on=True),
    _Case("no time and no past", 2, 3, 0, goes_on=True),
    _Case("no batch", 0, 3, 5, past=True, silu=True),
    _Case("no batch, channels_last", 0, 3, 5, channels_last=True),
    _Case("no channels", 2, 0, 5, past=True, goes_on=True),
    _Case("shorter than the past", 2, 3, 1, past=True, silu=True, goes_on=True),
    _Case("shorter than the past, channels_last", 2, 4, 2, past=True, silu=True, channels_last=True, goes_on=True),
    _Case("shorter than a past of zeros", 2, 3, 2, goes_on=True),
    _Case("as long as the past", 1, 2, 3, 4, past=True, goes_on=True),
    _Case("a width of two", 2, 3, 9, 2, past=True, silu=True, goes_on=True),
    _Case("a width of three", 2, 3, 17, 3, silu=True, past=True, goes_on=True),
    _Case("a width of two, channels_last", 2, 8, 9, 2, past=True, silu=True, channels_last=True, goes_on=True),
    _Case("a width of three, channels_last", 2, 5, 17, 3, past=True, silu=True, channels_last=True),
    _Case("no bias", 2, 3, 16, bias=False, silu=True),
    _Case("a chunk", 2, 3, 8, silu=True, past=True, goes_on=True),
    _Case("two chunks, and nothing that waits for the state", 2, 3, 16, silu=True, past=True),
    _Case("an element more than two chunks", 3, 5, 17, silu=True, past=True, goes_on=True),
    _Case("two elements more than three chunks", 2, 2, 26, past=True, goes_on=True),
    _Case("as many chunks as a warp owns, and an element", 2, 2, 249, past=True, silu=True, goes_on=True),
    _Case("three channels of channels_last", 2, 3, 10, silu=True, past=True, channels_last=True, goes_on=True),
    _Case("four channels of channels_last", 2, 4, 10, silu=True, past=True, channels_last=True, goes_on=True),
    _Case("16 channels and one of channels_last", 1, 17, 7, silu=True, channels_last=True),
    _Case("a stretch of channels_last", 2, 8, 32, silu=True, past=True, channels_last=True, goes_on=True),
    _Case("two more than a stretch of channels_last", 2, 8, 34, past=True, channels_last=True, goes_on=True),
    _Case("several blocks of time", 1, 2, 2053, silu=True, past=True, goes_on=True),
    _Case("several blocks of time, channels_last", 1, 8, 300, silu=True, past=True, channels_last=True, goes_on=True),
    _Case("several blocks of channels, channels_last", 2, 260, 5, silu=True, channels_last=True),
    # Less than PyTorch gives a thread: on several its own exponentials, in second derivatives, have other bits.
    _Case("more rows than a thread's share", 3, 130, 70, silu=True, goes_on=True),
    _Case("channels_last of more than a thread's share", 3, 132, 70, silu=True, channels_last=True),
)


def _any_case(random: Random, batch: int, channels: int, length: int) -> _Case:
    flags = {name: random.random() < 0.5 for name in ("bias", "past", "silu", "channels_last", "goes_on")}
    return _Case(f"drawn {batch} x {channels} x {length}", batch, channels, length, random.choice(WIDTHS), **flags)


def _draw(random: Random) -> _Case:
    return _any_case(random, random.randint(0, 3), random.randint(1, 5), random.randint(0, 7))


def _stress(random: Random, budget: Budget) -> _Case:
    left = budget.elements // 4
    length = any_size(random, left, (1, 2, 3, 8, 16, 32, 64, 248, 256, 512, 992, 1024, 2048))
    channels = any_size(random, left // length, (4, 8, 16, 32, 128))
    batch = any_size(random, left // (length * channels))
    return _any_case(random, batch, channels, length)


def _benchmark(channels: int, length: int, batch: int, *, channels_last: bool = False) -> _Case:
    layout = ", channels_last" if channels_last else ""
    name = f"{batch} x {channels} x {length}{layout}"
    return _Case(name, batch, channels, length, silu=True, channels_last=channels_last)


# Layers of Mamba, of a batch on a GPU and on a CPU; and a prompt of one user.
_LAYERS = tuple(
    (_benchmark(*sizes, channels_last=channels_last), devices)
    for channels_last in (False, True)
    for sizes, devices in (
        ((4096, 2048, 8), ("cuda",)),
        ((5120, 2047, 4), ("cuda",)),
        ((1536, 512, 2), ("cpu", "cuda")),
        ((768, 131, 4), ("cpu", "cuda")),
        ((2048, 16384, 1), ("cuda",)),
    )
)


def _by_pytorch(
    input: Tensor, weight: Tensor, bias: Tensor | None, initial_state: Tensor | None, silu: bool
) -> tuple[Tensor, Tensor]:
    """PyTorch's way: a convolution that is padded on both sides, and cut."""
    past, length = weight.shape[1] - 1, input.shape[2]
    if initial_state is None:
        sums = functional.conv1d(input, weight[:, None], bias, padding=past, groups=input.shape[1])[..., :length]
        final_state = functional.pad(input, (past, 0))[..., length:]
    else:
        extended = torch.cat([initial_state, input], 2)
        sums = functional.conv1d(extended, weight[:, None], bias, groups=input.shape[1])
        final_state = extended[..., length:]
    return functional.silu(sums) if silu else sums, final_state.clone()


def _samples(
    make: Callable[[_Case], Sample],
    summed: Callable[..., int],
    benchmarks: Sequence[Benchmark] = (),
    rivals: Mapping[str, Callable[..., Any]] | None = None,
) -> Samples:
    return Samples(
        [make(case) for case in _CASES],
        lambda random: make(_draw(random)),
        stress=lambda random, budget: make(_stress(random, budget)),
        summed=summed,
        benchmarks=benchmarks,
        rivals=rivals or {},
    )


samples = {
    "causal_conv1d": _samples(
        _Case.forward,
        lambda input, weight, *others: weight.shape[1] + 1,
        benchmarks=[
            Benchmark(_Case.forward(case), "layers", devices=devices, quick=case.length == 512)
            for case, devices in _LAYERS
        ],
        rivals={"pytorch": _by_pytorch, "compiled": torch.compile(_by_pytorch)},
    ),
    # It is timed as the backward pass of the one above.
    "causal_conv1d_backward": _samples(
        _Case.backward,
        # The gradients of weight and bias are sums over batch and time.
        lambda output_grad, *others: max(output_grad.shape[0] * output_grad.shape[2], 5),
    ),
}
