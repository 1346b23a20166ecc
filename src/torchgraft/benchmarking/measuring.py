"""Measures an operator on its benchmarks: its time, its rivals', and the least that the device allows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft import native
from torchgraft.benchmarking.explaining import explain, kernels_of
from torchgraft.benchmarking.passes import Candidate, bind, bind_yardstick, output_grads_of, work_of
from torchgraft.benchmarking.provenance import provenance_of_operator
from torchgraft.benchmarking.roofs import Roofs
from torchgraft.benchmarking.rows import KERNEL, RivalResult, Row
from torchgraft.benchmarking.timing import Stopwatch, Timing, ratio_of, summarise
from torchgraft.checking.helpers.parts import expect_parts_close, prepare
from torchgraft.checking.kernels import listed_kernels
from torchgraft.checking.tensors.arguments import tensors_of
from torchgraft.checking.tensors.compare import Mismatch, expect_close
from torchgraft.checking.tensors.dtypes import in_float64
from torchgraft.checking.tensors.gradients import leaves_of, with_gradients
from torchgraft.checking.tensors.strides import overwrite
from torchgraft.kernels import python_kernels
from torchgraft.kernels.fallback import PerformanceWarning, fallbacks
from torchgraft.kernels.precision import cudnn_switches, tf32_permitted
from torchgraft.operator.mutation import answer_by_reference

# A time this much below the floor is a mistake of the measurement: roofs are measured too, and not exact.
_BELOW_FLOOR = 0.9
_OURS = ("ours", "again")


def measure(candidate: Candidate, stopwatch: Stopwatch, roofs: Roofs) -> Row:
    """Times an operator and its rivals on one input, in turn, and verifies what they gave.

    A contender is refused, and its time is not reported, where its result on new values of the same tensors is not
    the reference's, or where it was faster than the device can be.
    """
    arguments = candidate.call.make(on_device=True)
    if candidate.every_kernel:
        candidate = replace(candidate, against=(*candidate.against, *_kernels_that_serve(candidate, arguments)))
    contenders = {name: bind(candidate, function, arguments) for name, function in functions_of(candidate).items()}
    yardsticks = {name: make for name, make in candidate.samples.yardsticks.items() if name in candidate.against}
    for name, make in yardsticks.items():
        contenders[name] = bind_yardstick(candidate, make, arguments)
    refused: dict[str, str] = {}
    # cuDNN times every way to compute what it is asked for first. Of a very large call that alone takes half a minute.
    search = cudnn_switches(benchmark=False) if candidate.benchmark.large else nullcontext()
    with search, warnings.catch_warnings():
        # What falls back is told by the row.
        warnings.simplefilter("ignore", PerformanceWarning)
        # Nor is it news here what layers of PyTorch's advise their users: nn.LSTM in bfloat16, against copies.
        warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\.nn\.")
        before = {each[:4]: each.calls for each in fallbacks()}
        served = {}
        launched: tuple[str, ...] = ()
        chosen: tuple[str, ...] = ()
        with precision_of(candidate):
            for name, call in list(contenders.items()):
                if problem := why_it_fails(call):
                    refused[name] = problem
                    del contenders[name]
            timings = stopwatch.time(contenders, warm=("ours",)) if "ours" in contenders else {}
            if timings:
                launched = kernels_of(contenders["ours"], candidate.device)
                chosen = native.chosen_kernels(candidate.operator.namespace, candidate.device.type, contenders["ours"])
            if candidate.explained:
                served = {name: explain(call, candidate.device) for name, call in contenders.items() if name != "again"}
        if candidate.benchmark.sample.tf32:
            # In tf32 no result of a long sequence has a digit that is sure. Of weights that tf32 holds an operator's
            # own kernels are exact, and what is PyTorch's is computed in float32 now.
            # Bound anew: what was captured or kept for a backward pass was computed in tf32.
            again = functions_of(candidate)
            contenders |= {name: bind(candidate, again[name], arguments) for name in contenders if name in again}
        verify = _verifier(candidate, arguments)
        if candidate.declaration.mutates:
            again = functions_of(candidate)
            contenders |= {name: _rewriting(candidate, again[name], arguments) for name in contenders if name in again}
        refused |= {
            name: problem
            for name in timings
            if name not in yardsticks
            and (problem := _why_it_is_wrong(contenders[name], verify, _roundings(candidate, name)))
        }
        fell_back = [
            each.reason
            for each in fallbacks()
            if each.operator == candidate.operator.qualified_name and each.calls > before.get(each[:4], 0)
        ]
    provenance = provenance_of_operator(
        candidate.operator, candidate.device.type, gradients=candidate.direction == "backward", launched=launched
    )
    row = row_of(candidate, arguments, timings, refused, roofs, fell_back)
    return replace(row, served=served, chosen=chosen, provenance=provenance)


def refuse(candidate: Candidate, problem: str, roofs: Roofs) -> Row:
    """The row of what cannot be measured, and why."""
    arguments = candidate.call.make("meta")
    return row_of(candidate, arguments, {}, {"ours": problem}, roofs, ())


def precision_of(candidate: Candidate) -> AbstractContextManager[Any]:
    """A scope in which float32 may be computed in tf32 where a row says so."""
    return tf32_permitted() if candidate.benchmark.sample.tf32 else nullcontext()


def _kernels_that_serve(candidate: Candidate, arguments: Sequence[Any]) -> list[str]:
    """The operator's kernels that support a call, as rivals are named."""
    serving = []
    for kernel in listed_kernels(candidate.operator, candidate.device.type):
        with (
            precision_of(candidate),
            python_kernels.forced(candidate.declaration, candidate.device.type, kernel) as forced,
        ):
            # An error is reported where the kernel is called as a rival.
            why_it_fails(lambda: candidate.operator.call(*arguments))
        if forced.served:
            serving.append(f"{KERNEL}{kernel}")
    return serving


