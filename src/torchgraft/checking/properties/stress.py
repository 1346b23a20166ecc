"""Any call is right, in any company.

Proves: calls that are drawn at random, of random sizes, strides, gradients wanted and gradients that come in, give the
results and gradients of the reference; on a GPU each beside another call, both on streams of their own at once, and
then both captured in CUDA graphs that are replayed at once. `graft check --stress 10000` draws as many.

Cannot prove: anything about the calls that were not drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft import _torch_private
from torchgraft.checking.case import Call, Case, in_float64, tensors_of
from torchgraft.checking.property import Property
from torchgraft.checking.strides import in_awkward_strides

# In which the host has launched what several streams are to do at once.
_SECONDS = 0.002
# Of each call on a stream of its own, and of each graph.
_ROUNDS = 2


def check(case: Case) -> None:
    """See the module."""
    case.random_calls(_check_call if case.device.type == "cpu" else _check_two_calls)


@dataclass(frozen=True)
class _Prepared:
    """A call with all that is random about it, and what must come of it.

    Attributes:
        arguments: of the call, in memory of any kind.
        wanted: which tensor arguments want a gradient.
        output_grads: what comes in, None where nothing does.
        expected: results, and gradients where any come in, in float64.
    """

    call: Call
    arguments: tuple[Any, ...]
    wanted: tuple[bool, ...]
    output_grads: tuple[Tensor | None, ...]
    expected: tuple[Tensor, ...]

    def run(self) -> list[Tensor]:
        """Results and gradients, on the current stream."""
        return _run(self.call.operator, self.arguments, self.wanted, self.output_grads)

    def expect(self, found: Sequence[Tensor], where: str) -> None:
        """Raises a Mismatch where what came is not what must."""
        call = self.call
        # PyTorch's own compositions may round a sum and then that sum with a bias, depending on strides.
        roundings = 2 if call.operator.kernels == "reference" else 1
        summed, what = call.sample.elements * call.summed, f"a result or gradient{where}"
        call.expect_close(list(found), list(self.expected), summed=summed, roundings=roundings, what=what)


def _prepare(call: Call, random: Random) -> _Prepared:
    def anyhow(tensor: Tensor) -> Tensor:
        return random.choice([tensor, *in_awkward_strides(tensor).values()])

    def incoming(gradient: Tensor) -> Tensor | None:
        kind = random.choice(["none", "expanded", "any", "any"])
        if kind == "expanded":
            # As from a sum: all of it one element.
            return gradient.flatten()[:1].expand(gradient.numel()).view(gradient.shape)
        return None if kind == "none" else anyhow(gradient)

    plain = call.arguments
    wanted = tuple(random.random() < 0.7 for _ in tensors_of(plain))
    arguments = tuple(anyhow(value) if isinstance(value, Tensor) else value for value in plain)
    results = tree_leaves(call.operator.visible(call.operator.output(*plain)))
    output_grads = tuple(incoming(each) for each in call.output_grads(results))
    exact = [None if each is None else each.double() for each in output_grads]

    def reference(*values: Any) -> Any:
        return call.operator.visible(call.operator.reference(*values))

    expected = _run(reference, in_float64(plain), wanted, exact)
    return _Prepared(call, arguments, wanted, output_grads, tuple(expected))


def _run(
    function: Any, arguments: Sequence[Any], wanted: Sequence[bool], output_grads: Sequence[Tensor | None]
) -> list[Tensor]:
    asked = iter(wanted)
    # New leaves over the same memory: autograd warns of those that were first used on another stream.
    own = [value.detach().requires_grad_(next(asked)) if isinstance(value, Tensor) else value for value in arguments]
    leaves = [value for value in own if isinstance(value, Tensor) and value.requires_grad]
    results = tree_leaves(function(*own))
    detached = [result.detach() for result in results]
    pairs = zip(results, output_grads, strict=True)
    differentiated = [(result, grad) for result, grad in pairs if grad is not None and result.requires_grad]
    if not differentiated:
        return detached + [torch.zeros_like(leaf) for leaf in leaves]
    outputs, incoming = zip(*differentiated, strict=True)
    # Where nothing flows there may be no gradient or one of zeros.
    gradients = torch.autograd.grad(outputs, leaves, incoming, allow_unused=True, materialize_grads=True)
    return [*detached, *gradients]


def _check_call(call: Call, other: Call, random: Random) -> None:
    prepared = _prepare(call, random)
    prepared.expect(prepared.run(), "")


def _check_two_calls(call: Call, other: Call, random: Random) -> None:
    both = _prepare(call, random), _prepare(other, random)
    streams = [torch.cuda.Stream(call.device) for _ in both]
    torch.cuda.synchronize(call.device)
    found: list[list[list[Tensor]]] = []
    for prepared, stream in zip(both, streams, strict=True):
        with torch.cuda.stream(stream):
            _torch_private.wait_on_gpu(_SECONDS)
            found.append([prepared.run() for _ in range(_ROUNDS)])
    torch.cuda.synchronize(call.device)
    for prepared, rounds in zip(both, found, strict=True):
        for each in rounds:
            prepared.expect(each, ", with another call on another stream,")

    graphs, captured = [], []
    for prepared, stream in zip(both, streams, strict=True):
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1], stream=stream):
            captured.append(prepared.run())
    for _ in range(_ROUNDS):
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize(call.device)
    for prepared, each in zip(both, captured, strict=True):
        prepared.expect(each, ", from a CUDA graph beside another,")


PROPERTY = Property(check, dtypes=None)
