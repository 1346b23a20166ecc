"""Inputs of causal_conv1d: sizes around its width and the pieces of its kernels, in both layouts, packed or not."""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from torchgraft.operators.causal_conv1d.arguments import MOST_TAPS
from torchgraft.sampling import (
    Benchmark,
    Budget,
    Distribution,
    Drawn,
    Packed,
    Sample,
    Samples,
    any_size,
    draw_packed,
    log_uniform,
    rounded,
)


class _Case(NamedTuple):
    """One call, of the operator or of its gradient.

    Attributes:
        name: for a person.
        batch: of the input; 1 if it is packed by offsets.
        channels: of the input.
        length: of the input.
        width: of the weight.
        bias: whether there is one.
        past: whether there is an initial state.
        silu: whether SiLU is applied.
        channels_last: whether channels lie side by side.
        goes_on: whether something depends on the final state.
        sequences: how each item is packed; empty: it is not.
        ids: those of the elements, if they are others than those of `sequences`.
        dtype: of the gradients of weight and bias, if it is another than that of the input.
        offsets: the dtype of the offsets of packed sequences.
    """

    name: str
    batch: int
    channels: int
    length: int
    width: int = 4
    bias: bool = True
    past: bool = False
    silu: bool = False
    channels_last: bool = False
    goes_on: bool = False
    sequences: tuple[Packed, ...] = ()
    ids: tuple[int, ...] = ()
    dtype: torch.dtype | None = None
    offsets: torch.dtype = torch.int32

    def _sequence(self) -> Drawn:
        return Drawn((self.batch, self.channels, self.length), self.channels_last)

    def _state(self, wanted: bool, rows: int) -> Drawn | None:
        return Drawn((rows, self.channels, self.width - 1), self.channels_last) if wanted else None

    def _seq_idx(self) -> Drawn | None:
        ids: Sequence[float] = self.ids or [each for packed in self.sequences for each in packed.seq_idx().values or ()]
        if not ids:
            return None
        values = tuple(map(float, ids))
        return Drawn((self.batch, self.length), dtype=torch.int32, values=values, distinct=True)

    def _arguments(self, by_offsets: bool) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The gradients that a backward pass takes, and the arguments of the call."""
        rows = self.sequences[0].sequences if by_offsets else self.batch
        index = self.sequences[0].cu_seqlens(self.offsets) if by_offsets else self._seq_idx()
        bias = Drawn((self.channels,)) if self.bias else None
        weight = Drawn((self.channels, self.width))
        arguments = self._sequence(), weight, bias, self._state(self.past, rows), index, self.silu
        return (self._sequence(), self._state(self.goes_on, rows)), arguments

    def forward(self) -> Sample:
        """Makes a call of causal_conv1d."""
        return Sample(self.name, self._arguments(False)[1])

    def backward(self) -> Sample:
        """Makes a call of causal_conv1d_backward."""
        before, arguments = self._arguments(False)
        return Sample(self.name, (*before, *arguments, self.dtype))

    def packed_forward(self) -> Sample:
        """Makes a call of causal_conv1d_packed."""
        return Sample(self.name, self._arguments(True)[1])

    def packed_backward(self) -> Sample:
        """Makes a call of causal_conv1d_packed_backward."""
        before, arguments = self._arguments(True)
        return Sample(self.name, (*before, *arguments, self.dtype))


def _by_ids(name: str, *sequences: Packed, channels: int = 3, **others: Any) -> _Case:
    return _Case(name, len(sequences), channels, sequences[0].positions, sequences=sequences, **others)


_CASES = (
    _Case("one element, and nothing else", 1, 1, 1, 2, bias=False),
    _Case("a width of one: no past", 2, 3, 5, 1, silu=True, goes_on=True),
    _Case("a width of one, channels_last", 2, 3, 5, 1, channels_last=True, past=True),
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
    _Case("gradients of a weight of float64", 2, 3, 16, silu=True, dtype=torch.float64),
    _Case("a chunk", 2, 3, 8, silu=True, past=True, goes_on=True),
    _Case("an element more than two chunks", 3, 5, 17, silu=True, past=True, goes_on=True),
    _Case("two elements more than three chunks", 2, 2, 26, past=True, goes_on=True),
    _Case("as many chunks as a warp owns, and an element", 2, 2, 249, past=True, silu=True, goes_on=True),
    _Case("three channels of channels_last", 2, 3, 10, silu=True, past=True, channels_last=True, goes_on=True),
    _Case("four channels of channels_last", 2, 4, 10, silu=True, past=True, channels_last=True, goes_on=True),
    _Case("16 channels and one of channels_last", 1, 17, 7, silu=True, channels_last=True),
    _Case("a stretch of channels_last", 2, 8, 32, silu=True, past=True, channels_last=True, goes_on=True),
    _Case("two more than a stretch of channels_last", 2, 8, 66, past=True, channels_last=True, goes_on=True),
    _Case("several blocks of time", 1, 2, 2053, silu=True, past=True, goes_on=True),
    _Case("several blocks of time, channels_last", 1, 8, 300, silu=True, past=True, channels_last=True, goes_on=True),
    _Case("several blocks of channels, channels_last", 2, 260, 5, silu=True, channels_last=True),
    # Less than PyTorch gives a thread: on several its own exponentials, in second derivatives, have other bits.
    _Case("more rows than a thread's share", 3, 130, 70, silu=True, goes_on=True),
    _Case("channels_last of more than a thread's share", 3, 132, 70, silu=True, channels_last=True),
    _Case("five taps: a kernel of any width", 2, 3, 12, 5, past=True, silu=True, goes_on=True),
    _Case("nine taps of 17 channels, channels_last", 2, 17, 20, 9, past=True, channels_last=True, goes_on=True),
    _Case("31 taps, longer than the input", 2, 3, 11, 31, past=True, silu=True, goes_on=True),
    _Case("the most taps", 1, 2, 300, MOST_TAPS, past=True, silu=True, goes_on=True),
    _Case("the most taps, channels_last", 1, 3, 300, MOST_TAPS, past=True, channels_last=True, goes_on=True),
    _Case("nine channels of rows that share a tile", 2, 9, 300, 15, past=True, silu=True, goes_on=True),
    _Case("the longest rows that share a tile", 1, 2, 512, 7, silu=True, goes_on=True),
    _Case("one element more than two tiles", 1, 2, 4097, 31, past=True, silu=True, goes_on=True),
    _Case("33 channels and 65 taps, channels_last", 2, 33, 67, 65, past=True, channels_last=True, goes_on=True),
    _Case("130 taps", 1, 3, 131, 130, past=True, silu=True, goes_on=True),
    _by_ids("ids: one sequence", Packed((6,)), Packed((6,)), past=True, silu=True, goes_on=True),
    _by_ids("ids: the last sequence cut short", Packed((9, 7, 1)), Packed((4, 10, 3)), past=True, goes_on=True),
    _by_ids(
        "ids: the last sequence cut short, channels_last",
        Packed((9, 7, 1)),
        Packed((4, 10, 3)),
        past=True,
        silu=True,
        channels_last=True,
        goes_on=True,
    ),
    _by_ids("ids: sequences of one element", Packed((1, 1, 1, 1, 1)), silu=True, past=True, goes_on=True),
    _by_ids("ids: padding behind the last", Packed((3, 2), padding=2), Packed((1, 5), padding=1), goes_on=True),
    _Case("ids: padding first and between", 1, 3, 7, silu=True, past=True, goes_on=True, ids=(-1, -1, 4, 4, -1, 4, 4)),
    _by_ids("ids: nine taps", Packed((2, 12, 5)), width=9, past=True, silu=True, goes_on=True),
)

_OFFSETS = {
    "one sequence": Packed((6,)),
    "the last sequence cut short": Packed((9, 7, 1)),
    "sequences of one element": Packed((1, 1, 1, 1)),
    "sequences of no length at both ends and between": Packed((0, 3, 0, 0, 5, 0)),
    "nothing but sequences of no length": Packed((0, 0)),
    "no sequence": Packed(()),
    "a sequence longer than a stretch between short ones": Packed((2, 70, 3)),
}
_PACKED_CASES = (
    *(
        _Case(
            f"{name}{', channels_last' if channels_last else ''}",
            1,
            3,
            packed.positions,
            past=True,
            silu=channels_last,
            channels_last=channels_last,
            goes_on=True,
            sequences=(packed,),
        )
        for channels_last in (False, True)
        for name, packed in _OFFSETS.items()
    ),
    _Case("no past", 1, 3, 12, silu=True, goes_on=True, sequences=(Packed((2, 0, 9, 1)),)),
    _Case("offsets in int64", 1, 3, 12, past=True, goes_on=True, sequences=(Packed((2, 9, 1)),), offsets=torch.int64),
    _Case("no past, and no sequence of no length", 1, 3, 12, silu=True, sequences=(Packed((2, 9, 1)),)),
    _Case("31 taps", 1, 3, 44, 31, past=True, silu=True, goes_on=True, sequences=(Packed((3, 40, 1)),)),
    _Case("nine taps, channels_last", 1, 17, 30, 9, past=True, channels_last=True, sequences=(Packed((12, 0, 18)),)),
)


def _any_case(random: Random, batch: int, channels: int, length: int, width: int, **others: Any) -> _Case:
    flags: Any = {name: random.random() < 0.5 for name in ("bias", "past", "silu", "channels_last", "goes_on")}
    return _Case(
        f"drawn {batch} x {channels} x {length}, width {width}", batch, channels, length, width, **flags, **others
    )


def _any_width(random: Random) -> int:
    return random.choice((1, 2, 3, 4, 4, 5, 8, 9))


def _draw(random: Random) -> _Case:
    width = _any_width(random)
    if random.random() < 0.3:
        packed = draw_packed(random)
        return _any_case(random, 1, random.randint(1, 5), packed.positions, width, sequences=(packed,))
    return _any_case(random, random.randint(0, 3), random.randint(1, 5), random.randint(0, 7), width)


def _draw_packed(random: Random) -> _Case:
    packed = draw_packed(random, padding=False)
    return _any_case(random, 1, random.randint(1, 5), packed.positions, _any_width(random), sequences=(packed,))


_LENGTHS = (1, 2, 3, 8, 16, 32, 64, 248, 256, 512, 992, 1024, 2048)


def _cut(random: Random, length: int, *, empty: bool, most: int = 20) -> Packed:
    """Cuts a length into at most so many sequences and one, short ones more often than long ones."""
    lengths: list[int] = []
    while (left := length - sum(lengths)) > 0 and len(lengths) < most:
        if empty and random.random() < 0.2:
            lengths.append(0)
        lengths.append(any_size(random, left, _LENGTHS))
    return Packed((*lengths, left) if left else tuple(lengths))


def _stress_sizes(random: Random, budget: Budget) -> tuple[int, int, int, int]:
    width = random.choice((_any_width(random), random.randint(1, 32), random.randint(1, MOST_TAPS)))
    width = min(width, max(budget.elements, 8))
    left = max(min(budget.elements // 4, budget.products // (3 * width)), 1)
    length = any_size(random, left, _LENGTHS)
    # Weights and states have as many elements as they have taps.
    channels = any_size(random, max(left // max(length, width), 1), (4, 8, 16, 32, 64, 128))
    return any_size(random, max(left // (max(length, width) * channels), 1)), channels, length, width


def _stress(random: Random, budget: Budget) -> _Case:
    batch, channels, length, width = _stress_sizes(random, budget)
    is_packed = random.random() < 0.3 and batch < 100
    sequences = tuple(_cut(random, length, empty=False) for _ in range(batch)) if is_packed else ()
    return _any_case(random, batch, channels, length, width, sequences=sequences)


def _stress_packed(random: Random, budget: Budget) -> _Case:
    _, channels, length, width = _stress_sizes(random, budget)
    most = min(budget.elements // (channels * width), 20)
    sequences = (_cut(random, length, empty=True, most=most),)
    return _any_case(random, 1, channels, length, width, sequences=sequences)


def _benchmark(
    channels: int, length: int, batch: int, width: int = 4, *, channels_last: bool = False, silu: bool = True
) -> _Case:
    taps = "" if width == 4 else f", width {width}"
    name = f"{batch} x {channels} x {length}{taps}{', channels_last' if channels_last else ''}"
    return _Case(name, batch, channels, length, width, silu=silu, channels_last=channels_last)


# Layers of Mamba, of a batch on a GPU and on a CPU; a prompt of one user; and wider ones, of conformers.
_LAYERS = tuple(
    (_benchmark(*sizes, channels_last=channels_last), devices)
    for channels_last in (False, True)
    for sizes, devices in (
        ((4096, 2048, 8), ("cuda",)),
        ((5120, 2047, 4), ("cuda",)),
        ((1536, 512, 2), ("cpu", "cuda")),
        ((768, 131, 4), ("cpu", "cuda")),
        ((2048, 16384, 1), ("cuda",)),
        ((512, 500, 4, 15), ("cpu", "cuda")),
        ((256, 800, 2, 128), ("cpu", "cuda")),
    )
)


_BACKWARD_LAYERS = tuple(_benchmark(1536, 512, 2, channels_last=channels_last) for channels_last in (False, True))
# A packed batch of 16 sequences, two of them of one element.
_PACKED_LENGTHS = Packed((1, 300, 17, 64, 129, 5, 256, 80, 33, 1, 40, 7, 12, 30, 21, 28))
_PACKED_LAYERS = tuple(
    _benchmark(1536, _PACKED_LENGTHS.positions, 1, channels_last=channels_last)._replace(sequences=(_PACKED_LENGTHS,))
    for channels_last in (False, True)
)


def _by_pytorch(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    seq_idx: Tensor | None,
    silu: bool,
) -> tuple[Tensor, Tensor]:
    """The closest that PyTorch offers: a convolution that is padded on both sides, and cut."""
    if seq_idx is not None:
        raise TypeError("PyTorch has no packed convolution")
    past, length = weight.shape[1] - 1, input.shape[2]
    if initial_state is None:
        sums = functional.conv1d(input, weight[:, None], bias, padding=past, groups=input.shape[1])[..., :length]
        final_state = functional.pad(input, (past, 0))[..., length:]
    else:
        extended = torch.cat([initial_state, input], 2)
        sums = functional.conv1d(extended, weight[:, None], bias, groups=input.shape[1])
        final_state = extended[..., length:]
    return functional.silu(sums) if silu else sums, final_state.clone()


def _draw_layer(random: Random, budget: Budget) -> Benchmark | None:
    """A convolution as state-space models and conformers have it: a prompt of any length."""
    length = rounded(random, log_uniform(random, 64, 16384), 64, 0.7)
    channels = rounded(random, log_uniform(random, 256, 8192), 64, 0.95)
    batch = rounded(random, log_uniform(random, 1, 64), 2, 0.6)
    width = random.choices((2, 3, 4, 15, 31), (0.1, 0.1, 0.65, 0.1, 0.05))[0]
    case = _benchmark(channels, length, batch, width, channels_last=random.random() < 0.5)
    case = case._replace(bias=random.random() < 0.7, silu=random.random() < 0.8)
    elements = 2 * batch * channels * length
    if elements > budget.elements or elements * width > budget.products:
        return None
    return Benchmark(case.forward(), "drawn")


@functools.cache
def _compiled() -> Callable[..., tuple[Tensor, Tensor]]:
    """Compiles PyTorch's composition: only if somebody times it, as each process that compiles imports the compiler."""
    return torch.compile(_by_pytorch)


