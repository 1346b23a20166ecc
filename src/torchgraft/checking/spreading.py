"""The cost of cutting an operator over devices: how results lie, what moves, and how many bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchgraft.checking.subject import Subject
from torchgraft.declaration.results import as_tuple
from torchgraft.declaration.sharding import PARTIAL, REPLICATED, Placement, moved
from torchgraft.operator.derive_sharding import derive
from torchgraft.operator.gradients import has_gradients
from torchgraft.sampling import Sample


@dataclass(frozen=True)
class Move:
    """The cost of a tensor that lies in parts.

    Attributes:
        name: of the argument whose gradient it is, or of the result.
        all_reduce: the bytes that each device sends so that every device has the sum.
        reduce_scatter: those so that every device has its part of it.
    """

    name: str
    all_reduce: int
    reduce_scatter: int


@dataclass(frozen=True)
class ShardingRow:
    """The cost of cutting along one letter.

    Attributes:
        letter: what is cut.
        arguments: how each tensor argument lies, by name: a dimension, 'replicated' or 'partial'.
        results: how each result lies, by name.
        forward: the results that come out in parts.
        backward: the gradients that come out in parts.
        permitted: whether the sample's sizes can be cut so often; else DTensor gathers.
    """

    letter: str
    arguments: dict[str, Placement]
    results: dict[str, Placement]
    forward: tuple[Move, ...]
    backward: tuple[Move, ...]
    permitted: bool


@dataclass(frozen=True)
class Spread:
    """The cost of cutting an operator along each of its letters.

    Attributes:
        operator: its name.
        declared: the text that it declares; None where it declares none.
        derived: the text that follows from its reference.
        reason: why other dimensions are not cut.
        sample: its name.
        devices: how many there are.
        rows: a row a letter.
        never: the dimensions of each argument that are never cut.
    """

    operator: str
    declared: str | None
    derived: str
    reason: str
    sample: str
    devices: int
    rows: tuple[ShardingRow, ...]
    never: dict[str, list[int]]


def spread(subject: Subject, devices: int, sample: str | None = None, dtype: torch.dtype = torch.float32) -> Spread:
    """Computes what it costs to cut an operator along each of its letters.

    Args:
        subject: the operator and its samples.
        devices: how many there are.
        sample: the name of one; None takes the first that is measured, or the largest.
        dtype: of the tensors whose bytes are counted.

    Raises:
        LookupError: there is no such sample.
        ValueError: DTensor cannot serve the operator.
    """
    operator = subject.operator
    if why := operator.declaration.why_unsharded:
        raise ValueError(f"{operator.short_name}: {why}, so it cannot be sharded")
    derived = derive(operator.declaration, subject.samples)
    declares = operator.sharding.cuts
    sharding = operator.sharding if declares else derived
    chosen = _choose(subject, sample)
    values = operator.declaration.with_defaults(chosen.make("meta", dtype))
    tensors = [values[place] for place, _ in sharding.tensors]
    call = sharding.of([None if tensor is None else tensor.shape for tensor in tensors], values)
    results = as_tuple(operator.declaration.output(*values))
    names = [result.name or f"result {number}" for number, result in enumerate(operator.declaration.results)]
    if len(names) == 1:
        names = ["the result"]
    rows = []
    for letter in call.sizes:
        cut = call.cut([letter], [result.dim() for result in results])
        placed = [(name, each[0], one) for name, each, one in zip(names, cut.results, results, strict=True)]
        given = [
            (name, each[0], tensor)
            for (_, name), each, tensor in zip(sharding.tensors, cut.arguments, tensors, strict=True)
            if each is not None
        ]
        rows.append(
            ShardingRow(
                f"dimension {letter[3:]} of ..." if letter.startswith("...") else letter,
                {name: each for name, each, _ in given},
                {name: each for name, each, _ in placed},
                _moves(placed, PARTIAL, devices),
                # The gradient of a tensor that every device holds lies in parts: each device has that of its own
                # results. Indices have none.
                _moves([each for each in given if has_gradients(each[2])], REPLICATED, devices),
                call.permits(letter, [devices]),
            )
        )
    never = {
        name: [dimension for dimension in range(tensor.dim()) if dimension not in found.values()]
        for (_, name), tensor, found in zip(sharding.tensors, tensors, call.dimensions, strict=True)
        if tensor is not None
    }
    text = operator.sharding.text if declares else None
    return Spread(operator.short_name, text, derived.text, sharding.reason, chosen.name, devices, tuple(rows), never)


def _moves(placed: Sequence[tuple[str, Placement, Tensor]], wanted: str, devices: int) -> tuple[Move, ...]:
    return tuple(
        Move(name, *(_bytes(tensor, other, devices) for other in (REPLICATED, 0)))
        for name, each, tensor in placed
        if each == wanted and tensor.numel()
    )


def _bytes(tensor: Tensor, there: Placement, devices: int) -> int:
    size = tensor.numel() * tensor.element_size()
    return round(moved([PARTIAL], [there], [devices], size))


def _choose(subject: Subject, name: str | None) -> Sample:
    samples = subject.samples
    known: dict[str, Sample] = {each.sample.name: each.sample for each in samples.benchmarks}
    known |= {each.name: each for each in samples.named}
    if name is not None:
        if name not in known:
            raise LookupError(f"{subject.name} has no sample {name!r}")
        return known[name]

    def worth(sample: Sample) -> tuple[int, int]:
        return len(sample.tensors), sample.elements

    measured: Any = [each.sample for each in samples.benchmarks]
    return measured[0] if measured else max(samples.table, key=worth)
