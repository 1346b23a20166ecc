"""torch.compile keeps the operator in one graph, forward and backward, and a dynamic graph takes all sizes.

Proves: on a few small samples, compiled with fullgraph, static and dynamic, the results and all first gradients are
those of the reference, with the same layout as without compilation. If there are several results, the gradients of each
alone are right, too: a compiler gives the formula zeros for the others, where autograd gives None. A dynamic graph
takes other sizes without a recompilation. With gradients this is required only if PyTorch manages it for the reference,
which it does not if the reference has a loop. Nor does another value of a number that `random=` names need another
graph, as it is another one in each call. Inductor generates code for a static graph of the smallest sample and a
dynamic graph of the largest. All other graphs, and all graphs of a quick run, are traced by aot_eager, which differs
only in that it generates no code.

Cannot prove: anything about graphs that hold more than the operator, or about second derivatives through a compiled
graph, which PyTorch does not have.

Mend: the gradient formula and `output` are traced: they may not ask for values (`.item()`, `if tensor`), nor make
constants of sizes. A number whose value changes from call to call, as a size, a seed or a position, is `SymInt` in the
schema: code is compiled again for each new value of an `int`.

Example: the gradient formula asks what the numbers are, which nobody knows while a graph is made.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.compiling import (
    TRACING,
    CompilerFailed,
    compiled,
    expect_compiler,
    expect_forward_and_backward,
    fresh_compiler,
    in_short,
    of_sizes_and_tensors,
)
from torchgraft.checking.helpers.other_sizes import in_other_sizes, size_arguments
from torchgraft.checking.property import COMPILER, Property
from torchgraft.checking.tensors.arguments import with_places_left
from torchgraft.checking.tensors.compare import Mismatch
from torchgraft.checking.tensors.gradients import grad_or_zeros, leaves_of, with_gradients

# Two values of a number that chooses random values.
_SEEDS = (23, 42)


def check(case: Case) -> None:
    """See the module."""
    samples = case.table(small=True, empty=False, count=4)
    # A quick run traces in the same way, and leaves out the code that Inductor would generate.
    backend = TRACING if case.quick else "inductor"
    static, dynamic = map(_compiler_expected, (_check_static, _check_dynamic))
    case.each(partial(static, backend), samples[:1])
    case.each(partial(dynamic, backend), samples[-1:])
    if not case.quick:
        case.each(partial(static, TRACING), samples[1:])
        case.each(partial(dynamic, TRACING), samples[:-1])
    if case.declaration.random:
        case.each(_check_random, samples[-1:])


def _compiler_expected(check: Callable[..., None]) -> Callable[..., None]:
    """Wraps a check of one call: if PyTorch's compiler fails, the failure says whether the reference is the reason."""

    def checked(backend: str, call: Call) -> None:
        try:
            check(backend, call)
        except CompilerFailed as failed:
            expect_compiler(call, failed, backend=backend, dynamic=check is _check_dynamic)

    return checked


def _check_static(backend: str, call: Call) -> None:
    function, places = of_sizes_and_tensors(call)
    with fresh_compiler():
        graph = compiled(function, backend=backend, dynamic=False)
        expect_forward_and_backward(call, graph, places, "a static graph")
        _check_each_result_alone(call, graph, places)


def _check_each_result_alone(call: Call, graph: Callable[..., Any], places: Sequence[int]) -> None:
    count = len(call.differentiable_results(tree_leaves(call.function(*call.arguments))))
    if count < 2 or not call.leaf_names:
        return
    for used in range(count):
        arguments = call.leaves(required=False)
        carriers = with_gradients(tree_leaves(graph(*(arguments[place] for place in places))))
        output_grads = call.output_grads(carriers)
        found = grad_or_zeros(carriers[used : used + 1], leaves_of(arguments), output_grads[used : used + 1])
        zeros = [each if place == used else torch.zeros_like(each) for place, each in enumerate(output_grads)]
        summed = max(call.summed, *(each.numel() for each in output_grads))
        what = f"the gradient of a static graph, of result {used + 1} alone,"
        call.expect_close(found, call.expected_gradients(zeros), summed=summed, what=what)


