"""Every dtype that is declared is served, and no other.

Proves: in each declared dtype the results have the dtype that the reference gives them; a tensor of another dtype is
refused with a TypeError that names it, and so is a mixture of dtypes, except where one is declared: that gives what the
reference gives.

Cannot prove: that the values are right in each; `value` does that.
"""

import torch
from torch.utils._pytree import tree_leaves

from torchgraft.checking.case import Call, Case, tensors_of
from torchgraft.checking.comparing import Mismatch, expect
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
        expected = [result.dtype for result in tree_leaves(operator.visible(operator.reference(*arguments)))]
        expect(found == expected, f"results for {dtype} have the wrong dtype", expected=expected, found=found)


def _check_others(call: Call) -> None:
    operator, arguments = call.operator, call.arguments
    tensors = len(tensors_of(arguments))
    for dtype in _OTHERS:
        if dtype not in (operator.dtypes or ()):
            _expect_refused(call, tuple(_to(value, dtype) for value in arguments), f"{dtype}")
    for place, value in enumerate(arguments):
        if isinstance(value, torch.Tensor) and tensors > 1:
            name = operator.arguments[place].name
            others = [dtype for dtype in operator.dtypes or () if dtype != call.dtype] or [torch.int64]
            for other in others if name in operator.mixed else others[:1]:
                mixed = (*arguments[:place], value.to(other), *arguments[place + 1 :])
                what = f"{name} in {other} among {call.dtype}"
                if name in operator.mixed:
                    _expect_right(call, mixed, what)
                else:
                    _expect_refused(call, mixed, what)


def _to(value: object, dtype: torch.dtype) -> object:
    return value.to(dtype) if isinstance(value, torch.Tensor) else value


def _expect_right(call: Call, arguments: tuple[object, ...], what: str) -> None:
    found = call.operator(*arguments)
    unmixed = [result.dtype for result in tree_leaves(call.operator(*call.arguments))]
    dtypes = [result.dtype for result in tree_leaves(found)]
    expect(dtypes == unmixed, f"results for {what} have the wrong dtype", expected=unmixed, found=dtypes)
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
