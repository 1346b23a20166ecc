"""Captured calls as samples: whatever is asked of samples is asked of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchgraft.capturing.statistics import Statistics, draw
from torchgraft.capturing.taken import as_value, dtype_named
from torchgraft.finding.samples import samples_of
from torchgraft.operator import Operator
from torchgraft.sampling import Benchmark, Drawn, Sample, Samples
from torchgraft.sampling.samples import with_made

# The suite of captured calls in `graft bench`.
SUITE = "captured"


@dataclass(frozen=True, eq=False)
class Memory:
    """A piece of memory that tensors of a captured call lie in.

    Attributes:
        dtype: in which it is held.
        elements: how many it has.
        statistics: of its values.
        values: returns them; None if they were not kept.
        follows: whether its dtype is that of the call, and another one if the call is made in another one.
        stays: whether it is on the CPU while the call is on another device.
    """

    dtype: torch.dtype
    elements: int
    statistics: Statistics
    values: Callable[[], Tensor] | None
    follows: bool
    stays: bool = False

    def make(self, device: torch.device, dtype: torch.dtype, generator: torch.Generator, *, as_it_was: bool) -> Tensor:
        """Makes new memory.

        Args:
            device: where.
            dtype: of the call.
            generator: of values that were not kept.
            as_it_was: whether it holds the values of the captured call; otherwise floating-point numbers are drawn.
                Integers are kept, as indices and offsets must fit each other.
        """
        dtype = dtype if self.follows else self.dtype
        if self.stays and device.type != "meta":
            device = torch.device("cpu")
        if device.type == "meta":
            return torch.empty(self.elements, dtype=dtype, device=device)
        numbers = self.dtype.is_floating_point or self.dtype.is_complex
        if self.values is not None and (as_it_was or not numbers):
            return self.values().to(device, dtype, copy=True)
        return draw(self.elements, dtype, self.statistics, generator).to(device)


@dataclass(frozen=True)
class CapturedTensor(Drawn):
    """A tensor argument of a captured call. What is changed about it is drawn as of any `Drawn`.

    Attributes:
        memory: in which it lies.
        stride: as captured.
        offset: of its first element in the memory, in elements of its dtype.
        own_dtype: as captured.
        plain: what it was when it was read.
    """

    memory: Memory | None = field(default=None, repr=False)
    stride: tuple[int, ...] = ()
    offset: int = 0
    own_dtype: torch.dtype = torch.float32
    plain: Drawn | None = field(default=None, repr=False)

    @property
    def is_as_captured(self) -> bool:
        """Whether nothing about it was changed."""
        return self.plain == _plain(self)

    def make(self, device: torch.device | str, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        """The tensor, with the values of the captured call."""
        if self.memory is None or not self.is_as_captured:
            return super().make(device, dtype, generator)
        return self.lie_in(self.memory.make(torch.device(device), dtype, generator, as_it_was=True), dtype)

    def lie_in(self, memory: Tensor, dtype: torch.dtype) -> Tensor:
        """The tensor in memory that was made for it; it is no view, as no argument need be one."""
        assert self.memory is not None
        own = dtype if self.memory.follows else self.own_dtype
        tensor = torch.empty(0, dtype=own, device=memory.device)
        return tensor.set_(memory.untyped_storage(), self.offset, self.shape, self.stride)


def _plain(drawn: Drawn) -> Drawn:
    return Drawn(**{each.name: getattr(drawn, each.name) for each in fields(Drawn)})


@dataclass(frozen=True)
class CapturedSample(Sample):
    """A captured call. Arguments that shared memory share it.

    Attributes:
        captured: the dtype of the call.
        count: how often such a call was seen.
    """

    captured: torch.dtype = torch.float32
    count: int = 1

    def make(
        self, device: torch.device | str, dtype: torch.dtype, seed: int = 0, *, on_device: bool = False
    ) -> tuple[Any, ...]:
        """The arguments: for seed 0 with the values of the captured call, as far as these were kept."""
        generator = torch.Generator(device if on_device else "cpu").manual_seed(seed)
        memories: dict[Memory, Tensor] = {}

        def make(drawn: Drawn) -> Tensor:
            if not isinstance(drawn, CapturedTensor) or drawn.memory is None or not drawn.is_as_captured:
                return drawn.make(device, dtype, generator)
            memory = drawn.memory
            if memory not in memories:
                memories[memory] = memory.make(torch.device(device), dtype, generator, as_it_was=seed == 0)
            return drawn.lie_in(memories[memory], dtype)

        return tuple(with_made(each, make) for each in self.arguments)


def sample_of(
    name: str,
    arguments: Mapping[str, Any],
    memories: Sequence[Mapping[str, Any]],
    dtype: torch.dtype,
    values: Callable[[int], Tensor],
    count: int = 1,
) -> CapturedSample:
    """Makes a sample of a call that was taken apart.

    Args:
        name: of the sample.
        arguments: as `taken.take` wrote them.
        memories: of each piece its `dtype`, `elements`, `statistics`, and whether its values are `kept`.
        dtype: of the call.
        values: returns those of a piece.
        count: how often such a call was seen.

    Raises:
        ValueError: a tensor does not lie in its memory, or no call was taken apart so.
    """
    devices = dict(_devices(arguments))
    mixed = any(device != "cpu" for device in devices.values())
    pieces = [
        Memory(
            dtype_named(each["dtype"]),
            each["elements"],
            each["statistics"],
            partial(values, number) if each["kept"] else None,
            dtype_named(each["dtype"]) == dtype,
            mixed and devices.get(number) == "cpu",
        )
        for number, each in enumerate(memories)
    ]

    def tensor_of(text: Mapping[str, Any]) -> CapturedTensor:
        memory, own, stride = pieces[text["memory"]], dtype_named(text["dtype"]), tuple(text["stride"])
        size, offset, statistics = tuple(text["size"]), text["offset"], memory.statistics
        last = sum((each - 1) * step for each, step in zip(size, stride, strict=True)) if 0 not in size else -1
        if min((offset, *size, *stride), default=0) < 0 or (
            (offset + last + 1) * own.itemsize > memory.elements * memory.dtype.itemsize and 0 not in size
        ):
            raise ValueError(f"a tensor of {size} in strides of {stride} does not lie in its memory")
        integers = not (own.is_floating_point or own.is_complex or own == torch.bool) and "min" in statistics
        plain = Drawn(
            size,
            channels_last=text["layout"] == "channels_last",
            scale=_scale(statistics),
            dtype=None if memory.follows else own,
            low=statistics["min"] if integers else None,
            high=statistics["max"] + 1 if integers else None,
            # A few indices are distinct by chance; a permutation is meant to be one.
            distinct=integers and statistics["distinct"] and _is_permutation(statistics, math.prod(size)),
            ordered=integers and statistics["ordered"] and len(size) == 1,
        )
        own_fields = {each.name: getattr(plain, each.name) for each in fields(Drawn)}
        return CapturedTensor(**own_fields, memory=memory, stride=stride, offset=offset, own_dtype=own, plain=plain)

    return CapturedSample(
        name, tuple(as_value(each, tensor_of) for each in arguments.values()), captured=dtype, count=count
    )


def _is_permutation(statistics: Statistics, elements: int) -> bool:
    span: int = statistics["max"] - statistics["min"] + 1
    return elements == span > 1


def _devices(value: Any) -> Iterator[tuple[int, str]]:
    """The devices of the pieces of memory, by number."""
    if isinstance(value, dict) and "memory" in value and "device" in value and "stride" in value:
        yield value["memory"], value["device"]
    elif isinstance(value, (Mapping, list)):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _devices(each)


def _scale(statistics: Statistics) -> float:
    """The standard deviation of what is drawn in other sizes, from mean zero."""
    found = math.hypot(statistics.get("std", 1.0), statistics.get("mean", 0.0))
    return found if 0 < found < math.inf else 1.0


def samples_from(operator: Operator, captured: Sequence[CapturedSample]) -> Samples:
    """Returns samples of an operator whose table is captured calls; sums and rivals are those of its own samples."""
    try:
        own = samples_of(operator)
    except LookupError:
        own = Samples(())
    return replace(
        own,
        table=tuple(captured),
        draw=None,
        stress=None,
        gpu_table=(),
        large=(),
        modules=(),
        replaced=(),
        benchmarks=tuple(Benchmark(each, SUITE, quick=True, dtypes=(each.captured,)) for each in captured),
        networks=None,
    )