def _by_compiled_pytorch(*arguments: Any) -> tuple[Tensor, Tensor]:
    return _compiled()(*arguments)


def _packed_by_pytorch(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor,
    silu: bool,
) -> tuple[Tensor, Tensor]:
    """A convolution for each sequence."""
    offsets = cu_seqlens.tolist()
    if initial_state is not None:
        raise TypeError("it begins each sequence with zeros")
    pieces = [
        _by_pytorch(input[..., begin:end], weight, bias, None, None, silu)
        for begin, end in itertools.pairwise(offsets)
        if begin < end
    ]
    if len(pieces) < len(offsets) - 1 or not pieces:
        raise TypeError("PyTorch refuses a sequence of no length")
    return torch.cat([output for output, _ in pieces], 2), torch.cat([state for _, state in pieces])


def _summed(input: Drawn, weight: Drawn, *others: Any) -> int:
    return weight.shape[1] + 1


def _summed_backward(
    output_grad: Drawn, final_state_grad: Drawn | None, input: Drawn, weight: Drawn, *others: Any
) -> int:
    # The gradients of weight and bias are sums over batch and time.
    return max(output_grad.shape[0] * output_grad.shape[2], weight.shape[1] + 1)


def _samples(
    cases: Sequence[_Case],
    make: Callable[[_Case], Sample],
    draw: Callable[[Random], _Case],
    stress: Callable[[Random, Budget], _Case],
    summed: Callable[..., int],
    benchmarks: Sequence[Benchmark] = (),
    rivals: Mapping[str, Callable[..., Any]] | None = None,
    networks: Distribution | None = None,
) -> Samples:
    return Samples(
        [make(case) for case in cases],
        lambda random: make(draw(random)),
        stress=lambda random, budget: make(stress(random, budget)),
        summed=summed,
        benchmarks=benchmarks,
        rivals=rivals or {},
        networks=networks,
    )


