"""On several devices the operator gives what it gives on one, or refuses.

Proves: on meshes of 2, 3 and 2 x 2 devices, each a thread of one process, DTensor gives the results and the gradients
of the reference, in float64. Tensors lie in every way that the declared sharding allows, with uneven parts and with
sizes smaller than the mesh; in parts that are yet to be added; and each along another letter, so that DTensor must move
them. A tensor that is cut along a dimension without a letter is refused on every device, with an error that names
operator, argument and dimension.

Cannot prove: anything about the speed of what is moved, about NCCL or gloo, or about letters that could have been
declared and were not: `graft shard` finds those.

Mend: give a letter only to dimensions whose parts can be computed apart, and `_` to dimensions that a kernel reduces
over. `graft shard NAME` says what the reference permits.

Example: says that columns may be cut of which each device would take a softmax of its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.devices import make_mesh, run_on_devices
from torchgraft.checking.property import Property
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.tensors.compare import Mismatch, expect
from torchgraft.checking.tensors.dtypes import is_number
from torchgraft.checking.tensors.gradients import leaves_of, with_gradients
from torchgraft.declaration.sharding import PARTIAL, REPLICATED, Placement, ShardingError
from torchgraft.operator import Operator
from torchgraft.operator.dtensor import placement_of

_MESHES = ((2,), (3,), (2, 2))


class _Layout(NamedTuple):
    """The layout of the tensors of a call over devices.

    Attributes:
        what: in words.
        placements: of each tensor argument, along each dimension of the mesh; None for one that is None.
        refused: the name of the argument that may not lie so; empty where all may.
    """

    what: str
    placements: tuple[tuple[Placement, ...] | None, ...]
    refused: str = ""


class _Outcome(NamedTuple):
    """The answer of one device: whole results and gradients, or the error that it raised."""

    results: list[Tensor]
    gradients: list[Tensor | None]
    error: Exception | None = None


def check(case: Case) -> None:
    """See the module."""
    if why := case.declaration.why_unsharded:
        raise NotApplicable(why)
    samples = case.table(small=True, empty=False)
    cut = [sample for sample in samples if _can_be_cut(case.call(sample))]
    # The largest are cut most often; the smallest leaves devices without a part.
    chosen = cut[-1:] if case.quick and cut else [samples[0], *cut[len(cut) // 2 :: max(1, len(cut) // 2)]]
    case.each(_check_call, {sample.name: sample for sample in chosen}.values())


def _can_be_cut(call: Call) -> bool:
    values = call.make("meta")
    sharding = call.operator.sharding
    shapes = [None if values[place] is None else values[place].shape for place, _ in sharding.tensors]
    spoken = sharding.of(shapes, values)
    return all(spoken.permits(letter, [2]) for letter in spoken.sizes)


def _check_call(call: Call) -> None:
    arguments = call.leaves(required=False)
    differentiated = with_gradients(tree_leaves(call.function(*arguments)))
    grads = call.output_grads(differentiated)
    expected = tree_leaves(call.expected()), call.expected_gradients(grads) if grads else ()
    for mesh in _MESHES:
        layouts = list(_layouts(call.operator, arguments, mesh))
        devices = run_on_devices(math.prod(mesh), lambda: _run_all(call, arguments, grads, mesh, layouts))  # noqa: B023
        for number, layout in enumerate(layouts):
            where = f"on a mesh of {' x '.join(map(str, mesh))} devices, with {layout.what}"
            for device, outcomes in enumerate(devices):
                _compare(call, layout, outcomes[number], expected, f"{where}, device {device}")


def _layouts(operator: Operator, arguments: Sequence[Any], mesh: Sequence[int]) -> Iterator[_Layout]:
    """Ways to lay the tensors of a call; each mesh but the first and the second has those of letters alone."""
    sharding = operator.sharding
    tensors = [arguments[place] for place, _ in sharding.tensors]
    call = sharding.of([None if each is None else each.shape for each in tensors], arguments)
    for letters in itertools.product((*call.sizes, ""), repeat=len(mesh)):
        cut = call.cut(letters, [0] * len(sharding.results))
        placements = [
            None if each is None else tuple(REPLICATED if one == PARTIAL else one for one in each)
            for each in cut.arguments
        ]
        yield _Layout(f"{' and '.join(filter(None, letters)) or 'nothing'} cut", tuple(placements))
    everywhere: list[Any] = [None if each is None else (REPLICATED,) for each in tensors]
    for number, ((_, name), tensor, dimensions) in enumerate(
        zip(sharding.tensors, tensors, call.dimensions, strict=True)
    ):
        if tensor is None:
            continue
        if mesh == _MESHES[0]:
            for dimension in {*range(tensor.dim())} - {*dimensions.values()}:
                placements = [*everywhere[:number], (dimension,), *everywhere[number + 1 :]]
                yield _Layout(f"dimension {dimension} of {name} cut", tuple(placements), name)
        elif mesh == _MESHES[1] and is_number(tensor):
            placements = [*everywhere[:number], (PARTIAL,), *everywhere[number + 1 :]]
            yield _Layout(f"{name} in parts that are to be added", tuple(placements))
    if mesh == _MESHES[1]:
        for turn in range(2):
            placements = [
                each and ((tuple(dimensions.values())[(number + turn) % len(dimensions)],) if dimensions else each)
                for number, (each, dimensions) in enumerate(zip(everywhere, call.dimensions, strict=True))
            ]
            yield _Layout("each tensor cut along a letter of its own", tuple(placements))


def _run_all(
    call: Call, arguments: Sequence[Any], grads: Sequence[Tensor], mesh: Sequence[int], layouts: Sequence[_Layout]
) -> list[_Outcome]:
    """The results of this device for each layout."""
    devices = make_mesh(mesh)
    return [_run(call, arguments, grads, devices, layout) for layout in layouts]


def _run(call: Call, arguments: Sequence[Any], grads: Sequence[Tensor], devices: Any, layout: _Layout) -> _Outcome:
    placements = iter(layout.placements)
    laid = list(arguments)
    for place, _ in call.operator.sharding.tensors:
        where = next(placements)
        if where is not None:
            laid[place] = _lay(arguments[place], where, devices)
    try:
        operator = call.operator
        # PyTorch's own rules serve what it computes itself; under the public name the declared one does.
        function = operator.names.call_public if operator.declaration.is_of_pytorch else operator.call
        results: list[Any] = tree_leaves(function(*laid))
        leaves, differentiated = leaves_of(laid), [each for each in results if each.requires_grad]
        found: Sequence[Any] = ()
        if differentiated:
            # A result in parts has a gradient that is the same everywhere.
            laid_grads = [
                _lay(grad, tuple(each.dim if each.is_shard() else REPLICATED for each in result.placements), devices)
                for grad, result in zip(grads, differentiated, strict=True)
            ]
            found = torch.autograd.grad(differentiated, leaves, laid_grads, allow_unused=True)
        whole = [result.full_tensor().detach() for result in results]
        gradients = [None if each is None else each.full_tensor() for each in found]
        return _Outcome(whole, gradients)
    except ShardingError as error:
        # Every device refuses it; of any other error only this one knows.
        return _Outcome([], [], error)


def _lay(tensor: Tensor, where: tuple[Placement, ...], devices: Any) -> Tensor:
    """A tensor that lies so, a leaf where the tensor is one."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if PARTIAL in where:
        # One half, and the other half once more in parts.
        parts, at = devices.size(), devices.get_local_rank()
        part = tensor.detach() * (0.5 if at == 0 else 0.5 / (parts - 1))
        laid = DTensor.from_local(part, devices, [placement_of(PARTIAL)], run_check=False)
    else:
        laid = distribute_tensor(tensor.detach(), devices, [placement_of(each) for each in where], src_data_rank=None)
    return laid.detach().requires_grad_(tensor.requires_grad)


def _compare(
    call: Call, layout: _Layout, outcome: _Outcome, expected: tuple[list[Tensor], Sequence[Tensor]], where: str
) -> None:
    if layout.refused:
        expect(
            outcome.error is not None,
            f"{where}: the call must be refused, as its sharding does not allow it, but it returns a result",
        )
        said = str(outcome.error)
        for word in (call.operator.name, layout.refused):
            expect(word in said, f"{where}: the refusal does not name {word!r}", found=said)
        return
    if outcome.error is not None:
        raise Mismatch(f"{where}: what the sharding allows is refused: {outcome.error}")
    call.expect_close(outcome.results, expected[0], roundings=2, what=f"{where}: the result")
    given = [each for each, _ in zip(outcome.gradients, expected[1], strict=False)]
    wanted = [None if one is None else other for one, other in zip(given, expected[1], strict=True)]
    call.expect_close(given, wanted, roundings=2, what=f"{where}: the gradient")


PROPERTY = Property(
    check,
    of_samples=False,
    dtypes=(torch.float64,),
    devices=("cpu",),
    asked_of=lambda operator: operator.sharding.cuts,
    imports=("torch.distributed.tensor",),
)
