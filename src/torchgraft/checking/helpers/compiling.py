"""Compiles and exports operators, for the properties about that."""

import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.helpers.other_sizes import size_arguments
from torchgraft.checking.tensors.arguments import of_tensors, tensors_of, with_places_left
from torchgraft.checking.tensors.compare import Mismatch, expect_same
from torchgraft.checking.tensors.gradients import grad_or_zeros, leaves_of, with_gradients
from torchgraft.checking.tensors.strides import significant_strides

# The most characters of an error of PyTorch that are shown.
_MOST_SAID = 400
# Warnings of PyTorch about itself that it attributes to other modules.
_ATTRIBUTED_ELSEWHERE = (r"`isinstance\(treespec, LeafSpec\)` is deprecated", "Attempted to insert a get_attr Node")


@contextmanager
def quiet_pytorch() -> Iterator[None]:
    """Silences PyTorch's warnings about itself: nobody who checks an operator can act on them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"torch(\.|$)")
        for message in _ATTRIBUTED_ELSEWHERE:
            warnings.filterwarnings("ignore", message)
        yield


@contextmanager
def fresh_compiler() -> Iterator[None]:
    """Compiles as if nothing had been compiled before, and quietly."""
    torch.compiler.reset()
    try:
        with quiet_pytorch():
            yield
    finally:
        torch.compiler.reset()


# This backend traces forward and backward as Inductor does, and runs the traced operations.
TRACING = "aot_eager"


class CompilerFailed(Mismatch):
    """Expects that PyTorch can compile a function and its gradient."""


@contextmanager
def _failures_told(when: str = "") -> Iterator[None]:
    """Raises a CompilerFailed if a compiler of PyTorch fails inside; `when` names the pass in which it did."""
    from torch._dynamo.exc import TorchDynamoException, Unsupported

    try:
        yield
    except TorchDynamoException as error:
        what = "breaks the graph" if isinstance(error, Unsupported) else "fails"
        raise CompilerFailed(f"torch.compile {what}{when}: {in_short(error)}") from error


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compiles a function in one graph; a call raises a Mismatch if there would be several, or if it fails."""
    inner = torch.compile(function, fullgraph=True, **options)

    def call(*arguments: Any) -> Any:
        with _failures_told():
            return inner(*arguments)

    return call


def expect_compiler(call: Call, failed: CompilerFailed, **options: Any) -> None:
    """Raises a failure of a compiler again; it says so if the reference alone cannot be compiled either.

    Args:
        call: the operator's.
        failed: the failure.
        options: of `compiled`.
    """
    function, places = of_sizes_and_tensors(call, call.reference)
    arguments = call.leaves(required=False)
    try:
        with fresh_compiler():
            results = tree_leaves(compiled(function, **options)(*(arguments[place] for place in places)))
            carriers = with_gradients(results)
            if carriers and leaves_of(arguments):
                _compiled_gradients(call, carriers, arguments)
    except CompilerFailed:
        raise Mismatch(
            f"{failed}. PyTorch cannot compile the reference alone either: write it with other operations, or write a"
            " gradient formula without those that fail"
        ) from failed
    except Exception:
        # It says nothing about the operator.
        pass
    raise failed


def _compiled_gradients(call: Call, carriers: Sequence[Tensor], arguments: Sequence[Any]) -> Any:
    """The gradients of what compiled code has returned; that of the gradient is compiled now."""
    with _failures_told(" at the gradient"):
        return grad_or_zeros(carriers, leaves_of(arguments), call.output_grads(carriers))


def in_short(error: BaseException | str) -> str:
    """Shortens an error to one line: the beginning of PyTorch's long ones, and the line of code that it is about."""
    text = str(error)
    if isinstance(error, BaseException) and (told := _code_of(error)):
        return told
    frames = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', text)
    said = " ".join(text.partition("from user code:")[0].partition("User Stack")[0].split())
    if len(said) > _MOST_SAID:
        said = f"{said[:_MOST_SAID]} ..."
    return f"{said} (in {frames[-1][2]}, {frames[-1][0]}:{frames[-1][1]})" if frames else said


