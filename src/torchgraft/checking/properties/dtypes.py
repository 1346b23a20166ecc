"""The operator takes every dtype that it declares, and no other.

Proves: in each declared dtype the results have the dtype of the reference's results. A tensor of another dtype is
refused with a TypeError that names the operator, and so is a mixture of dtypes, unless the operator declares it. A
declared mixture gives the results of the reference.

Cannot prove: that the values are right in each dtype; `value` checks them.

Mend: `output` gives the dtype that the kernel allocates, and the kernel dispatches over each declared dtype and no
other: `dispatch_floating`, or `dispatch_types<float, double>`.

Example: gives float32 where float16 came in.
"""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.adopting.adopted import Adopted
from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.property import Property
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.tensors.arguments import each_tensor, tensors_of
from torchgraft.checking.tensors.compare import Mismatch, expect, expect_same
from torchgraft.checking.tensors.dtypes import in_dtype

_OTHERS = (torch.int64, torch.uint8, torch.bool, torch.complex64)


def check(case: Case) -> None:
    """See the module."""
    if case.declaration.dtypes is None:
        raise NotApplicable("the operator leaves dtypes to its reference (dtypes=None)")
    case.each(_check_declared, case.table(empty=False)[:1])
    if isinstance(case.operator, Adopted):
        # Which dtypes it refuses, and in which words, its author has not promised.
        return
    case.each(_check_others, case.table(empty=False)[:1])


def _check_declared(call: Call) -> None:
    operator = call.operator
    for dtype in operator.declaration.dtypes or ():
        other = replace(call, dtype=dtype)
        found = [result.dtype for result in tree_leaves(other.function(*other.arguments))]
        expected = [result.dtype for result in tree_leaves(other.reference(*other.arguments))]
        expect_same(found, expected, f"results for {dtype} have the wrong dtype")


def _check_others(call: Call) -> None:
    operator = call.operator
    # A tensor whose sample gives it a dtype of its own stays as it is.
    has_tensors = any(each.dtype == call.dtype for each in tensors_of(call.arguments))
    for dtype in _OTHERS if has_tensors else ():
        if dtype not in (operator.declaration.dtypes or ()):
            convert = partial(_converted, before=call.dtype, to=dtype)
            _expect_refused(call, each_tensor(convert, call.arguments), f"{dtype}")
    for name, tensor, with_other in call.tensors_in_turn():
        argument = name.partition("[")[0]
        allowed = operator.declaration.dtypes_of.get(argument)
        if allowed is None:
            continue
        names = [each.partition("[")[0] for each in call.tensor_names]
        alike = [
            each
            for each in names
            if operator.declaration.dtypes_of.get(each) == allowed and each not in operator.declaration.mixed
        ]
        others = [dtype for dtype in allowed if dtype != tensor.dtype]
        if argument in operator.declaration.mixed:
            for dtype in others:
                _expect_right(call, with_other(in_dtype(tensor, dtype)), f"{name} in {dtype} among {call.dtype}")
        elif others and len(alike) > 1:
            _expect_refused(
                call, with_other(in_dtype(tensor, others[0])), f"{name} in {others[0]} among {tensor.dtype}"
            )
        strange = next(dtype for dtype in (torch.int64, *_OTHERS, torch.float32) if dtype not in allowed)
        _expect_refused(call, with_other(in_dtype(tensor, strange)), f"{name} in {strange}")


def _converted(tensor: Tensor, before: torch.dtype, to: torch.dtype) -> Tensor:
    """A tensor in another dtype, where it has the dtype of the call."""
    return in_dtype(tensor, to) if tensor.dtype == before else tensor


def _expect_right(call: Call, arguments: tuple[object, ...], what: str) -> None:
    # The call may write to its arguments.
    expected = call.expected(arguments)
    found = call.function(*arguments)
    unmixed = [result.dtype for result in tree_leaves(call.function(*call.arguments))]
    dtypes = [result.dtype for result in tree_leaves(found)]
    expect_same(dtypes, unmixed, f"results for {what} have the wrong dtype")
    call.expect_close(found, expected, what=what)


def _expect_refused(call: Call, arguments: tuple[object, ...], what: str) -> None:
    try:
        call.function(*arguments)
    except TypeError as error:
        expect(call.operator.name in str(error), f"the error for {what} does not name the operator: {error}")
        return
    except Exception as error:
        raise Mismatch(f"{what} raises {type(error).__name__}, not TypeError: {error}") from None
    raise Mismatch(f"{what} is accepted, although it is not among the declared dtypes")


PROPERTY = Property(check, of_samples=False)