def _by_kernel(candidate: Candidate, kernel: str) -> Callable[..., Any]:
    """The operator, served by a kernel of its own that is forced."""
    forced = python_kernels.forced(candidate.declaration, candidate.device.type, kernel)

    def call(*arguments: Any) -> Any:
        with forced:
            return candidate.operator.call(*arguments)

    return call


def functions_of(candidate: Candidate) -> dict[str, Callable[..., Any]]:
    """The functions that are timed, by name: the operator twice, so that the noise is known, and its rivals."""
    operator = candidate.operator

    def reference(*arguments: Any) -> Any:
        if operator.declaration.mutates:
            return answer_by_reference(operator.declaration, arguments)
        return operator.declaration.visible(operator.reference(*arguments))

    known: dict[str, Callable[..., Any]] = {**candidate.samples.rivals, "reference": reference}
    if "compile" in candidate.against:
        known["compile"] = torch.compile(reference, dynamic=False)
    if "cuda_graph" in candidate.against:
        known["cuda_graph"] = _captured(reference)
    for name in candidate.against:
        if name.startswith(KERNEL):
            known[name] = _by_kernel(candidate, name.removeprefix(KERNEL))
    return dict.fromkeys(_OURS, operator.call) | {name: known[name] for name in candidate.against if name in known}