class _Step(NamedTuple):
    """A call of causal_conv1d_update.

    Attributes:
        name: for a person.
        batch: of the input.
        channels: of the input.
        length: of the input.
        width: of the weight.
        kept: elements of the state.
        bias: whether there is one.
        silu: whether SiLU is applied.
        channels_last: whether channels lie side by side, in input and state.
        cached: how many elements each sequence had before; empty: the state is no circular buffer.
        rows: the rows of the state of each entry, and how many there are; empty: its own.
    """

    name: str
    batch: int
    channels: int
    length: int
    width: int = 4
    kept: int = 3
    bias: bool = True
    silu: bool = False
    channels_last: bool = False
    cached: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()

    def sample(self) -> Sample:
        """Makes a call of the operator."""
        rows = max(self.rows, default=0) + 2 if self.rows else self.batch
        return Sample(
            self.name,
            (
                Drawn((self.batch, self.channels, self.length), self.channels_last),
                Drawn((rows, self.channels, self.kept), self.channels_last),
                Drawn((self.channels, self.width)),
                Drawn((self.channels,)) if self.bias else None,
                _given(self.cached),
                _given(self.rows),
                self.silu,
            ),
        )


def _given(values: Sequence[int]) -> Drawn | None:
    if not values:
        return None
    return Drawn((len(values),), dtype=torch.int32, values=tuple(map(float, values)), distinct=True)