def _check_dynamic(backend: str, call: Call) -> None:
    function, places = of_sizes_and_tensors(call)
    with fresh_compiler():
        graph = compiled(function, backend=backend, dynamic=True)
        expect_forward_and_backward(call, graph, places, "a dynamic graph")
        others = in_other_sizes(call, numbers=True)
        if not others:
            return
        try:
            with _without_recompiling(others[-1]):
                expect_forward_and_backward(others[-1], graph, places, "a dynamic graph in other sizes")
        except _CompiledAgainError:
            if not _is_unrolled(call, others[-1]) and not _leaves_one(call, others[-1]):
                raise


def _check_random(call: Call) -> None:
    """Expects that the numbers which choose random values, another in each call, need no other graph."""
    described = call.declaration.arguments
    for place in (place for place, each in enumerate(described) if each.name in call.declaration.random):
        # PyTorch makes constants of 0 and 1.
        one, other = (call.with_argument(place, number) for number in _SEEDS)
        places = [*(each for each in of_sizes_and_tensors(call)[1] if each != place), place]
        function = with_places_left(call.function, call.make("meta"), places)
        try:
            tree_leaves(call.function(*one.arguments)), tree_leaves(call.function(*other.arguments))
        except (ValueError, TypeError):
            continue  # The operator refuses the value.
        with fresh_compiler(), torch.no_grad():
            graph = compiled(function, backend=TRACING, dynamic=True)
            if not (why := _why_compiled_again(one, other, graph, places)):
                continue
        name, kind = described[place].name, described[place].kind
        message = f"torch.compile compiles again for each new value of {name}"
        if kind != "SymInt":
            raise Mismatch(f"{message}, which is `{kind}` in the schema: write `SymInt {name}`")
        raise Mismatch(f"{message}, though it is SymInt in the schema: {why}")


def _leaves_one(call: Call, other: Call) -> bool:
    """Whether a size of a result is 1 in one call alone: PyTorch takes it for granted then, as it does with inputs."""
    results = (tree_leaves(each.expected()) for each in (call, other))
    return any(
        (one == 1) != (another == 1)
        for pair in zip(*results, strict=True)
        for one, another in zip(*(each.shape for each in pair), strict=True)
    )


def _is_unrolled(call: Call, other: Call) -> bool:
    """Whether it is gradients alone that need another graph in other sizes, and those of the reference do so too."""
    function, places = of_sizes_and_tensors(call)
    referred, _ = of_sizes_and_tensors(call, call.operator.reference)
    with fresh_compiler(), torch.no_grad():
        graph = compiled(function, backend=TRACING, dynamic=True)
        if _compiles_again(call, other, graph, places):
            return False
    with fresh_compiler():
        return _compiles_again(call, other, compiled(referred, backend="eager", dynamic=True), places)


def _compiles_again(call: Call, other: Call, graph: Callable[..., Any], places: Sequence[int]) -> bool:
    return bool(_why_compiled_again(call, other, graph, places))


def _why_compiled_again(call: Call, other: Call, graph: Callable[..., Any], places: Sequence[int]) -> str:
    graph(*(call.arguments[place] for place in places))
    try:
        with _without_recompiling(other):
            graph(*(other.arguments[place] for place in places))
    except _CompiledAgainError as error:
        return str(error)
    return ""


class _CompiledAgainError(Mismatch):
    """Expects that code compiled for one call does not answer another."""


@contextmanager
def _without_recompiling(call: Call) -> Iterator[None]:
    """A scope in which a call is answered by what was compiled for other sizes."""
    try:
        with torch.compiler.set_stance("fail_on_recompile"):
            yield
    except RuntimeError as error:
        if "recompile" not in str(error):
            raise
        why = in_short(str(error).rpartition("guard failure(s):")[2])
        raise _CompiledAgainError(f"a dynamic graph is compiled again for {_named(call)}: {why}") from error


def _named(call: Call) -> str:
    """The sizes of a call, and the numbers that may change without another graph."""
    values, described = call.make("meta"), call.declaration.arguments
    numbers = [f" and {described[place].name}={values[place]}" for place in size_arguments(call.operator)]
    return f"the sizes {call.shapes}{''.join(numbers)}"


PROPERTY = Property(check, imports=COMPILER)
