"""Every dtype that is declared is served, and no other.

Proves: in each declared dtype the results have the dtype that the reference gives them; a tensor of another dtype is
refused with a TypeError that names it, and so is a mixture of dtypes, except where one is declared: that gives what the
reference gives.

Cannot prove: that the values are right in each; `value` does that.
"""

from functools import partial

import torch
from torch.utils._pytree import tree_leaves

from torchgraft.checking.case import Call, Case, each_tensor
from torchgraft.checking.comparing import Mismatch, expect, expect_same
from torchgraft.checking.property import Property
from torchgraft.checking.result import NotApplicable

_OTHERS = (torch.int64, torch.uint8, torch.bool, torch.complex64)


def check(case: Case) -> None:
    """See the module."""
    if case.operator.dtypes is None:
        raise NotApplicable("the operator leaves dtypes to its reference (dtypes=None)")
    case.each(_check_declared, case.table(empty=False)[:1])
    case.each(_check_others, case.table(empty=False)[:1])


def _check_declared(call: Call) -> None:
    operator = call.operator
    for dtype in operator.dtypes or ():
        arguments = call.sample.make(call.device, dtype, call.seed)
        found = [result.dtype for result in tree_leaves(operator(*arguments))]
        expected = [result.dtype for result in tree_leaves(call.reference(*arguments))]
        expect_same(found, expected, f"results for {dtype} have the wrong dtype")


def _check_others(call: Call) -> None:
    operator = call.operator
    for dtype in _OTHERS:
        if dtype not in (operator.dtypes or ()):
            _expect_refused(call, each_tensor(partial(torch.Tensor.to, dtype=dtype), call.arguments), f"{dtype}")
    if len(call.tensor_names) == 1:
        return
    others = [dtype for dtype in operator.dtypes or () if dtype != call.dtype] or [torch.int64]
    for name, tensor, with_other in call.tensors_in_turn():
        for other in others if name in operator.mixed else others[:1]:
            expect_answer = _expect_right if name in operator.mixed else _expect_refused
            expect_answer(call, with_other(tensor.to(other)), f"{name} in {other} among {call.dtype}")


def _expect_right(call: Call, arguments: tuple[object, ...], what: str) -> None:
    found = call.operator(*arguments)
    unmixed = [result.dtype for result in tree_leaves(call.operator(*call.arguments))]
    dtypes = [result.dtype for result in tree_leaves(found)]
    expect_same(dtypes, unmixed, f"results for {what} have the wrong dtype")
    call.expect_close(found, call.expected(arguments), what=what)


def _expect_refused(call: Call, arguments: tuple[object, ...], what: str) -> None:
    try:
        call.operator(*arguments)
    except TypeError as error:
        expect(call.operator.name in str(error), f"the error for {what} does not name the operator: {error}")
        return
    except Exception as error:
        raise Mismatch(f"{what} raises {type(error).__name__}, not TypeError: {error}") from None
    raise Mismatch(f"{what} is accepted, and is not among the declared dtypes")


PROPERTY = Property(check)