_STEPS = (
    _Step("a step", 2, 3, 1, silu=True),
    _Step("a step, channels_last", 2, 5, 1, channels_last=True),
    _Step("one number, and no state", 1, 1, 1, 1, 0, bias=False),
    _Step("no batch", 0, 3, 1),
    _Step("no channels", 2, 0, 1),
    _Step("no new element", 2, 3, 0, kept=5),
    _Step("several elements, fewer than the state keeps", 2, 3, 2, 3, 6, silu=True),
    _Step("more elements than the state keeps", 2, 3, 7, 3, 2, silu=True),
    _Step("a circular buffer", 3, 3, 1, kept=4, silu=True, cached=(0, 5, 7)),
    _Step("a circular buffer, and more elements than it keeps", 2, 3, 9, kept=4, cached=(3, 2)),
    _Step("rows of a larger state, one entry padding", 3, 3, 1, silu=True, rows=(4, -1, 0)),
    _Step("rows of a larger state, two entries padding", 3, 3, 1, rows=(-1, 2, -1)),
    _Step(
        "rows and a circular buffer, channels_last",
        3,
        4,
        2,
        kept=5,
        channels_last=True,
        cached=(9, 1, 4),
        rows=(1, 0, -7),
    ),
    _Step("nine taps of 17 channels", 2, 17, 1, 9, 8, silu=True),
    _Step("the most taps", 1, 3, 2, MOST_TAPS, MOST_TAPS + 1),
    _Step("more channels than a tile", 2, 130, 1, silu=True),
    _Step("more elements than a stretch", 1, 3, 270, silu=True, channels_last=True),
)