def _code_of(error: BaseException) -> str:
    """The line of code that raises an error without a text, such as an assertion; empty if the error has one."""
    said = str(error).partition("Set TORCHDYNAMO_VERBOSE")[0].strip()
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or (said and not re.search(r"\b[A-Z]\w*(?:Error|Exception):$", said)):
        return ""
    name = said.removesuffix(":") or type(error).__name__
    return f"{name} at `{frames[-1].line}` (in {frames[-1].name}, {frames[-1].filename}:{frames[-1].lineno})"


def export(call: Call, *, strict: bool = False, open_sizes: bool = False) -> torch.export.ExportedProgram:
    """Exports a program that takes the tensors of a call; its numbers are constants.

    Args:
        call: the example.
        strict: whether TorchDynamo traces it.
        open_sizes: whether it is to take other sizes too, wherever the operator can.

    Raises:
        Mismatch: it cannot be exported.
    """
    arguments = call.arguments
    function = of_tensors(call.function, arguments)
    tensors = tuple(tensors_of(arguments))

    class Module(torch.nn.Module):
        def forward(self, *tensors: Tensor) -> Any:
            return function(*tensors)

    # PyTorch never leaves sizes of 0 and 1 open.
    sizes = tuple(
        {dim: torch.export.Dim.AUTO for dim, size in enumerate(tensor.shape) if size > 1} for tensor in tensors
    )
    try:
        return torch.export.export(Module(), tensors, strict=strict, dynamic_shapes=(sizes,) if open_sizes else None)
    except Exception as error:
        raise Mismatch(f"torch.export fails: {in_short(error)}") from error


def expect_served(call: Call, program: Callable[..., Any], name: str) -> None:
    """Compares what an exported program gives for the tensors of a call with the reference."""
    try:
        found = program(*tensors_of(call.arguments))
    except (AssertionError, RuntimeError) as error:
        raise Mismatch(f"{name} does not take the sizes {call.shapes}: {in_short(error)}") from error
    call.expect_close(found, call.expected(), what=f"the result of {name} in the sizes {call.shapes}")


def of_sizes_and_tensors(call: Call, instead: Callable[..., Any] | None = None) -> tuple[Callable[..., Any], list[int]]:
    """Wraps the operator so that it takes its tensors and sizes alone; returns that and the places of these.

    Other numbers are constants, as where a layer holds them.

    Args:
        call: one of the operator.
        instead: called in the operator's place.
    """
    fixed = call.make("meta")
    sizes = size_arguments(call.operator)
    places = [i for i, argument in enumerate(call.declaration.arguments) if argument.holds_tensors or i in sizes]
    places = [place for place in places if fixed[place] is not None]
    return with_places_left(instead or call.function, fixed, places), places


def expect_forward_and_backward(call: Call, function: Callable[..., Any], places: Sequence[int], what: str) -> None:
    """Compares results, their strides and the gradients of all tensors with those of the reference."""
    arguments = call.leaves(required=False)
    results = tree_leaves(function(*(arguments[place] for place in places)))
    eager = tree_leaves(call.function(*call.arguments))
    carriers = with_gradients(results)
    call.expect_close(results, list(tree_leaves(call.expected())), what=f"the result of {what}")
    for one, other in zip(results, eager, strict=True):
        expect_same(one.dtype, other.dtype, f"the result of {what} has another dtype")
        if call.declaration.is_of_pytorch:
            # PyTorch may lay out the results of its own operators as it likes: it pads a product's rows.
            continue
        found, expected = significant_strides(one), significant_strides(other)
        expect_same(found, expected, f"the result of {what} has other strides than without")

    if not leaves_of(arguments):
        return
    expect_same(
        len(carriers),
        len(call.differentiable_results(eager)),
        f"{what} returns another number of results that require a gradient",
    )
    gradients = _compiled_gradients(call, carriers, arguments)
    summed = max(call.summed, *(result.numel() for result in results))
    call.expect_close(
        gradients, call.expected_gradients(call.output_grads(carriers)), summed=summed, what=f"the gradient of {what}"
    )
