"""Every private PyTorch name that torchgraft leans on, and nothing else.

PyTorch may change these without notice. Each stands behind a name of ours with a meaning of ours, and
`tests/test_torch_private.py` calls each, so that a PyTorch that broke one says which.
"""

from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch._C import _functorch

# Whether autocast is on for any device: the cheap question before the exact one.
any_autocast = torch._C._is_any_autocast_enabled

# Whether torch.jit.trace records: the cheap question, without a frame of Python.
jit_tracing = torch._C._is_tracing

_functorch_active = torch._C._are_functorch_transforms_active


def transform_active() -> bool:
    """Whether a torch.func transform runs, or code is inside `torch.autograd.forward_ad.dual_level()`."""
    return _functorch_active() or forward_ad._current_level >= 0


def forward_mode_active() -> bool:
    """Whether tangents are being carried, by `forward_ad.dual_level()` or by `torch.func.jvp`."""
    if forward_ad._current_level >= 0:
        return True
    stack = _functorch.get_interpreter_stack() or ()
    return any(interpreter.key() == _functorch.TransformType.Jvp for interpreter in stack)


def schema_of(operator: Any) -> Any:
    """The FunctionSchema of an operator overload: names, types and defaults of its arguments, and its returns."""
    return operator._schema


def callee_of(operator: Any) -> Any:
    """What an operator overload calls when it is called, one Python frame cheaper; compilers know the overload only."""
    return operator._op


def without_autocast() -> AbstractContextManager[Any]:
    """A scope in which autocast neither casts nor is asked."""
    return torch._C._DisableAutocast()


def constant_when_traced(function: Any) -> Any:
    """The function, whose result a compiler takes as it is when it traces a call.

    As `torch.compiler.assume_constant_result`, which imports the compiler: two seconds of everyone's `import`.
    """
    function._dynamo_marked_constant = True
    return function


def wait_on_gpu(seconds: float) -> None:
    """Keeps the current stream of the current GPU busy with nothing for about so long."""
    # In cycles, and no card runs above two thousand million a second by much.
    torch.cuda._sleep(int(seconds * 2e9))


def scoped_library(namespace: str, kind: str) -> AbstractContextManager[torch.library.Library]:
    """A torch.library.Library whose registrations are undone at the end of the scope."""
    return torch.library._scoped_library(namespace, kind)


def has_kernel(operator: Any, device: torch.device) -> bool:
    """Whether an operator overload has a kernel for a kind of device, and not only one for every kind."""
    key = torch._C._dispatch_key_for_device(device.type)
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), key))


def kernel_of(name: str, key: str) -> Any:
    """The kernel of an operator, named as 'aten::mm.out', under a key of the dispatcher; None where there is none."""
    if not torch._C._dispatch_has_kernel_for_dispatch_key(name, key):
        return None
    return torch.library.get_kernel(name, key)