def _step(random: Random, batch: int, channels: int, length: int, width: int) -> _Step:
    kept = width - 1 + random.choice((0, 0, 1, 3, length))
    cached = tuple(random.randint(0, 2 * kept + 3) for _ in range(batch)) if random.random() < 0.4 else ()
    rows = tuple(random.sample(range(batch + 3), batch)) if random.random() < 0.4 else ()
    rows = tuple(row if random.random() < 0.8 else -1 for row in rows)
    flags = {name: random.random() < 0.5 for name in ("bias", "silu", "channels_last")}
    name = f"drawn {batch} x {channels} x {length}, width {width}"
    return _Step(name, batch, channels, length, width, kept, **flags, cached=cached, rows=rows)


def _stress_step(random: Random, budget: Budget) -> Sample:
    width = min(random.choice((_any_width(random), random.randint(1, MOST_TAPS))), max(budget.elements, 8))
    left = max(budget.elements // (4 * (width + 2)), 1)
    batch = any_size(random, min(left, 500))
    channels = any_size(random, left // batch, (16, 32, 64, 128))
    length = any_size(random, min(left // (batch * channels), 600))
    return _step(random, batch, channels, length, width).sample()


def _update_by_pytorch(
    input: Tensor,
    state: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    cache_seqlens: Tensor | None,
    state_indices: Tensor | None,
    silu: bool,
) -> Tensor:
    """The same step of PyTorch's operators."""
    if cache_seqlens is not None or state_indices is not None:
        raise TypeError("PyTorch has no operator that reads circular buffers or chosen rows")
    extended = torch.cat([state, input], 2)
    state.copy_(extended[..., input.shape[2] :])
    sums = functional.conv1d(
        extended[..., -(input.shape[2] + weight.shape[1] - 1) :], weight[:, None], bias, groups=weight.shape[0]
    )
    return functional.silu(sums) if silu else sums


_DECODING = tuple(
    (_Step(f"{batch} x {channels}", batch, channels, 1, silu=True), devices)
    for batch, channels, devices in (
        (1, 1536, ("cpu", "cuda")),
        (16, 1536, ("cpu", "cuda")),
        (64, 8192, ("cuda",)),
    )
)

samples = {
    "causal_conv1d": _samples(
        _CASES,
        _Case.forward,
        _draw,
        _stress,
        _summed,
        benchmarks=[
            Benchmark(_Case.forward(case), "layers", devices=devices, quick=case.length == 512)
            for case, devices in _LAYERS
        ],
        rivals={"pytorch": _by_pytorch, "compiled": _by_compiled_pytorch},
        networks=Distribution(_draw_layer, "pytorch"),
    ),
    # Beside PyTorch's, gradients are timed as the backward pass of the operators.
    "causal_conv1d_backward": _samples(
        _CASES,
        _Case.backward,
        _draw,
        _stress,
        _summed_backward,
        benchmarks=[Benchmark(_Case.backward(case), "layers", quick=case.channels_last) for case in _BACKWARD_LAYERS],
    ),
    "causal_conv1d_packed": _samples(
        _PACKED_CASES,
        _Case.packed_forward,
        _draw_packed,
        _stress_packed,
        _summed,
        benchmarks=[Benchmark(_Case.packed_forward(case), "packed", quick=True) for case in _PACKED_LAYERS],
        rivals={"pytorch": _packed_by_pytorch},
    ),
    "causal_conv1d_packed_backward": _samples(
        _PACKED_CASES,
        _Case.packed_backward,
        _draw_packed,
        _stress_packed,
        _summed_backward,
        benchmarks=[Benchmark(_Case.packed_backward(case), "packed") for case in _PACKED_LAYERS],
    ),
    "causal_conv1d_update": Samples(
        [step.sample() for step in _STEPS],
        lambda random: _step(
            random, random.randint(0, 3), random.randint(1, 5), random.randint(0, 3), _any_width(random)
        ).sample(),
        stress=_stress_step,
        summed=lambda input, state, weight, *others: weight.shape[1] + 1,
        benchmarks=[
            Benchmark(step.sample(), "decoding", devices=devices, quick=step.batch == 16) for step, devices in _DECODING
        ],
        rivals={"pytorch": _update_by_pytorch},
    ),
}
