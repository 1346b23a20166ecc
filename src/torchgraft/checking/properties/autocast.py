"""Under autocast the operator computes in the dtype that it declares, and gradients keep the dtype of their arguments.

Proves: on two small samples, for bfloat16 and float16, the operator is called through the Operator, by its public name,
and compiled. The results have the dtype and the values of a call with arguments cast as declared, also if the arguments
have different dtypes. Backward works inside autocast. float64 is not cast. Arguments that the operator takes in another
dtype (`mixed`) stay in float32, with numbers that the lower dtype may not have. The kernel rounds them to it when it
reads them: the results are then those of arguments that were cast, bit for bit, and the gradients of those arguments
err no more, against float64.

Cannot prove: that the declaration is sensible: whether the definition keeps its meaning in a lower dtype.

Mend: choose `autocast` by what the kernel takes: 'lower' needs kernels for float16 and bfloat16, 'promote' one dtype
among the arguments, 'none' leaves them. Arguments that stay in float32 are listed in `mixed`.

Example: says that autocast lowers it, to dtypes that it does not take.
"""

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.compiling import TRACING, compiled, fresh_compiler
from torchgraft.checking.property import COMPILER, Property
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.tensors.arguments import each_tensor, tensors_of
from torchgraft.checking.tensors.compare import expect, expect_same
from torchgraft.checking.tensors.dtypes import in_float64
from torchgraft.checking.tensors.gradients import differentiate, leaves_of, with_gradients
from torchgraft.declaration.autocast import is_castable


def check(case: Case) -> None:
    """See the module."""
    check_eager(case)
    for dtype in (torch.bfloat16, torch.float16):
        case.each(partial(_check_compiled, dtype), case.table(small=True, empty=False, count=1))


def check_eager(case: Case) -> None:
    """Checks calls that are not compiled."""
    for dtype in (torch.bfloat16, torch.float16):
        case.each(partial(_check_calls, dtype), case.table(small=True, empty=False, count=2))
    case.each(_check_float64, case.table(small=True, empty=False, count=2))
    if case.declaration.autocast == "lower" and case.declaration.mixed and case.dtype == torch.float32:
        for dtype in (torch.bfloat16, torch.float16):
            case.each(partial(_check_wide, dtype), case.table(small=True, empty=False, count=6))


def _check_calls(dtype: torch.dtype, call: Call) -> None:
    operator = call.operator
    if operator.declaration.mutates:
        raise NotApplicable("it writes to its arguments, and autocast casts none of them")
    for function, name in (
        (operator.call, "the Operator"),
        (
            lambda *arguments: operator.declaration.visible(operator.names.call_public(*arguments)),
            operator.public.name(),
        ),
    ):
        _expect_as_declared(call, function, call.arguments, dtype, name)
        if operator.declaration.autocast != "none" and sum(map(is_castable, tensors_of(call.arguments))) > 1:
            _, first, with_other = next(call.tensors_in_turn())
            _expect_as_declared(call, function, with_other(first.to(dtype)), dtype, f"{name}, with mixed arguments")


def _check_compiled(dtype: torch.dtype, call: Call) -> None:
    with fresh_compiler():
        graph = compiled(lambda *arguments: call.function(*arguments), backend=TRACING)
        _expect_as_declared(call, graph, call.arguments, dtype, "torch.compile")


def _expect_as_declared(
    call: Call, function: Callable[..., Any], arguments: Sequence[Any], dtype: torch.dtype, name: str
) -> None:
    rule, taken = call.declaration.autocast, call.declaration.dtypes
    expect(
        rule != "lower" or taken is None or dtype in taken,
        f"autocast={rule!r} is declared, but not the dtype {_short(dtype)}: every call under autocast to it fails",
    )
    how = f"under autocast to {_short(dtype)}, through {name}"
    declared = _as_declared(call, arguments, dtype)
    plain = tree_leaves(call.function(*declared))
    leaves = call.leaves(arguments, required=False)
    with torch.autocast(call.device.type, dtype=dtype):
        results = tree_leaves(function(*leaves))
        for result, as_cast in zip(results, plain, strict=True):
            expect_same(result.dtype, as_cast.dtype, f"the result {how}, has the wrong dtype: {rule!r} is declared")
        # Inside autocast, which must not cast again.
        if carriers := with_gradients(results):
            torch.stack([result.abs().float().sum() for result in carriers]).sum().backward()
    call.expect_close(results, tree_leaves(call.expected(declared)), dtype=plain[0].dtype, what=f"the result {how},")
    for tensor in leaves_of(leaves):
        found = None if tensor.grad is None else tensor.grad.dtype
        expect_same(found, tensor.dtype, f"the gradient {how}, has another dtype than its argument")


def _as_declared(call: Call, arguments: Sequence[Any], dtype: torch.dtype) -> tuple[Any, ...]:
    rule = call.declaration.autocast
    if rule == "none":
        return tuple(arguments)
    if rule == "promote":
        dtype = reduce(torch.promote_types, (tensor.dtype for tensor in tensors_of(arguments) if is_castable(tensor)))
    return each_tensor(lambda tensor: tensor.to(dtype) if is_castable(tensor) else tensor, arguments)


def _check_wide(dtype: torch.dtype, call: Call) -> None:
    """Arguments that may stay in float32 give the same results as those that were cast, and no worse gradients."""
    operator = call.operator
    lowered = _as_declared(call, call.arguments, dtype)
    narrow = call.leaves(lowered)
    results = tree_leaves(call.function(*narrow))
    output_grads = call.output_grads(results)
    cast_grads = differentiate(results, leaves_of(narrow), output_grads)
    exact = call.expected_gradients(output_grads, lowered)

    wide = call.leaves(
        [
            value if argument.name in operator.declaration.mixed else other
            for argument, value, other in zip(operator.declaration.arguments, call.arguments, lowered, strict=True)
        ]
    )
    plain = results
    with torch.autocast(call.device.type, dtype=dtype):
        results = tree_leaves(call.function(*wide))
    for one, other in zip(results, plain, strict=True):
        expect(
            torch.equal(one, other),
            f"the result, of arguments left in float32 under autocast to {_short(dtype)}, is not that of those cast",
        )
    found = differentiate(results, leaves_of(wide), output_grads)
    for name, leaf, one, other, right in zip(call.leaf_names, leaves_of(wide), found, cast_grads, exact, strict=True):
        if one is None or other is None or leaf.dtype == dtype:
            continue
        error, error_of_cast = ((each.double() - right).abs().max().item() for each in (one, other))
        # Sums of products in float32, which may by chance be exact when they are rounded.
        slack = torch.finfo(torch.float32).eps * max(call.summed, 1) * right.abs().max().item()
        expect(
            error <= error_of_cast + slack,
            f"the gradient of {name}, left in float32 under autocast to {_short(dtype)}, errs by {error:.3g}, and by "
            f"{error_of_cast:.3g} where {name} is cast",
        )


def _check_float64(call: Call) -> None:
    if call.declaration.dtypes is not None and torch.float64 not in call.declaration.dtypes:
        return
    exact = in_float64(call.arguments)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast(call.device.type, dtype=dtype):
            results = tree_leaves(call.function(*exact))
            results += tree_leaves(call.declaration.visible(call.operator.names.call_public(*exact)))
        for result, plain in zip(results, 2 * tree_leaves(call.function(*exact)), strict=True):
            expect_same(result.dtype, plain.dtype, f"under autocast to {_short(dtype)} float64 is cast")


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


PROPERTY = Property(check, imports=COMPILER)
