"""Random calls are right, alone and beside other calls.

Proves: calls with random sizes, random strides, any requested gradients and any incoming gradients give the results and
gradients of the reference. In one of four, arguments that may have another dtype than the others have any wider one. On
a GPU each call runs beside another one: first both at once, each on a stream of its own, and then both captured in CUDA
graphs that are replayed at once. `graft check --stress 10000` makes that many calls of each operator, with sizes as
large as in real use and sizes on either side of the limits at which code makes a choice. On a GPU one in five of these
calls runs beside another, and one in fifty from CUDA graphs.

Cannot prove: anything about the calls that were not drawn.

Mend: run the line behind `again`: it repeats the one call. Then add its sizes to the samples, where other properties
ask about them and say more.

Example: a call with a sliced input beside one on another stream gives the values of the other call.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft._private import pytorch
from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.property import Property
from torchgraft.checking.tensors.arguments import each_tensor, tensors_of
from torchgraft.checking.tensors.compare import Mismatch
from torchgraft.checking.tensors.dtypes import in_dtype, in_float64
from torchgraft.checking.tensors.gradients import grad_or_zeros, randn_like
from torchgraft.checking.tensors.strides import in_any_strides

# The share of calls in which some arguments have a wider dtype than the others, where that is allowed.
_MIXED = 1 / 4
# The seconds in which the host launches the work of several streams, while they wait.
_SECONDS = 0.002
# Each call on a stream of its own, and each graph, runs so many times.
_ROUNDS = 2
# The share of many calls on a GPU that run beside another, and of those the share that runs from CUDA graphs too: a
# capture takes as long as many calls.
_BESIDE_ANOTHER, _FROM_GRAPHS = 1 / 5, 1 / 10
# By how many roundings arguments are moved in search of kinks, each in a direction of its own.
_MOVED = (1, 1, 1, 1, 4, 4, 4, 4, 16, 16, 16, 16)
# Processes share a GPU, so each keeps at most so many bytes from one call to the next.
_KEPT_BYTES = 4 << 30


def check(case: Case) -> None:
    """See the module."""

    def check_any(call: Call, other: Call, random: Random) -> None:
        if random.random() < _BESIDE_ANOTHER:
            _check_two_calls(call, other, random, graphs=random.random() < _FROM_GRAPHS)
        else:
            _check_call(call, other, random)
        # To ask takes as long as the check of a small call.
        if call.seed % 10 == 0 and torch.cuda.memory_reserved(call.device) > _KEPT_BYTES:
            torch.cuda.empty_cache()

    if case.device.type == "cpu":
        case.random_calls(_check_call)
    else:
        # If nobody said how many calls, each of the few runs beside another.
        case.random_calls(_check_two_calls if case.calls is None else check_any)


@dataclass(frozen=True)
class _Prepared:
    """A call with all that is random about it, and what must come of it.

    Attributes:
        arguments: of the call, in memory of any kind; some tensors want a gradient.
        output_grads: what comes in, None where nothing does.
        expected: results, and gradients where any come in, in float64.
        of_pytorch: those of them that PyTorch computes, in the dtypes of the call; None for the others.
        summed: how many products an element of each of these is a sum of, at most.
        coherent: whether gradients may be sums of what is all alike.
    """

    call: Call
    arguments: tuple[Any, ...]
    output_grads: tuple[Tensor | None, ...]
    expected: tuple[Tensor, ...]
    of_pytorch: tuple[Tensor | None, ...]
    summed: tuple[int, ...]
    coherent: bool

    def run(self) -> list[Tensor]:
        """Results and gradients, on the current stream; the arguments stay as they are, for the next time."""
        return _run(self.call.function, self.call.with_copies_of_written(self.arguments), self.output_grads)

    def expect(self, found: Sequence[Tensor], where: str) -> None:
        """Raises a Mismatch where what came is not what must."""
        call = self.call
        # PyTorch's own compositions may round a sum and then that sum with a bias, depending on strides.
        roundings = 2 if call.declaration.kernels == "reference" else 1
        results = len(self.output_grads)
        parts = zip(found, self.expected, self.of_pytorch, self.summed, strict=True)
        for number, (one, other, own, summed) in enumerate(parts, 1):
            kind, place = ("result", number) if number <= results else ("gradient", number - results)
            what = f"{kind} {place}{where}"
            coherent = self.coherent and kind == "gradient"
            options = {"summed": summed, "coherent": coherent, "roundings": roundings, "of_pytorch": own}
            try:
                call.expect_close(one, other, what=what, **options)
            except Mismatch:
                if kind == "result":
                    raise
                call.expect_close(one, self._nearest(number - 1, one, other), what=what, **options)

    def _nearest(self, number: int, found: Tensor, expected: Tensor) -> Tensor:
        """The gradient nearest to one found, where a rounding decides on which side of a kink an element lies.

        Of millions of elements some are nearer to a kink, as that of relu, than a sum is off. Each element is the one
        that comes nearest, among the gradients of the reference for arguments that differ by about a rounding.
        """
        epsilon = torch.finfo(torch.promote_types(self.call.dtype, torch.float32)).eps
        exact, incoming = in_float64(self.arguments), in_float64(self.output_grads)
        generator = torch.Generator(self.call.device).manual_seed(self.call.seed)
        nearest = expected

        def moved(tensor: Tensor, step: float) -> Tensor:
            if not tensor.is_floating_point():
                return tensor
            change = step * randn_like(tensor, generator)
            return (tensor.detach() * (1 + change)).requires_grad_(tensor.requires_grad)

        for roundings in _MOVED:
            step = roundings * epsilon
            arguments = each_tensor(partial(moved, step=step), exact)
            gradient = _run(self.call.reference, arguments, incoming)[number]
            nearer = (gradient - found).abs() < (nearest - found).abs()
            nearest = torch.where(nearer, gradient, nearest)
        return nearest


def _prepare(call: Call, random: Random) -> _Prepared:
    def incoming(gradient: Tensor) -> Tensor | None:
        kind = random.choice(["none", "expanded", "any", "any"])
        if kind == "expanded":
            # A sum gives such a gradient: one element, expanded.
            return gradient.flatten()[:1].expand(gradient.numel()).view(gradient.shape)
        return None if kind == "none" else in_any_strides(gradient, random)

    # A GPU makes its own random values: a CPU would need more time for millions than for all else.
    plain = call.make(on_device=True)
    if call.declaration.mixed and random.random() < _MIXED:
        plain = _in_wider_dtypes(call, plain, random)
    if call.declaration.sizes_from_data or not call.declaration.knows_output:
        results = tree_leaves(call.reference(*plain))
    else:
        results = (
            tree_leaves(call.declaration.visible(call.declaration.output(*plain))) if call.declaration.lists else []
        )
        results = [*tensors_of(call.written(plain)), *results]
    flags = iter([has_gradient for _, _, has_gradient in call.named_tensors(plain)])
    arguments = each_tensor(
        lambda each: in_any_strides(each, random).requires_grad_(next(flags) and random.random() < 0.7), plain
    )
    generator = torch.Generator(call.device).manual_seed(call.seed + 1)
    carriers = {id(each) for each in call.differentiable_results(results)}
    output_grads = tuple(incoming(randn_like(each, generator)) if id(each) in carriers else None for each in results)
    expected = _run(call.reference, in_float64(arguments), in_float64(output_grads))
    of_pytorch = _by_pytorch(call, arguments, output_grads)
    # Each product that a result is a sum of goes into each tensor's gradient once, and the results that a gradient is
    # made of are themselves sums.
    of_result = call.summed
    products = of_result * sum(each.numel() for each in results)
    leaves = [tensor for tensor in tensors_of(arguments) if tensor.requires_grad]
    of_gradients = [max(of_result, -(-products // max(leaf.numel(), 1))) for leaf in leaves]
    summed = (*(of_result for _ in results), *of_gradients)
    coherent = any(each is not None and each.numel() > 1 and not any(each.stride()) for each in output_grads)
    return _Prepared(call, arguments, output_grads, tuple(expected), of_pytorch, summed, coherent)


def _by_pytorch(
    call: Call, arguments: Sequence[Any], output_grads: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    """The results, and then the gradients, that PyTorch computes by the reference; None for each that it does not."""
    leaves = sum(tensor.requires_grad for tensor in tensors_of(arguments))
    ours = [not call.is_of_pytorch] * len(output_grads) + [not call.has_gradients_of_pytorch] * leaves
    if all(ours):
        return (None,) * len(ours)
    found = _run(call.reference, arguments, output_grads)
    return tuple(None if is_ours else each for each, is_ours in zip(found, ours, strict=True))


def _in_wider_dtypes(call: Call, arguments: Sequence[Any], random: Random) -> tuple[Any, ...]:
    """Arguments, of which those that may have another dtype than the others have any at least as wide.

    A narrower one would be rounded more than the dtype of the call allows for.
    """

    def widen(name: str, tensor: Tensor) -> Tensor:
        wider = [each for each in call.declaration.dtypes_of[name] if each.itemsize > tensor.dtype.itemsize]
        return in_dtype(tensor, random.choice([tensor.dtype, *wider]))

    return call.in_mixed_dtypes(arguments, widen)


def _run(function: Any, arguments: Sequence[Any], output_grads: Sequence[Tensor | None]) -> list[Tensor]:
    # New leaves over the same memory: autograd warns of those that were first used on another stream.
    own = each_tensor(lambda tensor: tensor.detach().requires_grad_(tensor.requires_grad), arguments)
    leaves = [tensor for tensor in tensors_of(own) if tensor.requires_grad]
    results = tree_leaves(function(*own))
    detached = [result.detach() for result in results]
    pairs = zip(results, output_grads, strict=True)
    differentiated = [(result, grad) for result, grad in pairs if grad is not None and result.requires_grad]
    if not differentiated:
        return detached + [torch.zeros_like(leaf) for leaf in leaves]
    outputs, incoming = zip(*differentiated, strict=True)
    # Where nothing flows there may be no gradient or one of zeros.
    return [*detached, *grad_or_zeros(outputs, leaves, incoming)]


def _check_call(call: Call, other: Call, random: Random) -> None:
    prepared = _prepare(call, random)
    # Arguments that the call writes to are written in the random layout.
    prepared.expect(_run(call.function, prepared.arguments, prepared.output_grads), "")


def _check_two_calls(call: Call, other: Call, random: Random, graphs: bool = True) -> None:
    both = _prepare(call, random), _prepare(other, random)
    streams = [torch.cuda.Stream(call.device) for _ in both]
    torch.cuda.synchronize(call.device)
    found: list[list[list[Tensor]]] = []
    for prepared, stream in zip(both, streams, strict=True):
        with torch.cuda.stream(stream):
            pytorch.wait_on_gpu(_SECONDS)
            found.append([prepared.run() for _ in range(_ROUNDS)])
    torch.cuda.synchronize(call.device)
    for prepared, rounds in zip(both, found, strict=True):
        for each in rounds:
            prepared.expect(each, ", with another call on another stream,")

    # The host waits for sizes that data decide.
    if graphs and not call.declaration.sizes_from_data:
        _check_graphs(both, streams)


def _check_graphs(both: Sequence[_Prepared], streams: Sequence[torch.cuda.Stream]) -> None:
    graphs, captured = [], []
    for prepared, stream in zip(both, streams, strict=True):
        graphs.append(torch.cuda.CUDAGraph())
        with warnings.catch_warnings():
            # A call without elements launches nothing.
            warnings.filterwarnings("ignore", "The CUDA Graph is empty")
            with torch.cuda.graph(graphs[-1], stream=stream):
                captured.append(prepared.run())
    for _ in range(_ROUNDS):
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize(streams[0].device)
    for prepared, each in zip(both, captured, strict=True):
        prepared.expect(each, ", from a CUDA graph beside another,")


PROPERTY = Property(check, of_samples=False, dtypes=None)
