"""Results and gradients have exactly the strides of the reference's, if the operator declares `strides="reference"`.

Proves: arguments and incoming gradients are laid out in ways drawn at random: contiguous, channels_last, sliced,
permuted, expanded, and with any stride where a dimension has one element. Results and gradients then have the strides
that the reference gives on the same device in the same dtype, those of dimensions of one element and of empty tensors
too: called as usual, by torch.func, traced by aot_eager, and under autocast. Fake tensors have the same strides.

Cannot prove: anything about layouts that were not drawn, about second derivatives, or about another version of PyTorch,
in which the reference may lay out its results in another way.

Mend: allocate results by the rule of the reference (PyTorch's operators follow the strides of their input), or leave
`strides="reference"` out and let `output` say what strides there are.

Example: gives contiguous results where those of the function that it replaces keep the layout of the input.
"""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.compiling import TRACING, fresh_compiler, quiet_pytorch
from torchgraft.checking.property import COMPILER, Property
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.tensors.arguments import each_tensor
from torchgraft.checking.tensors.compare import expect_same
from torchgraft.checking.tensors.dtypes import is_number
from torchgraft.checking.tensors.gradients import leaves_of, with_gradients
from torchgraft.checking.tensors.strides import in_ambiguous_strides

# The number of random layouts of all arguments for a sample; one if it is compiled.
_LAYOUTS = 6

_Function = Callable[..., Any]


def check(case: Case) -> None:
    """See the module."""
    if case.declaration.strides != "reference":
        raise NotApplicable("it does not declare strides='reference'")
    case.each(_check_layouts, case.table(small=True, count=12))
    case.each(_check_compiled, case.table(small=True, count=3))


def _check_layouts(call: Call) -> None:
    for number in range(_LAYOUTS):
        seed = f"{call.sample.name} {call.seed + number}"
        arguments = _laid_out(call, seed)
        expected = _strides(call, call.reference, arguments, seed)
        _expect(call, call.function, arguments, seed, expected, "")
        _expect(call, partial(_by_vjp, call.function), arguments, seed, expected, " by torch.func")
        _expect_fake(call, arguments, expected)
        if call.declaration.autocast == "lower" and call.dtype == torch.float32:
            _check_autocast(call, arguments, seed)


def _check_compiled(call: Call) -> None:
    seed = f"{call.sample.name} {call.seed}"
    arguments = _laid_out(call, seed)
    expected = _strides(call, call.reference, arguments, seed)
    with fresh_compiler():
        compiled = torch.compile(call.function, backend=TRACING, dynamic=False)
        _expect(call, compiled, arguments, seed, expected, f" compiled by {TRACING}")


def _check_autocast(call: Call, arguments: Sequence[Any], seed: str) -> None:
    def of_cast(*given: Any) -> Any:
        return call.reference(*each_tensor(lambda each: each.to(dtype) if is_number(each) else each, given))

    for dtype in (torch.bfloat16, torch.float16):
        expected = _strides(call, of_cast, arguments, seed)
        with torch.autocast(call.device.type, dtype):
            _expect(call, call.function, arguments, seed, expected, f" under autocast to {dtype}")


def _laid_out(call: Call, seed: str) -> tuple[Any, ...]:
    random = Random(seed)
    return each_tensor(lambda tensor: in_ambiguous_strides(tensor, random), call.arguments)


def _strides(call: Call, function: _Function, arguments: Sequence[Any], seed: str) -> list[tuple[int, ...]]:
    """The strides of all results, and then of the gradients of all tensors that have any."""
    flags = iter([has_gradient for _, _, has_gradient in call.named_tensors(arguments)])
    leaves = each_tensor(lambda tensor: tensor.detach().requires_grad_(next(flags)), arguments)
    random = Random(seed)
    with quiet_pytorch():
        results = tree_leaves(function(*leaves))
        differentiated = with_gradients(results)
        output_grads = [in_ambiguous_strides(torch.ones(each.shape).to(each), random) for each in differentiated]
        wanted = leaves_of(leaves) if differentiated else []
        found = torch.autograd.grad(differentiated, wanted, output_grads, allow_unused=True) if wanted else ()
    return [tensor.stride() for tensor in (*results, *found) if tensor is not None]


def _by_vjp(function: _Function, *arguments: Any) -> Any:
    """Calls a function inside a transform of torch.func that another one differentiates."""
    tensors = [each for each in arguments if isinstance(each, Tensor)]

    def of_tensors(*given: Tensor) -> Any:
        values = iter(given)
        return function(*(next(values) if isinstance(each, Tensor) else each for each in arguments))

    return torch.func.vjp(of_tensors, *tensors)[0]


def _expect(
    call: Call, function: _Function, arguments: Sequence[Any], seed: str, expected: Sequence[tuple[int, ...]], how: str
) -> None:
    given = ", ".join(f"{tuple(each.shape)} {each.stride()}" for each in arguments if isinstance(each, Tensor))
    what = f"results and gradients have other strides than the reference's{how}, for {given}"
    expect_same(_strides(call, function, arguments, seed), expected, what)


def _expect_fake(call: Call, arguments: Sequence[Any], expected: Sequence[tuple[int, ...]]) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode, torch.no_grad():
        fake = tree_leaves(call.function(*each_tensor(mode.from_tensor, arguments)))
    expect_same([each.stride() for each in fake], expected[: len(fake)], "fake results have other strides")


PROPERTY = Property(
    check, dtypes=None, asked_of=lambda operator: operator.declaration.strides == "reference", imports=COMPILER
)