def _captured(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function as a CUDA graph, captured at the first call and then replayed on the same tensors."""
    captured: list[tuple[torch.cuda.CUDAGraph, Any]] = []

    def replay(*arguments: Any) -> Any:
        if any(isinstance(value, Tensor) and (value.requires_grad or not value.is_cuda) for value in arguments):
            raise ValueError("cuda_graph measures forward passes on a GPU only")
        if not captured:
            graph = torch.cuda.CUDAGraph()
            # What libraries allocate at first must not be captured.
            beside = torch.cuda.Stream()
            beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(beside):
                function(*arguments)
            torch.cuda.current_stream().wait_stream(beside)
            with torch.cuda.graph(graph):
                result = function(*arguments)
            captured.append((graph, result))
        graph, result = captured[0]
        graph.replay()
        return result

    return replay


def _rewriting(candidate: Candidate, function: Callable[..., Any], arguments: Sequence[Any]) -> Callable[[], Any]:
    """A call of what writes to its arguments, each time to the values of now: what they hold then, and the results."""
    written = tensors_of(candidate.call.written(arguments))
    values = [tensor.clone() for tensor in written]

    def call() -> Any:
        for tensor, value in zip(written, values, strict=True):
            overwrite(tensor, value)
        return candidate.call.outcome_of(function, arguments)

    return call


def why_it_fails(call: Callable[[], Any]) -> str:
    """The error that a call raises, in a line; empty if it raises none."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
    return ""


def _verifier(candidate: Candidate, arguments: tuple[Any, ...]) -> Callable[[Any, int], None]:
    """Builds the function that compares the result of one more call with the reference in float64.

    Forward it is called on new values of the same tensors, so that a result that was remembered shows as wrong.
    """
    operator, samples, sample = candidate.operator, candidate.samples, candidate.benchmark.sample
    summed = candidate.call.summed
    options: dict[str, Any] = {"dtype": candidate.dtype, "summed": summed, "scale": 4.0}
    if candidate.direction == "backward":
        exact = candidate.call.leaves(in_float64(arguments))
        results = with_gradients(tree_leaves(operator.declaration.visible(operator.reference(*exact))))
        rounded = [result.detach().to(candidate.dtype) for result in results]
        output_grads = in_float64(output_grads_of(rounded))
        expected = torch.autograd.grad(results, leaves_of(exact), output_grads)
        options["summed"] = max(summed, *(each.numel() for each in expected), sample.elements)
        return lambda found, roundings: expect_close(found, expected, **options, roundings=roundings)
    for value, new in zip(tensors_of(arguments), tensors_of(candidate.call.make(seed=1, on_device=True)), strict=True):
        overwrite(value, new)
    if (large := candidate.benchmark.large) is not None:
        prepare(large, arguments)
        return lambda found, roundings: expect_parts_close(
            operator, samples, large, arguments, found, **options, roundings=roundings
        )
    # Of what is needed once, too.
    with cudnn_switches(enabled=False):
        expected = operator.declaration.visible(operator.reference(*in_float64(arguments)))
    return lambda found, roundings: expect_close(found, expected, **options, roundings=roundings)


def _roundings(candidate: Candidate, name: str) -> int:
    # A rival may round what is between two steps of its own: a sum, and that sum with a bias.
    return 1 if name in _OURS or name.startswith(KERNEL) else candidate.samples.rival_roundings.get(name, 3)


def _why_it_is_wrong(call: Callable[[], Any], verify: Callable[[Any, int], None], roundings: int) -> str:
    try:
        verify(call(), roundings)
    except Mismatch as mismatch:
        return str(mismatch)
    return ""


def row_of(
    candidate: Candidate,
    arguments: Sequence[Any],
    timings: dict[str, Timing],
    refused: dict[str, str],
    roofs: Roofs,
    fell_back: Sequence[str],
) -> Row:
    """The row of what was timed; where nothing was, of why.

    Args:
        candidate: was measured.
        arguments: of its call.
        timings: of each contender by name; 'ours' is the operator's, and 'again' once more.
        refused: why a contender has no time, by name.
        roofs: of the device.
        fell_back: why no kernel ran, where none did.
    """
    moved, operations = work_of(candidate, arguments)
    floor, bound = roofs.floor(moved, operations, candidate.dtype_name)
    for name, timing in timings.items():
        # A yardstick has a floor of its own.
        if name not in candidate.samples.yardsticks and timing.time.median < _BELOW_FLOOR * floor and bound != "launch":
            refused[name] = (
                f"{timing.time.median * 1e6:.2f} us is less than the {floor * 1e6:.2f} us that the device needs at "
                "least, so the measurement is wrong: other programs kept the device busy while its copies and products "
                "were timed for that, or the call leaves out a part of its work. Measure again on an idle machine; if "
                "it says the same there, `graft check` the operator, and look at `moved` of its samples"
            )
    ours = None if "ours" in refused else timings.get("ours")
    beside = {}
    for name in candidate.against:
        if ours is None or name in refused or name not in timings:
            problem = refused.get(name) or refused.get("ours") or "it is not a rival of this operator"
            beside[name] = RivalResult(None, None, problem)
        else:
            timing = timings[name]
            beside[name] = RivalResult(timing.time, ratio_of(timing.rounds, ours.rounds), "")
    return Row(
        operator=candidate.operator.short_name,
        suite=candidate.benchmark.suite,
        sample=candidate.benchmark.sample.name,
        dtype=candidate.dtype_name,
        layout=candidate.layout,
        direction=candidate.direction,
        time=ours.time if ours else None,
        warm=summarise(ours.warm) if ours and ours.warm else None,
        host=ours.host if ours and ours.warm else None,
        moved=moved,
        operations=operations,
        floor=floor,
        bound=bound,
        noise=ratio_of(timings["again"].rounds, ours.rounds) if ours and "again" in timings else None,
        others=ours.others if ours else None,
        rivals={name: each for name, each in beside.items() if name not in candidate.samples.yardsticks},
        yardsticks={name: each for name, each in beside.items() if name in candidate.samples.yardsticks},
        problem=refused.get("ours", ""),
        fallbacks=tuple(fell_back),
    )
